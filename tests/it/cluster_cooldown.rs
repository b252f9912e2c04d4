//! What one node learns of a connection, all nodes act on at once, and one
//! outage counts once, however many nodes met it.

use std::time::{Duration, Instant};

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use futures_util::future::join_all;
use serde_json::{Value, json};

/// How soon every node acts on what one of them learned.
const LAG: Duration = Duration::from_millis(100);

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection("a", "acme")
        .no_waiting()
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

async fn reset(node: &Node) {
    let call = node.post("/api/connections/a/reset", &json!({}));
    call.send().await.expect_status(200);
}

async fn all_become(cluster: &Cluster, status: &str) -> Vec<Value> {
    let waiting = cluster
        .nodes
        .iter()
        .map(|node| node.connection_becomes("a", status));
    join_all(waiting).await
}

#[tokio::test]
async fn a_429_seen_by_one_is_respected_by_all() {
    let cluster = Cluster::start(3, config).await;
    let mut lags = Vec::new();
    for round in 0..9 {
        let teller = round % 3;
        cluster.upstream.script("a", [Reply::limited(600)]);
        ask(&cluster.nodes[teller]).await.expect_status(429);
        let told = Instant::now();
        let learning = cluster.nodes.iter().map(|node| async move {
            node.connection_becomes("a", "cooling_down").await;
            told.elapsed()
        });
        lags.push(join_all(learning).await.into_iter().max().unwrap());
        let sent = cluster.upstream.requests().len();
        for node in &cluster.nodes {
            let answer = ask(node).await.expect_status(429);
            assert!((590..=600).contains(&answer.retry_after().unwrap()));
        }
        assert_eq!(cluster.upstream.requests().len(), sent);
        cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
        reset(&cluster.nodes[(teller + 1) % 3]).await;
        all_become(&cluster, "healthy").await;
    }
    lags.sort();
    // The machine may be busy with something else for a moment.
    assert!(lags[lags.len() / 2] <= LAG, "{lags:?}");
    assert!(
        lags.iter().all(|lag| *lag < Duration::from_secs(2)),
        "{lags:?}"
    );
}

#[tokio::test]
async fn failures_at_the_same_time_count_once() {
    let cluster = Cluster::start(3, config).await;
    let gate = Gate::closed();
    let refused = Reply::error(429, "slow down").behind(&gate);
    cluster.upstream.script("a", [refused]);
    let body = Dialect::Chat.request("acme/m", false);
    let herd: Vec<_> = (0..30)
        .map(|at| {
            let node = &cluster.nodes[at % 3];
            tokio::spawn(node.post("/v1/chat/completions", &body).try_send())
        })
        .collect();
    cluster.upstream.request("a", 30).await;
    gate.open();
    for one in herd {
        one.await.unwrap().unwrap().expect_status(429);
    }
    for a in all_become(&cluster, "cooling_down").await {
        assert_eq!(a["backoffLevel"], 1, "{a}");
    }
    // And it stays at that once everything has been told everywhere.
    let_time_pass(Duration::from_secs(1), "late commits would show").await;
    for node in &cluster.nodes {
        let a = node.connection("a").await;
        assert_eq!(a["backoffLevel"], 1, "{a}");
    }
}

