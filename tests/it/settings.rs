//! Settings changed while the router runs: they act at once, outlive it, and
//! go before the file.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::events::events;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

const RESILIENCE: &str = "/api/resilience";
const GENERAL: &str = "/api/settings";

fn config(upstream: &Upstream) -> Config {
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection("a", "acme")
        .connection("b", "acme")
        .combo("only-a", &["acme/m@a"])
        .combo("only-b", &["acme/m@b"])
}

async fn change(node: &Node, path: &str, body: &Value) -> Value {
    let call = node.admin_call("PATCH", path).json(body);
    let answer = call.send().await.expect_status(200).json();
    assert_eq!(answer["ok"], true, "{answer}");
    answer
}

async fn ask(node: &Node, model: &str) -> u16 {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await.status
}

async fn rest(node: &Node, id: &str) -> u64 {
    let connection = node.connection(id).await;
    connection["cooldownRemainingMs"].as_u64().unwrap()
}

fn cooldown(base_ms: u64) -> Value {
    json!({"connectionCooldown": {"apikey": {"baseCooldownMs": base_ms}}})
}

fn base_of(settings: &Value) -> u64 {
    settings["connectionCooldown"]["apikey"]["baseCooldownMs"]
        .as_u64()
        .unwrap()
}

#[tokio::test]
async fn a_change_acts_at_once_and_outlives_a_crash() {
    let upstream = Upstream::start().await;
    let config = config(&upstream).resilience("hintBounds.quotaMs", json!(100_000));
    let mut node = Node::start(&config).await;
    let before = node.admin_get(RESILIENCE).await;
    assert_eq!(base_of(&before), 3000);
    assert_eq!(before["hintBounds"]["quotaMs"], 100_000);

    let after = change(&node, RESILIENCE, &cooldown(400_000)).await;
    assert_eq!(base_of(&after), 400_000);
    assert_eq!(after["hintBounds"]["quotaMs"], 100_000);
    upstream.script("a", [Reply::error(429, "slow down")]);
    assert!(ask(&node, "only-a").await >= 429);
    let left = rest(&node, "a").await;
    assert!((300_000..=400_000).contains(&left), "{left}");

    node.kill_9().await;
    let node = node.start_again().await;
    let again = node.admin_get(RESILIENCE).await;
    assert_eq!(base_of(&again), 400_000);
    upstream.script("b", [Reply::error(429, "slow down")]);
    assert!(ask(&node, "only-b").await >= 429);
    assert!(rest(&node, "b").await > 300_000);
}

#[tokio::test]
async fn a_changed_file_keeps_what_was_saved() {
    let upstream = Upstream::start().await;
    let config = config(&upstream);
    let node = Node::start(&config).await;
    change(&node, RESILIENCE, &cooldown(50_000)).await;
    let changed = config
        .resilience("connectionCooldown.apiKey.baseCooldownMs", json!(7000))
        .resilience("connectionCooldown.apiKey.maxBackoffSteps", json!(2));
    std::fs::write(node.setup().file(), changed.to_yaml()).unwrap();
    let shown = eventually("the file is read", || async {
        let shown = node.admin_get(RESILIENCE).await;
        (shown["connectionCooldown"]["apikey"]["maxBackoffSteps"] == 2).then_some(shown)
    })
    .await;
    assert_eq!(base_of(&shown), 50_000);
    // Taken back, the file's value holds.
    let null = json!({"connectionCooldown": {"apikey": {"baseCooldownMs": null}}});
    assert_eq!(base_of(&change(&node, RESILIENCE, &null).await), 7000);
    assert_eq!(base_of(&node.admin_get(RESILIENCE).await), 7000);
}

#[tokio::test]
async fn what_get_gave_can_be_sent_back_whole() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    for path in [RESILIENCE, GENERAL] {
        let shown = node.admin_get(path).await;
        let mut answer = change(&node, path, &shown).await;
        let answer = answer.as_object_mut().unwrap();
        answer.remove("ok");
        answer.remove("warnings");
        assert_eq!(Value::Object(answer.clone()), shown, "{path}");
        assert_eq!(node.admin_get(path).await, shown, "{path}");
    }
}

