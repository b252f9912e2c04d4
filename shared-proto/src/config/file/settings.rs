//! `settings:` of the file.

#![expect(
    dead_code,
    reason = "the shape of every section is checked; those marked `x-notYet` are not read further"
)]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::extras::{EmergencyFallback, UsageWall};
use super::gates::{ExpiredRetry, ProviderCooldown};
use super::quota::QuotaPreflight;
use super::rules::{ErrorRule, ModelLockout, RestatementRule};

/// Behaviour with numbers.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Cooldowns, breakers, waits and queues.
    pub(crate) resilience: Option<Resilience>,
    /// Locks of one model on one connection. `maxCooldownMs` also caps the cooldown of connections.
    pub(crate) model_lockout: Option<ModelLockout>,
    /// Texts that mean a ban wherever they stand in an upstream's answer, besides the built-in ones.
    pub(crate) custom_banned_signals: Option<Vec<Signal>>,
    /// Whether a ban also switches the connection off. Default false.
    pub(crate) auto_disable_banned_accounts: Option<bool>,
    /// Attempts of one request over all targets. Default 30.
    #[schemars(range(min = 1, max = 100))]
    pub(crate) max_attempts: Option<u64>,
    /// Which accounts a ban may switch off. Default all.
    pub(crate) auto_disable_banned_scope: Option<BannedScope>,
    /// Whether what probe traffic meets counts as what requests meet: then its limits rest the
    /// connection or lock the model by the ladder, and an automatic retry may end a connection's use.
    /// `PROBE_CAN_DISABLE`, else false.
    pub(crate) probe_can_disable: Option<bool>,
    /// How long a conversation stays on its connection, ms; 0 is off. Default 0.
    #[schemars(range(min = 0, max = 2_592_000_000_u64))]
    pub(crate) session_affinity_ttl_ms: Option<u64>,
    /// Former name of `sessionAffinityTtlMs`; counts where that one is absent.
    #[schemars(range(min = 0, max = 2_592_000_000_u64))]
    pub(crate) codex_session_affinity_ttl_ms: Option<u64>,
    /// Successes before round-robin moves on.
    #[schemars(range(min = 0, max = 1000), extend("x-notYet" = true))]
    pub(crate) sticky_round_robin_limit: Option<u64>,
    /// The same inside combos.
    #[schemars(range(min = 0, max = 1000), extend("x-notYet" = true))]
    pub(crate) combo_sticky_round_robin_limit: Option<u64>,
    /// How an account is chosen inside a provider. Default fill-first.
    #[schemars(extend("x-notYet" = ["fill-first"]))]
    pub(crate) fallback_strategy: Option<String>,
    /// Defaults for every combo's `config`. Plain models take the queue for a slot from here.
    pub(crate) combo_defaults: Option<super::ComboConfig>,
    /// Exclusive session leases.
    pub(crate) leases: Option<Leases>,
    /// Limits that count by the address a connection leaves by.
    pub(crate) egress: Option<super::Egress>,
    /// What a provider's refusals mean, by provider: at most 50 rules together. The first one that fits
    /// goes before every built-in reading but a ban.
    pub(crate) provider_error_rules: Option<BTreeMap<String, Vec<ErrorRule>>>,
    /// Statuses that a provider sends and that mean another one: at most 50 rules, before the built-in
    /// ones.
    pub(crate) status_restatement_rules: Option<Vec<RestatementRule>>,
    /// Retries of connections whose credential was refused.
    pub(crate) expired_retry: Option<ExpiredRetry>,
    /// What subscription accounts do at the wall of their five-hour limit.
    pub(crate) usage_wall: Option<UsageWall>,
    /// Tools that one request may bring where a provider has not said another number. Default 128.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) max_tools: Option<u64>,
    /// A last resort when money is the reason that nobody can serve.
    pub(crate) emergency_fallback: Option<EmergencyFallback>,
}

