//! How many of the recorded refusals are read rightly. The floors only ever rise.
//! The one left is a stream that breaks after its first output: that nobody else
//! may be tried is the relay's knowledge, not the classifier's.

use super::super::{BadAnswer, ClassifyRules, UpstreamError, classify, stream_failure};
use crate::catalogue;
use crate::failure::{Blame, Failure, Profile};
use crate::hint::Answer;
use crate::hint::corpus::{Entry, entries};
use crate::hint::tests::BOUNDS;
use crate::restate;

/// Entries that agree on fallback, scope and terminal state.
const FLOOR: usize = 117;
/// Entries in which no account is put out that should stay, which weighs more than the rest.
const FLOOR_SPARED: usize = 118;

/// Relays and subscriptions that the catalogue doesn't have, as an operator would configure them.
fn profile(provider: &str) -> Profile {
    match provider {
        "xai-oauth" | "gemini-code-assist" | "kimi-coding" => Profile::Oauth,
        _ => catalogue::entry(provider).map_or(Profile::ApiKey, |entry| entry.provider.profile),
    }
}

fn per_model_quota(provider: &str) -> bool {
    match provider {
        "new-api" | "one-api" | "gemini-code-assist" | "openai-compatible" => true,
        _ => catalogue::entry(provider).is_some_and(|entry| entry.provider.per_model_quota),
    }
}

/// Answers of 200 without an error to read are told by the stream's own rules.
fn bad_answer(id: &str) -> Option<BadAnswer> {
    match id {
        "openrouter-200-finish-reason-error" => Some(BadAnswer::FinishError),
        "zai-200-null-choices" | "lmstudio-200-empty-stream-on-overflow" => Some(BadAnswer::Empty),
        "generic-200-truncated-json" | "generic-200-stream-cut-before-terminal" => {
            Some(BadAnswer::Truncated)
        }
        _ => None,
    }
}

/// What the classifier makes of `entry`.
pub(super) fn failure(entry: &Entry) -> Failure {
    let known = catalogue::entry(&entry.provider);
    let reading = known
        .map(|known| known.provider.reading)
        .unwrap_or_default();
    if let Some(kind) = bad_answer(&entry.id) {
        return stream_failure(kind, reading);
    }
    let restate = restate::built_in();
    let rules = ClassifyRules {
        hint_bounds: &BOUNDS,
        custom_banned_signals: &[],
        provider_rules: &[],
        restate: &restate,
    };
    let headers = entry.headers();
    let error = UpstreamError {
        answer: Answer {
            provider: known.map_or(entry.provider.as_str(), |known| known.provider.id.as_str()),
            ..entry.answer(&headers)
        },
        profile: profile(&entry.provider),
        per_model_quota: per_model_quota(&entry.provider),
        reading,
        daily_reset: None,
        model: Some("some-model"),
        in_stream: entry.status == 200,
    };
    classify(&error, &rules, entry.now())
}

/// What is blamed, in the terms of the data.
pub(super) fn scope(blame: Blame) -> &'static str {
    match blame {
        Blame::Request | Blame::ProtocolQuirk | Blame::Router | Blame::Client => "request",
        Blame::Model => "model",
        Blame::Connection => "connection",
        Blame::EgressIp | Blame::Provider => "provider",
    }
}

#[test]
fn recorded_refusals() {
    let (mut agree, mut spared) = (0, 0);
    let mut misses = Vec::new();
    for entry in entries() {
        let expected = &entry.expected;
        let got = failure(&entry);
        // Only an account can be put out, so only there the words mean the same.
        let terminal = expected.terminal && expected.scope == "connection";
        let rights = [
            got.fallback == expected.fallback_allowed,
            scope(got.blame) == expected.scope,
            got.terminal.is_some() == terminal,
        ];
        spared += usize::from(terminal || got.terminal.is_none());
        if rights == [true; 3] {
            agree += 1;
        } else {
            misses.push(format!(
                "{} ({rights:?}): {} {} {:?}",
                entry.id,
                got.rule,
                scope(got.blame),
                got.terminal
            ));
        }
    }
    let report = format!("{agree} agree, {spared} spared; not: {misses:#?}");
    #[expect(clippy::print_stdout, reason = "the misses are what to work on next")]
    {
        println!("{report}");
    }
    assert!(agree >= FLOOR && spared >= FLOOR_SPARED, "{report}");
}