#[tokio::test]
async fn a_stale_change_is_refused() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let etag = async |path| {
        let answer = node.get(path).send().await.expect_status(200);
        answer.header("etag").expect("no ETag").to_owned()
    };
    let first = etag(RESILIENCE).await;
    let when = async |tag: &str, body: &Value| {
        let call = node.admin_call("PATCH", RESILIENCE).json(body);
        call.header("if-match", tag).send().await
    };
    let answer = when(&first, &cooldown(10_000)).await.expect_status(200);
    let second = answer.header("etag").unwrap().to_owned();
    assert_ne!(first, second);
    assert_eq!(etag(RESILIENCE).await, second);
    for stale in [first.as_str(), "\"nonsense\"", ""] {
        let answer = when(stale, &cooldown(20_000)).await.expect_status(412);
        assert_eq!(answer.code(), "settings_changed", "{stale}");
    }
    assert_eq!(base_of(&node.admin_get(RESILIENCE).await), 10_000);
    let either = format!("{first}, {second}");
    when(&either, &cooldown(20_000)).await.expect_status(200);
    when("*", &cooldown(30_000)).await.expect_status(200);
    assert_eq!(base_of(&node.admin_get(RESILIENCE).await), 30_000);
    // Nothing to change makes no new state.
    let before = etag(RESILIENCE).await;
    change(&node, RESILIENCE, &cooldown(30_000)).await;
    assert_eq!(etag(RESILIENCE).await, before);
}

#[tokio::test]
async fn a_bad_change_names_every_place_and_changes_nothing() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let before = node.admin_get(RESILIENCE).await;
    let body = json!({
        "connectionCooldown": {"apikey": {"baseCooldownMs": 1000, "maxBackoffSteps": -1}},
        "providerBraker": {},
        "waitForCooldown": {"enabled": "yes"},
    });
    let answer = node
        .admin_call("PATCH", RESILIENCE)
        .json(&body)
        .send()
        .await;
    let answer = answer.expect_status(400);
    assert_eq!(answer.code(), "invalid_settings");
    let error = answer.json();
    let mut paths: Vec<&str> = error["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["path"].as_str().unwrap())
        .collect();
    paths.sort_unstable();
    let wrong = [
        "connectionCooldown.apikey.maxBackoffSteps",
        "providerBraker",
        "waitForCooldown.enabled",
    ];
    assert_eq!(paths, wrong);
    let message = error["error"]["message"].as_str().unwrap();
    assert!(wrong.iter().all(|path| message.contains(path)), "{message}");
    assert!(
        message.contains("did you mean `providerBreaker`"),
        "{message}"
    );
    assert_eq!(node.admin_get(RESILIENCE).await, before);
}

#[tokio::test]
async fn any_other_body_is_refused_too() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let before = node.admin_get(RESILIENCE).await;

    for (path, body) in [
        (RESILIENCE, "{"),
        (RESILIENCE, ""),
        (RESILIENCE, "{}"),
        (RESILIENCE, "[]"),
        (RESILIENCE, "{\"modelLockout\": {}}"),
        (GENERAL, "{\"resilience\": {}}"),
        (
            GENERAL,
            "{\"providerErrorRules\": {\"acme\": [{\"status\": 400}]}}",
        ),
        (
            GENERAL,
            "{\"modelLockout\": {\"dailyQuotaResetTimezone\": \"Mars\"}}",
        ),
    ] {
        let call = node
            .admin_call("PATCH", path)
            .body("application/json", body);
        let answer = call.send().await.expect_status(400);
        assert_eq!(answer.code(), "invalid_settings", "{body}");
    }
    let large = format!("{{\"customBannedSignals\": [\"{}\"]}}", "x".repeat(600_000));
    let call = node
        .admin_call("PATCH", GENERAL)
        .body("application/json", large);
    call.send().await.expect_status(413);
    assert_eq!(node.admin_get(RESILIENCE).await, before);
    let answer = node.get(RESILIENCE).send().await;
    assert_eq!(
        answer.header("etag"),
        Some("\"0\""),
        "nothing was ever saved"
    );
}

