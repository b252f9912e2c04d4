//! What counts as news, and what does not.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000;

fn apply(state: &ConnectionHealth, event: &HealthEvent, now: Millis) -> Step {
    state.step(event, now, &API_KEY)
}

#[test]
fn only_the_connection_s_own_failures_touch_it() {
    let others = [
        Blame::Request,
        Blame::ProtocolQuirk,
        Blame::Model,
        Blame::EgressIp,
        Blame::Provider,
        Blame::Router,
        Blame::Client,
    ];
    for blame in others {
        for of in [failure(503), failure(403), hinted(9_000)] {
            let step = fail_at(&ConnectionHealth::default(), T0, Failure { blame, ..of });
            assert_eq!((step.changed, step.outcome), (false, Outcome::Nothing));
        }
    }
}

#[test]
fn a_failure_in_flight_during_the_cooldown_is_not_counted_after_it() {
    let cooled = fail_at(&ConnectionHealth::default(), T0, failure(503)).state;
    let late = T0.plus(10 * SECOND);
    for started_at in [T0.minus(60 * SECOND), T0, T0.plus(100), T0.plus(2_999)] {
        let step = apply(&cooled, &failed(started_at, failure(503)), late);
        assert_eq!((step.changed, step.outcome), (false, Outcome::Stale));
    }
    let step = apply(&cooled, &failed(T0.plus(3_000), failure(503)), late);
    assert_eq!(
        step.state.backoff_level, 2,
        "it began when the cooldown was over"
    );
}

#[test]
fn the_same_event_twice_counts_once() {
    let event = failed(T0, failure(503));
    let once = apply(&ConnectionHealth::default(), &event, T0);
    let again = apply(&once.state, &event, T0.plus(60 * SECOND));
    assert_eq!((again.changed, again.outcome), (false, Outcome::Stale));
}

#[test]
fn the_herd_stays_old_after_a_success_cleared_it() {
    let cooled = fail_at(&ConnectionHealth::default(), T0, failure(503)).state;
    let success = HealthEvent::Succeeded {
        started_at: T0.plus(1),
    };
    let cleared = apply(&cooled, &success, T0.plus(20)).state;
    assert_eq!(cleared.eligible(T0.plus(20)), Ok(()));
    for of in [failure(503), hinted(9_000)] {
        let step = apply(&cleared, &failed(T0.minus(5), of), T0.plus(30));
        assert_eq!((step.changed, step.outcome), (false, Outcome::Stale));
    }
}

#[test]
fn a_success_that_began_before_the_failure_clears_nothing() {
    for of in [failure(503), hinted(9_000), failure(401)] {
        let marked = fail_at(&ConnectionHealth::default(), T0, of).state;
        let old = HealthEvent::Succeeded {
            started_at: T0.minus(1),
        };
        let step = apply(&marked, &old, T0.plus(5));
        assert_eq!((step.changed, step.outcome), (false, Outcome::Stale));
        let new = HealthEvent::Succeeded { started_at: T0 };
        let step = apply(&marked, &new, T0.plus(5));
        assert_eq!(step.outcome, Outcome::Recovered);
        assert_eq!(step.state.eligible(T0.plus(5)), Ok(()));
    }
}

#[test]
fn an_announcement_ends_a_guess_whoever_brings_it() {
    let guess = fail_at(&rested_at_level(2, T0), T0, failure(503)).state;
    for (now, outcome_ms) in [(T0.plus(5), 60_000), (T0.plus(50 * SECOND), 60_000)] {
        let step = apply(&guess, &failed(T0.minus(60), hinted(60_000)), now);
        assert_eq!(step.remaining_ms, outcome_ms);
        assert_eq!((step.changed, step.state.backoff_level), (true, 0));
    }
    let step = apply(&guess, &failed(T0.minus(60), hinted(2_000)), T0.plus(5));
    assert_eq!(
        (step.changed, step.outcome),
        (false, Outcome::Cooling),
        "sooner"
    );
}

