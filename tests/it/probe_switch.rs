//! `settings.probeCanDisable`: whether what a live test meets counts as what requests meet.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

fn config(upstream: &Upstream) -> Config {
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .provider_with(
            "many",
            "openai",
            &upstream.url(),
            json!({"perModelQuota": true}),
        )
        .connection_with("a", "acme", json!({"models": ["m"]}))
        .connection_with("b", "many", json!({"models": ["m"]}))
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
}

async fn test(node: &Node, id: &str) -> Value {
    let path = format!("/api/connections/{id}/test");
    let call = node.admin_call("POST", &path);
    call.send().await.expect_status(200).json()
}

#[tokio::test]
async fn switched_on_limits_that_nobody_announced_rest_and_lock_by_the_ladder() {
    for (word, variable) in [(Some(true), "false"), (None, "true")] {
        let upstream = Upstream::start().await;
        let mut config = config(&upstream);
        if let Some(word) = word {
            config = config.set(&["settings", "probeCanDisable"], json!(word));
        }
        let setup = Setup::with(&config).env("PROBE_CAN_DISABLE", variable);
        let node = setup.start().await;
        for reply in [Reply::error(503, "down"), Reply::error(429, "slow down")] {
            for id in ["a", "b"] {
                let reset = format!("/api/connections/{id}/reset");
                let reset = node.admin_call("POST", &reset).send().await;
                reset.expect_status(200);
                upstream.script(id, [reply.clone()]);
            }
            let tested = test(&node, "a").await;
            assert_eq!(tested["connectionStatus"], "cooling_down", "{tested}");
            let a = node.connection("a").await;
            assert_eq!(a["backoffLevel"], 1, "{a}");
            test(&node, "b").await;
            let b = node.connection("b").await;
            assert_eq!(b["lockouts"].as_array().unwrap().len(), 1, "{b}");
        }
        // What it never counts for.
        let a = node.connection("a").await;
        assert_eq!(a["breaker"]["state"], "CLOSED", "{a}");
    }
}

#[tokio::test]
async fn switched_off_they_leave_a_note_and_what_is_final_ends_all_the_same() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    for id in ["a", "b"] {
        upstream.script(id, [Reply::error(503, "down")]);
        let tested = test(&node, id).await;
        assert_eq!(tested["connectionStatus"], "healthy", "{tested}");
        let row = node.connection(id).await;
        assert_eq!(row["backoffLevel"], 0, "{row}");
        assert_eq!(row["lockouts"], json!([]), "{row}");
    }
    let a = node.connection("a").await;
    assert_eq!(a["lastErrorType"], "server_error", "{a}");
    assert_eq!(a["errorCode"], 503, "{a}");
    assert!(a["lastErrorAt"].is_string(), "{a}");
    upstream.script("a", [Reply::error(401, "invalid api key")]);
    let tested = test(&node, "a").await;
    assert_eq!(tested["connectionStatus"], "terminal", "{tested}");
}

/// A streak of refusals is never completed by tests, whatever the switch says.
#[tokio::test]
async fn no_test_counts_for_a_streak() {
    let upstream = Upstream::start().await;
    upstream.script_all([Reply::error(403, "Request not allowed")]);
    let config = Config::new()
        .no_waiting()
        .provider_with("claude", "anthropic", &upstream.url(), json!({}))
        .connection_with(
            "c",
            "claude",
            json!({"models": ["claude-x"], "oauth": {"accessToken": "key-c"}}),
        )
        .set(&["settings", "probeCanDisable"], json!(true));
    let node = Node::start(&config).await;
    for _ in 0..4 {
        let tested = test(&node, "c").await;
        assert_eq!(tested["connectionStatus"], "healthy", "{tested}");
    }
}

#[tokio::test]
async fn the_switch_is_shown_and_saved() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("a", [Reply::error(503, "down")]);
    let shown = node.admin_get("/api/settings").await;
    assert_eq!(shown["probeCanDisable"], false, "{shown}");
    let change = node.admin_call("PATCH", "/api/settings");
    let change = change.json(&json!({"probeCanDisable": true}));
    change.send().await.expect_status(200);
    let tested = test(&node, "a").await;
    assert_eq!(tested["connectionStatus"], "cooling_down", "{tested}");
}

/// A retry that nobody asked for never ends a connection that serves again.
#[tokio::test]
async fn a_retry_of_an_expired_connection_changes_nothing_by_failing() {
    let upstream = Upstream::start().await;
    let config = config(&upstream).set(
        &["settings", "expiredRetry"],
        json!({"sweepMs": 1000, "baseMs": 1000, "maxRetries": 1}),
    );
    let node = Node::start(&config).await;
    upstream.script(
        "a",
        [Reply::error(401, "invalid api key"), Reply::limited(600)],
    );
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await;
    let row = eventually("it was tried", || async {
        let row = node.connection("a").await;
        (row["expiredRetry"]["over"] == true && upstream.count("a") == 2).then_some(row)
    })
    .await;
    assert_eq!(row["testStatus"], "expired", "{row}");
    assert_eq!(row["rateLimitedUntil"], Value::Null, "{row}");
}
