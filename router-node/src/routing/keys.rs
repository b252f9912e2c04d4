//! A connection with several keys: which of them is presented.

use http::{HeaderName, HeaderValue};
use shared_proto::health::ConnectionHealth;

use super::Slot;

/// One of a connection's keys.
pub(crate) struct Key {
    /// What it is called where it must not be named.
    pub(crate) mark: u64,
    /// What it is presented in; marked sensitive.
    pub(crate) header: (HeaderName, HeaderValue),
}

impl Slot {
    /// The key that is presented next, after those that this attempt `tried`: the
    /// first that is not set aside, or where all are, the first. A test presents
    /// those that are set aside before the others, since its success brings them
    /// back. `None` where there is one key only, or none is left.
    pub(crate) fn next_key(&self, tried: &[u64], is_test: bool) -> Option<&Key> {
        let health = self.cell.health();
        let is_left = |key: &&Key| !tried.contains(&key.mark);
        let mut left = self.keys.iter().filter(is_left);
        if is_test {
            let mut aside = left.clone().filter(|key| is_aside(&health, key));
            return aside.next().or_else(|| left.next());
        }
        // Where every key is set aside, nothing is gained by presenting none.
        let all_aside = self.keys.iter().all(|key| is_aside(&health, key));
        left.find(|key| all_aside || !is_aside(&health, key))
    }

    /// How many keys it has, and how many of them are not set aside; `None` where
    /// it has no more than one.
    pub(crate) fn key_counts(&self, health: &ConnectionHealth) -> Option<(usize, usize)> {
        let usable = self.keys.iter().filter(|key| !is_aside(health, key));
        (!self.keys.is_empty()).then(|| (self.keys.len(), usable.count()))
    }

    /// The place of a key in the configuration, from 1.
    pub(crate) fn key_number(&self, mark: u64) -> usize {
        let place = self.keys.iter().position(|key| key.mark == mark);
        place.map_or(0, |place| place.saturating_add(1))
    }
}

fn is_aside(health: &ConnectionHealth, key: &Key) -> bool {
    health.aside(key.mark).is_some()
}