#[test]
fn an_announced_cooldown_is_extended_by_a_later_end_whoever_brings_it() {
    let announced = fail_at(&ConnectionHealth::default(), T0, hinted(60_000)).state;
    let now = T0.plus(SECOND);
    for began in [T0.minus(5_000), T0, T0.plus(1)] {
        let event = failed(began, hinted(90_000));
        let longer = apply(&announced, &event, now);
        assert_eq!((longer.changed, longer.remaining_ms), (true, 90_000));
        assert_eq!(longer.state.backoff_level, 0);
        let again = apply(&longer.state, &event, now);
        assert_eq!((again.changed, again.outcome), (false, Outcome::Cooling));
    }
    let same = apply(&announced, &failed(T0.plus(1), hinted(60_000)), now);
    assert!(!same.changed, "the same announcement a second later");
    let sooner = apply(&announced, &failed(T0.plus(1), hinted(2_000)), now);
    assert_eq!((sooner.changed, sooner.remaining_ms), (false, 59_000));
    let ladder = apply(&announced, &failed(T0.plus(1), failure(503)), now);
    assert_eq!((ladder.changed, ladder.outcome), (false, Outcome::Cooling));
}

#[test]
fn what_began_before_a_renewal_is_old() {
    for renewal in [HealthEvent::Reset, HealthEvent::CredentialsChanged] {
        let banned = fail_at(&ConnectionHealth::default(), T0.minus(50), failure(403)).state;
        let step = apply(&banned, &renewal, T0);
        assert_eq!((step.changed, step.outcome), (true, Outcome::Recovered));
        let fresh = step.state;
        assert_eq!(fresh.eligible(T0), Ok(()));
        for of in [failure(401), failure(503), hinted(9_000)] {
            let old = failed(T0.minus(1), of.clone());
            let step = apply(&fresh, &old, T0.plus(5));
            assert_eq!((step.changed, step.outcome), (false, Outcome::Stale));
            let step = apply(&fresh, &failed(T0, of), T0.plus(5));
            assert!(step.changed);
        }
    }
}

#[test]
fn a_renewal_told_again_clears_nothing_newer() {
    for renewal in [HealthEvent::Reset, HealthEvent::CredentialsChanged] {
        let cooled = fail_at(&ConnectionHealth::default(), T0, failure(503)).state;
        let renewed = apply(&cooled, &renewal, T0.plus(SECOND));
        assert_eq!(renewed.outcome, Outcome::Recovered);
        let later = T0.plus(5 * SECOND);
        for newer in [failure(401), failure(503), hinted(60_000)] {
            let refused = failed(later, newer);
            let failed = apply(&renewed.state, &refused, later.plus(10)).state;
            let again = apply(&failed, &renewal, T0.plus(SECOND));
            assert_eq!(
                (again.changed, &again.state),
                (false, &failed),
                "{renewal:?}"
            );
            // It comes late, after what the store had lost was told again.
            let other = apply(&cooled, &refused, later.plus(10)).state;
            let late = apply(&other, &renewal, T0.plus(SECOND)).state;
            assert_eq!(
                (late.terminal, late.cooldown_until),
                (other.terminal, other.cooldown_until)
            );
            let stale = apply(&late, &failed_before(T0.plus(SECOND)), later.plus(20));
            assert!(!stale.changed, "what began before the renewal is still old");
        }
    }
}

#[test]
fn a_terminal_verdict_told_again_does_not_undo_a_recovery() {
    let verdict = failed(T0, failure(401));
    let terminal = apply(&ConnectionHealth::default(), &verdict, T0.plus(10)).state;
    let success = HealthEvent::Succeeded {
        started_at: T0.plus(SECOND),
    };
    let recovered = apply(&terminal, &success, T0.plus(2 * SECOND)).state;
    assert_eq!(recovered.terminal, None);
    let again = apply(&recovered, &verdict, T0.plus(10));
    assert_eq!((again.changed, again.outcome), (false, Outcome::Stale));
    let newer = failed(T0.plus(SECOND), failure(401));
    let refused = apply(&recovered, &newer, T0.plus(3 * SECOND)).state;
    assert!(refused.terminal.is_some(), "it began no earlier");
}

fn failed_before(at: Millis) -> HealthEvent {
    failed(at.minus(1), failure(403))
}

#[test]
fn renewing_a_healthy_connection() {
    let healthy = ConnectionHealth::default();
    assert!(!apply(&healthy, &HealthEvent::Reset, T0).changed);
    let step = apply(&healthy, &HealthEvent::CredentialsChanged, T0);
    assert!(
        step.changed,
        "old credentials' failures in flight must stay old"
    );
    let old = apply(&step.state, &failed(T0.minus(1), failure(401)), T0.plus(1));
    assert_eq!(old.outcome, Outcome::Stale);
}

