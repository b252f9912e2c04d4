//! Nobody waits inside the router for a lease: the refusal says whether
//! waiting helps, and for how long.

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, RIVAL, managed, moment, now, setting};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream, shorts: &[&str]) -> Config {
    managed(&upstream.url(), &[Dialect::Chat], shorts)
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

/// The waiting time of a refusal for want of a free connection.
fn expect_waiting(answer: &Answer, eligible: u64) -> u64 {
    assert_eq!(answer.status, 429, "{}", answer.text());
    let body = answer.json();
    let all = [
        "eligibleCount",
        "error",
        "freeCount",
        "reason",
        "retryAfter",
        "state",
    ];
    assert_eq!(keys(&body), all, "{body}");
    assert_eq!(body["state"], "WAITING_FOR_CAPACITY");
    assert_eq!(body["reason"], "NO_FREE_ELIGIBLE_CONNECTION");
    assert_eq!(body["eligibleCount"], eligible, "{body}");
    assert_eq!(body["freeCount"], 0, "{body}");
    assert_eq!(body["error"]["type"], "lease_error", "{body}");
    assert_eq!(body["error"]["code"], "LEASE_CAPACITY_UNAVAILABLE");
    assert!(body["error"]["message"].is_string(), "{body}");
    let told = answer.retry_after().expect("no Retry-After");
    assert_eq!(body["retryAfter"], told, "{body}");
    told
}

/// Whole seconds from `from` until `end`, rounded up, at least 1.
fn seconds(from: i64, end: i64) -> u64 {
    let left = u64::try_from(end - from).unwrap_or(0);
    left.div_ceil(1000).max(1)
}

#[tokio::test]
async fn a_taken_connection_tells_when_it_may_be_free() {
    for ttl in [45_200, 120_000, 1000] {
        let cluster = Cluster::start(2, |upstream| {
            setting(config(upstream, &["a"]), "ttlMs", ttl)
        })
        .await;
        let holder = Owner::new("alice", KEY);
        let held = holder.acquire(&cluster.nodes[0], MODEL).await;
        let end = moment(&held, "expiresAt");
        for (owner, node) in [("bob", &cluster.nodes[1]), ("carol", &cluster.nodes[0])] {
            for key in [KEY, RIVAL] {
                let before = now();
                let answer = Owner::new(owner, key).acquire(node, MODEL).await;
                let after = now();
                if answer.status == 200 && after >= end {
                    continue;
                }
                let told = expect_waiting(&answer, 1);
                let bounds = seconds(after, end)..=seconds(before, end);
                assert!(bounds.contains(&told), "{told} not in {bounds:?}");
                for secret in [&holder.token, "team", "rival", "chat-a"] {
                    assert!(!answer.text().contains(secret), "{}", answer.text());
                }
            }
        }
    }
}

#[tokio::test]
async fn the_soonest_of_several_ends_counts() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a", "b", "c"])).await;
    let mut ends = Vec::new();
    for name in ["alice", "bob", "carol"] {
        let held = Owner::new(name, KEY)
            .acquire(&cluster.nodes[0], MODEL)
            .await;
        ends.push(moment(&held, "expiresAt"));
    }
    let owner = Owner::new("dave", RIVAL);
    let before = now();
    let answer = owner.acquire(&cluster.nodes[1], MODEL).await;
    let soonest = ends.into_iter().min().unwrap();
    let told = expect_waiting(&answer, 3);
    let bounds = seconds(now(), soonest)..=seconds(before, soonest);
    assert!(bounds.contains(&told), "{told} not in {bounds:?}");
}

#[tokio::test]
async fn a_freed_connection_goes_to_the_next_who_asks() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a"])).await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    expect_waiting(&bob.acquire(&cluster.nodes[1], MODEL).await, 1);
    alice
        .release(&cluster.nodes[1], held)
        .await
        .expect_status(200);
    bob.hold(&cluster.nodes[0], MODEL).await;
    expect_waiting(&alice.acquire(&cluster.nodes[0], MODEL).await, 1);
}

