//! The opt-in window gate: a provider whose targets failed often enough is left
//! out of combos for a while, and so is a connection for a shorter while.
//!
//! The connections here never cool, so that nothing else leaves them out; what
//! fails locks its model then, so each request of a test names a fresh one.

use std::cell::Cell;
use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::Plan;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

/// After this many failures.
const THRESHOLD: &str = "OMNIROUTE_PROVIDER_BREAKER_API_KEY_FAILURE_THRESHOLD";
/// For so long, ms.
const COOLDOWN: &str = "OMNIROUTE_PROVIDER_BREAKER_API_KEY_COOLDOWN_MS";
/// Counted within so long, ms.
const WINDOW: &str = "OMNIROUTE_PROVIDER_BREAKER_API_KEY_FAILURE_WINDOW_MS";

/// Combos `c0`, `c1`, ... of a model of `acme` each, then `backup`; `acme` has
/// the further keys `more`.
fn config(upstream: &Upstream, more: Value) -> Config {
    upstream.script("backup", [Dialect::Chat.ok("pong")]);
    let config = Config::new()
        .no_waiting()
        .provider_with("acme", "openai", &upstream.url(), more)
        .provider("backup", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"priority": 1, "disableCooling": true}))
        .connection("backup", "backup")
        .combo("alone", &["acme/alone"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1000));
    (0..99).fold(config, |config, n| {
        let target = format!("acme/m{n}");
        config.combo(&format!("c{n}"), &[&target, "backup/m"])
    })
}

/// Switches the gate on; `least` ms at the level of a connection.
fn gated(config: Config, least: u64) -> Config {
    let gate = json!({"enabled": true, "minRetryCooldownMs": least,
        "maxRetryCooldownMs": least.saturating_mul(1000)});
    config.resilience("providerCooldown", gate)
}

async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

/// Asks combo `n` and returns why `acme` was left out by the gate, if it was.
async fn excluded(node: &Node, n: usize) -> Option<Value> {
    let answer = ask(node, &format!("c{n}")).await.expect_status(200);
    let trace = node.trace(&answer).await;
    let all = trace["excluded"].as_array().unwrap();
    let found = all.iter().find(|one| one["reason"] == "provider_cooldown");
    found.cloned()
}

/// How much is left, ms.
fn left(entry: &Value) -> i64 {
    let until = entry["until"].as_str();
    let until = until.unwrap_or_else(|| panic!("no end: {entry}"));
    let until: jiff::Timestamp = until.parse().unwrap();
    until.as_millisecond() - jiff::Timestamp::now().as_millisecond()
}

fn down() -> Reply {
    Reply::error(503, "down")
}

/// PCD-01.
#[tokio::test]
async fn it_is_off_unless_asked_for() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down()]);
    let setup = Setup::with(&config(&upstream, json!({}))).env(THRESHOLD, "2");
    let node = setup.start().await;
    for n in 0..12 {
        assert_eq!(excluded(&node, n).await, None, "{n}");
    }
    assert_eq!(upstream.count("a"), 12);
}

/// PCD-09 with the other profile: its own threshold and time.
#[tokio::test]
async fn a_provider_that_failed_often_enough_is_left_out_of_combos() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down()]);
    let config = gated(config(&upstream, json!({})), 0);
    let node = Setup::with(&config).env(THRESHOLD, "3").start().await;
    for n in 0..3 {
        assert_eq!(excluded(&node, n).await, None, "{n}");
    }
    let entry = excluded(&node, 3).await.expect("not left out");
    assert_eq!(entry["provider"], "acme", "{entry}");
    assert!((580_000..=600_000).contains(&left(&entry)), "{entry}");
    assert_eq!(upstream.count("a"), 3);
    // Nobody else is left out, and who asks for the provider itself is served.
    upstream.script("a", [Dialect::Chat.ok("pong")]);
    ask(&node, "acme/fresh").await.expect_status(200);
}

