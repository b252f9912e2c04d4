//! Leaving a connection alone before its quota is spent, and the early end of that.

use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::now;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

use crate::quota_windows::{HOUR_MS, accounts, ask_codex, codex, commits, window, with};

const MODEL: &str = "gpt-5.4";
const SPARK: &str = "gpt-5.3-codex-spark";

fn on(config: Config) -> Config {
    config.resilience("quotaPreflight", json!({"enabled": true}))
}

/// An answer of codex whose first window is so full and ends in an hour.
fn primary(used: &str) -> Reply {
    let headers = [
        ("x-codex-primary-used-percent", used),
        ("x-codex-primary-reset-after-seconds", "3600"),
        ("x-codex-primary-window-minutes", "300"),
        ("x-codex-secondary-used-percent", "10"),
        ("x-codex-secondary-reset-after-seconds", "36000"),
        ("x-codex-secondary-window-minutes", "10080"),
    ];
    with(Dialect::Responses.ok("pong"), &headers)
}

#[tokio::test]
async fn nobody_is_left_alone_unasked() {
    let upstream = Upstream::start().await;
    let node = Node::start(&codex(&upstream, json!({}), &["a"])).await;
    upstream.script("a", [primary("100")]);
    for _ in 0..3 {
        ask_codex(&node, MODEL).await.expect_status(200);
    }
    assert_eq!(upstream.count("a"), 3);
}

#[tokio::test]
async fn a_window_at_the_cutoff_rests_its_models_until_it_begins_anew() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&on(codex(&upstream, json!({}), &["a", "b"]))).await;
    upstream.script("a", [primary("97.9"), primary("98")]);
    upstream.script("b", [Dialect::Responses.ok("pong")]);
    for _ in 0..2 {
        ask_codex(&node, MODEL).await.expect_status(200);
    }
    assert_eq!(upstream.order(), ["a", "a"]);
    let before = commits(&node).await;
    for _ in 0..3 {
        let answer = ask_codex(&node, "gpt-5.6-luna").await.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    }
    let written = commits(&node).await - before;
    assert!((written - 1.0).abs() < f64::EPSILON, "{written} commits");
    assert_eq!(upstream.count("a"), 2, "nothing was sent");
    let row = node.connection("a").await;
    assert_eq!(row["connectionStatus"], "healthy", "{row}");
    let lock = &row["lockouts"][0];
    assert_eq!(lock["reason"], "quota_exhausted", "{row}");
    assert_eq!(lock["lastErrorType"], "quota_preflight", "{row}");
    let left = lock["remainingMs"].as_u64().unwrap();
    assert!(left.abs_diff(HOUR_MS) < 30_000, "{row}");
    let origin = &lock["quotaPreflight"];
    assert_eq!(origin["window"], "primary", "{row}");
    assert_eq!(origin["windowMs"], 5 * HOUR_MS, "{row}");
    assert_eq!(origin["resetsAt"], window(&row, "primary")["resetsAt"]);

    // The other scope has windows of its own.
    let spark = ask_codex(&node, SPARK).await.expect_status(200);
    assert_eq!(spark.header("x-omniroute-connection"), Some("a"));

    // It outlives the node, whose memory of windows does not.
    node.kill_9().await;
    let node = node.start_again().await;
    let sent = upstream.count("a");
    let answer = ask_codex(&node, MODEL).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    assert_eq!(upstream.count("a"), sent);
}

#[tokio::test]
async fn a_refusal_says_that_nothing_was_sent_and_why() {
    let upstream = Upstream::start().await;
    let config = codex(&upstream, json!({}), &["a"]).resilience(
        "quotaPreflight",
        json!({"enabled": true, "providerWindowDefaults": {"codex": {"primary": 50, "secondary": 0}}}),
    );
    let node = Node::start(&config).await;
    upstream.script("a", [primary("50")]);
    ask_codex(&node, MODEL).await.expect_status(200);
    let refused = ask_codex(&node, MODEL).await.expect_status(429);
    assert_eq!(upstream.count("a"), 1);
    assert!(refused.retry_after().unwrap() > 3_500);
    let trace = node.trace(&refused).await;
    let excluded = &trace["excluded"][0];
    assert_eq!(excluded["reason"], "model_lockout", "{trace}");
    assert_eq!(excluded["detail"], "quota_preflight", "{trace}");
    let warned = node.log().lines();
    let warned = warned.iter().filter(|line| line.contains("little is left"));
    assert_eq!(warned.count(), 0, "half of it is left");

    // An operator's word counts, and what was known is asked for anew.
    let cleared = node.admin_call("DELETE", "/api/resilience/model-cooldowns");
    let cleared = cleared.json(&json!({"all": true})).send().await;
    cleared.expect_status(200);
    ask_codex(&node, MODEL).await.expect_status(200);
}

