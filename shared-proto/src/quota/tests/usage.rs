//! CCD-26 and CCD-27: what a live usage has to say before it ends a rest.

use serde_json::{Value, json};

use super::{HOUR, T0, policy};
use crate::clock::Millis;
use crate::quota::preflight::Origin;
use crate::quota::usage::{FRESH_MS, Usage, may_end};

const FIVE_HOURS_MS: u64 = 5 * HOUR;

fn origin() -> Origin {
    Origin {
        window: "primary".into(),
        window_ms: Some(FIVE_HOURS_MS),
        resets_at: T0.plus(HOUR),
        observed_at: T0.minus(1_000),
    }
}

fn seconds(at: Millis) -> u64 {
    at.as_epoch_ms().div_euclid(1_000)
}

/// An account whose first window has begun anew.
fn roomy() -> Value {
    let window = |used: u64, length: u64, resets_at: Millis| {
        json!({
            "used_percent": used,
            "limit_window_seconds": length,
            "reset_after_seconds": 60,
            "reset_at": seconds(resets_at),
        })
    };
    json!({
        "plan_type": "plus",
        "rate_limit": {
            "allowed": true,
            "limit_reached": false,
            "primary_window": window(1, 18_000, T0.plus(6 * HOUR)),
            "secondary_window": window(60, 604_800, T0.plus(90 * HOUR)),
        },
        "additional_rate_limits": [{
            "limit_name": "GPT-5.3-Codex-Spark",
            "metered_feature": "codex_bengalfox",
            "rate_limit": {"allowed": false, "limit_reached": true, "primary_window": window(100, 18_000, T0)},
        }],
    })
}

fn ends(answer: &Value, origin: &Origin, (asked_at, now): (Millis, Millis)) -> bool {
    let usage = Usage::read(answer.to_string().as_bytes(), asked_at);
    let policy = policy("codex", |_| {});
    usage.is_some_and(|usage| usage.ends(origin, &policy, now))
}

#[test]
fn ccd_26_a_window_that_began_anew_ends_its_rest() {
    assert!(may_end(&origin()));
    for age in [0, FRESH_MS] {
        assert!(ends(&roomy(), &origin(), (T0, T0.plus(age))), "{age}");
    }
    // A plan without the second window; an answer without what is not needed.
    let changes: [(&str, Value); 4] = [
        ("/rate_limit/secondary_window", Value::Null),
        (
            "/rate_limit/primary_window/reset_after_seconds",
            json!(17.5),
        ),
        ("/rate_limit/secondary_window/used_percent", json!(97.9)),
        ("/additional_rate_limits", json!("nonsense")),
    ];
    for (path, value) in changes {
        let mut answer = roomy();
        *answer.pointer_mut(path).unwrap() = value;
        assert!(ends(&answer, &origin(), (T0, T0)), "{path}");
    }
}

#[test]
fn ccd_27_in_doubt_the_rest_stays() {
    let same_reset = json!(seconds(origin().resets_at));
    let changes: [(&str, Value); 15] = [
        ("/rate_limit/limit_reached", json!(true)),
        ("/rate_limit/limit_reached", json!("false")),
        ("/rate_limit/allowed", json!(false)),
        ("/rate_limit/allowed", json!(1)),
        ("/rate_limit/primary_window", Value::Null),
        ("/rate_limit/primary_window/reset_at", same_reset),
        ("/rate_limit/primary_window/reset_at", json!("soon")),
        ("/rate_limit/primary_window/reset_at", json!(1e300)),
        (
            "/rate_limit/primary_window/reset_after_seconds",
            Value::Null,
        ),
        (
            "/rate_limit/primary_window/limit_window_seconds",
            json!(3600),
        ),
        ("/rate_limit/primary_window/used_percent", json!(98)),
        ("/rate_limit/primary_window/used_percent", json!(-1)),
        ("/rate_limit/secondary_window/used_percent", json!(98)),
        ("/rate_limit/secondary_window/used_percent", Value::Null),
        ("/rate_limit/secondary_window", json!([])),
    ];
    for (path, value) in changes {
        let mut answer = roomy();
        *answer.pointer_mut(path).unwrap() = value.clone();
        assert!(!ends(&answer, &origin(), (T0, T0)), "{path} {value}");
    }
}

#[test]
fn ccd_27_each_field_that_decides_has_to_be_there() {
    for (place, field) in [
        ("/rate_limit", "limit_reached"),
        ("/rate_limit", "primary_window"),
        ("/rate_limit/primary_window", "used_percent"),
        ("/rate_limit/primary_window", "limit_window_seconds"),
        ("/rate_limit/primary_window", "reset_at"),
        ("/rate_limit/secondary_window", "used_percent"),
        ("/rate_limit/secondary_window", "limit_window_seconds"),
        ("/rate_limit/secondary_window", "reset_at"),
        ("", "rate_limit"),
    ] {
        let mut answer = roomy();
        let map = answer.pointer_mut(place).unwrap().as_object_mut().unwrap();
        map.shift_remove(field).unwrap();
        assert!(!ends(&answer, &origin(), (T0, T0)), "{place}/{field}");
    }
}

#[test]
fn ccd_27_of_this_rest_and_fresh() {
    // Too old, or asked for before the rest began.
    let late = (T0, T0.plus(FRESH_MS + 1));
    assert!(!ends(&roomy(), &origin(), late));
    let before = (T0.minus(1_001), T0);
    assert!(!ends(&roomy(), &origin(), before));
    // Not of a window that the answer tells of.
    let others = [
        ("secondary", Some(FIVE_HOURS_MS)),
        ("bengalfox-primary", Some(FIVE_HOURS_MS)),
        ("primary", None),
    ];
    for (window, window_ms) in others {
        let origin = Origin {
            window: window.into(),
            window_ms,
            ..origin()
        };
        assert!(!ends(&roomy(), &origin, (T0, T0)), "{window}");
        assert_eq!(may_end(&origin), window == "secondary");
    }
    for garbage in [
        "",
        "null",
        "[]",
        "{\"rate_limit\": 1}",
        "{\"rate_limit\": {\"limit_reached\": false, \"primary_window\": {\"used_percent\": 1e999}}}",
    ] {
        assert_eq!(Usage::read(garbage.as_bytes(), T0), None, "{garbage}");
    }
}

#[test]
fn the_cutoff_of_each_window_is_its_own() {
    let usage = Usage::read(roomy().to_string().as_bytes(), T0).unwrap();
    let strict = policy("codex", |rules| {
        let of_codex = [("secondary".to_owned(), 40)].into();
        rules.provider_window_defaults = [("codex".to_owned(), of_codex)].into();
    });
    assert!(!usage.ends(&origin(), &strict, T0));
    let windows = usage.windows("codex", HOUR);
    let names: Vec<&str> = windows.iter().map(|window| &*window.name).collect();
    assert_eq!(names, ["primary", "secondary"]);
    assert_eq!(windows[0].resets_at, Some(T0.plus(HOUR)), "bounded");
}
