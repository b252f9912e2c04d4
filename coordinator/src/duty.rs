//! What one process does for all: each duty with its period and its bound.
//!
//! A turn does a bounded piece of work and is over when its time is; what is
//! left is done in the next turn. Every write goes through the [`Pen`]. Nothing
//! here is needed for anything to be right: each reader judges by time itself.
//!
//! A new duty is a variant of [`Duty`], its period, and an arm in
//! [`Duties::turn`].

mod egress;
mod roster;

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;

use shared_proto::clock::Millis;
use shared_proto::id::ConnectionId;
use shared_proto::lease::{Decision, LeaseTable, OwnerHash, Seen, expire};
use shared_proto::mirror::LoadError;
use shared_proto::mirror::commit::{Commit, Transaction};
use tokio::time::timeout;

use crate::agenda::{Agenda, Item, What};
use crate::pen::{Pen, STORE_DEADLINE, Stop, Wrote, late};
pub(crate) use egress::Addresses;
use roster::Watch;

#[cfg(test)]
mod tests;

/// Records expired, or deleted, in one turn at most.
const BATCH: usize = 64;
/// Rounds of reading and writing for one lease: two nodes may be quicker.
const MAX_ROUNDS: usize = 8;
/// Entries of the log older than this are taken from it, ms: a reader that far
/// behind is better served by a snapshot.
const LOG_AGE_MS: u64 = 60 * 60 * 1000;
/// Turns of trimming in a row.
const TRIMS: usize = 8;
/// After something that was not as expected, ms: the log tells what it is now.
const LOOK_AGAIN_MS: u64 = 10_000;
/// How often a connection that is well is looked for in the configuration, ms.
const RETIRE_AGAIN_MS: u64 = 60 * 60 * 1000;

/// The connections that the configuration names; `None` when it can't be read.
pub type Configured = Arc<dyn Fn() -> Option<HashSet<ConnectionId>> + Send + Sync>;

/// One thing that the leader does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Duty {
    /// Leases that ran out are written down as expired, so that everybody
    /// hears of it: whoever waits for a connection, and who watches.
    Expire,
    /// Records that are long over are deleted.
    Forget,
    /// Old entries are taken from the change log.
    Trim,
    /// Who has gone without a word is noticed.
    Roster,
    /// Who leaves by an address that is under a limit rests with who met it.
    Egress,
}

impl Duty {
    pub(crate) const ALL: [Self; 5] = [
        Self::Expire,
        Self::Forget,
        Self::Trim,
        Self::Roster,
        Self::Egress,
    ];

    /// How often it has a turn, ms.
    const fn period_ms(self) -> u64 {
        match self {
            Self::Expire => 100,
            Self::Forget => 1_000,
            Self::Trim => 30_000,
            Self::Roster => 2_000,
            Self::Egress => 500,
        }
    }

    /// The word of metrics and log.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Expire => "expire",
            Self::Forget => "forget",
            Self::Trim => "trim",
            Self::Roster => "roster",
            Self::Egress => "egress",
        }
    }
}

/// All duties, and when each is due.
pub(crate) struct Duties {
    agenda: Rc<RefCell<Agenda>>,
    configured: Configured,
    watch: Watch,
    addresses: Rc<RefCell<Addresses>>,
    due: [(Duty, Millis); 5],
}

impl Duties {
    pub(crate) fn new(
        agenda: Rc<RefCell<Agenda>>,
        addresses: Rc<RefCell<Addresses>>,
        configured: Configured,
    ) -> Self {
        Self {
            agenda,
            addresses,
            configured,
            watch: Watch::default(),
            due: Duty::ALL.map(|duty| (duty, Millis::default())),
        }
    }

    /// When the next turn is due.
    pub(crate) fn next(&self) -> Millis {
        let next = self.due.iter().map(|(_, at)| *at).min();
        next.unwrap_or(Millis::MAX)
    }

    /// Whoever leads next looks at everything at once.
    pub(crate) fn reset(&mut self) {
        self.watch = Watch::default();
        self.due = Duty::ALL.map(|duty| (duty, Millis::default()));
    }

    /// Does what is due, one turn of each duty at most.
    pub(crate) async fn turns(&mut self, pen: &mut Pen<'_>) -> Result<(), Stop> {
        for at in 0..self.due.len() {
            let now = pen.now()?;
            let Some((duty, _)) = self.due.get(at).copied().filter(|(_, due)| *due <= now) else {
                continue;
            };
            if let Some((_, due)) = self.due.get_mut(at) {
                *due = now.plus(duty.period_ms());
            }
            let done = self.turn(duty, pen).await;
            pen.metrics.turn(duty, done.as_ref().err());
            done?;
        }
        Ok(())
    }

