//! Every family of headers, and what is nonsense.

use super::{BOUND_MS, HOUR, T0, told};
use crate::quota::speaks;

/// Name, what counts it (empty: all), percent used, ms to its reset, its length.
type Row = (
    &'static str,
    &'static str,
    Option<f64>,
    Option<u64>,
    Option<u64>,
);

fn rows(provider: &str, model: &str, headers: &[(&str, &str)]) -> Vec<String> {
    let windows = told(provider, model, headers);
    windows
        .iter()
        .map(|w| {
            assert_eq!(w.observed_at, T0);
            format!(
                "{} [{}] {:?} {:?} {:?}",
                w.name,
                w.scope.as_deref().unwrap_or(""),
                w.used.map(crate::quota::Share::percent),
                w.resets_at.map(|at| at.since(T0)),
                w.window_ms
            )
        })
        .collect()
}

fn expect(provider: &str, headers: &[(&str, &str)], expected: &[Row]) {
    let expected: Vec<String> = expected
        .iter()
        .map(|(name, scope, used, wait, length)| {
            format!("{name} [{scope}] {used:?} {wait:?} {length:?}")
        })
        .collect();
    assert_eq!(rows(provider, "m", headers), expected, "{headers:?}");
}

#[test]
fn a_subscription_of_codex() {
    let headers = [
        ("x-codex-plan-type", "pro"),
        ("x-codex-active-limit", "premium"),
        ("x-codex-primary-used-percent", "47.5"),
        ("x-codex-primary-reset-after-seconds", "3600"),
        ("x-codex-primary-reset-at", "1790859601"),
        ("x-codex-primary-window-minutes", "300"),
        ("x-codex-secondary-used-percent", "101"),
        ("x-codex-secondary-reset-at", "1790863200"),
        ("x-codex-secondary-window-minutes", "10080"),
        ("x-codex-primary-over-secondary-limit-percent", "0"),
        ("x-codex-bengalfox-primary-used-percent", "3"),
        ("x-codex-bengalfox-primary-window-minutes", "10080"),
        ("x-codex-bengalfox-limit-name", "GPT-5.3-Codex-Spark"),
        ("x-codex-other-primary-used-percent", "99"),
    ];
    let week = Some(604_800_000);
    expect(
        "codex",
        &headers,
        &[
            // What is relative needs no clock.
            ("primary", "codex", Some(47.5), Some(HOUR), Some(5 * HOUR)),
            ("secondary", "codex", Some(100.0), Some(2 * HOUR), week),
            ("bengalfox-primary", "spark", Some(3.0), None, week),
            // A limit of which nobody knows what it counts is no family's.
            ("other-primary", "other", Some(99.0), None, None),
        ],
    );
}

#[test]
fn codex_in_its_other_spelling_and_windows_that_are_not_there() {
    let headers = [
        ("x-codex-5h-usage", "30"),
        ("x-codex-5h-limit", "120"),
        ("x-codex-5h-reset-at", "1790859600"),
        ("x-codex-primary-used-percent", "0"),
        ("x-codex-primary-reset-after-seconds", "0"),
        ("x-codex-primary-window-minutes", "0"),
        ("x-codex-primary-reset-at", ""),
    ];
    let expected = [("5h", "codex", Some(25.0), Some(HOUR), Some(5 * HOUR))];
    expect("codex", &headers, &expected);
}

#[test]
fn a_plan_of_claude() {
    let headers = [
        ("anthropic-ratelimit-unified-status", "allowed"),
        ("anthropic-ratelimit-unified-reset", "1790859600"),
        ("anthropic-ratelimit-unified-5h-utilization", "0.25"),
        ("anthropic-ratelimit-unified-5h-reset", "1790859600"),
        ("anthropic-ratelimit-unified-5h-status", "allowed_warning"),
        ("anthropic-ratelimit-unified-7d-utilization", "0.4"),
        ("anthropic-ratelimit-unified-7d-reset", "1790863200"),
        ("anthropic-ratelimit-unified-7d-status", "rejected"),
        ("anthropic-ratelimit-unified-7d_opus-utilization", "1.02"),
        ("anthropic-ratelimit-unified-overage-status", "rejected"),
        ("anthropic-ratelimit-unified-overage-reset", "1790859600"),
        (
            "anthropic-ratelimit-unified-representative-claim",
            "five_hour",
        ),
        ("anthropic-ratelimit-unified-fallback-percentage", "0.5"),
    ];
    let week = Some(604_800_000);
    expect(
        "claude",
        &headers,
        &[
            ("5h", "", Some(25.0), Some(HOUR), Some(5 * HOUR)),
            ("7d", "", Some(100.0), Some(2 * HOUR), week),
            ("7d_opus", "opus", Some(100.0), None, week),
        ],
    );
}

