//! Management: who may, and what it says.

use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Reply};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const PATH: &str = "/api/resilience/connections";

async fn status(node: &Node, credential: Option<&str>, host: Option<&str>) -> u16 {
    let mut call = node.admin_call("GET", PATH);
    if let Some(key) = credential {
        call = call.bearer(key);
    }
    if let Some(host) = host {
        call = call.header("host", host);
    }
    call.send().await.status
}

fn keys(config: Config) -> Config {
    config
        .api_key("client", "clients-key", json!({}))
        .api_key(
            "leaser",
            "leasers-key",
            json!({"scopes": ["lease:exclusive"]}),
        )
        .api_key("operator", "operators-key", json!({"scopes": ["manage"]}))
        .api_key("boss", "bosss-key", json!({"scopes": ["admin"]}))
}

#[tokio::test]
async fn with_an_admin_token_it_takes_the_token_or_the_scope() {
    let config = keys(Config::new()).server("adminToken", json!("the-admin-token"));
    let node = Node::start(&config).await;
    assert_eq!(status(&node, None, None).await, 401);
    for (key, wanted) in [
        ("the-admin-token", 200),
        ("operators-key", 200),
        ("bosss-key", 200),
        ("clients-key", 403),
        ("leasers-key", 403),
        ("nobodys-key", 403),
        ("the-admin-toke", 403),
        ("the-admin-token2", 403),
    ] {
        assert_eq!(status(&node, Some(key), None).await, wanted, "{key}");
    }
    let body = Dialect::Chat.request("simulated/ok", false);
    let call = node
        .post("/v1/chat/completions", &body)
        .bearer("the-admin-token");
    assert_eq!(
        call.send().await.status,
        401,
        "the admin token is no client key"
    );
}

#[tokio::test]
async fn without_one_loopback_serves_those_who_are_on_it() {
    let node = Node::start(&keys(Config::new())).await;
    let port = node.addr().port();
    assert_eq!(status(&node, None, None).await, 200);
    for host in ["localhost", "127.0.0.1", "[::1]", "127.0.0.9", "LOCALHOST"] {
        let with_port = format!("{host}:{port}");
        assert_eq!(status(&node, None, Some(host)).await, 200, "{host}");
        assert_eq!(
            status(&node, None, Some(&with_port)).await,
            200,
            "{with_port}"
        );
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "",
    ] {
        let refused = status(&node, None, Some(host)).await;
        assert!(matches!(refused, 400 | 401 | 403), "{host:?}: {refused}");
    }
    assert_eq!(status(&node, Some("clients-key"), None).await, 403);
    assert_eq!(status(&node, Some("nobodys-key"), None).await, 403);
    assert_eq!(status(&node, Some("operators-key"), None).await, 200);
    assert_eq!(
        status(&node, Some("operators-key"), Some("router.example")).await,
        200
    );
}

#[tokio::test]
async fn on_another_address_without_a_token_it_is_off() {
    let config = keys(Config::new()).server("listen", json!("0.0.0.0:0"));
    let node = Node::start(&config).await;
    for (credential, host) in [
        (None, None),
        (None, Some("localhost")),
        (Some("clients-key"), None),
    ] {
        let refused = status(&node, credential, host).await;
        assert!(
            matches!(refused, 401 | 403 | 404),
            "{credential:?} {host:?}: {refused}"
        );
    }
    assert_eq!(status(&node, Some("operators-key"), None).await, 200);
    let said = node.log().text().to_lowercase();
    assert!(said.contains("management"), "{said}");
    node.get("/api/monitoring/health")
        .send()
        .await
        .expect_status(200);
}

#[tokio::test]
async fn every_route_of_it_has_the_same_rule() {
    let config = keys(Config::new()).server("adminToken", json!("the-admin-token"));
    let node = Node::start(&config).await;
    for (method, path) in [
        ("GET", "/api/resilience/connections"),
        ("POST", "/api/resilience/reset"),
        ("POST", "/api/connections/a/reset"),
        ("GET", "/api/nodes"),
        ("GET", "/api/requests"),
        ("GET", "/api/requests/some-id"),
        ("GET", "/api/no-such-thing"),
    ] {
        let call = || node.admin_call(method, path);
        assert_eq!(call().send().await.status, 401, "{method} {path}");
        let refused = call().bearer("clients-key").send().await;
        assert_eq!(refused.status, 403, "{method} {path}");
        let served = call().bearer("the-admin-token").send().await;
        assert!(
            matches!(served.status, 200 | 404),
            "{method} {path}: {}",
            served.text()
        );
    }
}

#[tokio::test]
async fn connections_are_shown_whole() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("fine", "acme", json!({"maxConcurrent": 3, "priority": 2}))
        .connection_with("tired", "acme", json!({"priority": 1}))
        .no_waiting();
    let node = Node::start(&config).await;
    upstream.script("tired", [Reply::limited(60)]);
    upstream.script("fine", [Dialect::Chat.ok("pong")]);
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);

    let fields = [
        "id",
        "provider",
        "connectionStatus",
        "testStatus",
        "rateLimitedUntil",
        "cooldownRemainingMs",
        "backoffLevel",
        "lastErrorType",
        "errorCode",
        "lastErrorAt",
        "hintSource",
        "inFlight",
        "maxConcurrent",
        "breaker",
        "lockouts",
    ];
    let tired = node.connection("tired").await;
    let fine = node.connection("fine").await;
    for connection in [&tired, &fine] {
        for field in fields {
            assert!(
                connection.get(field).is_some(),
                "no {field} in {connection}"
            );
        }
        for field in ["state", "failureCount", "retryAfterMs"] {
            assert!(
                connection["breaker"].get(field).is_some(),
                "no breaker.{field}"
            );
        }
        assert_eq!(connection["provider"], "acme");
        assert!(connection["lockouts"].is_array());
    }
    assert_eq!(fine["connectionStatus"], "healthy");
    assert_eq!(fine["maxConcurrent"], 3);
    assert_eq!(fine["rateLimitedUntil"], Value::Null);
    assert_eq!(fine["inFlight"], 0);
    assert_eq!(tired["connectionStatus"], "cooling_down");
    assert!(
        tired["lastErrorAt"].as_str().unwrap().ends_with('Z'),
        "{tired}"
    );
    assert!(!tired["rateLimitedUntil"].is_null());
}

