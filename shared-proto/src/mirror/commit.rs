//! What a commit says, and what can come of it.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::Unreachable;
use super::key::Key;
use super::log::Position;
use super::record::{
    Body, BodyError, MAX_RECORD_BYTES, Record, Revision, Unreadable, Why, encode_body,
};
use crate::clock::Millis;

#[cfg(doc)]
use super::key::MAX_KEY_BYTES;

/// One change of one record, on a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Which record.
    pub key: Key,
    /// How it has to be stored at this moment.
    pub expected: Expected,
    /// The newest body version the caller understands, and the one it writes.
    /// A stored record of a newer version is neither replaced nor deleted.
    pub version: u16,
    /// What becomes of it.
    pub change: Change,
}

/// What a commit takes for the present state of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Nothing is stored.
    Absent,
    /// This revision is stored, expired or not.
    Revision(Revision),
    /// Something corrupt is stored, which the caller knows and gives up.
    Corrupt,
}

/// What a commit does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Stores this state.
    Put {
        /// A `MessagePack` map.
        body: Bytes,
        /// When it stops meaning anything, store time; `None` is never.
        expires_at: Option<Millis>,
    },
    /// Removes the record.
    Delete,
}

impl Commit {
    /// Stores `state`, which does not expire.
    pub fn put<B: Body>(key: Key, expected: Expected, state: &B) -> Result<Self, BodyError> {
        if key.kind() != B::KIND {
            return Err(BodyError::OtherKind(key.kind().into()));
        }
        Ok(Self {
            key,
            expected,
            version: B::VERSION,
            change: Change::Put {
                body: encode_body(state)?,
                expires_at: None,
            },
        })
    }

    /// The same, with an expiry if it stores something.
    #[must_use]
    pub fn expiring(mut self, at: Millis) -> Self {
        match &mut self.change {
            Change::Put { expires_at, .. } => *expires_at = Some(at),
            Change::Delete => {}
        }
        self
    }

    /// Removes the record of `revision`; `version` is the newest body version
    /// that the caller understands.
    pub const fn delete(key: Key, revision: Revision, version: u16) -> Self {
        Self {
            key,
            expected: Expected::Revision(revision),
            version,
            change: Change::Delete,
        }
    }

    /// Whether it may be done while `stored` is what the store holds. Every
    /// backend decides by this rule.
    pub(crate) fn decide(
        &self,
        stored: Option<Result<&Record, &Unreadable>>,
    ) -> Result<(), CommitError> {
        match (stored, self.expected) {
            (Some(Err(unreadable)), expected) => match (&unreadable.why, expected) {
                (Why::Corrupt(_), Expected::Corrupt) => Ok(()),
                (
                    Why::Corrupt(_) | Why::Newer { .. },
                    Expected::Absent | Expected::Revision(_) | Expected::Corrupt,
                ) => Err(Refusal::Unreadable(unreadable.clone()).into()),
            },
            (Some(Ok(record)), Expected::Revision(revision)) if record.revision == revision => {
                if record.version > self.version {
                    return Err(Refusal::OlderVersion {
                        stored: record.version,
                        offered: self.version,
                    }
                    .into());
                }
                Ok(())
            }
            (None, Expected::Absent) => match self.change {
                Change::Put { .. } => Ok(()),
                Change::Delete => Err(Refusal::NothingToDelete.into()),
            },
            (newest, Expected::Absent | Expected::Revision(_) | Expected::Corrupt) => {
                Err(CommitError::Conflict {
                    newest: newest.and_then(Result::ok).cloned(),
                })
            }
        }
    }
}

/// Several changes that are made together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// What has to hold at this moment, beside what each commit expects.
    pub guards: Vec<Guard>,
    /// The changes, each of another record; none at all only asks whether the
    /// guards hold.
    pub commits: Vec<Commit>,
    /// How many replicas have to have it before it counts as made; 0 asks none.
    /// A store that can't have replicas refuses the transaction otherwise.
    pub replicas: u32,
}

/// Guards and commits of one transaction at most.
pub const MAX_TRANSACTION: usize = 16;

impl Transaction {
    /// What can be said against it without the store. Every backend asks this
    /// first.
    pub(crate) fn check(&self) -> Result<(), TransactError> {
        if self.guards.len().saturating_add(self.commits.len()) > MAX_TRANSACTION {
            return Err(Refusal::Malformed("it has too many guards and commits").into());
        }
        let keys: BTreeSet<_> = self.commits.iter().map(|commit| &commit.key).collect();
        if keys.len() < self.commits.len() {
            return Err(Refusal::Malformed("it changes a record twice").into());
        }
        for commit in &self.commits {
            if let Change::Put { body, .. } = &commit.change
                && body.len() > MAX_RECORD_BYTES
            {
                return Err(TransactError::TooLarge {
                    bytes: body.len(),
                    limit: MAX_RECORD_BYTES,
                });
            }
        }
        Ok(())
    }

