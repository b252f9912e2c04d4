//! Time limits as settings give them.

use std::time::Duration;

pub(crate) use coordinator::Backoff;
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

/// Somewhere between half of `wait` and one and a half times as long, so that
/// what failed together is not tried again together.
pub(crate) fn jittered(wait: Duration) -> Duration {
    spread(wait, random())
}

/// For one [`spread`] that is asked for more than once.
pub(crate) fn random() -> u64 {
    uuid::Uuid::new_v4().as_u64_pair().0
}

/// `wait` times a factor from 0.5 to 1.5, by where `random` is in its range.
pub(crate) fn spread(wait: Duration, random: u64) -> Duration {
    let per_mille = random.checked_rem(1001).unwrap_or(0).saturating_add(500);
    let nanos = wait.as_nanos().saturating_mul(u128::from(per_mille));
    let nanos = nanos.checked_div(1000).unwrap_or(0);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
