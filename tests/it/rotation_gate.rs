//! The rotation gate: which failures may move a request to another connection, and
//! from how many on.

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::{Finish, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

/// `a` with these numbers of its own, and `b` behind it.
fn config(upstream: &Upstream, overrides: &Value) -> Config {
    upstream.script("b", [Dialect::Chat.ok("from b")]);
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with(
            "a",
            "acme",
            json!({"models": ["m"], "providerSpecificData": {"rotationOverrides": overrides}}),
        )
        .connection_with("b", "acme", json!({"models": ["m"], "priority": 2}))
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

/// What the gate made of the first call.
async fn rotation(node: &Node, answer: &Answer) -> Value {
    node.trace(answer).await["attempts"][0]["rotation"].clone()
}

fn count(row: &Value, class: &str) -> Value {
    row["rotation"][class]["count"].clone()
}

#[tokio::test]
async fn a_class_that_is_off_ends_the_request_and_rests_nothing() {
    for (variable, reply, status, class) in [
        ("OMNIROUTE_ROTATE_ON_429", Reply::limited(60), 429, "429"),
        (
            "OMNIROUTE_ROTATE_ON_502",
            Reply::error(502, "bad"),
            502,
            "502",
        ),
        (
            "OMNIROUTE_ROTATE_ON_502",
            Reply::nothing(Finish::Reset),
            502,
            "502",
        ),
        (
            "OMNIROUTE_ROTATE_ON_500",
            Reply::error(500, "broke"),
            502,
            "500",
        ),
        (
            "OMNIROUTE_ROTATE_ON_500",
            Reply::error(503, "down"),
            503,
            "500",
        ),
        (
            "OMNIROUTE_ROTATION_ENABLED",
            Reply::error(503, "down"),
            503,
            "500",
        ),
    ] {
        let upstream = Upstream::start().await;
        let setup = Setup::with(&config(&upstream, &json!({}))).env(variable, "false");
        let node = setup.start().await;
        upstream.script("a", [reply]);
        for asked in 1..=3 {
            let answer = ask(&node).await;
            assert_eq!(answer.status, status, "{variable}: {}", answer.text());
            let rotation = rotation(&node, &answer).await;
            assert_eq!(rotation["ruling"], "held", "{rotation}");
            assert_eq!(rotation["class"], class);
            assert_eq!(upstream.count("a"), asked);
            let announced = (status == 429).then_some(60);
            assert_eq!(answer.retry_after(), announced, "{variable}");
        }
        assert_eq!(upstream.count("b"), 0);
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
        assert_eq!(a["backoffLevel"], 0, "{a}");
        assert_eq!(
            a["rotation"],
            Value::Null,
            "what is off is not counted: {a}"
        );
    }
}

#[tokio::test]
async fn the_breaker_counts_what_is_held_back() {
    let upstream = Upstream::start().await;
    let config = config(&upstream, &json!({"rotateOn500": false}))
        .resilience("providerBreaker.apikey.failureThreshold", json!(2));
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::error(500, "broke")]);
    ask(&node).await;
    let breaker = node.connection("a").await["breaker"].clone();
    assert_eq!(breaker["failureCount"], 1, "{breaker}");
}

#[tokio::test]
async fn the_nth_failure_within_the_window_moves_on() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &json!({"error500Threshold": 3}))).await;
    upstream.script("a", [Reply::error(503, "down")]);
    for nth in 1..=2 {
        let answer = ask(&node).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        let expected = json!({"class": "500", "ruling": "held", "nth": nth, "threshold": 3});
        assert_eq!(rotation(&node, &answer).await, expected);
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
        assert_eq!(count(&a, "500"), nth);
    }
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(rotation(&node, &answer).await["ruling"], "passed");
    assert_eq!(
        node.connection("a").await["connectionStatus"],
        "cooling_down"
    );
    assert_eq!((upstream.count("a"), upstream.count("b")), (3, 1));
}

#[tokio::test]
async fn nodes_count_together_and_a_restart_forgets_nothing() {
    let overrides = json!({"error429Threshold": 4});
    let mut cluster = Cluster::start(2, |upstream| config(upstream, &overrides)).await;
    cluster
        .upstream
        .script("a", [Reply::error(429, "slow down")]);
    for (node, nth) in [(0, 1), (1, 2)] {
        assert_eq!(ask(&cluster.nodes[node]).await.status, 429);
        for node in &cluster.nodes {
            eventually("both know", || async {
                let a = node.connection("a").await;
                (count(&a, "429") == nth).then_some(())
            })
            .await;
        }
    }
    cluster.nodes[0].kill_9().await;
    cluster.restart(0).await;
    assert_eq!(ask(&cluster.nodes[0]).await.status, 429, "the third");
    ask(&cluster.nodes[0]).await.expect_status(200);
}

#[tokio::test]
async fn counts_end_with_a_success_a_reset_or_the_window() {
    let upstream = Upstream::start().await;
    let overrides = json!({"error500Threshold": 2, "error500WindowSeconds": 2});
    let node = Node::start(&config(&upstream, &overrides)).await;
    let down = || Reply::error(500, "broke");
    let ok = || Dialect::Chat.ok("from a");
    upstream.script("a", [down(), ok(), down()]);
    assert_eq!(ask(&node).await.status, 502);
    ask(&node).await.expect_status(200);
    let a = node.connection("a").await;
    assert_eq!(a["rotation"], Value::Null, "{a}");
    assert_eq!(ask(&node).await.status, 502, "the first again");

    let reset = node.admin_call("POST", "/api/connections/a/reset");
    reset.send().await.expect_status(200);
    assert_eq!(ask(&node).await.status, 502, "the first again");

    eventually("the window ends", || async {
        let a = node.connection("a").await;
        (a["rotation"] == Value::Null).then_some(())
    })
    .await;
    assert_eq!(ask(&node).await.status, 502, "the first again");
    ask(&node).await.expect_status(200);
    assert_eq!(upstream.count("b"), 1, "the second within the window");
}

