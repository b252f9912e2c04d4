//! Who is blamed for what.

use super::{Refusal, message, refused};
use crate::failure::{Blame, Cooldown, ErrorType, Profile, Reason, Terminal};

fn blamed(table: Vec<(Refusal, Blame, bool)>) {
    for (refusal, blame, fallback) in table {
        let got = refusal.failure();
        assert_eq!((got.blame, got.fallback), (blame, fallback), "{got:?}");
    }
}

const PAGE: &str = "<!DOCTYPE html><title>Just a moment...</title>";

#[test]
fn the_model_is_blamed() {
    let told = |status, text: &str| (refused(status, &message(text)), Blame::Model, true);
    blamed(vec![
        told(404, "The model `x` does not exist"),
        told(403, "You do not have access to model x"),
        told(400, "foo is not a valid model ID"),
        told(
            400,
            "The model `x` has been decommissioned and is no longer supported",
        ),
        told(429, "The engine is currently overloaded"),
        told(503, "当前分组 default 下对于模型 x 无可用渠道"),
        told(502, "All providers failed: error status code: 429"),
        (refused(524, PAGE), Blame::Model, true),
        (refused(529, ""), Blame::Model, true),
        (refused(429, "").per_model(), Blame::Model, true),
    ]);
}

#[test]
fn the_connection_or_the_provider_is_blamed() {
    let plan = message("5-hour usage limit reached, resets in 2h");
    let region = message("Country, region, or territory not supported");
    blamed(vec![
        (refused(429, ""), Blame::Connection, true),
        (refused(429, &plan).per_model(), Blame::Connection, true),
        (refused(502, PAGE), Blame::Connection, true),
        (refused(404, PAGE), Blame::Connection, true),
        (refused(403, PAGE), Blame::Provider, true),
        (refused(403, "error code: 1010"), Blame::Provider, true),
        (
            refused(503, "").header("cf-mitigated", "challenge"),
            Blame::Provider,
            true,
        ),
        (refused(521, PAGE), Blame::Provider, true),
        (refused(403, &region), Blame::Provider, true),
    ]);
}

#[test]
fn the_request_is_blamed() {
    let told =
        |status, text: &str, fallback| (refused(status, &message(text)), Blame::Request, fallback);
    blamed(vec![
        (refused(413, ""), Blame::Request, true),
        told(400, "prompt is too long: 5 tokens > 4 maximum", true),
        told(422, "Extra inputs are not permitted", true),
        told(400, "what?", false),
        told(
            400,
            "Unsupported parameter: 'x' is not supported with this model",
            false,
        ),
        told(400, "Your prompt was flagged", false),
        told(
            400,
            "missing thought_signature in functionCall may lead to degraded model performance, function call x",
            false,
        ),
        told(409, "previous_response_id does not belong to you", false),
    ]);
}

fn ends(table: Vec<(Refusal, Option<Terminal>)>) {
    for (refusal, terminal) in table {
        let got = refusal.failure();
        assert_eq!(got.terminal, terminal, "{got:?}");
        assert!(terminal.is_none() || got.hint.is_none() && got.cooldown == Cooldown::None);
    }
}

#[test]
fn refused_credentials() {
    let banned = Some(Terminal::Banned);
    let expired = Some(Terminal::Expired);
    let key = |status, text: &str| refused(status, &message(text));
    let oauth = |status, text: &str| key(status, text).of(Profile::Oauth);
    let google =
        r#"{"error":{"status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}"#;
    ends(vec![
        (refused(401, ""), expired),
        (oauth(401, "token revoked"), expired),
        (oauth(401, "Invalid authentication credentials"), None),
        (oauth(401, "OAuth token has expired. Please refresh."), None),
        (key(401, "API token has expired"), expired),
        (key(401, "Model x is not supported"), None),
        (key(400, "Incorrect API key provided: xa***."), expired),
        (refused(400, google), expired),
        (refused(403, ""), None),
        (oauth(403, "no"), banned),
        (oauth(403, "quota exceeded"), None),
        (
            oauth(403, "API has not been used in project 1 before"),
            expired,
        ),
        (
            oauth(403, "User location is not supported for the API use."),
            None,
        ),
    ]);
}

