//! The embedded change log: the last entries, in memory.

use std::collections::VecDeque;

use crate::mirror::log::{LogEntry, Logged, Position, TailError};

/// What an entry takes besides its body, roughly, in bytes.
const ENTRY_BYTES: usize = 256;

/// A bounded queue of entries. A full one forgets its oldest; a reader that
/// still needed it gets a gap.
#[derive(Debug)]
pub(super) struct Ring {
    major: u64,
    /// Minor number of the newest entry, 0 before the first.
    newest: u64,
    entries: VecDeque<LogEntry>,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

impl Ring {
    pub(super) const fn new(major: u64, max_entries: usize, max_bytes: usize) -> Self {
        Self {
            major,
            newest: 0,
            entries: VecDeque::new(),
            bytes: 0,
            max_entries,
            max_bytes,
        }
    }

    /// Forgets everything; every position handed out so far is a gap now.
    pub(super) fn begin_anew(&mut self, major: u64) {
        *self = Self::new(major, self.max_entries, self.max_bytes);
    }

    /// The place after the newest entry.
    pub(super) const fn head(&self) -> Position {
        Position::new(self.major, self.newest)
    }

    /// Adds an entry, whatever its size, and says where it stands.
    pub(super) fn push(&mut self, change: Logged) -> Position {
        self.newest = self.newest.saturating_add(1);
        let position = self.head();
        self.bytes = self.bytes.saturating_add(weight(&change));
        self.entries.push_back(LogEntry { position, change });
        while self.entries.len() > self.max_entries
            || (self.bytes > self.max_bytes && self.entries.len() > 1)
        {
            let Some(oldest) = self.entries.pop_front() else {
                break;
            };
            self.bytes = self.bytes.saturating_sub(weight(&oldest.change));
        }
        position
    }

    /// The entries after `from`, at most `limit`; none when `from` is the head.
    pub(super) fn after(&self, from: Position, limit: usize) -> Result<Vec<LogEntry>, TailError> {
        let kept = u64::try_from(self.entries.len()).unwrap_or(u64::MAX);
        let Some(behind) = self.newest.checked_sub(from.minor()) else {
            return Err(TailError::Gap);
        };
        if from.major() != self.major || behind > kept {
            return Err(TailError::Gap);
        }
        let skip = usize::try_from(kept.saturating_sub(behind)).unwrap_or(usize::MAX);
        Ok(self
            .entries
            .iter()
            .skip(skip)
            .take(limit)
            .cloned()
            .collect())
    }
}

fn weight(change: &Logged) -> usize {
    match change {
        Logged::Put(record) => record.body.len().saturating_add(ENTRY_BYTES),
        Logged::Deleted { .. } | Logged::Unreadable(_) => ENTRY_BYTES,
    }
}

#[cfg(test)]
mod tests;
