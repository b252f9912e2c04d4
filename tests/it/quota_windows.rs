//! What answers tell of a quota, what is made of it when the quota is spent, and
//! that a healthy connection writes nothing for it.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::now;
use cluster_tests::metrics::Exposition;
use cluster_tests::node::{Node, field};

use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

pub(crate) const HOUR_MS: u64 = 3_600_000;

/// A subscription at `plan` that speaks chat completions.
fn config(upstream: &Upstream, ids: &[&str]) -> Config {
    let more = json!({"auth": "oauth"});
    let config = Config::new()
        .no_waiting()
        .provider_with("plan", "openai", &upstream.url(), more);
    accounts(config, "plan", ids)
}

pub(crate) fn accounts(config: Config, provider: &str, ids: &[&str]) -> Config {
    ids.iter().enumerate().fold(config, |config, (at, id)| {
        let account = json!({
            "oauth": {"accessToken": format!("key-{id}")},
            "priority": at + 1,
        });
        config.connection_with(id, provider, account)
    })
}

pub(crate) fn with(reply: Reply, headers: &[(&str, &str)]) -> Reply {
    headers
        .iter()
        .fold(reply, |reply, (name, value)| reply.header(name, value))
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("plan/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

pub(crate) async fn commits(node: &Node) -> f64 {
    let text = node.get("/metrics").send().await.expect_status(200).text();
    Exposition::parse(&text).sum("omniroute_store_commits_total")
}

/// A window of a connection.
pub(crate) fn window<'r>(row: &'r Value, name: &str) -> &'r Value {
    let windows = row["quotaWindows"].as_array().unwrap();
    let found = windows.iter().find(|window| window["window"] == name);
    found.unwrap_or_else(|| panic!("no window {name} in {row}"))
}

/// The rest of the first connection is as long as that, within a second.
fn rests(row: &Value, expected_ms: u64) {
    let left = row["cooldownRemainingMs"].as_u64().unwrap();
    assert!(left.abs_diff(expected_ms) < 1_500, "{left}: {row}");
}

fn epoch_s(in_ms: u64) -> String {
    let at = u64::try_from(now()).unwrap() + in_ms;
    at.div_ceil(1_000).to_string()
}

/// A refusal for a spent quota that says nothing else.
fn spent() -> Reply {
    Reply::error(429, "You've reached your usage limit")
}

/// How full two windows of a plan are, and when they begin anew.
fn plan(reply: Reply, five_hours: (&str, u64), week: (&str, u64)) -> Reply {
    let prefix = "anthropic-ratelimit-unified-";
    [("5h", five_hours), ("7d", week)].into_iter().fold(
        reply,
        |reply, (name, (used, resets_in))| {
            reply
                .header(&format!("{prefix}{name}-utilization"), used)
                .header(&format!("{prefix}{name}-reset"), &epoch_s(resets_in))
        },
    )
}

