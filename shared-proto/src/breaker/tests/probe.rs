//! The one try, and what is too old to matter.

use super::*;

const HALF_OPEN: Millis = T0.plus(30_000);

#[test]
fn a_successful_try_closes_and_zeroes() {
    let (state, generation) = claim(&opened(T0, &API_KEY), HALF_OPEN, &API_KEY);
    let now = HALF_OPEN.plus(500);
    let step = state.step(&succeeded(Some(generation), HALF_OPEN), now, &API_KEY);
    assert_eq!(step.outcome, BreakerOutcome::Closed);
    let closed = step.state;
    assert_eq!(closed.state(now), BreakerState::Closed);
    assert_eq!((closed.failure_count, closed.open_cycle_count), (0, 0));
    assert_eq!(closed.kind_failure_counts, KindCounts::default());
    assert_eq!(closed.last_failure_at, Some(T0), "kept");
    assert_eq!(closed.last_failure_kind, None);
    let reasons: Vec<_> = closed.history.iter().map(|t| (t.to, t.reason)).collect();
    let wants = [
        (BreakerState::Degraded, TransitionReason::Threshold),
        (BreakerState::Open, TransitionReason::Threshold),
        (BreakerState::HalfOpen, TransitionReason::Elapsed),
        (BreakerState::Closed, TransitionReason::ProbeSucceeded),
    ];
    assert_eq!(reasons, wants);
    assert_eq!(closed.history[2].at, HALF_OPEN);
}

#[test]
fn a_success_met_while_open_is_ignored() {
    let state = opened(T0, &API_KEY);
    let step = state.step(&succeeded(None, T0.minus(9)), T0.plus(5), &API_KEY);
    assert_eq!(
        (step.changed, step.outcome),
        (false, BreakerOutcome::IgnoredOpen)
    );
}

#[test]
fn brk_18_a_lost_try_is_given_again_and_its_late_result_ignored() {
    let (state, first) = claim(&opened(T0.minus(30_000), &API_KEY), T0, &API_KEY);
    assert!(matches!(
        state.admit(T0.plus(29_999)),
        Admission::Reject { retry_after_ms: 1 }
    ));
    assert_eq!(state.deadline(T0), Some(T0.plus(30_000)));
    let again_at = T0.plus(30_000);
    assert_eq!(state.admit(again_at), Admission::Probe);
    let (state, second) = claim(&state, again_at, &API_KEY);
    assert!(second > first);
    let now = T0.plus(40_000);
    for late in [succeeded(Some(first), T0), probe_failed(first, T0)] {
        let step = state.step(&late, now, &API_KEY);
        assert_eq!(step.outcome, BreakerOutcome::IgnoredGeneration);
        assert!(!step.changed);
    }
    let step = state.step(&succeeded(Some(second), again_at), now, &API_KEY);
    assert_eq!(step.outcome, BreakerOutcome::Closed);
}

#[test]
fn a_slow_try_nobody_replaced_still_decides() {
    let (state, generation) = claim(&opened(T0, &API_KEY), HALF_OPEN, &API_KEY);
    let late = HALF_OPEN.plus(300_000);
    let step = state.step(&succeeded(Some(generation), HALF_OPEN), late, &API_KEY);
    assert_eq!(step.outcome, BreakerOutcome::Closed);
}

#[test]
fn a_try_without_a_verdict_gives_the_slot_back() {
    let (state, first) = claim(&opened(T0, &API_KEY), HALF_OPEN, &API_KEY);
    let release = BreakerEvent::ReleaseProbe { generation: first };
    let step = state.step(&release, HALF_OPEN.plus(5), &API_KEY);
    assert_eq!(
        (step.changed, step.outcome),
        (true, BreakerOutcome::Released)
    );
    let (state, second) = claim(&step.state, HALF_OPEN.plus(5), &API_KEY);
    assert!(second > first);
    let step = state.step(&release, HALF_OPEN.plus(6), &API_KEY);
    assert_eq!(step.outcome, BreakerOutcome::IgnoredGeneration);
    assert!(!step.changed, "the first no longer holds it");
}

#[test]
fn generations_stay_ahead_of_the_clock_and_of_each_other() {
    let mut state = opened(T0, &API_KEY);
    state.last_generation = u64::MAX - 5;
    let (_, generation) = claim(&state, HALF_OPEN, &API_KEY);
    assert_eq!(generation, u64::MAX - 4);
    let (_, generation) = claim(&opened(T0, &API_KEY), HALF_OPEN, &API_KEY);
    assert_eq!(generation, HALF_OPEN.as_epoch_ms());
}

