//! The reference's own cases, by their ids.

use super::*;
use crate::failure::{Blame, Cooldown, Failure};

#[test]
fn brk_01_degraded_still_admits() {
    let state = failures(7, T0, &API_KEY);
    assert_eq!(state.state(T0), BreakerState::Degraded);
    assert_eq!(state.failure_count, 7);
    assert_eq!(state.admit(T0), Admission::Admit);
    assert_eq!(state.retry_after_ms(T0), 0);
    assert_eq!(failures(6, T0, &API_KEY).state(T0), BreakerState::Closed);
}

#[test]
fn brk_02_the_threshold_opens() {
    let state = failures(12, T0, &API_KEY);
    assert_eq!(state.state(T0), BreakerState::Open);
    let reject = Admission::Reject {
        retry_after_ms: 30_000,
    };
    assert_eq!(state.admit(T0), reject);
    assert_eq!(state.deadline(T0), Some(T0.plus(30_000)));
}

#[test]
fn brk_04_statuses_that_speak_of_the_provider() {
    let counted: Vec<u16> = (100..=599).filter(|s| counted_status(*s)).collect();
    assert_eq!(counted, [408, 500, 502, 503, 504]);
}

#[test]
fn brk_05_half_open_without_a_timer() {
    let state = opened(T0, &API_KEY);
    assert_eq!(state.state(T0.plus(29_999)), BreakerState::Open);
    assert_eq!(state.state(T0.plus(30_000)), BreakerState::HalfOpen);
    assert_eq!(state.admit(T0.plus(30_000)), Admission::Probe);
}

#[test]
fn brk_06_one_of_two_gets_the_slot() {
    let now = T0.plus(30_000);
    let (state, _) = claim(&opened(T0, &API_KEY), now, &API_KEY);
    let second = state.step(&BreakerEvent::ClaimProbe, now.plus(1), &API_KEY);
    let refused = BreakerOutcome::Refused {
        retry_after_ms: 29_999,
    };
    assert_eq!((second.changed, second.outcome), (false, refused));
}

#[test]
fn brk_08_a_failed_try_opens_again() {
    let now = T0.plus(30_000);
    let (state, generation) = claim(&opened(T0, &API_KEY), now, &API_KEY);
    let step = state.step(&probe_failed(generation, now), now, &API_KEY);
    assert_eq!(step.outcome, BreakerOutcome::Opened);
    assert_eq!(step.state.state(now), BreakerState::Open);
    assert_eq!(step.state.open_cycle_count, 1);
    assert_eq!(step.state.retry_after_ms(now), 30_000);
}

#[test]
fn brk_09_brk_10_escalation() {
    let times = |rules: BreakerRules, cycles: std::ops::RangeInclusive<u32>| -> Vec<u64> {
        cycles.map(|c| rules.open_ms(c, None)).collect()
    };
    assert_eq!(times(API_KEY, 3..=6), [30_000, 60_000, 120_000, 120_000]);
    let oauth = [60_000, 120_000, 240_000, 480_000, 480_000];
    assert_eq!(times(OAUTH, 2..=6), oauth);
    assert_eq!(API_KEY.open_ms(u32::MAX, None), 120_000);
}

#[test]
fn escalation_happens_over_failed_tries() {
    let mut state = opened(T0, &API_KEY);
    let mut now = T0;
    let mut times = Vec::new();
    for _ in 0..6 {
        now = state.deadline(now).unwrap();
        let (claimed, generation) = claim(&state, now, &API_KEY);
        state = claimed
            .step(&probe_failed(generation, now), now, &API_KEY)
            .state;
        times.push(state.retry_after_ms(now));
    }
    let wants = [30_000, 30_000, 30_000, 60_000, 120_000, 120_000];
    assert_eq!(times, wants);
}

#[test]
fn kinds_override_the_first_time_and_escalate_alike() {
    let rules = API_KEY.trusting_limits(true);
    assert_eq!(rules.open_ms(0, Some(FailureKind::Transient)), 30_000);
    assert_eq!(rules.open_ms(0, Some(FailureKind::RateLimit)), 60_000);
    assert_eq!(rules.open_ms(4, Some(FailureKind::RateLimit)), 120_000);
    let quota = rules.open_ms(9, Some(FailureKind::QuotaExhausted));
    assert_eq!(quota, 4 * 3_600_000);
}

