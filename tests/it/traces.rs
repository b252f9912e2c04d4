//! What the router remembers of a request explains every refusal.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

/// The entries of `list` about a connection.
fn about<'a>(trace: &'a Value, list: &str, connection: &str) -> Vec<&'a Value> {
    let entries = trace[list]
        .as_array()
        .unwrap_or_else(|| panic!("no {list} in {trace}"));
    entries
        .iter()
        .filter(|entry| entry["connection"] == connection)
        .collect()
}

#[tokio::test]
async fn every_attempt_is_there() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a", "b"], &json!({})).no_waiting();
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Reply::limited(60)]);
    upstream.script("chat-b", [Dialect::Chat.ok("pong")]);
    let answer = ask(&node, "chat/demo-model").await.expect_status(200);
    let trace = node.trace(&answer).await;
    assert_eq!(trace["id"], answer.header("x-request-id").unwrap());
    assert_eq!(trace["attempts"].as_array().unwrap().len(), 2, "{trace}");
    let failed = about(&trace, "attempts", "chat-a")[0];
    assert_eq!(failed["status"], 429, "{failed}");
    assert_eq!(failed["reason"], "rate_limit_exceeded", "{failed}");
    assert_eq!(failed["provider"], "chat");
    assert_eq!(failed["model"], "demo-model");
    assert_eq!(about(&trace, "attempts", "chat-b")[0]["status"], 200);
    assert_eq!(trace["status"], 200, "{trace}");
}

#[tokio::test]
async fn a_cooling_connection_is_named_with_its_end() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a", "b"], &json!({})).no_waiting();
    let node = Node::start(&config).await;
    for short in ["chat-a", "chat-b"] {
        upstream.script(short, [Reply::limited(60)]);
    }
    ask(&node, "chat/demo-model").await;
    let refused = ask(&node, "chat/demo-model").await.expect_status(503);
    let trace = node.trace(&refused).await;
    assert_eq!(trace["attempts"], json!([]), "{trace}");
    for id in ["chat-a", "chat-b"] {
        let entry = about(&trace, "excluded", id)[0];
        assert_eq!(entry["reason"], "connection_cooldown", "{entry}");
        assert!(
            entry["until"]
                .as_str()
                .is_some_and(|until| until.ends_with('Z')),
            "{entry}"
        );
    }
    assert_eq!(trace["status"], 503);
    assert!(
        refused.text().contains("connection_cooldown"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn every_other_exclusion_has_its_word() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection("dead", "acme")
        .connection_with("off", "acme", json!({"enabled": false}))
        .connection_with("elsewhere", "acme", json!({"models": ["another"]}))
        .provider("broken", "openai", &upstream.url())
        .connection_with("tripped", "broken", json!({"disableCooling": true}))
        .provider("foreign", "anthropic", &upstream.url())
        .connection("abroad", "foreign")
        .combo("all", &["acme/m", "broken/m", "foreign/m"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .no_waiting();
    let node = Node::start(&config).await;
    upstream.script("dead", [Reply::error(401, "invalid api key")]);
    upstream.script("tripped", [Reply::error(503, "down")]);
    ask(&node, "all").await;
    let refused = ask(&node, "all").await.expect_status(503);
    let trace = node.trace(&refused).await;
    assert_eq!(
        about(&trace, "excluded", "tripped")[0]["reason"],
        "circuit_open",
        "{trace}"
    );
    assert_eq!(
        about(&trace, "excluded", "dead")[0]["reason"],
        "unavailable",
        "{trace}"
    );
    assert!(trace.to_string().contains("foreign"), "{trace}");
    assert_eq!(upstream.requests().len(), 2);
}

#[tokio::test]
async fn refusals_before_any_target_are_remembered_too() {
    let config = Config::new().api_key(
        "team",
        "the-teams-key",
        json!({"allowedModels": ["simulated/ok"]}),
    );
    let node = Node::start(&config).await;
    for (model, status, code) in [
        ("no-such-model", 403, None),
        ("simulated/echo", 403, None),
        ("", 400, None),
        ("simulated/ok", 200, Some("simulated")),
    ] {
        let body = Dialect::Chat.request(model, false);
        let call = node
            .post("/v1/chat/completions", &body)
            .bearer("the-teams-key");
        let answer = call.send().await;
        assert!(
            answer.status == status || answer.status == 404,
            "{model}: {}",
            answer.text()
        );
        let trace = node.trace(&answer).await;
        assert_eq!(trace["status"], answer.status, "{trace}");
        let text = trace.to_string();
        assert!(text.contains(code.unwrap_or("")), "{text}");
        if answer.status != 200 {
            assert_eq!(
                trace["error"]["code"],
                answer.json()["error"]["code"],
                "{trace}"
            );
        }
    }
}

#[tokio::test]
async fn a_stream_that_broke_says_how_far_it_came() {
    let upstream = Upstream::start().await;
    let node = Node::start(&all_providers(&upstream.url(), &["a"], &json!({})).no_waiting()).await;
    let reply = Reply::sse().send(&Dialect::Chat.content("hel"));
    upstream.script("chat-a", [reply]);
    let stream = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(true))
        .open()
        .await;
    let id = stream.header("x-request-id").unwrap().to_owned();
    Dialect::Chat.expect_broken(&stream.finish().await, "hel");
    let trace = cluster_tests::wait::eventually("the trace is complete", || async {
        let answer = node
            .admin_call("GET", &format!("/api/requests/{id}"))
            .send()
            .await;
        let trace = answer.json();
        (!about(&trace, "attempts", "chat-a").is_empty()).then_some(trace)
    })
    .await;
    let attempt = about(&trace, "attempts", "chat-a")[0];
    assert_eq!(attempt["reason"], "server_error", "{attempt}");
}

#[tokio::test]
async fn a_refusal_carries_its_diagnostics() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a", "b"], &json!({}))
        .combo("both", &["chat/m@chat-a", "chat/m@chat-b"])
        .no_waiting();
    let node = Node::start(&config).await;
    for short in ["chat-a", "chat-b"] {
        upstream.script(short, [Reply::limited(60)]);
    }
    ask(&node, "both").await;
    let refused = ask(&node, "both").await.expect_status(503);
    let told = refused.retry_after().unwrap().to_string();
    for (name, wanted) in [
        ("x-omniroute-combo-pool-size", "2"),
        ("x-omniroute-combo-attempted", "0"),
        (
            "x-omniroute-combo-terminal-reason",
            "all_targets_cooling_down",
        ),
        ("x-omniroute-recovery-action", "wait"),
        ("x-omniroute-retry-after-seconds", told.as_str()),
    ] {
        assert_eq!(refused.header(name), Some(wanted), "{name}");
    }
    let excluded = refused
        .header("x-omniroute-combo-excluded")
        .unwrap_or_default();
    let each = excluded.split(',').map(str::trim);
    assert_eq!(
        each.collect::<Vec<_>>(),
        ["chat/m:connection_cooldown"; 2],
        "{excluded}"
    );
}
