//! The routes that tell what may be used, and put it right.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::redis;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

const HEALTH: &str = "/api/monitoring/health";
const RESET: &str = "/api/resilience/reset";
const LOCKS: &str = "/api/resilience/model-cooldowns";

/// Three providers that a single failure cuts off, each with a connection.
fn config(upstream: &Upstream) -> Config {
    let mut config = Config::new()
        .no_waiting()
        .resilience("providerBreaker.apikey.failureThreshold", json!(1));
    for id in ["one", "two", "three"] {
        config = config
            .provider_with(
                id,
                "openai",
                &upstream.url(),
                json!({"perModelQuota": true}),
            )
            .connection(&format!("{id}-a"), id);
    }
    config
}

async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

async fn breakers(node: &Node, state: &str) -> u64 {
    let health = node.admin_get(HEALTH).await;
    let count = health["circuitBreakers"][state].as_u64();
    count.unwrap_or_else(|| panic!("no {state} in {health}"))
}

async fn locks(node: &Node) -> usize {
    let all = node.admin_get(LOCKS).await;
    all["items"].as_array().unwrap().len()
}

async fn trip(node: &Node, upstream: &Upstream) {
    for id in ["one", "two"] {
        upstream.script(&format!("{id}-a"), [Reply::limited(600)]);
        ask(node, &format!("{id}/busy")).await;
    }
    for id in ["one", "two", "three"] {
        let down = Reply::error(500, "internal error");
        upstream.script(&format!("{id}-a"), [down]);
        ask(node, &format!("{id}/broken")).await;
    }
    assert_eq!(breakers(node, "open").await, 3);
    assert!(locks(node).await >= 2);
}

/// API-10: breakers are counted, locks go too.
#[tokio::test]
async fn a_reset_counts_breakers_and_takes_the_locks_too() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    trip(&node, &upstream).await;
    let reset = node.admin_call("POST", RESET).send().await;
    let reset = reset.expect_status(200).json();
    assert_eq!(
        (&reset["ok"], &reset["resetCount"]),
        (&json!(true), &json!(3))
    );
    assert_eq!(breakers(&node, "open").await, 0);
    assert_eq!(locks(&node).await, 0);
}

/// API-11, API-14: nobody without the right may, and nothing happens then.
#[tokio::test]
async fn strangers_neither_see_nor_reset() {
    let upstream = Upstream::start().await;
    let config = config(&upstream).server("adminToken", json!("the-admin-token"));
    let node = Node::start(&config).await;
    for (method, path) in [
        ("POST", RESET),
        ("GET", LOCKS),
        ("DELETE", LOCKS),
        ("DELETE", HEALTH),
    ] {
        let call = node.admin_call(method, path).send().await;
        assert_eq!(call.status, 401, "{method} {path}");
        let call = node.admin_call(method, path).bearer("guessed").send().await;
        assert_eq!(call.status, 403, "{method} {path}");
    }
    node.admin_call("GET", HEALTH)
        .send()
        .await
        .expect_status(200);
}

/// Closing all breakers leaves locks alone.
#[tokio::test]
async fn all_breakers_can_be_closed_at_once() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    trip(&node, &upstream).await;
    let closed = node.admin_call("DELETE", HEALTH).send().await;
    let closed = closed.expect_status(200).json();
    assert_eq!(
        (&closed["success"], &closed["resetCount"]),
        (&json!(true), &json!(3))
    );
    assert!(closed["message"].is_string(), "{closed}");
    assert_eq!(breakers(&node, "open").await, 0);
    assert!(locks(&node).await >= 2);
}

/// API-12: what is told comes from what was stored, and that is away.
#[tokio::test]
async fn health_says_that_the_store_is_away() {
    let upstream = Upstream::start().await;
    let mut redis = redis::Setup::durable().start().await;
    let config = config(&upstream).set(&["store", "url"], json!(redis.url()));
    let node = Setup::with(&config).start().await;
    redis.kill().await;
    let told = eventually("it is noticed", || async {
        let answer = node.admin_call("GET", HEALTH).send().await;
        (answer.status == 503).then(|| answer.json())
    })
    .await;
    assert_eq!(
        (&told["status"], &told["db"]),
        (&json!("degraded"), &json!("unavailable"))
    );
    for (method, path) in [
        ("POST", RESET),
        ("DELETE", HEALTH),
        ("POST", "/api/connections/one-a/reset"),
    ] {
        let refused = node.admin_call(method, path).send().await;
        assert_eq!(refused.code(), "store_unavailable", "{method} {path}");
        assert_eq!((refused.status, refused.retry_after()), (503, Some(1)));
    }
    let body = json!({"all": true});
    let refused = node.admin_call("DELETE", LOCKS).json(&body).send().await;
    assert_eq!(refused.code(), "store_unavailable");
    redis.restart().await;
    eventually("it is back", || async {
        let answer = node.admin_call("GET", HEALTH).send().await;
        (answer.status == 200).then_some(())
    })
    .await;
}

/// API-18.
#[tokio::test]
async fn a_window_has_bounds() {
    let node = Node::start(&Config::new()).await;
    for (window, status) in [
        ("86400000", 200),
        ("86400001", 400),
        ("-1", 400),
        ("x", 400),
    ] {
        let path = format!("/api/resilience/connections?windowMs={window}");
        let answer = node.admin_call("GET", &path).send().await;
        assert_eq!(answer.status, status, "{window}");
    }
}

/// API-19: what is final is told before an open breaker.
#[tokio::test]
async fn what_is_final_is_told_first() {
    let upstream = Upstream::start().await;
    let config = config(&upstream).connection("one-b", "one");
    let node = Node::start(&config).await;
    let banned = Reply::error(403, "your account has been suspended");
    upstream.script("one-a", [banned]);
    upstream.script("one-b", [Reply::error(500, "internal error")]);
    ask(&node, "one/m").await;
    let (a, b) = (
        node.connection("one-a").await,
        node.connection("one-b").await,
    );
    assert_eq!(a["connectionStatus"], "terminal", "{a}");
    assert_eq!(a["breaker"]["state"], "OPEN", "{a}");
    assert_eq!(b["connectionStatus"], "circuit_open", "{b}");
}

/// What contradicts itself is refused, and clears nothing.
#[tokio::test]
async fn all_and_one_at_once_is_refused() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("one-a", [Reply::limited(600)]);
    ask(&node, "one/busy").await;
    assert_eq!(locks(&node).await, 1);
    for body in [
        json!({"all": true, "provider": "two"}),
        json!({"all": true, "model": "busy"}),
        json!({"all": true, "connection": "one-a"}),
    ] {
        let refused = node.admin_call("DELETE", LOCKS).json(&body).send().await;
        assert_eq!(refused.status, 400, "{body}");
        assert_eq!(locks(&node).await, 1, "{body}");
    }
}

/// PER-21: a quota of one account, named by a combo, is not its provider's.
#[tokio::test]
async fn per_21_a_quota_of_the_named_account_leaves_the_others() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .no_waiting()
        .provider("agentrouter", "openai", &upstream.url())
        .connection("a", "agentrouter")
        .connection("b", "agentrouter")
        .combo("both", &["agentrouter/m@a", "agentrouter/m@b"]);
    let node = Node::start(&config).await;
    let spent: Value = json!({"error": {"message": "额度不足"}});
    upstream.script("a", [Reply::json(429, &spent)]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let answer = ask(&node, "both").await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    assert_eq!(node.connection("b").await["connectionStatus"], "healthy");
}