fn failure(counts_for_breaker: bool, code: Option<&str>) -> Failure {
    Failure {
        status: 503,
        reason: Reason::ServerError,
        blame: Blame::Connection,
        error_type: None,
        fallback: true,
        terminal: None,
        cooldown: Cooldown::Ladder,
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker,
        rule: String::new(),
        restated: None,
        upstream_code: code.map(str::to_owned),
        message: String::new(),
    }
}

#[test]
fn brk_12_brk_20_what_is_not_counted() {
    assert!(!counts(&failure(false, None), false), "the client hung up");
    assert!(counts(&failure(true, None), false));
    assert!(!counts(&failure(true, None), true), "the next target tells");
    assert!(counts(&failure(true, Some("proxy_unreachable")), true));
}

#[test]
fn brk_13_one_connection_counts_once_in_five_seconds() {
    let mut state = ProviderBreaker::default();
    let mut changes = Vec::new();
    for later in [0, 4_999, 5_000] {
        let now = T0.plus(later);
        let step = state.step(&failed("c", now), now, &API_KEY);
        changes.push(step.changed);
        state = step.state;
    }
    assert_eq!(changes, [true, false, true]);
    assert_eq!(state.failure_count, 2);
    assert_eq!(state.recent.len(), 1, "old entries are pruned");
}

#[test]
fn brk_14_a_failure_met_while_open_is_dropped() {
    let state = opened(T0, &API_KEY);
    let now = T0.plus(10_000);
    let step = state.step(&failed("other", now), now, &API_KEY);
    assert_eq!(
        (step.changed, step.outcome),
        (false, BreakerOutcome::IgnoredOpen)
    );
    assert_eq!(step.state.deadline(now), Some(T0.plus(30_000)));
}

#[test]
fn brk_17_a_stored_breaker_goes_on() {
    let mut state = opened(T0, &API_KEY);
    state.open_cycle_count = 2;
    let packed = rmp_serde::to_vec_named(&state).unwrap();
    let back: ProviderBreaker = rmp_serde::from_slice(&packed).unwrap();
    assert_eq!(back, state);
    assert_eq!(back.state(T0.plus(5)), BreakerState::Open);
    assert_eq!(back.last_failure_at, Some(T0));
    assert_eq!(back.open_cycle_count, 2);
}

#[test]
fn a_record_with_unknown_fields_is_read() {
    let (state, _) = claim(&opened(T0, &API_KEY), T0.plus(30_000), &API_KEY);
    let mut json = serde_json::to_value(&state).unwrap();
    json["from_the_future"] = serde_json::json!([1]);
    json["probe"]["from_the_future"] = serde_json::json!(1);
    let packed = rmp_serde::to_vec_named(&json).unwrap();
    let back: ProviderBreaker = rmp_serde::from_slice(&packed).unwrap();
    assert_eq!(back, state);
    let empty = rmp_serde::to_vec_named(&serde_json::json!({})).unwrap();
    let closed: ProviderBreaker = rmp_serde::from_slice(&empty).unwrap();
    assert_eq!(closed, ProviderBreaker::default());
}

#[test]
fn brk_21_local_servers_are_never_degraded() {
    let one = failures(1, T0, &LOCAL);
    assert_eq!(one.state(T0), BreakerState::Closed);
    assert_eq!(failures(2, T0, &LOCAL).state(T0), BreakerState::Open);
}

#[test]
fn successes_take_one_off_each() {
    let mut state = failures(9, T0, &API_KEY);
    let mut seen = Vec::new();
    for _ in 0..10 {
        state = state.step(&succeeded(None, T0), T0, &API_KEY).state;
        seen.push((state.failure_count, state.written));
    }
    assert_eq!(seen[0], (8, BreakerState::Degraded));
    assert_eq!(seen[1], (7, BreakerState::Closed));
    assert_eq!(seen[8], (0, BreakerState::Closed));
    let step = state.step(&succeeded(None, T0), T0, &API_KEY);
    assert!(
        !step.changed,
        "a success at a healthy provider is no change"
    );
}

#[test]
fn kinds_are_told_apart_by_reason() {
    assert_eq!(
        FailureKind::from(Reason::RateLimitExceeded),
        FailureKind::RateLimit
    );
    assert_eq!(
        FailureKind::from(Reason::QuotaExhausted),
        FailureKind::QuotaExhausted
    );
    assert_eq!(
        FailureKind::from(Reason::ServerError),
        FailureKind::Transient
    );
}
