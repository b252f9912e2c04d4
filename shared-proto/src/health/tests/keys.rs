//! Keys that are set aside, and what the rotation gate counts.

use super::*;
use crate::mirror::commit::{Commit, Expected};
use crate::mirror::key::Key;
use crate::rotation::{ClassRule, RotationClass};

const GATED: HealthRules = HealthRules {
    rotation: RotationRules {
        limited: ClassRule {
            rotate: true,
            threshold: 3,
            window_ms: 10_000,
        },
        ..RotationRules::DEFAULT
    },
    ..API_KEY
};

fn refused(started_at: Millis, key: u64) -> HealthEvent {
    HealthEvent::KeyRefused {
        started_at,
        key,
        failure: failure(401),
    }
}

fn accepted(started_at: Millis, key: u64) -> HealthEvent {
    HealthEvent::KeyAccepted { started_at, key }
}

fn counted(started_at: Millis) -> HealthEvent {
    HealthEvent::Counted {
        started_at,
        class: RotationClass::Limited,
    }
}

/// The state after these events, each told 10 ms after its attempt began.
fn after(events: &[(u64, fn(Millis) -> HealthEvent)]) -> ConnectionHealth {
    let mut state = ConnectionHealth::default();
    for (at, event) in events {
        let now = T0.plus(*at);
        state = state.step(&event(now.minus(10)), now, &GATED).state;
    }
    state
}

fn seen(state: &ConnectionHealth, at: u64) -> u32 {
    let now = T0.plus(at);
    state.rotation.within(RotationClass::Limited, 10_000, now)
}

#[test]
fn a_refused_key_is_set_aside_and_nothing_else_changes() {
    let step = ConnectionHealth::default().step(&refused(T0.minus(10), 7), T0, &API_KEY);
    assert_eq!((step.changed, step.outcome), (true, Outcome::SetAside));
    let aside = step.state.aside(7).unwrap();
    assert_eq!(aside.at, T0);
    assert_eq!(aside.reason, Some(ErrorType::Unauthorized));
    assert_eq!(step.state.aside(8), None);
    assert!(step.state.is_well() && !step.state.is_clean());
    assert_eq!(step.state.status(T0), Status::Active);
    // Seen again, by whomever, it stays as it was.
    let again = step.state.step(&refused(T0, 7), T0.plus(50), &API_KEY);
    assert_eq!((again.changed, again.outcome), (false, Outcome::Nothing));
}

#[test]
fn a_key_comes_back_by_its_own_success_or_a_reset() {
    let two = after(&[(0, |at| refused(at, 7)), (100, |at| refused(at, 8))]);
    let marks = |state: &ConnectionHealth| -> Vec<u64> {
        state.keys_aside.iter().map(|key| key.mark).collect()
    };
    assert_eq!(marks(&two), [7, 8]);
    let now = T0.plus(1_000);
    let own = two.step(&accepted(T0.plus(500), 7), now, &API_KEY);
    assert_eq!(
        (own.outcome, marks(&own.state)),
        (Outcome::Recovered, vec![8])
    );
    // It began before the key was refused: it proves nothing.
    let old = two.step(&accepted(T0.minus(500), 7), now, &API_KEY);
    assert_eq!((old.changed, marks(&old.state)), (false, vec![7, 8]));
    let other = two.step(&HealthEvent::Succeeded { started_at: now }, now, &API_KEY);
    assert_eq!((other.changed, marks(&other.state)), (false, vec![7, 8]));
    let reset = two.step(&HealthEvent::Reset, now, &API_KEY);
    assert!(reset.changed && reset.state.is_clean());
    // What is told of before the reset is old.
    let late = reset.state.step(&refused(now.minus(20), 7), now, &API_KEY);
    assert_eq!((late.changed, late.outcome), (false, Outcome::Stale));
}

#[test]
fn other_credentials_end_the_state_but_not_what_is_known_of_a_key() {
    let refused = after(&[
        (0, |at| refused(at, 7)),
        (10, |at| failed(at, failure(401))),
    ]);
    assert!(refused.terminal.is_some());
    let now = T0.plus(1_000);
    let changed = refused.step(&HealthEvent::CredentialsChanged, now, &API_KEY);
    assert_eq!(changed.state.terminal, None);
    assert!(changed.state.aside(7).is_some());
}

#[test]
fn a_success_with_a_key_ends_the_connections_trouble_too() {
    let ended = after(&[
        (0, |at| refused(at, 7)),
        (10, |at| failed(at, failure(401))),
    ]);
    let step = ended.step(&accepted(T0.plus(500), 7), T0.plus(900), &API_KEY);
    assert!(step.state.is_clean(), "{:?}", step.state);
}

