//! Announcements in fields of the body.

use super::{T0, hint_of, wait_of};
use crate::failure::HintSource;

#[test]
fn plain_fields() {
    let table = [
        (
            r#"{"error":{"resets_in_seconds":602705}}"#,
            Some(602_705_000),
        ),
        (
            r#"{"error":{"resets_in_seconds":0,"resets_at":1790856030}}"#,
            Some(30_000),
        ),
        (r#"{"error":{"resets_at":1790856030}}"#, Some(30_000)),
        (r#"{"error":{"resets_at":null}}"#, None),
        (r#"{"error":{"retry_after_ms":7200000}}"#, Some(7_200_000)), // HNT-09
        (r#"{"retryAfterMs":1500.5}"#, Some(1501)),
        (r#"{"retry_after_ms":"1500"}"#, Some(1500)),
        (r#"{"retry_after_ms":-1}"#, None),
        (r#"{"retryAfter":"2026-10-01T12:00:30Z"}"#, Some(30_000)),
        (r#"{"retryAfter":"2026-10-01T11:00:30Z"}"#, None),
        (r#"{"error":{"retryAfter":1790856030000}}"#, Some(30_000)),
        (r#"{"error":{"retry_after":30}}"#, Some(30_000)),
        // Wrapped in all the ways seen.
        (r#"[{"error":{"retry_after_ms":1500}}]"#, Some(1500)),
        (
            r#"{"response":{"error":{"retry_after_ms":1500}}}"#,
            Some(1500),
        ),
        (r#""{\"error\":{\"retry_after_ms\":1500}}""#, Some(1500)),
        (
            r#"{"error":{"message":"{\"error\":{\"retry_after_ms\":1500}}"}}"#,
            Some(1500),
        ),
        (
            "data: {\"error\":{\"retry_after_ms\":1500}}\n\n",
            Some(1500),
        ),
        (
            "event: error\ndata:{\"type\":\"error\",\"error\":{\"retry_after_ms\":1500}}\n\n",
            Some(1500),
        ),
        (
            "\u{feff}  {\"error\":{\"retry_after_ms\":1500}} trailing",
            Some(1500),
        ),
        // Not announcements.
        (r#"{"usage":{"retry_after_ms":1500}}"#, None),
        ("{\"error\":{\"retry_after_ms\":1500", None),
        ("", None),
    ];
    for (body, wait) in table {
        assert_eq!(wait_of(429, &[], body), wait, "{body}");
    }
}

fn google(details: &str) -> String {
    format!(r#"{{"error":{{"code":429,"details":[{details}]}}}}"#)
}

#[test]
fn google_details() {
    let retry = |delay: &str| {
        google(&format!(
            r#"{{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":{delay}}}"#
        ))
    };
    let table = [
        (r#""26s""#, Some(26_000)),
        (r#""26.66s""#, Some(26_660)), // HNT-07
        (r#""0.479417207s""#, Some(480)),
        (r#""68940s""#, Some(68_940_000)),
        (r#""48h""#, Some(172_800_000)), // HNT-08
        (r#""1500ms""#, Some(1500)),
        (r#""2m""#, Some(120_000)),
        (r#""30""#, Some(30_000)),
        ("30", Some(30_000)),
        (r#""0s""#, None),
        (r#""""#, None),
        ("{}", None),
    ];
    for (delay, wait) in table {
        let hint = hint_of(429, &[], &retry(delay));
        assert_eq!(hint.as_ref().map(|h| h.wait_ms), wait, "{delay}");
        if let Some(hint) = hint {
            assert_eq!(hint.source, HintSource::GoogleRpcRetryInfo);
            assert_eq!(hint.field, "RetryInfo.retryDelay");
        }
    }
    let info = |fields: &str| {
        google(&format!(
            r#"{{"@type":"type.googleapis.com/google.rpc.ErrorInfo","metadata":{{{fields}}}}}"#
        ))
    };
    let delay = info(r#""quotaResetDelay":"1h43m56s""#);
    assert_eq!(wait_of(429, &[], &delay), Some(6_236_000));
    let stamp = info(r#""quotaResetTimeStamp":"2026-10-01T12:00:49Z""#);
    assert_eq!(wait_of(429, &[], &stamp), Some(49_000));
    let both =
        info(r#""quotaResetDelay":"479.417207ms","quotaResetTimeStamp":"2026-10-01T12:00:49Z""#);
    assert_eq!(wait_of(429, &[], &both), Some(480));
}

#[test]
fn headers_repeated_in_a_body() {
    let reset = T0.plus(30_000).as_epoch_ms();
    let openrouter = format!(
        r#"{{"error":{{"code":429,"metadata":{{"headers":{{"X-RateLimit-Remaining":"0","X-RateLimit-Reset":"{reset}"}}}}}}}}"#
    );
    let hint = hint_of(429, &[], &openrouter).unwrap();
    assert_eq!((hint.wait_ms, hint.source), (30_000, HintSource::Body));

    let frame = |status: u16| {
        format!(
            r#"{{"type":"error","status_code":{status},"headers":{{"X-Codex-Primary-Used-Percent":"100","X-Codex-Primary-Reset-After-Seconds":13}}}}"#
        )
    };
    assert_eq!(wait_of(200, &[], &frame(429)), Some(13_000));
    assert_eq!(wait_of(200, &[], &frame(200)), None);
}

#[test]
fn what_a_relays_upstream_says_comes_last() {
    let relay = |own: &str| {
        format!(
            r#"{{"error":{{"message":"Provider returned error{own}","metadata":{{"raw":"{{\"error\":{{\"message\":\"Please try again in 20s\"}}}}"}}}}}}"#
        )
    };
    let hint = hint_of(429, &[], &relay("")).unwrap();
    assert_eq!(
        (hint.wait_ms, hint.field.as_str()),
        (20_000, "error.metadata.raw: text")
    );
    assert_eq!(wait_of(429, &[], &relay(", retry in 3s")), Some(3000));
}
