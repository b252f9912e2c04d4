//! The one thread that owns the embedded store.
//!
//! It takes what has queued, judges the commits in order, writes all of them
//! in one transaction, and only then changes the table and the log and
//! answers. So one flush of the disk serves every commit that waited for it,
//! and nothing is seen or acknowledged that a killed process could lose.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot, watch};

use super::disk::{Contents, Disk};
use super::ring::Ring;
use super::table::{Batch, Table};
use crate::clock::{Clock, Millis};
use crate::mirror::commit::{Commit, CommitError, Committed};
use crate::mirror::key::Key;
use crate::mirror::log::{LogEntry, Position, TailError};
use crate::mirror::record::{Record, Revision, Unreadable};
use crate::mirror::{Health, Snapshot, Unreachable};

/// Commits that share a transaction at most.
const BATCH_JOBS: usize = 256;
/// Entries of the log that a reader gets at a time.
const READ_ENTRIES: usize = 256;
/// After a failure the file is tried again this much later, in ms.
pub(super) const RETRY_MS: u64 = 1_000;

/// A request to the thread. A caller that has gone away is not answered, and a
/// commit whose caller has gone before its turn is not made.
#[derive(Debug)]
pub(super) enum Job {
    Commit(Commit, oneshot::Sender<Result<Committed, CommitError>>),
    Load(Key, oneshot::Sender<Result<Option<Record>, Unreadable>>),
    Snapshot(oneshot::Sender<Snapshot>),
    Entries(Position, oneshot::Sender<Result<Vec<LogEntry>, TailError>>),
    Close(oneshot::Sender<Result<(), Unreachable>>),
}

/// The store's time: the clock's, but never back.
#[derive(Clone)]
pub(super) struct StoreClock {
    clock: Arc<dyn Clock>,
    latest: Arc<AtomicU64>,
}

impl StoreClock {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            latest: Arc::default(),
        }
    }

    pub(super) fn now(&self) -> Millis {
        let read = self.clock.now().as_epoch_ms();
        let before = self.latest.fetch_max(read, Ordering::SeqCst);
        Millis::from_epoch_ms(before.max(read))
    }
}

/// What the thread owns.
pub(super) struct Writer {
    pub(super) table: Table,
    pub(super) ring: Ring,
    /// `None` for a store in memory.
    pub(super) disk: Option<Disk>,
    pub(super) clock: StoreClock,
    /// Tells readers that there is more.
    pub(super) head: watch::Sender<Position>,
    pub(super) health: watch::Sender<Health>,
    /// When a closed file may be tried again.
    pub(super) retry_at: Millis,
}

/// A judged commit: its caller, and the revision it gets if the batch is stored.
type Judged = (
    oneshot::Sender<Result<Committed, CommitError>>,
    Result<Revision, CommitError>,
);

