//! The classifier's vectors CLS-*, and those of other mechanisms that it decides.

use super::{Refusal, message, refused};
use crate::failure::{Blame, Cooldown, ErrorType, Profile, Reason, Terminal};

/// Vector, refusal, and the expected fallback, cooldown and reason.
type Row = (&'static str, Refusal, (bool, Cooldown, Reason));

fn check(table: Vec<Row>) {
    for (vector, refusal, (fallback, cooldown, reason)) in table {
        let got = refusal.failure();
        assert_eq!(
            (got.fallback, got.cooldown, got.reason),
            (fallback, cooldown, reason),
            "{vector}: {got:?}"
        );
    }
}

/// CLS-27 is about a missing profile, which can't be here.
#[test]
fn statuses() {
    use Cooldown::{Fixed, Ladder, None};
    use Reason as R;
    let hinted = refused(429, "").header("retry-after", "120");
    let mut table: Vec<Row> = vec![
        (
            "CLS-01",
            refused(401, "Unauthorized"),
            (true, None, R::AuthError),
        ),
        (
            "CLS-03",
            refused(403, "forbidden"),
            (true, Ladder, R::AuthError),
        ),
        ("CLS-21", refused(418, ""), (true, Fixed(3000), R::Unknown)),
        (
            "CLS-29",
            refused(432, ""),
            (true, Fixed(3_600_000), R::QuotaExhausted),
        ),
        ("CCD-04", hinted, (true, Ladder, R::RateLimitExceeded)),
    ];
    for status in [406, 408, 500, 502, 503, 504] {
        table.push((
            "CLS-19",
            refused(status, ""),
            (true, Ladder, R::ServerError),
        ));
    }
    check(table);
}

#[test]
fn texts() {
    use Cooldown::{Fixed, Ladder, None};
    use Reason as R;
    let row = |vector, status, body, expected| (vector, refused(status, body), expected);
    check(vec![
        row(
            "CLS-04",
            403,
            "keys are not authorized for this route.",
            (false, None, R::Unknown),
        ),
        row(
            "CLS-05",
            403,
            r#"{"error_code":1010,"retryable":false}"#,
            (true, None, R::AuthError),
        ),
        row(
            "CLS-11",
            429,
            "you (acct) have reached your weekly usage limit",
            (true, Fixed(86_400_000), R::QuotaExhausted),
        ),
        row(
            "CLS-12",
            429,
            "you (acct) have reached your session usage limit",
            (true, Fixed(18_000_000), R::QuotaExhausted),
        ),
        row(
            "CLS-15",
            400,
            "model foo is not supported",
            (true, None, R::ModelCapacity),
        ),
        row(
            "CLS-16",
            400,
            "invalid api key for model foo",
            (false, None, R::Unknown),
        ),
        row(
            "CLS-17",
            400,
            "Detected high-frequency non-compliant requests from you.",
            (true, Ladder, R::RateLimitExceeded),
        ),
        row(
            "CLS-20",
            503,
            "model is overloaded",
            (true, Ladder, R::ModelCapacity),
        ),
    ]);
}

#[test]
fn models() {
    use Cooldown::{Fixed, None};
    use Reason as R;
    let row = |vector, status, body, expected| (vector, refused(status, body), expected);
    check(vec![
        row(
            "CLS-24",
            400,
            r#"Function id "x" submitted for inference is DEGRADED"#,
            (true, None, R::ModelCapacity),
        ),
        row(
            "CLS-28",
            404,
            "model x is no longer available to new users",
            (true, Fixed(86_400_000), R::NotFound),
        ),
    ]);
}

#[test]
fn a_code_that_names_the_model() {
    let body = r#"{"error":{"code":"model_not_found","message":"nope"}}"#;
    let got = refused(400, body).failure();
    assert_eq!(
        (got.fallback, got.reason),
        (true, Reason::ModelCapacity),
        "CLS-25"
    );
    // The account's cooldown of 0; the model alone is left for 120000.
    assert_eq!(
        (got.blame, got.cooldown),
        (Blame::Model, Cooldown::Fixed(120_000)),
        "CLS-25"
    );
}

#[test]
fn credits_and_quotas() {
    let text = "You exceeded your current quota, please check your plan and billing details.";
    let got = refused(429, text).failure();
    assert_eq!(got.reason, Reason::QuotaExhausted, "CLS-07");
    assert_eq!(got.terminal, Some(Terminal::CreditsExhausted), "CLS-07");

    let gemini = |metric: &str| {
        let metric = format!("{text} generativelanguage.googleapis.com/{metric}");
        let got = refused(429, &message(&metric))
            .from("gemini")
            .per_model()
            .failure();
        (got.reason, got.terminal)
    };
    let minute = gemini("generate_content_free_tier_input_token_count");
    assert_eq!(minute, (Reason::RateLimitExceeded, None), "CLS-08");
    let day = gemini("generate_requests_per_day");
    assert_eq!(day, (Reason::QuotaExhausted, None), "CLS-09");

    let mut daily = refused(429, "daily quota used, try again tomorrow").of(Profile::Oauth);
    daily.now = daily.now.plus(6 * 3_600_000);
    let got = daily.failure();
    assert_eq!(
        (got.reason, got.cooldown),
        (Reason::QuotaExhausted, Cooldown::Fixed(21_600_000)),
        "CLS-13"
    );
}

#[test]
fn request_scoped() {
    let got = refused(404, "File file-abc does not exist").failure();
    assert_eq!(
        (got.blame, got.cooldown, got.terminal),
        (Blame::Request, Cooldown::None, None),
        "CLS-23"
    );
}

#[test]
fn terminal_states() {
    let got = refused(402, "").failure();
    assert_eq!(
        (got.terminal, got.cooldown),
        (Some(Terminal::CreditsExhausted), Cooldown::None),
        "CCD-11"
    );
    for status in [400, 401, 403, 429, 500] {
        let got = refused(status, "your account has been suspended").failure();
        assert_eq!(
            (got.terminal, got.reason),
            (Some(Terminal::Banned), Reason::AuthError),
            "CCD-12 {status}"
        );
    }
    let got = refused(402, "your account has been suspended").failure();
    assert_eq!(got.terminal, Some(Terminal::CreditsExhausted), "CCD-12");
    let got = refused(403, &message("Request not allowed"))
        .from("claude")
        .of(Profile::Oauth)
        .failure();
    assert_eq!(
        (got.cooldown, got.terminal),
        (Cooldown::Streak, None),
        "CCD-15"
    );
    assert_eq!(got.error_type, Some(ErrorType::RequestRejected), "CCD-15");
}

#[test]
fn restated() {
    let got = refused(403, &message("用户额度不足"))
        .from("agentrouter")
        .per_model()
        .failure();
    assert_eq!(got.status, 429, "RST-11");
    assert_eq!(
        got.restated,
        Some(("agentrouter-quota-misstatus".to_owned(), 403)),
        "RST-11"
    );
    assert_eq!(got.client_retry_after_ms, Some(60_000), "RST-11");
    assert_eq!(
        (got.blame, got.cooldown),
        (Blame::Connection, Cooldown::Ladder),
        "RST-11"
    );
    assert_eq!((got.terminal, got.hint), (None, None), "RST-11");
    // The upstream's own word goes first.
    let got = refused(403, &message("额度不足"))
        .from("agentrouter")
        .header("retry-after", "15")
        .failure();
    assert_eq!(got.client_retry_after_ms, Some(15_000), "RST-05");
}

#[test]
fn what_the_breaker_counts() {
    // BRK-04: none of these ever counts.
    for status in [400, 401, 402, 403, 404, 413, 422, 429, 499, 520, 524, 529] {
        assert!(
            !refused(status, "").failure().counts_for_breaker,
            "{status}"
        );
    }
    for status in [408, 500, 502, 503, 504] {
        assert!(refused(status, "").failure().counts_for_breaker, "{status}");
    }
    let table = [
        (502, "request_signal_aborted", false), // BRK-12
        (502, "bad gateway", true),
        (503, "model is overloaded", false),
        (
            500,
            r#"{"error":{"code":"context_length_exceeded","message":"no"}}"#,
            false,
        ),
        (
            502,
            r#"{"error":{"code":"upstream_empty_response","message":"no"}}"#,
            false,
        ),
        (
            500,
            r#"{"error":{"type":"invalid_request_error","message":"no"}}"#,
            false,
        ),
    ];
    for (status, body, counted) in table {
        assert_eq!(
            refused(status, body).failure().counts_for_breaker,
            counted,
            "{body}"
        );
    }
    let service = refused(503, "")
        .header("x-omni-fallback-hint", "connection_cooldown")
        .failure();
    assert!(!service.counts_for_breaker);
    assert_eq!(
        (service.reason, service.cooldown),
        (Reason::ServiceNotRunning, Cooldown::Fixed(5000))
    );
}
