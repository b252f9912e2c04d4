//! Locks that are set before anybody refused, and their early end (CCD-26, CCD-27).

use serde_json::json;

use super::super::{Freed, LockoutEvent, ModelLockouts, Outcome};
use super::{Desk, T0, failure, hinted, rules};
use crate::clock::Millis;
use crate::failure::{HintSource, Reason};
use crate::quota::preflight::{Origin, Policy};
use crate::quota::usage::{EVERY_MS, FRESH_MS, Usage};

const HOUR: u64 = 3_600_000;
const MODEL: &str = "gpt-5.6-luna";

fn origin() -> Origin {
    Origin {
        window: "primary".into(),
        window_ms: Some(5 * HOUR),
        resets_at: T0.plus(HOUR),
        observed_at: T0.minus(500),
    }
}

fn withheld(model: &str, origin: Origin) -> LockoutEvent {
    LockoutEvent::Withheld {
        model: model.to_owned(),
        origin,
    }
}

fn withheld_at(now: Millis) -> Desk {
    let mut desk = Desk::new(rules("codex", false));
    let outcome = desk.tell(&withheld(MODEL, origin()), now);
    assert!(matches!(outcome, Outcome::Locked(_)), "{outcome:?}");
    desk
}

fn usage(asked_at: Millis) -> Usage {
    let answer = json!({"rate_limit": {
        "allowed": true,
        "limit_reached": false,
        "primary_window": {
            "used_percent": 1,
            "limit_window_seconds": 18_000,
            "reset_at": (T0.plus(6 * HOUR)).as_epoch_ms().div_euclid(1_000),
        },
    }});
    Usage::read(answer.to_string().as_bytes(), asked_at).unwrap()
}

fn freed(asked_at: Millis) -> Freed {
    Freed {
        key: "codex".into(),
        origin: origin(),
        until: origin().resets_at,
        policy: Policy::clone(&rules("codex", false).preflight),
        usage: usage(asked_at),
    }
}

fn told(freed: Freed) -> LockoutEvent {
    LockoutEvent::Freed(Box::new(freed))
}

#[test]
fn the_family_rests_until_the_reset_and_others_go_on() {
    let desk = withheld_at(T0);
    let (key, lockout) = desk.only();
    assert_eq!((key, lockout.reason), ("codex", Reason::QuotaExhausted));
    assert_eq!(lockout.withheld.as_ref().unwrap().origin, origin());
    assert_eq!(desk.left("gpt-5.4", T0), Some(HOUR));
    assert_eq!(desk.left("gpt-5.3-codex-spark", T0), None);
    assert_eq!(desk.left("gpt-5.4", T0.plus(HOUR)), None);
}

#[test]
fn it_is_written_once_and_never_over_a_lock_that_runs() {
    let mut desk = withheld_at(T0);
    let longer = Origin {
        resets_at: T0.plus(9 * HOUR),
        ..origin()
    };
    let again = desk.tell(&withheld("gpt-5.4", longer.clone()), T0.plus(1));
    assert_eq!(again, Outcome::Stale);
    assert_eq!(desk.left(MODEL, T0), Some(HOUR));
    // An ordinary lock stays what it is.
    let mut desk = Desk::new(rules("codex", false));
    desk.fail(MODEL, hinted(429, 60_000, HintSource::Header), T0);
    assert_eq!(desk.tell(&withheld(MODEL, longer), T0), Outcome::Stale);
    assert_eq!(desk.left(MODEL, T0), Some(60_000));
    assert!(desk.only().1.withheld.is_none());
    // What is over, or was told before an operator's clearing, is no reason.
    let mut desk = Desk::new(rules("codex", false));
    let over = desk.tell(&withheld(MODEL, origin()), T0.plus(HOUR));
    assert_eq!(over, Outcome::Stale);
    desk.fail(MODEL, failure(429), T0.plus(1));
    desk.tell(&LockoutEvent::Clear { model: None }, T0.plus(2));
    let old = desk.tell(&withheld(MODEL, origin()), T0.plus(3));
    assert_eq!(old, Outcome::Stale);
    assert_eq!(desk.tell(&withheld(" ", origin()), T0), Outcome::Nothing);
}

