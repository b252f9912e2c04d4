//! One process's turns: the election first, duties while it leads.
//!
//! Renewals and duties take turns in one loop, so the fence that a duty writes
//! under is always the record as it stands. A turn of duties is a sixth of the
//! lease at most and no call of the store is longer than a second, so a renewal
//! is never so late that the lease is over.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shared_proto::clock::Millis;
use shared_proto::leader::{Election, SLACK_MS, Step};
use shared_proto::mirror::commit::TransactError;
use shared_proto::mirror::key::{Key, Keyspace};
use shared_proto::mirror::{LoadError, Mirror};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::agenda::Agenda;
use crate::duty::{Addresses, Configured, Duties};
use crate::follow::Follower;
use crate::metrics::Metrics;
use crate::pause::{Backoff, jittered};
use crate::pen::{Authority, Pen, Stop, late};

/// A call of the election that takes longer counts as failed.
const CALL_DEADLINE: Duration = Duration::from_millis(SLACK_MS);
/// Waits between tries while the store does not answer.
const RETRY: Backoff = Backoff::between(Duration::from_millis(50), Duration::from_secs(1));
/// A turn of duties in a process that need not be elected, ms.
const SOLE_TURN_MS: u64 = 500;
/// The longest wait before anything is looked at again, ms.
const LONGEST_MS: u64 = 1_000;

/// What others may know of the election, as of its last step.
#[derive(Debug, Default)]
pub struct Board {
    epoch: AtomicU64,
    /// Until when this process may take itself for the leader, in ms.
    until: AtomicU64,
}

impl Board {
    /// The highest epoch heard of; 0 for none.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Whether this process leads at `now`, by the store's clock.
    pub fn leads(&self, now: Millis) -> bool {
        now.as_epoch_ms() < self.until.load(Ordering::Relaxed)
    }

    fn show(&self, election: &Election, now: Millis) {
        let leader = election.leader().filter(|_| election.leads(now));
        let until = leader.map_or(0, |leader| leader.expires.minus(SLACK_MS).as_epoch_ms());
        self.until.store(until, Ordering::Relaxed);
        self.epoch.store(election.epoch(), Ordering::Relaxed);
    }
}

/// What the duties need.
#[derive(Clone)]
pub struct Work {
    /// The store.
    pub mirror: Arc<dyn Mirror>,
    /// `store.prefix`.
    pub prefix: String,
    /// The connections that the configuration names.
    pub configured: Configured,
    /// Where they count.
    pub metrics: Metrics,
}

/// Does all duties for a store that belongs to this process, for ever.
pub async fn alone(work: Work) {
    let (_never, stop) = watch::channel(false);
    let board = Board::default();
    Leading::new(&work, Authority::Sole, &board).run(stop).await;
}

/// Takes part in the election and does the duties while it leads, until told
/// to stop; then gives its turn back.
pub(crate) async fn elected(
    work: &Work,
    election: Election,
    board: &Board,
    stop: watch::Receiver<bool>,
) {
    let authority = Authority::Elected(Box::new(election));
    Leading::new(work, authority, board).run(stop).await;
}

struct Leading<'a> {
    work: &'a Work,
    board: &'a Board,
    authority: Authority,
    agenda: Rc<RefCell<Agenda>>,
    addresses: Rc<RefCell<Addresses>>,
    duties: Duties,
    vacant: Notify,
    led: bool,
    /// Calls in a row that were not answered.
    failures: u32,
}

