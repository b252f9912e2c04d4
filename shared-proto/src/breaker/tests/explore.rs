//! Every history of up to six events over a small alphabet, with the invariants checked after each.

use super::*;

const RULES: BreakerRules = BreakerRules {
    failure_threshold: 3,
    degradation_threshold: 2,
    reset_timeout_ms: 10_000,
    max_backoff_multiplier: 4,
    backoff_escalation_count: 1,
    probe_timeout_ms: 10_000,
    kind_overrides: None,
};

/// What can happen next at `now`, with what the callers know: the last claim and the one before.
fn alphabet(now: Millis, claims: (u64, u64)) -> Vec<BreakerEvent> {
    let old = now.minus(11_000);
    vec![
        failed("a", now),
        failed("b", now),
        failed("c", old),
        succeeded(None, now),
        succeeded(None, old),
        probe_failed(claims.0, now),
        succeeded(Some(claims.0), now),
        succeeded(Some(claims.1), now),
        BreakerEvent::ClaimProbe,
        BreakerEvent::ReleaseProbe {
            generation: claims.0,
        },
        BreakerEvent::Reset,
    ]
}

fn check(before: &ProviderBreaker, event: &BreakerEvent, now: Millis, step: &BreakerStep) {
    let after = &step.state;
    assert_eq!(step.changed, after != before, "{event:?}");
    check_counts(after);
    let was = before.state(now);
    if was == BreakerState::Open {
        let is_reset = *event == BreakerEvent::Reset;
        assert!(is_reset || !step.changed, "open, yet moved by {event:?}");
    }
    if let BreakerOutcome::Claimed { generation, .. } = step.outcome {
        assert_eq!(was, BreakerState::HalfOpen);
        assert!(before.live_probe(now).is_none(), "two live probes");
        assert!(generation > before.last_generation);
    }
    assert!(after.last_generation >= before.last_generation);
    assert_eq!(after.admit(now) == Admission::Admit, {
        matches!(
            after.state(now),
            BreakerState::Closed | BreakerState::Degraded
        )
    });
    assert_eq!(after.retry_after_ms(now) > 0, after.deadline(now).is_some());
}

fn check_counts(state: &ProviderBreaker) {
    let count = state.failure_count;
    match state.written {
        BreakerState::Closed => assert!(count <= RULES.degradation_threshold),
        BreakerState::Degraded => {
            assert!((RULES.degradation_threshold..RULES.failure_threshold).contains(&count));
        }
        BreakerState::Open | BreakerState::HalfOpen => {
            assert!(count >= RULES.failure_threshold);
            assert!(state.open_until.is_some());
            assert!(state.recent.is_empty(), "nothing to tell apart");
        }
    }
    let is_half_open = state.written == BreakerState::HalfOpen;
    assert!(is_half_open || state.probe.is_none());
}

fn explore(state: &ProviderBreaker, now: Millis, claims: (u64, u64), depth: u32, seen: &mut u64) {
    *seen += 1;
    if depth == 0 {
        return;
    }
    for later in [1, 10_000] {
        let now = now.plus(later);
        for event in alphabet(now, claims) {
            let step = state.step(&event, now, &RULES);
            check(state, &event, now, &step);
            let mut claims = claims;
            if let BreakerOutcome::Claimed { generation, .. } = step.outcome {
                claims = (generation, claims.0);
            }
            // Without a change only the time moved on, and the next event's time says that too.
            if step.changed {
                explore(&step.state, now, claims, depth - 1, seen);
            }
        }
    }
}

#[test]
fn every_short_history_keeps_the_invariants() {
    let mut seen = 0;
    explore(&ProviderBreaker::default(), T0, (1, 0), 6, &mut seen);
    let open = (0..3).fold(ProviderBreaker::default(), |state, n| {
        state.step(&failed(&format!("o{n}"), T0), T0, &RULES).state
    });
    explore(&open, T0, (1, 0), 6, &mut seen);
    assert!(seen > 10_000, "{seen} histories");
}