#[tokio::test]
async fn the_variables_switch_it_on_and_set_its_numbers() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down()]);
    let setup = Setup::with(&config(&upstream, json!({})))
        .env("PROVIDER_COOLDOWN_ENABLED", "on")
        .env("PROVIDER_COOLDOWN_MIN_MS", "0")
        .env("PROVIDER_COOLDOWN_MAX_MS", "0")
        .env(THRESHOLD, "2")
        .env(COOLDOWN, "120000")
        .env(WINDOW, "600000");
    let node = setup.start().await;
    for n in 0..2 {
        assert_eq!(excluded(&node, n).await, None, "{n}");
    }
    let entry = excluded(&node, 2).await.expect("not left out");
    assert!((100_000..=120_000).contains(&left(&entry)), "{entry}");
}

/// It ends by the clock, measured from the last failure.
#[tokio::test]
async fn it_ends_by_itself() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down(), down(), Dialect::Chat.ok("pong")]);
    let config = gated(config(&upstream, json!({})), 0);
    let setup = Setup::with(&config)
        .env(THRESHOLD, "2")
        .env(COOLDOWN, "2000");
    let node = setup.start().await;
    for n in 0..2 {
        assert_eq!(excluded(&node, n).await, None, "{n}");
    }
    excluded(&node, 2).await.expect("not left out");
    eventually("it is tried again", || async {
        excluded(&node, 3).await.is_none().then_some(())
    })
    .await;
    let seen = upstream.requests_of("a");
    let rested = seen[2].at.saturating_duration_since(seen[1].at);
    assert!(rested >= Duration::from_millis(1_900), "{rested:?}");
}

/// What is older than the window does not count.
#[tokio::test]
async fn failures_far_apart_do_not_add_up() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down()]);
    let config = gated(config(&upstream, json!({})), 0);
    let setup = Setup::with(&config).env(THRESHOLD, "2").env(WINDOW, "1000");
    let node = setup.start().await;
    for n in 0..3 {
        assert_eq!(excluded(&node, n).await, None, "{n}");
        cluster_tests::wait::let_time_pass(
            Duration::from_millis(1_200),
            "the failure leaves the window",
        )
        .await;
    }
    assert_eq!(upstream.count("a"), 3);
}

#[tokio::test]
async fn a_success_begins_anew() {
    let upstream = Upstream::start().await;
    let ok = || Dialect::Chat.ok("pong");
    upstream.script("a", [down(), ok(), down(), ok()]);
    let config = gated(config(&upstream, json!({})), 0);
    let node = Setup::with(&config).env(THRESHOLD, "2").start().await;
    for n in 0..4 {
        assert_eq!(excluded(&node, n).await, None, "{n}");
    }
    assert_eq!(upstream.count("a"), 4);
}

/// Each failure counts for its connection and for the provider.
#[tokio::test]
async fn failures_of_different_accounts_add_up() {
    let upstream = Upstream::start().await;
    upstream.script_all([down()]);
    let never = json!({"disableCooling": true});
    let config = gated(config(&upstream, json!({})), 0)
        .connection_with("a2", "acme", never.clone())
        .connection_with("a3", "acme", never)
        .combo(
            "all",
            &["acme/x1@a", "acme/x2@a2", "acme/x3@a3", "backup/m"],
        );
    let node = Setup::with(&config).env(THRESHOLD, "2").start().await;
    ask(&node, "all").await.expect_status(200);
    // The third target may be left out in the very same request.
    excluded(&node, 0).await.expect("not left out");
    assert!(upstream.count("a") == 1 && upstream.count("a2") == 1);
}

/// PCD-07: twice as long each time, at the level of a connection.
#[tokio::test]
async fn a_connection_is_left_out_for_twice_as_long_each_time() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down(), down(), Dialect::Chat.ok("pong")]);
    let config = gated(config(&upstream, json!({})), 1_000);
    let node = Setup::with(&config).env(THRESHOLD, "1000").start().await;
    assert_eq!(excluded(&node, 0).await, None);
    for n in 1..=2 {
        eventually("it is tried again", || async {
            excluded(&node, n).await.is_none().then_some(())
        })
        .await;
    }
    let seen = upstream.requests_of("a");
    for (at, least) in [1_000, 2_000].into_iter().enumerate() {
        let rested = seen[at + 1].at.saturating_duration_since(seen[at].at);
        assert!(rested >= Duration::from_millis(least - 50), "{rested:?}");
        assert!(rested < Duration::from_millis(least * 2 + 3_000));
    }
}

