//! An operator's live test of one connection: what is asked, what its result
//! changes, and what it leaves alone.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::metrics::Exposition;
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::tokens::in_ms;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually};
use serde_json::{Value, json};

use crate::tokens_refresh::{LONG, World};

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with(
            "a",
            "acme",
            json!({"models": ["one-*", "one-small", "two"]}),
        )
}

async fn test(node: &Node, id: &str, body: &Value) -> Answer {
    let path = format!("/api/connections/{id}/test");
    node.post(&path, body).send().await
}

async fn tested(node: &Node, id: &str) -> Value {
    test(node, id, &json!({})).await.expect_status(200).json()
}

async fn ask(node: &Node) -> u16 {
    let body = Dialect::Chat.request("acme/two", false);
    node.post("/v1/chat/completions", &body).send().await.status
}

#[tokio::test]
async fn a_test_asks_for_one_token_of_the_first_known_model() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let answer = tested(&node, "a").await;
    assert_eq!(answer["ok"], true, "{answer}");
    assert_eq!(answer["connection"], "a");
    assert_eq!(answer["status"], 200);
    assert_eq!(answer["model"], "one-small");
    assert_eq!(answer["reason"], Value::Null);
    assert_eq!(answer["message"], Value::Null);
    assert_eq!(answer["connectionStatus"], "healthy");
    assert!(answer["latencyMs"].is_u64(), "{answer}");
    let asked = upstream.request("a", 1).await;
    assert!(asked.path.ends_with("/chat/completions"), "{}", asked.path);
    let body = asked.json();
    assert_eq!(body["model"], "one-small");
    assert_eq!(body["max_tokens"], 1);

    let named = json!({"model": "acme/two"});
    let answer = test(&node, "a", &named).await.expect_status(200).json();
    assert_eq!(answer["model"], "two", "{answer}");
    let bare = node.admin_call("POST", "/api/connections/a/test").send();
    bare.await.expect_status(200);
    assert_eq!(upstream.count("a"), 3);
}

#[tokio::test]
async fn where_no_model_is_known_the_list_is_asked_for() {
    let upstream = Upstream::start().await;
    upstream.script_all([Reply::json(200, &json!({"object": "list", "data": []}))]);
    let mut config = Config::new();
    for dialect in Dialect::ALL {
        config = config
            .provider(dialect.name(), dialect.protocol(), &upstream.url())
            .connection(&dialect.connection("a"), dialect.name());
    }
    let node = Node::start(&config).await;
    for dialect in Dialect::ALL {
        let id = dialect.connection("a");
        let answer = tested(&node, &id).await;
        assert_eq!(answer["ok"], true, "{answer}");
        assert_eq!(answer["model"], Value::Null);
        let asked = upstream.request(&id, 1).await;
        assert_eq!(asked.method, "GET");
        assert!(asked.path.ends_with("/models"), "{}", asked.path);
        assert!(asked.body.is_empty());
        // What is no list proves nothing.
        upstream.script(&id, [Reply::text(200, "text/html", "<html>hello</html>")]);
        let answer = tested(&node, &id).await;
        assert_eq!(answer["ok"], false, "{answer}");
        assert_eq!(answer["connectionStatus"], "healthy");
    }
}

