//! Refusals gathered from the field, each with what a careful engineer makes
//! of it: whether to go on elsewhere, what to leave alone, until when, and
//! whether the account is out. All of them agree; a new one that doesn't is
//! either a rule that is wrong or a reading to think over.

use super::corpus::{failure, scope};
use crate::failure::Reason;
use crate::hint::corpus::{Entry, harvest};

/// The reasons that say the same as `told` for what is done about it.
fn same(told: &str) -> &'static [Reason] {
    use Reason as R;
    match told {
        "rate_limit" => &[R::RateLimitExceeded],
        "quota_exhausted" | "credits_exhausted" => &[R::QuotaExhausted],
        "overloaded" | "context_overflow" => &[R::ModelCapacity],
        // By the status: a 400, a 403, a 404 that names a model, one that doesn't.
        "model_access_denied" | "model_not_found" => {
            &[R::ModelCapacity, R::AuthError, R::NotFound, R::Unknown]
        }
        "server_error" | "timeout" => &[R::ServerError],
        // A 402 is money first.
        "auth" | "banned" => &[R::AuthError, R::QuotaExhausted],
        // A malformed one may fit elsewhere, as one that is too long may.
        "bad_request" | "content_policy" => &[R::Unknown, R::ModelCapacity],
        "request_rejected" => &[R::Unknown, R::AuthError, R::RateLimitExceeded],
        other => panic!("no such reason: {other}"),
    }
}

/// How the classifier's reading of `entry` differs, if it does.
fn differs(entry: &Entry) -> Option<String> {
    let expected = &entry.expected;
    let got = failure(entry);
    let wait = got.hint.as_ref().map(|hint| hint.wait_ms);
    let near = match (wait, expected.retry_after_ms) {
        (Some(got), Some(expected)) => got.abs_diff(expected) <= 1000,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    let rights = [
        got.fallback == expected.fallback_allowed,
        scope(got.blame) == expected.scope,
        got.terminal.is_some() == expected.terminal,
        near,
        same(&expected.reason).contains(&got.reason),
    ];
    (rights != [true; 5]).then(|| format!("{} {rights:?}: {got:?}", entry.id))
}

#[test]
fn gathered_refusals() {
    let wrong: Vec<String> = harvest().iter().filter_map(differs).collect();
    assert!(wrong.is_empty(), "{} differ: {wrong:#?}", wrong.len());
}
