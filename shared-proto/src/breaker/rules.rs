//! The numbers a provider's breaker works with, and which failures reach it.

use crate::breaker::FailureKind;
use crate::config::Settings;
use crate::failure::{Failure, Profile};

/// Numbers for one provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRules {
    /// Counted failures until it opens.
    pub failure_threshold: u32,
    /// Counted failures until it is called degraded. Not below
    /// `failure_threshold` means that it never is.
    pub degradation_threshold: u32,
    /// How long it stays open at first, ms.
    pub reset_timeout_ms: u64,
    /// Cap of the escalated time, as a multiple of the first.
    pub max_backoff_multiplier: u32,
    /// Failed tries before the time doubles.
    pub backoff_escalation_count: u32,
    /// How long a claimed try keeps others out, ms.
    pub probe_timeout_ms: u64,
    /// Other first times for some kinds of failure.
    pub kind_overrides: Option<KindOverrides>,
}

/// First open times that replace the reset timeout, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindOverrides {
    /// After a rate limit.
    pub rate_limit_ms: u64,
    /// After a used-up quota.
    pub quota_exhausted_ms: u64,
}

/// A minute after a rate limit, an hour after a used-up quota.
const AFTER_LIMITS: KindOverrides = KindOverrides {
    rate_limit_ms: 60_000,
    quota_exhausted_ms: 3_600_000,
};

impl BreakerRules {
    /// The rules of a provider with `profile`. Kinds override nothing; a try
    /// keeps others out for one reset timeout.
    pub fn new(settings: &Settings, profile: Profile) -> Self {
        let breaker = settings.provider_breaker.get(profile);
        Self {
            failure_threshold: breaker.failure_threshold,
            degradation_threshold: breaker.degradation_threshold,
            reset_timeout_ms: breaker.reset_timeout_ms,
            max_backoff_multiplier: breaker.max_backoff_multiplier,
            backoff_escalation_count: breaker.backoff_escalation_count,
            probe_timeout_ms: breaker.reset_timeout_ms,
            kind_overrides: None,
        }
    }

    /// The same where limits keep it open for a time of their own, if they do.
    #[must_use]
    pub const fn trusting_limits(mut self, trusts: bool) -> Self {
        self.kind_overrides = if trusts { Some(AFTER_LIMITS) } else { None };
        self
    }

    /// How long it stays open after `cycles` failed tries, ms, when the last failure was of `kind`.
    pub fn open_ms(&self, cycles: u32, kind: Option<FailureKind>) -> u64 {
        let first = self.first_open_ms(kind);
        let doublings = cycles.saturating_sub(self.backoff_escalation_count);
        let factor = 2_u64.saturating_pow(doublings);
        let cap = u64::from(self.max_backoff_multiplier.max(1));
        first.saturating_mul(factor.min(cap))
    }

    fn first_open_ms(&self, kind: Option<FailureKind>) -> u64 {
        let overridden = self.kind_overrides.and_then(|times| match kind? {
            FailureKind::RateLimit => Some(times.rate_limit_ms),
            FailureKind::QuotaExhausted => Some(times.quota_exhausted_ms),
            FailureKind::Transient => None,
        });
        overridden.unwrap_or(self.reset_timeout_ms)
    }
}

/// Whether a status speaks of the provider rather than of a request, an account
/// or a limit.
pub const fn counted_status(status: u16) -> bool {
    matches!(status, 408 | 500 | 502 | 503 | 504)
}

/// Whether the breaker hears of `failure`. When the next target is at the same
/// provider the request itself will tell, unless the proxy in between was out
/// of reach.
pub fn counts(failure: &Failure, next_is_same_provider: bool) -> bool {
    let proxy_unreachable = failure.upstream_code.as_deref() == Some("proxy_unreachable");
    failure.counts_for_breaker && (!next_is_same_provider || proxy_unreachable)
}
