//! Tables of the reference, the rules about news, and every short history.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "small numbers chosen by the tests"
)]

mod explore;
mod keys;
mod news;
mod retry;
mod vectors;
mod withheld;

use super::*;
use crate::failure::{ErrorType, Reason};
use crate::rotation::RotationRules;

/// 2026-10-01T12:00:00Z.
pub(super) const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);

pub(super) const API_KEY: HealthRules = HealthRules {
    base_ms: 3_000,
    max_steps: 5,
    cap_ms: 1_800_000,
    use_hints: true,
    disable_cooling: false,
    auto_disable_banned: false,
    credential: None,
    rotation: RotationRules::DEFAULT,
};

pub(super) const OAUTH: HealthRules = HealthRules {
    base_ms: 5_000,
    max_steps: 8,
    ..API_KEY
};

pub(super) fn failure(status: u16) -> Failure {
    Failure {
        status,
        reason: match status {
            429 => Reason::RateLimitExceeded,
            401..=403 => Reason::AuthError,
            _ => Reason::ServerError,
        },
        blame: Blame::Connection,
        error_type: Some(match status {
            401 => ErrorType::Unauthorized,
            402 => ErrorType::QuotaExhausted,
            403 => ErrorType::Forbidden,
            429 => ErrorType::RateLimited,
            _ => ErrorType::ServerError,
        }),
        fallback: true,
        terminal: match status {
            401 => Some(Terminal::Expired),
            402 => Some(Terminal::CreditsExhausted),
            403 => Some(Terminal::Banned),
            _ => None,
        },
        cooldown: Cooldown::Ladder,
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker: matches!(status, 408 | 500 | 502 | 503 | 504),
        rule: format!("status_{status}"),
        restated: None,
        upstream_code: Some("some_code".into()),
        message: "some words".into(),
    }
}

pub(super) fn hinted(wait_ms: u64) -> Failure {
    Failure {
        hint: Some(ResetHint {
            wait_ms,
            source: HintSource::Header,
            field: "retry-after".into(),
        }),
        ..failure(429)
    }
}

pub(super) fn failed(started_at: Millis, failure: Failure) -> HealthEvent {
    HealthEvent::Failed {
        started_at,
        failure,
    }
}

/// One attempt of 10 ms that fails at `now`.
pub(super) fn fail_at(state: &ConnectionHealth, now: Millis, failure: Failure) -> Step {
    state.step(&failed(now.minus(10), failure), now, &API_KEY)
}

/// A connection whose cooldown of level `level` has just ended at `now`.
pub(super) fn rested_at_level(level: u32, now: Millis) -> ConnectionHealth {
    ConnectionHealth {
        cooldown_until: Some(now.minus(10)),
        backoff_level: level,
        last_cooldown_ms: 3_000,
        ..ConnectionHealth::default()
    }
}
