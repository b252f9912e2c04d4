//! What of an upstream's words may be shown.

use super::{message, refused};

#[test]
fn secrets_are_masked() {
    let table = [
        (
            "Incorrect API key provided: sk-proj-abc123. Find it at https://acme.example/keys.",
            "Incorrect API key provided: [redacted]. Find it at [url].",
        ),
        (
            "Rate limit reached for gpt-4o-mini in organization org-XXXX on tokens per min (TPM)",
            "Rate limit reached for gpt-4o-mini in organization [redacted] on tokens per min (TPM)",
        ),
        (
            "Your account org-1<ak-2> is not active",
            "Your account [redacted] [redacted] is not active",
        ),
        ("write to help@acme.example!", "write to [email]!"),
        (
            "Your team 00000000-0000-0000-0000-000000000000 has",
            "Your team [redacted] has",
        ),
        (
            "Publisher Model `projects/000000000000/locations/x` was",
            "Publisher Model `[redacted]` was",
        ),
        ("key ****0000 is invalid", "key [redacted] is invalid"),
        ("token a1b2c3d4e5f6a7b8c9d0e1f2", "token [redacted]"),
        (
            "dial tcp 10.0.0.7:443: refused by api.acme.example",
            "dial tcp [host]: refused by [host]",
        ),
        (
            "Authorization: Bearer eyJhbGciOi.x.y",
            "Authorization: Bearer [redacted]",
        ),
        ("one\r\n  two\tthree\u{7}", "one two three"),
        (
            "see https://acme.example/usage?tab=limits, key=sk-abc",
            "see [url], [redacted]",
        ),
        // Names of models and plain words stay.
        (
            "claude-3-5-sonnet-20241022 and gpt-4.1 and llama-3.1-8b-instant",
            "claude-3-5-sonnet-20241022 and gpt-4.1 and llama-3.1-8b-instant",
        ),
        (
            "prompt is too long: 205351 tokens > 200000 maximum",
            "prompt is too long: 205351 tokens > 200000 maximum",
        ),
        (
            "该模型当前访问量过大，请您稍后再试",
            "该模型当前访问量过大，请您稍后再试",
        ),
    ];
    for (text, shown) in table {
        assert_eq!(refused(500, &message(text)).failure().message, shown);
    }
}

