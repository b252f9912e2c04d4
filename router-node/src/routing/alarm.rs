//! When the first of several resting connections is back, so that a pick need
//! not wait for its owner's timer to say so.

use std::sync::atomic::{AtomicU64, Ordering};

use shared_proto::clock::Millis;

/// The earliest end that was announced and not yet looked into.
pub(crate) struct Alarm(AtomicU64);

impl Default for Alarm {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

impl Alarm {
    /// Announces an end.
    pub(crate) fn set(&self, at: Millis) {
        self.0.fetch_min(at.as_epoch_ms(), Ordering::SeqCst);
    }

    /// Whether an announced end has come. It is told to one caller only, who
    /// looks at all that rest and announces the ends that are still to come.
    pub(crate) fn rings(&self, now: Millis) -> bool {
        // The usual case is a read: many pick, few ends come.
        let due = |at: u64| at <= now.as_epoch_ms();
        due(self.0.load(Ordering::Relaxed))
            && self
                .0
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |at| {
                    due(at).then_some(u64::MAX)
                })
                .is_ok()
    }
}
