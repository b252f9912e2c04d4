//! The grammars of announced resets, one table a kind.
//!
//! Three of the numbered vectors hold with other numbers here: HNT-05 (a small
//! `x-ratelimit-reset` is relative, 60000), HNT-08 (the cap is the bound of the
//! reason, so 48 h stay 48 h), HNT-12 (units may be spelled out, 18000000).

use super::{Answer, reset_hint, retry_after_ms};
use crate::clock::Millis;
use crate::config::HintBounds;
use crate::failure::{HintSource, Reason, ResetHint};

mod corpus;
mod fields;
mod properties;
mod prose;

/// 2026-10-01T12:00:00Z.
pub(crate) const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);

/// The default bounds: 30 days and 8 days.
pub(crate) const BOUNDS: HintBounds = HintBounds {
    quota_ms: 2_592_000_000,
    rate_limit_ms: 691_200_000,
};

pub(crate) fn at(rfc3339: &str) -> Millis {
    let at: jiff::Timestamp = rfc3339.parse().unwrap();
    Millis::from_epoch_ms(u64::try_from(at.as_millisecond()).unwrap())
}

fn pairs(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn hint_of(status: u16, headers: &[(&str, &str)], body: &str) -> Option<ResetHint> {
    hint_from("acme", status, headers, body)
}

fn hint_from(
    provider: &str,
    status: u16,
    headers: &[(&str, &str)],
    body: &str,
) -> Option<ResetHint> {
    let headers = pairs(headers);
    let answer = Answer {
        provider,
        status,
        headers: &headers,
        body: body.as_bytes(),
    };
    reset_hint(&answer, Reason::QuotaExhausted, &BOUNDS, T0)
}

fn wait_of(status: u16, headers: &[(&str, &str)], body: &str) -> Option<u64> {
    hint_of(status, headers, body).map(|hint| hint.wait_ms)
}

#[test]
fn single_headers() {
    // (header, value, wait)
    let table = [
        ("retry-after-ms", "1500", Some(1500)),
        ("retry-after-ms", "1500.2", Some(1501)),
        ("x-ms-retry-after-ms", "7000", Some(7000)),
        ("retry-after", "30", Some(30_000)), // HNT-01
        ("retry-after", " 30 ", Some(30_000)),
        ("retry-after", "0.25", Some(250)),
        ("retry-after", "0", None),
        ("retry-after", "-5", None),
        ("retry-after", "", None),
        ("retry-after", "120s", None),
        ("retry-after", "5m", None), // HNT-03
        ("retry-after", "soon", None),
        ("retry-after", "1e3", None),
        ("retry-after", "30, 60", None),
        ("retry-after", "Thu, 01 Oct 2026 12:01:30 GMT", Some(90_000)),
        ("retry-after", "Mon, 01 Oct 2026 12:01:30 GMT", Some(90_000)),
        ("retry-after", "Thu, 01 Oct 2026 11:59:00 GMT", None),
        ("retry-after", "1790856045", Some(45_000)),
        ("retry-after", "1790856045000", Some(45_000)),
        ("retry-after", "1790855999", None),
        ("retry-after", "999999999", Some(BOUNDS.quota_ms)),
        (
            "retry-after",
            "99999999999999999999999",
            Some(BOUNDS.quota_ms),
        ),
        ("x-ratelimit-user-retry-after", "465000", Some(465_000_000)),
        (
            "x-ratelimit-quota-exceeded-retry-after",
            "12.5",
            Some(12_500),
        ),
        ("x-ratelimit-reset-after", "20", Some(20_000)),
        ("x-ratelimit-reset", "1790856045", Some(45_000)), // HNT-04
        ("x-ratelimit-reset", "1790856045000", Some(45_000)), // HNT-04
        ("x-ratelimit-reset", "60", Some(60_000)),         // HNT-05
        ("x-ratelimit-reset", "1s", Some(1000)),
        ("x-ratelimit-reset", "1790855999", None),
        ("x-ratelimit-over-limit", "yes", None),
        ("x-should-retry", "false", None),
        // Gauges without their `remaining`.
        ("x-ratelimit-reset-tokens", "6m0s", None),
        (
            "anthropic-ratelimit-requests-reset",
            "2026-10-01T12:01:00Z",
            None,
        ),
        ("anthropic-ratelimit-unified-reset", "1790856060", None),
        ("x-codex-primary-reset-after-seconds", "100", None),
        // Buckets that are named after their window.
        ("x-ratelimit-reset-tokens-minute", "11.38", Some(11_380)),
        ("x-ratelimit-reset-tokens-minute", "12s", Some(12_000)),
    ];
    for (name, value, wait) in table {
        assert_eq!(wait_of(429, &[(name, value)], ""), wait, "{name}: {value}");
    }
}

#[test]
fn go_durations_of_an_empty_bucket() {
    let table = [
        ("12ms", Some(12)),
        ("1s", Some(1000)),
        ("7.66s", Some(7660)),
        ("6m0s", Some(360_000)),
        ("2m59.56s", Some(179_560)),
        ("1h2m3.5s", Some(3_723_500)),
        ("1d2h", Some(93_600_000)),
        ("100us", Some(1)),
        ("1500\u{b5}s", Some(2)),
        ("1ns", Some(1)),
        ("0s", None),
        ("0h0m", None),
        ("1x", None),
        ("s", None),
        ("1s?", None),
        ("-1s", None),
        ("1 s", None),
    ];
    for (value, wait) in table {
        let headers = [
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", value),
        ];
        assert_eq!(wait_of(429, &headers, ""), wait, "{value}");
    }
}

#[test]
fn only_empty_buckets_count_and_only_on_a_429() {
    let groq = [
        ("x-ratelimit-remaining-requests", "14370"),
        ("x-ratelimit-reset-requests", "2m59.56s"),
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "7.66s"),
    ];
    let hint = hint_of(429, &groq, "").unwrap();
    assert_eq!(
        (hint.wait_ms, hint.field.as_str()),
        (7660, "x-ratelimit-reset-tokens")
    );
    assert_eq!(wait_of(400, &groq, ""), None);
    assert_eq!(wait_of(200, &groq, ""), None);

    let third = [
        ("x-ratelimit-remaining-tokens_usage_based", "0"),
        ("x-ratelimit-reset-tokens_usage_based", "1s"),
    ];
    assert_eq!(wait_of(429, &third, ""), Some(1000));

    let cerebras = [
        ("x-ratelimit-reset-requests-day", "33011.4"),
        ("x-ratelimit-reset-tokens-minute", "11.38"),
    ];
    assert_eq!(wait_of(429, &cerebras, ""), Some(33_011_400));
    let minute = [
        ("x-ratelimit-remaining-requests-day", "5"),
        cerebras[0],
        cerebras[1],
    ];
    assert_eq!(wait_of(429, &minute, ""), Some(11_380));

    let open = [("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "60")];
    assert_eq!(wait_of(429, &open, ""), None);
}

#[test]
fn anthropic_windows() {
    let unified = |window: &str, what: &str| format!("anthropic-ratelimit-unified-{window}-{what}");
    let of = |windows: &[(&str, &str, &str)], more: &[(&str, &str)]| {
        let mut headers = pairs(more);
        for (window, status, reset) in windows {
            headers.push((unified(window, "status"), (*status).to_owned()));
            headers.push((unified(window, "reset"), (*reset).to_owned()));
        }
        let answer = Answer {
            provider: "claude",
            status: 429,
            headers: &headers,
            body: b"",
        };
        reset_hint(&answer, Reason::QuotaExhausted, &BOUNDS, T0).map(|hint| hint.wait_ms)
    };
    let both = ("anthropic-ratelimit-unified-status", "rejected");
    let summary = ("anthropic-ratelimit-unified-reset", "1790856300");
    assert_eq!(
        of(
            &[
                ("5h", "rejected", "1790856060"),
                ("7d", "allowed", "1791000000")
            ],
            &[both]
        ),
        Some(60_000)
    );
    assert_eq!(
        of(
            &[
                ("5h", "rejected", "1790856060"),
                ("7d", "rejected", "1790856120")
            ],
            &[both, summary]
        ),
        Some(120_000)
    );
    assert_eq!(of(&[("5h", "allowed_warning", "1790856060")], &[]), None);
    assert_eq!(of(&[("overage", "rejected", "1790856060")], &[]), None);
    assert_eq!(
        of(&[("5h", "allowed", "1790856060")], &[both, summary]),
        Some(300_000)
    );
    assert_eq!(
        of(&[("7d_oi", "rejected", "1790856060")], &[]),
        Some(60_000)
    );
    // `retry-after` needs no clock.
    assert_eq!(
        of(
            &[("5h", "rejected", "1790856060")],
            &[("retry-after", "59")]
        ),
        Some(59_000)
    );
}

#[test]
fn codex_windows() {
    let headers = [
        ("x-codex-primary-used-percent", "100"),
        ("x-codex-primary-reset-after-seconds", "13873"),
        ("x-codex-primary-reset-at", "1790869874"),
        ("x-codex-secondary-used-percent", "80"),
        ("x-codex-secondary-reset-after-seconds", "316705"),
        ("x-codex-secondary-reset-at", "1791172705"),
    ];
    assert_eq!(wait_of(429, &headers, ""), Some(13_873_000));
    let absolute = [headers[0], headers[2], headers[3], headers[5]];
    assert_eq!(wait_of(429, &absolute, ""), Some(13_874_000));
    let empty = [
        headers[0],
        ("x-codex-primary-reset-after-seconds", ""),
        ("x-codex-primary-reset-at", ""),
    ];
    assert_eq!(wait_of(429, &empty, ""), None);
    assert_eq!(wait_of(200, &headers, ""), None);
}

#[test]
fn absolute_times_are_measured_by_the_senders_clock() {
    let anthropic = |date: &str| {
        let headers = [
            ("date", date),
            ("anthropic-ratelimit-tokens-remaining", "0"),
            ("anthropic-ratelimit-tokens-reset", "2026-10-01T12:10:00Z"),
        ];
        wait_of(429, &headers, "")
    };
    assert_eq!(anthropic("Thu, 01 Oct 2026 12:04:00 GMT"), Some(360_000));
    // A day off and more: ours is the better one.
    assert_eq!(anthropic("Thu, 01 Oct 2020 12:04:00 GMT"), Some(600_000));
    assert_eq!(anthropic("yesterday"), Some(600_000));
}

#[test]
fn precedence() {
    let hint = hint_of(
        429,
        &[("retry-after", "60"), ("retry-after-ms", "1500")],
        "",
    )
    .unwrap();
    assert_eq!(
        (hint.wait_ms, hint.field.as_str()),
        (1500, "retry-after-ms")
    );
    assert_eq!(hint.source, HintSource::Header);
    // 0 never beats a positive value, of whatever rank.
    assert_eq!(
        wait_of(429, &[("retry-after", "60"), ("retry-after-ms", "0")], ""),
        Some(60_000)
    );
    // Within a rank the longer one.
    let two = r#"{"error":{"resets_in_seconds":20}}"#;
    assert_eq!(
        wait_of(429, &[("retry-after-ms", "1500")], two),
        Some(20_000)
    );
    // Relative beats absolute: a header beats the body's time.
    let absolute = r#"{"error":{"resets_at":1790856900}}"#;
    assert_eq!(
        wait_of(429, &[("retry-after", "60")], absolute),
        Some(60_000)
    );
    // Prose comes last.
    let prose = r#"{"message":"try again in 5s"}"#;
    assert_eq!(wait_of(429, &[("retry-after", "60")], prose), Some(60_000));
    assert_eq!(wait_of(429, &[], prose), Some(5000));
    // ... but gives the fraction that a whole second lost.
    let twin = "Please retry in 36.429760048s.";
    assert_eq!(wait_of(429, &[("retry-after", "36")], twin), Some(36_430));
    assert_eq!(wait_of(429, &[("retry-after", "37")], twin), Some(37_000));
    // Also on statuses that aren't limits.
    assert_eq!(wait_of(503, &[("retry-after", "60")], ""), Some(60_000));
    assert_eq!(wait_of(529, &[("retry-after", "60")], ""), Some(60_000));
}

#[test]
fn bounds_and_reasons() {
    let headers = pairs(&[("retry-after", "10000000")]);
    let answer = Answer {
        provider: "acme",
        status: 429,
        headers: &headers,
        body: b"",
    };
    let wait = |reason| reset_hint(&answer, reason, &BOUNDS, T0).map(|hint| hint.wait_ms);
    assert_eq!(wait(Reason::QuotaExhausted), Some(BOUNDS.quota_ms));
    assert_eq!(wait(Reason::RateLimitExceeded), Some(BOUNDS.rate_limit_ms));
    assert_eq!(wait(Reason::ServerError), Some(BOUNDS.rate_limit_ms));
    assert_eq!(wait(Reason::AuthError), None);
    assert_eq!(wait(Reason::NotFound), None);
}

#[test]
fn a_retry_after_alone() {
    let now = Millis::from_epoch_ms(1_445_412_480_000); // 2015-10-21 07:28 UTC
    for (value, wait) in [
        ("30", Some(30_000)),
        (" 2.5 ", Some(2_500)),
        ("Wed, 21 Oct 2015 07:28:30 GMT", Some(30_000)),
        ("Wed, 21 Oct 2015 07:28:00 GMT", None),
        ("Wed, 21 Oct 2015 07:27:00 GMT", None),
        ("soon", None),
        ("", None),
    ] {
        assert_eq!(retry_after_ms(value, now), wait, "{value:?}");
    }
}
