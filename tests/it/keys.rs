//! Clients' keys: who may call, and what.

use cluster_tests::client::Call;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::upstream::Upstream;
use serde_json::json;

async fn world(upstream: &Upstream, dialect_keys: Config) -> Node {
    for dialect in Dialect::ALL {
        for short in ["a", "b"] {
            upstream.script(&dialect.connection(short), [dialect.ok(short)]);
        }
    }
    Node::start(&dialect_keys).await
}

#[tokio::test]
async fn without_a_key_or_with_a_bad_one_it_is_401() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a", "b"], &json!({})).api_key(
        "team",
        "the-teams-key",
        json!({}),
    );
    let node = world(&upstream, config).await;
    for dialect in Dialect::ALL {
        let ask = || node.post(dialect.path(), &dialect.ask(false));
        for call in [
            ask(),
            ask().bearer("another-key"),
            ask().bearer(""),
            ask().header("x-api-key", "another-key"),
            ask().header("authorization", "Basic the-teams-key"),
            ask().bearer(&"x".repeat(5000)),
        ] {
            let answer = call.send().await;
            assert_eq!(answer.status, 401, "{}", answer.text());
            assert!(answer.json()["error"]["code"].is_string());
        }
        for call in [
            ask().bearer("the-teams-key"),
            ask().header("x-api-key", "the-teams-key"),
            ask().header("authorization", "bearer the-teams-key"),
        ] {
            call.send().await.expect_status(200);
        }
    }
    node.get("/v1/models").send().await.expect_status(401);
    let models = node.get("/v1/models").bearer("the-teams-key");
    models.send().await.expect_status(200);
    node.get("/healthz").send().await.expect_status(200);
    assert_eq!(upstream.requests().len(), 9);
}

#[tokio::test]
async fn a_key_reaches_only_its_models() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({}))
        .combo("fast", &["chat/demo-model"])
        .api_key(
            "team",
            "k1",
            json!({"allowedModels": ["fast", "chat/small"]}),
        )
        .api_key("free", "k2", json!({"allowedModels": []}));
    let node = world(&upstream, config).await;
    let ask = |model: &str, key: &str| {
        let body = Dialect::Chat.request(model, false);
        node.post("/v1/chat/completions", &body).bearer(key)
    };
    for (model, key, status) in [
        ("fast", "k1", 200),
        ("chat/small", "k1", 200),
        ("chat/demo-model", "k1", 403),
        ("chat/demo-model", "k2", 200),
    ] {
        let answer = ask(model, key).send().await;
        assert_eq!(answer.status, status, "{model} {key}: {}", answer.text());
    }
    let listed = node.get("/v1/models").bearer("k1").send().await.text();
    assert!(listed.contains("fast"), "{listed}");
}

#[tokio::test]
async fn a_key_reaches_only_its_connections() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a", "b"], &json!({}))
        .combo("only-a", &["chat/demo-model@chat-a"])
        .api_key("team", "k1", json!({"allowedConnections": ["chat-b"]}))
        .api_key("nobody", "k2", json!({"allowedConnections": []}));
    let node = world(&upstream, config).await;
    let ask = |model: &str, key: &str| {
        let body = Dialect::Chat.request(model, false);
        node.post("/v1/chat/completions", &body).bearer(key)
    };
    for _ in 0..3 {
        let answer = ask("chat/demo-model", "k1").send().await.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("chat-b"));
    }
    ask("only-a", "k1").send().await.expect_status(403);
    ask("chat/demo-model", "k2").send().await.expect_status(403);
    assert_eq!(upstream.count("chat-a"), 0);
}

#[tokio::test]
async fn a_loopback_listener_without_keys_takes_every_caller() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({}));
    let node = world(&upstream, config).await;
    let body = Dialect::Chat.ask(false);
    let ask = || node.post("/v1/chat/completions", &body);
    ask().send().await.expect_status(200);
    ask().bearer("anything").send().await.expect_status(200);
}

#[tokio::test]
async fn other_origins_are_not_invited() {
    let node = Node::start(&Config::new()).await;
    for path in ["/v1/chat/completions", "/api/resilience/connections"] {
        let answer = Call::new(node.addr(), "OPTIONS", path)
            .header("origin", "https://evil.example")
            .header("access-control-request-method", "POST")
            .send()
            .await;
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}
