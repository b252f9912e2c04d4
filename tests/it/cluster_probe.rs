//! A breaker that may be probed lets one request of the whole cluster through.

use std::time::{Duration, Instant};

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, eventually_within, let_time_pass};
use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinHandle;

const RESET_MS: u64 = 2000;

/// One connection that never cools, so that only the breaker speaks.
fn config(upstream: &Upstream) -> Config {
    upstream.script("a", [Reply::error(503, "down")]);
    Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"disableCooling": true}))
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("providerBreaker.apikey.resetTimeoutMs", json!(RESET_MS))
        .no_waiting()
}

fn send(node: &Node) -> JoinHandle<Result<Answer, String>> {
    let body = Dialect::Chat.request("acme/m", false);
    tokio::spawn(node.post("/v1/chat/completions", &body).try_send())
}

async fn ask(node: &Node) -> Answer {
    send(node).await.unwrap().unwrap()
}

/// Three nodes that know that the breaker is open.
async fn opened() -> Cluster {
    let cluster = Cluster::start(3, config).await;
    assert!(ask(&cluster.nodes[0]).await.status >= 500);
    for node in &cluster.nodes {
        node.connection_becomes("a", "circuit_open").await;
    }
    cluster
}

/// Sends to all nodes until one request was let through; those refused are
/// answered at once.
async fn probe(cluster: &Cluster, before: usize) -> Vec<JoinHandle<Result<Answer, String>>> {
    let mut calls = Vec::new();
    let end = Instant::now() + Duration::from_secs(20);
    while cluster.upstream.count("a") == before {
        assert!(Instant::now() < end, "nobody probes");
        calls.extend(cluster.nodes.iter().map(send));
        let pause = Duration::from_millis(20);
        let_time_pass(pause, "the time of the probe comes").await;
    }
    calls.extend((0..12).map(|at| send(&cluster.nodes[at % 3])));
    calls
}

#[tokio::test]
async fn one_request_of_all_nodes_probes_and_closes_it_for_all() {
    let cluster = opened().await;
    let gate = Gate::closed();
    let back = Dialect::Chat.ok("back").behind(&gate);
    cluster.upstream.script("a", [back]);
    let calls = probe(&cluster, 1).await;
    let_time_pass(Duration::from_secs(1), "a second probe would show").await;
    assert_eq!(cluster.upstream.count("a"), 2, "more than one probe");
    gate.open();
    let mut good = 0;
    for answer in join_all(calls).await {
        let answer = answer.unwrap().unwrap();
        match answer.status {
            200 => good += 1,
            503 => assert_eq!(answer.code(), "provider_circuit_open"),
            _ => panic!("{}", answer.text()),
        }
    }
    assert_eq!(good, 1);
    cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
    for node in &cluster.nodes {
        node.connection_becomes("a", "healthy").await;
        ask(node).await.expect_status(200);
    }
}

#[tokio::test]
async fn a_failed_probe_opens_it_again_for_all() {
    let cluster = opened().await;
    let calls = probe(&cluster, 1).await;
    for answer in join_all(calls).await {
        assert!(answer.unwrap().unwrap().status >= 500);
    }
    assert_eq!(cluster.upstream.count("a"), 2);
    for node in &cluster.nodes {
        let answer = ask(node).await.expect_status(503);
        assert_eq!(answer.code(), "provider_circuit_open");
        assert!(answer.retry_after().unwrap() >= 1);
    }
    assert_eq!(cluster.upstream.count("a"), 2);
}

#[tokio::test]
async fn a_probe_that_dies_with_its_node_is_given_to_another() {
    let mut cluster = opened().await;
    let never = Gate::closed();
    let silent = Dialect::Chat.ok("never").behind(&never);
    cluster.upstream.script("a", [silent]);
    // Only the first node asks, so it has the probe.
    let holder = eventually("a probe is under way", || async {
        let call = send(&cluster.nodes[0]);
        let sent = eventually_within(Duration::from_secs(1), "sent or refused", || async {
            let sent = cluster.upstream.count("a") == 2;
            (sent || call.is_finished()).then_some(sent)
        })
        .await;
        sent.then_some(call)
    })
    .await;
    cluster.nodes[0].kill_9().await;
    drop(holder);
    cluster.upstream.script("a", [Dialect::Chat.ok("back")]);
    // The claim has a deadline: the time of a probe, 30 s, at most.
    eventually_within(Duration::from_secs(45), "another node probes", || async {
        let answer = ask(&cluster.nodes[1]).await;
        assert!(matches!(answer.status, 200 | 503), "{}", answer.text());
        (answer.status == 200).then_some(())
    })
    .await;
    cluster.nodes[2].connection_becomes("a", "healthy").await;
    ask(&cluster.nodes[2]).await.expect_status(200);
}

#[tokio::test]
async fn without_the_store_nodes_probe_for_themselves() {
    let mut cluster = opened().await;
    cluster.redis.kill().await;
    cluster.upstream.script("a", [Dialect::Chat.ok("back")]);
    for node in &cluster.nodes {
        eventually("the node serves again", || async {
            let answer = ask(node).await;
            assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
            (answer.status == 200).then_some(())
        })
        .await;
    }
}