impl<'a> Leading<'a> {
    fn new(work: &'a Work, authority: Authority, board: &'a Board) -> Self {
        let agenda = Rc::new(RefCell::new(Agenda::default()));
        let addresses = Rc::<RefCell<Addresses>>::default();
        let (heard, swept) = (Rc::clone(&agenda), Rc::clone(&addresses));
        Self {
            work,
            board,
            authority,
            duties: Duties::new(heard, swept, Arc::clone(&work.configured)),
            agenda,
            addresses,
            vacant: Notify::new(),
            led: false,
            failures: 0,
        }
    }

    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let vacant = std::mem::take(&mut self.vacant);
        let follower = Follower {
            mirror: &*self.work.mirror,
            keys: Keyspace::new(&self.work.prefix),
            agenda: Rc::clone(&self.agenda),
            addresses: Rc::clone(&self.addresses),
            vacant: &vacant,
        };
        let turns = async {
            while !*stop.borrow() {
                let pause = self.step().await;
                tokio::select! {
                    () = sleep(pause) => {}
                    () = vacant.notified() => self.look_again(),
                    // An error means that nobody is left to say stop.
                    _ = stop.changed() => {}
                }
            }
            self.resign().await;
        };
        tokio::select! {
            () = turns => {}
            () = follower.run() => {}
        }
    }

    fn now(&self) -> Millis {
        self.work.mirror.now()
    }

    /// Does what is due, and how long to wait then.
    async fn step(&mut self) -> Duration {
        let wait = match &self.authority {
            Authority::Sole => self.work_until(SOLE_TURN_MS).await,
            Authority::Elected(election) => match election.next(self.now()) {
                Step::Wait(at) => {
                    let turn_ms = election.beat_ms() / 2;
                    let leads = election.leads(self.now());
                    let work = if leads {
                        self.work_until(turn_ms).await
                    } else {
                        Millis::MAX
                    };
                    work.min(at)
                }
                Step::Look | Step::Write(_) => {
                    if !self.elect().await {
                        self.failures = self.failures.saturating_add(1);
                        self.show();
                        return jittered(RETRY.after(self.failures));
                    }
                    self.failures = 0;
                    self.now()
                }
            },
        };
        self.show();
        let wait_ms = wait.since(self.now()).min(LONGEST_MS);
        Duration::from_millis(wait_ms)
    }

    /// One step of the election; whether the store answered.
    async fn elect(&mut self) -> bool {
        let mirror = &self.work.mirror;
        let Authority::Elected(election) = &mut self.authority else {
            return true;
        };
        let asked = mirror.now();
        match election.next(asked) {
            Step::Wait(_) => true,
            Step::Look => {
                let found = timeout(CALL_DEADLINE, mirror.load(&Key::Leader)).await;
                let found = found.unwrap_or_else(|_| Err(late().into()));
                // The store's time is only known for certain after its answer.
                let now = mirror.now();
                match found {
                    Ok(record) => election.found(record.as_ref(), now),
                    Err(LoadError::Unreadable(unreadable)) => {
                        election.unreadable(&unreadable.why, now);
                    }
                    Err(LoadError::Unreachable(_)) => return false,
                }
                true
            }
            Step::Write(write) => {
                let made = timeout(CALL_DEADLINE, mirror.transact(write)).await;
                let made = made.unwrap_or_else(|_| Err(late().into()));
                let answered = !matches!(made, Err(TransactError::Unreachable(_)));
                if let Err(TransactError::Refused(why)) = &made {
                    tracing::warn!(%why, "the leader's record can't be written");
                }
                election.answered(made, asked, mirror.now());
                answered
            }
        }
    }

    /// One turn of the duties; when the next is due.
    async fn work_until(&mut self, turn_ms: u64) -> Millis {
        let mut pen = Pen {
            mirror: &*self.work.mirror,
            metrics: &self.work.metrics,
            authority: &mut self.authority,
            until: self.work.mirror.now().plus(turn_ms),
        };
        match self.duties.turns(&mut pen).await {
            Ok(()) => {
                self.failures = 0;
                self.duties.next()
            }
            // Somebody else's turn, or the rest of this one.
            Err(Stop::Over | Stop::Fenced) => self.now(),
            Err(Stop::Away(error)) => {
                tracing::debug!(%error, "a duty is put off");
                self.failures = self.failures.saturating_add(1);
                let pause = jittered(RETRY.after(self.failures)).as_millis();
                self.now().plus(u64::try_from(pause).unwrap_or(LONGEST_MS))
            }
        }
    }

    /// Shows where it stands, and says so when that has changed.
    fn show(&mut self) {
        let Authority::Elected(election) = &self.authority else {
            return;
        };
        let now = self.work.mirror.now();
        self.board.show(election, now);
        let leads = election.leads(now);
        if leads == self.led {
            return;
        }
        self.led = leads;
        let epoch = election.epoch();
        if leads {
            self.work.metrics.elections.inc();
            self.duties.reset();
            tracing::info!(epoch, "this coordinator leads");
        } else {
            let leader = election.leader().map(|leader| leader.holder.as_str());
            tracing::info!(epoch, leader, "this coordinator stands by");
        }
    }

    fn look_again(&mut self) {
        if let Authority::Elected(election) = &mut self.authority {
            election.look_again();
        }
    }

    async fn resign(&mut self) {
        let Authority::Elected(election) = &self.authority else {
            return;
        };
        self.board.until.store(0, Ordering::Relaxed);
        if let Some(write) = election.resign(self.now()) {
            // Otherwise the lease lapses by itself.
            let made = timeout(CALL_DEADLINE, self.work.mirror.transact(write)).await;
            let given_back = matches!(made, Ok(Ok(_)));
            tracing::info!(given_back, "this coordinator leads no more");
        }
    }
}
