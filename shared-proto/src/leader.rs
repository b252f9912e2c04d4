//! Which coordinator leads: a lease with a fencing epoch.
//!
//! There is one record, [`Leader`]: whose turn it is, its epoch, until when.
//! Whoever finds it absent or over claims it with compare-and-set; the leader
//! makes it last longer at a third of the lease, and gives it back when it
//! stops. The machine is pure: [`Election::next`] says what to do, and it is
//! told what came of it.
//!
//! # What holds
//!
//! 1. The store knows one leader at a time: the record has one holder.
//! 2. A write of the leader carries [`Election::fence`], a guard on the record
//!    as it stands. It is made only while that record stands and has not
//!    expired by the store's own clock. A leader that was frozen, cut off or
//!    replaced can write nothing, whatever it believes.
//! 3. An epoch is above every one before, also when the store lost its last
//!    writes or a claim comes late: it is the revision that the store gave to
//!    the claim, and those rise.
//! 4. No two coordinators believe at one time that they lead. A leader stops
//!    believing [`SLACK_MS`] before its lease is over, which is more than
//!    `Mirror::now` may be behind the store's clock. A store that lost its last
//!    writes may break this for one lease; 2 holds all the same.
//!
//! An answer that did not come leaves it open what is stored. The record is
//! read again then, and by its holder and instance a coordinator knows what is
//! its own. Meanwhile there is no fence, so it writes nothing.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::mirror::commit::{Commit, Committed, Expected, Guard, TransactError, Transaction};
use crate::mirror::key::{self, Key};
use crate::mirror::record::{Body, BodyError, Record, Revision, Why};

/// How long a turn lasts unless it is renewed, unless told otherwise, ms.
pub const DEFAULT_LEASE_MS: u64 = 5_000;
/// The shortest lease, ms.
pub const MIN_LEASE_MS: u64 = 1_000;
/// The longest lease, ms. Whatever says that it lasts longer is no lease.
pub const MAX_LEASE_MS: u64 = 60_000;
/// How long before the end of its lease a leader stops believing in it, ms:
/// as long as a call of the store may take.
pub const SLACK_MS: u64 = 250;

/// Whose turn it is, or was.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leader {
    /// The coordinator's id.
    pub holder: String,
    /// Which process of that id: drawn at its start.
    pub instance: u64,
    /// Above every epoch before: the revision of its claim. Stored as 0 in the
    /// claim itself, whose revision only the store knows; see [`Leader::of`].
    pub epoch: u64,
    /// The first moment at which it is no longer its turn. The record expires
    /// then, too.
    pub expires: Millis,
}

impl Body for Leader {
    const KIND: &'static str = key::LEADER;
    const VERSION: u16 = 1;
}

impl Leader {
    /// What a record says, with its epoch filled in.
    pub fn of(record: &Record) -> Result<Self, BodyError> {
        let leader: Self = record.decode()?;
        Ok(leader.claimed_as(record.revision))
    }

    fn claimed_as(mut self, revision: Revision) -> Self {
        if self.epoch == 0 {
            self.epoch = revision.number();
        }
        self
    }
}

/// One coordinator's part in the election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Election {
    holder: Arc<str>,
    instance: u64,
    lease_ms: u64,
    /// The highest epoch heard of.
    highest: u64,
    /// The last leader heard of, this one or another.
    heard: Option<Leader>,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// It is not known what is stored.
    Blank,
    /// Somebody else leads, or nobody can; look again then.
    Standby { look_at: Millis },
    /// Its turn, if it can get it.
    Claiming { leader: Leader, expected: Known },
    /// Its turn.
    Leading(Turn),
}

/// What a claim expects to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Known {
    Nothing,
    Corrupt,
    Revision(Revision),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Turn {
    leader: Leader,
    /// The record as it stands.
    revision: Revision,
    /// A write was not answered: the record may stand otherwise.
    in_doubt: bool,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Load [`Key::Leader`] and tell [`Election::found`] or
    /// [`Election::unreadable`]. Without an answer, ask again in a while.
    Look,
    /// Make this and tell [`Election::answered`].
    Write(Transaction),
    /// Nothing before that time.
    Wait(Millis),
}