#[test]
fn a_fixed_cooldown_keeps_the_level() {
    let fixed = Failure {
        cooldown: Cooldown::Fixed(7_000),
        ..hinted(90_000)
    };
    let step = fail_at(&rested_at_level(3, T0), T0, fixed);
    assert_eq!((step.remaining_ms, step.state.backoff_level), (7_000, 3));
}

#[test]
fn notes_are_rare_and_explain_nothing_else() {
    let none = Failure {
        cooldown: Cooldown::None,
        ..failure(500)
    };
    let first = fail_at(&ConnectionHealth::default(), T0, none.clone());
    assert_eq!(first.outcome, Outcome::Noted);
    let soon = fail_at(&first.state, T0.plus(NOTE_EVERY_MS - 1), none.clone());
    assert!(!soon.changed);
    let later = fail_at(&first.state, T0.plus(NOTE_EVERY_MS), none.clone());
    assert!(later.changed);
    let cooled = fail_at(&first.state, T0.plus(20), failure(503)).state;
    let during = fail_at(&cooled, T0.plus(40), none);
    assert_eq!(during.state.last_error.unwrap().status, 503);
}

#[test]
fn stored_texts_are_bounded() {
    let long = Failure {
        message: "é".repeat(5_000),
        upstream_code: Some("x".repeat(5_000)),
        restated: Some(("rule".into(), 200)),
        ..failure(503)
    };
    let error = fail_at(&ConnectionHealth::default(), T0, long)
        .state
        .last_error
        .unwrap();
    assert_eq!(error.message.chars().count(), 300);
    assert_eq!(error.code.unwrap().len(), 64);
    assert_eq!(error.source.as_str(), "restated");
}

/// A failure of one outage: when it began before the outage was known, how long it took.
fn herd() -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0_u64..=1_000, 0_u64..200_000), 1..12)
}

proptest! {
    /// Whatever the order and the delays, attempts that all began before the
    /// first of them failed climb one step.
    #[test]
    fn one_failure_one_count(herd in herd(), level in 0_u32..6) {
        let mut state = rested_at_level(level, T0.minus(1_000));
        state.cooldown_until = Some(T0.minus(5_000));
        let mut now = T0;
        let mut marks = 0;
        for (before, later) in herd {
            let step = apply(&state, &failed(T0.minus(before), failure(503)), now);
            marks += u32::from(step.changed);
            state = step.state;
            now = now.plus(later);
        }
        prop_assert_eq!(marks, 1);
        prop_assert_eq!(state.backoff_level, (level + 1).min(5));
    }

    /// A mixed herd ends in the same state of the ladder in any order.
    #[test]
    fn a_mixed_herd_converges(waits in prop::collection::vec(prop::option::of(Just(60_000_u64)), 1..8)) {
        let one = |wait: Option<u64>| failed(T0.minus(5), wait.map_or_else(|| failure(503), hinted));
        let run = |events: &mut dyn Iterator<Item = HealthEvent>| {
            let last = events.fold(ConnectionHealth::default(), |s, e| apply(&s, &e, T0).state);
            (last.cooldown_until, last.backoff_level, last.hint_source)
        };
        let forward = run(&mut waits.iter().copied().map(one));
        let backward = run(&mut waits.iter().rev().copied().map(one));
        prop_assert_eq!(forward, backward);
    }

    /// Nothing overflows or panics, and times never make sense of nonsense.
    #[test]
    fn total(until in any::<Option<u64>>(), level: u32, last: u64, now: u64, started: u64, wait: u64) {
        let state = ConnectionHealth {
            cooldown_until: until.map(Millis::from_epoch_ms),
            backoff_level: level,
            last_cooldown_ms: last,
            ..ConnectionHealth::default()
        };
        let (now, started) = (Millis::from_epoch_ms(now), Millis::from_epoch_ms(started));
        for of in [failure(503), hinted(wait), failure(403)] {
            let step = apply(&state, &failed(started, of), now);
            prop_assert_eq!(step.changed, step.state != state);
            if let Some(at) = step.state.deadline(now) {
                prop_assert!(at > now || at == Millis::MAX);
            }
        }
    }
}
