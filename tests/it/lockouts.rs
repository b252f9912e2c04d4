//! One model of a connection is left alone, the account goes on.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const PATH: &str = "/api/resilience/model-cooldowns";

fn config(upstream: &Upstream) -> Config {
    Config::new()
        .no_waiting()
        .provider_with(
            "acme",
            "openai",
            &upstream.url(),
            json!({"perModelQuota": true}),
        )
        .connection_with("a", "acme", json!({"models": ["one", "two"]}))
        .combo("both", &["acme/one@a", "acme/two@a"])
}

async fn ask(node: &Node, model: &str) -> u16 {
    let mut body = Dialect::Chat.ask(false);
    body["model"] = json!(model);
    node.post("/v1/chat/completions", &body).send().await.status
}

async fn locks(node: &Node) -> Vec<Value> {
    let all = node.admin_get(PATH).await;
    all["items"].as_array().unwrap().clone()
}

async fn delete(node: &Node, body: &Value) -> (u16, Value) {
    let answer = node.admin_call("DELETE", PATH).json(body).send().await;
    (answer.status, answer.json())
}

#[tokio::test]
async fn a_model_is_locked_and_the_account_goes_on() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Reply::limited(600), Dialect::Chat.ok("pong")]);
    let mut node = Node::start(&config(&upstream)).await;
    assert_eq!(ask(&node, "acme/one").await, 429);
    assert_eq!(ask(&node, "acme/two").await, 200);
    assert_eq!(ask(&node, "acme/one").await, 429, "not asked again");
    assert_eq!(upstream.count("a"), 2);

    let connection = node.connection("a").await;
    assert_eq!(connection["connectionStatus"], "healthy");
    let [lock] = &locks(&node).await[..] else {
        panic!("{connection}");
    };
    assert_eq!(lock["model"], "one");
    assert_eq!(lock["connectionId"], "a");
    assert_eq!(lock["reason"], "rate_limit_exceeded");
    assert_eq!(lock["failureCount"], 1);
    let left = lock["remainingMs"].as_u64().unwrap();
    assert!((590_000..=600_000).contains(&left), "{left}");
    assert_eq!(connection["lockouts"][0]["model"], "one");

    // What the client was told outlives a crash (MLK-25).
    node.kill_9().await;
    let node = node.start_again().await;
    assert_eq!(ask(&node, "acme/one").await, 429);
    assert_eq!(upstream.count("a"), 2);

    let named = json!({"provider": "acme", "connection": "a", "model": "one"});
    let (status, body) = delete(&node, &named).await;
    assert_eq!((status, &body["removed"]), (200, &json!(true)), "{body}");
    assert_eq!(ask(&node, "acme/one").await, 200);
    let (_, body) = delete(&node, &named).await;
    assert_eq!(body["removed"], false);
}

#[tokio::test]
async fn another_model_of_the_same_connection_is_tried() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Reply::limited(600), Dialect::Chat.ok("pong")]);
    let node = Node::start(&config(&upstream)).await;
    assert_eq!(ask(&node, "both").await, 200);
    assert_eq!(upstream.order(), ["a", "a"]);
    assert_eq!(upstream.request("a", 2).await.json()["model"], "two");
}

#[tokio::test]
async fn clearing_locks() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Reply::limited(10), Reply::limited(60)]);
    let node = Node::start(&config(&upstream)).await;
    assert_eq!(ask(&node, "acme/one").await, 429);
    assert_eq!(ask(&node, "acme/two").await, 429);
    // MLK-21: those that last longest come first.
    let models: Vec<Value> = locks(&node)
        .await
        .iter()
        .map(|lock| lock["model"].clone())
        .collect();
    assert_eq!(models, ["two", "one"]);
    // MLK-22, MLK-23.
    assert_eq!(delete(&node, &json!({"provider": "x"})).await.0, 400);
    let (status, body) = delete(&node, &json!({"all": true})).await;
    assert_eq!(
        (status, &body["ok"], &body["clearedAll"]),
        (200, &json!(true), &json!(true))
    );
    assert!(locks(&node).await.is_empty());
}

#[tokio::test]
async fn a_reset_clears_locks_too() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Reply::limited(60)]);
    let node = Node::start(&config(&upstream)).await;
    assert_eq!(ask(&node, "acme/one").await, 429);
    let reset = node
        .admin_call("POST", "/api/resilience/reset")
        .send()
        .await;
    assert_eq!(reset.expect_status(200).json()["lockouts"], 1);
    assert!(locks(&node).await.is_empty());
}

/// PER-19: nothing rests the connection, so the model is what is left alone.
#[tokio::test]
async fn a_connection_that_never_cools_still_has_locks() {
    let upstream = Upstream::start().await;
    let refusal = json!({"error": {"message": "用户额度不足"}});
    upstream.script("a", [Reply::json(429, &refusal)]);
    let config = Config::new()
        .no_waiting()
        .provider("agentrouter", "openai", &upstream.url())
        .connection_with(
            "a",
            "agentrouter",
            json!({"models": ["one"], "disableCooling": true}),
        );
    let node = Node::start(&config).await;
    assert_eq!(ask(&node, "agentrouter/one").await, 429);
    let connection = node.connection("a").await;
    assert_eq!(connection["connectionStatus"], "healthy");
    assert_eq!(connection["lockouts"][0]["model"], "one", "{connection}");
}

/// The operator's rule says whom to charge, and the request goes elsewhere.
#[tokio::test]
async fn an_operators_rule_reaches_the_request() {
    let upstream = Upstream::start().await;
    let refusal = json!({"error": {"message": "Requested model x is not supported"}});
    upstream.script("a", [Reply::json(400, &refusal)]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let rule = json!([{"status": 400, "match": "not supported", "scope": "provider",
        "cooldownMs": 21_600_000}]);
    let config = Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .provider("backup", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"models": ["one"]}))
        .connection_with("a2", "acme", json!({"models": ["one"], "priority": 2}))
        .connection_with("b", "backup", json!({"models": ["one"]}))
        .combo("both", &["acme/one", "backup/one"])
        .set(&["settings", "providerErrorRules", "acme"], rule);
    let node = Node::start(&config).await;
    assert_eq!(ask(&node, "both").await, 200);
    assert_eq!(upstream.order(), ["a", "b"], "all of acme was left alone");
    let left = node.connection("a").await["cooldownRemainingMs"]
        .as_u64()
        .unwrap();
    assert!((21_590_000..=21_600_000).contains(&left), "{left}");
}