impl Election {
    /// A coordinator that knows nothing yet. `instance` is random, so that no
    /// other process of that id is taken for this one. The lease is held
    /// within [`MIN_LEASE_MS`] and [`MAX_LEASE_MS`].
    pub fn new(holder: &str, instance: u64, lease_ms: u64) -> Self {
        Self {
            holder: holder.into(),
            instance,
            lease_ms: lease_ms.clamp(MIN_LEASE_MS, MAX_LEASE_MS),
            highest: 0,
            heard: None,
            state: State::Blank,
        }
    }

    /// Whether it may take itself for the leader at `now`.
    pub fn leads(&self, now: Millis) -> bool {
        self.turn()
            .is_some_and(|turn| now.plus(SLACK_MS) < turn.leader.expires)
    }

    /// What each write of the leader carries; `None` when it has to wait or
    /// does not lead.
    pub fn fence(&self, now: Millis) -> Option<Guard> {
        let turn = self.turn().filter(|turn| !turn.in_doubt)?;
        self.leads(now).then(|| guard(turn.revision))
    }

    /// The highest epoch heard of; 0 for none.
    pub const fn epoch(&self) -> u64 {
        self.highest
    }

    /// The last leader heard of, this one or another.
    pub const fn leader(&self) -> Option<&Leader> {
        self.heard.as_ref()
    }

    /// A third of the lease, ms: how often it is renewed, and looked at.
    pub const fn beat_ms(&self) -> u64 {
        self.lease_ms / 3
    }

    /// What to do at `now`.
    pub fn next(&self, now: Millis) -> Step {
        match &self.state {
            State::Standby { look_at } if *look_at > now => Step::Wait(*look_at),
            State::Blank | State::Standby { .. } => Step::Look,
            State::Claiming { leader, expected } => {
                let expected = match expected {
                    Known::Nothing => Expected::Absent,
                    Known::Corrupt => Expected::Corrupt,
                    Known::Revision(revision) => Expected::Revision(*revision),
                };
                write(leader, expected, Vec::new())
            }
            State::Leading(turn) if turn.in_doubt => Step::Look,
            State::Leading(turn) => {
                let renew_at = turn
                    .leader
                    .expires
                    .minus(self.lease_ms.saturating_sub(self.beat_ms()));
                if renew_at > now {
                    return Step::Wait(renew_at);
                }
                let renewed = Leader {
                    expires: now.plus(self.lease_ms),
                    ..turn.leader.clone()
                };
                let expected = Expected::Revision(turn.revision);
                write(&renewed, expected, vec![guard(turn.revision)])
            }
        }
    }

    /// Somebody gave a turn back: who stands by looks at once.
    pub fn look_again(&mut self) {
        if let State::Standby { .. } = self.state {
            self.state = State::Blank;
        }
    }

    /// Gives the turn back, if it has it for certain: make this and be done.
    pub fn resign(&self, now: Millis) -> Option<Transaction> {
        let turn = self.turn().filter(|turn| !turn.in_doubt)?;
        let over = Leader {
            expires: now,
            ..turn.leader.clone()
        };
        let guards = vec![guard(turn.revision)];
        match write(&over, Expected::Revision(turn.revision), guards) {
            Step::Write(transaction) => Some(transaction),
            Step::Look | Step::Wait(_) => None,
        }
    }

    /// The record is this, at `now`: the answer to a load, or what a refused
    /// write of the leader's met.
    pub fn found(&mut self, record: Option<&Record>, now: Millis) {
        let Some(record) = record else {
            return self.claim(Known::Nothing, now);
        };
        let revision = record.revision;
        match Leader::of(record) {
            Ok(leader) => {
                self.highest = self.highest.max(leader.epoch);
                let is_mine = leader.holder == *self.holder && leader.instance == self.instance;
                let is_over = is_over(record, now);
                self.heard = Some(leader.clone());
                if is_over {
                    self.claim(Known::Revision(revision), now);
                } else if is_mine {
                    self.state = State::Leading(Turn {
                        leader,
                        revision,
                        in_doubt: false,
                    });
                } else {
                    self.stand_by(record.expires_at, now);
                }
            }
            // A newer version's; it could not be replaced by this one.
            Err(BodyError::Newer { .. }) => self.stand_by(None, now),
            Err(BodyError::Corrupt(_) | BodyError::OtherKind(_) | BodyError::Unwritable(_)) => {
                if is_over(record, now) {
                    self.claim(Known::Revision(revision), now);
                } else {
                    self.stand_by(record.expires_at, now);
                }
            }
        }
    }