#[test]
fn no_slot_is_needed_while_closed_and_none_is_given_while_open() {
    let step = ProviderBreaker::default().step(&BreakerEvent::ClaimProbe, T0, &API_KEY);
    assert_eq!(step.outcome, BreakerOutcome::NotNeeded);
    let step = opened(T0, &API_KEY).step(&BreakerEvent::ClaimProbe, T0.plus(10_000), &API_KEY);
    let refused = BreakerOutcome::Refused {
        retry_after_ms: 20_000,
    };
    assert_eq!(step.outcome, refused);
}

#[test]
fn what_began_before_it_was_half_open_decides_nothing() {
    let state = opened(T0, &API_KEY);
    for old in [
        failed("slow", HALF_OPEN.minus(1)),
        succeeded(None, HALF_OPEN.minus(1)),
    ] {
        let step = state.step(&old, HALF_OPEN.plus(9), &API_KEY);
        assert_eq!(
            (step.changed, step.outcome),
            (false, BreakerOutcome::IgnoredStale)
        );
    }
    let new = state.step(&failed("new", HALF_OPEN), HALF_OPEN.plus(9), &API_KEY);
    assert_eq!(new.outcome, BreakerOutcome::Opened);
    let new = state.step(&succeeded(None, HALF_OPEN), HALF_OPEN.plus(9), &API_KEY);
    assert_eq!(new.outcome, BreakerOutcome::Closed);
}

#[test]
fn the_old_outage_is_not_counted_after_the_closing() {
    let (state, generation) = claim(&opened(T0, &API_KEY), HALF_OPEN, &API_KEY);
    let closed_at = HALF_OPEN.plus(100);
    let state = state
        .step(&succeeded(Some(generation), HALF_OPEN), closed_at, &API_KEY)
        .state;
    let now = closed_at.plus(50);
    let old = state.step(&failed("slow", T0.minus(60_000)), now, &API_KEY);
    assert_eq!(
        (old.changed, old.outcome),
        (false, BreakerOutcome::IgnoredStale)
    );
    let new = state.step(&failed("slow", closed_at), now, &API_KEY);
    assert_eq!(new.outcome, BreakerOutcome::Counted);
}

#[test]
fn a_failed_try_counts_even_right_after_its_connection_was_counted() {
    let rules = BreakerRules {
        reset_timeout_ms: 1_000,
        ..API_KEY
    };
    let state = opened(T0, &rules);
    let now = T0.plus(1_000);
    let (state, generation) = claim(&state, now, &rules);
    let step = state.step(&probe_failed(generation, now), now, &rules);
    assert_eq!(step.outcome, BreakerOutcome::Opened);
}

#[test]
fn a_reset_closes_and_forgets() {
    let clean = ProviderBreaker::default();
    assert!(!clean.step(&BreakerEvent::Reset, T0, &API_KEY).changed);
    for state in [opened(T0, &API_KEY), failures(3, T0, &API_KEY)] {
        let step = state.step(&BreakerEvent::Reset, T0.plus(5), &API_KEY);
        assert_eq!((step.changed, step.outcome), (true, BreakerOutcome::Closed));
        assert_eq!(step.state.admit(T0.plus(5)), Admission::Admit);
        assert_eq!(step.state.failure_count, 0);
        assert_eq!(step.state.last_failure_at, None);
        let old = step.state.step(&failed("c0", T0), T0.plus(6), &API_KEY);
        assert_eq!(old.outcome, BreakerOutcome::IgnoredStale);
    }
}

#[test]
fn an_open_record_without_an_end_is_half_open() {
    let state = ProviderBreaker {
        written: BreakerState::Open,
        ..ProviderBreaker::default()
    };
    assert_eq!(state.admit(T0), Admission::Probe);
}

#[test]
fn the_record_stays_small() {
    let rules = BreakerRules {
        failure_threshold: 1_000_000,
        degradation_threshold: 1,
        ..API_KEY
    };
    let mut state = ProviderBreaker::default();
    for n in 0..2_000_u64 {
        let now = T0.plus(n);
        state = state
            .step(&failed(&format!("c{n}"), now), now, &rules)
            .state;
        state = state.step(&succeeded(None, now), now, &rules).state;
        assert!(state.recent.len() <= MAX_RECENT);
        assert!(state.history.len() <= MAX_HISTORY);
    }
    assert_eq!(state.recent.len(), MAX_RECENT);
    assert_eq!(state.history.len(), MAX_HISTORY);
}
