//! The file: whatever is the matter with it, the answer is an error that names
//! it, and it is left as it was.

use std::fs;
use std::path::{Path, PathBuf};

use redb::{Database, TableDefinition};
use tempfile::TempDir;

use super::{Contents, Disk};
use crate::mirror::embedded::OpenError;

impl Disk {
    /// What a failed write leaves behind.
    pub(in crate::mirror::embedded) fn fail(&mut self) {
        self.database = None;
    }
}

fn rows(n: usize) -> Vec<(String, Vec<u8>)> {
    (0..n)
        .map(|i| {
            (
                format!("key {i:04}"),
                vec![u8::try_from(i % 251).unwrap(); 300],
            )
        })
        .collect()
}

fn write(disk: &mut Disk, rows: &[(String, Vec<u8>)], revision: u64) {
    let rows = rows
        .iter()
        .map(|(key, row)| (key.as_str(), Some(row.as_slice())));
    disk.write(rows, revision).unwrap();
}

fn file(dir: &TempDir) -> PathBuf {
    dir.path().join("mirror.redb")
}

/// A store of a few rows, written in several transactions and closed cleanly.
fn clean() -> (TempDir, Contents) {
    let dir = TempDir::new().unwrap();
    let (mut disk, contents) = Disk::open(dir.path()).unwrap();
    assert_eq!((contents.revision, contents.opened), (0, 1));
    let rows = rows(40);
    for (part, revision) in rows.chunks(10).zip(1..) {
        write(&mut disk, part, revision);
    }
    disk.close().unwrap();
    let contents = Contents {
        revision: 4,
        opened: 2,
        rows,
    };
    (dir, contents)
}

/// The same as a killed process leaves it.
fn killed() -> (TempDir, Contents) {
    let (clean, contents) = clean();
    let (mut disk, _) = Disk::open(clean.path()).unwrap();
    write(&mut disk, &[("last".into(), b"words".to_vec())], 5);
    let dir = TempDir::new().unwrap();
    for name in ["mirror.redb", "acknowledged"] {
        fs::copy(clean.path().join(name), dir.path().join(name)).unwrap();
    }
    let mut rows = contents.rows;
    rows.push(("last".into(), b"words".to_vec()));
    let contents = Contents {
        revision: 5,
        opened: 3,
        rows,
    };
    (dir, contents)
}

/// Opens a store made of `bytes`.
fn open_bytes(bytes: &[u8]) -> Result<Contents, String> {
    open_in(&TempDir::new().unwrap(), bytes)
}

/// The same, beside what else is in `dir`. An error has to name the file and
/// leave it as it was.
fn open_in(dir: &TempDir, bytes: &[u8]) -> Result<Contents, String> {
    fs::write(file(dir), bytes).unwrap();
    match Disk::open(dir.path()) {
        Ok((disk, contents)) => {
            disk.close().unwrap();
            Ok(contents)
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains(file(dir).to_str().unwrap()), "{message}");
            assert!(
                message.contains("left as it is") || message.contains("left as it was"),
                "{message}"
            );
            assert!(fs::read(file(dir)).unwrap() == bytes, "changed: {message}");
            Err(message)
        }
    }
}

fn entry_names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn comes_back_after_closing_and_after_a_kill() {
    for (dir, contents) in [clean(), killed()] {
        let whole = fs::read(file(&dir)).unwrap();
        assert!(open_in(&dir, &whole) == Ok(contents));
    }
}

#[test]
fn rows_are_replaced_and_removed() {
    let (dir, _) = clean();
    let (mut disk, _) = Disk::open(dir.path()).unwrap();
    let changes = [
        ("key 0000", None),
        ("key 0001", Some(b"new".as_slice())),
        ("absent", None),
    ];
    disk.write(changes.into_iter(), 9).unwrap();
    disk.close().unwrap();
    let (_disk, contents) = Disk::open(dir.path()).unwrap();
    assert_eq!((contents.revision, contents.opened), (9, 3));
    assert_eq!(contents.rows.len(), 39);
    assert_eq!(contents.rows[0], ("key 0001".into(), b"new".to_vec()));
    assert_eq!(
        entry_names(dir.path()),
        ["acknowledged", "lock", "mirror.redb"]
    );
}