/// Where no models share a quota, the connection rests.
#[tokio::test]
async fn an_account_rests_as_a_whole() {
    let upstream = Upstream::start().await;
    let more = json!({"auth": "oauth"});
    let config =
        Config::new()
            .no_waiting()
            .provider_with("plan", "anthropic", &upstream.url(), more);
    let node = Node::start(&on(accounts(config, "plan", &["a", "b"]))).await;
    let reset = ((now() + 7_200_000) / 1_000).to_string();
    let headers = [
        ("anthropic-ratelimit-unified-7d-utilization", "0.985"),
        ("anthropic-ratelimit-unified-7d-reset", reset.as_str()),
        ("anthropic-ratelimit-unified-7d_opus-utilization", "1"),
        ("anthropic-ratelimit-unified-7d_opus-reset", reset.as_str()),
    ];
    upstream.script("a", [with(Dialect::Messages.ok("pong"), &headers)]);
    upstream.script("b", [Dialect::Messages.ok("pong")]);
    let ask = async || {
        let body = Dialect::Messages.request("plan/claude-x", false);
        let answer = node.post("/v1/messages", &body).send().await;
        let answer = answer.expect_status(200);
        answer.header("x-omniroute-connection").unwrap().to_owned()
    };
    assert_eq!(ask().await, "a");
    let line = node
        .log()
        .line("the warning", |line| line.contains("little is left"))
        .await;
    assert!(line.contains("7d"), "{line}");
    for _ in 0..3 {
        assert_eq!(ask().await, "b");
    }
    assert_eq!(upstream.count("a"), 1);
    let row = node.connection("a").await;
    assert_eq!(row["connectionStatus"], "cooling_down", "{row}");
    assert_eq!(row["lastErrorType"], "quota_preflight", "{row}");
    assert_eq!(row["lastErrorReason"], "quota_exhausted", "{row}");
    assert_eq!(row["backoffLevel"], 0, "{row}");
    assert_eq!(row["quotaPreflight"]["window"], "7d", "{row}");
    let left = row["cooldownRemainingMs"].as_u64().unwrap();
    assert!(left.abs_diff(2 * HOUR_MS) < 30_000, "{row}");
    let reset = node.post("/api/connections/a/reset", &json!({}));
    reset.send().await.expect_status(200);
    assert_eq!(ask().await, "a", "what was known is forgotten");
}

// === the early end ===

/// The account's live usage: how full the first window is and in how many seconds
/// it begins anew.
fn usage(used: u64, resets_in_s: i64) -> Value {
    let at = |s: i64| now() / 1_000 + s;
    json!({"plan_type": "plus", "rate_limit": {
        "allowed": true,
        "limit_reached": false,
        "primary_window": {"used_percent": used, "limit_window_seconds": 18_000,
            "reset_after_seconds": resets_in_s, "reset_at": at(resets_in_s)},
        "secondary_window": {"used_percent": 11, "limit_window_seconds": 604_800,
            "reset_after_seconds": 36_000, "reset_at": at(36_000)},
    }})
}

fn with_usage(upstream: &Upstream, asked: &Upstream) -> Config {
    let url = format!("http://{}/backend-api/wham/usage?a=b", asked.addr());
    on(codex(upstream, json!({"usageUrl": url}), &["a"]))
}

/// One request that fills the window, and one that meets it.
async fn fill(node: &Node, upstream: &Upstream) {
    upstream.script("a", [primary("99"), Dialect::Responses.ok("pong")]);
    ask_codex(node, MODEL).await.expect_status(200);
    ask_codex(node, MODEL).await.expect_status(429);
}

