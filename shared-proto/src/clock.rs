//! Time as the core sees it: milliseconds since the Unix epoch, by the store's clock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point in time in milliseconds since the Unix epoch. Arithmetic saturates:
/// a time that can't be represented is the nearest one that can.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(u64);

impl Millis {
    /// The latest time there is.
    pub const MAX: Self = Self(u64::MAX);

    /// The time `ms` milliseconds after the epoch.
    pub const fn from_epoch_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Milliseconds since the epoch.
    pub const fn as_epoch_ms(self) -> u64 {
        self.0
    }

    /// `self + ms`, saturating.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// `self - ms`, saturating at the epoch.
    #[must_use]
    pub const fn minus(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Milliseconds from `earlier` to `self`; 0 when `earlier` is later.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// RFC 3339 in UTC with milliseconds, the form of every time in our JSON.
    pub fn to_rfc3339(self) -> String {
        let ms = i64::try_from(self.0).unwrap_or(i64::MAX);
        jiff::Timestamp::from_millisecond(ms)
            .map_or_else(|_| jiff::Timestamp::MAX.to_string(), |t| format!("{t:.3}"))
    }
}

impl fmt::Debug for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// Where `now` comes from at the edges of the program. Pure code never sees one.
pub trait Clock: Send + Sync + 'static {
    /// The store's time.
    fn now(&self) -> Millis;
}

/// The machine's wall clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place that reads the wall clock"
        )]
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let ms = since.unwrap_or(Duration::ZERO).as_millis();
        Millis(u64::try_from(ms).unwrap_or(u64::MAX))
    }
}

/// A clock that tests move by hand.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that stands at `now`.
    pub fn at(now: Millis) -> Self {
        Self(Arc::new(AtomicU64::new(now.0)))
    }

    /// Moves the clock `ms` milliseconds on.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        Millis(self.0.load(Ordering::SeqCst))
    }
}