impl Writer {
    /// Works until told to close, or until nobody can ask any more.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut taken = Vec::with_capacity(BATCH_JOBS);
        while jobs.blocking_recv_many(&mut taken, BATCH_JOBS) > 0 {
            if let Some(closing) = self.turn(&mut taken) {
                jobs.close();
                let closed = self.disk.map_or(Ok(()), Disk::close);
                closing
                    .send(closed.map_err(|why| Unreachable(why.into())))
                    .ok();
                return;
            }
        }
        // Nobody is left to hear of a failure, and everything acknowledged is durable.
        self.disk.map(Disk::close);
    }

    /// Does a batch of jobs: commits first, then reads, so that a read sees
    /// every commit that was asked for before it.
    fn turn(&mut self, jobs: &mut Vec<Job>) -> Option<oneshot::Sender<Result<(), Unreachable>>> {
        let mut commits = Vec::new();
        let mut reads = Vec::new();
        let mut closing = None;
        for job in jobs.drain(..) {
            match job {
                Job::Commit(commit, reply) if closing.is_none() => commits.push((commit, reply)),
                // Dropping the sender tells its caller that the store is closed.
                Job::Commit(_, dropped) => drop(dropped),
                Job::Close(reply) => closing = Some(reply),
                read @ (Job::Load(..) | Job::Snapshot(_) | Job::Entries(..)) => reads.push(read),
            }
        }
        self.commit_all(commits);
        for read in reads {
            self.answer(read);
        }
        closing
    }

    fn commit_all(
        &mut self,
        commits: Vec<(Commit, oneshot::Sender<Result<Committed, CommitError>>)>,
    ) {
        if commits.is_empty() {
            return;
        }
        if let Err(unreachable) = self.revive() {
            for (_, reply) in commits {
                reply.send(Err(unreachable.clone().into())).ok();
            }
            return;
        }
        let now = self.clock.now();
        let mut batch = self.table.batch();
        let mut judged: Vec<Judged> = Vec::with_capacity(commits.len());
        for (commit, reply) in commits {
            if !reply.is_closed() {
                let outcome = self.table.stage(&mut batch, commit, now);
                judged.push((reply, outcome));
            }
        }
        match self.persist(&batch) {
            Ok(()) => self.acknowledge(batch, judged),
            // Refusals too: they may be due to commits of this batch.
            Err(unreachable) => {
                for (reply, _) in judged {
                    reply.send(Err(unreachable.clone().into())).ok();
                }
            }
        }
    }

    fn persist(&mut self, batch: &Batch) -> Result<(), Unreachable> {
        let Some(disk) = &mut self.disk else {
            return Ok(());
        };
        if batch.is_empty() {
            return Ok(());
        }
        match disk.write(batch.rows(), batch.revision()) {
            Ok(()) => {
                self.health.send_if_modified(|health| {
                    let changed = *health != Health::Up;
                    *health = Health::Up;
                    changed
                });
                Ok(())
            }
            Err(why) => Err(self.failed(why)),
        }
    }

    fn acknowledge(&mut self, batch: Batch, judged: Vec<Judged>) {
        let log = self.table.absorb(batch);
        let positions: Vec<_> = log
            .into_iter()
            .map(|logged| self.ring.push(logged))
            .collect();
        let mut positions = positions.into_iter();
        for (reply, outcome) in judged {
            let outcome = outcome.map(|revision| Committed {
                revision,
                // One entry for each commit that was staged, in the same order.
                position: positions.next().unwrap_or_else(|| self.ring.head()),
            });
            reply.send(outcome).ok();
        }
        self.head.send_replace(self.ring.head());
    }

    /// Opens a file again that a failure closed. The failed batch may have got
    /// through, so the state is read anew and readers of the log start over.
    fn revive(&mut self) -> Result<(), Unreachable> {
        let Some(disk) = self.disk.as_mut().filter(|disk| disk.is_closed()) else {
            return Ok(());
        };
        if self.clock.now() < self.retry_at {
            let why = match &*self.health.borrow() {
                Health::Degraded { why, .. } => Arc::clone(why),
                Health::Up => "the file is closed".into(),
            };
            return Err(Unreachable(why));
        }
        match disk.reopen() {
            Ok(Contents {
                revision,
                opened,
                rows,
            }) => {
                self.table.replace(revision, rows);
                self.ring.begin_anew(opened);
                self.head.send_replace(self.ring.head());
                Ok(())
            }
            Err(why) => Err(self.failed(why.to_string())),
        }
    }

    fn failed(&mut self, why: String) -> Unreachable {
        let now = self.clock.now();
        self.retry_at = now.plus(RETRY_MS);
        let why: Arc<str> = why.into();
        let told = Arc::clone(&why);
        self.health.send_modify(|health| {
            let since = match health {
                Health::Up => now,
                Health::Degraded { since, .. } => *since,
            };
            *health = Health::Degraded { since, why: told };
        });
        Unreachable(why)
    }

    fn answer(&self, read: Job) {
        match read {
            Job::Load(key, reply) => {
                let found = self.table.get(&self.table.keys().spell(&key)).transpose();
                let found = found.map(Option::<&Record>::cloned).map_err(Clone::clone);
                reply.send(found).ok();
            }
            Job::Snapshot(reply) => {
                let mut snapshot = Snapshot {
                    records: Vec::new(),
                    unreadable: Vec::new(),
                    position: self.ring.head(),
                };
                for found in self.table.all() {
                    match found {
                        Ok(record) => snapshot.records.push(record.clone()),
                        Err(unreadable) => snapshot.unreadable.push(unreadable.clone()),
                    }
                }
                reply.send(snapshot).ok();
            }
            Job::Entries(from, reply) => {
                reply.send(self.ring.after(from, READ_ENTRIES)).ok();
            }
            Job::Commit(..) | Job::Close(_) => {}
        }
    }
}
