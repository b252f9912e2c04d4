//! Time limits as settings give them.

use std::time::Duration;

use tokio::time::Instant;

/// As good as never.
const NEVER: Duration = Duration::from_hours(24 * 365);

/// A limit in ms as a duration, at most a year; 0 is as good as never.
pub(crate) fn limit(ms: u64) -> Duration {
    match ms {
        0 => NEVER,
        ms => Duration::from_millis(ms).min(NEVER),
    }
}

/// `at + wait`; what the clock can't hold is as good as never.
pub(crate) fn after(at: Instant, wait: Duration) -> Instant {
    at.checked_add(wait)
        .or_else(|| at.checked_add(NEVER))
        .unwrap_or(at)
}

/// Waits that double, between two bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// From `first` on, at most `longest`.
    pub(crate) const fn between(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// The wait after `failures` earlier failures in a row.
    pub(crate) fn after(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.min(16)).unwrap_or(1);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

/// Somewhere between half of `wait` and one and a half times as long, so that
/// what failed together is not tried again together.
pub(crate) fn jittered(wait: Duration) -> Duration {
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    spread(wait, random)
}

/// `wait` times a factor from 0.5 to 1.5, by where `random` is in its range.
fn spread(wait: Duration, random: u64) -> Duration {
    let per_mille = random.checked_rem(1001).unwrap_or(0).saturating_add(500);
    let nanos = wait.as_nanos().saturating_mul(u128::from(per_mille));
    let nanos = nanos.checked_div(1000).unwrap_or(0);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
