//! Accounts that a refused credential put out of use are looked at again, few
//! times and ever more rarely, by one process for all.

use std::time::{Duration, Instant};

use cluster_tests::client::Answer;
use cluster_tests::cluster::Plan;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::tokens::{SECRET, TokenEndpoint, Turn, in_ms};
use cluster_tests::upstream::{Seen, Upstream};
use cluster_tests::wait::{eventually, let_time_pass};
use serde_json::{Value, json};

/// The least that both settings take, ms.
const LEAST: u64 = 1_000;

fn quick(config: Config) -> Config {
    let settings = json!({"enabled": true, "sweepMs": LEAST, "baseMs": LEAST, "maxRetries": 3});
    config.set(&["settings", "expiredRetry"], settings)
}

fn retrying(config: Config, key: &str, value: Value) -> Config {
    config.set(&["settings", "expiredRetry", key], value)
}

fn acme(upstream: &Upstream) -> Config {
    let config = Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"models": ["m"]}));
    quick(config)
}

fn refused() -> Reply {
    Reply::error(401, "invalid api key")
}

async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

async fn expires(node: &Node, model: &str, id: &str) {
    ask(node, model).await;
    let a = node.connection_becomes(id, "terminal").await;
    assert_eq!(a["testStatus"], "expired", "{a}");
}

/// The time between two requests.
fn gap(one: &Seen, other: &Seen) -> Duration {
    other.at.saturating_duration_since(one.at)
}

#[tokio::test]
async fn an_account_that_is_well_again_comes_back_by_itself() {
    let upstream = Upstream::start().await;
    let node = Node::start(&acme(&upstream)).await;
    upstream.script("a", [refused(), Dialect::Chat.ok("pong")]);
    expires(&node, "acme/m", "a").await;
    let a = node.connection_becomes("a", "healthy").await;
    assert_eq!(a["testStatus"], "active", "{a}");
    assert_eq!(a["lastErrorType"], Value::Null, "{a}");
    let seen = upstream.requests_of("a");
    assert_eq!(seen.len(), 2, "one look was enough");
    let waited = gap(&seen[0], &seen[1]);
    assert!(waited >= Duration::from_millis(LEAST - 50), "{waited:?}");
    ask(&node, "acme/m").await.expect_status(200);
}

#[tokio::test]
async fn each_look_is_twice_as_late_as_the_one_before_and_then_there_is_none() {
    let upstream = Upstream::start().await;
    let node = Node::start(&retrying(acme(&upstream), "maxRetries", json!(2))).await;
    upstream.script("a", [refused()]);
    expires(&node, "acme/m", "a").await;
    upstream.request("a", 3).await;
    let seen = upstream.requests_of("a");
    for (at, least) in [LEAST, 2 * LEAST].into_iter().enumerate() {
        let waited = gap(&seen[at], &seen[at + 1]);
        assert!(waited >= Duration::from_millis(least - 50), "{waited:?}");
    }
    // The next one would be after four times that, and a sweep later.
    let_time_pass(
        Duration::from_millis(4 * LEAST + 2 * LEAST),
        "one look too many would show",
    )
    .await;
    assert_eq!(upstream.count("a"), 3);
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "terminal", "{a}");
    assert_eq!(a["testStatus"], "expired", "{a}");
    // Only time does not heal it any more; whoever is responsible still can.
    upstream.script("a", [Dialect::Chat.ok("pong")]);
    let reset = node.admin_call("POST", "/api/connections/a/reset");
    reset.send().await.expect_status(200);
    ask(&node, "acme/m").await.expect_status(200);
}

#[tokio::test]
async fn the_count_outlives_a_crash_and_a_success_begins_anew() {
    let upstream = Upstream::start().await;
    let config = retrying(acme(&upstream), "maxRetries", json!(1));
    let mut node = Node::start(&config).await;
    upstream.script("a", [refused()]);
    expires(&node, "acme/m", "a").await;
    upstream.request("a", 2).await;
    let_time_pass(
        Duration::from_millis(500),
        "the look's outcome is in the store",
    )
    .await;
    node.kill_9().await;
    let node = node.start_again().await;
    let_time_pass(Duration::from_millis(4 * LEAST), "a second look would show").await;
    assert_eq!(upstream.count("a"), 2);

    upstream.script("a", [Dialect::Chat.ok("pong")]);
    let tested = node.admin_call("POST", "/api/connections/a/test");
    assert_eq!(
        tested.send().await.expect_status(200).json()["ok"],
        json!(true)
    );
    upstream.script("a", [refused(), Dialect::Chat.ok("pong")]);
    expires(&node, "acme/m", "a").await;
    node.connection_becomes("a", "healthy").await;
}

#[tokio::test]
async fn it_can_be_switched_off() {
    for (key, value) in [("enabled", json!(false)), ("maxRetries", json!(0))] {
        let upstream = Upstream::start().await;
        let node = Node::start(&retrying(acme(&upstream), key, value)).await;
        upstream.script("a", [refused(), Dialect::Chat.ok("pong")]);
        expires(&node, "acme/m", "a").await;
        let_time_pass(Duration::from_millis(4 * LEAST), "a look would show").await;
        assert_eq!(upstream.count("a"), 1, "{key}");
        let a = node.connection("a").await;
        assert_eq!(a["testStatus"], "expired", "{key}: {a}");
    }
}