#[tokio::test]
async fn the_least_is_asked_in_every_protocol() {
    let upstream = Upstream::start().await;
    let mut config = Config::new();
    for dialect in Dialect::ALL {
        upstream.script(&dialect.connection("a"), [dialect.ok("pong")]);
        config = config
            .provider(dialect.name(), dialect.protocol(), &upstream.url())
            .connection_with(
                &dialect.connection("a"),
                dialect.name(),
                json!({"models": ["m"]}),
            );
    }
    let list = json!({"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "model": "text-embedding-x", "usage": {"prompt_tokens": 1, "total_tokens": 1}});
    upstream.script("e", [Reply::json(200, &list)]);
    config = config.connection_with("e", "chat", json!({"models": ["text-embedding-x"]}));
    let node = Node::start(&config).await;
    for (id, path, limit) in [
        ("chat-a", "/chat/completions", "max_tokens"),
        ("messages-a", "/messages", "max_tokens"),
        ("responses-a", "/responses", "max_output_tokens"),
        ("e", "/embeddings", ""),
    ] {
        let answer = tested(&node, id).await;
        assert_eq!(answer["ok"], true, "{id}: {answer}");
        let asked = upstream.request(id, 1).await;
        assert!(asked.path.ends_with(path), "{}", asked.path);
        let most = asked.json()[limit].as_u64();
        assert!(most.is_none_or(|most| most <= 16), "{most:?}");
        assert_eq!(most.is_some(), !limit.is_empty());
    }
}

#[tokio::test]
async fn a_wrong_key_expires_and_a_right_one_brings_it_back() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let refused = "Incorrect API key provided: key-a";
    upstream.script("a", [Reply::error(401, refused)]);
    let answer = tested(&node, "a").await;
    assert_eq!(answer["ok"], false, "{answer}");
    assert_eq!(answer["status"], 401);
    assert_eq!(answer["reason"], "auth_error");
    assert_eq!(answer["connectionStatus"], "terminal");
    let message = answer["message"].as_str().unwrap();
    assert!(!message.contains("key-a"), "{message}");
    assert_eq!(node.connection("a").await["testStatus"], "expired");
    assert_eq!(ask(&node).await, 404);
    assert_eq!(upstream.count("a"), 1);

    upstream.script("a", [Dialect::Chat.ok("pong")]);
    let answer = tested(&node, "a").await;
    assert_eq!(answer["ok"], true, "{answer}");
    assert_eq!(answer["connectionStatus"], "healthy");
    let row = node.connection("a").await;
    assert_eq!(row["testStatus"], "active", "{row}");
    assert_eq!(row["lastErrorType"], Value::Null, "{row}");
    assert_eq!(ask(&node).await, 200);
}

#[tokio::test]
async fn a_success_ends_a_cooldown_and_a_lock() {
    let upstream = Upstream::start().await;
    let config = config(&upstream).provider_with(
        "many",
        "openai",
        &upstream.url(),
        json!({"perModelQuota": true}),
    );
    let config = config.connection_with("b", "many", json!({"models": ["two"]}));
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::limited(600), Dialect::Chat.ok("pong")]);
    assert_eq!(ask(&node).await, 429);
    assert_eq!(
        node.connection("a").await["connectionStatus"],
        "cooling_down"
    );
    assert_eq!(tested(&node, "a").await["connectionStatus"], "healthy");
    assert_eq!(ask(&node).await, 200);

    upstream.script("b", [Reply::limited(600), Dialect::Chat.ok("pong")]);
    let body = Dialect::Chat.request("many/two", false);
    let locked = node.post("/v1/chat/completions", &body).send().await;
    assert_eq!(locked.status, 429, "{}", locked.text());
    assert_eq!(tested(&node, "b").await["ok"], true);
    assert_eq!(node.connection("b").await["lockouts"], json!([]));
}

