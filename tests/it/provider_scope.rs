//! A failure of the provider: all connections that go the same way rest, those
//! that go another way serve; and what an operator's rule says of all of them.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const PAGE: &str = "<!DOCTYPE html><title>Web server is down</title>";

/// Connections of one provider, in this order.
fn config(upstream: &Upstream, ids: &[&str]) -> Config {
    let config = Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url());
    ids.iter().zip(1_u32..).fold(config, |config, (id, place)| {
        config.connection_with(id, "acme", json!({"priority": place}))
    })
}

async fn ask(node: &Node, model: &str) -> Answer {
    let mut body = Dialect::Chat.ask(false);
    body["model"] = json!(model);
    node.post("/v1/chat/completions", &body).send().await
}

async fn states(node: &Node, ids: &[&str]) -> Vec<(String, u64, u64)> {
    let mut all = Vec::new();
    for id in ids {
        let one = node.connection(id).await;
        let status = one["connectionStatus"].as_str().unwrap().to_owned();
        let left = one["cooldownRemainingMs"].as_u64().unwrap();
        all.push((status, left, one["backoffLevel"].as_u64().unwrap()));
    }
    all
}

/// A base that outlasts a slow machine's look at it.
fn long(config: Config) -> Config {
    config.resilience("connectionCooldown.apikey.baseCooldownMs", json!(60_000))
}

fn unreachable() -> Reply {
    Reply::text(521, "text/html", PAGE)
}

#[tokio::test]
async fn an_unreachable_provider_is_asked_once_for_all() {
    for reply in [
        unreachable(),
        Reply::text(403, "text/html", PAGE),
        Reply::error(403, "no").header("cf-mitigated", "challenge"),
    ] {
        let upstream = Upstream::start().await;
        let ids = ["a", "b", "c"];
        let node = Node::start(&long(config(&upstream, &ids))).await;
        upstream.script_all([reply]);
        let first = ask(&node, "acme/m").await;
        assert!(matches!(first.status, 502 | 503), "{}", first.text());
        assert_eq!(upstream.order(), ["a"], "one call for all three");
        let told = first.retry_after().expect("no Retry-After");
        assert!((50..=60).contains(&told), "{told}");
        let body = first.json();
        assert!(body["diagnostics"].is_object(), "{body}");
        for (status, left, _) in states(&node, &ids).await {
            assert_eq!(status, "cooling_down");
            assert!((50_000..=60_000).contains(&left), "{left}");
        }
        let levels: Vec<u64> = states(&node, &ids).await.iter().map(|one| one.2).collect();
        assert_eq!(levels, [1, 0, 0], "only the one that met it climbs");
        let trace = node.trace(&first).await;
        let shared = &trace["attempts"][0]["shared"];
        assert_eq!(shared["siblings"], json!(["b", "c"]), "{trace}");

        let second = ask(&node, "acme/m").await;
        assert_eq!(second.status, 503, "{}", second.text());
        assert!(second.retry_after().is_some());
        assert_eq!(upstream.order(), ["a"], "nobody is asked in vain");
    }
}

