//! How long what is charged rests: models, ways to the provider, and accounts of
//! which nothing is known but that they were refused once.

use super::{Refusal, message, refused};
use crate::config::ErrorRule;
use crate::failure::{Blame, Cooldown, ErrorType, Profile, Reason, RuleScope, Terminal};

/// A rest of a model that the account does not have.
const ALONE: Cooldown = Cooldown::Fixed(120_000);

fn check(table: Vec<(Refusal, Blame, Cooldown)>) {
    for (refusal, blame, cooldown) in table {
        let got = refusal.failure();
        assert_eq!(
            (got.blame, got.cooldown, got.fallback, got.terminal),
            (blame, cooldown, true, None),
            "{} {}: {got:?}",
            refusal.status,
            refusal.body
        );
    }
}

fn coded(status: u16, code: &str, text: &str, param: Option<&str>) -> Refusal {
    let error = serde_json::json!({"code": code, "message": text, "param": param});
    refused(status, &serde_json::json!({ "error": error }).to_string())
}

#[test]
fn a_model_that_the_account_does_not_have_rests_alone() {
    let told = |status, text: &str| (refused(status, &message(text)), Blame::Model, ALONE);
    let code = |status, code: &str| (coded(status, code, "nope", None), Blame::Model, ALONE);
    check(vec![
        told(403, "Your organization does not have access to model m"),
        told(403, "Your account does not have access to some-model."),
        told(403, "该令牌无权使用模型：gpt-4"),
        told(401, "Model some-model is not supported"),
        told(
            404,
            "Your organization must be verified to use the model `o3`.",
        ),
        told(404, "The model `x` does not exist"),
        told(429, "当前订阅套餐暂未开放GLM-5权限"),
        code(400, "model_not_found"),
        code(400, "model_not_supported"),
        code(403, "model_not_found"),
        (
            coded(400, "model_not_supported", "no", Some("model")),
            Blame::Model,
            ALONE,
        ),
    ]);
    // A quota of none has no end, whatever delay is named beside it.
    let zero = r#"{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"metadata":{"quota_limit_value":"0","quota_limit":"RequestsPerMinute"}}]}}"#;
    let zero = refused(429, zero).from("gemini").header("retry-after", "9");
    assert_eq!(zero.failure().hint, None);
    check(vec![(zero, Blame::Model, ALONE)]);
}

#[test]
fn a_feature_of_the_request_locks_nobody_out() {
    let none = |refusal| (refusal, Blame::Model, Cooldown::None);
    let told = |status, text: &str| none(refused(status, &message(text)));
    check(vec![
        told(400, "model x does not support images"),
        told(403, "The model some-model does not support tools"),
        told(404, "No endpoints found that support image input"),
        told(404, "No endpoints found that support tool use"),
        told(429, "Extra usage is required for long context requests."),
        none(coded(
            400,
            "unsupported_value",
            "Your organization must be verified to stream this model.",
            Some("stream"),
        )),
        none(coded(400, "model_not_supported", "no", Some("tools"))),
        // A sentence alone may be about anything that the request asks for.
        told(400, "model foo is not supported"),
    ]);
}

#[test]
fn the_way_to_the_provider_rests() {
    let page = "<!DOCTYPE html><title>Just a moment...</title>";
    let sentence = message("Country, region, or territory not supported");
    let coded = r#"{"error":{"code":"unsupported_country_region_territory","message":"no"}}"#;
    let google = r#"{"error":{"code":400,"message":"User location is not supported for the API use.","status":"FAILED_PRECONDITION"}}"#;
    let for_a_day = |refusal| (refusal, Blame::Provider, Cooldown::Fixed(86_400_000));
    let ladder = |refusal| (refusal, Blame::Provider, Cooldown::Ladder);
    let mut table = vec![
        ladder(refused(403, page)),
        ladder(refused(405, page)),
        ladder(refused(403, "error code: 1020")),
        ladder(refused(503, "").header("cf-mitigated", "challenge")),
        // The looks of this one request are refused (CLS-05).
        (
            refused(403, "error code: 1010"),
            Blame::Provider,
            Cooldown::None,
        ),
        ladder(refused(403, &sentence)),
        for_a_day(refused(403, coded)),
        for_a_day(refused(400, google)),
    ];
    for status in [520, 521, 522, 523, 525, 526, 527, 530] {
        table.push(ladder(refused(status, page)));
    }
    check(table);
    // It may be a place that the request names.
    let place = message("Parameter 'x': this location is not supported");
    assert_eq!(refused(400, &place).failure().blame, Blame::Request);
}

#[test]
fn one_refusal_without_a_reason_is_no_ban() {
    let oauth = |body: &str| refused(403, body).of(Profile::Oauth);
    let bare = [
        String::new(),
        " \n".to_owned(),
        "{}".to_owned(),
        "Forbidden".to_owned(),
        r#"{"detail":"Forbidden"}"#.to_owned(),
        r#"{"error":"forbidden"}"#.to_owned(),
        r#"{"error":{"type":"permission_error","message":"403 Forbidden"}}"#.to_owned(),
        message("You don't have permission to access this resource"),
        message("Access from IP 192.0.2.7 is not on the allow list"),
        message("Your account does not have access to this feature"),
    ];
    for body in bare {
        let got = oauth(&body).failure();
        assert_eq!(
            (got.blame, got.cooldown, got.terminal),
            (Blame::Connection, Cooldown::Streak, None),
            "{body}: {got:?}"
        );
        assert_eq!(got.error_type, Some(ErrorType::RequestRejected), "{body}");
    }
    for body in [
        message("SENTINEL_BLOCKED"),
        message("Your subscription was cancelled for abuse"),
        r#"{"error":{"code":"seat_removed","message":"Forbidden"}}"#.to_owned(),
    ] {
        let got = oauth(&body).failure();
        assert_eq!(got.terminal, Some(Terminal::Banned), "{body}: {got:?}");
    }
}

#[test]
fn somebody_else_s_client_left() {
    let coded = r#"{"error":{"code":"client_disconnected","message":"gone"}}"#;
    for refusal in [refused(499, ""), refused(500, coded)] {
        let got = refusal.failure();
        assert_eq!(
            (got.blame, got.cooldown, got.fallback),
            (Blame::Request, Cooldown::None, true),
            "{got:?}"
        );
        assert!(!got.counts_for_breaker);
    }
}

#[test]
fn what_ends_an_account_does_not_count_for_the_breaker() {
    let text = message("your account has been suspended");
    for status in [500, 502, 503, 504] {
        let got = refused(status, &text).failure();
        assert_eq!(got.terminal, Some(Terminal::Banned), "{status}");
        assert!(!got.counts_for_breaker, "{status}");
    }
    let mut inside = refused(200, &text);
    inside.in_stream = true;
    let got = inside.failure();
    assert_eq!(
        (got.terminal, got.counts_for_breaker),
        (Some(Terminal::Banned), false)
    );
}

#[test]
fn an_operator_s_time_holds_whatever_is_announced() {
    for scope in [RuleScope::Model, RuleScope::Connection, RuleScope::Provider] {
        let mut refusal = refused(500, "whole house").header("retry-after", "50");
        refusal.rules = vec![ErrorRule {
            status: 500,
            text: "whole house".to_owned(),
            scope,
            reason: Reason::QuotaExhausted,
            cooldown_ms: Some(2_000),
        }];
        let got = refusal.failure();
        assert_eq!(got.blame, scope.blame());
        assert_eq!(got.cooldown, Cooldown::Fixed(2_000), "{scope:?}");
    }
}
