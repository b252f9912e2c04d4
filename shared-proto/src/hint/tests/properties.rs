//! For any bytes at all: no panic, never 0, never above the bound.

use proptest::prelude::*;

use super::super::{Answer, reset_hint};
use super::BOUNDS;
use crate::clock::Millis;
use crate::failure::Reason;

const REASONS: [Reason; 8] = [
    Reason::QuotaExhausted,
    Reason::RateLimitExceeded,
    Reason::ModelCapacity,
    Reason::ServerError,
    Reason::AuthError,
    Reason::NotFound,
    Reason::ServiceNotRunning,
    Reason::Unknown,
];

const NAMES: [&str; 14] = [
    "retry-after",
    "retry-after-ms",
    "x-ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens-day",
    "anthropic-ratelimit-tokens-reset",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-unified-5h-status",
    "anthropic-ratelimit-unified-5h-reset",
    "x-codex-primary-used-percent",
    "x-codex-primary-reset-at",
    "date",
];

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| n.to_string()),
        "-?[0-9]{0,25}(\\.[0-9]{0,12})?(ns|us|ms|s|m|h|d)?",
        "[0-9]{1,4}h[0-9]{1,3}m[0-9]{1,3}(\\.[0-9]{1,12})?s",
        "(19|20|99)[0-9]{2}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9](:[0-6][0-9])?(Z|[+-][0-9]{2}:[0-9]{2})?",
        Just("rejected".to_owned()),
        Just("0".to_owned()),
        Just("Thu, 01 Oct 2026 12:01:30 GMT".to_owned()),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        (
            "(try again|retry|resets?|wait|available)( at| in| after| until|:) ?",
            value()
        )
            .prop_map(|(anchor, value)| format!("{anchor}{value}")),
        (value(), "(秒后重试| 重置|后重置)").prop_map(|(value, anchor)| format!("{value}{anchor}")),
    ];
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        text.prop_map(String::into_bytes),
        (
            "(resets_at|retryAfter|retry_after_ms|message|resets_in_seconds)",
            value()
        )
            .prop_map(|(key, value)| serde_json::json!({"error": {key: value}})
                .to_string()
                .into_bytes()),
    ]
}

proptest! {
    #[test]
    fn hints_are_sound(
        status in any::<u16>(),
        picked in proptest::collection::vec((0..NAMES.len(), value()), 0..8),
        body in body(),
        now in prop_oneof![any::<u64>(), 1_700_000_000_000..1_900_000_000_000_u64],
        limit in any::<bool>(),
    ) {
        let headers: Vec<_> = picked
            .into_iter()
            .map(|(name, value)| (NAMES[name].to_owned(), value))
            .collect();
        let answer = Answer {
            provider: "zai",
            status: if limit { 429 } else { status },
            headers: &headers,
            body: &body,
        };
        for reason in REASONS {
            let Some(hint) = reset_hint(&answer, reason, &BOUNDS, Millis::from_epoch_ms(now)) else {
                continue;
            };
            let bound = if reason == Reason::QuotaExhausted { BOUNDS.quota_ms } else { BOUNDS.rate_limit_ms };
            prop_assert!(hint.wait_ms > 0 && hint.wait_ms <= bound);
            prop_assert!(!hint.field.is_empty());
        }
    }
}
