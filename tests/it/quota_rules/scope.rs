//! A Codex plan has two scopes: `spark` models have windows of their own and
//! go on where all the others rest.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::json;

use super::{FIRST_S, Family, ask_for, config, now_ms, ok, rest};

const FAMILY: Family = Family::Codex;

fn scoped(upstream: &Upstream, preflight: bool) -> Config {
    config(FAMILY, upstream)
        .resilience("quotaPreflight", json!({"enabled": preflight}))
        .combo("large", &["codex/gpt-5@a"])
        .combo("small", &["codex/gpt-5-mini@a"])
        .combo("spark", &["codex/gpt-5.3-codex-spark@a"])
        .combo("large-or-b", &["codex/gpt-5@a", "backup/m@b"])
}

/// Whether a request for this combo reaches `a`.
async fn reaches(node: &Node, upstream: &Upstream, combo: &str) -> bool {
    let before = upstream.count("a");
    let answer = ask_for(node, FAMILY, combo).await;
    let reached = upstream.count("a") > before;
    if !reached {
        assert!(matches!(answer.status, 429 | 503), "{}", answer.text());
    }
    reached
}

#[tokio::test]
async fn the_cutoff_locks_the_scope_and_spark_goes_on() {
    let upstream = Upstream::start().await;
    let node = Node::start(&scoped(&upstream, true)).await;
    let began = now_ms();
    upstream.script("a", [ok(FAMILY, [99, 0]), Dialect::Responses.ok("pong")]);
    assert!(reaches(&node, &upstream, "large").await);
    for combo in ["large", "small", "alone"] {
        assert!(!reaches(&node, &upstream, combo).await, "{combo}");
    }
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
    assert_eq!(a["rateLimitedUntil"], json!(null), "{a}");
    assert_eq!(a["lockouts"][0]["reason"], "quota_exhausted", "{a}");
    let ends = now_ms() + rest(&node).await;
    let near = ends.abs_diff(began + FIRST_S * 1000);
    assert!(near <= 1_000 + (now_ms() - began), "{near}: {a}");

    for _ in 0..2 {
        assert!(reaches(&node, &upstream, "spark").await);
    }
    let answer = ask_for(&node, FAMILY, "large-or-b").await;
    let answer = answer.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    let trace = node.trace(&answer).await;
    assert_eq!(trace["excluded"][0]["reason"], "model_lockout", "{trace}");
    assert!(trace["excluded"][0]["until"].is_string(), "{trace}");
}

/// A limit of a model does the same, with or without the preflight.
#[tokio::test]
async fn a_limit_locks_its_own_scope_only() {
    for preflight in [false, true] {
        for (locked, free) in [("large", "spark"), ("spark", "large")] {
            let what = format!("{locked}, preflight: {preflight}");
            let upstream = Upstream::start().await;
            let node = Node::start(&scoped(&upstream, preflight)).await;
            let refused = Reply::limited(20_000);
            upstream.script("a", [refused, Dialect::Responses.ok("pong")]);
            assert!(reaches(&node, &upstream, locked).await, "{what}");
            assert!(!reaches(&node, &upstream, locked).await, "{what}");
            for _ in 0..2 {
                let reached = reaches(&node, &upstream, free).await;
                assert!(reached, "{what}: {}", node.connection("a").await);
            }
            let left = rest(&node).await;
            assert!((19_970_000..=20_000_000).contains(&left), "{what}: {left}");
            let a = node.connection("a").await;
            assert_eq!(a["connectionStatus"], "healthy", "{what}: {a}");
        }
    }
}

/// A bare refusal of the plan rests as long as its fullest window says.
#[tokio::test]
async fn a_refusal_of_the_plan_ends_with_the_window() {
    let upstream = Upstream::start().await;
    let node = Node::start(&scoped(&upstream, false)).await;
    let good = ok(FAMILY, [97, 10]);
    upstream.script(
        "a",
        [good, FAMILY.exhausted(), Dialect::Responses.ok("pong")],
    );
    let began = now_ms();
    assert!(reaches(&node, &upstream, "large").await);
    assert!(reaches(&node, &upstream, "large").await);
    assert!(!reaches(&node, &upstream, "small").await);
    let ends = now_ms() + rest(&node).await;
    let near = ends.abs_diff(began + FIRST_S * 1000);
    assert!(near <= 1_000 + (now_ms() - began), "{near}");
}

/// A server error of a plan is no want of quota.
#[tokio::test]
async fn a_full_window_does_not_lengthen_other_locks() {
    let upstream = Upstream::start().await;
    let node = Node::start(&scoped(&upstream, false)).await;
    let down = Reply::error(503, "down");
    upstream.script("a", [ok(FAMILY, [99, 98]), down]);
    assert!(reaches(&node, &upstream, "large").await);
    assert!(reaches(&node, &upstream, "large").await);
    let left = rest(&node).await;
    assert!(left < FIRST_S * 1000 / 2, "{left}");
}
