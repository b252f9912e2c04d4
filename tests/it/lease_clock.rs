//! Leases live by the store's clock: a node whose own clock is minutes off
//! neither ends one early nor keeps one too long. The wrong clock comes from
//! `libfaketime`, which changes the wall clock of one process only.

use std::path::Path;
use std::time::Duration;

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, RIVAL, generation, managed, moment, now, setting, until};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    managed(&upstream.url(), &[Dialect::Chat], &["a"])
}

/// Where Debian puts the library.
fn library() -> String {
    let arch = std::env::consts::ARCH;
    let path = format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketime.so.1");
    let there = Path::new(&path).exists();
    assert!(there, "no {path}: install faketime (scripts/test does)");
    path
}

/// Two nodes, of which the second's wall clock is wrong by `offset`.
async fn skewed(offset: &str, config: impl FnOnce(&Upstream) -> Config) -> Cluster {
    let plan = Plan::of(2)
        .env(1, "LD_PRELOAD", &library())
        .env(1, "FAKETIME", offset)
        .env(1, "FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .env(1, "DONT_FAKE_MONOTONIC", "1");
    let cluster = plan.start(config).await;
    expect_wrong(&cluster);
    cluster
}

/// That the clock is wrong shows in the log of the node.
fn expect_wrong(cluster: &Cluster) {
    let stamps: Vec<i64> = cluster
        .nodes
        .iter()
        .map(|node| {
            let records = node.log().records();
            let stamp = records
                .iter()
                .find_map(|record| record["timestamp"].as_str())
                .expect("no timestamp in the log");
            let stamp: jiff::Timestamp = stamp.parse().unwrap();
            stamp.as_millisecond()
        })
        .collect();
    let apart = (stamps[1] - stamps[0]).abs();
    assert!(apart > 60_000, "both clocks are alike: {stamps:?}");
}

#[tokio::test]
async fn a_fast_clock_ends_nothing_early() {
    let cluster = skewed("+10m", config).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    for node in cluster.nodes.iter().rev() {
        let call = owner.ask(node, Dialect::Chat, held, false);
        call.send().await.expect_status(200);
        owner.status(node, held).await.expect_status(200);
        let taken = Owner::new("bob", RIVAL).acquire(node, MODEL).await;
        assert_eq!(taken.status, 429, "{}", taken.text());
        let told = taken.retry_after().unwrap();
        assert!((110..=120).contains(&told), "{told}");
    }
    let renewed = owner.renew(&cluster.nodes[1], held).await;
    let end = moment(&renewed.expect_status(200), "expiresAt");
    assert!((end - now() - 120_000).abs() < 5000, "{end}");
}

#[tokio::test]
async fn a_slow_clock_keeps_nothing_too_long() {
    let short = |upstream: &Upstream| setting(config(upstream), "ttlMs", 3000);
    let cluster = skewed("-10m", short).await;
    let owner = Owner::new("alice", KEY);
    let acquired = owner.acquire(&cluster.nodes[1], MODEL).await;
    let held = generation(&acquired.clone().expect_status(200));
    let end = moment(&acquired, "expiresAt");
    assert!((end - now()).abs() < 5000, "{end}");
    let call = owner.ask(&cluster.nodes[1], Dialect::Chat, held, false);
    let answer = call.send().await;
    assert!(answer.status == 200 || now() >= end, "{}", answer.text());
    let sent = cluster.upstream.requests().len();
    let_time_pass(until(end) + Duration::from_millis(50), "the lease expires").await;
    for node in &cluster.nodes {
        let call = owner.ask(node, Dialect::Chat, held, false);
        let late = call.send().await;
        assert_eq!(late.code(), "LEASE_REQUIRED", "{}", late.text());
        let stale = owner.renew(node, held).await;
        assert_eq!(stale.code(), "LEASE_FENCE_STALE");
    }
    assert_eq!(cluster.upstream.requests().len(), sent);
    let newer = eventually("bob has the connection", || async {
        let answer = Owner::new("bob", RIVAL)
            .acquire(&cluster.nodes[1], MODEL)
            .await;
        (answer.status == 200).then(|| generation(&answer))
    })
    .await;
    assert!(newer > 0);
}

#[tokio::test]
async fn a_stream_on_a_node_with_a_wrong_clock_ends_with_its_lease() {
    for offset in ["+10m", "-10m"] {
        let short = |upstream: &Upstream| setting(config(upstream), "ttlMs", 3000);
        let cluster = skewed(offset, short).await;
        let begun = Dialect::Chat.endless_stream("hel");
        cluster.upstream.script("chat-a", [begun]);
        let owner = Owner::new("alice", KEY);
        let acquired = owner.acquire(&cluster.nodes[0], MODEL).await;
        let end = moment(&acquired, "expiresAt");
        let held = generation(&acquired);
        let call = owner.ask(&cluster.nodes[1], Dialect::Chat, held, true);
        let mut stream = call.open().await;
        assert_eq!(stream.status, 200);
        stream.read_to_end().await;
        let late = now() - end;
        assert!((-50..=1000).contains(&late), "{offset}: {late} ms late");
        assert!(stream.text().contains("LEASE_LOST"), "{}", stream.text());
    }
}

/// The same holds for what is no lease: cooldowns are shared by the store's
/// clock.
#[tokio::test]
async fn a_cooldown_has_one_end_for_all_clocks() {
    for offset in ["+10m", "-10m"] {
        let cluster = skewed(offset, |upstream: &Upstream| {
            Config::new()
                .provider("acme", "openai", &upstream.url())
                .connection("a", "acme")
                .connection("b", "acme")
                .combo("only-a", &["acme/m@a"])
                .combo("only-b", &["acme/m@b"])
                .no_waiting()
        })
        .await;
        for (id, node) in [("a", 0), ("b", 1)] {
            cluster.upstream.script(id, [Reply::limited(60)]);
            let body = Dialect::Chat.request(&format!("only-{id}"), false);
            let call = cluster.nodes[node].post("/v1/chat/completions", &body);
            assert!(call.send().await.status >= 400);
            for node in &cluster.nodes {
                let known = node.connection_becomes(id, "cooling_down").await;
                let left = known["cooldownRemainingMs"].as_u64().unwrap();
                assert!((50_000..=60_000).contains(&left), "{offset}: {known}");
                let answer = node.post("/v1/chat/completions", &body).send().await;
                let told = answer.retry_after().unwrap();
                assert!((50..=60).contains(&told), "{offset}: {told}");
            }
        }
    }
}
