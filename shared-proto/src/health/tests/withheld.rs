//! CCD-24, and rests that are begun before anybody refused.

use super::*;
use crate::quota::informed;
use crate::quota::preflight::{Origin, RULE};
use crate::quota::{Share, Window, Windows};

const HOUR: u64 = 3_600_000;

fn quota() -> Failure {
    Failure {
        reason: Reason::QuotaExhausted,
        cooldown: Cooldown::Fixed(HOUR),
        rule: "subscription-quota".into(),
        ..failure(429)
    }
}

#[test]
fn ccd_24_a_spent_quota_rests_until_the_reset_that_is_known() {
    let window = Window {
        name: "5h".into(),
        scope: None,
        used: Share::of_percent(97.0),
        resets_at: Some(T0.plus(7_200_000)),
        window_ms: None,
        observed_at: T0.minus(9),
        warned: false,
    };
    let windows = Windows::default().with(&[window], None);
    let known = informed(quota(), &windows, "m", u64::MAX, T0);
    // It is no announcement of this answer, so it counts where those are not heeded.
    for use_hints in [true, false] {
        let rules = HealthRules {
            use_hints,
            ..API_KEY
        };
        let event = failed(T0.minus(10), known.clone());
        let step = ConnectionHealth::default().step(&event, T0, &rules);
        assert_eq!(step.remaining_ms, 7_200_000, "CCD-24");
        assert_eq!(step.state.hint_source, Some(HintSource::QuotaWindow));
        let unknown = failed(T0.minus(10), quota());
        let step = ConnectionHealth::default().step(&unknown, T0, &rules);
        assert_eq!(step.remaining_ms, HOUR);
    }
}

fn origin() -> Origin {
    Origin {
        window: "7d".into(),
        window_ms: Some(168 * HOUR),
        resets_at: T0.plus(HOUR),
        observed_at: T0.minus(100),
    }
}

fn withheld(state: &ConnectionHealth, now: Millis) -> Step {
    state.step(&HealthEvent::Withheld(origin()), now, &API_KEY)
}

#[test]
fn it_rests_once_until_the_reset_and_says_why() {
    let step = withheld(&rested_at_level(3, T0), T0);
    assert_eq!(step.remaining_ms, HOUR);
    assert_eq!(step.state.level(T0), 3, "it was no failure");
    assert_eq!(step.state.preflight, Some(origin()));
    let error = step.state.last_error.clone().unwrap();
    assert_eq!(error.error_type, Some(ErrorType::QuotaPreflight));
    assert_eq!((error.reason, &*error.rule), (Reason::QuotaExhausted, RULE));
    let again = withheld(&step.state, T0.plus(1));
    assert_eq!((again.changed, again.outcome), (false, Outcome::Cooling));
    // What was under way meanwhile does not end it; what began later does.
    let success = |started_at| HealthEvent::Succeeded { started_at };
    let early = step.state.step(&success(T0.minus(1)), T0.plus(1), &API_KEY);
    assert_eq!(early.outcome, Outcome::Stale);
    let late = step.state.step(&success(T0.plus(1)), T0.plus(2), &API_KEY);
    assert_eq!(
        (late.outcome, late.state.preflight),
        (Outcome::Recovered, None)
    );
}

#[test]
fn what_it_does_not_touch() {
    let ended = fail_at(&ConnectionHealth::default(), T0, failure(401)).state;
    assert_eq!(withheld(&ended, T0).outcome, Outcome::AlreadyTerminal);
    let cooling = fail_at(&ConnectionHealth::default(), T0, hinted(5_000)).state;
    let step = withheld(&cooling, T0.plus(1));
    assert_eq!((step.changed, step.outcome), (false, Outcome::Cooling));
    let reset = cooling.step(&HealthEvent::Reset, T0, &API_KEY).state;
    assert_eq!(
        withheld(&reset, T0).outcome,
        Outcome::Stale,
        "told before it"
    );
    let over = withheld(&ConnectionHealth::default(), T0.plus(HOUR));
    assert_eq!(over.outcome, Outcome::Stale);
    let never = HealthRules {
        disable_cooling: true,
        ..API_KEY
    };
    let event = HealthEvent::Withheld(origin());
    let step = ConnectionHealth::default().step(&event, T0, &never);
    assert_eq!(step.outcome, Outcome::Nothing);
}

#[test]
fn whatever_is_counted_takes_its_reason_away() {
    let rests = withheld(&ConnectionHealth::default(), T0).state;
    let longer = failed(T0.plus(1), hinted(9 * HOUR));
    let step = rests.step(&longer, T0.plus(2), &API_KEY);
    assert_eq!((step.changed, step.state.preflight), (true, None));
    let ended = failed(T0.plus(1), failure(401));
    let step = rests.step(&ended, T0.plus(2), &API_KEY);
    assert_eq!((step.changed, step.state.preflight), (true, None));
}