#[tokio::test]
async fn failures_of_tests_are_no_traffic() {
    let upstream = Upstream::start().await;
    let config = config(&upstream).resilience("providerBreaker.apikey.failureThreshold", json!(2));
    let node = Node::start(&config).await;
    for _ in 0..4 {
        upstream.script("a", [Reply::error(503, "down")]);
        let answer = tested(&node, "a").await;
        assert_eq!(answer["ok"], false, "{answer}");
        assert_eq!(answer["status"], 503);
        assert_eq!(answer["reason"], "server_error");
        assert_eq!(answer["connectionStatus"], "healthy");
    }
    let row = node.connection("a").await;
    assert_eq!(row["backoffLevel"], 0, "{row}");
    assert_eq!(row["breaker"]["state"], "CLOSED", "{row}");
    assert_eq!(row["breaker"]["failureCount"], 0, "{row}");
    assert_eq!(row["errorCode"], 503, "the failure is shown: {row}");
    // What the upstream announces holds, whoever hears it.
    upstream.script("a", [Reply::limited(60), Dialect::Chat.ok("pong")]);
    let answer = tested(&node, "a").await;
    assert_eq!(answer["connectionStatus"], "cooling_down", "{answer}");
    assert_eq!(node.connection("a").await["backoffLevel"], 0);
    // Tests are counted by themselves.
    let text = node.get("/metrics").send().await.text();
    let metrics = Exposition::parse(&text);
    assert!((metrics.sum("omniroute_connection_tests_total") - 5.0).abs() < f64::EPSILON);
    assert!(metrics.sum("omniroute_requests_total").abs() < f64::EPSILON);
    let newest = node.admin_get("/api/requests").await;
    assert!(
        newest.to_string().contains("\"test\":\"operator\""),
        "{newest}"
    );
}

#[tokio::test]
async fn refusals_without_a_reason_do_not_add_up() {
    let upstream = Upstream::start().await;
    upstream.script_all([Reply::error(403, "Request not allowed")]);
    let config = Config::new()
        .set(
            &["providers"],
            json!([{"id": "claude", "baseUrl": upstream.url()}]),
        )
        .connection_with(
            "c",
            "claude",
            json!({"models": ["claude-x"],
            "oauth": {"accessToken": "key-c"}}),
        );
    let node = Node::start(&config).await;
    for _ in 0..4 {
        let answer = tested(&node, "c").await;
        assert_eq!(answer["ok"], false, "{answer}");
        assert_eq!(answer["connectionStatus"], "healthy", "{answer}");
    }
    assert_eq!(upstream.count("c"), 4);
}

