//! What a node knows of all leases: a view of the store's records.
//!
//! It is filled from a snapshot and then from the log, and may be behind. It
//! decides nothing by itself: it spares requests without a lease the question
//! to the store, says where an acquire looks first, and ends what is in flight.

mod shards;

use super::record::{Bound, Lease};
use super::seen::Stored;
use super::token::OwnerHash;
use crate::clock::Millis;
use crate::id::{ApiKeyId, ConnectionId};
use crate::mirror::Snapshot;
use crate::mirror::key::{Key, Keyspace, Spelled};
use crate::mirror::log::{LogEntry, Logged};
use crate::mirror::record::{Body, Record, Revision, Unreadable};
use shards::Shards;

/// The leases and bindings of one store, as far as heard. As many entries as
/// the store has records of the two kinds, and those deleted since the last
/// snapshot, at most [`MAX_DELETED`]. A copy costs a few dozen counters, and
/// a change after it a small part of the table: it can be published whole.
#[derive(Clone, Debug)]
pub struct LeaseTable {
    leases: Shards<OwnerHash, Lease>,
    bounds: Shards<ConnectionId, Bound>,
}

/// Deleted records of each kind that are remembered at most, so that an older
/// state that arrives late doesn't bring one back. At the bound the memory of
/// them starts afresh; then such a state comes back until its time is over.
pub const MAX_DELETED: usize = 4096;

impl Default for LeaseTable {
    fn default() -> Self {
        Self::new()
    }
}

impl LeaseTable {
    /// A table that has heard of nothing.
    pub fn new() -> Self {
        Self {
            leases: Shards::new(),
            bounds: Shards::new(),
        }
    }

    /// All that a snapshot says and nothing else. After [`TailError::Rewound`]
    /// or a gap too: what the store no longer has is no longer so.
    ///
    /// [`TailError::Rewound`]: crate::mirror::log::TailError::Rewound
    pub fn from_snapshot(snapshot: &Snapshot, keys: &Keyspace) -> Self {
        let mut table = Self::new();
        for record in &snapshot.records {
            table.put(record);
        }
        for unreadable in &snapshot.unreadable {
            table.unreadable(unreadable, keys);
        }
        table
    }

    /// One entry of the log. Returns whether it changed the table.
    pub fn apply(&mut self, entry: &LogEntry, keys: &Keyspace) -> bool {
        match &entry.change {
            Logged::Put(record) => self.put(record),
            Logged::Deleted { key, revision, .. } => self.deleted(key, *revision),
            Logged::Unreadable(unreadable) => self.unreadable(unreadable, keys),
        }
    }

    /// A record as somebody read or wrote it; an older one than the table has
    /// is ignored. Returns whether it changed the table.
    pub fn put(&mut self, record: &Record) -> bool {
        match &record.key {
            Key::Lease(hash) => {
                OwnerHash::parse(hash).is_some_and(|owner| put(&mut self.leases, &owner, record))
            }
            Key::Bound(connection) => put(&mut self.bounds, connection, record),
            Key::Health(_)
            | Key::Lockout(_)
            | Key::Lane(_)
            | Key::Tools(_)
            | Key::Breaker(_)
            | Key::Pin(_)
            | Key::Token(_)
            | Key::Refresh(_)
            | Key::Leader
            | Key::Other(_) => false,
        }
    }

    fn deleted(&mut self, key: &Key, revision: Revision) -> bool {
        match key {
            Key::Lease(hash) => OwnerHash::parse(hash)
                .is_some_and(|owner| self.leases.set(&owner, Some(revision), Stored::Absent)),
            Key::Bound(connection) => self.bounds.set(connection, Some(revision), Stored::Absent),
            Key::Health(_)
            | Key::Lockout(_)
            | Key::Lane(_)
            | Key::Tools(_)
            | Key::Breaker(_)
            | Key::Pin(_)
            | Key::Token(_)
            | Key::Refresh(_)
            | Key::Leader
            | Key::Other(_) => false,
        }
    }

    fn unreadable(&mut self, unreadable: &Unreadable, keys: &Keyspace) -> bool {
        let Spelled::Key(key) = keys.parse(&unreadable.key) else {
            return false;
        };
        match &key {
            Key::Lease(hash) => OwnerHash::parse(hash)
                .is_some_and(|owner| self.leases.set(&owner, None, Stored::Unreadable)),
            Key::Bound(connection) => self.bounds.set(connection, None, Stored::Unreadable),
            Key::Health(_)
            | Key::Lockout(_)
            | Key::Lane(_)
            | Key::Tools(_)
            | Key::Breaker(_)
            | Key::Pin(_)
            | Key::Token(_)
            | Key::Refresh(_)
            | Key::Leader
            | Key::Other(_) => false,
        }
    }

    /// An owner's record.
    pub fn lease(&self, owner: &OwnerHash) -> &Stored<Lease> {
        self.leases.get(owner)
    }

    /// A connection's record.
    pub fn bound(&self, connection: &ConnectionId) -> &Stored<Bound> {
        self.bounds.get(connection)
    }

    /// Whether a connection is bound at `now`, or may be: a record that can't
    /// be read does not say.
    pub fn is_leased(&self, connection: &ConnectionId, now: Millis) -> bool {
        match self.bound(connection) {
            Stored::Absent => false,
            Stored::Unreadable => true,
            Stored::Found(found) => found.body.is_active(now),
        }
    }

    /// Every lease that is active at `now`, by owner.
    pub fn active(&self, now: Millis) -> impl Iterator<Item = (&OwnerHash, &Lease)> {
        self.known().filter(move |(_, lease)| lease.is_active(now))
    }

    /// Those of one API key.
    pub fn of_key(
        &self,
        api_key: &ApiKeyId,
        now: Millis,
    ) -> impl Iterator<Item = (&OwnerHash, &Lease)> {
        self.active(now)
            .filter(move |(_, lease)| lease.api_key == *api_key)
    }

    /// Owners whose lease ran out by `now` without anybody having written it
    /// down: what [`expire`](super::expire) is for.
    pub fn lapsed(&self, now: Millis) -> impl Iterator<Item = &OwnerHash> {
        self.known()
            .filter(move |(_, lease)| lease.end.is_none() && !lease.is_active(now))
            .map(|(owner, _)| owner)
    }

    /// The first time after `now` at which an active lease runs out.
    pub fn next_expiry(&self, now: Millis) -> Option<Millis> {
        self.active(now).map(|(_, lease)| lease.expires_at).min()
    }

    fn known(&self) -> impl Iterator<Item = (&OwnerHash, &Lease)> {
        self.leases
            .iter()
            .filter_map(|(owner, stored)| Some((owner, &stored.found()?.body)))
    }
}

fn put<K: shards::Spread, T: Body + Clone>(
    shards: &mut Shards<K, T>,
    name: &K,
    record: &Record,
) -> bool {
    shards.set(name, Some(record.revision), Stored::of(Some(record)))
}
