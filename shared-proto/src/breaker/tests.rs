//! Tables of the reference, the probe, and every short history.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "small numbers chosen by the tests"
)]

mod explore;
mod probe;
mod vectors;

use super::*;
use crate::failure::Reason;

pub(super) const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);

pub(super) const API_KEY: BreakerRules = BreakerRules {
    failure_threshold: 12,
    degradation_threshold: 7,
    reset_timeout_ms: 30_000,
    max_backoff_multiplier: 4,
    backoff_escalation_count: 3,
    probe_timeout_ms: 30_000,
    kind_overrides: None,
};

pub(super) const OAUTH: BreakerRules = BreakerRules {
    failure_threshold: 8,
    degradation_threshold: 5,
    reset_timeout_ms: 60_000,
    max_backoff_multiplier: 8,
    backoff_escalation_count: 2,
    probe_timeout_ms: 60_000,
    kind_overrides: None,
};

pub(super) const LOCAL: BreakerRules = BreakerRules {
    failure_threshold: 2,
    degradation_threshold: 2,
    reset_timeout_ms: 15_000,
    max_backoff_multiplier: 16,
    backoff_escalation_count: 3,
    probe_timeout_ms: 15_000,
    kind_overrides: None,
};

pub(super) fn failed(connection: &str, started_at: Millis) -> BreakerEvent {
    BreakerEvent::Failed {
        started_at,
        connection: connection.into(),
        kind: FailureKind::Transient,
        probe_generation: None,
    }
}

pub(super) fn probe_failed(generation: u64, started_at: Millis) -> BreakerEvent {
    BreakerEvent::Failed {
        started_at,
        connection: "c0".into(),
        kind: FailureKind::Transient,
        probe_generation: Some(generation),
    }
}

pub(super) fn succeeded(probe_generation: Option<u64>, started_at: Millis) -> BreakerEvent {
    BreakerEvent::Succeeded {
        started_at,
        probe_generation,
    }
}

/// `count` failures at `now`, each over another connection.
pub(super) fn failures(count: u32, now: Millis, rules: &BreakerRules) -> ProviderBreaker {
    (0..count).fold(ProviderBreaker::default(), |state, n| {
        let step = state.step(&failed(&format!("c{n}"), now), now, rules);
        assert!(step.changed);
        step.state
    })
}

/// A breaker opened by its last failure at `now`.
pub(super) fn opened(now: Millis, rules: &BreakerRules) -> ProviderBreaker {
    let state = failures(rules.failure_threshold, now, rules);
    assert_eq!(state.state(now), BreakerState::Open);
    state
}

/// Claims the slot, which has to be free.
pub(super) fn claim(
    state: &ProviderBreaker,
    now: Millis,
    rules: &BreakerRules,
) -> (ProviderBreaker, u64) {
    let step = state.step(&BreakerEvent::ClaimProbe, now, rules);
    let BreakerOutcome::Claimed { generation, .. } = step.outcome else {
        panic!("not claimed: {:?}", step.outcome);
    };
    (step.state, generation)
}