/// Cooldowns, breakers, waits and queues.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Resilience {
    /// How connections cool, by profile.
    pub(crate) connection_cooldown: Option<Profiles<ConnectionCooldown>>,
    /// When a provider's breaker opens, by profile.
    pub(crate) provider_breaker: Option<Profiles<ProviderBreaker>>,
    /// Waiting inside a request until a plain model's connection comes back.
    pub(crate) wait_for_cooldown: Option<WaitForCooldown>,
    /// Bounds of what upstreams announce.
    pub(crate) hint_bounds: Option<HintBounds>,
    /// Waiting in front of a connection.
    #[schemars(extend("x-notYet" = true))]
    pub(crate) request_queue: Option<RequestQueue>,
    /// Waiting inside a request until a combo's target comes back.
    #[schemars(extend("x-notYet" = true))]
    pub(crate) combo_cooldown_wait: Option<Budgets>,
    /// Whether requests wait for a slot of a full connection. Default on; off, they go without one.
    pub(crate) quota_share_concurrency_limit: Option<Switch>,
    /// The gate in front of providers and connections that combos fail on.
    pub(crate) provider_cooldown: Option<ProviderCooldown>,
    /// Leaving connections alone before their quota is spent.
    pub(crate) quota_preflight: Option<QuotaPreflight>,
    /// Recovery of slow and broken streams.
    #[schemars(extend("x-notYet" = true))]
    pub(crate) stream_recovery: Option<StreamRecovery>,
    /// Quotas by provider.
    #[schemars(extend("x-notYet" = true))]
    pub(crate) provider_quota_overrides: Option<BTreeMap<String, Quota>>,
}

/// A value for each profile. `apikey` and `apiKey` are the same; give one of them.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profiles<T> {
    /// Subscription accounts.
    pub(crate) oauth: Option<T>,
    /// API keys.
    pub(crate) apikey: Option<T>,
    /// API keys, in the other spelling.
    #[serde(rename = "apiKey")]
    pub(crate) api_key: Option<T>,
    /// Servers on the operator's own machines.
    pub(crate) local: Option<T>,
}

/// How connections of a profile cool.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ConnectionCooldown {
    /// First step of the ladder, ms. Default 5000 (oauth), 3000 (apikey), 2000 (local).
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) base_cooldown_ms: Option<u64>,
    /// Whether an upstream's announced reset replaces the ladder. Default true.
    pub(crate) use_upstream_retry_hints: Option<bool>,
    /// Whether the provider's breaker stays open longer after limits: 1 minute after a rate limit, 1 hour
    /// after a used-up quota. Unset: yes, but not for local and compatible servers, whose limits are unknown.
    #[serde(rename = "useUpstream429BreakerHints")]
    pub(crate) use_upstream_429_breaker_hints: Option<bool>,
    /// Doublings of the ladder. Default 8 (oauth), 5 (apikey), 3 (local).
    #[schemars(range(min = 0, max = 32))]
    pub(crate) max_backoff_steps: Option<u64>,
}

/// When a provider's breaker opens, and for how long.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ProviderBreaker {
    /// Counted failures until it opens. Default 8 (oauth), 12 (apikey), 2 (local).
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) failure_threshold: Option<u64>,
    /// Counted failures until it is called degraded; below `failureThreshold`. Default 5 (oauth),
    /// 7 (apikey), three fifths of the threshold (local).
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) degradation_threshold: Option<u64>,
    /// How long it stays open at first, ms. Default 60000 (oauth), 30000 (apikey), 15000 (local).
    #[schemars(range(min = 1000, max = 86_400_000))]
    pub(crate) reset_timeout_ms: Option<u64>,
    /// Cap of the escalated time, as a multiple of the first. Default 8 (oauth), 4 (apikey), 16 (local).
    #[schemars(range(min = 1, max = 1000))]
    pub(crate) max_backoff_multiplier: Option<u64>,
    /// Failed probes before the time doubles. Default 2 (oauth), 3 (apikey), 3 (local).
    #[schemars(range(min = 0, max = 1000))]
    pub(crate) backoff_escalation_count: Option<u64>,
}

/// Waiting inside a request for a cooled connection.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct WaitForCooldown {
    /// Whether to wait at all. Default true; false where the numbers below leave no wait.
    pub(crate) enabled: Option<bool>,
    /// Waits of one request. Default 5.
    #[schemars(range(min = 0, max = 10))]
    pub(crate) max_retries: Option<u64>,
    /// Longest single wait, seconds. Default 90.
    #[schemars(range(min = 0, max = 300))]
    pub(crate) max_retry_wait_sec: Option<u64>,
    /// All waits of one request together, ms; at least one wait. Default 300000.
    #[schemars(range(min = 0, max = 300_000))]
    pub(crate) budget_ms: Option<u64>,
}