#[test]
fn one_question_at_a_time_and_one_a_minute() {
    let mut desk = withheld_at(T0);
    let due = desk.state.due(T0).unwrap();
    assert_eq!((due.key.as_str(), due.number), ("codex", 1));
    assert_eq!(due.until, origin().resets_at);
    let looking = |number| LockoutEvent::Looking {
        key: "codex".into(),
        origin: origin(),
        number,
    };
    assert_eq!(desk.tell(&looking(1), T0), Outcome::Looking);
    assert_eq!(desk.tell(&looking(1), T0), Outcome::Nothing, "another node");
    assert_eq!(desk.state.due(T0.plus(EVERY_MS - 1)), None);
    let next = desk.state.due(T0.plus(EVERY_MS)).unwrap();
    assert_eq!(next.number, 2);
    assert_eq!(desk.state.due(T0.plus(HOUR)), None, "it is over");
    // Of other windows nothing is asked.
    let mut desk = Desk::new(rules("codex", false));
    let own = Origin {
        window: "bengalfox-primary".into(),
        ..origin()
    };
    desk.tell(&withheld("gpt-5.3-codex-spark", own), T0);
    assert_eq!(desk.only().0, "spark");
    assert_eq!(desk.state.due(T0), None);
}

#[test]
fn ccd_26_live_usage_ends_the_lock() {
    let mut desk = withheld_at(T0);
    let now = T0.plus(FRESH_MS);
    assert_eq!(desk.tell(&told(freed(T0)), now), Outcome::Recovered);
    assert_eq!(desk.left(MODEL, now), None);
    assert!(desk.state.is_clean());
    // Who knows only the old windows does not lock it again.
    let late = desk.tell(&withheld(MODEL, origin()), now);
    assert_eq!(late, Outcome::Stale);
    let newer = Origin {
        observed_at: now,
        resets_at: T0.plus(6 * HOUR),
        ..origin()
    };
    let outcome = desk.tell(&withheld(MODEL, newer), now);
    assert!(matches!(outcome, Outcome::Locked(_)), "{outcome:?}");
}

#[test]
fn ccd_27_what_changed_meanwhile_keeps_the_lock() {
    let other = Origin {
        observed_at: T0,
        ..origin()
    };
    let mut policy = crate::config::Settings::default();
    policy.quota_preflight.default_threshold_percent = 3;
    let codex = &crate::catalogue::entry("codex").unwrap().provider;
    let changed = [
        Freed {
            origin: other,
            ..freed(T0)
        },
        Freed {
            until: T0.plus(HOUR + 1),
            ..freed(T0)
        },
        Freed {
            policy: Policy::of(&policy, codex),
            ..freed(T0)
        },
        Freed {
            key: "spark".into(),
            ..freed(T0)
        },
    ];
    for freed in changed {
        let mut desk = withheld_at(T0);
        assert_eq!(
            desk.tell(&told(freed.clone()), T0),
            Outcome::Stale,
            "{freed:?}"
        );
        assert_eq!(desk.left(MODEL, T0), Some(HOUR));
    }
    let mut desk = withheld_at(T0);
    let late = T0.plus(FRESH_MS + 1);
    assert_eq!(desk.tell(&told(freed(T0)), late), Outcome::Stale);
    // A refusal met later made it an ordinary lock.
    let mut desk = withheld_at(T0);
    desk.fail_from(
        MODEL,
        hinted(429, 2 * HOUR, HintSource::Header),
        (T0, T0.plus(1)),
    );
    assert!(desk.only().1.withheld.is_none());
    assert_eq!(desk.tell(&told(freed(T0)), T0.plus(2)), Outcome::Stale);
    // One that never had a reason.
    let mut desk = Desk::new(rules("codex", false));
    desk.fail(MODEL, hinted(429, HOUR, HintSource::Header), T0);
    assert_eq!(desk.tell(&told(freed(T0)), T0), Outcome::Stale);
    assert_eq!(desk.left(MODEL, T0), Some(HOUR));
}

#[test]
fn records_of_before_are_read() {
    let mut desk = withheld_at(T0);
    desk.fail("other-family", failure(502), T0);
    let mut old = serde_json::to_value(&desk.state).unwrap();
    for lock in old["entries"].as_object_mut().unwrap().values_mut() {
        lock.as_object_mut().unwrap().shift_remove("withheld");
    }
    old.as_object_mut().unwrap().shift_remove("freed_at");
    let read: ModelLockouts = serde_json::from_value(old).unwrap();
    assert_eq!(read.running(T0).len(), 2);
    assert_eq!(read.due(T0), None);
}
