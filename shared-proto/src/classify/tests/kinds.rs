//! Siblings of the recorded refusals: the same kinds in the words of others.

use super::{Refusal, message, refused};
use crate::failure::{Blame, Profile, Terminal};

type Row = (Refusal, &'static str, Blame, Option<Terminal>);

fn check(table: Vec<Row>) {
    for (refusal, rule, blame, terminal) in table {
        let got = refusal.failure();
        assert_eq!(
            (got.rule.as_str(), got.blame, got.terminal),
            (rule, blame, terminal),
            "{} {}: {got:?}",
            refusal.status,
            refusal.body
        );
    }
}

fn base_resp(code: u16, text: &str) -> Refusal {
    let body = serde_json::json!({"base_resp": {"status_code": code, "status_msg": text}});
    refused(200, &body.to_string()).from("minimax")
}

const BROKE: Option<Terminal> = Some(Terminal::CreditsExhausted);
const EXPIRED: Option<Terminal> = Some(Terminal::Expired);

#[test]
fn minimax_tells_it_in_a_200() {
    use Blame::{Connection, Request};
    check(vec![
        (base_resp(1002, "x"), "status-429", Connection, None),
        (
            base_resp(1004, "login fail"),
            "unauthorized",
            Connection,
            EXPIRED,
        ),
        (base_resp(1008, "x"), "status-402", Connection, BROKE),
        (base_resp(1013, "x"), "status-5xx", Connection, None),
        (base_resp(1026, "x"), "content-policy", Request, None),
        (base_resp(2013, "x"), "status-400", Request, None),
    ]);
}

#[test]
fn money_in_many_words() {
    let told = |status, text: &str| {
        let row = refused(status, &message(text));
        (row, "credits-text", Blame::Connection, BROKE)
    };
    check(vec![
        told(429, "Credit limit exceeded, please purchase more"),
        told(403, "Key limit exceeded (total limit)"),
        told(403, "token quota is not enough, need quota: $0.05"),
        told(403, "该令牌的可用额度不足"),
        told(429, "余额不足或无可用资源包,请充值。"),
    ]);
    let spent = "You're out of extra usage. Add more and keep going.";
    let claude = |status| {
        refused(status, &message(spent))
            .from("claude")
            .of(Profile::Oauth)
    };
    let ended = "extra-usage-spent";
    check(vec![(claude(400), ended, Blame::Connection, BROKE)]);
    // Beside it a time is the plan's, and the plan comes back.
    let timed = claude(429).header("retry-after", "3600");
    check(vec![(timed, "quota-text", Blame::Connection, None)]);
}

#[test]
fn quotas_of_every_length() {
    let told = |text: &str, rule| {
        let row = refused(429, &message(text));
        (row, rule, Blame::Connection, None)
    };
    check(vec![
        told("you have reached your hourly usage limit", "hourly-quota"),
        told(
            "Weekly usage limit reached. Resets in 3 days.",
            "weekly-quota",
        ),
        told(
            "Trial key, limited to 1000 API calls / month",
            "monthly-quota",
        ),
        told("Requests per day limit exceeded", "daily-quota"),
        told("Too many tokens per day, please wait", "daily-quota"),
        told("API calls are limited to 10 / minute", "status-429"),
    ]);
    let free = "The free tier of the model has been exhausted.";
    let row = refused(403, &message(free)).per_model();
    check(vec![(row, "model-free-tier", Blame::Model, None)]);
}

#[test]
fn google_in_many_words() {
    let google = |details: &str| {
        let body = format!(
            r#"{{"error":{{"code":429,"message":"x","status":"RESOURCE_EXHAUSTED","details":[{details}]}}}}"#
        );
        refused(429, &body).from("gemini").per_model()
    };
    let zero = |name: &str| {
        google(&format!(
            r#"{{"metadata":{{"quota_limit_value":"0","quota_limit":"{name}"}}}}"#
        ))
    };
    check(vec![
        (
            google(r#"{"reason":"MODEL_CAPACITY_EXHAUSTED"}"#),
            "overloaded",
            Blame::Model,
            None,
        ),
        (
            zero("RequestsPerMinutePerRegion"),
            "google-region-quota",
            Blame::Connection,
            None,
        ),
        (
            zero("RequestsPerMinute"),
            "model-access",
            Blame::Model,
            None,
        ),
    ]);
    let off = r#"{"error":{"message":"x","details":[{"reason":"SERVICE_DISABLED"}]}}"#;
    let row = refused(403, off).of(Profile::Oauth);
    check(vec![(row, "project-off", Blame::Connection, EXPIRED)]);
}

#[test]
fn other_programs_only() {
    let told = |status, text: &str| {
        let row = refused(status, &message(text)).of(Profile::Oauth);
        (row, "client-refused", Blame::Connection, None)
    };
    check(vec![
        told(403, "Currently only available for Coding Agents such as X"),
        told(
            400,
            "This credential is only authorized for use with Claude Code",
        ),
        told(401, "unauthorized client detected, contact support"),
    ]);
    // A quota under the name of a ban is a quota.
    let body = r#"{"error":{"type":"access_terminated_error","message":"You've reached your usage limit for this cycle."}}"#;
    let row = refused(403, body).of(Profile::Oauth);
    check(vec![(row, "subscription-quota", Blame::Connection, None)]);
}

#[test]
fn shapes_that_say_nothing() {
    let body = r#"{"type":"error","error":{"type":"rate_limit_error","message":"Error"}}"#;
    let bare = || refused(429, body).from("claude").of(Profile::Oauth);
    check(vec![
        (bare(), "request-shape", Blame::Request, None),
        (
            bare().header("retry-after", "5"),
            "status-429",
            Blame::Connection,
            None,
        ),
    ]);
    check(vec![
        (
            refused(400, " \n").from("mistral"),
            "context-overflow",
            Blame::Request,
            None,
        ),
        (refused(400, ""), "status-400", Blame::Request, None),
    ]);
}

#[test]
fn relays_pass_on_what_they_heard() {
    let relay = |status, param: &str| {
        let body = serde_json::json!({"error": {"message": "当前分组上游负载已饱和",
            "type": "upstream_error", "param": param, "code": "bad_response_status_code"}});
        refused(status, &body.to_string())
    };
    check(vec![
        (relay(429, "404"), "relay-status", Blame::Model, None),
        (relay(500, "401"), "relay-status", Blame::Model, None),
        (relay(429, ""), "overloaded", Blame::Model, None),
    ]);
    let body = r#"{"error":{"message":"当前分组负载已饱和","code":"billing_not_active"}}"#;
    let row = refused(429, body);
    check(vec![(row, "relay-billing", Blame::Connection, None)]);
    let alone = r#"{"error":{"message":"x","code":"billing_not_active"}}"#;
    let row = refused(429, alone);
    check(vec![(row, "credits-text", Blame::Connection, BROKE)]);
}

#[test]
fn servers_by_model_fail_by_model() {
    let local = |status| refused(status, "").of(Profile::Local).per_model();
    check(vec![
        (
            refused(502, "").per_model(),
            "status-5xx",
            Blame::Model,
            None,
        ),
        (refused(502, ""), "status-5xx", Blame::Connection, None),
        (local(503), "status-5xx", Blame::Connection, None),
    ]);
}
