//! `maxConcurrent` holds for all nodes together, to the end of each answer.

use std::time::{Duration, Instant};

use cluster_tests::client::{Answer, Streaming};
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::reply::Gate;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually, let_time_pass, within};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Long enough for a request to have come to a queue, or past it.
const SETTLED: Duration = Duration::from_millis(500);

/// Connections with their caps, by priority, and a combo `all` of the provider.
fn config(upstream: &Upstream, caps: &[(&str, Value)], queue: &Value) -> Config {
    let mut config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .set(
            &["combos"],
            json!([{"name": "all", "strategy": "priority",
                "targets": [{"model": "acme/m"}], "config": queue}]),
        )
        .no_waiting();
    for (at, (id, cap)) in caps.iter().enumerate() {
        let more = json!({"priority": at + 1, "maxConcurrent": cap});
        config = config.connection_with(id, "acme", more);
    }
    config
}

async fn cluster(nodes: usize, caps: &[(&str, Value)], queue: &Value) -> Cluster {
    Cluster::start(nodes, |upstream| config(upstream, caps, queue)).await
}

fn patient() -> Value {
    json!({"queueTimeoutMs": 60_000, "queueDepth": 100})
}

type Sent = JoinHandle<Result<Answer, String>>;

fn send(cluster: &Cluster, node: usize, stream: bool) -> Sent {
    let body = Dialect::Chat.request("all", stream);
    let call = cluster.nodes[node].post("/v1/chat/completions", &body);
    tokio::spawn(call.try_send())
}

async fn open(cluster: &Cluster, node: usize) -> Streaming {
    let body = Dialect::Chat.request("all", true);
    let call = cluster.nodes[node].post("/v1/chat/completions", &body);
    call.open().await
}

async fn served(call: Sent) -> Answer {
    let answer = within(Duration::from_mins(1), "a request is served", call).await;
    answer.unwrap().unwrap().expect_status(200)
}

#[tokio::test]
async fn two_nodes_never_exceed_it_together() {
    for cap in [1, 3] {
        let cluster = cluster(2, &[("a", json!(cap))], &patient()).await;
        let replies = [Dialect::Chat.ok("pong").after_ms(20)];
        cluster.upstream.script("a", replies);
        let calls: Vec<Sent> = (0..40).map(|at| send(&cluster, at % 2, false)).collect();
        join_all(calls.into_iter().map(served)).await;
        assert_eq!(cluster.upstream.count("a"), 40);
        let peak = cluster.upstream.peak("a");
        assert_eq!(peak, cap, "of {cap} slots");
    }
}

