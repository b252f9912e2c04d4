//! Behaviour with numbers, by profile where accounts differ.

mod extras;

use std::collections::{BTreeMap, BTreeSet};

use super::{DailyReset, Provider};
use crate::failure::{Profile, Reason, RuleScope};
use crate::health::RetryRules;
use crate::lease::LeaseRules;
use crate::restate::RestateRule;
use crate::rotation::RotationRules;

pub use extras::{EmergencyFallback, MAX_TOOLS, QuotaPreflight, UsageWall};

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
    /// Whether that goes for accounts with an API key, too, and not for subscriptions only.
    pub auto_disable_all_accounts: bool,
    /// Attempts of one request over all targets.
    pub max_attempts: u32,
    /// How session leases last, end and are handed over.
    pub leases: LeaseRules,
    /// How long a session stays pinned to its connection after its last request, ms; 0 is off.
    pub session_affinity_ttl_ms: u64,
    /// How requests wait for a slot where no combo says otherwise.
    pub queue: QueueRules,
    /// When expired connections are tried again.
    pub expired_retry: RetryRules,
    /// The gate in front of providers and connections that combos fail on.
    pub provider_cooldown: ProviderCooldown,
    /// Whose limits count by address, and how addresses are found out.
    pub egress: EgressRules,
    /// Where subscription accounts ask for their usage and for a reset of it.
    pub usage_wall: UsageWall,
    /// Tools that one request may bring where a provider has not said another number.
    pub max_tools: u32,
    /// A last resort when money is the reason that nobody can serve.
    pub emergency_fallback: EmergencyFallback,
    /// Leaving connections alone before their quota is spent.
    pub quota_preflight: QuotaPreflight,
    /// Whether what a live test meets rests what it is charged to as traffic's failures do.
    pub probe_can_disable: bool,
    /// The rotation gate, where a connection has no numbers of its own.
    pub rotation: RotationRules,
}

/// When combos pass over a provider, or a connection, that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderCooldown {
    /// Whether they do at all.
    pub enabled: bool,
    /// A connection's rest after its first failure, ms; it doubles with each in a row.
    pub min_ms: u64,
    /// A connection's longest rest, ms.
    pub max_ms: u64,
    /// When a provider rests, by profile.
    pub windows: PerProfile<ProviderWindow>,
}

/// When a provider rests as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderWindow {
    /// Failures in the window; at most 200.
    pub threshold: u32,
    /// How long a failure is counted, ms.
    pub window_ms: u64,
    /// How long it rests after the last of them, ms.
    pub cooldown_ms: u64,
}

/// Whose limits count by the address that connections leave by, and how that
/// is found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressRules {
    /// Answers with the address that asks it.
    pub echo_url: String,
    /// How long an answer counts, or that there was none, ms.
    pub cache_ms: u64,
    /// How long an answer may take, ms.
    pub timeout_ms: u64,
    /// How long the last known address counts, ms; at most a day.
    pub max_age_ms: u64,
    /// Whose limits, in lower case; `None` leaves it to the providers' own families.
    pub lock_providers: Option<BTreeSet<String>>,
}

/// The family of those that an operator lists.
const LISTED: &str = "listed";

impl EgressRules {
    /// The family in which limits of `provider` count by address, if they do.
    pub fn family<'a>(&self, provider: &'a Provider) -> Option<&'a str> {
        match &self.lock_providers {
            None => provider.egress_bucket_family.as_deref(),
            Some(listed) => {
                let name = provider.id.as_str().to_lowercase();
                listed.contains(&name).then_some(LISTED)
            }
        }
    }
}

impl Default for EgressRules {
    fn default() -> Self {
        Self {
            echo_url: "https://api64.ipify.org?format=json".to_owned(),
            cache_ms: 300_000,
            timeout_ms: 6_000,
            max_age_ms: 86_400_000,
            lock_providers: None,
        }
    }
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

/// What a combo says itself of how its requests wait for a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnWaits {
    /// In place of [`QueueRules::timeout_ms`].
    pub(super) timeout_ms: Option<u64>,
    /// In place of [`QueueRules::depth`].
    pub(super) depth: Option<u32>,
}

impl OwnWaits {
    /// Its rules where `before` holds otherwise.
    pub(super) fn over(self, before: QueueRules) -> QueueRules {
        QueueRules {
            enabled: before.enabled,
            timeout_ms: self.timeout_ms.unwrap_or(before.timeout_ms),
            depth: self.depth.unwrap_or(before.depth),
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
    /// Whether limits keep the breaker of `provider` open for a time of their
    /// own. Of servers whose kind is unknown nothing is known of their limits.
    pub fn trusts_limits(&self, provider: &Provider) -> bool {
        let said = self.connection_cooldown.get(provider.profile);
        let usual = provider.profile != Profile::Local
            && !super::nature::is_compatible(provider.id.as_str());
        said.use_upstream_429_breaker_hints.unwrap_or(usual)
    }

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
    /// Whether limits keep the provider's breaker open for a time of their own; `None` leaves it to the provider.
    pub use_upstream_429_breaker_hints: Option<bool>,
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