#[test]
fn a_truncated_file_is_refused_at_any_length() {
    for (dir, _) in [clean(), killed()] {
        let whole = fs::read(file(&dir)).unwrap();
        let step = whole.len() / 60;
        let ends = (0..whole.len()).step_by(step);
        for end in ends.chain([1, 8, 100, 511, 512, 4_095, 4_096, 4_097, whole.len() - 1]) {
            let outcome = open_bytes(&whole[..end]);
            assert!(
                outcome.is_err(),
                "{end} of {} bytes: {outcome:?}",
                whole.len()
            );
        }
    }
}

#[test]
fn a_flipped_byte_is_refused_or_does_not_matter() {
    for (dir, contents) in [clean(), killed()] {
        let whole = fs::read(file(&dir)).unwrap();
        let note = fs::read(dir.path().join("acknowledged")).unwrap();
        let places = (0..512).chain((512..whole.len()).step_by(499));
        for at in places {
            fs::write(dir.path().join("acknowledged"), &note).unwrap();
            let mut bytes = whole.clone();
            bytes[at] ^= 0x55;
            if let Ok(read) = open_in(&dir, &bytes) {
                assert!(read == contents, "byte {at}: {} rows", read.rows.len());
            }
        }
    }
}

#[test]
fn a_lost_page_and_a_foreign_tail_are_refused_or_do_not_matter() {
    for (dir, contents) in [clean(), killed()] {
        let whole = fs::read(file(&dir)).unwrap();
        let note = fs::read(dir.path().join("acknowledged")).unwrap();
        let pages = (0..whole.len()).step_by(4_096).flat_map(|at| {
            [0, 0xff].map(|fill| {
                let mut bytes = whole.clone();
                let end = whole.len().min(at + 4_096);
                bytes[at..end].fill(fill);
                bytes
            })
        });
        let tails = [1, 511, 4_096, 100_000].map(|n| [whole.clone(), vec![0xa5; n]].concat());
        for (n, bytes) in pages.chain(tails).enumerate() {
            fs::write(dir.path().join("acknowledged"), &note).unwrap();
            if let Ok(read) = open_in(&dir, &bytes) {
                assert!(read == contents, "variant {n}: {} rows", read.rows.len());
            }
        }
    }
}

#[test]
fn a_file_that_fell_behind_is_refused_but_a_backup_is_not() {
    let (dir, _) = clean();
    let backup = fs::read(file(&dir)).unwrap();
    let (mut disk, _) = Disk::open(dir.path()).unwrap();
    let early = fs::read(file(&dir)).unwrap();
    write(&mut disk, &[("last".into(), b"words".to_vec())], 5);
    drop(disk);
    let message = open_in(&dir, &early).unwrap_err();
    assert!(
        message.contains("up to revision 4, and 5 was acknowledged"),
        "{message}"
    );
    assert!(
        message.contains("remove the file `acknowledged`"),
        "{message}"
    );
    fs::remove_file(dir.path().join("acknowledged")).unwrap();
    assert_eq!(open_in(&dir, &early).unwrap().revision, 4);
    assert_eq!(
        open_in(&dir, &backup).unwrap().revision,
        4,
        "of an earlier opening"
    );
}

#[test]
fn what_is_no_store_is_refused() {
    let other = TempDir::new().unwrap();
    let path = other.path().join("other.redb");
    let table: TableDefinition<'_, &str, &str> = TableDefinition::new("something");
    let database = Database::create(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(table).unwrap();
    transaction.commit().unwrap();
    database.close().unwrap();
    let foreign = fs::read(&path).unwrap();
    let zeros = vec![0; 200_000];
    for bytes in [b"".as_slice(), b"hello", b"redb", &zeros, &foreign] {
        let message = open_bytes(bytes).unwrap_err();
        assert!(message.contains("damaged or truncated"), "{message}");
    }
}

fn set_meta(dir: &TempDir, name: &str, value: u64) {
    let meta: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
    let database = Database::open(file(dir)).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction
        .open_table(meta)
        .unwrap()
        .insert(name, value)
        .unwrap();
    transaction.commit().unwrap();
    database.close().unwrap();
}

#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let (dir, _) = clean();
    set_meta(&dir, "format", 7);
    let message = open_bytes(&fs::read(file(&dir)).unwrap()).unwrap_err();
    assert!(
        message.contains("has format 7, and this version reads up to 1"),
        "{message}"
    );
    assert!(message.contains("run the newer version"), "{message}");
    set_meta(&dir, "format", 1);
    assert!(Disk::open(dir.path()).is_ok(), "nothing was lost meanwhile");
    set_meta(&dir, "format", 0);
    let message = open_bytes(&fs::read(file(&dir)).unwrap()).unwrap_err();
    assert!(message.contains("states no format"), "{message}");
}

