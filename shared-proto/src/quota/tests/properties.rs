//! No header and no answer panics, and what comes of them is within bounds.

use proptest::prelude::*;

use super::{BOUND_MS, T0, told};
use crate::quota::usage::Usage;
use crate::quota::{Share, WINDOWS_MAX, Windows};

fn name() -> impl Strategy<Value = String> {
    let prefix = prop::sample::select(vec![
        "x-codex-",
        "anthropic-ratelimit-unified-",
        "anthropic-ratelimit-",
        "x-ratelimit-reset-",
        "x-ratelimit-remaining-",
        "x-ratelimit-limit-",
    ]);
    let window = "[a-z0-9_-]{0,6}(requests|tokens|primary|5h|)";
    let suffix = prop::sample::select(vec![
        "-used-percent",
        "-reset-after-seconds",
        "-reset-at",
        "-window-minutes",
        "-utilization",
        "-reset",
        "-status",
        "-limit",
        "-remaining",
        "-usage",
        "",
    ]);
    (prefix, window, suffix).prop_map(|(a, b, c)| format!("{a}{b}{c}"))
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<f64>().prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| number.to_string()),
        "[0-9]{0,3}[a-z]{0,2}",
        any::<String>(),
        Just("rejected".to_owned()),
        Just("2026-10-01T13:00:00Z".to_owned()),
    ]
}

proptest! {
    #[test]
    fn windows_are_within_bounds(headers in prop::collection::vec((name(), value()), 0..60)) {
        let pairs: Vec<(&str, &str)> = headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let windows = told("codex", "gpt-5", &pairs);
        prop_assert!(windows.len() <= WINDOWS_MAX);
        for window in &windows {
            prop_assert!(window.used.is_none_or(|used| used <= Share::ALL));
            let wait = window.resets_at.map(|at| at.since(T0));
            prop_assert!(wait.is_none_or(|wait| (1..=BOUND_MS).contains(&wait)));
        }
        let known = Windows::default().with(&windows, Some(Share::HALF));
        let again = known.with(&windows, Some(Share::HALF));
        prop_assert_eq!(&again, &known, "the same answer twice is one");
        prop_assert_eq!(again.newly_warned(&known).count(), 0);
    }

    #[test]
    fn shares_are_shares(percent in any::<f64>()) {
        if let Some(share) = Share::of_percent(percent) {
            prop_assert!((0.0..=100.0).contains(&share.percent()));
            prop_assert!((share.percent() + share.rest().percent() - 100.0).abs() < 1e-9);
        }
    }

    #[test]
    fn any_body_is_read(body in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Usage::read(&body, T0).is_none_or(|usage| usage.observed_at() == T0));
    }
}
