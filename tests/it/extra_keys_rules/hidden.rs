//! Extra keys are secrets: they are nowhere but in the requests to their
//! upstream.

use std::fmt::Write as _;
use std::time::Duration;

use cluster_tests::cluster::Plan;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::json;

/// Long enough that nothing else is like them by chance.
const SECRETS: [&str; 3] = [
    "key-first-9f1c2d3e4b5a",
    "key-second-7a6b5c4d3e2f",
    "key-third-0d1e2f3a4b5c",
];

fn scripted(key: &str) -> &str {
    key.trim_start_matches("key-")
}

fn config(upstream: &Upstream) -> Config {
    let own = json!({"priority": 1, "models": ["m"], "apiKey": SECRETS[0],
        "providerSpecificData": {"extraApiKeys": &SECRETS[1..]}});
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", own)
        .connection_with("b", "acme", json!({"priority": 2, "models": ["m"]}))
}

fn expect_none(place: &str, text: &str) {
    assert!(!text.is_empty(), "nothing in {place}");
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} in {place}: {text}");
    }
}

/// Has every key refused in words that repeat it; what the client was told.
async fn provoke(node: &Node, upstream: &Upstream) -> String {
    let mut told = String::new();
    for status in [401, 403, 429, 500, 400] {
        for key in SECRETS {
            let words = format!("Incorrect API key: {key}. Your account has been suspended");
            upstream.script(scripted(key), [Reply::error(status, &words)]);
        }
        for stream in [false, true] {
            let reset = node.admin_call("POST", "/api/connections/a/reset");
            reset.send().await.expect_status(200);
            let body = Dialect::Chat.request("acme/m", stream);
            let answer = node.post("/v1/chat/completions", &body).send().await;
            write!(told, "{:?}{}", answer.headers, answer.text()).unwrap();
        }
        let tested = node.admin_call("POST", "/api/connections/a/test");
        told += &tested.send().await.text();
    }
    told
}

/// Everything that management and metrics tell.
async fn shown(node: &Node) {
    for path in [
        "/api/resilience/connections",
        "/api/resilience",
        "/api/settings",
        "/api/requests",
        "/api/nodes",
        "/api/monitoring/health",
        "/metrics",
        "/readyz",
    ] {
        let answer = node.admin_call("GET", path).send().await;
        expect_none(path, &answer.text());
    }
    let list = node.admin_get("/api/requests").await;
    for request in list["requests"].as_array().unwrap() {
        let path = format!("/api/requests/{}", request["id"].as_str().unwrap());
        let answer = node.admin_call("GET", &path).send().await;
        expect_none(&path, &answer.text());
    }
}

#[tokio::test]
async fn they_are_in_no_answer_log_record_metric_or_store() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&config(&upstream)).env("RUST_LOG", "trace");
    let mut node = setup.start().await;
    let mut changes = node.admin_call("GET", "/api/events").open().await;
    expect_none("an answer", &provoke(&node, &upstream).await);
    for key in SECRETS {
        assert!(upstream.count(scripted(key)) > 0, "{key} was not used");
    }
    shown(&node).await;
    let reading = changes.read_until("\"a\"");
    cluster_tests::wait::within(Duration::from_secs(20), "changes are told", reading).await;
    expect_none("the changes", &changes.text());
    drop(changes);
    node.stop().await;
    expect_none("the log", &node.log().text());
    let dir = node.setup().dir().join("omniroute-data");
    for entry in std::fs::read_dir(dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for secret in SECRETS {
            let mut windows = bytes.windows(secret.len());
            let found = windows.any(|at| at == secret.as_bytes());
            assert!(!found, "{secret} in the store");
        }
    }
}

#[tokio::test]
async fn they_are_not_in_redis_either() {
    let cluster = Plan::of(2).start(config).await;
    expect_none(
        "an answer",
        &provoke(&cluster.nodes[0], &cluster.upstream).await,
    );
    eventually("the other node heard of it", || async {
        let a = cluster.nodes[1].connection("a").await;
        (a["connectionStatus"] != "healthy" || a["keys"]["usable"] != 3).then_some(())
    })
    .await;
    shown(&cluster.nodes[1]).await;
    let contents = cluster.redis.contents().await;
    expect_none("Redis", &contents);
    // Nor anything that a key could be guessed from.
    for secret in SECRETS {
        let part = &scripted(secret)[scripted(secret).len() - 8..];
        assert!(!contents.contains(part), "{part} in Redis: {contents}");
    }
}
