//! A session stays with its connection: on every node, for as long as it is
//! used, and no longer than the connection may be used.

use std::time::Duration;

use cluster_tests::client::{Answer, Call};
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use futures_util::future::join_all;
use serde_json::{Value, json};

fn config(upstream: &Upstream, ttl_ms: u64, ids: &[&str], more: &Value) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let mut config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .set(&["settings", "sessionAffinityTtlMs"], json!(ttl_ms))
        .no_waiting();
    for (at, id) in ids.iter().enumerate() {
        let mut own = json!({"priority": at + 1});
        own.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        config = config
            .connection_with(id, "acme", own)
            .combo(&format!("only-{id}"), &[&format!("acme/m@{id}")]);
    }
    config
}

async fn cluster(nodes: usize, ttl_ms: u64, ids: &[&str]) -> Cluster {
    Cluster::start(nodes, |upstream| config(upstream, ttl_ms, ids, &json!({}))).await
}

fn call(node: &Node, model: &str, session: &str) -> Call {
    let body = Dialect::Chat.request(model, false);
    let call = node.post("/v1/chat/completions", &body);
    call.header("x-session-id", session)
}

async fn ask(node: &Node, session: &str) -> Answer {
    call(node, "acme/m", session).send().await
}

fn connection(answer: Answer) -> String {
    let answer = answer.expect_status(200);
    answer.header("x-omniroute-connection").unwrap().to_owned()
}

async fn used(node: &Node, session: &str) -> String {
    connection(ask(node, session).await)
}

#[tokio::test]
async fn sessions_keep_their_connection_on_every_node() {
    let cluster = cluster(3, 600_000, &["a", "b", "c"]).await;
    let mut pinned = Vec::new();
    for session in ["one", "two", "three"] {
        pinned.push((session, used(&cluster.nodes[0], session).await));
    }
    let mut all: Vec<&String> = pinned.iter().map(|(_, id)| id).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 3, "not least recently used: {pinned:?}");
    for _ in 0..3 {
        for (session, id) in &pinned {
            for node in &cluster.nodes {
                assert_eq!(used(node, session).await, *id);
            }
        }
    }
}

#[tokio::test]
async fn first_requests_at_once_agree() {
    let cluster = cluster(3, 600_000, &["a", "b", "c", "d"]).await;
    for round in 0..5 {
        let session = format!("session-{round}");
        let asking = (0..12).map(|at| used(&cluster.nodes[at % 3], &session));
        let mut all = join_all(asking).await;
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 1, "round {round}: {all:?}");
    }
}

#[tokio::test]
async fn a_pin_lives_as_long_as_it_is_used() {
    let cluster = cluster(2, 2500, &["a", "b"]).await;
    let first = used(&cluster.nodes[0], "s").await;
    for turn in 0..5 {
        let pause = Duration::from_secs(1);
        let_time_pass(pause, "more than a time to live passes in all").await;
        assert_eq!(used(&cluster.nodes[turn % 2], "s").await, first);
    }
    let_time_pass(Duration::from_millis(2600), "the pin expires").await;
    let other = if first == "a" { "b" } else { "a" };
    assert_eq!(
        used(&cluster.nodes[1], "s").await,
        other,
        "never used before"
    );
    assert_eq!(used(&cluster.nodes[0], "s").await, other);
}

#[tokio::test]
async fn tenants_do_not_share_pins() {
    let cluster = Cluster::start(2, |upstream| {
        config(upstream, 600_000, &["a", "b"], &json!({}))
            .api_key("one", "key-of-one", json!({}))
            .api_key("two", "key-of-two", json!({}))
    })
    .await;
    let as_tenant = async |node: usize, key: &str| {
        let call = call(&cluster.nodes[node], "acme/m", "the-same-session");
        connection(call.bearer(key).send().await)
    };
    let one = as_tenant(0, "key-of-one").await;
    let two = as_tenant(1, "key-of-two").await;
    assert_ne!(one, two, "the second tenant found the first one's pin");
    for node in [0, 1] {
        assert_eq!(as_tenant(node, "key-of-one").await, one);
        assert_eq!(as_tenant(node, "key-of-two").await, two);
    }
}