#[tokio::test]
async fn successes_tell_of_windows_and_write_nothing() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &["a"])).await;
    let ok = || Dialect::Chat.ok("pong");
    let of_codex = [
        ("x-codex-primary-used-percent", "12.5"),
        ("x-codex-primary-reset-after-seconds", "3600"),
        ("x-codex-primary-window-minutes", "300"),
    ];
    let of_key = [
        ("x-ratelimit-limit-requests", "100"),
        ("x-ratelimit-remaining-requests", "30"),
        ("x-ratelimit-reset-requests", "1m30s"),
        ("x-ratelimit-remaining-tokens", "many"),
    ];
    let garbage = [
        ("x-codex-primary-used-percent", "NaN"),
        ("x-codex-secondary-used-percent", "-3"),
    ];
    upstream.script(
        "a",
        [
            ok(),
            with(ok(), &of_codex),
            with(plan(ok(), ("0.5", HOUR_MS), ("0.07", 9 * HOUR_MS)), &of_key),
            with(ok(), &garbage),
            with(Dialect::Chat.ok_stream("pong"), &[of_codex[0]])
                .header("x-codex-primary-used-percent", "13"),
        ],
    );
    let before = commits(&node).await;
    ask(&node).await.expect_status(200);
    let none = node.connection("a").await;
    assert_eq!(none["quotaWindows"], json!([]), "{none}");
    for _ in 0..3 {
        ask(&node).await.expect_status(200);
    }
    let row = node.connection("a").await;
    let primary = window(&row, "primary");
    assert_eq!(primary["usedPercent"], 12.5, "{row}");
    assert_eq!(primary["remainingPercent"], 87.5, "{row}");
    assert_eq!(primary["windowMs"], 5 * HOUR_MS, "{row}");
    assert!(primary["resetsAt"].is_string() && primary["observedAt"].is_string());
    assert_eq!(window(&row, "5h")["usedPercent"], 50, "{row}");
    assert_eq!(window(&row, "7d")["remainingPercent"], 93, "{row}");
    assert_eq!(window(&row, "requests")["usedPercent"], 70, "{row}");
    assert_eq!(row["quotaWindows"].as_array().unwrap().len(), 4, "{row}");
    let body = Dialect::Chat.request("plan/m", true);
    let call = node.post("/v1/chat/completions", &body);
    call.send().await.expect_status(200);
    let row = node.connection("a").await;
    assert_eq!(window(&row, "primary")["usedPercent"], 13, "{row}");
    let same = (commits(&node).await - before).abs() < f64::EPSILON;
    assert!(same, "a success of a healthy connection was committed");
}

#[tokio::test]
async fn a_spent_quota_rests_until_the_fullest_window_begins_anew() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &["a"])).await;
    let ok = plan(
        Dialect::Chat.ok("pong"),
        ("0.98", 2 * HOUR_MS),
        ("0.6", 90 * HOUR_MS),
    );
    upstream.script("a", [ok, spent()]);
    ask(&node).await.expect_status(200);
    let refused = ask(&node).await.expect_status(429);
    let row = node.connection("a").await;
    rests(&row, 2 * HOUR_MS);
    assert_eq!(row["hintSource"], "quota_window", "{row}");
    assert_eq!(row["lastErrorReason"], "quota_exhausted", "{row}");
    assert!(refused.retry_after().unwrap() > 7_000);
    let trace = node.trace(&refused).await;
    let hint = &trace["attempts"][0]["failure"]["hint"];
    assert_eq!(hint["source"], "quota_window", "{trace}");
    assert_eq!(hint["field"], "5h", "{trace}");
    let line = node
        .log()
        .line("the attempt", |line| line.contains("an attempt failed"))
        .await;
    let record: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(field(&record, "hint_source"), Some("quota_window"));
}

#[tokio::test]
async fn what_the_refusal_announces_goes_first() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &["a"])).await;
    let ok = plan(
        Dialect::Chat.ok("pong"),
        ("0.98", 2 * HOUR_MS),
        ("1", 90 * HOUR_MS),
    );
    upstream.script("a", [ok, spent().header("retry-after", "600")]);
    ask(&node).await.expect_status(200);
    ask(&node).await.expect_status(429);
    let row = node.connection("a").await;
    rests(&row, 600_000);
    assert_eq!(row["hintSource"], "header", "{row}");
}

#[tokio::test]
async fn a_window_that_is_hardly_used_explains_nothing() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &["a"])).await;
    let ok = plan(
        Dialect::Chat.ok("pong"),
        ("0.2", 2 * HOUR_MS),
        ("0.49", 90 * HOUR_MS),
    );
    upstream.script("a", [ok, spent()]);
    ask(&node).await.expect_status(200);
    ask(&node).await.expect_status(429);
    let row = node.connection("a").await;
    // As without windows.
    rests(&row, HOUR_MS);
    assert_eq!(row["hintSource"], Value::Null, "{row}");
}