#[test]
fn no_more_keys_are_remembered_than_nodes_can_have() {
    let mut state = ConnectionHealth::default();
    for key in 0..100 {
        let now = T0.plus(key);
        state = state.step(&refused(now, key), now, &API_KEY).state;
    }
    assert_eq!(state.keys_aside.len(), 34);
    assert!(state.aside(99).is_some() && state.aside(65).is_none());
}

#[test]
fn what_the_gate_counts_ends_with_its_window_a_success_or_a_reset() {
    let three = after(&[(0, counted), (4_000, counted), (8_000, counted)]);
    assert_eq!(
        [9_999, 10_000, 13_999, 14_000, 18_000].map(|at| seen(&three, at)),
        [3, 2, 2, 1, 0]
    );
    assert_eq!(three.status(T0), Status::Active);
    assert!(!three.is_well(), "a success has something to end");
    let now = T0.plus(9_000);
    let success = |began| HealthEvent::Succeeded {
        started_at: T0.plus(began),
    };
    let all = three.step(&success(8_500), now, &GATED);
    assert!(all.changed && all.state.is_clean());
    // A success ends what was counted before it began.
    let some = three.step(&success(5_000), now, &GATED);
    assert_eq!(seen(&some.state, 9_000), 1);
    let none = three.step(&success(0).clone(), T0.plus(9_000), &GATED);
    assert_eq!(seen(&none.state, 9_000), 2);
    let reset = three.step(&HealthEvent::Reset, now, &GATED);
    assert!(reset.changed && reset.state.is_clean());
}

#[test]
fn one_outage_is_counted_once() {
    let mut state = ConnectionHealth::default();
    for met in 0..50 {
        // All were under way when the first was counted.
        let now = T0.plus(met);
        state = state.step(&counted(T0), now, &GATED).state;
    }
    assert_eq!(seen(&state, 100), 1);
    let next = state.step(&counted(T0.plus(1)), T0.plus(200), &GATED);
    assert_eq!(seen(&next.state, 200), 2);
}

#[test]
fn counts_and_keys_stand_beside_a_terminal_state_and_change_it_not() {
    let ended = after(&[(0, |at| failed(at, failure(402)))]);
    for event in [counted(T0.plus(50)), refused(T0.plus(50), 7)] {
        let step = ended.step(&event, T0.plus(60), &GATED);
        assert_eq!(step.state.terminal, ended.terminal);
    }
}

/// Neither is in the record of a connection that has none of it, and a record
/// from before either is read.
#[test]
fn the_record_is_as_before_where_there_is_none_of_it() {
    let body = |state: &ConnectionHealth| {
        let key = Key::Health("a".into());
        let put = Commit::put(key, Expected::Absent, state).unwrap();
        format!("{put:?}")
    };
    let plain = body(&after(&[(0, |at| failed(at, failure(503)))]));
    let names = |text: &str| ["keys_aside", "rotation"].map(|name| text.contains(name));
    assert_eq!(names(&plain), [false, false], "{plain}");
    let json = serde_json::to_value(ConnectionHealth::default()).unwrap();
    assert_eq!(json.get("rotation"), None);
    let old: ConnectionHealth = serde_json::from_value(json).unwrap();
    assert_eq!(old, ConnectionHealth::default());

    let full = after(&[(0, counted), (20, |at| refused(at, 7))]);
    let json = serde_json::to_value(&full).unwrap();
    assert_eq!(json["rotation"]["429"].as_array().unwrap().len(), 1);
    let again: ConnectionHealth = serde_json::from_value(json).unwrap();
    assert_eq!(again, full);
}

/// `rateLimitResetSeconds` in place of the ladder, at the level of an announcement.
#[test]
fn an_operators_reset_replaces_the_ladder_of_rate_limits_only() {
    let rules = HealthRules {
        rotation: RotationRules {
            reset_ms: 45_000,
            ..RotationRules::DEFAULT
        },
        ..API_KEY
    };
    let met = |failure: Failure, rules: &HealthRules| {
        let state = rested_at_level(3, T0);
        let step = state.step(&failed(T0.minus(1), failure), T0, rules);
        (step.remaining_ms, step.state.backoff_level)
    };
    assert_eq!(met(failure(429), &rules), (45_000, 0));
    assert_eq!(met(hinted(9_000), &rules), (9_000, 0));
    let deaf = HealthRules {
        use_hints: false,
        ..rules
    };
    assert_eq!(met(hinted(9_000), &deaf), (45_000, 0));
    assert_eq!(met(failure(503), &rules), (24_000, 4));
    let quota = Failure {
        reason: Reason::QuotaExhausted,
        ..failure(429)
    };
    assert_eq!(met(quota, &rules), (24_000, 4));
}