#[tokio::test]
async fn other_ends_are_not_looked_at() {
    let upstream = Upstream::start().await;
    let config = acme(&upstream)
        .connection_with("banned", "acme", json!({"models": ["m"]}))
        .connection_with("broke", "acme", json!({"models": ["m"]}))
        .combo("to-banned", &["acme/m@banned"])
        .combo("to-broke", &["acme/m@broke"])
        .combo("to-a", &["acme/m@a"]);
    let node = Node::start(&config).await;
    let ok = || Dialect::Chat.ok("pong");
    let suspended = Reply::error(403, "your account has been suspended");
    upstream.script("banned", [suspended, ok()]);
    upstream.script("broke", [Reply::error(402, "payment required"), ok()]);
    upstream.script("a", [refused(), refused(), ok()]);
    for id in ["banned", "broke"] {
        ask(&node, &format!("to-{id}")).await;
        node.connection_becomes(id, "terminal").await;
    }
    expires(&node, "to-a", "a").await;
    // Two looks at `a` later the others had their time too.
    node.connection_becomes("a", "healthy").await;
    for (id, status) in [("banned", "banned"), ("broke", "credits_exhausted")] {
        assert_eq!(upstream.count(id), 1, "{id}");
        let one = node.connection(id).await;
        assert_eq!(one["testStatus"], status, "{one}");
    }
}

#[tokio::test]
async fn in_a_cluster_one_process_looks_for_all() {
    let plan = Plan::of(2).coordinators(2);
    let cluster = plan
        .start(|upstream| acme(upstream).set(&["coordinator", "leaseMs"], json!(1_000)))
        .await;
    cluster
        .upstream
        .script("a", [refused(), refused(), Dialect::Chat.ok("pong")]);
    expires(&cluster.nodes[0], "acme/m", "a").await;
    for node in &cluster.nodes {
        node.connection_becomes("a", "healthy").await;
    }
    let seen = cluster.upstream.requests_of("a");
    assert_eq!(seen.len(), 3, "somebody looked twice");
    assert!(gap(&seen[1], &seen[2]) >= Duration::from_millis(2 * LEAST - 50));
    ask(&cluster.nodes[1], "acme/m").await.expect_status(200);
}

#[tokio::test]
async fn the_next_leader_goes_on_where_the_last_one_was() {
    let plan = Plan::of(1).coordinators(2);
    let mut cluster = plan
        .start(|upstream| {
            let config = acme(upstream).set(&["coordinator", "leaseMs"], json!(1_000));
            retrying(config, "maxRetries", json!(2))
        })
        .await;
    cluster.upstream.script("a", [refused()]);
    expires(&cluster.nodes[0], "acme/m", "a").await;
    cluster.upstream.request("a", 2).await;
    // Its outcome is stored before the leader may go.
    let_time_pass(
        Duration::from_millis(500),
        "the look's outcome is in the store",
    )
    .await;
    let (leads, _) = cluster.roles().await;
    cluster.coordinators[leads].kill_9().await;
    let third = cluster.upstream.request("a", 3).await;
    let seen = cluster.upstream.requests_of("a");
    assert!(gap(&seen[1], &third) >= Duration::from_millis(2 * LEAST - 50));
    let_time_pass(Duration::from_millis(6 * LEAST), "a third look would show").await;
    assert_eq!(cluster.upstream.count("a"), 3);
}

/// A single-use refresh token is not spent where an access token still serves.
#[tokio::test]
async fn an_access_token_that_still_lives_is_probed_and_not_renewed() {
    let upstream = Upstream::start().await;
    let endpoint = TokenEndpoint::start().await;
    endpoint.script([Turn::Answer(
        400,
        json!({"error": "invalid_grant"}),
        Vec::new(),
    )]);
    let ended = Reply::error(401, "Invalid authentication credentials");
    upstream.script("a.0", [ended, Dialect::Chat.ok("pong")]);
    let config = quick(endpoint.config(&upstream.url(), &[], None).connection_with(
        "a",
        "plan",
        account(3_600_000),
    ));
    let node = Setup::with(&config)
        .env("OMNIROUTE_SECRET_KEY", SECRET)
        .start()
        .await;
    expires(&node, "plan/m", "a").await;
    node.connection_becomes("a", "healthy").await;
    assert_eq!(endpoint.grants().len(), 1, "{:?}", endpoint.grants());
    assert_eq!(upstream.count("a.0"), 2);
    ask(&node, "plan/m").await.expect_status(200);
}

/// `a` with its tokens and the model that is probed.
fn account(from_now: i64) -> Value {
    let mut account = cluster_tests::tokens::tokens("a", 0, in_ms(from_now));
    account["models"] = json!(["m"]);
    account
}

#[tokio::test]
async fn a_request_meanwhile_is_refused_at_once() {
    let upstream = Upstream::start().await;
    let config = retrying(acme(&upstream), "baseMs", json!(86_400_000));
    let node = Node::start(&config).await;
    upstream.script("a", [refused(), Dialect::Chat.ok("pong")]);
    expires(&node, "acme/m", "a").await;
    let begun = Instant::now();
    let answer = ask(&node, "acme/m").await;
    assert!(answer.status >= 400, "{}", answer.text());
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(answer.retry_after(), None, "nobody knows when");
    eventually("the sweep has passed", || async {
        (begun.elapsed() > Duration::from_millis(2 * LEAST)).then_some(())
    })
    .await;
    assert_eq!(upstream.count("a"), 1);
}