#[test]
fn other_bodies_get_a_sentence() {
    let table = [
        (
            "<!DOCTYPE html><p>sk-secret</p>",
            "the upstream answered with an HTML page (status 502)",
        ),
        (
            "{\"error\":{\"message\":\"sk-sec",
            "the upstream answered with broken JSON (status 502)",
        ),
        ("", "the upstream answered 502 without an explanation"),
        ("{}", "the upstream answered 502 without an explanation"),
        ("Bad Gateway", "Bad Gateway"),
        (r#""busy""#, "busy"),
        (r#"{"error":"busy"}"#, "busy"),
        (
            r#"{"error":{"message":"{\"error\":{\"message\":\"inner\"}}"}}"#,
            "inner",
        ),
    ];
    for (body, shown) in table {
        assert_eq!(refused(502, body).failure().message, shown);
    }
}

#[test]
fn messages_are_short() {
    let got = refused(500, &message(&"word ".repeat(200)))
        .failure()
        .message;
    assert!(got.chars().count() <= 300 && got.ends_with("..."), "{got}");
}

#[test]
fn codes_are_shown_when_they_are_codes() {
    let code = |body: &str| refused(400, body).failure().upstream_code;
    assert_eq!(
        code(r#"{"error":{"code":"content_filter","type":"x"}}"#).as_deref(),
        Some("content_filter")
    );
    assert_eq!(
        code(r#"{"type":"error","error":{"type":"overloaded_error"}}"#).as_deref(),
        Some("overloaded_error")
    );
    assert_eq!(code(r#"{"error":{"code":1302}}"#).as_deref(), Some("1302"));
    assert_eq!(code(r#"{"error":{"code":"sk-abc123"}}"#), None);
    let long = format!(r#"{{"error":{{"code":"{}"}}}}"#, "x".repeat(65));
    assert_eq!(code(&long), None);
    assert_eq!(code("no"), None);
}

#[test]
fn what_a_secret_is_called_hides_it() {
    let table = [
        ("api_key=hunter2 is wrong", "api_key=[redacted] is wrong"),
        ("apiKey: hunter, please", "apiKey: [redacted], please"),
        ("password=hunter", "password=[redacted]"),
        ("token password=hunter", "token password=[redacted]"),
        ("db_password = hunter now", "db_password = [redacted] now"),
        ("token: hunter.", "token: [redacted]."),
        (
            r#"failed with {"secret": "hunter"}"#,
            r#"failed with {"secret": "[redacted]"}"#,
        ),
        ("'client-secret'='hunter'", "'client-secret'='[redacted]'"),
        (
            "?user=bob&access_token=hunter",
            "?user=bob&access_token=[redacted]",
        ),
        ("X-Api-Key:hunter", "X-Api-Key:[redacted]"),
        // Prose about them stays.
        (
            "Invalid token: signature has expired",
            "Invalid token: signature has expired",
        ),
        ("The password is wrong", "The password is wrong"),
        ("token count: 12 > 10", "token count: 12 > 10"),
        ("max_tokens: 12 is too much", "max_tokens: 12 is too much"),
        ("missing token, try again", "missing token, try again"),
    ];
    for (text, shown) in table {
        assert_eq!(refused(500, &message(text)).failure().message, shown);
    }
}

#[test]
fn complaints_are_read_wherever_they_stand() {
    let table = [
        (r#"{"detail":"no such path"}"#, "no such path"),
        (
            r#"{"detail":[{"loc":["body","tools",0,"name"],"msg":"field required","type":"x"}]}"#,
            "field required (at body > tools > 0 > name)",
        ),
        (
            r#"{"detail":[{"msg":"one"},{"msg":"two"},{"msg":"three"},{"msg":"four"}]}"#,
            "one; two; three",
        ),
        (
            r#"{"error_code":17,"error_msg":"daily limit"}"#,
            "daily limit",
        ),
        (r#"{"message":["one","two"]}"#, "one; two"),
        (r#"{"error":{"message":[{"message":"deep"}]}}"#, "deep"),
        (
            r#"{"detail":[{"loc":[]},7,null]}"#,
            "the upstream answered 422 without an explanation",
        ),
    ];
    for (body, shown) in table {
        assert_eq!(refused(422, body).failure().message, shown, "{body}");
    }
}

#[test]
fn a_body_that_goes_on_is_not_called_broken() {
    let whole = message(&"x ".repeat(100_000));
    let read = &whole[..64 << 10];
    let got = refused(500, read).failure().message;
    assert_eq!(
        got,
        "the upstream answered 500 with a longer explanation than is read"
    );
    let broken = format!("{}}}]", &read[..read.len() - 2]);
    let broken = broken.replacen("{\"error\"", "{error", 1);
    let got = refused(500, &broken).failure().message;
    assert_eq!(got, "the upstream answered with broken JSON (status 500)");
}

#[test]
fn what_is_no_answer_says_what_came() {
    let to = "https://User:pw@login.acme.example:8443/x?key=hunter";
    let got = refused(301, "<html>moved</html>")
        .header("location", to)
        .failure();
    assert_eq!(
        got.message,
        "the upstream answered 301, a redirect to host login.acme.example"
    );
    assert_eq!(
        (got.status, got.counts_for_breaker, got.fallback),
        (301, false, true)
    );
    let other = [
        (
            307,
            "/relative?x=1",
            "the upstream answered 307, a redirect",
        ),
        (
            302,
            "https://[::1]/x",
            "the upstream answered 302, a redirect",
        ),
        (
            302,
            "//acme.example\\x",
            "the upstream answered 302, a redirect to host acme.example",
        ),
        (
            304,
            "",
            "the upstream answered 304, which is neither an answer nor an error",
        ),
        (
            101,
            "",
            "the upstream answered 101, which is neither an answer nor an error",
        ),
    ];
    for (status, to, shown) in other {
        let got = refused(status, "").header("location", to).failure();
        assert_eq!((got.status, got.message.as_str()), (status, shown));
    }
}

#[test]
fn a_machine_in_between_is_named() {
    let got = refused(403, "")
        .header("cf-mitigated", "challenge")
        .failure();
    assert_eq!(got.rule, "edge-refusal");
    assert!(got.message.contains("CDN"), "{}", got.message);
}
