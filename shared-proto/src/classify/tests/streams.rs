//! Errors told inside a 200, and failures without an answer to read.

use std::collections::BTreeSet;

use super::super::{BadAnswer, TransportFailure, stream_failure, transport_failure};
use super::refused;
use crate::config::Reading;
use crate::failure::{Blame, Cooldown, Reason, Terminal};

#[test]
fn an_error_inside_a_stream_gets_the_status_it_stands_for() {
    let table = [
        (
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            529,
        ),
        (
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"x"}}"#,
            429,
        ),
        (
            r#"{"error":{"code":"insufficient_quota","message":"x"}}"#,
            429,
        ),
        (
            r#"{"type":"response.failed","response":{"error":{"code":"server_is_overloaded"}}}"#,
            503,
        ),
        (
            r#"{"error":{"type":"invalid_request_error","code":"rate_limit_exceeded"}}"#,
            429,
        ),
        (r#"{"choices":[],"error":{"code":502,"message":"x"}}"#, 502),
        (r#"{"error":{"code":"503","message":"x"}}"#, 503),
        (
            r#"{"type":"error","status_code":429,"error":{"message":"x"}}"#,
            429,
        ),
        (
            r#"{"type":"error","code":"context_length_exceeded","message":"x"}"#,
            400,
        ),
        (r#"{"error":{"status":"RESOURCE_EXHAUSTED"}}"#, 429),
        (r#"{"error":{"type":"authentication_error"}}"#, 401),
        (r#"{"error":{"type":"api_error","message":"x"}}"#, 500),
        (r#"{"error":"rate limit exceeded"}"#, 429),
        (r#"{"error":"the model is overloaded"}"#, 503),
        (r#"{"error":"it broke"}"#, 502),
        ("garbage", 502),
        ("", 502),
    ];
    for (body, status) in table {
        let mut refusal = refused(200, body);
        refusal.in_stream = true;
        assert_eq!(refusal.failure().status, status, "{body}");
        refusal.in_stream = false;
        assert_eq!(refusal.failure().status, status, "{body}");
    }
}

#[test]
fn it_is_then_read_like_any_other() {
    let failure = |body: &str| refused(200, body).failure();
    let got = failure(r#"{"error":{"code":"insufficient_quota","message":"x"}}"#);
    assert_eq!(got.terminal, Some(Terminal::CreditsExhausted));
    let got = failure(r#"{"error":{"type":"overloaded_error","message":"x"}}"#);
    assert_eq!(
        (got.blame, got.reason),
        (Blame::Model, Reason::ModelCapacity)
    );
    let got = failure(r#"{"error":{"code":429,"message":"try again in 5s"}}"#);
    assert_eq!(got.client_retry_after_ms, Some(5000));
    // The headers of a 200 are gauges.
    let got = refused(200, r#"{"error":{"code":429}}"#)
        .header("x-ratelimit-remaining-tokens", "0")
        .header("x-ratelimit-reset-tokens", "60s")
        .failure();
    assert_eq!(got.hint, None);
}

#[test]
fn failures_below_http() {
    use TransportFailure as T;
    let counted = [
        T::ConnectFailed,
        T::ConnectTimeout,
        T::HeadersTimeout,
        T::Reset,
        T::HeadTooLarge,
        T::NotHttp,
        T::ProxyUnreachable,
    ];
    let mut words = BTreeSet::new();
    for kind in T::ALL {
        let got = transport_failure(kind);
        assert_eq!(got.counts_for_breaker, counted.contains(&kind), "{kind:?}");
        assert!(got.fallback && got.terminal.is_none(), "{kind:?}");
        assert_eq!(
            (got.reason, got.cooldown),
            (Reason::ServerError, Cooldown::Ladder),
            "{kind:?}"
        );
        assert_eq!(
            got.upstream_code.as_deref(),
            Some(kind.as_str()),
            "{kind:?}"
        );
        assert!(matches!(got.status, 502 | 504), "{kind:?}");
        words.insert(kind.as_str());
    }
    assert_eq!(words.len(), T::ALL.len());
}

#[test]
fn unusable_answers() {
    use BadAnswer as B;
    let mut words = BTreeSet::new();
    for kind in B::ALL {
        let got = stream_failure(kind, Reading::default());
        let uncounted = matches!(kind, B::Empty | B::FinishError);
        assert_eq!(got.counts_for_breaker, !uncounted, "{kind:?}");
        assert!(got.fallback && got.terminal.is_none(), "{kind:?}");
        assert_eq!(
            (got.status, got.reason, got.cooldown),
            (502, Reason::ServerError, Cooldown::Ladder),
            "{kind:?}"
        );
        words.insert(kind.as_str());
    }
    assert_eq!(words.len(), B::ALL.len());
}
