//! Tables of the reference, and what makes a failure news.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "small numbers chosen by the tests"
)]

use super::*;
use crate::failure::{Cooldown, Reason};

/// 2026-10-01T12:00:00Z.
const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);

fn rules(profile: Profile) -> GateRules {
    let mut settings = Settings::default();
    settings.provider_cooldown.enabled = true;
    GateRules::new(&settings, &acme(), profile)
}

fn acme() -> ProviderId {
    ProviderId::from("acme")
}

fn connection(n: u64) -> ConnectionId {
    ConnectionId::new(format!("c{n}"))
}

fn fail(state: &ProviderGate, n: u64, now: Millis, rules: &GateRules) -> ProviderGate {
    let event = GateEvent::Failed {
        started_at: now.minus(5),
        connection: connection(n),
    };
    let step = state.step(&event, now, rules);
    assert_eq!(step.changed, step.state != *state);
    let again = step.state.step(&event, now, rules);
    assert!(!again.changed, "the same event counted twice");
    step.state
}

/// `count` failures of as many connections, a second apart, the last at `end`.
fn failures(count: u64, end: Millis, rules: &GateRules) -> ProviderGate {
    (0..count).fold(ProviderGate::default(), |state, n| {
        let at = end.minus((count - 1 - n) * 1000);
        fail(&state, n, at, rules)
    })
}

fn left(state: &ProviderGate, rules: &GateRules, now: Millis) -> Option<u64> {
    let until = state.provider_rests(rules, now)?;
    Some(until.since(now))
}

#[test]
fn pcd_01_it_is_opt_in() {
    let rules = GateRules::new(&Settings::default(), &acme(), Profile::ApiKey);
    let state = failures(100, T0, &rules);
    assert_eq!(state, ProviderGate::default(), "nothing is even written");
    // What was counted before it was switched off holds nobody back.
    let counted = failures(100, T0, &self::rules(Profile::ApiKey));
    assert_eq!(counted.shut(&connection(1), &rules, T0), None);
}

#[test]
fn pcd_03_pcd_13_a_window_of_failures_makes_the_provider_rest() {
    for (profile, threshold, cooldown) in [
        (Profile::ApiKey, 15, 600_000),
        (Profile::Oauth, 10, 300_000),
        (Profile::Local, 2, 60_000),
    ] {
        let rules = rules(profile);
        let before = failures(threshold - 1, T0, &rules);
        assert_eq!(left(&before, &rules, T0), None, "{profile:?}");
        let state = failures(threshold, T0, &rules);
        assert_eq!(left(&state, &rules, T0), Some(cooldown), "{profile:?}");
        // A connection that has not failed rests with its provider.
        let until = state.shut(&connection(1000), &rules, T0);
        assert_eq!(until, Some(T0.plus(cooldown)));
    }
}

#[test]
fn pcd_04_old_failures_are_not_counted() {
    let rules = rules(Profile::ApiKey);
    let state = failures(14, T0, &rules);
    let later = T0.plus(1_860_000);
    let state = fail(&state, 99, later, &rules);
    assert_eq!(left(&state, &rules, later), None);
}

#[test]
fn pcd_05_the_rest_ends_by_the_clock() {
    let rules = rules(Profile::ApiKey);
    let state = failures(15, T0, &rules);
    assert_eq!(left(&state, &rules, T0.plus(599_999)), Some(1));
    assert_eq!(left(&state, &rules, T0.plus(600_001)), None);
}

#[test]
fn pcd_07_a_connection_rests_longer_and_longer() {
    let rules = rules(Profile::ApiKey);
    let mut state = ProviderGate::default();
    let mut now = T0;
    let mut rests = Vec::new();
    for _ in 0..7 {
        state = fail(&state, 1, now, &rules);
        let until = state.connection_rests(&connection(1), &rules, now);
        rests.push(until.unwrap().since(now));
        assert_eq!(state.connection_rests(&connection(2), &rules, now), None);
        now = until.unwrap();
        assert_eq!(state.connection_rests(&connection(1), &rules, now), None);
    }
    let expected = [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 300_000];
    assert_eq!(rests, expected);
}

