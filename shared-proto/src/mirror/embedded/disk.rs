//! The embedded store's file.
//!
//! A directory holds `mirror.redb`, `acknowledged` (see [`witness`](super::witness))
//! and `lock`, which the one process that uses the directory holds. The file is
//! a redb database with a table of records (spelled key to stored record) and
//! one of numbers about the store itself.
//!
//! Before a file is opened, a copy of it in memory goes through the database's
//! own repair and full check of all checksums, and is read. A file that does
//! not pass is refused and has not been touched. The state is held in memory
//! anyway, so the copy is of the order of what is needed.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, ReadableDatabase as _, ReadableTable as _, StorageBackend as _,
    TableDefinition,
};

use super::OpenError;
use super::witness::{Note, Witness};

/// The layout of the file that this version writes, and the newest it reads.
/// There is no older one yet.
pub(super) const FILE_FORMAT: u64 = 1;

const FILE: &str = "mirror.redb";
/// A file that is being made; it gets its name when it is complete.
const UNFINISHED: &str = "mirror.redb.new";
const LOCK: &str = "lock";
pub(super) const ACKNOWLEDGED: &str = "acknowledged";

/// The database's cache, in bytes. The table in memory serves all reads.
const CACHE_BYTES: usize = 4 << 20;
/// How much of the file is copied at a time, in bytes.
const CHUNK_BYTES: usize = 1 << 18;

const RECORDS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("records");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const META_FORMAT: &str = "format";
const META_REVISION: &str = "revision";
const META_OPENED: &str = "opened";

/// An open store directory.
#[derive(Debug)]
pub(super) struct Disk {
    file: PathBuf,
    /// `None` after a failure, until it is opened again.
    database: Option<Database>,
    witness: Witness,
    /// How often the file was opened, this time included.
    opened: u64,
    /// Held for as long as this lives.
    _lock: File,
}

/// What the file holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// The newest revision given.
    pub(super) revision: u64,
    /// How often it was opened, this time included.
    pub(super) opened: u64,
    /// Spelled keys and stored records.
    pub(super) rows: Vec<(String, Vec<u8>)>,
}

impl Disk {
    /// Takes the directory, which is made if need be, and opens its file.
    pub(super) fn open(dir: &Path) -> Result<(Self, Contents), OpenError> {
        make_dir(dir).map_err(|why| OpenError::io("use the directory", dir, &why))?;
        let lock = lock(dir)?;
        let file = dir.join(FILE);
        let note = dir.join(ACKNOWLEDGED);
        match fs::metadata(&file) {
            Ok(found) if found.is_dir() => {
                let why = io::Error::from(io::ErrorKind::IsADirectory);
                return Err(OpenError::io("open", &file, &why));
            }
            Ok(_) => {}
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                // The note is made after the file, so alone it tells of a loss.
                match fs::symlink_metadata(&note) {
                    Ok(_) => return Err(OpenError::Gone { file }),
                    Err(why) if why.kind() == io::ErrorKind::NotFound => create(dir, &file)?,
                    Err(why) => return Err(OpenError::io("open", &note, &why)),
                }
            }
            Err(why) => return Err(OpenError::io("open", &file, &why)),
        }
        let mut witness = Witness::open(&note).map_err(|why| OpenError::io("open", &note, &why))?;
        let (database, contents) = open_file(&file, &mut witness)?;
        let disk = Self {
            file,
            database: Some(database),
            witness,
            opened: contents.opened,
            _lock: lock,
        };
        Ok((disk, contents))
    }

    /// Whether a failure closed the file.
    pub(super) const fn is_closed(&self) -> bool {
        self.database.is_none()
    }

    /// Opens the file again after a failure. What it holds may be more than
    /// was acknowledged: the failed batch may have got through.
    pub(super) fn reopen(&mut self) -> Result<Contents, OpenError> {
        let (database, contents) = open_file(&self.file, &mut self.witness)?;
        self.database = Some(database);
        self.opened = contents.opened;
        Ok(contents)
    }

    /// Writes rows (`None` removes one) in one transaction and waits until
    /// they are durable. On failure the file is closed, and it is not known
    /// whether they are stored.
    pub(super) fn write<'a>(
        &mut self,
        rows: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
        revision: u64,
    ) -> Result<(), String> {
        let Some(database) = &self.database else {
            return Err(format!("{} is closed", self.file.display()));
        };
        if let Err(why) = guarded(|| write_rows(database, rows, revision)) {
            let dropped = self.database.take();
            guarded(|| {
                drop(dropped);
                Ok(())
            })
            .ok();
            return Err(format!("cannot write {}: {why}", self.file.display()));
        }
        let opened = self.opened;
        // Without a note, or with an older one, less damage is noticed; no more.
        self.witness.write(Note { opened, revision }).ok();
        Ok(())
    }

    /// Closes the file cleanly and gives the directory back.
    pub(super) fn close(self) -> Result<(), String> {
        let file = self.file;
        let Some(database) = self.database else {
            return Ok(());
        };
        guarded(|| database.close().map_err(redb::Error::from))
            .map_err(|why| format!("cannot close {}: {why}", file.display()))
    }
}

