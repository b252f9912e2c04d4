//! Waiting for a state, with a deadline, instead of sleeping.

use std::future::Future;
use std::time::{Duration, Instant};

/// How long anything that ought to happen at once may take on a busy machine.
pub const SOON: Duration = Duration::from_mins(1);

/// How often a state is looked at.
const STEP: Duration = Duration::from_millis(10);

/// Asks `probe` until it gives a value. Panics with `what` after [`SOON`].
pub async fn eventually<T, F, Fut>(what: &str, probe: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    eventually_within(SOON, what, probe).await
}

/// Asks `probe` until it gives a value. Panics with `what` after `limit`.
pub async fn eventually_within<T, F, Fut>(limit: Duration, what: &str, mut probe: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        tokio::time::sleep(STEP).await;
    }
}

/// Awaits `work`; panics with `what` when it takes longer than `limit`.
pub async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(limit, work).await;
    done.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}

/// The time that passes between two moments of a test is what some tests are
/// about. This is the only plain pause, and it names its reason.
pub async fn let_time_pass(time: Duration, reason: &str) {
    assert!(!reason.is_empty(), "a pause without a reason");
    tokio::time::sleep(time).await;
}