#[tokio::test]
async fn connections_that_go_another_way_serve() {
    let here = Upstream::start().await;
    let there = Upstream::start().await;
    let config = long(config(&here, &["eu", "eu2"])).connection_with(
        "us",
        "acme",
        json!({"priority": 9, "baseUrl": there.url()}),
    );
    let node = Node::start(&config).await;
    here.script_all([Reply::text(522, "text/html", PAGE)]);
    there.script_all([Dialect::Chat.ok("pong")]);
    for _ in 0..2 {
        let answer = ask(&node, "acme/m").await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert_eq!(here.order(), ["eu"]);
    assert_eq!(there.order(), ["us", "us"]);
    let all = states(&node, &["eu", "eu2", "us"]).await;
    let status: Vec<&str> = all.iter().map(|one| one.0.as_str()).collect();
    assert_eq!(status, ["cooling_down", "cooling_down", "healthy"]);
}

#[tokio::test]
async fn a_refused_region_is_left_for_a_day() {
    let here = Upstream::start().await;
    let there = Upstream::start().await;
    let config = config(&here, &["a", "b"]).connection_with(
        "c",
        "acme",
        json!({"priority": 9, "baseUrl": there.url()}),
    );
    let node = Node::start(&config).await;
    let refusal = json!({"error": {"code": "unsupported_country_region_territory",
        "message": "Country, region, or territory not supported"}});
    here.script_all([Reply::json(403, &refusal)]);
    there.script_all([Dialect::Chat.ok("pong")]);
    ask(&node, "acme/m").await.expect_status(200);
    assert_eq!(here.order(), ["a"]);
    for (status, left, _) in states(&node, &["a", "b"]).await {
        assert_eq!(status, "cooling_down");
        assert!((86_300_000..=86_400_000).contains(&left), "{left}");
    }
}

fn rule(scope: &str, more: &Value) -> Value {
    let mut rule = json!({"status": 500, "match": "whole house", "scope": scope});
    rule.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!([rule])
}

fn ruled(config: Config, rule: Value) -> Config {
    config.set(&["settings", "providerErrorRules", "acme"], rule)
}

#[tokio::test]
async fn an_operator_s_provider_is_all_its_connections() {
    let here = Upstream::start().await;
    let there = Upstream::start().await;
    let config = config(&here, &["a", "b"]).connection_with(
        "c",
        "acme",
        json!({"priority": 9, "baseUrl": there.url()}),
    );
    let time = json!({"cooldownMs": 33_000});
    let node = Node::start(&ruled(config, rule("provider", &time))).await;
    let refusal = Reply::error(500, "the whole house is down").header("retry-after", "900");
    here.script_all([refusal]);
    let first = ask(&node, "acme/m").await;
    let told = first.retry_after().expect("no Retry-After");
    assert!((25..=33).contains(&told), "{told}: {}", first.text());
    for (status, left, _) in states(&node, &["a", "b", "c"]).await {
        assert_eq!(status, "cooling_down");
        assert!((20_000..=33_000).contains(&left), "{left}");
    }
    let second = ask(&node, "acme/m").await;
    assert!(second.status >= 429, "{}", second.text());
    assert!(second.retry_after().is_some());
    assert_eq!(
        (here.order(), there.order()),
        (vec!["a".to_owned()], vec![])
    );
}

#[tokio::test]
async fn an_operator_s_time_holds_for_every_scope() {
    for scope in ["model", "connection", "provider"] {
        let upstream = Upstream::start().await;
        let time = json!({"cooldownMs": 20_000});
        let config = ruled(config(&upstream, &["a"]), rule(scope, &time));
        let node = Node::start(&config).await;
        let refusal = Reply::error(500, "the whole house is down").header("retry-after", "50");
        upstream.script("a", [refusal]);
        ask(&node, "acme/m").await;
        let a = node.connection("a").await;
        let left = match scope {
            "model" => &a["lockouts"][0]["remainingMs"],
            _ => &a["cooldownRemainingMs"],
        };
        let left = left.as_u64().unwrap();
        assert!((10_000..=20_000).contains(&left), "{scope}: {a}");
    }
}

#[tokio::test]
async fn a_model_that_an_account_lacks_is_asked_for_once() {
    let upstream = Upstream::start().await;
    let ids = ["a", "b", "c"];
    let node = Node::start(&config(&upstream, &ids)).await;
    let refusal = "Your organization does not have access to model m";
    for id in ids {
        upstream.script(id, [Reply::error(403, refusal), Dialect::Chat.ok("pong")]);
    }
    ask(&node, "acme/m").await.expect_status(404);
    for _ in 0..5 {
        let refused = ask(&node, "acme/m").await;
        assert!(refused.status >= 400, "{}", refused.text());
    }
    assert_eq!(upstream.order(), ids, "once each");
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy");
    assert_eq!(a["lockouts"][0]["reason"], "forbidden", "{a}");
    ask(&node, "acme/other").await.expect_status(200);
}

#[tokio::test]
async fn a_feature_that_a_model_lacks_locks_nobody_out() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &["a"])).await;
    let refusal = Reply::error(404, "No endpoints found that support image input");
    upstream.script("a", [refusal, Dialect::Chat.ok("pong")]);
    let refused = ask(&node, "acme/m").await;
    assert!(matches!(refused.status, 400 | 404), "{}", refused.text());
    ask(&node, "acme/m").await.expect_status(200);
}

#[tokio::test]
async fn a_499_is_nobody_s() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream, &["a", "b"])).await;
    upstream.script("a", [Reply::error(499, "client closed request")]);
    upstream.script("b", [Dialect::Chat.ok("pong"), Reply::error(499, "gone")]);
    ask(&node, "acme/m").await.expect_status(200);
    ask(&node, "acme/m").await.expect_status(502);
    for (status, ..) in states(&node, &["a", "b"]).await {
        assert_eq!(status, "healthy");
    }
}

#[tokio::test]
async fn a_bare_403_is_no_ban() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .no_waiting()
        .provider_with("acme", "openai", &upstream.url(), json!({"auth": "oauth"}))
        .connection_with("a", "acme", json!({"oauth": {"accessToken": "key-a"}}));
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::text(403, "text/plain", "")]);
    let refused = ask(&node, "acme/m").await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    let left = a["cooldownRemainingMs"].as_u64().unwrap();
    assert!((290_000..=300_000).contains(&left), "{a}");
}
