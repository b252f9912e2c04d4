//! The preflight together with what else decides: sessions, leases, requests
//! in flight, the rotation gate.

use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, connection_of, listed, managed};
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Gate;
use cluster_tests::upstream::Upstream;
use futures_util::future::join_all;
use serde_json::json;

use super::{FIRST_S, Family, ask, ask_for, config, ok, rest, with};

const FAMILY: Family = Family::Plain;

/// Two accounts of one provider.
fn accounts(upstream: &Upstream) -> Config {
    config(FAMILY, upstream)
        .resilience("quotaPreflight", json!({"enabled": true}))
        .connection_with("c", "acme", json!({"priority": 2}))
}

/// What was in flight when the rest began is no news.
#[tokio::test]
async fn a_late_success_ends_no_rest() {
    let upstream = Upstream::start().await;
    let node = Node::start(&accounts(&upstream)).await;
    let gate = Gate::closed();
    let late = Dialect::Chat.ok("late").behind(&gate);
    upstream.script("a", [late, ok(FAMILY, [99, 0])]);
    let body = Dialect::Chat.request("alone", false);
    let flying = tokio::spawn(node.post("/v1/chat/completions", &body).try_send());
    upstream.request("a", 1).await;
    ask(&node, FAMILY).await.expect_status(200);
    ask(&node, FAMILY).await.expect_status(200);
    assert_eq!(upstream.count("a"), 2);
    assert_eq!(upstream.count("b"), 1);
    gate.open();
    flying.await.unwrap().unwrap().expect_status(200);
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    assert_eq!(a["lastErrorType"], "quota_preflight", "{a}");
    ask(&node, FAMILY).await.expect_status(200);
    assert_eq!(upstream.count("a"), 2);
}

#[tokio::test]
async fn a_herd_is_kept_from_it() {
    let upstream = Upstream::start().await;
    let node = Node::start(&accounts(&upstream)).await;
    upstream.script("a", [ok(FAMILY, [99, 0])]);
    ask(&node, FAMILY).await.expect_status(200);
    for answer in join_all((0..30).map(|_| ask(&node, FAMILY))).await {
        let answer = answer.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    }
    assert_eq!(upstream.count("a"), 1);
    let a = node.connection("a").await;
    assert_eq!(a["backoffLevel"], 0, "{a}");
    assert_eq!(a["breaker"]["failureCount"], 0, "{a}");
}

/// A session leaves an account that is at its cutoff.
#[tokio::test]
async fn a_session_moves() {
    let upstream = Upstream::start().await;
    let config = accounts(&upstream).set(&["settings", "sessionAffinityTtlMs"], json!(600_000));
    let node = Node::start(&config).await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let used = || async {
        let body = Dialect::Chat.request("acme/m", false);
        let call = node.post("/v1/chat/completions", &body);
        let answer = call.header("x-session-id", "one").send().await;
        let answer = answer.expect_status(200);
        answer.header("x-omniroute-connection").unwrap().to_owned()
    };
    let first = used().await;
    let other = if first == "a" { "c" } else { "a" };
    upstream.script(&first, [ok(FAMILY, [99, 0]), Dialect::Chat.ok("pong")]);
    assert_eq!(used().await, first, "the last call");
    for _ in 0..3 {
        assert_eq!(used().await, other);
    }
    // And stays there when the first one is well again.
    let path = format!("/api/connections/{first}/reset");
    let reset = node.admin_call("POST", &path);
    reset.send().await.expect_status(200);
    assert_eq!(used().await, other);
}

/// So does a lease, which keeps its generation.
#[tokio::test]
async fn a_lease_moves() {
    let cluster = Cluster::start(2, |upstream| {
        upstream.script_all([Dialect::Chat.ok("pong")]);
        managed(&upstream.url(), &[Dialect::Chat], &["a", "b"])
            .resilience("quotaPreflight", json!({"enabled": true}))
    })
    .await;
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], "chat/demo-model").await;
    let leases = listed(&cluster.nodes[0]).await;
    let first = connection_of(&leases[0]).to_owned();
    cluster.upstream.script(&first, [ok(FAMILY, [99, 0])]);
    let ask = |at: usize| {
        let call = alice.ask(&cluster.nodes[at], Dialect::Chat, held, false);
        async move { call.send().await.expect_status(200) }
    };
    let answer = ask(0).await;
    assert_eq!(answer.header("x-omniroute-connection"), Some(&*first));
    for at in [0, 1, 0] {
        let answer = ask(at).await;
        assert_ne!(answer.header("x-omniroute-connection"), Some(&*first));
    }
    assert_eq!(cluster.upstream.count(&first), 1);
    let status = alice.status(&cluster.nodes[1], held).await;
    status.expect_status(200);
}

/// An operator who holds back refusals of a class has said nothing of this.
#[tokio::test]
async fn the_rotation_gate_is_none_of_it() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&accounts(&upstream)).env("OMNIROUTE_ROTATION_ENABLED", "false");
    let node = setup.start().await;
    upstream.script("a", [ok(FAMILY, [99, 0])]);
    for _ in 0..2 {
        ask(&node, FAMILY).await.expect_status(200);
    }
    assert_eq!(upstream.count("a"), 1);
    assert!(rest(&node).await > FIRST_S * 1000 / 2);

    // A bare refusal that is held back rests nothing, whatever the windows say.
    let upstream = Upstream::start().await;
    let setup = Setup::with(&config(FAMILY, &upstream)).env("OMNIROUTE_ROTATE_ON_429", "false");
    let node = setup.start().await;
    upstream.script("a", [ok(FAMILY, [97, 0]), FAMILY.exhausted()]);
    ask(&node, FAMILY).await.expect_status(200);
    ask(&node, FAMILY).await.expect_status(429);
    assert_eq!(rest(&node).await, 0);
}

/// An override of the reset is for limits of the rate, not for quotas.
#[tokio::test]
async fn windows_go_before_a_told_reset() {
    let upstream = Upstream::start().await;
    let variable = "OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS";
    let setup = Setup::with(&config(FAMILY, &upstream)).env(variable, "45");
    let node = setup.start().await;
    upstream.script("a", [ok(FAMILY, [97, 0]), FAMILY.exhausted()]);
    for _ in 0..2 {
        ask(&node, FAMILY).await.expect_status(200);
    }
    let left = rest(&node).await;
    let most = FIRST_S * 1000;
    assert!((most - 30_000..=most + 1_000).contains(&left), "{left}");
}

/// What the operator switched off does not take back what was decided.
#[tokio::test]
async fn a_rest_outlives_the_switch() {
    let upstream = Upstream::start().await;
    let node = Node::start(&accounts(&upstream)).await;
    let headers = FAMILY.headers([99, 0]);
    let full = with(Dialect::Chat.ok("pong"), &headers);
    upstream.script("a", [full, Dialect::Chat.ok("pong")]);
    for _ in 0..2 {
        ask(&node, FAMILY).await.expect_status(200);
    }
    let off = json!({"quotaPreflight": {"enabled": false}});
    let call = node.admin_call("PATCH", "/api/resilience").json(&off);
    call.send().await.expect_status(200);
    ask(&node, FAMILY).await.expect_status(200);
    assert_eq!(upstream.count("a"), 1);
    // A reset does, and with the switch off it stays so.
    let reset = node.admin_call("POST", "/api/connections/a/reset");
    reset.send().await.expect_status(200);
    let answer = ask_for(&node, FAMILY, "alone").await;
    answer.expect_status(200);
    assert_eq!(upstream.count("a"), 2);
}
