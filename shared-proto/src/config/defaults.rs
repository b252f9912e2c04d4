//! The built-in numbers.

use std::collections::BTreeMap;

use crate::failure::Profile;
use crate::health::RetryRules;
use crate::lease::LeaseRules;
use crate::restate;
use crate::rotation::RotationRules;

use super::{
    ConnectionCooldown, DailyReset, EgressRules, EmergencyFallback, HintBounds, MAX_TOOLS,
    ModelLockout, PerProfile, ProviderBreaker, ProviderCooldown, ProviderWindow, QueueRules,
    QuotaPreflight, Settings, Timeouts, UsageWall, WaitForCooldown,
};

/// One day, ms.
const DAY_MS: u64 = 86_400_000;

impl Default for Settings {
    fn default() -> Self {
        let model_lockout = ModelLockout::default();
        Self {
            connection_cooldown: PerProfile {
                oauth: cooldown(5000, 8),
                api_key: cooldown(3000, 5),
                local: cooldown(2000, 3),
            },
            provider_breaker: PerProfile {
                oauth: ProviderBreaker {
                    failure_threshold: 8,
                    degradation_threshold: 5,
                    reset_timeout_ms: 60_000,
                    max_backoff_multiplier: 8,
                    backoff_escalation_count: 2,
                },
                api_key: ProviderBreaker {
                    failure_threshold: 12,
                    degradation_threshold: 7,
                    reset_timeout_ms: 30_000,
                    max_backoff_multiplier: 4,
                    backoff_escalation_count: 3,
                },
                local: ProviderBreaker {
                    failure_threshold: 2,
                    degradation_threshold: derived_degradation(2),
                    reset_timeout_ms: 15_000,
                    max_backoff_multiplier: 16,
                    backoff_escalation_count: 3,
                },
            },
            wait_for_cooldown: WaitForCooldown {
                enabled: true,
                max_retries: 5,
                max_wait_ms: 90_000,
                budget_ms: 300_000,
            },
            hint_bounds: HintBounds {
                quota_ms: DAY_MS.saturating_mul(30),
                rate_limit_ms: DAY_MS.saturating_mul(8),
            },
            max_cooldown_ms: model_lockout.max_cooldown_ms,
            model_lockout,
            custom_banned_signals: Vec::new(),
            provider_error_rules: BTreeMap::new(),
            restate_rules: restate::built_in(),
            auto_disable_banned_accounts: false,
            auto_disable_all_accounts: true,
            max_attempts: 30,
            leases: LeaseRules::default(),
            session_affinity_ttl_ms: 0,
            queue: QueueRules::default(),
            expired_retry: RetryRules::default(),
            provider_cooldown: ProviderCooldown::default(),
            egress: EgressRules::default(),
            usage_wall: UsageWall::default(),
            max_tools: MAX_TOOLS,
            emergency_fallback: EmergencyFallback::default(),
            quota_preflight: QuotaPreflight::default(),
            probe_can_disable: false,
            rotation: RotationRules::DEFAULT,
        }
    }
}

impl Default for ModelLockout {
    fn default() -> Self {
        Self {
            enabled: false,
            error_codes: vec![403, 404, 429, 502, 503, 504],
            base_cooldown_ms: 120_000,
            max_cooldown_ms: 1_800_000,
            max_backoff_steps: 10,
            use_exponential_backoff: true,
            daily_reset: DailyReset::default(),
        }
    }
}

impl Default for ProviderCooldown {
    fn default() -> Self {
        let window = |threshold, window_ms, cooldown_ms| ProviderWindow {
            threshold,
            window_ms,
            cooldown_ms,
        };
        Self {
            enabled: false,
            min_ms: 5000,
            max_ms: 300_000,
            windows: PerProfile {
                oauth: window(10, 900_000, 300_000),
                api_key: window(15, 1_800_000, 600_000),
                local: window(2, 300_000, 60_000),
            },
        }
    }
}

impl Timeouts {
    /// The timers of a profile's providers. A local server may spend minutes
    /// on a long prompt before it says anything.
    pub const fn of(profile: Profile) -> Self {
        match profile {
            Profile::Oauth | Profile::ApiKey => Self {
                connect_ms: 10_000,
                response_headers_ms: 120_000,
                first_content_ms: 300_000,
                byte_idle_ms: 120_000,
                progress_idle_ms: 300_000,
                total_ms: 600_000,
            },
            Profile::Local => Self {
                connect_ms: 5000,
                response_headers_ms: 600_000,
                first_content_ms: 600_000,
                byte_idle_ms: 600_000,
                progress_idle_ms: 600_000,
                total_ms: 1_800_000,
            },
        }
    }
}

const fn cooldown(base_cooldown_ms: u64, max_backoff_steps: u32) -> ConnectionCooldown {
    ConnectionCooldown {
        base_cooldown_ms,
        use_upstream_retry_hints: true,
        use_upstream_429_breaker_hints: None,
        max_backoff_steps,
    }
}

/// Three fifths of the threshold, rounded up: what counts as degraded where
/// nothing says.
pub(super) const fn derived_degradation(failure_threshold: u32) -> u32 {
    failure_threshold.saturating_mul(3).div_ceil(5)
}