#[tokio::test]
async fn a_cooldown_moves_the_pin_for_good() {
    let cluster = cluster(2, 600_000, &["a", "b", "c"]).await;
    let first = used(&cluster.nodes[0], "s").await;
    cluster
        .upstream
        .script(&first, [Reply::limited(3), Dialect::Chat.ok("pong")]);
    let moved = used(&cluster.nodes[1], "s").await;
    assert_ne!(moved, first);
    // The other node hears of it a moment later.
    let other = &cluster.nodes[0];
    other.connection_becomes(&first, "cooling_down").await;
    for node in &cluster.nodes {
        assert_eq!(used(node, "s").await, moved);
    }
    other.connection_becomes(&first, "healthy").await;
    for node in &cluster.nodes {
        assert_eq!(used(node, "s").await, moved, "it went back");
    }
}

#[tokio::test]
async fn a_terminal_connection_moves_the_pin() {
    let cluster = cluster(2, 600_000, &["a", "b"]).await;
    let first = used(&cluster.nodes[0], "s").await;
    let rejected = Reply::error(401, "invalid api key");
    cluster.upstream.script(&first, [rejected]);
    let moved = used(&cluster.nodes[1], "s").await;
    assert_ne!(moved, first);
    for node in &cluster.nodes {
        assert_eq!(used(node, "s").await, moved);
    }
}

#[tokio::test]
async fn a_busy_connection_spills_one_request_and_keeps_the_pin() {
    let cluster = Cluster::start(2, |upstream| {
        let one = json!({"maxConcurrent": 1});
        config(upstream, 600_000, &["a", "b"], &one)
    })
    .await;
    let first = used(&cluster.nodes[0], "s").await;
    let gate = Gate::closed();
    let slow = Dialect::Chat.ok("slow").behind(&gate);
    cluster
        .upstream
        .script(&first, [slow, Dialect::Chat.ok("pong")]);
    let count = cluster.upstream.count(&first);
    let holding = tokio::spawn(call(&cluster.nodes[0], "acme/m", "s").try_send());
    cluster.upstream.request(&first, count + 1).await;
    for node in &cluster.nodes {
        assert_ne!(used(node, "s").await, first, "two at a time");
    }
    gate.open();
    assert_eq!(connection(holding.await.unwrap().unwrap()), first);
    for node in &cluster.nodes {
        eventually("the slot is free again and the pin as it was", || async {
            (used(node, "s").await == first).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_pin_goes_before_a_forced_connection_that_could_be_left() {
    let cluster = cluster(2, 600_000, &["a", "b"]).await;
    let first = used(&cluster.nodes[0], "s").await;
    let other = if first == "a" { "b" } else { "a" };
    let forced = || call(&cluster.nodes[1], &format!("only-{other}"), "s").send();
    assert_eq!(connection(forced().await), first, "a healthy pin wins");
    let broke = Reply::error(402, "payment required");
    cluster.upstream.script(&first, [broke]);
    let alone = call(&cluster.nodes[0], &format!("only-{first}"), "t");
    assert!(alone.send().await.status >= 400);
    for node in &cluster.nodes {
        node.connection_becomes(&first, "terminal").await;
    }
    assert_eq!(connection(forced().await), other, "a terminal pin does not");
}

#[tokio::test]
async fn without_the_store_each_node_remembers_for_itself() {
    let cluster = cluster(2, 600_000, &["a", "b", "c"]).await;
    let shared = used(&cluster.nodes[0], "before").await;
    assert_eq!(used(&cluster.nodes[1], "before").await, shared);
    for cut in &cluster.cuts {
        cut.set(Mode::Refuse).await;
    }
    for node in &cluster.nodes {
        let begun = std::time::Instant::now();
        let first = used(node, "during").await;
        for _ in 0..4 {
            assert_eq!(used(node, "during").await, first);
        }
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    }
    for cut in &cluster.cuts {
        cut.set(Mode::Pass).await;
    }
    eventually("the shared pin is back", || async {
        for node in &cluster.nodes {
            if used(node, "before").await != shared {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_pin_survives_the_node_that_made_it() {
    let mut cluster = cluster(2, 600_000, &["a", "b", "c"]).await;
    let first = used(&cluster.nodes[0], "s").await;
    cluster.nodes[0].kill_9().await;
    for _ in 0..3 {
        assert_eq!(used(&cluster.nodes[1], "s").await, first);
    }
    cluster.restart(0).await;
    assert_eq!(used(&cluster.nodes[0], "s").await, first);
}
