//! Paths and methods: what is not there is refused in the caller's shape and
//! remembered, and HEAD is GET without the body.

use std::time::Duration;

use cluster_tests::client::{Answer, Call, raw};
use cluster_tests::config::Config;
use cluster_tests::metrics::Exposition;
use cluster_tests::node::Node;
use serde_json::{Value, json};

async fn call(node: &Node, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let call = Call::new(node.addr(), method, path);
    let add = |call: Call, (name, value): &(&str, &str)| call.header(name, value);
    headers.iter().fold(call, add).send().await
}

fn is_anthropic(body: &Value) -> bool {
    let wrapped = body["type"] == "error";
    assert_eq!(wrapped, body["error"].get("param").is_none(), "{body}");
    wrapped
}

#[tokio::test]
async fn what_is_not_there_is_remembered_in_the_callers_shape() {
    let node = Node::start(&Config::new()).await;
    let version = ("anthropic-version", "2023-06-01");
    for (method, path, headers, status, anthropic) in [
        ("GET", "/v1/chat/completions", &[][..], 405, false),
        ("HEAD", "/v1/responses", &[], 405, false),
        ("DELETE", "/v1/messages", &[], 405, true),
        ("POST", "/v1/messages/count_tokens", &[], 404, true),
        ("POST", "/api/v1/messages/batches", &[], 404, true),
        ("POST", "/v1/models", &[], 405, false),
        ("POST", "/v1/models", &[version], 405, true),
        ("GET", "/v1/complete", &[version], 404, true),
        ("GET", "/v1/nothing", &[], 404, false),
        ("POST", "/chat/completions", &[], 404, false),
        ("POST", "/v2/chat/completions", &[], 404, false),
    ] {
        let what = format!("{method} {path}");
        let answer = call(&node, method, path, headers).await;
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        let id = answer.header("x-request-id").unwrap_or_default();
        assert!(!id.is_empty(), "{what}");
        let code = if status == 405 {
            assert!(answer.header("allow").is_some(), "{what}");
            "method_not_allowed"
        } else {
            "not_found"
        };
        if method != "HEAD" {
            assert_eq!(answer.code(), code, "{what}");
            assert_eq!(is_anthropic(&answer.json()), anthropic, "{what}");
            assert_eq!(answer.json()["request_id"], id, "{what}");
        }
        let trace = node.trace(&answer).await;
        assert_eq!(trace["status"], status, "{what}: {trace}");
        assert_eq!(trace["error"]["code"], code, "{what}: {trace}");
        let message = trace["error"]["message"].as_str().unwrap();
        assert!(message.contains(path), "{what}: {message}");
        let of_call = status == 405 && !path.contains("models");
        assert_eq!(trace["protocol"].is_string(), of_call, "{what}: {trace}");
        assert_eq!(trace["outcome"], "error", "{what}: {trace}");
    }
    let all = node.admin_get("/api/requests").await;
    assert_eq!(all["requests"].as_array().unwrap().len(), 11, "{all}");
    let text = node.get("/metrics").send().await.text();
    let metrics = Exposition::parse(&text);
    assert!((metrics.sum("omniroute_requests_total") - 11.0).abs() < 0.1);
}

#[tokio::test]
async fn a_wrong_method_elsewhere_says_which_is_right() {
    let config = Config::new().server("adminToken", json!("the-admin-token"));
    let node = Node::start(&config).await;
    for (method, path, allowed) in [
        ("POST", "/healthz", "GET, HEAD"),
        ("PUT", "/readyz", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("POST", "/api/monitoring/health", "GET, HEAD, DELETE"),
        ("POST", "/api/nodes", "GET, HEAD"),
        ("POST", "/api/events", "GET"),
        ("POST", "/api/requests", "GET, HEAD"),
        ("DELETE", "/api/requests/x", "GET, HEAD"),
        ("POST", "/api/resilience/connections", "GET, HEAD"),
        ("GET", "/api/resilience/reset", "POST"),
        ("GET", "/api/connections/x/reset", "POST"),
    ] {
        let admin = [("authorization", "Bearer the-admin-token")];
        let answer = call(&node, method, path, &admin).await;
        assert_eq!(answer.status, 405, "{method} {path}: {}", answer.text());
        assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
        assert_eq!(answer.code(), "method_not_allowed");
        assert_eq!(
            answer.json()["request_id"],
            answer.header("x-request-id").unwrap()
        );
        if path.starts_with("/api/re") {
            let stranger = call(&node, method, path, &[]).await;
            assert_eq!(stranger.status, 401, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let config = Config::new()
        .provider("acme", "openai", "http://127.0.0.1:1/v1")
        .connection_with("a", "acme", json!({"models": ["large"]}));
    let node = Node::start(&config).await;
    let known = call(&node, "POST", "/v1/nothing", &[("x-request-id", "known")]).await;
    known.expect_status(404);
    for path in [
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/models",
        "/api/v1/models",
        "/v1/models/acme/large",
        "/v1/models/acme/none",
        "/api/monitoring/health",
        "/api/resilience/connections",
        "/api/nodes",
        "/api/requests",
        "/api/requests/known",
        "/api/requests/unknown",
    ] {
        let get = call(&node, "GET", path, &[]).await;
        let head = call(&node, "HEAD", path, &[]).await;
        assert_eq!(head.status, get.status, "{path}");
        assert_eq!(
            head.header("content-type"),
            get.header("content-type"),
            "{path}"
        );
        assert!(!get.body.is_empty() && head.body.is_empty(), "{path}");
        // On the wire there is nothing after the head, whatever its length says.
        let request = format!(
            "HEAD {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            node.addr()
        );
        let wire = raw(node.addr(), request.as_bytes(), Duration::from_secs(20)).await;
        assert!(wire.ends_with("\r\n\r\n"), "{path}: {wire}");
    }
}