#[test]
fn buckets_of_keys() {
    let headers = [
        ("anthropic-ratelimit-requests-limit", "50"),
        ("anthropic-ratelimit-requests-remaining", "49"),
        ("anthropic-ratelimit-requests-reset", "2026-10-01T12:01:00Z"),
        ("anthropic-ratelimit-input-tokens-limit", "1000"),
        ("anthropic-ratelimit-input-tokens-remaining", "0"),
        (
            "anthropic-ratelimit-input-tokens-reset",
            "2026-10-01T11:59:00Z",
        ),
        ("anthropic-ratelimit-output-tokens-remaining", "7"),
    ];
    expect(
        "anthropic",
        &headers,
        &[
            ("requests", "", Some(2.0), Some(60_000), None),
            // What has passed is no reset.
            ("input-tokens", "", Some(100.0), None, None),
        ],
    );
    let headers = [
        ("x-ratelimit-limit-requests", "200"),
        ("x-ratelimit-remaining-requests", "50"),
        ("x-ratelimit-reset-requests", "6m0s"),
        ("x-ratelimit-limit-tokens", "40000"),
        ("x-ratelimit-remaining-tokens", "40000"),
        ("x-ratelimit-reset-tokens", "0s"),
        ("x-ratelimit-reset-tokens-minute", "11.38"),
        ("x-ratelimit-reset-after", "30"),
        ("x-ratelimit-reset", "60"),
        ("x-ratelimit-over-limit", "yes"),
    ];
    let rows = [
        ("requests", "", Some(75.0), Some(360_000), None),
        ("tokens", "", Some(0.0), None, None),
        ("tokens-minute", "", None, Some(11_380), Some(60_000)),
    ];
    expect("cerebras", &headers, &rows);
    // Where quotas count by model, so do their buckets.
    let [first, ..] = rows;
    let of_model = ("requests", "m", first.2, first.3, first.4);
    expect("openai", &headers[..3], &[of_model]);
}

#[test]
fn absurd_numbers_are_no_windows() {
    for percent in ["-1", "NaN", "inf", "1e9", "a", ""] {
        let headers = [
            ("x-codex-primary-used-percent", percent),
            ("x-codex-primary-reset-after-seconds", "60"),
        ];
        expect("codex", &headers, &[]);
    }
    for (limit, left) in [("0", "5"), ("-1", "5"), ("NaN", "5"), ("10", "x")] {
        let headers = [
            ("x-ratelimit-limit-requests", limit),
            ("x-ratelimit-remaining-requests", left),
            ("x-ratelimit-reset-requests", "1s"),
        ];
        expect("cerebras", &headers, &[]);
    }
    // Resets are bounded as announcements are; lengths of centuries are not known.
    let headers = [
        ("x-codex-primary-used-percent", "9"),
        ("x-codex-primary-reset-after-seconds", "99999999999999"),
        ("x-codex-primary-window-minutes", "99999999999999"),
    ];
    let row = ("primary", "codex", Some(9.0), Some(BOUND_MS), None);
    expect("codex", &headers, &[row]);
}

#[test]
fn absolute_times_are_measured_by_the_senders_clock() {
    let headers = [
        ("date", "Thu, 01 Oct 2026 13:00:00 GMT"),
        ("x-codex-primary-used-percent", "9"),
        ("x-codex-primary-reset-at", "1790863200"),
    ];
    let row = ("primary", "codex", Some(9.0), Some(HOUR), None);
    expect("codex", &headers, &[row]);
}

#[test]
fn other_headers_do_not_speak_of_quotas() {
    for name in ["x-codex-primary-used-percent", "x-ratelimit-reset"] {
        assert!(speaks(name), "{name}");
    }
    for name in ["content-type", "x-request-id", "retry-after", "x-codex"] {
        assert!(!speaks(name), "{name}");
    }
}
