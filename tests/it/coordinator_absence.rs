//! Nothing is wrong without a coordinator, only late; and with one, nothing is
//! right that was not before.

use std::time::{Duration, Instant};

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{
    KEY, Owner, RIVAL, generation, listed, managed, moment, setting, until,
};
use cluster_tests::redis;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually, let_time_pass};

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let config = managed(&upstream.url(), &[Dialect::Chat], &["a"]);
    setting(config, "ttlMs", 3000)
}

async fn cluster(coordinators: usize) -> Cluster {
    let plan = Plan::of(2)
        .coordinators(coordinators)
        .redis(redis::Setup::durable());
    plan.start(config).await
}

/// One owner's lease ends by itself, another one follows.
async fn expire_and_follow(cluster: &Cluster) {
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let acquired = eventually("alice has a lease", || async {
        let answer = alice.acquire(&cluster.nodes[0], MODEL).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    let (held, end) = (generation(&acquired), moment(&acquired, "expiresAt"));
    let call = alice.ask(&cluster.nodes[1], Dialect::Chat, held, false);
    call.send().await.expect_status(200);
    let_time_pass(until(end) + Duration::from_millis(50), "the lease expires").await;
    for node in &cluster.nodes {
        let late = alice.ask(node, Dialect::Chat, held, false).send().await;
        assert_eq!(late.code(), "LEASE_REQUIRED", "{}", late.text());
        assert!(listed(node).await.is_empty(), "an ended lease is listed");
    }
    let held = bob.hold(&cluster.nodes[1], MODEL).await;
    bob.release(&cluster.nodes[0], held)
        .await
        .expect_status(200);
}

#[tokio::test]
async fn leases_end_on_time_whoever_leads() {
    for coordinators in [0, 1, 2] {
        let mut cluster = cluster(coordinators).await;
        expire_and_follow(&cluster).await;
        for at in 0..coordinators {
            cluster.coordinators[at].kill_9().await;
            expire_and_follow(&cluster).await;
        }
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_lease_while_the_leader_is_frozen() {
    let cluster = cluster(1).await;
    let begun = Dialect::Chat.endless_stream("hel");
    cluster.upstream.script("chat-a", [begun]);
    cluster.coordinators[0].freeze();
    let alice = Owner::new("alice", KEY);
    let acquired = alice.acquire(&cluster.nodes[0], MODEL).await;
    let held = generation(&acquired);
    let call = alice.ask(&cluster.nodes[1], Dialect::Chat, held, true);
    let mut stream = call.open().await;
    stream.read_until("hel").await;
    let seen = cluster.upstream.request("chat-a", 1).await;
    let end = Instant::now() + until(moment(&acquired, "expiresAt"));
    let dropped = seen.dropped(SOON).await;
    let late = dropped.saturating_duration_since(end);
    assert!(late <= Duration::from_secs(1), "{late:?}");
    stream.read_to_end().await;
    assert!(stream.text().contains("LEASE_LOST"), "{}", stream.text());
    cluster.coordinators[0].thaw();
    let_time_pass(Duration::from_secs(1), "what it does late is harmless").await;
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let renewed = alice.renew(&cluster.nodes[1], held).await;
    renewed.expect_status(200);
}

#[tokio::test]
async fn an_embedded_store_needs_none() {
    let upstream = Upstream::start().await;
    let node = cluster_tests::node::Node::start(&config(&upstream)).await;
    let alice = Owner::new("alice", KEY);
    let acquired = alice.acquire(&node, MODEL).await.expect_status(200);
    let end = moment(&acquired, "expiresAt");
    let_time_pass(until(end) + Duration::from_millis(50), "the lease expires").await;
    assert!(listed(&node).await.is_empty());
    let bob = Owner::new("bob", RIVAL);
    bob.hold(&node, MODEL).await;
    let ready = node.get("/readyz").send().await.expect_status(200).json();
    assert_eq!(ready["degraded"], serde_json::json!([]), "{ready}");
}
