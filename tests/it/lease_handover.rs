//! A connection changes hands when nothing of the former owner runs on it any
//! more, or the grace is over.

use std::time::{Duration, Instant};

use cluster_tests::client::Streaming;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, RIVAL, generation, managed, setting};
use cluster_tests::upstream::{Fate, Upstream};
use cluster_tests::wait::{SOON, eventually, eventually_within};

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream, grace_ms: u64) -> Config {
    let config = managed(&upstream.url(), &[Dialect::Chat], &["a"]);
    setting(config, "handoverGraceMs", grace_ms)
}

/// A stream of `owner` through `node` that never ends by itself.
async fn run(cluster: &Cluster, owner: &Owner, node: usize, held: u64) -> Streaming {
    let begun = Dialect::Chat.endless_stream("hel");
    cluster.upstream.script("chat-a", [begun]);
    let call = owner.ask(&cluster.nodes[node], Dialect::Chat, held, true);
    let mut stream = call.open().await;
    stream.read_until("hel").await;
    stream
}

/// Asks until the connection is `owner`'s; when, and its generation.
async fn take_over(cluster: &Cluster, owner: &Owner, node: usize) -> (Instant, u64) {
    eventually_within(
        Duration::from_mins(1),
        "the connection changes hands",
        || async {
            let answer = owner.acquire(&cluster.nodes[node], MODEL).await;
            if answer.status == 200 {
                return Some((Instant::now(), generation(&answer)));
            }
            assert_eq!(answer.status, 429, "{}", answer.text());
            assert_eq!(answer.code(), "LEASE_CAPACITY_UNAVAILABLE");
            assert!(answer.retry_after().is_some_and(|seconds| seconds >= 1));
            None
        },
    )
    .await
}

#[tokio::test]
async fn it_waits_for_the_former_owners_request_and_no_longer() {
    let grace = Duration::from_secs(20);
    let cluster = Cluster::start(2, |upstream| config(upstream, 20_000)).await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let stream = run(&cluster, &alice, 1, held).await;
    let seen = cluster.upstream.request("chat-a", 1).await;
    let released = Instant::now();
    alice
        .release(&cluster.nodes[0], held)
        .await
        .expect_status(200);
    let (at, _) = take_over(&cluster, &bob, 0).await;
    let dropped = seen.dropped(SOON).await;
    assert!(dropped <= at, "taken over while a request ran");
    assert!(at - released < grace / 4, "{:?}", at - released);
    drop(stream);
}

#[tokio::test]
async fn a_frozen_node_holds_it_for_the_grace_and_no_longer() {
    let grace = Duration::from_secs(4);
    let cluster = Cluster::start(2, |upstream| config(upstream, 4000)).await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let mut stream = run(&cluster, &alice, 1, held).await;
    let seen = cluster.upstream.request("chat-a", 1).await;
    cluster.nodes[1].freeze();
    let released = Instant::now();
    alice
        .release(&cluster.nodes[0], held)
        .await
        .expect_status(200);
    let (at, newer) = take_over(&cluster, &bob, 0).await;
    let waited = at - released;
    assert!(waited + Duration::from_millis(100) >= grace, "{waited:?}");
    assert!(waited < grace + Duration::from_secs(5), "{waited:?}");
    assert_eq!(seen.fate(), Fate::Running, "a frozen node dropped it");
    // Thawed, it cuts what it held and sends nothing more for alice.
    cluster.nodes[1].thaw();
    let thawed = Instant::now();
    let dropped = seen.dropped(SOON).await;
    assert!(
        dropped - thawed < Duration::from_secs(1),
        "{:?}",
        dropped - thawed
    );
    stream.read_to_end().await;
    assert!(stream.text().contains("LEASE_LOST"), "{}", stream.text());
    let late = alice.ask(&cluster.nodes[1], Dialect::Chat, held, false);
    let late = late.send().await;
    assert_eq!((late.status, late.code().as_str()), (409, "LEASE_REQUIRED"));
    cluster
        .upstream
        .script("chat-a", [Dialect::Chat.ok("pong")]);
    let bobs = bob.ask(&cluster.nodes[1], Dialect::Chat, newer, false);
    bobs.send().await.expect_status(200);
}

/// The node froze with a request that had not been sent yet: after the thaw it
/// must find out that the lease is over before it sends.
#[tokio::test]
async fn a_frozen_node_sends_nothing_under_a_dead_lease() {
    let cluster = Cluster::start(2, |upstream| config(upstream, 500)).await;
    cluster
        .upstream
        .script("chat-a", [Dialect::Chat.ok("pong")]);
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let warm = alice.ask(&cluster.nodes[1], Dialect::Chat, held, false);
    warm.send().await.expect_status(200);
    cluster.nodes[1].freeze();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let call = alice.ask(&cluster.nodes[1], Dialect::Chat, held, false);
            tokio::spawn(call.try_send())
        })
        .collect();
    alice
        .release(&cluster.nodes[0], held)
        .await
        .expect_status(200);
    take_over(&cluster, &bob, 0).await;
    cluster.nodes[1].thaw();
    for call in calls {
        let answer = call.await.unwrap().unwrap();
        assert_eq!(answer.status, 409, "{}", answer.text());
    }
    assert_eq!(cluster.upstream.count("chat-a"), 1);
}

#[tokio::test]
async fn a_killed_node_does_not_hold_it_for_ever() {
    let grace = Duration::from_secs(3);
    let mut cluster = Cluster::start(2, |upstream| config(upstream, 3000)).await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let stream = run(&cluster, &alice, 1, held).await;
    cluster.nodes[1].kill_9().await;
    drop(stream);
    // The lease is the client's, not the node's.
    cluster
        .upstream
        .script("chat-a", [Dialect::Chat.ok("pong")]);
    let again = alice.ask(&cluster.nodes[0], Dialect::Chat, held, false);
    again.send().await.expect_status(200);
    let released = Instant::now();
    alice
        .release(&cluster.nodes[0], held)
        .await
        .expect_status(200);
    let (at, _) = take_over(&cluster, &bob, 0).await;
    let waited = at - released;
    assert!(waited < grace + Duration::from_secs(5), "{waited:?}");
}

#[tokio::test]
async fn the_former_owner_may_come_back_at_once() {
    let cluster = Cluster::start(2, |upstream| config(upstream, 2000)).await;
    let alice = Owner::new("alice", KEY);
    let mut last = 0;
    for turn in 0..4 {
        let node = turn % 2;
        let held = eventually("alice has a lease again", || async {
            let answer = alice.acquire(&cluster.nodes[node], MODEL).await;
            (answer.status == 200).then(|| generation(&answer))
        })
        .await;
        assert!(held > last, "{held} after {last}");
        last = held;
        let stream = run(&cluster, &alice, 1 - node, held).await;
        alice
            .release(&cluster.nodes[node], held)
            .await
            .expect_status(200);
        drop(stream);
    }
}