#[tokio::test]
async fn a_400_moves_on_where_the_operator_says_so() {
    let upstream = Upstream::start().await;
    let overrides = json!({"rotateOn400": true});
    let node = Node::start(&config(&upstream, &overrides)).await;
    upstream.script("a", [Reply::error(400, "we do not like it")]);
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(rotation(&node, &answer).await["ruling"], "turned");
    let a = node.connection("a").await;
    let left = a["cooldownRemainingMs"].as_u64().unwrap();
    assert!((110_000..=120_000).contains(&left), "{a}");
    // It is a 400 for the client where everybody says so; `b` has no such rule.
    upstream.script("b", [Reply::error(400, "we do not like it")]);
    assert_eq!(ask(&node).await.status, 400);
    assert_eq!(node.connection("b").await["connectionStatus"], "healthy");

    let other = Upstream::start().await;
    let node = Node::start(&config(&other, &json!({}))).await;
    other.script("a", [Reply::error(400, "we do not like it")]);
    assert_eq!(ask(&node).await.status, 400);
    assert_eq!(other.count("b"), 0);
}

#[tokio::test]
async fn a_limit_without_a_reset_rests_as_long_as_the_operator_says() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&config(&upstream, &json!({"rateLimitResetSeconds": 40})));
    let node = setup.start().await;
    upstream.script("a", [Reply::error(429, "slow down")]);
    ask(&node).await.expect_status(200);
    let a = node.connection("a").await;
    let left = a["cooldownRemainingMs"].as_u64().unwrap();
    assert!((30_000..=40_000).contains(&left), "{a}");
    assert_eq!(a["backoffLevel"], 0, "{a}");
}

#[tokio::test]
async fn without_a_reset_nothing_rests_if_the_operator_says_so() {
    let upstream = Upstream::start().await;
    let untold = "OMNIROUTE_ROTATION_DISABLE_TAG_WITHOUT_RESET";
    let setup = Setup::with(&config(&upstream, &json!({}))).env(untold, "false");
    let node = setup.start().await;
    for reply in [Reply::error(429, "slow down"), Reply::error(503, "down")] {
        upstream.script("a", [reply]);
        let answer = ask(&node).await.expect_status(200);
        assert_eq!(rotation(&node, &answer).await["ruling"], "unrested");
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
    }
    upstream.script("a", [Reply::limited(60)]);
    ask(&node).await.expect_status(200);
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
}

/// What is final for the account is no plain rotation.
#[tokio::test]
async fn nothing_final_is_held_back() {
    for (reply, status) in [
        (Reply::error(401, "invalid api key"), "expired"),
        (Reply::error(402, "payment required"), "credits_exhausted"),
        (
            Reply::error(403, "your account has been suspended"),
            "banned",
        ),
        (
            Reply::error(503, "your account has been suspended"),
            "banned",
        ),
    ] {
        let upstream = Upstream::start().await;
        let setup = Setup::with(&config(&upstream, &json!({"error500Threshold": 5})));
        let node = setup.env("OMNIROUTE_ROTATION_ENABLED", "0").start().await;
        upstream.script("a", [reply]);
        ask(&node).await.expect_status(200);
        let a = node.connection("a").await;
        assert_eq!(a["testStatus"], status, "{a}");
    }
}

#[tokio::test]
async fn no_model_is_locked_by_what_is_held_back_and_an_operators_rule_goes_first() {
    let upstream = Upstream::start().await;
    let many = json!({"perModelQuota": true});
    let config = Config::new()
        .no_waiting()
        .provider_with("acme", "openai", &upstream.url(), many)
        .connection_with("a", "acme", json!({"models": ["m"]}))
        .set(
            &["settings", "providerErrorRules"],
            json!({"acme": [{"status": 429, "match": "by my rule", "scope": "model",
                "reason": "rate_limit_exceeded", "cooldownMs": 60_000}]}),
        );
    let setup = Setup::with(&config).env("OMNIROUTE_ROTATE_ON_429", "off");
    let node = setup.start().await;
    upstream.script("a", [Reply::limited(60)]);
    assert_eq!(ask(&node).await.status, 429);
    assert_eq!(node.connection("a").await["lockouts"], json!([]));
    upstream.script("a", [Reply::error(429, "by my rule")]);
    assert_eq!(ask(&node).await.status, 429);
    let locks = node.connection("a").await["lockouts"].clone();
    assert_eq!(locks.as_array().unwrap().len(), 1, "{locks}");
}

/// A live test is no traffic: it is ruled on, and counted by nobody.
#[tokio::test]
async fn tests_of_a_connection_are_not_counted() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &json!({"error500Threshold": 2}))).await;
    upstream.script("a", [Reply::error(500, "broke")]);
    for _ in 0..3 {
        let call = node.admin_call("POST", "/api/connections/a/test");
        let tested = call.send().await.expect_status(200).json();
        assert_eq!(tested["ok"], false, "{tested}");
    }
    let a = node.connection("a").await;
    assert_eq!(a["rotation"], Value::Null, "{a}");
    assert_eq!(ask(&node).await.status, 502);
}
