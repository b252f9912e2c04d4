//! What a provider's breaker remembers, piece by piece.

use serde::{Deserialize, Serialize};

use crate::breaker::DEDUPE_MS;
use crate::clock::Millis;
use crate::failure::Reason;
use crate::id::ConnectionId;

/// What the breaker does with requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum BreakerState {
    /// Lets all pass.
    #[default]
    Closed,
    /// Lets all pass, but failures pile up.
    Degraded,
    /// Lets none pass.
    Open,
    /// Lets one pass, to see.
    HalfOpen,
}

impl BreakerState {
    /// The word used in JSON and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::Degraded => "DEGRADED",
            Self::Open => "OPEN",
            Self::HalfOpen => "HALF_OPEN",
        }
    }
}

/// The breaker's own, coarse kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Too many requests.
    RateLimit,
    /// A quota is used up.
    QuotaExhausted,
    /// Anything that may pass by itself.
    Transient,
}

impl From<Reason> for FailureKind {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::RateLimitExceeded => Self::RateLimit,
            Reason::QuotaExhausted => Self::QuotaExhausted,
            Reason::ModelCapacity
            | Reason::ServerError
            | Reason::AuthError
            | Reason::NotFound
            | Reason::ServiceNotRunning
            | Reason::Unknown => Self::Transient,
        }
    }
}

/// Counted failures by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KindCounts {
    /// Of [`FailureKind::RateLimit`].
    pub rate_limit: u32,
    /// Of [`FailureKind::QuotaExhausted`].
    pub quota_exhausted: u32,
    /// Of [`FailureKind::Transient`].
    pub transient: u32,
}

impl KindCounts {
    pub(super) fn add(&mut self, kind: FailureKind) {
        let count = match kind {
            FailureKind::RateLimit => &mut self.rate_limit,
            FailureKind::QuotaExhausted => &mut self.quota_exhausted,
            FailureKind::Transient => &mut self.transient,
        };
        *count = count.saturating_add(1);
    }
}

/// A claimed try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// What its result has to carry.
    pub generation: u64,
    /// When it was claimed.
    pub started_at: Millis,
    /// When somebody else may claim.
    pub deadline: Millis,
}

/// A connection whose failure was counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Which one.
    pub connection: ConnectionId,
    /// When.
    pub at: Millis,
}

impl Counted {
    pub(super) const fn is_recent(&self, now: Millis) -> bool {
        now.since(self.at) < DEDUPE_MS
    }
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// The state before.
    pub from: BreakerState,
    /// The state after.
    pub to: BreakerState,
    /// When.
    pub at: Millis,
    /// The count after it.
    pub failure_count: u32,
    /// Why.
    pub reason: TransitionReason,
}

/// Why the state changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransitionReason {
    /// A threshold was reached.
    Threshold,
    /// The open time ended.
    Elapsed,
    /// The try failed.
    ProbeFailed,
    /// The try succeeded.
    ProbeSucceeded,
    /// Successes brought the count down.
    Eased,
    /// An operator asked to forget.
    Reset,
}