/// The headers of the refusal itself count too, where they are only gauges.
#[tokio::test]
async fn a_refusal_of_another_status_tells_of_its_window() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &["a"])).await;
    let refusal = Reply::error(403, "weekly usage limit reached");
    let full = plan(refusal, ("0.3", HOUR_MS), ("1", 30 * HOUR_MS));
    upstream.script("a", [full]);
    ask(&node).await;
    let row = node.connection("a").await;
    rests(&row, 30 * HOUR_MS);
    assert_eq!(row["hintSource"], "quota_window", "{row}");
}

#[tokio::test]
async fn a_rate_limit_is_no_spent_quota() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &["a"])).await;
    let ok = plan(
        Dialect::Chat.ok("pong"),
        ("0.98", 2 * HOUR_MS),
        ("1", 90 * HOUR_MS),
    );
    upstream.script("a", [ok, Reply::error(429, "slow down")]);
    ask(&node).await.expect_status(200);
    ask(&node).await.expect_status(429);
    let row = node.connection("a").await;
    assert!(
        row["cooldownRemainingMs"].as_u64().unwrap() <= 10_000,
        "{row}"
    );
    assert_eq!(row["hintSource"], Value::Null, "{row}");
}

// === the scopes of codex ===

pub(crate) fn codex(upstream: &Upstream, more: Value, ids: &[&str]) -> Config {
    let config =
        Config::new()
            .no_waiting()
            .provider_with("codex", "responses", &upstream.url(), more);
    accounts(config, "codex", ids)
}

pub(crate) async fn ask_codex(node: &Node, model: &str) -> Answer {
    let body = Dialect::Responses.request(&format!("codex/{model}"), false);
    node.post("/v1/responses", &body).send().await
}

/// A scope that cools is passed over with its remaining time; the other scope and
/// other connections go on; without a model a refusal rests nothing.
#[tokio::test]
async fn the_scopes_of_codex_rest_on_their_own() {
    let upstream = Upstream::start().await;
    let node = Node::start(&codex(&upstream, json!({}), &["a", "b"])).await;
    let ok = Dialect::Responses.ok("pong");
    upstream.script("a", [Reply::limited(600), ok.clone()]);
    upstream.script("b", [ok.clone(), Reply::limited(300), ok]);
    ask_codex(&node, "gpt-5.4").await.expect_status(200);
    assert_eq!(upstream.order(), ["a", "b"], "the other connection goes on");
    let row = node.connection("a").await;
    assert_eq!(row["connectionStatus"], "healthy", "{row}");
    assert_eq!(row["lockouts"][0]["scope"], "family", "{row}");
    let spark = ask_codex(&node, "gpt-5.3-codex-spark").await;
    let spark = spark.expect_status(200);
    assert_eq!(spark.header("x-omniroute-connection"), Some("a"));
    let refused = ask_codex(&node, "gpt-5.6-luna").await.expect_status(429);
    let left = refused.retry_after().unwrap();
    assert!((290..=300).contains(&left), "{left}");
    let trace = node.trace(&refused).await;
    let excluded = trace["excluded"].as_array().unwrap();
    let of_a = excluded
        .iter()
        .find(|one| one["connection"] == "a")
        .unwrap();
    assert_eq!(of_a["reason"], "model_lockout", "{trace}");
    assert!(of_a["until"].is_string(), "{trace}");
    let spark = ask_codex(&node, "gpt-5.3-codex-spark").await;
    spark.expect_status(200);

    // The list of models is asked for without a model.
    upstream.script("b", [Reply::limited(60)]);
    let test = node.post("/api/connections/b/test", &json!({}));
    test.send().await;
    let row = node.connection("b").await;
    assert_eq!(row["connectionStatus"], "healthy", "{row}");
    assert_eq!(row["lockouts"].as_array().unwrap().len(), 1, "{row}");
}
