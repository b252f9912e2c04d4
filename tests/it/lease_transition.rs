//! A lease moves to another connection when its own may not be used, keeps its
//! generation, and is over when there is none.

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{
    KEY, Owner, RIVAL, connection_of, generation, listed, managed, moment, setting,
};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use futures_util::future::join_all;
use serde_json::json;
use std::time::Duration;

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream, shorts: &[&str]) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    managed(&upstream.url(), &[Dialect::Chat], shorts)
}

async fn bound(cluster: &Cluster, node: usize) -> Vec<String> {
    let leases = listed(&cluster.nodes[node]).await;
    leases.iter().map(|one| connection_of(one).into()).collect()
}

async fn ask(cluster: &Cluster, node: usize, owner: &Owner, held: u64) -> Answer {
    let call = owner.ask(&cluster.nodes[node], Dialect::Chat, held, false);
    call.send().await
}

fn other_of(connection: &str) -> &'static str {
    if connection == "chat-a" {
        "chat-b"
    } else {
        "chat-a"
    }
}

#[tokio::test]
async fn a_cooling_connection_is_left_with_the_same_generation() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a", "b"])).await;
    let alice = Owner::new("alice", KEY);
    let acquired = alice.acquire(&cluster.nodes[0], MODEL).await;
    let held = generation(&acquired);
    let first = bound(&cluster, 0).await.remove(0);
    let_time_pass(Duration::from_millis(50), "a new end would show").await;
    cluster.upstream.script(&first, [Reply::limited(60)]);
    // The failing request itself moves on, or the next one does.
    for node in [0, 1, 0, 1] {
        let answer = ask(&cluster, node, &alice, held).await;
        if answer.status == 200 {
            let used = answer.header("x-omniroute-connection");
            assert_eq!(used, Some(other_of(&first)));
        } else {
            assert_eq!(node, 0, "{}", answer.text());
        }
    }
    assert_eq!(cluster.upstream.count(&first), 1);
    assert_eq!(bound(&cluster, 1).await, [other_of(&first)]);
    let status = alice
        .status(&cluster.nodes[1], held)
        .await
        .expect_status(200);
    assert_eq!(generation(&status), held);
    let (before, after) = (moment(&acquired, "expiresAt"), moment(&status, "expiresAt"));
    assert!(
        after >= before + 50,
        "no new time to live: {after}, {before}"
    );
    // What it left is free for others once it is well.
    let reset = format!("/api/connections/{first}/reset");
    let reset = cluster.nodes[0].post(&reset, &json!({}));
    reset.send().await.expect_status(200);
    let bob = Owner::new("bob", RIVAL);
    eventually("bob has what alice left", || async {
        let answer = bob.acquire(&cluster.nodes[1], MODEL).await;
        (answer.status == 200).then_some(())
    })
    .await;
    let mut all = bound(&cluster, 0).await;
    all.sort();
    assert_eq!(all, ["chat-a", "chat-b"]);
}

#[tokio::test]
async fn a_model_of_another_provider_moves_it_too() {
    let cluster = Cluster::start(2, |upstream| {
        let config = managed(&upstream.url(), &Dialect::ALL, &["a"]);
        for dialect in Dialect::ALL {
            upstream.script(&dialect.connection("a"), [dialect.ok("pong")]);
        }
        config
    })
    .await;
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    for (turn, dialect) in Dialect::ALL.into_iter().rev().enumerate() {
        let node = turn % 2;
        let call = alice.ask(&cluster.nodes[node], dialect, held, false);
        call.send().await.expect_status(200);
        assert_eq!(bound(&cluster, node).await, [dialect.connection("a")]);
    }
    let bob = Owner::new("bob", RIVAL);
    bob.hold(&cluster.nodes[1], "messages/demo-model").await;
}

