//! The preflight: where an operator wants it, an account is not called once a
//! window of it is all but used, and rests until that window resets.

use std::time::Duration;

use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::let_time_pass;
use serde_json::{Value, json};

use super::{
    FIRST_S, Family, SECOND_S, ask, ask_for, config, known, now_ms, ok, rest, window, with,
};
use crate::refusals::record::epoch_ms;

/// The families whose connections rest as a whole.
const WHOLE: [Family; 3] = [Family::Unified, Family::Anthropic, Family::Plain];

fn guarded(family: Family, upstream: &Upstream) -> Config {
    config(family, upstream).resilience("quotaPreflight", json!({"enabled": true}))
}

/// Serves once with windows used so far; then says whether `a` is called again.
async fn called_again(node: &Node, upstream: &Upstream, family: Family, used: [u64; 2]) -> bool {
    upstream.script("a", [ok(family, used)]);
    ask(node, family).await.expect_status(200);
    again(node, upstream, family).await
}

/// Whether `a` is called by another request, which `b` can serve.
async fn again(node: &Node, upstream: &Upstream, family: Family) -> bool {
    let before = upstream.count("a");
    ask(node, family).await.expect_status(200);
    upstream.count("a") > before
}

#[tokio::test]
async fn it_is_off_unless_asked_for() {
    for family in Family::ALL {
        let upstream = Upstream::start().await;
        let node = Node::start(&config(family, &upstream)).await;
        for _ in 0..3 {
            assert!(
                called_again(&node, &upstream, family, [100, 100]).await,
                "{family:?}"
            );
        }
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{family:?}: {a}");
    }
}

#[tokio::test]
async fn a_window_at_the_cutoff_ends_the_calls() {
    for family in WHOLE {
        for (used, after) in [
            ([98, 0], FIRST_S),
            ([99, 0], FIRST_S),
            ([100, 0], FIRST_S),
            ([0, 98], SECOND_S),
        ] {
            let what = format!("{family:?}, {used:?}");
            let upstream = Upstream::start().await;
            let node = Node::start(&guarded(family, &upstream)).await;
            let began = now_ms();
            let called = called_again(&node, &upstream, family, used).await;
            assert!(!called, "{what}: called once more");
            let a = node.connection_becomes("a", "cooling_down").await;
            assert_eq!(a["lastErrorType"], "quota_preflight", "{what}: {a}");
            let ends = now_ms() + rest(&node).await;
            let near = ends.abs_diff(began + after * 1000);
            assert!(near <= 1_000 + (now_ms() - began), "{what}: {near}: {a}");
            assert!(!again(&node, &upstream, family).await, "{what}");
            assert_eq!(upstream.count("a"), 1, "{what}");
        }
    }
}

#[tokio::test]
async fn before_the_cutoff_calls_go_on() {
    for family in Family::ALL {
        let upstream = Upstream::start().await;
        let node = Node::start(&guarded(family, &upstream)).await;
        for used in [[97, 0], [0, 97], [97, 97], [0, 0]] {
            let called = called_again(&node, &upstream, family, used).await;
            assert!(called, "{family:?}: {used:?}");
        }
        assert_eq!(upstream.count("b"), 0);
    }
}

/// The request that was kept from `a`, and one that meets the rest later.
#[tokio::test]
async fn it_is_explained() {
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let node = Node::start(&guarded(family, &upstream)).await;
    let began = now_ms();
    upstream.script("a", [ok(family, [99, 0])]);
    ask(&node, family).await.expect_status(200);
    for which in ["first", "second"] {
        let answer = ask(&node, family).await.expect_status(200);
        let trace = node.trace(&answer).await;
        let excluded = trace["excluded"].as_array().unwrap();
        let entry = excluded.iter().find(|entry| entry["connection"] == "a");
        let entry = entry.unwrap_or_else(|| panic!("{which}: {trace}"));
        assert_eq!(entry["reason"], "connection_cooldown", "{which}: {trace}");
        let until = epoch_ms(entry["until"].as_str().unwrap());
        let near = until.abs_diff(began + FIRST_S * 1000);
        assert!(near <= 10_000, "{which}: {trace}");
        assert_eq!(trace["attempts"].as_array().unwrap().len(), 1, "{trace}");
    }
    let words = node.admin_get("/api/resilience/connections").await;
    assert!(words.to_string().contains("quota_preflight"), "{words}");
}

#[tokio::test]
async fn alone_the_client_is_told_when_to_come_back() {
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let node = Node::start(&guarded(family, &upstream)).await;
    upstream.script("a", [ok(family, [99, 0])]);
    for model in ["acme/demo-model", "alone"] {
        let answer = ask_for(&node, family, model).await;
        if model == "acme/demo-model" {
            answer.expect_status(200);
        }
        let answer = ask_for(&node, family, model).await;
        assert!(matches!(answer.status, 429 | 503), "{}", answer.text());
        let seconds = answer.retry_after().unwrap();
        assert!((FIRST_S - 30..=FIRST_S).contains(&seconds), "{seconds}");
    }
    assert_eq!(upstream.count("a"), 1);
}

