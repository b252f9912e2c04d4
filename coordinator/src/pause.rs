//! Waits between tries.

use std::time::Duration;

/// Waits that double, between two bounds.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// From `first` on, at most `longest`.
    pub const fn between(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The wait after `failures` earlier failures in a row.
    pub fn after(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.min(16)).unwrap_or(1);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

/// Between three quarters of `wait` and all of it, so that what failed or
/// waited together is not tried again together, and nothing is late.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    let per_mille = random.checked_rem(251).unwrap_or(0).saturating_add(750);
    let nanos = wait.as_nanos().saturating_mul(u128::from(per_mille));
    Duration::from_nanos(u64::try_from(nanos / 1000).unwrap_or(u64::MAX))
}