    /// What is stored can't be read.
    pub fn unreadable(&mut self, why: &Why, now: Millis) {
        match why {
            Why::Corrupt(_) => self.claim(Known::Corrupt, now),
            Why::Newer { .. } => self.stand_by(None, now),
        }
    }

    /// What came of the write that [`Election::next`] asked for, with the
    /// record that it wrote. `asked` is the time that `next` was given, `now`
    /// that of the answer.
    pub fn answered(
        &mut self,
        outcome: Result<Vec<Committed>, TransactError>,
        asked: Millis,
        now: Millis,
    ) {
        let written = match &self.state {
            State::Claiming { leader, .. } => leader.clone(),
            State::Leading(turn) => Leader {
                expires: asked.plus(self.lease_ms),
                ..turn.leader.clone()
            },
            State::Blank | State::Standby { .. } => return,
        };
        match outcome.map(|made| made.first().copied()) {
            Ok(Some(made)) => {
                let written = written.claimed_as(made.revision);
                self.highest = self.highest.max(written.epoch);
                self.heard = Some(written.clone());
                self.state = State::Leading(Turn {
                    leader: written,
                    revision: made.revision,
                    in_doubt: false,
                });
            }
            Err(TransactError::Conflict { newest, at }) => self.refused(&newest, at.max(now)),
            // It may have been made.
            Ok(None) | Err(TransactError::Unreachable(_) | TransactError::Replicas { .. }) => {
                self.in_doubt();
            }
            Err(TransactError::Refused(_) | TransactError::TooLarge { .. }) => {
                self.stand_by(None, now);
            }
        }
    }

    /// A write of the leader's was refused with these records, at `now`.
    pub fn refused(&mut self, newest: &[(Key, Option<Record>)], now: Millis) {
        let record = newest.iter().find(|(key, _)| *key == Key::Leader);
        match record {
            Some((_, record)) => self.found(record.as_ref(), now),
            None => self.in_doubt(),
        }
    }

    fn turn(&self) -> Option<&Turn> {
        match &self.state {
            State::Leading(turn) => Some(turn),
            State::Blank | State::Standby { .. } | State::Claiming { .. } => None,
        }
    }

    fn in_doubt(&mut self) {
        match &mut self.state {
            State::Leading(turn) => turn.in_doubt = true,
            State::Blank | State::Standby { .. } | State::Claiming { .. } => {
                self.state = State::Blank;
            }
        }
    }

    fn claim(&mut self, expected: Known, now: Millis) {
        let leader = Leader {
            holder: self.holder.to_string(),
            instance: self.instance,
            epoch: 0,
            expires: now.plus(self.lease_ms),
        };
        self.state = State::Claiming { leader, expected };
    }

    fn stand_by(&mut self, until: Option<Millis>, now: Millis) {
        let beat = now.plus(self.beat_ms());
        let look_at = until.map_or(beat, |until| until.min(beat));
        self.state = State::Standby { look_at };
    }
}

/// Whether it is nobody's turn by this record. One that never expires, or
/// later than any lease does, is nobody's lease.
fn is_over(record: &Record, now: Millis) -> bool {
    record.expires_at.is_none_or(|at| {
        let left = at.since(now);
        left == 0 || left > MAX_LEASE_MS
    })
}

const fn guard(revision: Revision) -> Guard {
    Guard {
        key: Key::Leader,
        revision,
    }
}

fn write(leader: &Leader, expected: Expected, guards: Vec<Guard>) -> Step {
    match Commit::put(Key::Leader, expected, leader) {
        Ok(commit) => Step::Write(Transaction {
            guards,
            commits: vec![commit.expiring(leader.expires)],
            replicas: 0,
        }),
        // A plain struct of the leader's kind can be written.
        Err(_) => Step::Look,
    }
}
