//! Redis freezes, dies, loses its data, or is not there yet: requests go on,
//! and what was seen meanwhile is shared when it is back.

use std::time::Duration;

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::metrics::Exposition;
use cluster_tests::node::{Node, Setup};
use cluster_tests::redis::{self, Redis};
use cluster_tests::reply::Reply;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

use crate::cluster_state::{acme, ask};

/// No request takes longer because the store is away than the few store calls
/// in it may, on a busy machine.
const PROMPT: Duration = Duration::from_secs(5);

async fn store_becomes(node: &Node, up: bool) -> Value {
    eventually("the store's state is seen", || async {
        let ready = node.get("/readyz").send().await.expect_status(200).json();
        let degraded = ready["degraded"] == json!(["store"]);
        let is_up = ready["store"] == "up" && ready["degraded"] == json!([]);
        (if up {
            is_up
        } else {
            degraded && ready["store"] == "down"
        })
        .then_some(ready)
    })
    .await
}

fn lines(node: &Node, text: &str) -> usize {
    node.log()
        .text()
        .lines()
        .filter(|line| line.contains(text))
        .count()
}

async fn store_up(node: &Node) -> f64 {
    let text = node.get("/metrics").send().await.expect_status(200).text();
    Exposition::parse(&text).sum("omniroute_store_up")
}

/// Node 0 is refused by `a` and served by `b`, quickly.
async fn refused_by_a(cluster: &Cluster) {
    cluster.upstream.script("a", [Reply::limited(600)]);
    cluster.upstream.script("b", [Dialect::Chat.ok("pong")]);
    let answer = ask(&cluster.nodes[0]).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    assert!(answer.took < PROMPT, "{:?}", answer.took);
    let again = ask(&cluster.nodes[0]).await.expect_status(200);
    assert_eq!(again.header("x-omniroute-connection"), Some("b"));
    assert!(again.took < PROMPT, "{:?}", again.took);
    assert_eq!(cluster.upstream.count("a"), 1);
}

async fn expect_shared(cluster: &Cluster) {
    for node in &cluster.nodes {
        store_becomes(node, true).await;
        let a = node.connection_becomes("a", "cooling_down").await;
        assert!(a["cooldownRemainingMs"].as_u64().unwrap() > 500_000, "{a}");
    }
}

#[tokio::test]
async fn a_frozen_redis_holds_nobody_up_and_is_told_everything_afterwards() {
    let cluster = Cluster::start(2, |upstream| acme(upstream, &["a", "b"])).await;
    cluster.redis.stop();
    refused_by_a(&cluster).await;
    for node in &cluster.nodes {
        store_becomes(node, false).await;
        eventually("the loss is in the log", || async {
            (lines(node, "the store is away") == 1).then_some(())
        })
        .await;
        assert!(store_up(node).await.abs() < f64::EPSILON);
    }
    cluster.redis.cont();
    expect_shared(&cluster).await;
    for node in &cluster.nodes {
        eventually("the return is in the log", || async {
            (lines(node, "the store is back") == 1).then_some(())
        })
        .await;
        assert_eq!(lines(node, "the store is away"), 1);
        assert!((store_up(node).await - 1.0).abs() < f64::EPSILON);
    }
}

#[tokio::test]
async fn a_redis_that_dies_and_comes_back_with_its_data() {
    let plan = Plan::of(2).redis(redis::Setup::durable());
    let mut cluster = plan.start(|upstream| acme(upstream, &["a", "b"])).await;
    cluster.redis.kill().await;
    refused_by_a(&cluster).await;
    for node in &cluster.nodes {
        store_becomes(node, false).await;
    }
    cluster.redis.restart().await;
    expect_shared(&cluster).await;
}

#[tokio::test]
async fn a_redis_that_lost_its_data_is_told_again_what_the_nodes_know() {
    let mut cluster = Cluster::start(2, |upstream| acme(upstream, &["a", "b"])).await;
    refused_by_a(&cluster).await;
    cluster.nodes[1]
        .connection_becomes("a", "cooling_down")
        .await;
    cluster.redis.kill().await;
    for node in &cluster.nodes {
        store_becomes(node, false).await;
    }
    cluster.redis.restart_empty().await;
    eventually("the record is there again", || async {
        let keys = cluster.redis.keys().await;
        keys.iter()
            .any(|key| key.ends_with(":health:a"))
            .then_some(())
    })
    .await;
    expect_shared(&cluster).await;
    // A node that starts only now knows it from the store.
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    expect_shared(&cluster).await;
    assert_eq!(cluster.upstream.count("a"), 1);
}