#[tokio::test]
async fn live_usage_ends_the_rest_early_on_every_node() {
    let asked = Upstream::start().await;
    asked.script("a", [Reply::json(200, &usage(1, 17_900))]);
    let cluster = Cluster::start(2, |upstream| with_usage(upstream, &asked)).await;
    fill(&cluster.nodes[0], &cluster.upstream).await;
    for node in &cluster.nodes {
        eventually("the models may be used again", || async {
            let row = node.connection("a").await;
            row["lockouts"].as_array().unwrap().is_empty().then_some(())
        })
        .await;
    }
    let question = asked.request("a", 1).await;
    assert_eq!(asked.count("a"), 1, "one node asks");
    assert_eq!(question.method, "GET");
    assert_eq!(question.path, "/backend-api/wham/usage?a=b");
    for node in &cluster.nodes {
        // Also where only the old windows are known.
        ask_codex(node, MODEL).await.expect_status(200);
        ask_codex(node, MODEL).await.expect_status(200);
    }
    assert_eq!(asked.count("a"), 1);
}

/// CCD-27: the answer proves nothing, so the rest stays; it is asked for once a minute.
#[tokio::test]
async fn in_doubt_the_rest_stays() {
    let mut reached = usage(1, 17_900);
    reached["rate_limit"]["limit_reached"] = json!(true);
    let mut incomplete = usage(1, 17_900);
    incomplete["rate_limit"]["secondary_window"] = json!({"used_percent": 1});
    let answers = [
        Reply::json(200, &usage(1, 3_500)),
        Reply::json(200, &usage(98, 17_900)),
        Reply::json(200, &reached),
        Reply::json(200, &incomplete),
        Reply::json(500, &usage(1, 17_900)),
        Reply::text(200, "text/html", "<html>"),
    ];
    let worlds = answers.into_iter().map(|answer| async {
        let (upstream, asked) = (Upstream::start().await, Upstream::start().await);
        let told = format!("{answer:?}");
        asked.script("a", [answer]);
        let node = Node::start(&with_usage(&upstream, &asked)).await;
        fill(&node, &upstream).await;
        asked.request("a", 1).await;
        let (mut looks, mut row) = (0, Value::Null);
        while looks < 3 {
            ask_codex(&node, MODEL).await.expect_status(429);
            row = node.connection("a").await;
            looks += 1;
            cluster_tests::wait::let_time_pass(
                std::time::Duration::from_millis(700),
                "a wrong end, or another question, would show",
            )
            .await;
        }
        assert_eq!(row["lockouts"].as_array().unwrap().len(), 1, "{told}");
        assert_eq!(asked.count("a"), 1, "{told}");
    });
    futures_util::future::join_all(worlds).await;
}

/// An answer that comes after the lock became another one changes nothing.
#[tokio::test]
async fn a_late_answer_changes_nothing() {
    let (upstream, asked) = (Upstream::start().await, Upstream::start().await);
    let gate = cluster_tests::reply::Gate::closed();
    asked.script("a", [Reply::json(200, &usage(1, 17_900)).behind(&gate)]);
    let node = Node::start(&with_usage(&upstream, &asked)).await;
    fill(&node, &upstream).await;
    asked.request("a", 1).await;
    // An operator clears it, and an ordinary limit takes its place.
    let cleared = node.admin_call("DELETE", "/api/resilience/model-cooldowns");
    let cleared = cleared.json(&json!({"all": true})).send().await;
    cleared.expect_status(200);
    upstream.script("a", [Reply::limited(600)]);
    ask_codex(&node, MODEL).await.expect_status(429);
    gate.open();
    let row = eventually("the windows of the answer are known", || async {
        let row = node.connection("a").await;
        let known = row["quotaWindows"].as_array().unwrap().iter();
        let new = known.filter(|window| window["usedPercent"] == 1).count();
        (new == 1).then_some(row)
    })
    .await;
    assert_eq!(row["lockouts"][0]["quotaPreflight"], Value::Null, "{row}");
    assert_eq!(row["lockouts"][0]["reason"], "rate_limit_exceeded", "{row}");
    ask_codex(&node, MODEL).await.expect_status(429);
}