#[tokio::test]
async fn it_ends_with_the_window() {
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let node = Node::start(&guarded(family, &upstream)).await;
    let headers = family.headers_until([99, 0], [3, SECOND_S]);
    let last = with(family.dialect().ok("pong"), &headers);
    upstream.script("a", [last, ok(family, [1, 0])]);
    ask(&node, family).await.expect_status(200);
    assert!(!again(&node, &upstream, family).await, "before the reset");
    node.connection_becomes("a", "healthy").await;
    assert!(again(&node, &upstream, family).await, "after the reset");

    // A window that has reset already ends nothing.
    let upstream = Upstream::start().await;
    let node = Node::start(&guarded(family, &upstream)).await;
    let headers = family.headers_until([99, 0], [1, SECOND_S]);
    upstream.script("a", [with(family.dialect().ok("pong"), &headers)]);
    ask(&node, family).await.expect_status(200);
    let_time_pass(Duration::from_millis(2_200), "the window resets").await;
    assert!(again(&node, &upstream, family).await);
    let a = node.connection("a").await;
    assert_eq!(a["rateLimitedUntil"], Value::Null, "{a}");
}

/// A window that does not say when it resets, or that there is none, ends
/// nothing: nobody would know until when.
#[tokio::test]
async fn windows_without_a_reset_end_nothing() {
    let codex = |after: &str, at: &str| {
        vec![
            ("x-codex-primary-used-percent", "100".to_owned()),
            ("x-codex-primary-reset-after-seconds", after.to_owned()),
            ("x-codex-primary-reset-at", at.to_owned()),
            ("x-codex-primary-window-minutes", "300".to_owned()),
        ]
    };
    let unified = ("anthropic-ratelimit-unified-5h-utilization", "1".to_owned());
    let requests = |reset: &str| {
        vec![
            ("x-ratelimit-limit-requests", "100".to_owned()),
            ("x-ratelimit-remaining-requests", "0".to_owned()),
            ("x-ratelimit-reset-requests", reset.to_owned()),
        ]
    };
    let mut without = requests("");
    without.truncate(2);
    for (family, headers) in [
        (Family::Codex, codex("0", "")),
        (Family::Codex, codex("", "")),
        (Family::Unified, vec![unified]),
        (Family::Plain, without),
        (Family::Plain, requests("0s")),
        (Family::Plain, requests("soon")),
    ] {
        let what = format!("{family:?}: {headers:?}");
        let upstream = Upstream::start().await;
        let node = Node::start(&guarded(family, &upstream)).await;
        let ok = family.dialect().ok("pong");
        let headers = headers.into_iter();
        let reply = headers.fold(ok, |reply, (name, value)| reply.header(name, &value));
        upstream.script("a", [reply]);
        ask(&node, family).await.expect_status(200);
        assert!(again(&node, &upstream, family).await, "{what}");
    }
}

/// With everybody at the cutoff, the client is told of the first who is back.
#[tokio::test]
async fn the_first_who_is_back_is_told() {
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let config = guarded(family, &upstream)
        .connection_with("c", "acme", json!({"priority": 2}))
        .combo("of-c", &["acme/m@c"]);
    let node = Node::start(&config).await;
    let full = |after| {
        let headers = family.headers_until([99, 0], [after, SECOND_S]);
        with(family.dialect().ok("pong"), &headers)
    };
    upstream.script("a", [full(20_000)]);
    upstream.script("c", [full(3_000)]);
    for model in ["alone", "of-c"] {
        ask_for(&node, family, model).await.expect_status(200);
    }
    for _ in 0..2 {
        let answer = ask_for(&node, family, "acme/m").await.expect_status(503);
        let seconds = answer.retry_after().unwrap();
        assert!((2_970..=3_000).contains(&seconds), "{seconds}");
    }
    assert_eq!(upstream.order(), ["a", "c"]);
}

/// A failure tells of windows, too; what it means goes first.
#[tokio::test]
async fn refusals_tell_of_the_cutoff_too() {
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let node = Node::start(&guarded(family, &upstream)).await;
    let refused = Reply::error(400, "the colour must be green");
    upstream.script("a", [with(refused, &family.headers([99, 0]))]);
    ask(&node, family).await.expect_status(400);
    assert!(!again(&node, &upstream, family).await);

    let upstream = Upstream::start().await;
    let node = Node::start(&guarded(family, &upstream)).await;
    let ended = Reply::error(401, "invalid api key");
    upstream.script("a", [with(ended, &family.headers([99, 0]))]);
    ask(&node, family).await.expect_status(200);
    assert!(!again(&node, &upstream, family).await);
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "terminal", "{a}");
    assert_eq!(a["testStatus"], "expired", "{a}");
}

