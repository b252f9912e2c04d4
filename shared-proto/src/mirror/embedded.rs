//! The mirror inside one process: in memory, or in a directory of this node.
//!
//! One thread owns the store ([`writer`]); the handle here sends it requests
//! through a bounded queue, and waits while the queue is full. Reads are
//! answered between two flushes of the disk. Holds are in memory only
//! ([`Board`]) and forgotten at exit, whatever the store.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream;
use tokio::sync::{mpsc, oneshot, watch};

use super::commit::{Committed, TransactError, Transaction};
use super::hold::board::Board;
use super::hold::{Held, HoldError, Place, Pool, Take, Taken, check_places};
use super::key::{Key, Keyspace};
use super::log::{LogEntry, Position, Tail, TailError};
use super::record::Record;
use super::{Health, LoadError, Mirror, Snapshot, Unreachable};
use crate::clock::{Clock, Millis};
use disk::{Contents, Disk};
use holds::HoldJob;
use ring::Ring;
use table::Table;
use writer::{Job, StoreClock, Writer};

mod disk;
mod holds;
mod ring;
mod table;
mod witness;
mod writer;

/// Requests that wait for the thread at most; more make their callers wait.
const QUEUE: usize = 256;

/// How much an embedded store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of the change log.
    pub log_entries: usize,
    /// Bytes of the bodies that the change log keeps, roughly.
    pub log_bytes: usize,
    /// Bytes of all keys and records; a commit beyond is refused as full.
    pub stored_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            log_entries: 10_000,
            log_bytes: 32 << 20,
            stored_bytes: 1 << 30,
        }
    }
}

/// An embedded store. When the last handle is dropped without
/// [`Mirror::close`], the thread still finishes what was accepted, a little
/// later.
pub struct Embedded {
    jobs: mpsc::Sender<Job>,
    head: watch::Receiver<Position>,
    health: watch::Receiver<Health>,
    clock: StoreClock,
}

impl Embedded {
    /// A store that is forgotten at exit (`embedded:memory`).
    pub fn memory(prefix: &str, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::memory_within(prefix, clock, Limits::default())
    }

    /// The same, with limits of its own.
    pub fn memory_within(
        prefix: &str,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Result<Self, OpenError> {
        let contents = Contents {
            opened: 1,
            ..Contents::default()
        };
        Self::start(prefix, clock, limits, (None, contents))
    }

    /// A store in a directory (`embedded:DIR`), which is made if need be and
    /// held against other processes. Blocks while the files are read.
    pub fn disk(dir: &Path, prefix: &str, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        Self::disk_within(dir, prefix, clock, Limits::default())
    }

    /// The same, with limits of its own.
    pub fn disk_within(
        dir: &Path,
        prefix: &str,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Result<Self, OpenError> {
        let (disk, contents) = Disk::open(dir)?;
        Self::start(prefix, clock, limits, (Some(disk), contents))
    }

    fn start(
        prefix: &str,
        clock: Arc<dyn Clock>,
        limits: Limits,
        (disk, contents): (Option<Disk>, Contents),
    ) -> Result<Self, OpenError> {
        let clock = StoreClock::new(clock);
        let ring = Ring::new(contents.opened, limits.log_entries, limits.log_bytes);
        let (head_tx, head) = watch::channel(ring.head());
        let (health_tx, health) = watch::channel(Health::Up);
        let writer = Writer {
            table: Table::new(
                Keyspace::new(prefix),
                limits.stored_bytes,
                contents.revision,
                contents.rows,
            ),
            board: Board::default(),
            ring,
            disk,
            clock: clock.clone(),
            head: head_tx,
            health: health_tx,
            retry_at: Millis::default(),
        };
        let (jobs, queue) = mpsc::channel(QUEUE);
        std::thread::Builder::new()
            .name("mirror-writer".into())
            .spawn(move || writer.run(queue))
            .map_err(|why| OpenError::Thread(why.to_string()))?;
        Ok(Self {
            jobs,
            head,
            health,
            clock,
        })
    }
}

/// Sends the thread a request and waits for the answer.
async fn ask<T>(
    jobs: &mpsc::Sender<Job>,
    job: impl FnOnce(oneshot::Sender<T>) -> Job,
) -> Result<T, Unreachable> {
    let (reply, answer) = oneshot::channel();
    jobs.send(job(reply)).await.map_err(|_| closed())?;
    answer.await.map_err(|_| closed())
}

fn closed() -> Unreachable {
    Unreachable("it is closed".into())
}

impl Mirror for Embedded {
    fn transact(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'_, Result<Vec<Committed>, TransactError>> {
        async move {
            // Here already, so that the queue can't fill up with giants.
            transaction.check()?;
            ask(&self.jobs, |reply| Job::Transact(transaction, reply)).await?
        }
        .boxed()
    }

    fn load<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, LoadError>> {
        async move { Ok(ask(&self.jobs, |reply| Job::Load(key.clone(), reply)).await??) }.boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Unreachable>> {
        ask(&self.jobs, Job::Snapshot).boxed()
    }

    fn tail(&self, from: Position) -> BoxFuture<'_, Result<Tail, TailError>> {
        async move {
            let first = ask(&self.jobs, |reply| Job::Entries(from, reply)).await??;
            let cursor = Cursor {
                // Weak: a reader does not keep the store open.
                jobs: self.jobs.downgrade(),
                head: self.head.clone(),
                at: from,
                ready: first.into(),
            };
            let entries = stream::try_unfold(cursor, |mut cursor| async move {
                let entry = cursor.next().await?;
                Ok(Some((entry, cursor)))
            });
            Ok(Tail::new(Box::pin(entries)))
        }
        .boxed()
    }

    fn take(&self, take: Take) -> BoxFuture<'_, Result<Taken, HoldError>> {
        async move {
            take.check()?;
            ask(&self.jobs, |reply| Job::Hold(HoldJob::Take(take, reply))).await?
        }
        .boxed()
    }

    fn keep(&self, places: Vec<Place>, ttl_ms: u64) -> BoxFuture<'_, Result<Vec<bool>, HoldError>> {
        async move {
            check_places(&places)?;
            let job = |reply| Job::Hold(HoldJob::Keep(places, ttl_ms, reply));
            ask(&self.jobs, job).await?
        }
        .boxed()
    }

