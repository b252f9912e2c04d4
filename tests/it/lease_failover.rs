//! A Sentinel failover that loses the last writes: leases that were lost are
//! refused, and no generation comes twice.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, RIVAL, generation, managed};
use cluster_tests::node::Node;
use cluster_tests::sentinel::Sentinel;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::json;

const MODEL: &str = "chat/demo-model";

async fn pair(
    upstream: &Upstream,
    sentinel: &Sentinel,
    change: impl Fn(Config) -> Config,
) -> [Node; 2] {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let config = managed(&upstream.url(), &[Dialect::Chat], &["a", "b"])
        .set(&["store", "url"], json!(sentinel.url()));
    let config = change(config);
    let (first, second) =
        futures_util::future::join(Node::start(&config), Node::start(&config)).await;
    [first, second]
}

/// Asks until the store is there again.
async fn settled(what: &str, mut ask: impl AsyncFnMut() -> Answer) -> Answer {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(40);
    loop {
        let answer = ask().await;
        if answer.status != 503 {
            return answer;
        }
        assert!(std::time::Instant::now() < end, "{what}: {}", answer.text());
        let pause = std::time::Duration::from_millis(50);
        cluster_tests::wait::let_time_pass(pause, "the nodes find the new master").await;
    }
}

#[tokio::test]
async fn a_lost_lease_is_refused_and_its_generation_never_returns() {
    let mut sentinel = Sentinel::start().await;
    let upstream = Upstream::start().await;
    let nodes = pair(&upstream, &sentinel, |config| config).await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let kept = alice.hold(&nodes[0], MODEL).await;
    eventually("the replica has alice's lease", || async {
        let reply = sentinel.master().await.call(&["WAIT", "1", "1000"]).await;
        (reply.int() == 1).then_some(())
    })
    .await;
    sentinel.break_replication().await;
    let lost = bob.hold(&nodes[1], MODEL).await;
    sentinel.kill_master().await;
    for node in &nodes {
        let answer = settled("alice's lease holds", async || {
            alice.ask(node, Dialect::Chat, kept, false).send().await
        })
        .await;
        answer.expect_status(200);
        let answer = settled("bob's lease is refused", async || {
            bob.ask(node, Dialect::Chat, lost, false).send().await
        })
        .await;
        assert_eq!(answer.status, 409, "{}", answer.text());
        assert_eq!(answer.code(), "LEASE_REQUIRED");
    }
    let newer = bob.hold(&nodes[0], MODEL).await;
    assert!(newer > lost, "{newer} after {lost}");
    let stale = bob.ask(&nodes[1], Dialect::Chat, lost, false).send().await;
    assert_eq!(stale.code(), "LEASE_FENCE_STALE", "{}", stale.text());
    let fresh = bob.ask(&nodes[1], Dialect::Chat, newer, false).send().await;
    fresh.expect_status(200);
}

#[tokio::test]
async fn a_planned_failover_keeps_every_lease() {
    let sentinel = Sentinel::start().await;
    let upstream = Upstream::start().await;
    let nodes = pair(&upstream, &sentinel, |config| config).await;
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&nodes[0], MODEL).await;
    sentinel.fail_over().await;
    for node in &nodes {
        let renewed = settled("alice renews", async || alice.renew(node, held).await).await;
        assert_eq!(generation(&renewed.expect_status(200)), held);
    }
}

#[tokio::test]
async fn with_replicas_asked_for_a_lease_needs_one() {
    let sentinel = Sentinel::start().await;
    let upstream = Upstream::start().await;
    let nodes = pair(&upstream, &sentinel, |config| {
        cluster_tests::lease::setting(config, "minReplicas", 1)
    })
    .await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&nodes[0], MODEL).await;
    sentinel.break_replication().await;
    for answer in [
        bob.acquire(&nodes[1], MODEL).await,
        alice.renew(&nodes[0], held).await,
    ] {
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert_eq!(answer.code(), "LEASE_SERVICE_UNAVAILABLE");
        assert_eq!(answer.retry_after(), Some(1));
    }
}

#[tokio::test]
async fn a_cooldown_that_the_failover_lost_is_told_again() {
    let mut sentinel = Sentinel::start().await;
    let upstream = Upstream::start().await;
    let nodes = pair(&upstream, &sentinel, |config| {
        config
            .provider("open", "openai", &upstream.url())
            .connection("open-a", "open")
    })
    .await;
    let limited = cluster_tests::reply::Reply::limited(600);
    upstream.script("open-a", [limited]);
    sentinel.break_replication().await;
    let body = Dialect::Chat.request("open/m", false);
    let ask = |node: &Node| {
        let call = node.post("/v1/chat/completions", &body);
        call.bearer(cluster_tests::lease::PLAIN).send()
    };
    ask(&nodes[0]).await.expect_status(429);
    nodes[1].connection_becomes("open-a", "cooling_down").await;
    sentinel.kill_master().await;
    eventually("both nodes have the store again", || async {
        for node in &nodes {
            let ready = node.get("/readyz").send().await.json();
            if ready["degraded"] != json!([]) {
                return None;
            }
        }
        Some(())
    })
    .await;
    for node in &nodes {
        ask(node).await.expect_status(429);
    }
    // A node that comes new reads it from the store.
    let setup = nodes[0].setup();
    let text = std::fs::read_to_string(setup.file()).unwrap();
    let fresh = cluster_tests::node::Setup::with_text(&text).start().await;
    fresh.connection_becomes("open-a", "cooling_down").await;
    assert_eq!(upstream.count("open-a"), 1);
}
