//! A saved setting is what the next request is judged by, on every node.

use cluster_tests::cluster::Cluster;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

use super::{RESILIENCE, SETTINGS, ask, base_becomes, base_of, config, get, save};

async fn reset(node: &Node) {
    let all = json!({"scope": "all"});
    let call = node.post("/api/resilience/reset", &all);
    call.send().await.expect_status(200);
    let call = node.admin_call("POST", "/api/connections/a/reset");
    call.send().await.expect_status(200);
}

async fn becomes(node: &Node, path: &str, pointer: &str, value: &Value) {
    eventually("the setting has arrived", || async {
        let (shown, _) = get(node, path).await;
        (shown.pointer(pointer) == Some(value)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_base_that_was_saved_is_the_next_cooldown() {
    let cluster = Cluster::start(2, config).await;
    save(&cluster.nodes[0], RESILIENCE, &base_of(600_000)).await;
    for node in &cluster.nodes {
        base_becomes(node, 600_000).await;
        cluster
            .upstream
            .script("a", [Reply::error(429, "slow down")]);
        ask(node).await.expect_status(429);
        let a = node.connection("a").await;
        let left = a["cooldownRemainingMs"].as_u64().unwrap();
        assert!((550_000..=600_000).contains(&left), "{a}");
        reset(node).await;
        for node in &cluster.nodes {
            node.connection_becomes("a", "healthy").await;
        }
    }
}

#[tokio::test]
async fn hints_are_no_longer_followed_where_they_are_switched_off() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("a", [Reply::limited(600)]);
    let off = json!({"connectionCooldown": {"apikey":
        {"useUpstreamRetryHints": false, "baseCooldownMs": 30_000}}});
    save(&node, RESILIENCE, &off).await;
    ask(&node).await.expect_status(429);
    let a = node.connection("a").await;
    let left = a["cooldownRemainingMs"].as_u64().unwrap();
    assert!((20_000..=30_000).contains(&left), "{a}");
}

#[tokio::test]
async fn a_threshold_that_was_saved_opens_the_breaker() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("a", [Reply::error(503, "down")]);
    let low = json!({"providerBreaker": {"apikey":
        {"failureThreshold": 1, "degradationThreshold": 1, "resetTimeoutMs": 600_000}}});
    save(&node, RESILIENCE, &low).await;
    ask(&node).await;
    let a = node.connection("a").await;
    assert_eq!(a["breaker"]["state"], "OPEN", "{a}");
    let left = a["breaker"]["retryAfterMs"].as_u64().unwrap();
    assert!((550_000..=600_000).contains(&left), "{a}");
    // API-08: whether 429 hints count is another reading of all that was counted.
    let hints = json!({"connectionCooldown": {"oauth": {"useUpstream429BreakerHints": true}}});
    save(&node, RESILIENCE, &hints).await;
    eventually("the breakers begin anew", || async {
        let a = node.connection("a").await;
        (a["breaker"]["state"] == "CLOSED" && a["breaker"]["failureCount"] == 0).then_some(())
    })
    .await;
    let unset = json!({"connectionCooldown": {"oauth": {"useUpstream429BreakerHints": null}}});
    save(&node, RESILIENCE, &unset).await;
}

#[tokio::test]
async fn waiting_can_be_switched_on() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("a", [Reply::limited(1), Dialect::Chat.ok("pong")]);
    let on = json!({"waitForCooldown": {"enabled": true, "maxRetries": 5, "maxRetryWaitSec": 30}});
    save(&node, RESILIENCE, &on).await;
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-attempts"), Some("2"));
}

#[tokio::test]
async fn a_rule_that_was_saved_judges_the_next_failure_on_every_node() {
    let cluster = Cluster::start(2, config).await;
    let withdrawn = Reply::error(404, "Error: Model Withdrawn upstream");
    cluster.upstream.script("a", [withdrawn]);
    let rule = json!({"status": 404, "match": "model withdrawn", "scope": "connection",
        "reason": "quota_exhausted", "cooldownMs": 600_000});
    let rules = json!({"providerErrorRules": {"acme": [rule]}});
    save(&cluster.nodes[0], SETTINGS, &rules).await;
    for node in &cluster.nodes {
        becomes(
            node,
            SETTINGS,
            "/providerErrorRules/acme/0/status",
            &json!(404),
        )
        .await;
        ask(node).await;
        let a = node.connection_becomes("a", "cooling_down").await;
        let left = a["cooldownRemainingMs"].as_u64().unwrap();
        assert!((500_000..=600_000).contains(&left), "{a}");
        reset(node).await;
        for node in &cluster.nodes {
            node.connection_becomes("a", "healthy").await;
        }
    }
    save(
        &cluster.nodes[1],
        SETTINGS,
        &json!({"providerErrorRules": {}}),
    )
    .await;
    for node in &cluster.nodes {
        becomes(node, SETTINGS, "/providerErrorRules", &json!({})).await;
        ask(node).await;
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
    }
}

#[tokio::test]
async fn a_signal_of_a_ban_that_was_saved_bans() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("a", [Reply::error(403, "Your WORKSPACE was closed, sorry")]);
    let signals = json!({"customBannedSignals": ["your workspace was closed"]});
    save(&node, SETTINGS, &signals).await;
    ask(&node).await;
    let a = node.connection("a").await;
    assert_eq!(a["testStatus"], "banned", "{a}");
}

#[tokio::test]
async fn lockouts_of_models_can_be_switched_on() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("a", [Reply::error(503, "down")]);
    let on = json!({"modelLockout": {"enabled": true, "baseCooldownMs": 600_000,
        "errorCodes": [503]}});
    save(&node, SETTINGS, &on).await;
    ask(&node).await;
    let a = node.connection("a").await;
    assert_eq!(a["lockouts"][0]["model"], "m", "{a}");
    let left = a["lockouts"][0]["remainingMs"].as_u64().unwrap();
    assert!((550_000..=600_000).contains(&left), "{a}");
}

#[tokio::test]
async fn a_listener_is_told_that_settings_changed() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let mut events = node.get("/api/events").open().await;
    assert_eq!(events.status, 200);
    save(&node, RESILIENCE, &base_of(7_000)).await;
    events.read_until("event: change").await;
}