#[tokio::test]
async fn the_ladder_is_climbed_by_all_nodes_together() {
    let cluster = Cluster::start(2, |upstream| {
        config(upstream)
            .resilience("connectionCooldown.apikey.baseCooldownMs", json!(200))
            .resilience("connectionCooldown.apikey.maxBackoffSteps", json!(5))
    })
    .await;
    cluster
        .upstream
        .script("a", [Reply::error(429, "slow down")]);
    for level in 1..=4_u64 {
        let node = &cluster.nodes[usize::try_from(level).unwrap() % 2];
        ask(node).await.expect_status(429);
        eventually("both nodes know the level", || async {
            for node in &cluster.nodes {
                if node.connection("a").await["backoffLevel"] != level {
                    return None;
                }
            }
            Some(())
        })
        .await;
        all_become(&cluster, "healthy").await;
    }
    cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
    ask(&cluster.nodes[0]).await.expect_status(200);
    eventually("a success clears it everywhere", || async {
        for node in &cluster.nodes {
            let a = node.connection("a").await;
            if a["backoffLevel"] != 0 || a["testStatus"] != "active" {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test]
async fn terminal_states_breakers_and_resets_reach_every_node() {
    let cluster = Cluster::start(3, |upstream| {
        config(upstream)
            .connection_with("b", "acme", json!({"priority": 2}))
            .combo("only-b", &["acme/m@b"])
            .resilience("providerBreaker.apikey.failureThreshold", json!(1))
            .resilience("providerBreaker.apikey.resetTimeoutMs", json!(600_000))
    })
    .await;
    cluster
        .upstream
        .script("a", [Reply::error(401, "invalid api key")]);
    ask(&cluster.nodes[0]).await.expect_status(200);
    all_become(&cluster, "terminal").await;
    cluster.upstream.script("b", [Reply::error(503, "down")]);
    let body = Dialect::Chat.request("only-b", false);
    let call = cluster.nodes[1].post("/v1/chat/completions", &body);
    assert!(call.send().await.status >= 500);
    let sent = cluster.upstream.requests().len();
    for node in &cluster.nodes {
        node.connection_becomes("b", "circuit_open").await;
        let answer = ask(node).await.expect_status(503);
        assert!(answer.retry_after().unwrap() > 500, "{}", answer.text());
    }
    assert_eq!(cluster.upstream.requests().len(), sent);
    cluster.upstream.script("b", [Dialect::Chat.ok("pong")]);
    let all = json!({"scope": "all"});
    let call = cluster.nodes[2].post("/api/resilience/reset", &all);
    call.send().await.expect_status(200);
    for node in &cluster.nodes {
        node.connection_becomes("b", "healthy").await;
        ask(node).await.expect_status(200);
    }
}

#[tokio::test]
async fn a_node_that_comes_later_knows_what_was_before() {
    let mut cluster = Cluster::start(2, config).await;
    cluster.upstream.script("a", [Reply::limited(600)]);
    ask(&cluster.nodes[0]).await.expect_status(429);
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    // Without a wait: a node that is ready has read the snapshot.
    let a = cluster.nodes[1].connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    ask(&cluster.nodes[1]).await.expect_status(429);
    cluster.nodes[0].kill_9().await;
    cluster.nodes[1].kill_9().await;
    cluster.restart(0).await;
    ask(&cluster.nodes[0]).await.expect_status(429);
    assert_eq!(cluster.upstream.count("a"), 1);
}

#[tokio::test]
async fn an_acknowledged_failure_outlives_the_node_that_saw_it() {
    let mut cluster = Cluster::start(2, config).await;
    cluster.upstream.script("a", [Reply::limited(600)]);
    ask(&cluster.nodes[0]).await.expect_status(429);
    cluster.nodes[0].kill_9().await;
    cluster.nodes[1]
        .connection_becomes("a", "cooling_down")
        .await;
    ask(&cluster.nodes[1]).await.expect_status(429);
    assert_eq!(cluster.upstream.count("a"), 1);
}

#[tokio::test]
async fn healthy_requests_cost_redis_nothing() {
    let cluster = Cluster::start(2, config).await;
    for node in &cluster.nodes {
        ask(node).await.expect_status(200);
    }
    let monitor = cluster.redis.monitor().await;
    for round in 0..150 {
        let asking = cluster.nodes.iter().map(ask);
        for answer in join_all(asking).await {
            assert_eq!(answer.status, 200, "round {round}");
        }
    }
    // Nodes tell that they live, and read the log, whatever requests do.
    let at_rest = ["+held:nodes", "log", "meta", "index"];
    let lines = monitor.lines();
    for line in &lines {
        for key in line.split('"').filter(|word| word.starts_with('{')) {
            let name = key.split_once("}:").map_or(key, |(_, name)| name);
            assert!(at_rest.contains(&name), "{name}: {line}");
        }
    }
    assert!(
        lines.len() < 150,
        "{} commands for 300 requests",
        lines.len()
    );
}
