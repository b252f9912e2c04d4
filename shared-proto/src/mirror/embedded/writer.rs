//! The one thread that owns the embedded store.
//!
//! It takes what has queued, answers what is about holds, judges the
//! transactions in order, writes all of them in one of the disk's, and only
//! then changes the table and the log and answers. So one flush of the disk
//! serves every commit that waited for it, nothing is seen or acknowledged that
//! a killed process could lose, and a hold waits for no commit that was asked
//! for together with it: its guard sees every commit acknowledged before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{mpsc, oneshot, watch};

use super::disk::{Contents, Disk};
use super::holds::HoldJob;
use super::ring::Ring;
use super::table::{Batch, Table};
use crate::clock::{Clock, Millis};
use crate::mirror::commit::{Committed, TransactError, Transaction};
use crate::mirror::hold::board::Board;
use crate::mirror::key::Key;
use crate::mirror::log::{LogEntry, Position, TailError};
use crate::mirror::record::{Record, Revision, Unreadable};
use crate::mirror::{Health, Snapshot, Unreachable};

/// Requests that are taken at a time, and so share a flush of the disk, at most.
const BATCH_JOBS: usize = 256;
/// Entries of the log that a reader gets at a time.
const READ_ENTRIES: usize = 256;
/// After a failure the file is tried again this much later, in ms.
pub(super) const RETRY_MS: u64 = 1_000;

/// Expired quiet records that a batch removes at most, beside twice its commits.
const SWEPT: usize = 16;

/// Where the outcome of a transaction goes.
type Reply = oneshot::Sender<Result<Vec<Committed>, TransactError>>;

/// A request to the thread. A caller that has gone away is not answered, and a
/// transaction whose caller has gone before its turn is not made.
#[derive(Debug)]
pub(super) enum Job {
    Transact(Transaction, Reply),
    Hold(HoldJob),
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
    pub(super) board: Board,
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

/// A judged transaction: its caller, and the revisions that its commits get if
/// the batch is stored.
type Judged = (Reply, Result<Vec<Revision>, TransactError>);

impl Writer {
    /// Works until told to close, or until nobody can ask any more.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        self.sweep_all();
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

    /// Does a batch of jobs: holds, transactions, then reads, so that a read
    /// sees every commit that was asked for before it.
    fn turn(&mut self, jobs: &mut Vec<Job>) -> Option<oneshot::Sender<Result<(), Unreachable>>> {
        let now = self.clock.now();
        let mut transactions = Vec::new();
        let mut reads = Vec::new();
        let mut closing = None;
        for job in jobs.drain(..) {
            match job {
                Job::Transact(transaction, reply) if closing.is_none() => {
                    transactions.push((transaction, reply));
                }
                Job::Hold(hold) if closing.is_none() => {
                    hold.work(&mut self.board, &self.table, now);
                }
                // Dropping the sender tells its caller that the store is closed.
                late @ (Job::Transact(..) | Job::Hold(_)) => drop(late),
                Job::Close(reply) => closing = Some(reply),
                read @ (Job::Load(..) | Job::Snapshot(_) | Job::Entries(..)) => reads.push(read),
            }
        }
        self.transact_all(transactions);
        for read in reads {
            self.answer(read);
        }
        closing
    }

    /// Removes quiet records that expired long ago, as a life before this one
    /// left them. What fails is left to the batches.
    fn sweep_all(&mut self) {
        let mut batch = self.table.batch();
        self.table.sweep(&mut batch, self.clock.now(), usize::MAX);
        if self.persist(&batch).is_ok() {
            self.table.absorb(batch);
        }
    }

    fn transact_all(&mut self, transactions: Vec<(Transaction, Reply)>) {
        if transactions.is_empty() {
            return;
        }
        if let Err(unreachable) = self.revive() {
            for (_, reply) in transactions {
                reply.send(Err(unreachable.clone().into())).ok();
            }
            return;
        }
        let now = self.clock.now();
        let mut batch = self.table.batch();
        // First, so that there is room; more than are added, so that none pile up.
        let commits = transactions.iter().map(|(t, _)| t.commits.len());
        let most = commits.fold(SWEPT, |most, n| most.saturating_add(n.saturating_mul(2)));
        self.table.sweep(&mut batch, now, most);
        let mut judged: Vec<Judged> = Vec::with_capacity(transactions.len());
        for (transaction, reply) in transactions {
            if !reply.is_closed() {
                let outcome = self.table.stage(&mut batch, transaction, now);
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
        // One for each commit that was staged, in the same order.
        let mut log = self.table.absorb(batch).into_iter();
        let mut answers = Vec::with_capacity(judged.len());
        for (reply, outcome) in judged {
            let outcome = outcome.map(|revisions| {
                let commits = revisions.into_iter().zip(&mut log);
                let committed = commits.map(|(revision, logged)| Committed {
                    revision,
                    position: match logged {
                        Some(told) => self.ring.push(told),
                        None => self.ring.head(),
                    },
                });
                committed.collect()
            });
            answers.push((reply, outcome));
        }
        // Only now: who hears of one sees it in the log already.
        for (reply, outcome) in answers {
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
            Job::Transact(..) | Job::Hold(_) | Job::Close(_) => {}
        }
    }
}