/// API-08.
#[tokio::test]
async fn trusting_other_hints_forgets_what_breakers_counted() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let one = json!({"providerBreaker": {"apikey": {"failureThreshold": 1}}});
    change(&node, RESILIENCE, &one).await;
    upstream.script("a", [Reply::error(503, "down")]);
    assert!(ask(&node, "only-a").await >= 500);
    assert_eq!(node.connection("b").await["breaker"]["state"], "OPEN");
    change(&node, RESILIENCE, &cooldown(5000)).await;
    assert_eq!(node.connection("b").await["breaker"]["state"], "OPEN");
    let trust = json!({"connectionCooldown": {"oauth": {"useUpstream429BreakerHints": true}}});
    let shown = change(&node, RESILIENCE, &trust).await;
    assert_eq!(
        shown["connectionCooldown"]["oauth"]["useUpstream429BreakerHints"],
        true
    );
    let breaker = node.connection("b").await["breaker"].clone();
    assert_eq!(
        (&breaker["state"], &breaker["failureCount"]),
        (&json!("CLOSED"), &json!(0))
    );
}

#[tokio::test]
async fn rules_of_the_operator_come_and_go() {
    let upstream = Upstream::start().await;
    let refusal = json!({"error": {"message": "the frobnicator is out of tune"}});
    upstream.script_all([Reply::json(400, &refusal)]);
    let node = Node::start(&config(&upstream)).await;
    assert_eq!(ask(&node, "only-a").await, 400);
    assert_eq!(node.connection("a").await["connectionStatus"], "healthy");
    let rules = json!({"providerErrorRules": {"acme": [
        {"status": 400, "match": "FROBNICATOR", "scope": "connection", "cooldownMs": 600_000}]}});
    let shown = change(&node, GENERAL, &rules).await;
    assert_eq!(shown["providerErrorRules"], rules["providerErrorRules"]);
    ask(&node, "only-a").await;
    assert!(rest(&node, "a").await > 500_000);
    let none = change(&node, GENERAL, &json!({"providerErrorRules": {}})).await;
    assert_eq!(none["providerErrorRules"], json!({}));
    assert_eq!(ask(&node, "only-b").await, 400);
    assert_eq!(node.connection("b").await["connectionStatus"], "healthy");
}

#[tokio::test]
async fn only_managers_see_and_change_settings() {
    let upstream = Upstream::start().await;
    let config = config(&upstream)
        .server("adminToken", json!("the-admin-token"))
        .api_key("client", "clients-key", json!({}));
    let node = Node::start(&config).await;
    for path in [RESILIENCE, GENERAL] {
        for method in ["GET", "PATCH", "POST"] {
            let call = || {
                node.admin_call(method, path)
                    .json(&json!({"maxAttempts": 3}))
            };
            assert_eq!(call().send().await.status, 401, "{method} {path}");
            let answer = call().bearer("clients-key").send().await;
            assert_eq!(answer.status, 403, "{method} {path}");
        }
        let call = node.admin_call("POST", path).bearer("the-admin-token");
        let answer = call.send().await.expect_status(405);
        assert_eq!(answer.header("allow"), Some("GET, HEAD, PATCH"));
    }
}

#[tokio::test]
async fn a_change_is_one_line_of_the_log_and_one_event() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let mut listening = node.get("/api/events").open().await;
    listening.read_until("listening").await;
    let secret_text = "account closed for good";
    let body = json!({"customBannedSignals": [secret_text], "maxAttempts": 3});
    change(&node, GENERAL, &body).await;
    listening.read_until("\"settings\"").await;
    let told = events(&listening.text());
    let event = told.last().unwrap().json();
    assert_eq!(event["kind"], "settings");
    let mut sections = event["change"]["sections"].as_array().unwrap().clone();
    sections.sort_by_key(ToString::to_string);
    assert_eq!(
        sections,
        [json!("customBannedSignals"), json!("maxAttempts")]
    );
    let lines = eventually("the log has it", || async {
        let text = node.log().text();
        let lines: Vec<String> = text
            .lines()
            .filter(|line| line.contains("changed settings"))
            .map(str::to_owned)
            .collect();
        (!lines.is_empty()).then_some(lines)
    })
    .await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("customBannedSignals"), "{lines:?}");
    assert!(!node.log().text().contains(secret_text));
}