    /// Every key that it names, guards first: the order of a conflict's records.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        let guarded = self.guards.iter().map(|guard| &guard.key);
        guarded.chain(self.commits.iter().map(|commit| &commit.key))
    }
}

/// A fence: the record of `key` is stored with this revision and has not
/// expired, by the store's own clock at that moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Which record.
    pub key: Key,
    /// Which state of it.
    pub revision: Revision,
}

impl Guard {
    /// Whether it holds at `now` while `stored` is what the store holds.
    pub(crate) fn holds(&self, stored: Option<&Record>, now: Millis) -> bool {
        stored.is_some_and(|r| r.revision == self.revision && !r.is_expired(now))
    }
}

impl From<Commit> for Transaction {
    fn from(commit: Commit) -> Self {
        Self {
            guards: Vec::new(),
            commits: vec![commit],
            replicas: 0,
        }
    }
}

/// Why a transaction is not known to have taken effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactError {
    /// A record is not as a guard or a commit has it. Nothing was changed.
    #[error("another commit came first")]
    Conflict {
        /// What the transaction names, as stored, expired or not: an entry for
        /// each guard and then for each commit, in their order.
        newest: Vec<(Key, Option<Record>)>,
        /// The store's time at that moment: what a guard was judged by.
        at: Millis,
    },
    /// The store did not answer for certain: it may have taken effect.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// It can't be done, now or later. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A record would be larger than [`MAX_RECORD_BYTES`]. Nothing was changed.
    #[error("the record has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Its size with the envelope.
        bytes: usize,
        /// The largest that is stored.
        limit: usize,
    },
    /// It took effect, but fewer replicas than asked for have it yet.
    #[error("{got} of {wanted} replicas have it")]
    Replicas {
        /// How many were asked for.
        wanted: u32,
        /// How many confirmed in time.
        got: u32,
    },
}

/// The outcome of a transaction of one commit and no guards.
pub(super) fn single(
    outcome: Result<Vec<Committed>, TransactError>,
) -> Result<Committed, CommitError> {
    let unanswered = || Unreachable("the store gave no answer for the commit".into()).into();
    match outcome {
        Ok(committed) => committed.first().copied().ok_or_else(unanswered),
        Err(TransactError::Conflict { newest, .. }) => Err(CommitError::Conflict {
            newest: newest.into_iter().find_map(|(_, record)| record),
        }),
        Err(TransactError::Unreachable(why)) => Err(why.into()),
        Err(TransactError::Refused(refusal)) => Err(refusal.into()),
        Err(TransactError::TooLarge { bytes, limit }) => {
            Err(CommitError::TooLarge { bytes, limit })
        }
        // A single commit asks for no replicas.
        Err(TransactError::Replicas { .. }) => Err(unanswered()),
    }
}

/// A commit that took effect and is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The record's revision now; the next commit expects it.
    pub revision: Revision,
    /// Where the change stands in the log; that of a quiet record does not, and
    /// this is the place after the change before it.
    pub position: Position,
}

/// Why a commit is not known to have taken effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The record is not as expected. Nothing was changed; apply the event
    /// again on `newest`.
    #[error("another commit came first")]
    Conflict {
        /// What is stored, expired or not; `None` when nothing is.
        newest: Option<Record>,
    },
    /// The store did not answer for certain: it may have taken effect.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// It can't be done, now or later. Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The record would be larger than [`MAX_RECORD_BYTES`]. Nothing was changed.
    #[error("the record has {bytes} bytes, more than {limit}")]
    TooLarge {
        /// Its size with the envelope.
        bytes: usize,
        /// The largest that is stored.
        limit: usize,
    },
}

/// Why a store will not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A newer version of this program wrote the record.
    #[error("the stored record has version {stored}, newer than {offered}")]
    OlderVersion {
        /// Its body's version.
        stored: u16,
        /// The commit's.
        offered: u16,
    },
    /// What is stored can't be read, so nothing can be said about its revision.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The spelled key is longer than [`MAX_KEY_BYTES`].
    #[error("the key has {bytes} bytes, more than {limit}")]
    KeyTooLong {
        /// Its length as spelled.
        bytes: usize,
        /// The longest that is stored.
        limit: usize,
    },
    /// A transaction of more than [`MAX_TRANSACTION`] guards and commits, or
    /// one that changes a record twice.
    #[error("the transaction is malformed: {0}")]
    Malformed(&'static str),
    /// Replicas were asked for of a store that can't have any.
    #[error("{wanted} replicas are asked for, and this store has none")]
    NoReplicas {
        /// How many were asked for.
        wanted: u32,
    },
    /// A deletion that expects the record to be absent.
    #[error("there is nothing to delete")]
    NothingToDelete,
    /// The store holds as much as it may.
    #[error("the store holds {limit} bytes, as many as it may")]
    Full {
        /// Its limit, in bytes.
        limit: usize,
    },
}
