//! A killed process loses nothing that was acknowledged; a full disk is an
//! error and no more.
//!
//! The process is the example `mirror_committer`, which is built with the
//! package's tests.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "a test fails by panicking, and its helpers are part of it"
)]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shared_proto::clock::SystemClock;
use shared_proto::mirror::commit::{Commit, Expected};
use shared_proto::mirror::embedded::{Embedded, OpenError};
use shared_proto::mirror::key::{HEALTH, Key};
use shared_proto::mirror::record::{Body, Revision};
use shared_proto::mirror::{Health, Mirror};
use tempfile::TempDir;

#[derive(Serialize, Deserialize)]
struct Count {
    count: u64,
}

impl Body for Count {
    const KIND: &'static str = HEALTH;
    const VERSION: u16 = 1;
}

fn committer() -> PathBuf {
    // Tests run from target/PROFILE/deps, examples lie in target/PROFILE/examples.
    let test = std::env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let path = profile.join("examples/mirror_committer");
    assert!(
        path.exists(),
        "{} is not built; run all tests of the package, or `cargo build --examples` first",
        path.display()
    );
    path
}

/// A running committer; killed at the end of the test, whatever comes of it.
struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn committer(dir: &Path) -> Self {
        let mut command = Command::new(committer());
        command.arg(dir).arg("200");
        Self::start(command)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "it ended with {line:?}");
        line.trim_end().to_owned()
    }

    /// SIGKILL, and what it had still printed.
    fn kill(&mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        rest.lines().map(str::to_owned).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails when it has ended already, which is what is wanted.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// For each key the last count and revision known to be stored.
#[derive(Default)]
struct Known(BTreeMap<String, (u64, Revision)>);

impl Known {
    /// Takes in an acknowledgement.
    fn note(&mut self, line: &str) {
        let fields: Vec<_> = line.split(' ').collect();
        let ["ack", id, count, revision] = fields[..] else {
            panic!("not an acknowledgement: {line}");
        };
        let count = count.parse().unwrap();
        let revision = Revision::new(revision.parse().unwrap());
        if let Some(before) = self.0.insert(id.to_owned(), (count, revision)) {
            assert!(
                count == before.0 + 1 && revision > before.1,
                "{before:?}, {line}"
            );
        }
    }

    /// For each key, what was acknowledged is stored, or the one commit after
    /// it, which may have been made but not told; that is known from now on.
    async fn check(&mut self, store: &dyn Mirror) {
        let snapshot = store.snapshot().await.unwrap();
        assert_eq!(snapshot.unreadable, []);
        let mut stored = BTreeMap::new();
        for record in snapshot.records {
            let Key::Health(id) = &record.key else {
                panic!("{record:?}");
            };
            let count = record.decode::<Count>().unwrap().count;
            stored.insert(id.to_string(), (count, record.revision));
        }
        for (id, known) in &self.0 {
            let found = stored.get(id);
            let next = found.is_some_and(|found| found.0 == known.0 + 1 && found.1 > known.1);
            assert!(
                found == Some(known) || next,
                "{id}: {known:?} acknowledged, {found:?} stored"
            );
        }
        assert!(
            stored
                .iter()
                .all(|(id, found)| self.0.contains_key(id) || found.0 == 1)
        );
        self.0 = stored;
    }
}

fn open(dir: &Path) -> Result<Embedded, OpenError> {
    Embedded::disk(dir, "test", Arc::new(SystemClock))
}

#[tokio::test]
async fn a_killed_process_loses_nothing_acknowledged() {
    let dir = TempDir::new().unwrap();
    let mut known = Known::default();
    // One store through all of it, killed after so many acknowledgements.
    for kill_after in [1, 2, 3, 8, 13, 40, 100, 1, 150, 7] {
        let mut running = Running::committer(dir.path());
        for _ in 0..kill_after {
            known.note(&running.line());
        }
        for line in running.kill() {
            known.note(&line);
        }
        let store = open(dir.path()).unwrap();
        known.check(&store).await;
        store.close().await.unwrap();
    }
    assert_eq!(known.0.len(), 8, "every key was counted");
}

#[tokio::test]
async fn a_second_process_is_refused_until_the_first_has_ended() {
    let dir = TempDir::new().unwrap();
    let mut running = Running::committer(dir.path());
    running.line();
    let refused = open(dir.path()).map(|_| ()).unwrap_err();
    let holder = running.child.id();
    assert!(matches!(refused, OpenError::InUse { pid: Some(pid), .. } if pid == holder));
    let message = refused.to_string();
    assert!(message.contains(&format!("pid {holder}")), "{message}");
    running.line();
    running.kill();
    open(dir.path()).unwrap().close().await.unwrap();
}

/// The size of the file is bounded for the process, which to the store looks
/// like a disk without space.
#[tokio::test]
async fn a_full_disk_is_an_error_that_loses_nothing() {
    let dir = TempDir::new().unwrap();
    let mut command = Command::new("sh");
    // 2,000 blocks of 512 bytes. Ignored, the signal becomes an error of the write.
    command
        .args(["-c", "trap '' XFSZ; ulimit -f 2000 && exec \"$0\" \"$@\""])
        .arg(committer())
        .arg(dir.path())
        .arg("200000");
    let mut running = Running::start(command);
    let mut known = Known::default();
    let failed = loop {
        let line = running.line();
        match line.strip_prefix("failed ") {
            Some(why) => break why.to_owned(),
            None => known.note(&line),
        }
    };
    assert!(
        failed.starts_with("the store is unreachable: cannot write "),
        "{failed}"
    );
    assert!(failed.contains("mirror.redb"), "{failed}");
    assert_eq!(running.line(), "health degraded");
    assert_eq!(running.line(), format!("readable {}", known.0.len()));
    assert!(running.child.wait().unwrap().success());

    let store = open(dir.path()).unwrap();
    known.check(&store).await;
    let key = Key::Health("after".into());
    let commit = Commit::put(key, Expected::Absent, &Count { count: 1 }).unwrap();
    store.commit(commit).await.unwrap();
    assert_eq!(store.health(), Health::Up);
    store.close().await.unwrap();
}