#[tokio::test]
async fn a_cooling_connection_is_no_matter_of_capacity() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a"])).await;
    cluster.upstream.script("chat-a", [Reply::limited(60)]);
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let refused = alice.ask(&cluster.nodes[0], Dialect::Chat, held, false);
    refused.send().await.expect_status(429);
    // It may have been invalidated by that failure.
    alice.release(&cluster.nodes[0], held).await;
    for node in &cluster.nodes {
        node.connection_becomes("chat-a", "cooling_down").await;
        for owner in [Owner::new("bob", KEY), Owner::new("carol", RIVAL)] {
            let answer = owner.acquire(node, MODEL).await;
            assert_eq!(answer.status, 429, "{}", answer.text());
            assert_eq!(answer.code(), "LEASE_ELIGIBILITY_UNAVAILABLE");
            assert_eq!(answer.json()["error"]["type"], "lease_error");
            assert_eq!(answer.header("retry-after"), None);
            assert_eq!(keys(&answer.json()), ["error"]);
        }
    }
    assert_eq!(cluster.upstream.count("chat-a"), 1);
}

#[tokio::test]
async fn cooling_ones_are_left_out_of_the_count() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a", "b", "c"])).await;
    cluster.upstream.script_all([Dialect::Chat.ok("pong")]);
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let answer = alice.ask(&cluster.nodes[0], Dialect::Chat, held, false);
    let answer = answer.send().await.expect_status(200);
    let bound = answer.header("x-omniroute-connection").unwrap().to_owned();
    cluster.upstream.script(&bound, [Reply::limited(60)]);
    // It moves to another connection; the first one cools.
    let moved = alice.ask(&cluster.nodes[1], Dialect::Chat, held, false);
    moved.send().await.expect_status(200);
    Owner::new("bob", RIVAL)
        .hold(&cluster.nodes[1], MODEL)
        .await;
    let carol = Owner::new("carol", KEY);
    eventually("every node knows that one cools", || async {
        let answer = carol.acquire(&cluster.nodes[1], MODEL).await;
        (answer.json()["eligibleCount"] == 2).then_some(())
    })
    .await;
    for node in &cluster.nodes {
        expect_waiting(&carol.acquire(node, MODEL).await, 2);
    }
}

#[tokio::test]
async fn a_terminal_connection_is_not_waited_for() {
    let cluster = Cluster::start(2, |upstream| config(upstream, &["a"])).await;
    let rejected = Reply::error(401, "invalid api key");
    cluster.upstream.script("chat-a", [rejected]);
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let answer = alice.ask(&cluster.nodes[0], Dialect::Chat, held, false);
    assert!(answer.send().await.status >= 400);
    alice.release(&cluster.nodes[0], held).await;
    for node in &cluster.nodes {
        node.connection_becomes("chat-a", "terminal").await;
        let answer = Owner::new("bob", RIVAL).acquire(node, MODEL).await;
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert_eq!(answer.code(), "LEASE_ELIGIBILITY_UNAVAILABLE");
        assert_eq!(answer.header("retry-after"), None);
    }
}

#[tokio::test]
async fn leases_of_other_models_do_not_stand_in_the_way() {
    let cluster = Cluster::start(1, |upstream| {
        managed(&upstream.url(), &[Dialect::Chat, Dialect::Messages], &["a"])
            .connection_with("chat-narrow", "chat", json!({"models": ["small"]}))
            .api_key(
                "both",
                "the-key-of-both",
                json!({"scopes": ["lease:exclusive"],
                    "allowedConnections": ["chat-a", "chat-narrow"]}),
            )
    })
    .await;
    let node = &cluster.nodes[0];
    Owner::new("alice", KEY).hold(node, MODEL).await;
    let bob = Owner::new("bob", RIVAL);
    bob.hold(node, "messages/demo-model").await;
    let carol = Owner::new("carol", "the-key-of-both");
    expect_waiting(&carol.acquire(node, MODEL).await, 1);
    carol.hold(node, "chat/small").await;
}