/// Bounds of what upstreams announce, ms.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct HintBounds {
    /// For used-up quotas. Default 2592000000 (30 days).
    #[schemars(range(min = 1000, max = 31_536_000_000_u64))]
    pub(crate) quota_ms: Option<u64>,
    /// For every other reason. Default 691200000 (8 days).
    #[schemars(range(min = 1000, max = 31_536_000_000_u64))]
    pub(crate) rate_limit_ms: Option<u64>,
}

/// Exclusive session leases.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Leases {
    /// How long a lease lasts without a renewal, ms. Default 120000.
    #[schemars(range(min = 1000, max = 1_800_000))]
    pub(crate) ttl_ms: Option<u64>,
    /// How long a new owner waits for the old one's requests, ms; and how long requests under a lease go on
    /// while the store can't confirm it, at least 1000. Default 2000.
    #[schemars(range(min = 0, max = 60_000))]
    pub(crate) handover_grace_ms: Option<u64>,
    /// Replicas that must have a lease before it is granted or renewed. Default 0.
    #[schemars(range(min = 0, max = 10))]
    pub(crate) min_replicas: Option<u64>,
}

/// A text of at most 200 characters.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Signal(#[schemars(length(min = 1, max = 200))] pub(crate) String);

/// Which accounts.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum BannedScope {
    /// Every account.
    All,
    /// Subscription accounts only.
    Subscription,
}

macro_rules! not_yet {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$field_doc])* pub(crate) $field: Option<$kind>,)*
        }
    )*};
}

not_yet! {
    /// A section with nothing but a switch.
    Switch {
        /// On or off.
        enabled: bool,
    }

    /// Waits with a budget.
    Budgets {
        /// Whether to wait at all. Default true; false where the numbers below leave no wait.
        enabled: bool,
        /// Longest single wait, ms. Default 90000.
        #[schemars(range(min = 0, max = 300_000))]
        max_wait_ms: u64,
        /// Waits of one request. Default 5.
        #[schemars(range(min = 0, max = 10))]
        max_attempts: u64,
        /// All waits of one request together, ms. Default 300000.
        #[schemars(range(min = 0, max = 300_000))]
        budget_ms: u64,
    }

    /// Waiting in front of a connection.
    RequestQueue {
        /// Whether connections with API keys are queued without asking. Default false.
        auto_enable_api_key_providers: bool,
        /// Requests a minute. Default: no limit.
        #[schemars(range(min = 1, max = 1_000_000))]
        requests_per_minute: u64,
        /// Shortest time between two requests, ms. Default: none.
        #[schemars(range(min = 0, max = 3_600_000))]
        min_time_between_requests_ms: u64,
        /// Requests at a time. Default: no limit.
        #[schemars(range(min = 1, max = 10_000))]
        concurrent_requests: u64,
        /// Requests at a time of the whole process; 0 is no limit. Default 0.
        #[schemars(range(min = 0, max = 100_000))]
        global_concurrent_requests: u64,
        /// Longest wait in the queue, ms. Default 30000.
        #[schemars(range(min = 1, max = 86_400_000))]
        max_wait_ms: u64,
        /// Longest execution, ms. Default 600000.
        #[schemars(range(min = 1, max = 86_400_000))]
        execution_max_wait_ms: u64,
        /// Longest queue; 0 is no limit. Default 0.
        #[schemars(range(min = 0, max = 100_000))]
        max_queue_depth: u64,
    }

    /// Recovery of slow and broken streams.
    StreamRecovery {
        /// Default false.
        enabled: bool,
        /// Whether a stream is continued after its first output. Default false.
        continue_mid_stream: bool,
        /// Ends streams that crawl.
        throughput_watchdog: ThroughputWatchdog,
    }

    /// Ends streams that crawl.
    ThroughputWatchdog {
        /// Default false.
        enabled: bool,
        /// Grace at the start, ms. Default 30000.
        #[schemars(range(min = 0, max = 600_000))]
        warmup_ms: u64,
        /// Window of the measure, ms. Default 30000.
        #[schemars(range(min = 1000, max = 600_000))]
        window_ms: u64,
        /// Slowest rate. Default 4.
        #[schemars(range(min = 1, max = 1_000_000))]
        min_useful_bytes_per_second: u64,
        /// Least output in a window. Default 1.
        #[schemars(range(min = 1, max = 1_000_000))]
        min_useful_bytes: u64,
    }

    /// A provider's quota.
    Quota {
        /// Requests a minute.
        #[schemars(range(min = 1, max = 1_000_000))]
        rpm: u64,
        /// Requests at a time.
        #[schemars(range(min = 1, max = 10_000))]
        concurrency: u64,
    }
}
