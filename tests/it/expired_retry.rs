//! Expired connections are tried again by themselves, once in the cluster, a
//! few times.

use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::tokens::in_ms;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

use crate::tokens_refresh::{LONG, World, start};

/// Retries after 1, 2 and 4 s.
fn soon(config: Config, retries: u64) -> Config {
    config.set(
        &["settings", "expiredRetry"],
        json!({"sweepMs": 1000, "baseMs": 1000, "maxRetries": retries}),
    )
}

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let config = Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"models": ["m"]}));
    soon(config, 2)
}

fn refused() -> Reply {
    Reply::error(401, "invalid api key")
}

async fn ask(node: &Node, model: &str) -> u16 {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await.status
}

/// The row of `id` once its retries are over.
async fn over(node: &Node, id: &str) -> Value {
    eventually("the retries are over", || async {
        let row = node.connection(id).await;
        (row["expiredRetry"]["over"] == true).then_some(row)
    })
    .await
}

#[tokio::test]
async fn a_key_that_works_again_is_found_out() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("a", [refused(), refused(), Dialect::Chat.ok("pong")]);
    assert_eq!(ask(&node, "acme/m").await, 503);
    let row = node.connection("a").await;
    assert_eq!(row["testStatus"], "expired", "{row}");
    assert_eq!(row["expiredRetry"]["count"], 0, "{row}");
    assert!(row["expiredRetry"]["nextAt"].is_string(), "{row}");
    assert_eq!(row["isActive"], true, "{row}");
    let row = node.connection_becomes("a", "healthy").await;
    assert_eq!(row["testStatus"], "active", "{row}");
    assert_eq!(row["expiredRetry"], Value::Null, "{row}");
    assert_eq!(upstream.count("a"), 3);
    assert_eq!(ask(&node, "acme/m").await, 200);
}

#[tokio::test]
async fn one_node_tries_and_the_last_retry_is_the_last() {
    let cluster = Cluster::start(3, config).await;
    cluster.upstream.script("a", [refused()]);
    assert_eq!(ask(&cluster.nodes[0], "acme/m").await, 503);
    for node in &cluster.nodes {
        let row = over(node, "a").await;
        assert_eq!(row["testStatus"], "expired", "{row}");
        assert_eq!(row["expiredRetry"]["count"], 2, "{row}");
        assert_eq!(row["expiredRetry"]["nextAt"], Value::Null, "{row}");
        assert_eq!(row["isActive"], false, "{row}");
    }
    cluster.upstream.request("a", 3).await;
    assert_eq!(
        cluster.upstream.count("a"),
        3,
        "the request and two retries"
    );
    // An operator brings it back, and then it has all its retries again.
    let reset = cluster.nodes[1].post("/api/connections/a/reset", &json!({}));
    reset.send().await.expect_status(200);
    for node in &cluster.nodes {
        let row = node.connection_becomes("a", "healthy").await;
        assert_eq!(row["isActive"], true, "{row}");
    }
}

#[tokio::test]
async fn a_token_that_is_still_good_is_tried_and_not_renewed() {
    let world = World::new().await;
    let config = soon(world.config(&["a"], in_ms(LONG)), 3);
    // New tokens do not mend it: the account itself is refused for a while.
    let not_allowed = Reply::error(401, "OAuth authentication is currently not allowed");
    world.upstream.script("a.0", [not_allowed.clone()]);
    world
        .upstream
        .script("a.1", [not_allowed, Dialect::Chat.ok("pong")]);
    let node = start(&config).await;
    assert_eq!(ask(&node, "plan/m").await, 503);
    node.connection_becomes("a", "terminal").await;
    assert_eq!(world.endpoint.grants().len(), 1);
    node.connection_becomes("a", "healthy").await;
    assert_eq!(world.endpoint.grants().len(), 1);
    assert_eq!(world.upstream.count("a.1"), 2);
}

#[tokio::test]
async fn a_refresh_token_that_was_refused_is_tried_again() {
    let world = World::new().await;
    let refusal = json!({"error": "invalid_grant"});
    world.endpoint.script([
        cluster_tests::tokens::Turn::Answer(400, refusal, vec![]),
        cluster_tests::tokens::Turn::Grant,
    ]);
    let config = soon(world.config(&["a"], in_ms(-1000)), 3);
    let node = start(&config).await;
    // Tokens that have ended are renewed from the start on: whoever asks later
    // finds nobody.
    assert!([404, 503].contains(&ask(&node, "plan/m").await));
    let row = node.connection_becomes("a", "terminal").await;
    assert_eq!(row["testStatus"], "expired", "{row}");
    assert_eq!(world.endpoint.grants().len(), 1);
    node.connection_becomes("a", "healthy").await;
    assert_eq!(world.endpoint.grants().len(), 2);
    assert_eq!(ask(&node, "plan/m").await, 200);
}

#[tokio::test]
async fn retries_can_be_switched_off() {
    let upstream = Upstream::start().await;
    let config = config(&upstream).set(&["settings", "expiredRetry", "enabled"], json!(false));
    let node = Node::start(&config).await;
    upstream.script("a", [refused(), Dialect::Chat.ok("pong")]);
    assert_eq!(ask(&node, "acme/m").await, 503);
    let row = node.connection("a").await;
    assert_eq!(row["expiredRetry"], Value::Null, "{row}");
    assert_eq!(row["isActive"], true, "{row}");
}