#[tokio::test]
async fn a_stream_holds_its_slot_to_its_end() {
    let cluster = cluster(2, &[("a", json!(2))], &patient()).await;
    let gates = [Gate::closed(), Gate::closed()];
    let replies = gates
        .clone()
        .map(|gate| Dialect::Chat.held_stream("hello", &gate));
    cluster.upstream.script("a", replies);
    let mut streams = Vec::new();
    for node in [0, 1] {
        let mut stream = open(&cluster, node).await;
        stream.read_until("hello").await;
        streams.push(stream);
    }
    cluster
        .upstream
        .script("a", [Dialect::Chat.ok_stream("next")]);
    let waiting = [send(&cluster, 0, true), send(&cluster, 1, true)];
    let_time_pass(SETTLED, "more requests come").await;
    assert_eq!(cluster.upstream.count("a"), 2, "a third one was sent");
    gates[0].open();
    let first = streams.remove(0);
    Dialect::Chat.expect_whole(&first.finish().await, "hello");
    for call in waiting {
        let answer = served(call).await;
        Dialect::Chat.expect_whole(&answer.text(), "next");
    }
    assert_eq!(cluster.upstream.peak("a"), 2);
    gates[1].open();
    let second = streams.remove(0);
    Dialect::Chat.expect_whole(&second.finish().await, "hello");
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_slot_and_its_place() {
    let cluster = cluster(2, &[("a", json!(1))], &patient()).await;
    cluster
        .upstream
        .script("a", [Dialect::Chat.endless_stream("hello")]);
    let mut stream = open(&cluster, 0).await;
    stream.read_until("hello").await;
    cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
    let leaver = send(&cluster, 0, false);
    let_time_pass(SETTLED, "it comes to the queue").await;
    let stayer = send(&cluster, 1, false);
    let_time_pass(SETTLED, "another one comes behind it").await;
    leaver.abort();
    assert_eq!(cluster.upstream.count("a"), 1);
    drop(stream);
    let freed = Instant::now();
    served(stayer).await;
    assert!(
        freed.elapsed() < Duration::from_secs(3),
        "{:?}",
        freed.elapsed()
    );
    assert_eq!(cluster.upstream.count("a"), 2, "the leaver was served");
}

#[tokio::test]
async fn a_full_connection_goes_behind_those_with_room() {
    let caps = [("a", json!(1)), ("b", json!(1)), ("c", Value::Null)];
    let cluster = cluster(2, &caps, &patient()).await;
    for id in ["a", "b", "c"] {
        cluster
            .upstream
            .script(id, [Dialect::Chat.endless_stream("hello")]);
    }
    let mut streams = Vec::new();
    for (at, id) in ["a", "b", "c", "c", "c"].into_iter().enumerate() {
        let mut stream = open(&cluster, at % 2).await;
        stream.read_until("hello").await;
        assert_eq!(stream.header("x-omniroute-connection"), Some(id));
        streams.push(stream);
    }
}

#[tokio::test]
async fn who_waited_long_enough_goes_without_a_slot() {
    let queue = json!({"queueTimeoutMs": 1500, "queueDepth": 100});
    let cluster = cluster(2, &[("a", json!(1))], &queue).await;
    cluster
        .upstream
        .script("a", [Dialect::Chat.endless_stream("hello")]);
    let mut stream = open(&cluster, 0).await;
    stream.read_until("hello").await;
    cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
    for node in [0, 1] {
        let answer = served(send(&cluster, node, false)).await;
        assert!(
            answer.took >= Duration::from_millis(1400),
            "{:?}",
            answer.took
        );
        assert!(answer.took < Duration::from_secs(6), "{:?}", answer.took);
    }
    assert_eq!(cluster.upstream.running("a"), 1, "the stream was cut");
    drop(stream);
}

#[tokio::test]
async fn who_finds_the_queue_full_goes_without_a_slot() {
    let queue = json!({"queueTimeoutMs": 60_000, "queueDepth": 2});
    let cluster = cluster(1, &[("a", json!(1))], &queue).await;
    cluster
        .upstream
        .script("a", [Dialect::Chat.endless_stream("hello")]);
    let mut stream = open(&cluster, 0).await;
    stream.read_until("hello").await;
    cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
    let waiting = [send(&cluster, 0, false), send(&cluster, 0, false)];
    let_time_pass(SETTLED, "the queue fills").await;
    assert_eq!(cluster.upstream.count("a"), 1);
    let answer = served(send(&cluster, 0, false)).await;
    assert!(answer.took < Duration::from_secs(5), "{:?}", answer.took);
    assert_eq!(cluster.upstream.count("a"), 2);
    drop(stream);
    for call in waiting {
        served(call).await;
    }
}

#[tokio::test]
async fn no_cap_is_no_cap() {
    for cap in [Value::Null, json!(0), json!(-1)] {
        let cluster = cluster(1, &[("a", cap)], &patient()).await;
        let gate = Gate::closed();
        cluster
            .upstream
            .script("a", [Dialect::Chat.ok("pong").behind(&gate)]);
        let calls: Vec<Sent> = (0..30).map(|_| send(&cluster, 0, false)).collect();
        cluster.upstream.request("a", 30).await;
        gate.open();
        join_all(calls.into_iter().map(served)).await;
    }
}

#[tokio::test]
async fn every_strategy_and_plain_models_keep_it() {
    // Every strategy that there is.
    for strategy in ["priority"] {
        let cluster = Cluster::start(2, |upstream| {
            config(upstream, &[("a", json!(2))], &patient()).set(
                &["combos"],
                json!([{"name": "all", "strategy": strategy, "config": patient(),
                    "targets": [{"model": "acme/m", "weight": 1}, {"model": "acme/n", "weight": 1}]}]),
            )
        })
        .await;
        cluster
            .upstream
            .script("a", [Dialect::Chat.ok("pong").after_ms(20)]);
        let mut calls: Vec<Sent> = (0..12).map(|at| send(&cluster, at % 2, false)).collect();
        for node in &cluster.nodes {
            let body = Dialect::Chat.request("acme/m", false);
            let call = node.post("/v1/chat/completions", &body);
            calls.push(tokio::spawn(call.try_send()));
        }
        join_all(calls.into_iter().map(served)).await;
        let peak = cluster.upstream.peak("a");
        assert!(peak <= 2, "{strategy}: {peak}");
    }
}

#[tokio::test]
async fn a_failed_attempt_gives_its_slot_back() {
    let cluster = cluster(2, &[("a", json!(1))], &patient()).await;
    let failing = cluster_tests::reply::Reply::error(400, "bad request");
    cluster.upstream.script("a", [failing]);
    for node in [0, 1, 0, 1] {
        let answer = send(&cluster, node, false).await.unwrap().unwrap();
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
    }
    cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
    let answer = served(send(&cluster, 1, false)).await;
    assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
}

#[tokio::test]
async fn what_runs_is_shown_on_every_node() {
    let cluster = cluster(2, &[("a", json!(3))], &patient()).await;
    cluster
        .upstream
        .script("a", [Dialect::Chat.endless_stream("hello")]);
    let mut streams = Vec::new();
    for node in [0, 1, 0] {
        let mut stream = open(&cluster, node).await;
        stream.read_until("hello").await;
        streams.push(stream);
    }
    for node in &cluster.nodes {
        let a = node.connection("a").await;
        assert_eq!(a["maxConcurrent"], 3, "{a}");
    }
    drop(streams);
    within(
        SOON,
        "nothing runs",
        eventually("nothing is in flight", || async {
            for node in &cluster.nodes {
                if node.connection("a").await["inFlight"] != 0 {
                    return None;
                }
            }
            Some(())
        }),
    )
    .await;
}