#[tokio::test]
async fn with_nothing_left_the_lease_is_over() {
    for (reply, status) in [
        (Reply::limited(60), "cooling_down"),
        (Reply::error(401, "invalid api key"), "terminal"),
    ] {
        let cluster = Cluster::start(2, |upstream| config(upstream, &["a"])).await;
        cluster.upstream.script("chat-a", [reply]);
        let alice = Owner::new("alice", KEY);
        let held = alice.hold(&cluster.nodes[0], MODEL).await;
        let failed = ask(&cluster, 0, &alice, held).await;
        assert!(!failed.code().starts_with("LEASE_"), "{}", failed.text());
        for node in &cluster.nodes {
            node.connection_becomes("chat-a", status).await;
        }
        // The failing request found nothing else, or the next one does.
        let next = ask(&cluster, 1, &alice, held).await;
        assert!(next.status >= 400, "{}", next.text());
        for node in [0, 1] {
            let answer = ask(&cluster, node, &alice, held).await;
            assert_eq!(answer.status, 409, "{}", answer.text());
            assert_eq!(answer.code(), "LEASE_REQUIRED");
            let renewed = alice.renew(&cluster.nodes[node], held).await;
            assert_eq!(renewed.code(), "LEASE_FENCE_STALE");
            let released = alice.release(&cluster.nodes[node], held).await;
            assert_eq!(released.code(), "LEASE_FENCE_STALE");
            assert!(bound(&cluster, node).await.is_empty());
        }
        assert_eq!(cluster.upstream.count("chat-a"), 1);
    }
}

#[tokio::test]
async fn it_never_moves_to_a_connection_of_someone_else() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a", "b"])).await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", KEY));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let first = bound(&cluster, 0).await.remove(0);
    let bobs = bob.hold(&cluster.nodes[1], MODEL).await;
    cluster.upstream.script(&first, [Reply::limited(60)]);
    for node in [0, 1, 0] {
        let answer = ask(&cluster, node, &alice, held).await;
        assert!(answer.status >= 400, "{}", answer.text());
    }
    assert_eq!(cluster.upstream.count(other_of(&first)), 0);
    // Hers may wait for hers; his is his alone.
    let bound = bound(&cluster, 1).await;
    let others = bound.iter().filter(|one| *one == other_of(&first));
    assert_eq!(others.count(), 1, "{bound:?}");
    ask(&cluster, 0, &bob, bobs).await.expect_status(200);
}

/// Requests on both nodes find the connection unfit at the same time: they
/// agree where the lease goes.
#[tokio::test]
async fn all_nodes_move_together() {
    let cluster = Cluster::start(2, |upstream| {
        setting(config(upstream, &["a", "b", "c", "d"]), "ttlMs", 60_000)
    })
    .await;
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let first = bound(&cluster, 0).await.remove(0);
    cluster.upstream.script(&first, [Reply::limited(60)]);
    ask(&cluster, 0, &alice, held).await;
    for node in &cluster.nodes {
        node.connection_becomes(&first, "cooling_down").await;
    }
    let asking = (0..12).map(|turn| ask(&cluster, turn % 2, &alice, held));
    let answers = join_all(asking).await;
    let mut used: Vec<String> = answers
        .into_iter()
        .map(|answer| {
            let answer = answer.expect_status(200);
            answer.header("x-omniroute-connection").unwrap().to_owned()
        })
        .collect();
    used.dedup();
    assert_eq!(used.len(), 1, "{used:?}");
    assert_ne!(used[0], first);
    assert_eq!(bound(&cluster, 1).await, used);
}

#[tokio::test]
async fn acquiring_moves_a_lease_whose_connection_is_unfit() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a", "b"])).await;
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let first = bound(&cluster, 0).await.remove(0);
    // A wrong password is found out by an operator's test, not by alice.
    cluster
        .upstream
        .script(&first, [Reply::error(401, "invalid api key")]);
    let test = format!("/api/connections/{first}/test");
    cluster.nodes[1].post(&test, &json!({})).send().await;
    for node in &cluster.nodes {
        node.connection_becomes(&first, "terminal").await;
    }
    for node in [1, 0] {
        let answer = alice.acquire(&cluster.nodes[node], MODEL).await;
        let answer = answer.expect_status(200);
        assert_eq!(generation(&answer), held);
        assert_eq!(answer.json()["state"], "ACTIVE");
        assert_eq!(bound(&cluster, node).await, [other_of(&first)]);
    }
}
