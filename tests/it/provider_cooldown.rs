//! The gate in front of what combos fail on: opt-in, counted for connections and
//! providers, shared by all nodes.

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

/// A provider that fails whose connections never cool, and one that serves.
fn config(upstream: &Upstream) -> Config {
    let never = json!({"providerSpecificData": {"disableCooling": true}});
    upstream.script("a", [Reply::error(502, "down")]);
    upstream.script("b", [Reply::error(502, "down")]);
    upstream.script("z", [Dialect::Chat.ok("pong")]);
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .provider("zen", "openai", &upstream.url())
        .connection_with("a", "acme", never.clone())
        .connection_with("b", "acme", never)
        .connection("z", "zen")
        .combo("both", &["acme/m", "zen/m"])
        .combo("one", &["acme/m@a"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1000))
}

fn gated(upstream: &Upstream) -> Config {
    config(upstream).resilience(
        "providerCooldown",
        json!({"enabled": true, "minRetryCooldownMs": 60_000}),
    )
}

async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

async fn gate(node: &Node, id: &str) -> Value {
    node.connection(id).await["providerCooldown"].clone()
}

#[tokio::test]
async fn pcd_01_without_it_a_combo_tries_again_each_time() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    for n in 1..=3 {
        ask(&node, "both").await.expect_status(200);
        assert_eq!((upstream.count("a"), upstream.count("b")), (n, n));
    }
    assert_eq!(gate(&node, "a").await, Value::Null);
}

#[tokio::test]
async fn a_connection_that_failed_is_passed_over_by_combos() {
    let cluster = Cluster::start(2, gated).await;
    let (one, other) = (&cluster.nodes[0], &cluster.nodes[1]);
    ask(one, "both").await.expect_status(200);
    for node in [one, other] {
        eventually("every node knows", || async {
            (gate(node, "a").await != Value::Null && gate(node, "b").await != Value::Null)
                .then_some(())
        })
        .await;
        let answer = ask(node, "both").await.expect_status(200);
        let trace = node.trace(&answer).await;
        assert_eq!(
            trace["excluded"][0]["reason"], "provider_cooldown",
            "{trace}"
        );
    }
    let upstream = &cluster.upstream;
    assert_eq!((upstream.count("a"), upstream.count("b")), (1, 1));
    let shown = gate(other, "a").await;
    assert_eq!(
        (&shown["scope"], &shown["failureCount"]),
        (&json!("connection"), &json!(1))
    );
    // Nobody else is left: when to come back is the gate's to say.
    let answer = ask(other, "one").await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    let wait = answer.retry_after().unwrap();
    assert!((50..=60).contains(&wait), "{wait}");
    // A plain model is no combo.
    assert_eq!(ask(other, "acme/m").await.status, 502);

    let reset = other.post("/api/resilience/reset", &json!({})).send().await;
    assert_eq!(reset.expect_status(200).json()["providerCooldowns"], 1);
    eventually("every node has forgotten", || async {
        (gate(one, "a").await == Value::Null).then_some(())
    })
    .await;
    let before = upstream.count("a");
    ask(one, "both").await.expect_status(200);
    assert_eq!(upstream.count("a"), before + 1);
}

#[tokio::test]
async fn pcd_09_a_provider_rests_by_the_numbers_of_the_environment() {
    let upstream = Upstream::start().await;
    let config = gated(&upstream).connection("c", "acme");
    let mut node = Setup::with(&config)
        .env("OMNIROUTE_PROVIDER_BREAKER_API_KEY_FAILURE_THRESHOLD", "2")
        .start()
        .await;
    upstream.script("c", [Dialect::Chat.ok("pong")]);
    // Two failures are enough, so the third connection is not even asked.
    let answer = ask(&node, "both").await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("z"));
    assert_eq!(upstream.count("c"), 0);
    let shown = gate(&node, "c").await;
    assert_eq!(shown["scope"], "provider", "{shown}");
    assert_eq!(shown["providerFailureCount"], 2, "{shown}");
    // What clients were told outlives a crash.
    node.kill_9().await;
    let node = node.start_again().await;
    ask(&node, "both").await.expect_status(200);
    let asked = ["a", "b", "c"].map(|id| upstream.count(id));
    assert_eq!(asked, [1, 1, 0]);
    // A success forgives the provider, and a live test is one; its other
    // connections rest on.
    let tested = node
        .post("/api/connections/c/test", &json!({}))
        .send()
        .await;
    assert_eq!(tested.json()["ok"], true);
    assert_eq!(gate(&node, "c").await, Value::Null);
    let answer = ask(&node, "both").await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("c"));
    assert_eq!(gate(&node, "a").await["scope"], "connection");
}
