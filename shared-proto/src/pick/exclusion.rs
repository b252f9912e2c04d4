//! Why a target is not tried: the closed set of words.

use serde::Serialize;

use crate::id::ProviderId;

/// Why a target was not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExclusionReason {
    /// The provider's breaker is open, or half-open with its one try under way.
    CircuitOpen,
    /// The provider had too many failures in its window.
    ProviderCooldown,
    /// The connection cools.
    ConnectionCooldown,
    /// The model is locked on the connection.
    ModelLockout,
    /// Nothing that time mends: terminal, switched off, not allowed, does not serve it.
    Unavailable,
    /// The free allowance is used up for good.
    FreeTierDrained,
}

impl ExclusionReason {
    /// Every reason.
    pub const ALL: [Self; 6] = [
        Self::CircuitOpen,
        Self::ProviderCooldown,
        Self::ConnectionCooldown,
        Self::ModelLockout,
        Self::Unavailable,
        Self::FreeTierDrained,
    ];

    /// The word used in traces, headers, JSON and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen => "circuit_open",
            Self::ProviderCooldown => "provider_cooldown",
            Self::ConnectionCooldown => "connection_cooldown",
            Self::ModelLockout => "model_lockout",
            Self::Unavailable => "unavailable",
            Self::FreeTierDrained => "free_tier_drained",
        }
    }

    /// Whether it ends by itself.
    pub const fn is_timer(self) -> bool {
        match self {
            Self::CircuitOpen
            | Self::ProviderCooldown
            | Self::ConnectionCooldown
            | Self::ModelLockout => true,
            Self::Unavailable | Self::FreeTierDrained => false,
        }
    }
}

/// A target that was not tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclusion {
    /// Its provider.
    pub provider: ProviderId,
    /// Its model.
    pub model: String,
    /// Why.
    pub reason: ExclusionReason,
    /// What is left of the timer, ms, where it is known.
    pub remaining_ms: Option<u64>,
}
