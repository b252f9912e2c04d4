//! Log lines about what could happen with every request.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use shared_proto::clock::Millis;

/// Between two lines, ms.
const EVERY_MS: u64 = 10_000;

/// Lets one through every ten seconds.
#[derive(Debug, Default)]
pub(crate) struct Seldom(AtomicU64);

impl Seldom {
    /// Whether it is time for a line again. It is for the first.
    pub(crate) fn due(&self, now: Millis) -> bool {
        let now = now.as_epoch_ms().max(1);
        let last = self.0.load(Ordering::Relaxed);
        let due = last == 0 || now >= last.saturating_add(EVERY_MS) || now < last;
        // Of several at once one wins.
        due && self
            .0
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }
}

/// Places for subjects; those that share one share its line.
const PLACES: usize = 1024;

/// The same for each of many subjects, such as models.
#[derive(Debug)]
pub(crate) struct SeldomEach {
    places: Box<[Seldom]>,
    hasher: RandomState,
}

impl Default for SeldomEach {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| Seldom::default()).collect(),
            hasher: RandomState::new(),
        }
    }
}

impl SeldomEach {
    /// Whether it is time for a line about `subject` again.
    pub(crate) fn due(&self, subject: &str, now: Millis) -> bool {
        let hash = usize::try_from(self.hasher.hash_one(subject) & u64::from(u32::MAX));
        let place = hash.unwrap_or(0).checked_rem(self.places.len());
        let place = place.and_then(|place| self.places.get(place));
        place.is_some_and(|place| place.due(now))
    }
}

#[cfg(test)]
mod tests;