#[tokio::test]
async fn health_is_public_and_names_nobody() {
    let upstream = Upstream::start().await;
    let config = keys(all_providers(&upstream.url(), &["secretive"], &json!({})))
        .server("adminToken", json!("the-admin-token"))
        .no_waiting();
    let node = Node::start(&config).await;
    upstream.script("chat-secretive", [Reply::limited(60)]);
    let body = Dialect::Chat.ask(false);
    let call = node
        .post("/v1/chat/completions", &body)
        .bearer("clients-key");
    call.send().await.expect_status(429);
    let health = node
        .get("/api/monitoring/health")
        .send()
        .await
        .expect_status(200);
    let text = health.text();
    assert!(!text.contains("secretive"), "{text}");
    for secret in ["the-admin-token", "clients-key"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(health.json()["status"].is_string(), "{text}");
    assert!(text.contains("chat"), "the provider is not named: {text}");
}

#[tokio::test]
async fn the_list_of_requests_is_bounded_and_newest_first() {
    let node = Node::start(&Config::new()).await;
    let ask = |n: usize| {
        let body = Dialect::Chat.request("simulated/ok", false);
        let call = node.post("/v1/chat/completions", &body);
        call.header("x-request-id", &format!("numbered-{n}")).send()
    };
    for n in 0..5 {
        ask(n).await.expect_status(200);
    }
    let list = node.admin_get("/api/requests").await;
    let requests = list["requests"].as_array().expect("no list").clone();
    let ids: Vec<&str> = requests
        .iter()
        .filter_map(|one| one["id"].as_str())
        .collect();
    assert_eq!(
        ids,
        [
            "numbered-4",
            "numbered-3",
            "numbered-2",
            "numbered-1",
            "numbered-0"
        ]
    );
    node.admin_call("GET", "/api/requests/no-such-id")
        .send()
        .await
        .expect_status(404);
    for first in (5..3000).step_by(50) {
        let batch: Vec<_> = (first..first + 50).map(|n| tokio::spawn(ask(n))).collect();
        for one in batch {
            one.await.unwrap().expect_status(200);
        }
    }
    let list = node.admin_get("/api/requests").await;
    let kept = list["requests"].as_array().unwrap().len();
    assert!((5..=2000).contains(&kept), "{kept} requests are kept");
}

#[tokio::test]
async fn a_limit_out_of_bounds_is_refused_not_clamped() {
    let node = Node::start(&Config::new()).await;
    for limit in [
        "5000",
        "1001",
        "0",
        "-1",
        "1.5",
        "ten",
        "",
        "18446744073709551616",
    ] {
        let path = format!("/api/requests?limit={limit}");
        let answer = node.get(&path).send().await.expect_status(400);
        let body = answer.json();
        assert_eq!(body["error"]["param"], "limit", "{limit}: {body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("1 to 1000"), "{limit}: {message}");
    }
    for limit in ["1", "1000"] {
        let path = format!("/api/requests?limit={limit}");
        node.get(&path).send().await.expect_status(200);
    }
}

#[tokio::test]
async fn each_failure_that_marks_a_connection_has_a_type() {
    for (reply, word) in [
        (Reply::error(403, "no"), "auth_error"),
        (Reply::error(408, "late"), "server_error"),
        (Reply::error(418, "odd"), "unknown"),
        (Reply::limited(60), "rate_limited"),
        (Reply::error(500, "boom"), "server_error"),
        (Reply::error(401, "no such key"), "unauthorized"),
        (Reply::nothing(Finish::Reset), "server_error"),
        (Reply::sse().end(Finish::Close), "server_error"),
    ] {
        let upstream = Upstream::start().await;
        let config = all_providers(&upstream.url(), &["a"], &json!({})).no_waiting();
        let node = Node::start(&config).await;
        assert_eq!(
            node.connection("chat-a").await["lastErrorType"],
            Value::Null
        );
        let what = format!("{reply:?}");
        upstream.script("chat-a", [reply]);
        let body = Dialect::Chat.ask(false);
        node.post("/v1/chat/completions", &body).send().await;
        let a = node.connection("chat-a").await;
        assert_eq!(a["lastErrorType"], word, "{what}: {a}");
    }
}

#[tokio::test]
async fn what_is_the_models_marks_the_model() {
    let choice = json!({"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": ""}});
    let empty = json!({"object": "chat.completion", "choices": [choice]});
    for (reply, reason) in [
        (Reply::error(529, "overloaded"), "model_capacity"),
        (Reply::json(200, &empty), "server_error"),
    ] {
        let upstream = Upstream::start().await;
        let config = all_providers(&upstream.url(), &["a"], &json!({})).no_waiting();
        let node = Node::start(&config).await;
        upstream.script("chat-a", [reply]);
        let body = Dialect::Chat.ask(false);
        node.post("/v1/chat/completions", &body).send().await;
        let a = node.connection("chat-a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
        assert_eq!(a["lockouts"][0]["reason"], reason, "{a}");
    }
}