#[test]
fn pcd_08_nobody_knows_a_provider_without_a_name() {
    let mut settings = Settings::default();
    settings.provider_cooldown.enabled = true;
    for (id, counted) in [("", 0), ("unknown", 0), ("acme", 1)] {
        let rules = GateRules::new(&settings, &ProviderId::from(id), Profile::ApiKey);
        let state = fail(&ProviderGate::default(), 1, T0, &rules);
        assert_eq!(state.failures.len(), counted, "{id}");
    }
}

#[test]
fn pcd_11_what_may_be_one_model_does_not_count() {
    let failure = |status, blame| Failure {
        status,
        reason: Reason::ServerError,
        blame,
        error_type: None,
        fallback: true,
        terminal: None,
        cooldown: Cooldown::Ladder,
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker: true,
        rule: String::new(),
        restated: None,
        upstream_code: None,
        message: String::new(),
    };
    for (status, of_models) in [
        (429, false),
        (500, false),
        (502, true),
        (503, true),
        (504, true),
    ] {
        let failure = failure(status, Blame::Connection);
        assert_eq!(counts(&failure, true), of_models, "{status}");
        assert!(counts(&failure, false), "{status}");
    }
    for blame in [
        Blame::Request,
        Blame::ProtocolQuirk,
        Blame::Router,
        Blame::Client,
    ] {
        assert!(!counts(&failure(503, blame), false), "{blame:?}");
    }
}

#[test]
fn pcd_12_the_rest_counts_from_the_last_failure() {
    let rules = rules(Profile::ApiKey);
    let state = failures(15, T0, &rules);
    let later = T0.plus(300_000);
    let state = fail(&state, 99, later, &rules);
    assert_eq!(left(&state, &rules, later), Some(600_000));
}

#[test]
fn one_outage_counts_once() {
    let rules = rules(Profile::ApiKey);
    let mut state = ProviderGate::default();
    for n in 0..100 {
        let event = GateEvent::Failed {
            started_at: T0.plus(n % 7),
            connection: connection(1),
        };
        state = state.step(&event, T0.plus(100 + n), &rules).state;
    }
    assert_eq!(state.failures.len(), 1);
    assert_eq!(state.connections[&connection(1)].count, 1);
}

#[test]
fn a_success_forgets_what_was_counted_before_it() {
    let rules = rules(Profile::ApiKey);
    let state = failures(15, T0, &rules);
    let success = |started_at| GateEvent::Succeeded {
        started_at,
        connection: connection(3),
    };
    let old = state.step(&success(T0.minus(20_000)), T0, &rules);
    assert!(!old.changed);
    let well = state.step(&success(T0.plus(1)), T0.plus(2), &rules).state;
    assert_eq!(well.provider_rests(&rules, T0.plus(2)), None);
    assert!(!well.connections.contains_key(&connection(3)));
    assert_eq!(well.connections.len(), 14, "others say for themselves");
    assert!(!well.remembers(&connection(3)) && well.remembers(&connection(4)));
}

#[test]
fn a_reset_forgets_all_and_what_was_under_way() {
    let rules = rules(Profile::ApiKey);
    let state = failures(15, T0, &rules);
    let step = state.step(&GateEvent::Reset, T0.plus(10), &rules);
    assert!(step.changed && step.state.is_clean());
    assert!(
        !step
            .state
            .step(&GateEvent::Reset, T0.plus(20), &rules)
            .changed
    );
    let late = GateEvent::Failed {
        started_at: T0.plus(10),
        connection: connection(1),
    };
    assert!(!step.state.step(&late, T0.plus(30), &rules).changed);
}

#[test]
fn what_is_remembered_is_bounded() {
    let rules = GateRules {
        window_ms: 86_400_000,
        ..rules(Profile::ApiKey)
    };
    let mut state = ProviderGate::default();
    for n in 0..1_100 {
        state = fail(&state, n, T0.plus(n), &rules);
    }
    assert_eq!(state.failures.len(), 200);
    assert_eq!(state.connections.len(), 1_000);
    assert!(!state.connections.contains_key(&connection(99)));
    assert!(state.connections.contains_key(&connection(100)));
    // And what is long over goes.
    let state = fail(&state, 1, T0.plus(2_000_000), &rules);
    assert_eq!(state.connections.len(), 1);
}