fn write_rows<'a>(
    database: &Database,
    rows: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    revision: u64,
) -> Result<(), redb::Error> {
    // Durability is immediate unless told otherwise: commit waits for fsync.
    let transaction = database.begin_write()?;
    {
        let mut records = transaction.open_table(RECORDS)?;
        for (key, stored) in rows {
            match stored {
                Some(stored) => drop(records.insert(key, stored)?),
                None => drop(records.remove(key)?),
            }
        }
        let mut meta = transaction.open_table(META)?;
        meta.insert(META_REVISION, revision)?;
    }
    transaction.commit()?;
    Ok(())
}

/// Makes a directory that only this user can look into: records may hold
/// credentials, encrypted or not.
fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() {
        return Err(io::Error::other("the path is empty"));
    }
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir)
}

fn lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(LOCK);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options
        .open(&path)
        .map_err(|why| OpenError::io("open", &path, &why))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Only for the message; a lock whose holder can't be named is held all the same.
            file.take(20).read_to_string(&mut pid).ok();
            return Err(OpenError::InUse {
                dir: dir.to_owned(),
                pid: pid.trim().parse().ok(),
            });
        }
        Err(TryLockError::Error(why)) => return Err(OpenError::io("lock", &path, &why)),
    }
    let named = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    named.map_err(|why| OpenError::io("write", &path, &why))?;
    Ok(file)
}

/// Makes an empty store. The file appears under its name only when complete,
/// so an empty or half-written one is always damage, never a beginning.
fn create(dir: &Path, file: &Path) -> Result<(), OpenError> {
    let unfinished = dir.join(UNFINISHED);
    match fs::remove_file(&unfinished) {
        Ok(()) => {}
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        Err(why) => return Err(OpenError::io("replace", &unfinished, &why)),
    }
    guarded(|| {
        let database = Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create(&unfinished)?;
        let transaction = database.begin_write()?;
        {
            drop(transaction.open_table(RECORDS)?);
            let mut meta = transaction.open_table(META)?;
            meta.insert(META_FORMAT, FILE_FORMAT)?;
            meta.insert(META_REVISION, 0)?;
            meta.insert(META_OPENED, 0)?;
        }
        transaction.commit()?;
        Ok(database.close()?)
    })
    .map_err(|why| OpenError::storage("create", &unfinished, why))?;
    fs::rename(&unfinished, file)
        .and_then(|()| File::open(dir)?.sync_all())
        .map_err(|why| OpenError::io("create", file, &why))
}