#[tokio::test]
async fn a_node_starts_without_redis_and_catches_up() {
    let upstream = cluster_tests::upstream::Upstream::start().await;
    let mut redis: Redis = redis::Setup::durable().start().await;
    let config = acme(&upstream, &["a", "b"]).set(&["store", "url"], json!(redis.url()));
    upstream.script("a", [Reply::error(401, "who are you")]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let mut before = Setup::with(&config).start().await;
    ask(&before).await.expect_status(200);
    before.connection_becomes("a", "terminal").await;
    before.kill_9().await;
    redis.kill().await;

    let node = Setup::with(&config).start().await;
    store_becomes(&node, false).await;
    let nodes = node.admin_get("/api/nodes").await;
    assert_eq!(
        (&nodes["stale"], &nodes["liveRouters"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 1);
    // It knows nothing, so it asks; what it learns waits for the store.
    assert_eq!(node.connection("a").await["connectionStatus"], "healthy");
    upstream.script("a", [Dialect::Chat.ok("pong")]);
    upstream.script("b", [Reply::limited(600)]);
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("a"));
    redis.restart().await;
    store_becomes(&node, true).await;
    node.connection_becomes("a", "terminal").await;
    let answer = ask(&node).await.expect_status(429);
    assert!(answer.retry_after().unwrap() > 500, "{:?}", answer.headers);
}

#[tokio::test]
async fn what_a_cut_off_node_saw_is_merged_with_what_the_others_saw() {
    let cluster = Cluster::start(2, |upstream| acme(upstream, &["a", "b", "c"])).await;
    cluster.cuts[0].set(Mode::BlackHole).await;
    store_becomes(&cluster.nodes[0], false).await;
    cluster.upstream.script("a", [Reply::limited(600)]);
    cluster
        .upstream
        .script("b", [Reply::error(401, "who are you")]);
    cluster.upstream.script("c", [Dialect::Chat.ok("pong")]);
    for node in &cluster.nodes {
        let answer = ask(node).await.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("c"));
        assert!(answer.took < PROMPT, "{:?}", answer.took);
    }
    cluster.cuts[0].set(Mode::Pass).await;
    store_becomes(&cluster.nodes[0], true).await;
    for node in &cluster.nodes {
        node.connection_becomes("a", "cooling_down").await;
        node.connection_becomes("b", "terminal").await;
    }
    let records = cluster.redis.contents().await;
    assert!(
        records.contains("health:a") && records.contains("health:b"),
        "{records}"
    );
}

#[tokio::test]
async fn while_the_store_is_away_every_node_may_probe() {
    let cluster = Cluster::start(2, |upstream| {
        acme(upstream, &["a"])
            .resilience("providerBreaker.apikey.failureThreshold", json!(1))
            .resilience("providerBreaker.apikey.resetTimeoutMs", json!(1_000))
            .resilience("connectionCooldown.apikey.baseCooldownMs", json!(100))
    })
    .await;
    cluster
        .upstream
        .script("a", [Reply::error(503, "down"), Dialect::Chat.ok("pong")]);
    ask(&cluster.nodes[0]).await;
    for node in &cluster.nodes {
        eventually("the breaker is half-open", || async {
            let a = node.connection("a").await;
            (a["breaker"]["state"] == "HALF_OPEN").then_some(())
        })
        .await;
    }
    cluster.redis.stop();
    for node in &cluster.nodes {
        let answer = eventually("it answers", || async {
            let answer = ask(node).await;
            assert!(answer.took < PROMPT, "{:?}", answer.took);
            (answer.status == 200).then_some(answer)
        })
        .await;
        assert_eq!(answer.header("x-omniroute-connection"), Some("a"));
    }
    cluster.redis.cont();
    for node in &cluster.nodes {
        store_becomes(node, true).await;
        eventually("the breaker is closed", || async {
            let a = node.connection("a").await;
            (a["breaker"]["state"] == "CLOSED").then_some(())
        })
        .await;
    }
}