    fn give_back(&self, places: Vec<Place>) -> BoxFuture<'_, Result<(), HoldError>> {
        async move {
            check_places(&places)?;
            let job = |reply| Job::Hold(HoldJob::GiveBack(places, reply));
            ask(&self.jobs, job).await?
        }
        .boxed()
    }

    fn holders<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Vec<Held>, HoldError>> {
        async move {
            let job = |reply| Job::Hold(HoldJob::Holders(pool.clone(), reply));
            Ok(ask(&self.jobs, job).await?)
        }
        .boxed()
    }

    fn now(&self) -> Millis {
        self.clock.now()
    }

    fn health(&self) -> Health {
        if self.jobs.is_closed() {
            return Health::Degraded {
                since: self.clock.now(),
                why: closed().0,
            };
        }
        self.health.borrow().clone()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Unreachable>> {
        async move { ask(&self.jobs, Job::Close).await? }.boxed()
    }
}

/// A reader's place in the log, and the entries it has fetched ahead.
struct Cursor {
    jobs: mpsc::WeakSender<Job>,
    head: watch::Receiver<Position>,
    at: Position,
    ready: VecDeque<LogEntry>,
}

impl Cursor {
    async fn next(&mut self) -> Result<LogEntry, TailError> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                self.at = entry.position;
                return Ok(entry);
            }
            let head = *self.head.borrow_and_update();
            if head == self.at {
                self.head.changed().await.map_err(|_| closed())?;
                continue;
            }
            let jobs = self.jobs.upgrade().ok_or_else(closed)?;
            self.ready = ask(&jobs, |reply| Job::Entries(self.at, reply))
                .await??
                .into();
        }
    }
}

/// Why an embedded store does not open. Nothing was changed or deleted, and
/// the message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds the directory.
    #[error(
        "the store directory {} is in use by another process{}; stop that one, or give this one \
         a directory of its own in `store.url`",
        dir.display(),
        pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// The process that holds it, where it says so.
        pid: Option<u32>,
    },
    /// A newer version of this program wrote the file.
    #[error(
        "the store file {} has format {found}, and this version reads up to {}; it was left as \
         it is: run the newer version, or set `store.url` to another directory",
        file.display(),
        disk::FILE_FORMAT
    )]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u64,
    },
    /// The file is truncated, corrupt or not a store at all.
    #[error(
        "the store file {} is damaged or truncated ({why}); it was left as it is: restore it from \
         a backup, or move it and the file `acknowledged` beside it away to start with an empty \
         store",
        file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What the check found.
        why: String,
    },
    /// The file is gone, but not what notes that it was there.
    #[error(
        "the store file {} is gone, though `{}` beside it says that it was in use; nothing was \
         changed: put the file back, or remove `{}` too to start with an empty store",
        file.display(),
        disk::ACKNOWLEDGED,
        disk::ACKNOWLEDGED
    )]
    Gone {
        /// The file.
        file: PathBuf,
    },
    /// The system or the disk would not do what is needed.
    #[error(
        "cannot {doing} {}: {why}; check that the path in `store.url` is right, that this user may \
         write there, and that the disk is not full",
        path.display()
    )]
    Storage {
        /// A verb.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// The store's thread does not start.
    #[error("cannot start the store's thread: {0}; check the limits on processes and memory")]
    Thread(
        /// The system's words.
        String,
    ),
}

impl OpenError {
    fn storage(doing: &'static str, path: &Path, why: String) -> Self {
        Self::Storage {
            doing,
            path: path.to_owned(),
            why,
        }
    }

    fn io(doing: &'static str, path: &Path, why: &io::Error) -> Self {
        Self::storage(doing, path, why.to_string())
    }
}

#[cfg(test)]
mod tests;
