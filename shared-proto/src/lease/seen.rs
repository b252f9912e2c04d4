//! What an operation has read of the store so far.

use std::collections::BTreeMap;

use super::record::{Bound, Lease};
use super::table::LeaseTable;
use super::token::OwnerHash;
use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::mirror::commit::{Commit, Expected, Guard};
use crate::mirror::key::Key;
use crate::mirror::record::{Body, BodyError, Record, Revision};

/// A record as the store had it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Stored<T> {
    /// There is none.
    Absent,
    /// There is one that this version can't read. Whatever it says is not
    /// known, so nothing is granted against it, and it is left as it is.
    Unreadable,
    /// This one.
    Found(Found<T>),
}

/// A readable record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Found<T> {
    /// Which state of it.
    pub revision: Revision,
    /// When the store took it.
    pub written_at: Millis,
    /// What it says.
    pub body: T,
}

impl<T: Body> Stored<T> {
    /// What a record says, `None` being that there is none.
    pub fn of(record: Option<&Record>) -> Self {
        match record {
            None => Self::Absent,
            Some(record) => record.decode().map_or(Self::Unreadable, |body| {
                Self::Found(Found {
                    revision: record.revision,
                    written_at: record.written_at,
                    body,
                })
            }),
        }
    }
}

impl<T> Stored<T> {
    /// The record, if it can be read.
    pub const fn found(&self) -> Option<&Found<T>> {
        match self {
            Self::Found(found) => Some(found),
            Self::Absent | Self::Unreadable => None,
        }
    }

    pub(super) const fn revision(&self) -> Option<Revision> {
        match self {
            Self::Found(found) => Some(found.revision),
            Self::Absent | Self::Unreadable => None,
        }
    }
}

/// What has to be read before an operation can be judged. Never empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Records to load, at once. At most [`super::MAX_ASKED`] and one.
    pub records: Vec<Key>,
    /// Connections whose requests in flight are to be counted, after the
    /// answer for their records came.
    pub in_flight: Vec<ConnectionId>,
}

/// Everything that one operation has read. It lives as long as the operation.
#[derive(Clone, Debug)]
pub struct Seen<'t> {
    table: &'t LeaseTable,
    leases: BTreeMap<OwnerHash, Stored<Lease>>,
    bounds: BTreeMap<ConnectionId, Reserved>,
    not_before: Millis,
}

#[derive(Clone, Debug)]
struct Reserved {
    bound: Stored<Bound>,
    /// Requests in flight, counted while `bound` stood as it is here.
    in_flight: Option<usize>,
}

impl<'t> Seen<'t> {
    /// Nothing read yet. `table` is only a hint: it says where to look first,
    /// and a request may go on to the fence by it.
    pub const fn new(table: &'t LeaseTable) -> Self {
        Self {
            table,
            leases: BTreeMap::new(),
            bounds: BTreeMap::new(),
            not_before: Millis::from_epoch_ms(0),
        }
    }

    /// The answer to a load, or one record that a conflict told. A key of
    /// another kind is ignored.
    pub fn record(&mut self, key: &Key, record: Option<&Record>) {
        match key {
            Key::Lease(hash) => {
                if let Some(owner) = OwnerHash::parse(hash) {
                    self.leases.insert(owner, Stored::of(record));
                }
            }
            Key::Bound(connection) => self.bound_is(connection, Stored::of(record)),
            Key::Health(_)
            | Key::Lockout(_)
            | Key::Lane(_)
            | Key::Tools(_)
            | Key::Breaker(_)
            | Key::Pin(_)
            | Key::Token(_)
            | Key::Refresh(_)
            | Key::Leader
            | Key::Other(_) => {}
        }
    }

    /// The answer to a load that found something unreadable.
    pub fn unreadable(&mut self, key: &Key) {
        match key {
            Key::Lease(hash) => {
                if let Some(owner) = OwnerHash::parse(hash) {
                    self.leases.insert(owner, Stored::Unreadable);
                }
            }
            Key::Bound(connection) => self.bound_is(connection, Stored::Unreadable),
            Key::Health(_)
            | Key::Lockout(_)
            | Key::Lane(_)
            | Key::Tools(_)
            | Key::Breaker(_)
            | Key::Pin(_)
            | Key::Token(_)
            | Key::Refresh(_)
            | Key::Leader
            | Key::Other(_) => {}
        }
    }

    /// How many requests are in flight under leases of this connection. Only
    /// counts for the record that was read before the counting began.
    pub fn in_flight(&mut self, connection: &ConnectionId, count: usize) {
        if let Some(reserved) = self.bounds.get_mut(connection) {
            reserved.in_flight = Some(count);
        }
    }

    /// A transaction met other records than it expected, at `at` store time.
    pub fn conflict(&mut self, newest: &[(Key, Option<Record>)], at: Millis) {
        for (key, record) in newest {
            self.record(key, record.as_ref());
        }
        self.not_before = self.not_before.max(at);
    }

    fn bound_is(&mut self, connection: &ConnectionId, bound: Stored<Bound>) {
        let known = self.bounds.remove(connection);
        // A count from under another record says nothing about this one.
        let in_flight = known
            .filter(|known| known.bound == bound)
            .and_then(|known| known.in_flight);
        let reserved = Reserved { bound, in_flight };
        self.bounds.insert(connection.clone(), reserved);
    }

    pub(super) const fn table(&self) -> &'t LeaseTable {
        self.table
    }

    /// The store's time as far as this operation knows it.
    pub(super) fn now(&self, now: Millis) -> Millis {
        now.max(self.not_before)
    }

    pub(super) fn lease(&self, owner: &OwnerHash) -> Option<&Stored<Lease>> {
        self.leases.get(owner)
    }

    pub(super) fn bound(&self, connection: &ConnectionId) -> Option<&Stored<Bound>> {
        self.bounds.get(connection).map(|reserved| &reserved.bound)
    }

    pub(super) fn counted(&self, connection: &ConnectionId) -> Option<usize> {
        self.bounds.get(connection)?.in_flight
    }
}

/// The record's next state on top of the one that was read.
pub(super) fn put<T: Body>(
    key: Key,
    on: Option<Revision>,
    body: &T,
    expires_at: Millis,
) -> Result<Commit, BodyError> {
    let expected = on.map_or(Expected::Absent, Expected::Revision);
    Ok(Commit::put(key, expected, body)?.expiring(expires_at))
}

/// The fence: the owner's record stands as it was read, by the store's clock.
pub(super) fn guard(owner: &OwnerHash, revision: Revision) -> Guard {
    Guard {
        key: owner.key(),
        revision,
    }
}