#[tokio::test]
async fn another_account_of_the_provider_goes_on_meanwhile() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down()]);
    upstream.script("a2", [Dialect::Chat.ok("pong")]);
    let config = gated(config(&upstream, json!({})), 60_000).connection("a2", "acme");
    let config = ["d0", "d1", "d2"].iter().fold(config, |config, name| {
        let model = format!("acme/{name}");
        let targets = [format!("{model}@a"), format!("{model}@a2")];
        config.combo(name, &[&targets[0], &targets[1], "backup/m"])
    });
    let node = Setup::with(&config).env(THRESHOLD, "1000").start().await;
    for name in ["d0", "d1", "d2"] {
        let answer = ask(&node, name).await.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("a2"));
    }
    assert_eq!(upstream.count("a"), 1);
    assert_eq!(upstream.count("backup"), 0);
}

/// PCD-11.
#[tokio::test]
async fn where_quotas_count_by_model_429_and_500_are_not_counted() {
    for (status, counted) in [(429, false), (500, false), (503, true), (502, true)] {
        let upstream = Upstream::start().await;
        upstream.script("a", [Reply::error(status, "no")]);
        let quota = json!({"perModelQuota": true});
        let config = gated(config(&upstream, quota), 0);
        let node = Setup::with(&config).env(THRESHOLD, "2").start().await;
        for n in 0..2 {
            assert_eq!(excluded(&node, n).await, None, "{status}: {n}");
        }
        let third = excluded(&node, 2).await;
        assert_eq!(third.is_some(), counted, "{status}: {third:?}");
        assert_eq!(upstream.count("a"), if counted { 2 } else { 3 });
    }
}

#[tokio::test]
async fn what_is_the_requests_own_fault_is_not_counted() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Reply::error(400, "messages: at least one is needed")]);
    let config = gated(config(&upstream, json!({})), 0);
    let node = Setup::with(&config).env(THRESHOLD, "1").start().await;
    for n in 0..3 {
        ask(&node, &format!("c{n}")).await;
        assert_eq!(upstream.count("a"), n + 1);
    }
}

#[tokio::test]
async fn who_has_nowhere_else_to_go_is_told_when() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down()]);
    let config = gated(config(&upstream, json!({})), 0);
    let node = Setup::with(&config).env(THRESHOLD, "2").start().await;
    for n in 0..2 {
        assert_eq!(excluded(&node, n).await, None, "{n}");
    }
    let answer = ask(&node, "alone").await.expect_status(503);
    let told = answer.retry_after().unwrap();
    assert!((580..=600).contains(&told), "{told}");
    assert!(
        answer.text().contains("provider_cooldown"),
        "{}",
        answer.text()
    );
    assert_eq!(upstream.count("a"), 2);
}

#[tokio::test]
async fn it_outlives_a_crash_and_ends_with_a_reset() {
    let upstream = Upstream::start().await;
    upstream.script("a", [down(), down(), Dialect::Chat.ok("pong")]);
    let config = gated(config(&upstream, json!({})), 0);
    let mut node = Setup::with(&config).env(THRESHOLD, "2").start().await;
    for n in 0..2 {
        assert_eq!(excluded(&node, n).await, None, "{n}");
    }
    node.kill_9().await;
    let node = node.start_again().await;
    excluded(&node, 2).await.expect("forgotten");
    let all = json!({"scope": "all"});
    let reset = node.post("/api/resilience/reset", &all);
    reset.send().await.expect_status(200);
    assert_eq!(excluded(&node, 3).await, None);
    assert_eq!(upstream.count("a"), 3);
}

#[tokio::test]
async fn failures_seen_by_different_nodes_add_up_and_all_leave_it_out() {
    let plan = Plan::of(2).env(0, THRESHOLD, "2").env(1, THRESHOLD, "2");
    let cluster = plan
        .start(|upstream| {
            upstream.script("a", [down()]);
            gated(config(upstream, json!({})), 0)
        })
        .await;
    for (n, node) in cluster.nodes.iter().enumerate() {
        assert_eq!(excluded(node, n).await, None, "{n}");
    }
    let fresh = Cell::new(2);
    for node in &cluster.nodes {
        // A node may ask some more before it has heard of the other's failure.
        let entry = eventually("it is left out", || {
            fresh.set(fresh.get() + 1);
            excluded(node, fresh.get())
        })
        .await;
        assert!(left(&entry) > 500_000, "{entry}");
    }
}
