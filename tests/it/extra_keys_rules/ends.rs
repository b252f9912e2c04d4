//! When all keys are gone, and what brings them back.

use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

use super::{KEYS, accept, ask, config, expect_healthy, keys, refuse, refused, reset, serves};

async fn start() -> (Upstream, Node) {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    (upstream, node)
}

async fn test(node: &Node) -> Value {
    let call = node.admin_call("POST", "/api/connections/a/test");
    call.send().await.expect_status(200).json()
}

async fn expect_end(node: &Node, end: &str) {
    let a = node.connection_becomes("a", "terminal").await;
    assert_eq!(a["testStatus"], end, "{a}");
}

#[tokio::test]
async fn with_all_keys_refused_the_connection_has_expired() {
    let (upstream, node) = start().await;
    refuse(&upstream, &KEYS);
    serves(&node, &upstream, &["a", "a2", "a3", "b"], "none is good").await;
    expect_end(&node, "expired").await;
    assert_eq!(keys(&node).await, (3, 0));
    serves(&node, &upstream, &["b"], "it has expired").await;
}

#[tokio::test]
async fn keys_that_go_one_after_the_other_come_to_the_same_end() {
    let (upstream, node) = start().await;
    refuse(&upstream, &["a"]);
    serves(&node, &upstream, &["a", "a2"], "the first").await;
    refuse(&upstream, &["a2"]);
    serves(&node, &upstream, &["a2", "a3"], "the second").await;
    expect_healthy(&node, "one is left").await;
    refuse(&upstream, &["a3"]);
    serves(&node, &upstream, &["a3", "b"], "the last").await;
    expect_end(&node, "expired").await;
}

/// The client hears what it hears of a connection with one key.
#[tokio::test]
async fn alone_it_is_refused_as_with_one_key() {
    let upstream = Upstream::start().await;
    let config = config(&upstream)
        .connection("single", "acme")
        .combo("many", &["acme/m@a"])
        .combo("one", &["acme/m@single"]);
    let node = Node::start(&config).await;
    refuse(&upstream, &KEYS);
    refuse(&upstream, &["single"]);
    let mut told = Vec::new();
    for _ in 0..2 {
        for model in ["many", "one"] {
            let body = Dialect::Chat.request(model, false);
            let answer = node.post("/v1/chat/completions", &body).send().await;
            assert_eq!(answer.retry_after(), None, "{}", answer.text());
            told.push((answer.status, answer.code()));
        }
    }
    assert_eq!(told[0], told[1], "the first request");
    assert_eq!(told[2], told[3], "a later one");
    assert_eq!(upstream.order(), ["a", "a2", "a3", "single"]);
}

/// Words that name the key or its account as dead are a word about the key.
#[tokio::test]
async fn a_banned_key_is_set_aside_too() {
    let coded = json!({"error": {"message": "This account is no longer active",
        "type": "invalid_request_error", "code": "account_deactivated"}});
    for reply in [
        Reply::error(403, "Your account has been suspended"),
        Reply::error(403, "The account has been deactivated"),
        Reply::error(403, "Your account has been disabled"),
        Reply::json(403, &coded),
        Reply::json(401, &coded),
    ] {
        let what = format!("{reply:?}");
        let (upstream, node) = start().await;
        upstream.script("a", [reply.clone()]);
        serves(&node, &upstream, &["a", "a2"], &what).await;
        expect_healthy(&node, &what).await;
        assert_eq!(keys(&node).await, (3, 2), "{what}");
        for key in ["a2", "a3"] {
            upstream.script(key, [reply.clone()]);
        }
        serves(&node, &upstream, &["a2", "a3", "b"], &what).await;
        // Some words say 401, and mean the account all the same.
        let a = node.connection_becomes("a", "terminal").await;
        let end = a["testStatus"].as_str().unwrap();
        assert!(["banned", "expired"].contains(&end), "{what}: {a}");
        if what.contains("403") {
            assert_eq!(end, "banned", "{what}: {a}");
        }
    }
}

/// The last failure is the one that counts.
#[tokio::test]
async fn the_last_keys_failure_is_the_connections() {
    let (upstream, node) = start().await;
    let banned = Reply::error(403, "Your account has been suspended");
    refuse(&upstream, &["a", "a2"]);
    upstream.script("a3", [banned]);
    serves(
        &node,
        &upstream,
        &["a", "a2", "a3", "b"],
        "the last is banned",
    )
    .await;
    expect_end(&node, "banned").await;

    let (upstream, node) = start().await;
    refuse(&upstream, &["a", "a2"]);
    upstream.script("a3", [Reply::limited(600)]);
    serves(&node, &upstream, &["a", "a2", "a3", "b"], "the last rests").await;
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    assert_eq!(keys(&node).await, (3, 1));
}

#[tokio::test]
async fn a_reset_brings_keys_back() {
    let (upstream, node) = start().await;
    refuse(&upstream, &["a"]);
    serves(&node, &upstream, &["a", "a2"], "refused").await;
    // Before, it stays aside, good or not.
    accept(&upstream, &["a"]);
    serves(&node, &upstream, &["a2"], "aside").await;
    reset(&node).await;
    assert_eq!(keys(&node).await, (3, 3));
    serves(&node, &upstream, &["a"], "after a reset").await;

    refuse(&upstream, &KEYS);
    ask(&node).await.expect_status(200);
    expect_end(&node, "expired").await;
    accept(&upstream, &["a"]);
    reset(&node).await;
    node.connection_becomes("a", "healthy").await;
    assert_eq!(keys(&node).await, (3, 3));
    serves(&node, &upstream, &["a"], "after the end and a reset").await;
}

