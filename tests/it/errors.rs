//! Errors a client meets: each in the shape of the protocol it called.

use cluster_tests::client::{Answer, Call};
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, add_provider, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::json;

/// Checks the shape of an error, and what every error has.
fn expect_shape(dialect: Dialect, answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{dialect:?}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let id = answer.header("x-request-id").expect("no x-request-id");
    let body = answer.json();
    let error = &body["error"];
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty()),
        "{body}"
    );
    assert!(error["code"].is_string(), "{body}");
    if dialect == Dialect::Messages {
        assert_eq!(body["type"], "error", "{body}");
        assert_eq!(body["request_id"], id, "{body}");
        let wanted = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            529 => "overloaded_error",
            _ => "api_error",
        };
        assert_eq!(error["type"], wanted, "{body}");
    } else {
        assert_eq!(body.get("type"), None, "{body}");
        assert!(error["type"].is_string(), "{body}");
        assert!(error.get("param").is_some(), "{body}");
    }
}

#[tokio::test]
async fn an_unknown_model_is_404_model_not_found() {
    let upstream = Upstream::start().await;
    let node = Node::start(&all_providers(&upstream.url(), &["a"], &json!({}))).await;
    for dialect in Dialect::ALL {
        for model in ["no-such-model", "nobody/demo-model", "", "chat/", "/"] {
            let body = dialect.request(model, true);
            let answer = node.post(dialect.path(), &body).send().await;
            if model.is_empty() || model.contains("chat/") || model == "/" {
                assert!(
                    matches!(answer.status, 400 | 404),
                    "{model:?}: {}",
                    answer.text()
                );
                expect_shape(dialect, &answer, answer.status);
            } else {
                expect_shape(dialect, &answer, 404);
                assert_eq!(answer.code(), "model_not_found");
            }
        }
    }
    assert_eq!(upstream.requests().len(), 0);
}

#[tokio::test]
async fn the_wrong_protocol_is_400_and_names_the_right_one() {
    let upstream = Upstream::start().await;
    let node = Node::start(&all_providers(&upstream.url(), &["a"], &json!({}))).await;
    let offered = [
        (Dialect::Chat, "chat/completions", "chat_completions"),
        (Dialect::Responses, "responses", "responses"),
        (Dialect::Messages, "messages", "messages"),
    ];
    for called in Dialect::ALL {
        for (serving, path, name) in offered {
            if called == serving {
                continue;
            }
            let body = called.request(&serving.model(), false);
            let answer = node.post(called.path(), &body).send().await;
            expect_shape(called, &answer, 400);
            let message = answer.json()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned();
            let named = message.contains(path) || message.contains(name);
            assert!(named, "{called:?} to {serving:?}: {message}");
        }
    }
    assert_eq!(upstream.requests().len(), 0);
}

#[tokio::test]
async fn a_combo_skips_targets_of_another_protocol() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({}))
        .combo("mixed", &["messages/m", "chat/m"])
        .combo("foreign", &["messages/m"]);
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let body = Dialect::Chat.request("mixed", false);
    let answer = node
        .post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("chat-a"));
    let body = Dialect::Chat.request("foreign", false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    expect_shape(Dialect::Chat, &answer, 400);
}

#[tokio::test]
async fn bodies_beyond_the_limit_are_413() {
    let upstream = Upstream::start().await;
    let config =
        all_providers(&upstream.url(), &["a"], &json!({})).server("maxBodyBytes", json!(10_000));
    let node = Node::start(&config).await;
    for dialect in Dialect::ALL {
        upstream.script(&dialect.connection("a"), [dialect.ok("pong")]);
        let mut body = dialect.ask(false);
        body["padding"] = json!("x".repeat(9_000));
        let answer = node.post(dialect.path(), &body).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        body["padding"] = json!("x".repeat(10_000));
        let answer = node.post(dialect.path(), &body).send().await;
        expect_shape(dialect, &answer, 413);
    }
    assert_eq!(upstream.requests().len(), 3);
}