#[test]
fn empty_balances() {
    let broke = Some(Terminal::CreditsExhausted);
    let key = |status, text: &str| refused(status, &message(text));
    ends(vec![
        (key(400, "Your credit balance is too low"), broke),
        (key(429, "Insufficient balance, please recharge"), broke),
        (
            key(
                412,
                "Account x is suspended, possibly due to reaching the monthly spending limit",
            ),
            broke,
        ),
        (
            key(402, "requires more credits. You can only afford 0"),
            broke,
        ),
        (
            key(
                402,
                "requires more credits, or fewer max_tokens. You can only afford 3395",
            ),
            None,
        ),
    ]);
}

#[test]
fn nothing_is_final_on_hearsay() {
    let relay = r#"{"error":{"message":"Provider returned error","metadata":{"raw":"insufficient balance"}}}"#;
    let gateway = "All providers failed: status code: 403: your account has been suspended";
    let echo = r#"{"detail":[{"msg":"bad","input":"your account has been suspended"}]}"#;
    let page = "<html><body>account has been disabled</body></html>";
    let renewing = r#"{"error":{"code":"insufficient_user_quota","message":"额度不足"}}"#;
    ends(vec![
        (refused(429, relay), None),
        (refused(502, &message(gateway)), None),
        (refused(422, echo), None),
        (refused(500, page), None),
        (refused(403, renewing).from("agentrouter"), None),
    ]);
}

#[test]
fn operators_add_signals_of_a_ban() {
    let mut refusal = refused(429, &message("Seat REVOKED by admin"));
    assert_eq!(refusal.failure().terminal, None);
    refusal.banned = vec![String::new(), "seat revoked".to_owned()];
    assert_eq!(refusal.failure().terminal, Some(Terminal::Banned));
}

#[test]
fn hints_go_where_time_heals() {
    let hinted = |refusal: Refusal| {
        let got = refusal.header("retry-after", "60").failure();
        (
            got.hint.map(|hint| hint.wait_ms),
            got.client_retry_after_ms,
            got.cooldown,
        )
    };
    let minute = (Some(60_000), Some(60_000), Cooldown::Ladder);
    let nothing = (None, None, Cooldown::None);
    assert_eq!(hinted(refused(429, "")), minute);
    assert_eq!(hinted(refused(503, "")), minute);
    assert_eq!(hinted(refused(429, "weekly limit reached")), minute);
    assert_eq!(hinted(refused(432, "")), minute);
    assert_eq!(hinted(refused(401, "")), nothing);
    assert_eq!(hinted(refused(402, "")), nothing);
    assert_eq!(hinted(refused(400, "what?")), nothing);
    // No wait helps a plan that has no such quota.
    let zero = message(
        "Quota exceeded for metric: generativelanguage.googleapis.com/x, limit: 0, model: y\nPlease retry in 50.4s.",
    );
    let got = refused(429, &zero).failure();
    assert_eq!((got.blame, got.hint), (Blame::Model, None));
}

#[test]
fn a_plans_windows() {
    let window = |name: &str| {
        let name = format!("anthropic-ratelimit-unified-{name}-status");
        let got = refused(429, "")
            .from("claude")
            .of(Profile::Oauth)
            .header(&name, "rejected")
            .failure();
        (got.reason, got.blame, got.error_type)
    };
    let quota = |blame| {
        (
            Reason::QuotaExhausted,
            blame,
            Some(ErrorType::QuotaExhausted),
        )
    };
    assert_eq!(window("5h"), quota(Blame::Connection));
    assert_eq!(window("7d"), quota(Blame::Connection));
    assert_eq!(window("7d_opus"), quota(Blame::Model));
}

#[test]
fn a_relays_upstream_tells_what_went_wrong() {
    let relay = |status, raw: &str| {
        let body = serde_json::json!({"error": {"message": "Provider returned error", "metadata": {"raw": raw}}});
        refused(status, &body.to_string()).failure()
    };
    let got = relay(
        400,
        r#"{"error":{"message":"maximum context length is 5 tokens"}}"#,
    );
    assert_eq!((got.blame, got.fallback), (Blame::Request, true));
    assert_eq!(got.message, "maximum context length is 5 tokens");
    let got = relay(401, "Unauthorized");
    assert_eq!((got.blame, got.terminal), (Blame::Model, None));
    let got = relay(429, "slow down");
    assert_eq!((got.blame, got.terminal), (Blame::Model, None));
}
