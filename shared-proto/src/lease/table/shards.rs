//! A map in parts, so that a copy is cheap and a change after it copies one
//! part.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MAX_DELETED;
use crate::id::ConnectionId;
use crate::lease::seen::Stored;
use crate::lease::token::OwnerHash;
use crate::mirror::record::Revision;

/// How many parts: a power of two.
const PARTS: usize = 64;

/// A name that knows its part.
pub(super) trait Spread: Ord + Clone {
    /// Its text; all of it counts.
    fn text(&self) -> &str;
}

impl Spread for OwnerHash {
    fn text(&self) -> &str {
        self.as_str()
    }
}

impl Spread for ConnectionId {
    fn text(&self) -> &str {
        self.as_str()
    }
}

#[derive(Clone, Debug)]
struct Entry<T> {
    /// Of the newest state heard of; what can't be read has none of its own.
    revision: Revision,
    stored: Stored<T>,
}

/// What is stored under names.
#[derive(Clone, Debug)]
pub(super) struct Shards<K, T> {
    parts: Vec<Arc<BTreeMap<K, Entry<T>>>>,
    deleted: usize,
}

impl<K: Spread, T: Clone> Shards<K, T> {
    pub(super) fn new() -> Self {
        Self {
            parts: (0..PARTS).map(|_| Arc::default()).collect(),
            deleted: 0,
        }
    }

    pub(super) fn get(&self, name: &K) -> &Stored<T> {
        let part = self.parts.get(part_of(name));
        let entry = part.and_then(|part| part.get(name));
        entry.map_or(&Stored::Absent, |entry| &entry.stored)
    }

    /// Takes a state of `revision`, unless a newer one or this one is known;
    /// one without a revision is newer than what is known.
    pub(super) fn set(&mut self, name: &K, revision: Option<Revision>, stored: Stored<T>) -> bool {
        let Some(part) = self.parts.get_mut(part_of(name)) else {
            return false;
        };
        let known = part.get(name);
        let last = known.map(|entry| entry.revision);
        if revision.is_some_and(|revision| last.is_some_and(|last| revision <= last)) {
            return false;
        }
        let was = known.is_some_and(|entry| matches!(entry.stored, Stored::Absent));
        let is = matches!(stored, Stored::Absent);
        let entry = Entry {
            revision: revision.or(last).unwrap_or(Revision::new(0)),
            stored,
        };
        Arc::make_mut(part).insert(name.clone(), entry);
        match (was, is) {
            (true, false) => self.deleted = self.deleted.saturating_sub(1),
            (false, true) => self.deleted = self.deleted.saturating_add(1),
            (true, true) | (false, false) => {}
        }
        if self.deleted > MAX_DELETED {
            self.forget_deleted();
        }
        true
    }

    fn forget_deleted(&mut self) {
        for part in &mut self.parts {
            Arc::make_mut(part).retain(|_, entry| !matches!(entry.stored, Stored::Absent));
        }
        self.deleted = 0;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &Stored<T>)> {
        let entries = self.parts.iter().flat_map(|part| part.iter());
        entries.map(|(name, entry)| (name, &entry.stored))
    }
}

/// FNV-1a, folded into the number of parts.
fn part_of(name: &impl Spread) -> usize {
    let hash = name.text().bytes().fold(0xcbf2_9ce4_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    usize::try_from(hash).map_or(0, |hash| (hash >> 8) % PARTS)
}
