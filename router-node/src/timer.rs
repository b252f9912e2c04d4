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