async fn patch(node: &Node, preflight: Value) {
    let body = json!({"quotaPreflight": preflight});
    let call = node.admin_call("PATCH", "/api/resilience").json(&body);
    call.send().await.expect_status(200);
}

/// A window of a provider may have a cutoff of its own, and all of it may be
/// changed while the node runs.
#[tokio::test]
async fn a_window_may_have_a_cutoff_of_its_own() {
    for family in WHOLE {
        let what = format!("{family:?}");
        let (word, _) = family.windows()[0];
        let start = || async {
            let upstream = Upstream::start().await;
            let node = Node::start(&config(family, &upstream)).await;
            upstream.script("a", [ok(family, [60, 60])]);
            ask(&node, family).await.expect_status(200);
            let known = known(&node).await;
            let name = window(&known, word)["window"].as_str().unwrap().to_owned();
            (upstream, node, name)
        };
        let of = |provider: &str, name: &str, percent: u64| json!({provider: {name: percent}});

        let (upstream, node, name) = start().await;
        let others = of("another-provider", &name, 99);
        patch(
            &node,
            json!({"enabled": true, "providerWindowDefaults": others}),
        )
        .await;
        assert!(again(&node, &upstream, family).await, "{what}: another's");
        let unknown = of(family.provider(), "no-such-window", 99);
        patch(&node, json!({"providerWindowDefaults": unknown})).await;
        assert!(again(&node, &upstream, family).await, "{what}: unknown");
        let lower = of(family.provider(), &name, 39);
        patch(&node, json!({"providerWindowDefaults": lower})).await;
        assert!(again(&node, &upstream, family).await, "{what}: 39");
        let reached = of(family.provider(), &name, 40);
        patch(&node, json!({"providerWindowDefaults": reached})).await;
        assert!(!again(&node, &upstream, family).await, "{what}: 40");

        // It goes before the general one, also downwards.
        let (upstream, node, name) = start().await;
        let none = of(family.provider(), &name, 0);
        patch(
            &node,
            json!({"enabled": true, "providerWindowDefaults": none}),
        )
        .await;
        for used in [98, 99] {
            let called = called_again(&node, &upstream, family, [used, 10]).await;
            assert!(called, "{what}: {used} with a cutoff of 0");
        }
        let called = called_again(&node, &upstream, family, [100, 10]).await;
        assert!(!called, "{what}: 100 with a cutoff of 0");
    }
}

#[tokio::test]
async fn the_general_cutoff_is_a_setting() {
    let family = Family::Plain;
    let upstream = Upstream::start().await;
    let config = config(family, &upstream).resilience(
        "quotaPreflight",
        json!({"enabled": true, "defaultThresholdPercent": 30, "warnThresholdPercent": 50}),
    );
    let node = Node::start(&config).await;
    assert!(called_again(&node, &upstream, family, [69, 0]).await);
    assert!(!called_again(&node, &upstream, family, [70, 0]).await);
}

#[tokio::test]
async fn a_variable_switches_it_on_where_the_file_says_nothing() {
    let family = Family::Plain;
    let variable = "QUOTA_PREFLIGHT_CUTOFF_ENABLED";
    let upstream = Upstream::start().await;
    let setup = Setup::with(&config(family, &upstream)).env(variable, "true");
    let node = setup.start().await;
    assert!(!called_again(&node, &upstream, family, [99, 0]).await);
    let upstream = Upstream::start().await;
    let off = config(family, &upstream).resilience("quotaPreflight.enabled", json!(false));
    let node = Setup::with(&off).env(variable, "true").start().await;
    assert!(called_again(&node, &upstream, family, [99, 0]).await);
}

/// A rest like any other: for all nodes, and after a crash.
#[tokio::test]
async fn other_nodes_rest_it_too() {
    let family = Family::Plain;
    let mut cluster = Cluster::start(2, |upstream| guarded(family, upstream)).await;
    let [one, two] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    let upstream = &cluster.upstream;
    assert!(!called_again(one, upstream, family, [99, 0]).await);
    let a = two.connection_becomes("a", "cooling_down").await;
    assert_eq!(a["lastErrorType"], "quota_preflight", "{a}");
    assert!(!again(two, upstream, family).await);
    for at in [0, 1] {
        cluster.nodes[at].kill_9().await;
    }
    cluster.restart(1).await;
    assert!(!again(&cluster.nodes[1], &cluster.upstream, family).await);
    assert_eq!(cluster.upstream.count("a"), 1);
}