#[tokio::test]
async fn a_small_body_that_inflates_beyond_the_limit_is_413() {
    use std::io::Write;
    let upstream = Upstream::start().await;
    let config =
        all_providers(&upstream.url(), &["a"], &json!({})).server("maxBodyBytes", json!(1_000_000));
    let node = Node::start(&config).await;
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let mut body = Dialect::Chat.ask(false);
    body["padding"] = json!("x".repeat(50_000_000));
    writer.write_all(body.to_string().as_bytes()).unwrap();
    let call = Call::new(node.addr(), "POST", "/v1/chat/completions")
        .body("application/json", writer.finish().unwrap())
        .header("content-encoding", "gzip");
    expect_shape(Dialect::Chat, &call.send().await, 413);
    assert_eq!(upstream.requests().len(), 0);
}

#[tokio::test]
async fn a_refused_request_keeps_the_upstreams_words_and_harms_nobody() {
    let upstream = Upstream::start().await;
    let node = Node::start(&all_providers(&upstream.url(), &["a", "b"], &json!({}))).await;
    for dialect in Dialect::ALL {
        let id = dialect.connection("a");
        let refused = match dialect {
            Dialect::Messages => Reply::json(
                400,
                &json!({"type": "error", "error": {
                "type": "invalid_request_error", "message": "the colour must be green"}}),
            ),
            Dialect::Chat | Dialect::Responses => Reply::json(
                400,
                &json!({"error": {
                "message": "the colour must be green", "type": "invalid_request_error",
                "param": "colour", "code": "bad_colour"}}),
            ),
        };
        upstream.script(&id, [refused]);
        for stream in [false, true] {
            let answer = node.post(dialect.path(), &dialect.ask(stream)).send().await;
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert!(
                answer.text().contains("the colour must be green"),
                "{}",
                answer.text()
            );
            assert!(answer.json()["error"].is_object());
        }
        assert_eq!(upstream.count(&id), 2);
        assert_eq!(upstream.count(&dialect.connection("b")), 0);
        assert_eq!(node.connection(&id).await["connectionStatus"], "healthy");
    }
}

#[tokio::test]
async fn failures_of_the_last_target_come_in_the_clients_shape() {
    let upstream = Upstream::start().await;
    let html = "<html><body>acme-internal-gateway 10.1.2.3</body></html>";
    for dialect in Dialect::ALL {
        for (reply, status) in [
            (Reply::error(500, "boom"), 500..600),
            (Reply::text(502, "text/html", html), 500..600),
            (Reply::limited(30), 429..430),
            (Reply::text(200, "text/html", html), 500..600),
        ] {
            let config = add_provider(Config::new(), dialect, &upstream.url(), &["a"], json!({}));
            let node = Node::start(&config.no_waiting()).await;
            upstream.script(&dialect.connection("a"), [reply]);
            let answer = node.post(dialect.path(), &dialect.ask(true)).send().await;
            assert!(
                status.contains(&answer.status),
                "{}: {}",
                answer.status,
                answer.text()
            );
            expect_shape(dialect, &answer, answer.status);
            assert!(
                !answer.text().contains("acme-internal"),
                "{}",
                answer.text()
            );
            if answer.status == 429 {
                assert!((29..=30).contains(&answer.retry_after().unwrap()));
            }
        }
    }
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist() {
    let node = Node::start(&Config::new()).await;
    for (method, path, status) in [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/messages", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/chat/completions/more", 404),
        ("POST", "/v2/chat/completions", 404),
    ] {
        let answer = Call::new(node.addr(), method, path).send().await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        assert!(
            answer.json()["error"]["message"].is_string(),
            "{}",
            answer.text()
        );
        if status == 405 {
            assert!(answer.header("allow").is_some(), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn models_are_listed_for_both_kinds_of_clients() {
    let config = Config::new()
        .provider("acme", "openai", "http://127.0.0.1:1/v1")
        .connection_with("a", "acme", json!({"models": ["large", "small"]}))
        .combo("fast", &["acme/small"]);
    let node = Node::start(&config).await;
    for path in ["/v1/models", "/api/v1/models"] {
        let answer = node.get(path).send().await.expect_status(200).json();
        assert_eq!(answer["object"], "list");
        let data = answer["data"].as_array().unwrap();
        let ids: Vec<&str> = data.iter().filter_map(|one| one["id"].as_str()).collect();
        for id in ["fast", "acme/large", "acme/small"] {
            assert!(ids.contains(&id), "{id} not in {ids:?}");
        }
        for one in data {
            assert_eq!(one["object"], "model");
            assert!(
                one["owned_by"].is_string() && one["created"].is_u64(),
                "{one}"
            );
        }
        assert!(!ids.iter().any(|id| id.starts_with("openai/")), "{ids:?}");
    }
}
