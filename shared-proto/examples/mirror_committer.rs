//! Commits to a store on disk as fast as it answers, and prints a line for
//! each acknowledgement: what the tests kill.
//!
//! `mirror_committer DIR BODY_BYTES`: eight keys are counted up, all at once.
//! Lines are `ack KEY COUNT REVISION`; at the first commit that fails,
//! `failed WHY`, then `health up|degraded` and `readable RECORDS`, and the end.

use std::error::Error;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use shared_proto::clock::SystemClock;
use shared_proto::mirror::commit::{Commit, CommitError, Expected};
use shared_proto::mirror::embedded::Embedded;
use shared_proto::mirror::key::{HEALTH, Key};
use shared_proto::mirror::record::Body;
use shared_proto::mirror::{Health, Mirror};

#[derive(Serialize, Deserialize)]
struct Count {
    count: u64,
    ballast: String,
}

impl Body for Count {
    const KIND: &'static str = HEALTH;
    const VERSION: u16 = 1;
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("DIR is missing")?;
    let bytes = args.next().ok_or("BODY_BYTES is missing")?.parse()?;
    let store = Embedded::disk(Path::new(&dir), "test", Arc::new(SystemClock))?;
    tokio::runtime::Builder::new_current_thread()
        .build()?
        .block_on(run(&store, bytes))
}

async fn run(store: &dyn Mirror, bytes: usize) -> Result<(), Box<dyn Error>> {
    let keys = (0..8).map(|n| format!("key-{n}"));
    let failed = try_join_all(keys.map(|id| count_up(store, id, bytes)));
    let Err(why) = failed.await else {
        return Err("counting up has no other end".into());
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "failed {why}")?;
    let health = match store.health() {
        Health::Up => "up",
        Health::Degraded { .. } => "degraded",
    };
    writeln!(out, "health {health}")?;
    writeln!(out, "readable {}", store.snapshot().await?.records.len())?;
    Ok(())
}

async fn count_up(store: &dyn Mirror, id: String, bytes: usize) -> Result<(), Box<dyn Error>> {
    let key = Key::Health(id.as_str().into());
    let mut count = 0_u64;
    let mut expected = Expected::Absent;
    loop {
        let next = Count {
            count: count.saturating_add(1),
            ballast: "x".repeat(bytes),
        };
        match store
            .commit(Commit::put(key.clone(), expected, &next)?)
            .await
        {
            Ok(done) => {
                count = next.count;
                expected = Expected::Revision(done.revision);
                // One write for each line, so that a line is printed whole or not at all.
                writeln!(std::io::stdout(), "ack {id} {count} {}", done.revision)?;
            }
            Err(CommitError::Conflict {
                newest: Some(record),
            }) => {
                count = record.decode::<Count>()?.count;
                expected = Expected::Revision(record.revision);
            }
            Err(other) => return Err(other.into()),
        }
    }
}
