//! What is to be done about stored records, and when: leases that run out are
//! to be written down as expired, records that are long over to be deleted.
//! Pure: it is told what the store holds and asked what is due.

use std::collections::{BTreeSet, HashMap};

use shared_proto::clock::Millis;
use shared_proto::egress::Observations;
use shared_proto::health::{ConnectionHealth, DECAY_MIN_MS};
use shared_proto::id::ConnectionId;
use shared_proto::lease::{Bound, Lease, OwnerHash};
use shared_proto::mirror::Snapshot;
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::{Body, Record, Revision};

#[cfg(test)]
mod tests;

/// How long the health of a connection that is well is kept while no
/// configuration names the connection, ms.
pub const KEEP_WELL_MS: u64 = 24 * 60 * 60 * 1000;

/// The newest version of lock records on token refreshes that may be deleted.
const REFRESH_VERSION: u16 = 1;

/// What is to be done about a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Write down that the owner's lease ran out.
    Expire(OwnerHash),
    /// Delete it.
    Delete,
    /// Delete it if no configuration names this connection.
    Retire(ConnectionId),
}

/// One thing that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which record.
    pub key: Key,
    /// Which state of it.
    pub revision: Revision,
    /// The newest version of its body that this program understands.
    pub version: u16,
    /// What is to be done.
    pub what: What,
}

/// When everything is due. One entry for each record that something is to be
/// done about, so as many as the store holds at most.
#[derive(Debug, Default)]
pub struct Agenda {
    entries: HashMap<Key, Entry>,
    /// Leases to expire, and records to delete: each by when.
    expiries: BTreeSet<(Millis, Key)>,
    deletions: BTreeSet<(Millis, Key)>,
}

#[derive(Clone, Debug)]
struct Entry {
    due: Millis,
    revision: Revision,
    version: u16,
    what: What,
}

impl Entry {
    const fn is_expiry(&self) -> bool {
        match self.what {
            What::Expire(_) => true,
            What::Delete | What::Retire(_) => false,
        }
    }
}

impl Agenda {
    /// Begins anew with everything that the store holds.
    pub fn replace(&mut self, snapshot: &Snapshot) {
        *self = Self::default();
        for record in &snapshot.records {
            self.stored(record);
        }
    }

    /// The record is now this.
    pub fn stored(&mut self, record: &Record) {
        self.remove(&record.key);
        if let Some(entry) = plan(record) {
            self.insert(record.key.clone(), entry);
        }
    }

    /// There is no such record any more, or nothing can be said about it.
    pub fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            let at = (entry.due, key.clone());
            self.by_time(&entry).remove(&at);
        }
    }

    /// Puts a thing off; one that was told anew meanwhile stays as it is.
    pub fn put_off(&mut self, item: &Item, until: Millis) {
        let same = |entry: &&Entry| entry.revision == item.revision;
        if let Some(entry) = self.entries.get(&item.key).filter(same).cloned() {
            self.remove(&item.key);
            self.insert(
                item.key.clone(),
                Entry {
                    due: until,
                    ..entry
                },
            );
        }
    }

    /// Leases that ran out by `now`, longest ago first, `most` at most.
    pub fn expired(&self, now: Millis, most: usize) -> Vec<Item> {
        self.due(&self.expiries, now, most)
    }

    /// Records to delete by `now`, longest due first, `most` at most.
    pub fn over(&self, now: Millis, most: usize) -> Vec<Item> {
        self.due(&self.deletions, now, most)
    }

    /// When the next lease runs out.
    pub fn next_expiry(&self) -> Option<Millis> {
        self.expiries.first().map(|(at, _)| *at)
    }

    fn due(&self, times: &BTreeSet<(Millis, Key)>, now: Millis, most: usize) -> Vec<Item> {
        let due = times.iter().take_while(|(at, _)| *at <= now).take(most);
        let item = |(_, key): &(Millis, Key)| {
            let entry = self.entries.get(key)?;
            Some(Item {
                key: key.clone(),
                revision: entry.revision,
                version: entry.version,
                what: entry.what.clone(),
            })
        };
        due.filter_map(item).collect()
    }

    fn insert(&mut self, key: Key, entry: Entry) {
        self.by_time(&entry).insert((entry.due, key.clone()));
        self.entries.insert(key, entry);
    }

    fn by_time(&mut self, entry: &Entry) -> &mut BTreeSet<(Millis, Key)> {
        if entry.is_expiry() {
            &mut self.expiries
        } else {
            &mut self.deletions
        }
    }
}

/// What is to be done about a record, if anything is. What can't be read is
/// left alone.
fn plan(record: &Record) -> Option<Entry> {
    let entry = |due, version, what| Entry {
        due,
        revision: record.revision,
        version,
        what,
    };
    match &record.key {
        Key::Lease(hash) => {
            let lease: Lease = record.decode().ok()?;
            if lease.end.is_none() {
                let owner = OwnerHash::parse(hash)?;
                return Some(entry(lease.expires_at, Lease::VERSION, What::Expire(owner)));
            }
            Some(entry(record.expires_at?, Lease::VERSION, What::Delete))
        }
        Key::Bound(_) => {
            record.decode::<Bound>().ok()?;
            Some(entry(record.expires_at?, Bound::VERSION, What::Delete))
        }
        Key::Refresh(_) => {
            let at = record.expires_at?;
            (record.version <= REFRESH_VERSION).then(|| entry(at, REFRESH_VERSION, What::Delete))
        }
        Key::Health(id) => {
            let health: ConnectionHealth = record.decode().ok()?;
            let at = well_since(&health, record.written_at)?.plus(KEEP_WELL_MS);
            let what = What::Retire(id.clone());
            Some(entry(at, ConnectionHealth::VERSION, what))
        }
        Key::Egress(_) => {
            let told: Observations = record.decode().ok()?;
            let at = record.written_at.plus(told.keep_ms);
            Some(entry(at, Observations::VERSION, What::Delete))
        }
        // Few, or not this version's to judge.
        Key::Lockout(_)
        | Key::Lane(_)
        | Key::Tools(_)
        | Key::Breaker(_)
        | Key::Gate(_)
        | Key::Pin(_)
        | Key::Token(_)
        | Key::Leader
        | Key::Settings
        | Key::Other(_) => None,
    }
}

/// From when on a record says no more than none would, if nothing happens; or
/// it is out of use until somebody acts.
fn well_since(health: &ConnectionHealth, written_at: Millis) -> Option<Millis> {
    if health.terminal.is_some() || health.auto_disabled {
        return None;
    }
    let period = health.last_cooldown_ms.max(DECAY_MIN_MS);
    let decay = period.saturating_mul(u64::from(health.backoff_level));
    let rested = health.cooldown_until.map(|until| until.plus(decay));
    Some(rested.map_or(written_at, |at| at.max(written_at)))
}