/// A success of the other keys is no word about this one.
#[tokio::test]
async fn successes_bring_no_key_back() {
    let (upstream, node) = start().await;
    refuse(&upstream, &["a"]);
    serves(&node, &upstream, &["a", "a2"], "refused").await;
    for n in 0..5 {
        serves(&node, &upstream, &["a2"], &format!("success {n}")).await;
    }
    assert_eq!(keys(&node).await, (3, 2));
}

/// A live test judges keys as requests do.
#[tokio::test]
async fn a_live_test_goes_on_to_the_next_key() {
    let (upstream, node) = start().await;
    refuse(&upstream, &["a"]);
    let tested = test(&node).await;
    assert_eq!(tested["ok"], true, "{tested}");
    assert_eq!(tested["connectionStatus"], "healthy", "{tested}");
    assert_eq!(upstream.order(), ["a", "a2"]);
    assert_eq!(keys(&node).await, (3, 2));
    serves(&node, &upstream, &["a2"], "after the test").await;

    let (upstream, node) = start().await;
    refuse(&upstream, &KEYS);
    let tested = test(&node).await;
    assert_eq!(tested["ok"], false, "{tested}");
    assert_eq!(tested["connectionStatus"], "terminal", "{tested}");
    expect_end(&node, "expired").await;
}

/// The key that a successful test presented is used again.
#[tokio::test]
async fn a_live_test_brings_its_key_back() {
    let (upstream, node) = start().await;
    refuse(&upstream, &KEYS);
    ask(&node).await.expect_status(200);
    expect_end(&node, "expired").await;
    accept(&upstream, &KEYS);
    let tested = test(&node).await;
    assert_eq!(tested["ok"], true, "{tested}");
    node.connection_becomes("a", "healthy").await;
    let order = upstream.order();
    let presented = order.last().unwrap().as_str();
    assert!(KEYS.contains(&presented), "{order:?}");
    assert!(keys(&node).await.1 >= 1);
    serves(&node, &upstream, &[presented], "after the test").await;
}

/// One that fails brings nothing back.
#[tokio::test]
async fn a_live_test_that_fails_leaves_the_end_as_it_is() {
    let (upstream, node) = start().await;
    refuse(&upstream, &KEYS);
    ask(&node).await.expect_status(200);
    let tested = test(&node).await;
    assert_eq!(tested["ok"], false, "{tested}");
    expect_end(&node, "expired").await;
    assert_eq!(keys(&node).await, (3, 0));
}

/// What is refused once more after it was brought back goes the same way.
#[tokio::test]
async fn it_begins_anew_after_a_reset() {
    let (upstream, node) = start().await;
    for round in 0..3 {
        let what = format!("round {round}");
        upstream.script("a", [refused()]);
        serves(&node, &upstream, &["a", "a2"], &what).await;
        assert_eq!(keys(&node).await, (3, 2), "{what}");
        reset(&node).await;
        assert_eq!(keys(&node).await, (3, 3), "{what}");
    }
}

/// An expired connection is looked at again, as one with a single key is.
#[tokio::test]
async fn a_later_look_brings_it_back() {
    let upstream = Upstream::start().await;
    let quick = json!({"enabled": true, "sweepMs": 1_000, "baseMs": 1_000, "maxRetries": 3});
    let config = config(&upstream).set(&["settings", "expiredRetry"], quick);
    let node = Node::start(&config).await;
    refuse(&upstream, &KEYS);
    ask(&node).await.expect_status(200);
    accept(&upstream, &KEYS);
    node.connection_becomes("a", "healthy").await;
    assert!(keys(&node).await.1 >= 1);
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("a"));
}

/// What an operator switched off for bans is not switched off for one key.
#[tokio::test]
async fn one_banned_key_disables_no_account() {
    let upstream = Upstream::start().await;
    let switch = ["settings", "autoDisableBannedAccounts"];
    let config = config(&upstream).set(&switch, json!(true));
    let node = Node::start(&config).await;
    let banned = || Reply::error(403, "Your account has been suspended");
    upstream.script("a", [banned()]);
    serves(&node, &upstream, &["a", "a2"], "one is banned").await;
    let a = node.connection("a").await;
    assert_eq!(a["isActive"], true, "{a}");
    for key in ["a2", "a3"] {
        upstream.script(key, [banned()]);
    }
    serves(&node, &upstream, &["a2", "a3", "b"], "all are banned").await;
    let a = node.connection_becomes("a", "terminal").await;
    assert_eq!(a["isActive"], false, "{a}");
}

/// A key that is named twice is one key.
#[tokio::test]
async fn a_key_is_not_tried_twice() {
    let upstream = Upstream::start().await;
    let twice = ["a", "a", "a2", "a"];
    let own = json!({"id": "a", "provider": "acme", "apiKey": "key-a", "priority": 1,
        "models": ["m"], "providerSpecificData": super::extra(&twice)});
    let b = json!({"id": "b", "provider": "acme", "apiKey": "key-b", "priority": 2});
    let config = config(&upstream).set(&["connections"], json!([own, b]));
    let node = Node::start(&config).await;
    refuse(&upstream, &["a"]);
    serves(&node, &upstream, &["a", "a2"], "the first is refused").await;
    serves(&node, &upstream, &["a2"], "later").await;
    refuse(&upstream, &["a2"]);
    serves(&node, &upstream, &["a2", "b"], "none is left").await;
    expect_end(&node, "expired").await;
}
