//! What counts, and what holds whatever happens.

use proptest::prelude::*;

use super::super::{ENTRIES_MAX, LockoutEvent, MODEL_MAX_BYTES, ModelLockouts, Outcome};
use super::{Desk, T0, failure, hinted, rules};
use crate::failure::{Blame, Cooldown, Failure, HintSource};
use crate::mirror::record::MAX_RECORD_BYTES;

#[test]
fn one_outage_counts_once() {
    let mut desk = Desk::new(rules("groq", false));
    let now = T0.plus(100);
    for n in 0..10 {
        let outcome = desk.fail_from("m", failure(503), (T0.plus(n), now));
        assert_eq!(outcome == Outcome::Stale, n > 0, "{n}: {outcome:?}");
    }
    assert_eq!(desk.only().1.failure_count, 1);
    // The same event again, as after a conflict, changes nothing.
    let before = desk.state.clone();
    desk.fail_from("m", failure(503), (T0, now));
    assert_eq!(desk.state, before);
}

#[test]
fn an_announcement_extends_whoever_brings_it() {
    let mut desk = Desk::new(rules("groq", false));
    desk.fail("m", failure(429), T0);
    let late = hinted(429, 60_000, HintSource::Header);
    desk.fail_from("m", late.clone(), (T0, T0.plus(1)));
    assert_eq!(desk.left("m", T0.plus(1)), Some(60_000));
    assert_eq!(desk.only().1.failure_count, 1);
    assert_eq!(
        desk.fail_from("m", late, (T0, T0.plus(500))),
        Outcome::Stale
    );
}

#[test]
fn a_success_forgets_only_what_was_before() {
    let mut desk = Desk::new(rules("groq", false));
    desk.fail("m", failure(429), T0.plus(10));
    let early = LockoutEvent::Succeeded {
        started_at: T0,
        model: "m".to_owned(),
        halve: false,
    };
    assert_eq!(desk.tell(&early, T0.plus(20)), Outcome::Nothing);
    assert!(desk.left("m", T0.plus(20)).is_some());
    assert!(desk.state.remembers("M ", &desk.rules));
    assert!(!desk.state.remembers("other", &desk.rules));
}

#[test]
fn clearing() {
    let mut desk = Desk::new(rules("codex", false));
    desk.fail("gpt-5.4", failure(429), T0);
    desk.fail("gpt-5.3-codex-spark", failure(429), T0);
    let clear = |model: Option<&str>| LockoutEvent::Clear {
        model: model.map(str::to_owned),
    };
    // Any model of the family clears it.
    desk.tell(&clear(Some("gpt-5.9")), T0);
    assert!(desk.left("gpt-5.4", T0).is_none());
    assert!(desk.left("gpt-5.3-codex-spark", T0).is_some());
    desk.tell(&clear(None), T0.plus(5));
    assert!(desk.state.is_clean());
    let outcome = desk.fail_from("gpt-5.4", failure(429), (T0, T0.plus(9)));
    assert_eq!(outcome, Outcome::Stale, "it began before the clearing");
}

#[test]
fn what_is_not_the_models_changes_nothing() {
    let mut desk = Desk::new(rules("groq", false));
    for blame in [Blame::Connection, Blame::Provider, Blame::Request] {
        let failure = Failure {
            blame,
            ..failure(503)
        };
        assert_eq!(desk.fail("m", failure, T0), Outcome::Nothing);
    }
    let restless = Failure {
        cooldown: Cooldown::None,
        ..failure(400)
    };
    assert_eq!(desk.fail("m", restless, T0), Outcome::Nothing);
    assert_eq!(desk.fail("  ", failure(503), T0), Outcome::Nothing);
}

fn named(n: usize, length: usize) -> String {
    format!("{n:a>length$}")
}

