//! The change log: every commit, in the order in which they took effect.

use std::fmt;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;

use super::Unreachable;
use super::key::Key;
use super::record::{Record, Revision, Unreadable};
use crate::clock::Millis;

/// Entries taken from a log by one call at most.
pub const MAX_TRIMMED: u64 = 500;

/// A place in the log: after one entry and before the next. Only a store makes
/// them; one that is not from the log it is used on is a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Which log: rises when the log begins anew.
    major: u64,
    /// Which entry of it.
    minor: u64,
}

impl Position {
    /// The place after entry `minor` of log `major`.
    pub(crate) const fn new(major: u64, minor: u64) -> Self {
        Self { major, minor }
    }

    pub(crate) const fn major(self) -> u64 {
        self.major
    }

    pub(crate) const fn minor(self) -> u64 {
        self.minor
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.major, self.minor)
    }
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The place after this entry: where to read on from.
    pub position: Position,
    /// What changed.
    pub change: Logged,
}

/// What an entry of the log tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Logged {
    /// The record is now this.
    Put(Record),
    /// The record is gone.
    Deleted {
        /// Which.
        key: Key,
        /// The deletion's own revision, above that of the record.
        revision: Revision,
        /// When, store time.
        at: Millis,
    },
    /// The record is now something this version can't read.
    Unreadable(Unreadable),
}

/// Why there is no next entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TailError {
    /// Entries after the position are lost to this reader (trimmed, or from a
    /// log that has begun anew): take a snapshot and tail from there.
    #[error("the change log no longer reaches back that far")]
    Gap,
    /// The store has gone back: it no longer knows entries that this reader
    /// had read (a failover that lost the last writes, a restart without its
    /// data). As after a gap, and what was acknowledged lately is told again.
    #[error("the store has lost changes that it had acknowledged")]
    Rewound,
    /// The store did not answer; the position still holds.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
}

/// Reads the log on from a position.
pub struct Tail {
    entries: BoxStream<'static, Result<LogEntry, TailError>>,
    ended: Option<TailError>,
}

impl Tail {
    /// A tail over `entries`, which is infinite or ends with an error.
    pub(crate) fn new(entries: BoxStream<'static, Result<LogEntry, TailError>>) -> Self {
        Self {
            entries,
            ended: None,
        }
    }

    /// Waits for the next entry. Dropping the future loses nothing. After an
    /// error every call answers that error: the reader begins a new tail.
    pub async fn next(&mut self) -> Result<LogEntry, TailError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let next = self.entries.next().await;
        let next = next.unwrap_or_else(|| Err(Unreachable("the tail has ended".into()).into()));
        self.ended = next.as_ref().err().cloned();
        next
    }
}

impl fmt::Debug for Tail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