#[test]
fn one_process_holds_a_directory() {
    let dir = TempDir::new().unwrap();
    let (disk, _) = Disk::open(dir.path()).unwrap();
    let error = Disk::open(dir.path()).unwrap_err();
    let OpenError::InUse { pid, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*pid, Some(std::process::id()));
    let message = error.to_string();
    assert!(message.contains(dir.path().to_str().unwrap()), "{message}");
    disk.close().unwrap();
    assert!(Disk::open(dir.path()).is_ok());
}

#[test]
fn a_path_that_can_not_be_a_store_is_refused() {
    let dir = TempDir::new().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, b"text").unwrap();
    let as_file = dir.path().join("dir-as-file");
    fs::create_dir_all(as_file.join("mirror.redb")).unwrap();
    let as_lock = dir.path().join("dir-as-lock");
    fs::create_dir_all(as_lock.join("lock")).unwrap();
    let places = [
        (plain.clone(), "use the directory"),
        (plain.join("below"), "use the directory"),
        (as_file.clone(), "open"),
        (as_lock, "open"),
        // Nobody may write there, not even root.
        (PathBuf::from("/proc/no-store"), "use the directory"),
        (PathBuf::from("/proc/self/fdinfo"), "open"),
        (PathBuf::new(), "use the directory"),
    ];
    for (place, doing) in places {
        let error = Disk::open(&place).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with(&format!("cannot {doing} ")),
            "{message}"
        );
        assert!(message.contains(place.to_str().unwrap()), "{message}");
        assert!(message.contains("check that the path"), "{message}");
    }
    assert_eq!(fs::read(&plain).unwrap(), b"text");
    assert!(as_file.join("mirror.redb").is_dir());
}

#[test]
fn a_beginning_that_was_cut_short_begins_again() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("mirror.redb.new"), b"half").unwrap();
    let (disk, contents) = Disk::open(dir.path()).unwrap();
    assert_eq!(contents.rows, []);
    disk.close().unwrap();
    assert_eq!(
        entry_names(dir.path()),
        ["acknowledged", "lock", "mirror.redb"]
    );
}

#[test]
fn a_lost_file_is_refused_as_long_as_its_note_is_there() {
    for note in [None, Some(b"".as_slice()), Some(b"garbage")] {
        let (dir, _) = clean();
        fs::remove_file(file(&dir)).unwrap();
        if let Some(note) = note {
            fs::write(dir.path().join("acknowledged"), note).unwrap();
        }
        let refused = Disk::open(dir.path()).unwrap_err();
        assert!(matches!(refused, OpenError::Gone { .. }), "{refused}");
        assert_eq!(entry_names(dir.path()), ["acknowledged", "lock"]);
        fs::remove_file(dir.path().join("acknowledged")).unwrap();
        let (_disk, contents) = Disk::open(dir.path()).unwrap();
        assert_eq!(contents.rows, []);
    }
}

#[test]
fn a_failed_file_is_opened_again_with_all_it_holds() {
    let (dir, _) = clean();
    let (mut disk, before) = Disk::open(dir.path()).unwrap();
    disk.fail();
    assert!(disk.is_closed());
    assert!(disk.write([("x", None)].into_iter(), 5).is_err());
    let after = disk.reopen().unwrap();
    assert_eq!(after.rows, before.rows);
    assert!(after.opened > before.opened);
    write(&mut disk, &[("x".into(), vec![1])], 5);
}

#[cfg(unix)]
#[test]
fn only_the_user_looks_into_a_directory_made_here() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("store");
    let (_disk, _) = Disk::open(&dir).unwrap();
    assert_eq!(
        fs::metadata(&dir).unwrap().permissions().mode() & 0o777,
        0o700
    );
}