/// Locks that run stay; the one that there is no room for is not kept.
#[test]
fn the_number_of_locks_is_bounded() {
    let mut desk = Desk::new(rules("groq", false));
    for n in 0..ENTRIES_MAX {
        let wait = 1000 + n as u64;
        desk.fail(&format!("m{n}"), hinted(429, wait, HintSource::Header), T0);
    }
    let late = hinted(429, 90_000, HintSource::Header);
    assert_eq!(desk.fail("late", late.clone(), T0), Outcome::Nothing);
    assert_eq!(desk.state.running(T0).len(), ENTRIES_MAX);
    assert!(desk.left("m0", T0).is_some() && desk.left("late", T0).is_none());
    // One that is known is extended, and what is over makes room.
    desk.fail("m1", hinted(429, 80_000, HintSource::Header), T0.plus(1));
    assert_eq!(desk.left("m1", T0.plus(1)), Some(80_000));
    desk.fail("late", late, T0.plus(1001));
    assert!(desk.left("late", T0.plus(1001)).is_some());
}

/// Names that clients make up push each other out and no real lock.
#[test]
fn made_up_names_push_nothing_out() {
    let mut desk = Desk::new(rules("groq", false));
    desk.fail("real", hinted(429, 1000, HintSource::Header), T0);
    for n in 0..ENTRIES_MAX + 500 {
        desk.fail(&format!("m{n}"), failure(404), T0.plus(1));
    }
    assert!(desk.left("real", T0.plus(1)).is_some());
    let real = hinted(429, 2000, HintSource::Header);
    desk.fail("another", real, T0.plus(1));
    assert!(desk.left("another", T0.plus(1)).is_some());
    assert_eq!(desk.state.running(T0.plus(1)).len(), ENTRIES_MAX);
}

/// Everything that is remembered of the longest names still is a record.
#[test]
fn a_full_record_is_one_that_is_stored() {
    let mut desk = Desk::new(rules("groq", false));
    for n in 0..ENTRIES_MAX {
        let name = named(n, MODEL_MAX_BYTES);
        desk.fail(&name, hinted(429, u64::MAX, HintSource::Header), T0);
        let torn = LockoutEvent::Failed {
            started_at: T0.plus(1),
            model: name,
            failure: failure(502),
            after_output: true,
        };
        desk.tell(&torn, T0.plus(2));
    }
    let body = crate::mirror::record::encode_body(&desk.state).unwrap();
    assert!(body.len() < MAX_RECORD_BYTES, "{}", body.len());
    let long = named(0, MODEL_MAX_BYTES + 1);
    assert_eq!(desk.fail(&long, failure(404), T0), Outcome::Nothing);
}

#[test]
fn a_state_survives_its_record() {
    let mut desk = Desk::new(rules("codex", false));
    desk.fail("gpt-5.4", failure(429), T0);
    desk.fail("gpt-5.4", failure(502), T0);
    let json = serde_json::to_string(&desk.state).unwrap();
    let back: ModelLockouts = serde_json::from_str(&json).unwrap();
    assert_eq!(back, desk.state);
    assert_eq!(
        serde_json::from_str::<ModelLockouts>("{}").unwrap(),
        ModelLockouts::default()
    );
}

proptest! {
    /// A failure never shortens a lock, and its models are those of its scope.
    #[test]
    fn a_failure_never_shortens(
        events in proptest::collection::vec(
            (0..4_usize, 0..5_usize, 0..900_000_u64, 0..100_000_u64, any::<bool>(), any::<bool>()),
            1..40,
        ),
    ) {
        let mut desk = Desk::new(rules("codex", true));
        let mut now = T0;
        for (model, status, wait, step, hint, succeeds) in events {
            now = now.plus(step);
            let model = ["gpt-5.4", "GPT-5.4", "spark-1", "o"][model];
            let status = [402, 404, 429, 502, 503][status];
            let before: Vec<_> = ["gpt-5.4", "spark-1", "o"]
                .map(|model| desk.left(model, now).unwrap_or(0))
                .into();
            if succeeds {
                desk.succeed(model, true, now);
            } else if hint {
                desk.fail_from(model, hinted(status, wait, HintSource::Body), (T0, now));
            } else {
                desk.fail(model, failure(status), now);
            }
            let after: Vec<_> = ["gpt-5.4", "spark-1", "o"]
                .map(|model| desk.left(model, now).unwrap_or(0))
                .into();
            for (before, after) in before.iter().zip(&after) {
                prop_assert!(after >= before);
            }
        }
    }
}