#[tokio::test]
async fn what_is_switched_off_can_be_tested() {
    let upstream = Upstream::start().await;
    let config = config(&upstream)
        .provider("other", "openai", &upstream.url())
        .connection_with("off", "other", json!({"models": ["m"], "enabled": false}))
        .connection_with(
            "off-too",
            "acme",
            json!({"models": ["m"], "enabled": false}),
        );
    let node = Node::start(&config).await;
    for id in ["off", "off-too"] {
        assert_eq!(tested(&node, id).await["ok"], true);
        upstream.script(id, [Reply::error(401, "invalid api key")]);
        let answer = tested(&node, id).await;
        assert_eq!(answer["connectionStatus"], "terminal", "{answer}");
        assert_eq!(upstream.count(id), 2);
    }
    // What is known of it counts once it is switched on.
    let on = config.set(
        &["connections"],
        json!([{"id": "off", "provider": "other", "apiKey": "key-off", "models": ["m"]}]),
    );
    std::fs::write(node.setup().file(), on.to_yaml()).unwrap();
    eventually("it is switched on", || async {
        let rows = node.admin_get("/api/resilience/connections").await;
        let rows = rows["connections"].as_array().unwrap().clone();
        let off = rows.into_iter().find(|row| row["id"] == "off")?;
        (off["connectionStatus"] == "terminal").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_full_or_tripped_connection_is_tested_all_the_same() {
    let upstream = Upstream::start().await;
    let gate = Gate::closed();
    let config = config(&upstream)
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .set(
            &["settings", "comboDefaults"],
            json!({"queueTimeoutMs": 300}),
        )
        .connection_with(
            "full",
            "acme",
            json!({"models": ["three"], "maxConcurrent": 1}),
        );
    let node = Node::start(&config).await;
    upstream.script(
        "full",
        [
            Dialect::Chat.ok("pong").behind(&gate),
            Dialect::Chat.ok("pong"),
        ],
    );
    let body = Dialect::Chat.request("acme/three", false);
    let asking = node.post("/v1/chat/completions", &body).send();
    let testing = async {
        upstream.request("full", 1).await;
        let answer = tested(&node, "full").await;
        assert_eq!(answer["ok"], true, "{answer}");
        assert!(
            answer["latencyMs"].as_u64().unwrap() >= 250,
            "it waits its turn: {answer}"
        );
        gate.open();
    };
    let (asked, ()) = tokio::join!(asking, testing);
    asked.expect_status(200);

    upstream.script("a", [Reply::error(503, "down"), Dialect::Chat.ok("pong")]);
    assert_eq!(ask(&node).await, 503);
    assert_eq!(
        node.connection("full").await["connectionStatus"],
        "circuit_open"
    );
    let answer = tested(&node, "full").await;
    assert_eq!(
        (&answer["ok"], &answer["connectionStatus"]),
        (&json!(true), &json!("circuit_open"))
    );
    let breaker = node.connection("full").await["breaker"].clone();
    assert_eq!(
        breaker["state"], "OPEN",
        "one account says little of the provider"
    );
}

#[tokio::test]
async fn an_account_is_renewed_as_for_any_request() {
    let world = World::new().await;
    world.refuse("a.0");
    let config = world.config(&["a"], in_ms(LONG));
    let node = crate::tokens_refresh::start(&config).await;
    let answer = tested(&node, "a").await;
    assert_eq!(answer["ok"], true, "{answer}");
    assert_eq!(world.upstream.count("a.0"), 1);
    assert_eq!(world.upstream.count("a.1"), 1);
    assert_eq!(world.endpoint.grants().len(), 1);
}

#[tokio::test]
async fn bad_calls_are_refused() {
    let upstream = Upstream::start().await;
    let config = config(&upstream)
        .server("adminToken", json!("the-admin-token"))
        .api_key("plain", "the-plain-key", json!({}));
    let node = Node::start(&config).await;
    let call = |path: &str| node.post(path, &json!({})).bearer("the-admin-token");
    let answer = call("/api/connections/nobody/test").send().await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (404, "connection_not_found")
    );
    for bad in [
        "[]",
        "{\"model\": 1}",
        "{\"model\": \"\"}",
        "{\"models\": \"m\"}",
        "{",
        "null x",
        "{\"model\": \"a\\u0000b\"}",
    ] {
        let answer = call("/api/connections/a/test")
            .body("application/json", bad.as_bytes().to_vec())
            .send()
            .await;
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text());
        assert_eq!(answer.code(), "invalid_body", "{bad}");
    }
    for key in ["the-plain-key", "nonsense"] {
        let answer = node
            .post("/api/connections/a/test", &json!({}))
            .bearer(key)
            .send()
            .await;
        assert!([401, 403].contains(&answer.status), "{}", answer.text());
    }
    assert_eq!(upstream.count("a"), 0);
}

#[tokio::test]
async fn who_goes_away_ends_the_call() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script(
        "a",
        [Reply::nothing(Finish::Hang), Dialect::Chat.ok("pong")],
    );
    let call = node.post("/api/connections/a/test", &json!({})).send();
    tokio::select! {
        answer = call => panic!("{}", answer.text()),
        seen = upstream.request("a", 1) => drop(seen),
    }
    upstream.request("a", 1).await.dropped(SOON).await;
    assert_eq!(node.connection("a").await["inFlight"], 0);
    assert_eq!(node.connection("a").await["lastErrorType"], Value::Null);
}

#[tokio::test]
async fn every_node_acts_on_the_result() {
    let cluster = Cluster::start(2, config).await;
    cluster
        .upstream
        .script("a", [Reply::error(401, "invalid api key")]);
    let answer = tested(&cluster.nodes[1], "a").await;
    assert_eq!(answer["connectionStatus"], "terminal", "{answer}");
    cluster.nodes[0].connection_becomes("a", "terminal").await;
    cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
    let answer = tested(&cluster.nodes[0], "a").await;
    assert_eq!(answer["connectionStatus"], "healthy", "{answer}");
    cluster.nodes[1].connection_becomes("a", "healthy").await;
    let took = Duration::from_millis(answer["latencyMs"].as_u64().unwrap());
    assert!(took < SOON);
}
