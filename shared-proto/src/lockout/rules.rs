//! The numbers of a connection's locks, and which failures are a model's.

use crate::clock::Millis;
use crate::config::{DailyReset, ModelFamily, ModelLockout, Provider, Settings};
use crate::failure::{Blame, Cooldown, ErrorType, Failure, Reason};
use crate::quota::preflight::Policy;
use crate::rotation::RotationRules;

/// First step of the ladder where nothing else says, ms: after a limit, and else.
const BASE_LIMIT_MS: u64 = 1_000;
const BASE_MS: u64 = 5_000;

/// Numbers for one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockoutRules {
    /// Models that share a quota.
    pub families: Vec<ModelFamily>,
    /// First step of the ladder, ms; 0 leaves it to the failure.
    pub base_ms: u64,
    /// Longest lock that was not announced by the upstream itself, ms.
    pub cap_ms: u64,
    /// Doublings of the ladder.
    pub max_steps: u32,
    /// How long after the end of a lock another failure counts as the next, ms.
    pub window_ms: u64,
    /// When a day's quota begins anew.
    pub daily_reset: DailyReset,
    /// Whether announcements are heeded.
    pub use_hints: bool,
    /// The longest time to the reset of a quota that is believed, ms.
    pub quota_bound_ms: u64,
    /// When models are left alone before their quota is spent.
    pub preflight: Policy,
    /// Rest of a rate limit that says nothing of its end, in place of the ladder, ms; 0 is the ladder.
    pub reset_ms: u64,
}

impl LockoutRules {
    /// The rules of `provider`'s connections.
    pub fn new(settings: &Settings, provider: &Provider) -> Self {
        let profile = provider.profile;
        let lockout = &settings.model_lockout;
        let ladder = settings.connection_cooldown.get(profile);
        Self {
            families: provider.model_families.clone(),
            base_ms: if lockout.enabled {
                lockout.base_cooldown_ms
            } else {
                ladder.base_cooldown_ms
            },
            cap_ms: lockout.max_cooldown_ms,
            max_steps: if lockout.enabled && !lockout.use_exponential_backoff {
                0
            } else {
                lockout.max_backoff_steps
            },
            daily_reset: settings.daily_reset(provider).clone(),
            window_ms: settings.provider_breaker.get(profile).reset_timeout_ms,
            use_hints: ladder.use_upstream_retry_hints,
            quota_bound_ms: settings.hint_bounds.quota_ms,
            preflight: Policy::of(settings, provider),
            reset_ms: settings.rotation.reset_ms,
        }
    }

    /// The same for a connection with numbers of its own of the rotation gate.
    #[must_use]
    pub fn resetting(mut self, rotation: &RotationRules) -> Self {
        self.reset_ms = rotation.reset_ms;
        self
    }

    /// The wait of `failure` that was announced and is heeded, ms. Beside a
    /// time that a rule fixes none is: it was weighed when the rule was read.
    pub(super) fn announced(&self, failure: &Failure) -> Option<u64> {
        let fixed = matches!(failure.cooldown, Cooldown::Fixed(_));
        let hint = failure.heeded_hint(self.use_hints).filter(|_| !fixed);
        hint.map(|hint| hint.wait_ms)
    }

    /// How long the `failures`-th failure in a row locks from `now`, ms.
    pub(super) fn cooldown_ms(&self, failure: &Failure, failures: u32, now: Millis) -> u64 {
        if let Some(wait_ms) = self.announced(failure) {
            return wait_ms;
        }
        // What ends at a known time ends then; other rules know no more than the operator.
        let known = matches!(failure.reason, Reason::QuotaExhausted | Reason::NotFound);
        match failure.cooldown {
            Cooldown::None | Cooldown::Streak => 0,
            Cooldown::Fixed(ms) if known => ms,
            Cooldown::Fixed(ms) => ms.min(self.cap_ms),
            Cooldown::Ladder if failure.reason == Reason::QuotaExhausted => {
                self.daily_reset.wait_ms(now).min(self.cap_ms)
            }
            Cooldown::Ladder if self.reset_ms > 0 && is_rate_limit(failure) => self.reset_ms,
            Cooldown::Ladder => self.step(failure.status, failures),
        }
    }

    fn step(&self, status: u16, failures: u32) -> u64 {
        let base = match self.base_ms {
            0 if status == 429 => BASE_LIMIT_MS,
            0 => BASE_MS,
            base => base,
        };
        let doublings = failures.saturating_sub(1).min(self.max_steps);
        base.saturating_mul(2_u64.saturating_pow(doublings))
            .min(self.cap_ms)
    }
}

fn is_rate_limit(failure: &Failure) -> bool {
    failure.reason == Reason::RateLimitExceeded
}

/// Charges the model instead of the connection, where that is what may rest.
///
/// With locks of models switched on, a passing failure with one of their
/// statuses rests the model alone; what is about the account stays there. On a
/// connection that never cools (`never_cools`: it has quotas by model), a limit
/// that would have rested it locks the model.
pub fn charged(mut failure: Failure, settings: &ModelLockout, never_cools: bool) -> Failure {
    let passing = failure.blame == Blame::Connection
        && failure.terminal.is_none()
        && failure.cooldown != Cooldown::None
        && failure.error_type != Some(ErrorType::RequestRejected);
    let asked_for = settings.enabled
        && failure.reason != Reason::QuotaExhausted
        && settings.error_codes.contains(&failure.status);
    let limit = matches!(failure.status, 404 | 429 | 502..=599);
    if passing && (asked_for || never_cools && limit) {
        failure.blame = Blame::Model;
    }
    failure
}
