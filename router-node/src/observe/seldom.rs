//! Log lines about what could happen with every request.

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

#[cfg(test)]
mod tests;