/// Checks and reads the file, and only then opens it for writing.
fn open_file(file: &Path, witness: &mut Witness) -> Result<(Database, Contents), OpenError> {
    let mut contents = check(file)?;
    let note = witness
        .read()
        .map_err(|why| OpenError::io("read the note beside", file, &why))?;
    if let Some(note) = note.filter(|note| note.opened == contents.opened)
        && contents.revision < note.revision
    {
        return Err(OpenError::Damaged {
            file: file.to_owned(),
            why: format!(
                "it goes up to revision {}, and {} was acknowledged; to take it all the same, \
                 remove the file `{ACKNOWLEDGED}` beside it",
                contents.revision, note.revision
            ),
        });
    }
    contents.opened = contents.opened.saturating_add(1);
    let opened = contents.opened;
    let database = guarded(|| {
        let database = Builder::new().set_cache_size(CACHE_BYTES).open(file)?;
        let transaction = database.begin_write()?;
        transaction.open_table(META)?.insert(META_OPENED, opened)?;
        transaction.commit()?;
        Ok(database)
    })
    .map_err(|why| OpenError::storage("open", file, why))?;
    let revision = contents.revision;
    witness.write(Note { opened, revision }).ok();
    Ok((database, contents))
}

/// What the file holds, read from a checked copy.
fn check(file: &Path) -> Result<Contents, OpenError> {
    let damaged = |why: String| OpenError::Damaged {
        file: file.to_owned(),
        why,
    };
    let copy = copy(file).map_err(|why| OpenError::io("read", file, &why))?;
    let Some(copy) = copy else {
        return Err(damaged("it is empty".into()));
    };
    let database = guarded(|| {
        let mut builder = Builder::new();
        builder
            .set_cache_size(CACHE_BYTES)
            .set_check_integrity_on_open(true);
        Ok(builder.create_with_backend(copy)?)
    })
    .map_err(damaged)?;
    let format = guarded(|| Ok(read_meta(&database)?.0)).map_err(damaged)?;
    match format {
        FILE_FORMAT => {}
        0 => return Err(damaged("it states no format".into())),
        newer => {
            return Err(OpenError::NewerFormat {
                file: file.to_owned(),
                found: newer,
            });
        }
    }
    guarded(|| read(&database)).map_err(damaged)
}

/// A copy in memory; `None` for an empty file.
fn copy(file: &Path) -> io::Result<Option<InMemoryBackend>> {
    let mut source = File::open(file)?;
    let copy = InMemoryBackend::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at: u64 = 0;
    loop {
        let read = source.read(&mut chunk)?;
        let end = at.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        if read == 0 {
            return Ok((at > 0).then_some(copy));
        }
        copy.set_len(end)?;
        copy.write(at, chunk.get(..read).unwrap_or_default())?;
        at = end;
    }
}

/// Format, revision and number of openings; 0 where there is none.
fn read_meta(database: &Database) -> Result<(u64, u64, u64), redb::Error> {
    let meta = database.begin_read()?.open_table(META)?;
    let number = |name| meta.get(name).map(|found| found.map_or(0, |n| n.value()));
    Ok((
        number(META_FORMAT)?,
        number(META_REVISION)?,
        number(META_OPENED)?,
    ))
}

fn read(database: &Database) -> Result<Contents, redb::Error> {
    let (_, revision, opened) = read_meta(database)?;
    let records = database.begin_read()?.open_table(RECORDS)?;
    let mut rows = Vec::new();
    for row in records.iter()? {
        let (key, stored) = row?;
        rows.push((key.value().to_owned(), stored.value().to_owned()));
    }
    Ok(Contents {
        revision,
        opened,
        rows,
    })
}

/// Runs `work` on the database. It may panic on bytes it did not write; that
/// is an error like any other here, and the database in question is dropped.
fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(why)) => Err(why.to_string()),
        Err(panic) => Err(panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("the database gave up")
            .to_owned()),
    }
}

#[cfg(test)]
mod tests;
