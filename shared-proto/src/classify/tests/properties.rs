//! For any bytes at all: a sound failure.

use proptest::prelude::*;

use super::refused;
use crate::failure::{Blame, Cooldown, Profile};

fn body() -> impl Strategy<Value = Vec<u8>> {
    let words = prop_oneof![
        Just("model"),
        Just("not found"),
        Just("quota"),
        Just("exceeded"),
        Just("rate limit"),
        Just("context"),
        Just("overloaded"),
        Just("sk-abcdef"),
        Just("<html>"),
        Just("额度不足"),
        Just("insufficient balance"),
        Just("resets in 5 hours"),
        Just("\u{130}\n"),
    ];
    let text = proptest::collection::vec(words, 0..12).prop_map(|words| words.join(" "));
    let json = (text.clone(), any::<String>(), any::<i64>()).prop_map(|(text, code, n)| {
        serde_json::json!({"error": {"message": text, "code": code, "status": n, "metadata": {"raw": code}}})
            .to_string()
    });
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        text.prop_map(String::into_bytes),
        json.clone().prop_map(String::into_bytes),
        (json, 0..200_usize).prop_map(|(json, cut)| {
            let mut bytes = json.into_bytes();
            bytes.truncate(cut);
            bytes
        }),
    ]
}

proptest! {
    #[test]
    fn failures_are_sound(
        status in prop_oneof![any::<u16>(), 400..600_u16, Just(200_u16)],
        body in body(),
        oauth in any::<bool>(),
        per_model in any::<bool>(),
        in_stream in any::<bool>(),
        retry_after in any::<String>(),
    ) {
        let mut refusal = refused(status, &String::from_utf8_lossy(&body))
            .from("agentrouter")
            .header("retry-after", &retry_after);
        refusal.profile = if oauth { Profile::Oauth } else { Profile::ApiKey };
        refusal.per_model_quota = per_model;
        refusal.in_stream = in_stream;
        let got = refusal.failure();
        prop_assert!(got.status >= 400);
        prop_assert!(!got.message.is_empty() && got.message.chars().count() <= 300);
        prop_assert!(!got.message.contains("sk-abcdef") && !got.message.contains("<html"));
        prop_assert!(got.upstream_code.is_none_or(|code| code.chars().count() <= 64));
        prop_assert!(got.terminal.is_none() || got.blame == Blame::Connection);
        prop_assert!(got.terminal.is_none() || got.cooldown == Cooldown::None);
        prop_assert!(got.blame != Blame::Request || got.cooldown == Cooldown::None && !got.counts_for_breaker);
        prop_assert!(got.hint.is_none_or(|hint| hint.wait_ms > 0));
    }
}
