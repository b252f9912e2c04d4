//! The store's time, from what the server told of its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::clock::{Clock, Millis};

/// A lower bound of the server's clock: what it told last, and the time that
/// has passed here since the answer came.
pub(super) struct StoreTime {
    /// What is told until the server has told anything.
    guess: Arc<dyn Clock>,
    origin: Instant,
    /// Microseconds of the server's clock at `origin`; 0 is not known.
    offset: AtomicU64,
    /// The latest that was told as the server's time, in ms.
    latest: AtomicU64,
}

impl StoreTime {
    pub(super) fn new(guess: Arc<dyn Clock>) -> Self {
        Self {
            guess,
            origin: Instant::now(),
            offset: AtomicU64::new(0),
            latest: AtomicU64::new(0),
        }
    }

    /// Takes in that the server's clock stood at `us` some time between then
    /// and now. What was known before is kept as far as it agrees: then it is
    /// the better bound.
    pub(super) fn heard(&self, us: u64, asked: Instant) {
        let least = us.saturating_sub(self.passed(Instant::now())).max(1);
        let most = us.saturating_sub(self.passed(asked)).max(least);
        let keep = |known: u64| match known {
            0 => Some(least),
            known => Some(known.clamp(least, most)),
        };
        // The closure never declines.
        self.offset
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, keep)
            .ok();
    }

    pub(super) fn now(&self) -> Millis {
        let offset = self.offset.load(Ordering::SeqCst);
        if offset == 0 {
            return self.guess.now();
        }
        let us = offset.saturating_add(self.passed(Instant::now()));
        let ms = us / 1_000;
        let before = self.latest.fetch_max(ms, Ordering::SeqCst);
        Millis::from_epoch_ms(before.max(ms))
    }

    /// Microseconds since `origin`.
    fn passed(&self, at: Instant) -> u64 {
        let passed = at.saturating_duration_since(self.origin).as_micros();
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests;
