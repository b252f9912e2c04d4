//! Behaviour with numbers, by profile where accounts differ.

mod extras;

use std::collections::BTreeMap;

use super::{DailyReset, Provider};
use crate::failure::{Profile, Reason, RuleScope};
use crate::lease::LeaseRules;
use crate::restate::RestateRule;

pub use extras::{EmergencyFallback, MAX_TOOLS, UsageWall};

/// Behaviour with numbers: `settings:` with the defaults and clamps of the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How connections cool.
    pub connection_cooldown: PerProfile<ConnectionCooldown>,
    /// When a provider's breaker opens, and for how long.
    pub provider_breaker: PerProfile<ProviderBreaker>,
    /// Waiting inside a request until a plain model's connection comes back.
    pub wait_for_cooldown: WaitForCooldown,
    /// Bounds of what upstreams announce.
    pub hint_bounds: HintBounds,
    /// Cap of the cooldown ladder, ms; the same as `model_lockout.max_cooldown_ms`.
    pub max_cooldown_ms: u64,
    /// When and for how long one model of a connection is locked.
    pub model_lockout: ModelLockout,
    /// Extra texts that mean a ban, lowercased.
    pub custom_banned_signals: Vec<String>,
    /// What refusals mean, in the operator's words, by provider; in each list the first that fits wins.
    pub provider_error_rules: BTreeMap<String, Vec<ErrorRule>>,
    /// Rules that put statuses right, the operator's first.
    pub restate_rules: Vec<RestateRule>,
    /// Whether a ban also switches the connection off.
    pub auto_disable_banned_accounts: bool,
    /// Attempts of one request over all targets.
    pub max_attempts: u32,
    /// How session leases last, end and are handed over.
    pub leases: LeaseRules,
    /// How long a session stays pinned to its connection after its last request, ms; 0 is off.
    pub session_affinity_ttl_ms: u64,
    /// How requests wait for a slot where no combo says otherwise.
    pub queue: QueueRules,
    /// Where subscription accounts ask for their usage and for a reset of it.
    pub usage_wall: UsageWall,
    /// Tools that one request may bring where a provider has not said another number.
    pub max_tools: u32,
    /// A last resort when money is the reason that nobody can serve.
    pub emergency_fallback: EmergencyFallback,
}

/// How a request waits for a slot of a connection with `maxConcurrent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRules {
    /// Whether requests wait at all; otherwise they go without a slot at once.
    pub enabled: bool,
    /// Longest wait of one request, ms; after it the request goes without a slot.
    pub timeout_ms: u64,
    /// Requests that wait for one connection, over the whole cluster; one more
    /// goes without a slot.
    pub depth: u32,
}

impl Default for QueueRules {
    fn default() -> Self {
        Self {
            enabled: true,
            timeout_ms: 30_000,
            depth: 20,
        }
    }
}

/// What an operator says that a refusal means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorRule {
    /// The upstream's status.
    pub status: u16,
    /// Text that the answer has to hold, lowercased; never empty.
    pub text: String,
    /// What it is charged to; never the request.
    pub scope: RuleScope,
    /// Its reason.
    pub reason: Reason,
    /// How long what it is charged to rests, ms; `None` leaves it to the ladder and to announcements.
    pub cooldown_ms: Option<u64>,
}

/// When and for how long one model of a connection is locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLockout {
    /// Whether models are locked at all.
    pub enabled: bool,
    /// Statuses that lock.
    pub error_codes: Vec<u16>,
    /// First step of the ladder, ms.
    pub base_cooldown_ms: u64,
    /// Cap of the ladder, ms; at least the first step.
    pub max_cooldown_ms: u64,
    /// Doublings of the ladder.
    pub max_backoff_steps: u32,
    /// Whether the ladder doubles.
    pub use_exponential_backoff: bool,
    /// When a day's quota begins anew, where a provider says nothing else.
    pub daily_reset: DailyReset,
}

impl Settings {
    /// When a day's quota begins anew at `provider`.
    pub fn daily_reset<'s>(&'s self, provider: &'s Provider) -> &'s DailyReset {
        let own = provider.daily_reset.as_ref();
        own.unwrap_or(&self.model_lockout.daily_reset)
    }
}

/// Bounds of an announced reset, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintBounds {
    /// For quota reasons.
    pub quota_ms: u64,
    /// For every other reason.
    pub rate_limit_ms: u64,
}

/// One value for each profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerProfile<T> {
    /// Subscription accounts.
    pub oauth: T,
    /// API keys.
    pub api_key: T,
    /// Local servers.
    pub local: T,
}

impl<T> PerProfile<T> {
    /// The value for `profile`.
    pub const fn get(&self, profile: Profile) -> &T {
        match profile {
            Profile::Oauth => &self.oauth,
            Profile::ApiKey => &self.api_key,
            Profile::Local => &self.local,
        }
    }
}

/// How connections of a profile cool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionCooldown {
    /// First step of the ladder, ms.
    pub base_cooldown_ms: u64,
    /// Whether an upstream's announced reset replaces the ladder.
    pub use_upstream_retry_hints: bool,
    /// Doublings of the ladder.
    pub max_backoff_steps: u32,
}

/// When a provider's breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderBreaker {
    /// Counted failures until it opens.
    pub failure_threshold: u32,
    /// Counted failures until it is called degraded.
    pub degradation_threshold: u32,
    /// How long it stays open at first, ms.
    pub reset_timeout_ms: u64,
    /// Cap of the escalated timeout, as a multiple of the first.
    pub max_backoff_multiplier: u32,
    /// Failed probes before the timeout doubles.
    pub backoff_escalation_count: u32,
}

/// Waiting inside a request for a cooled connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitForCooldown {
    /// Whether to wait at all.
    pub enabled: bool,
    /// Waits of one request.
    pub max_retries: u32,
    /// Longest single wait, ms.
    pub max_wait_ms: u64,
    /// All waits of one request together, ms.
    pub budget_ms: u64,
}