    async fn turn(&mut self, duty: Duty, pen: &mut Pen<'_>) -> Result<(), Stop> {
        match duty {
            Duty::Expire => self.expire(pen).await,
            Duty::Forget => self.forget(pen).await,
            Duty::Trim => trim(pen).await,
            Duty::Roster => self.watch.look(pen).await,
            Duty::Egress => egress::sweep(&self.addresses, pen, BATCH).await,
        }
    }

    async fn expire(&self, pen: &mut Pen<'_>) -> Result<(), Stop> {
        let items = self.agenda.borrow().expired(pen.now()?, BATCH);
        for item in items {
            let What::Expire(owner) = &item.what else {
                continue;
            };
            // The log tells the agenda what became of it; until then it rests.
            let until = pen.now()?.plus(LOOK_AGAIN_MS);
            if expire_one(pen, owner).await? {
                pen.metrics.expired.inc();
            }
            self.agenda.borrow_mut().put_off(&item, until);
        }
        Ok(())
    }

    async fn forget(&self, pen: &mut Pen<'_>) -> Result<(), Stop> {
        let now = pen.now()?;
        let items = self.agenda.borrow().over(now, BATCH);
        let retires = |item: &Item| matches!(item.what, What::Retire(_));
        let configured = items.iter().any(retires).then(|| (self.configured)());
        let configured = configured.flatten();
        for item in items {
            if let What::Retire(id) = &item.what {
                let named = configured.as_ref().is_none_or(|names| names.contains(id));
                if named {
                    let until = now.plus(RETIRE_AGAIN_MS);
                    self.agenda.borrow_mut().put_off(&item, until);
                    continue;
                }
            }
            let delete = Commit::delete(item.key.clone(), item.revision, item.version);
            let is_settled = match pen.write(Transaction::from(delete)).await? {
                Wrote::Made => {
                    pen.metrics.forgotten.inc();
                    true
                }
                // It is gone already, or it is another, of which the log tells.
                Wrote::Conflict(newest, _) => {
                    let stored = newest.iter().find(|(key, _)| *key == item.key);
                    stored.is_none_or(|(_, record)| record.is_none())
                }
                Wrote::Refused(why) => {
                    tracing::debug!(why, "a record is kept");
                    true
                }
            };
            let mut agenda = self.agenda.borrow_mut();
            if is_settled {
                agenda.remove(&item.key);
            } else {
                agenda.put_off(&item, now.plus(LOOK_AGAIN_MS));
            }
        }
        Ok(())
    }
}

/// Writes down that one owner's lease ran out. Whether it had to be.
async fn expire_one(pen: &mut Pen<'_>, owner: &OwnerHash) -> Result<bool, Stop> {
    let table = LeaseTable::new();
    let mut seen = Seen::new(&table);
    for _ in 0..MAX_ROUNDS {
        let now = pen.now()?;
        match expire(&seen, owner, now) {
            Decision::Done(_) => return Ok(false),
            Decision::Load(wanted) => {
                for key in &wanted.records {
                    let loaded = timeout(STORE_DEADLINE, pen.mirror.load(key)).await;
                    match loaded.unwrap_or_else(|_| Err(late().into())) {
                        Ok(record) => seen.record(key, record.as_ref()),
                        Err(LoadError::Unreadable(_)) => seen.unreadable(key),
                        Err(LoadError::Unreachable(why)) => return Err(why.into()),
                    }
                }
            }
            Decision::Commit(planned) => match pen.write(planned.transaction).await? {
                Wrote::Made => return Ok(true),
                Wrote::Conflict(newest, at) => seen.conflict(&newest, at),
                Wrote::Refused(why) => {
                    tracing::debug!(why, "a lease is left as it is");
                    return Ok(false);
                }
            },
        }
    }
    Ok(false)
}

async fn trim(pen: &mut Pen<'_>) -> Result<(), Stop> {
    for _ in 0..TRIMS {
        let trimmed = pen.trim(LOG_AGE_MS).await?;
        pen.metrics.trimmed.inc_by(trimmed);
        if trimmed == 0 {
            break;
        }
    }
    Ok(())
}
