//! Nodes are killed, frozen and replaced under load: the others serve on, and
//! nothing that was promised breaks.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, PLAIN, generation, managed};
use cluster_tests::node::Node;
use cluster_tests::redis;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use futures_util::future::join_all;
use serde_json::json;

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    managed(&upstream.url(), &[Dialect::Chat], &["a"])
        .provider("open", "openai", &upstream.url())
        .connection("open-a", "open")
        .connection_with("open-b", "open", json!({"priority": 2}))
}

async fn cluster() -> Cluster {
    let plan = Plan::of(3).redis(redis::Setup::durable());
    plan.start(config).await
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("open/m", false);
    let call = node.post("/v1/chat/completions", &body).bearer(PLAIN);
    call.send().await
}

#[tokio::test]
async fn the_others_serve_on_when_a_node_is_killed() {
    let mut cluster = cluster().await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let body = Dialect::Chat.request("open/m", false);
    let slow = Dialect::Chat.ok("pong").after_ms(30);
    cluster.upstream.script("open-a", [slow]);
    let load: Vec<_> = (0..60)
        .map(|at| {
            let node = &cluster.nodes[at % 3];
            let call = node.post("/v1/chat/completions", &body).bearer(PLAIN);
            (at % 3, tokio::spawn(call.try_send()))
        })
        .collect();
    cluster.upstream.request("open-a", 10).await;
    cluster.nodes[0].kill_9().await;
    for (node, call) in load {
        let answer = call.await.unwrap();
        if node != 0 {
            answer.unwrap().expect_status(200);
        }
    }
    cluster.upstream.script("open-a", [Reply::limited(600)]);
    for node in &cluster.nodes[1..] {
        ask(node).await.expect_status(200);
        let call = owner.ask(node, Dialect::Chat, held, false);
        call.send().await.expect_status(200);
        node.connection_becomes("open-a", "cooling_down").await;
    }
    cluster.restart(0).await;
    let a = cluster.nodes[0].connection("open-a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    let renewed = owner.renew(&cluster.nodes[0], held).await;
    assert_eq!(generation(&renewed.expect_status(200)), held);
}

#[tokio::test]
async fn a_frozen_node_catches_up() {
    let cluster = cluster().await;
    cluster.nodes[2].freeze();
    cluster.upstream.script("open-a", [Reply::limited(600)]);
    ask(&cluster.nodes[0]).await.expect_status(200);
    cluster.nodes[1]
        .connection_becomes("open-a", "cooling_down")
        .await;
    let before = cluster.upstream.count("open-a");
    cluster.nodes[2].thaw();
    cluster.nodes[2]
        .connection_becomes("open-a", "cooling_down")
        .await;
    ask(&cluster.nodes[2]).await.expect_status(200);
    assert_eq!(cluster.upstream.count("open-a"), before);
}

/// One after the other is replaced while requests go to those that are ready:
/// none of them fails, and the lease stays.
#[tokio::test]
async fn replaced_one_by_one_no_request_fails() {
    let mut cluster = cluster().await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    for leaving in 0..3 {
        let next = (leaving + 1) % 3;
        let gate = cluster_tests::reply::Gate::closed();
        let held_up = Dialect::Chat.held_stream("hello", &gate);
        cluster.upstream.script("chat-a", [held_up]);
        let call = owner.ask(&cluster.nodes[leaving], Dialect::Chat, held, true);
        let mut stream = call.open().await;
        stream.read_until("hello").await;
        let process = cluster.nodes[leaving].process();
        process.signal(nix::sys::signal::Signal::SIGTERM);
        let asking = (0..20).map(|_| ask(&cluster.nodes[next]));
        for answer in join_all(asking).await {
            answer.expect_status(200);
        }
        owner
            .renew(&cluster.nodes[next], held)
            .await
            .expect_status(200);
        gate.open();
        Dialect::Chat.expect_whole(&stream.finish().await, "hello");
        let process = cluster.nodes[leaving].process();
        assert!(process.exit(Duration::from_secs(40)).await.success());
        cluster.restart(leaving).await;
        ask(&cluster.nodes[leaving]).await.expect_status(200);
    }
    let status = owner.status(&cluster.nodes[2], held).await;
    assert_eq!(generation(&status.expect_status(200)), held);
}

#[tokio::test]
async fn everything_at_once_killed_and_started_again_remembers() {
    let mut cluster = cluster().await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    cluster.upstream.script("open-a", [Reply::limited(600)]);
    ask(&cluster.nodes[1]).await.expect_status(200);
    for node in &mut cluster.nodes {
        node.kill_9().await;
    }
    cluster.redis.kill().await;
    cluster.redis.restart().await;
    for node in 0..3 {
        cluster.restart(node).await;
    }
    for node in &cluster.nodes {
        ask(node).await.expect_status(200);
        let call = owner.ask(node, Dialect::Chat, held, false);
        call.send().await.expect_status(200);
    }
    assert_eq!(cluster.upstream.count("open-a"), 1);
    eventually("nothing is in flight", || async {
        let a = cluster.nodes[0].connection("chat-a").await;
        (a["inFlight"] == 0).then_some(())
    })
    .await;
}
