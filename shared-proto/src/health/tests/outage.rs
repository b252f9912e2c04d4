//! A failure of the provider, as the other connections that go the same way hear of it.

use super::*;

/// One that rests `met` for 3 s.
fn outage() -> Outage {
    let met = fail_at(&ConnectionHealth::default(), T0, failure(503)).state;
    Outage::of(&met, &failure(503), T0).unwrap()
}

fn hears(state: &ConnectionHealth, now: Millis) -> Step {
    state.step(&HealthEvent::SiblingFailed(outage()), now, &API_KEY)
}

#[test]
fn siblings_rest_as_long_at_the_level_they_have() {
    let before = rested_at_level(3, T0);
    let step = hears(&before, T0);
    assert_eq!(step.remaining_ms, 3_000);
    assert_eq!(step.state.backoff_level, 3);
    let error = step.state.last_error.clone().unwrap();
    assert_eq!((error.status, error.rule.as_str()), (503, PROVIDER_RULE));
    assert!(error.message.ends_with("some words"), "{error:?}");
    let again = hears(&step.state, T0.plus(1));
    assert_eq!((again.changed, again.outcome), (false, Outcome::Cooling));
    // What was in flight meanwhile belongs to the same outage.
    let late = failed(T0.minus(500), failure(503));
    let late = step.state.step(&late, T0.plus(5_000), &API_KEY);
    assert_eq!((late.changed, late.outcome), (false, Outcome::Stale));
}

#[test]
fn what_is_longer_or_final_stays() {
    let longer = fail_at(&ConnectionHealth::default(), T0, hinted(60_000)).state;
    let ended = fail_at(&ConnectionHealth::default(), T0, failure(401)).state;
    for (state, outcome) in [
        (longer, Outcome::Cooling),
        (ended, Outcome::AlreadyTerminal),
    ] {
        let step = hears(&state, T0.plus(1));
        assert_eq!((step.changed, step.outcome), (false, outcome));
    }
    let rules = HealthRules {
        disable_cooling: true,
        ..API_KEY
    };
    let event = HealthEvent::SiblingFailed(outage());
    let step = ConnectionHealth::default().step(&event, T0, &rules);
    assert_eq!((step.changed, step.outcome), (false, Outcome::Nothing));
}

#[test]
fn what_came_since_knows_better() {
    let reset = ConnectionHealth {
        renewed_at: Some(T0),
        ..ConnectionHealth::default()
    };
    let served = ConnectionHealth {
        recovered_from: Some(T0.plus(1)),
        ..ConnectionHealth::default()
    };
    for state in [reset, served] {
        let step = hears(&state, T0.plus(2));
        assert_eq!((step.changed, step.outcome), (false, Outcome::Stale));
    }
    let over = hears(&ConnectionHealth::default(), T0.plus(3_000));
    assert_eq!((over.changed, over.outcome), (false, Outcome::Stale));
}

#[test]
fn a_rest_for_something_else_is_no_outage() {
    let own = fail_at(&ConnectionHealth::default(), T0, hinted(60_000)).state;
    assert_eq!(Outage::of(&own, &failure(503), T0), None);
    let well = ConnectionHealth::default();
    assert_eq!(Outage::of(&well, &failure(503), T0), None);
}
