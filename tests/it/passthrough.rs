//! What goes through untouched, and what never goes through.

use std::io::{Read, Write};

use cluster_tests::client::Call;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::json;

async fn node_for(upstream: &Upstream) -> Node {
    Node::start(&all_providers(&upstream.url(), &["a"], &json!({}))).await
}

#[tokio::test]
async fn whole_answers_go_through_byte_for_byte() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    for dialect in Dialect::ALL {
        let body = dialect.answer("zażółć \u{1f980}").to_string();
        let odd = body.replacen('{', "{ \"x_unknown\" : [1.50, 1e3,\t\"\\u00e9\"],\n ", 1);
        let id = dialect.connection("a");
        upstream.script(&id, [Reply::text(200, "application/json", &odd)]);
        for path in [dialect.path().to_owned(), format!("/api{}", dialect.path())] {
            let answer = node.post(&path, &dialect.ask(false)).send().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.text(), odd);
            assert_eq!(answer.header("content-type"), Some("application/json"));
            assert_eq!(answer.header("x-omniroute-connection"), Some(id.as_str()));
            assert_eq!(answer.header("x-omniroute-provider"), Some(dialect.name()));
            assert_eq!(answer.header("x-omniroute-model"), Some("demo-model"));
            assert_eq!(answer.header("x-omniroute-attempts"), Some("1"));
            assert!(answer.header("x-request-id").is_some());
        }
        let seen = upstream.request(&id, 1).await;
        assert_eq!(seen.path, dialect.path());
        assert_eq!(seen.method, "POST");
    }
}

#[tokio::test]
async fn streams_go_through_byte_for_byte() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    for dialect in Dialect::ALL {
        let mut frames = dialect.stream("zażółć \u{1f980}");
        let extra = frames[0].replacen('{', "{\"x_unknown\" : [1.50, null], ", 1);
        frames[0] = extra;
        upstream.script(&dialect.connection("a"), [Reply::frames(&frames)]);
        let call = node.post(dialect.path(), &dialect.ask(true));
        let stream = call.open().await;
        assert_eq!(stream.status, 200);
        assert_eq!(stream.header("content-type"), Some("text/event-stream"));
        assert_eq!(stream.finish().await, frames.concat());
    }
}

#[tokio::test]
async fn unknown_fields_reach_the_upstream_and_the_prefix_does_not() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    for dialect in Dialect::ALL {
        let id = dialect.connection("a");
        upstream.script(&id, [dialect.ok("pong")]);
        let mut body = dialect.ask(false);
        body["x_future"] = json!({"deep": [1, {"a": null}], "big": 12_345_678_901_234_567_u64});
        body["temperature"] = json!(0.1);
        body["tools"] = json!([{"type": "something_new", "payload": "x"}]);
        body["metadata"] = json!({"model": "not the model"});
        let answer = node.post(dialect.path(), &body).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut wanted = body.clone();
        wanted["model"] = json!("demo-model");
        assert_eq!(upstream.request(&id, 1).await.json(), wanted);
    }
}

#[tokio::test]
async fn odd_numbers_and_key_order_survive() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let body = "{ \"z\":1.0,\"seed\":123456789012345678901234567890,\"tiny\":1e-400,\
        \"model\" : \"chat/demo-model\" ,\"messages\":[{\"role\":\"user\",\"content\":\"\\u0041\"}]}";
    let call = Call::new(node.addr(), "POST", "/v1/chat/completions");
    let call = call.body("application/json", body);
    call.send().await.expect_status(200);
    let seen = upstream.request("chat-a", 1).await;
    let sent = String::from_utf8(seen.body.clone()).unwrap();
    assert_eq!(sent, body.replace("chat/demo-model", "demo-model"));
}

#[tokio::test]
async fn a_bare_model_name_finds_who_serves_it() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"models": ["acme-large"]}))
        .connection_with(
            "b",
            "acme",
            json!({"models": ["acme-small", "org/with-slash"]}),
        );
    let node = Node::start(&config).await;
    upstream.script("a", [Dialect::Chat.ok("a")]);
    upstream.script("b", [Dialect::Chat.ok("b")]);
    let cases = [
        ("acme-large", "a", "acme-large"),
        ("acme-small", "b", "acme-small"),
        ("acme/acme-small", "b", "acme-small"),
        ("org/with-slash", "b", "org/with-slash"),
        ("acme/org/with-slash", "b", "org/with-slash"),
    ];
    for (asked, connection, sent) in cases {
        let body = Dialect::Chat.request(asked, false);
        let answer = node.post("/v1/chat/completions", &body).send().await;
        assert_eq!(answer.status, 200, "{asked}: {}", answer.text());
        assert_eq!(
            answer.header("x-omniroute-connection"),
            Some(connection),
            "{asked}"
        );
        let last = upstream.requests_of(connection).pop().unwrap();
        assert_eq!(last.json()["model"], sent);
    }
    let body = Dialect::Chat.request("acme/unlisted", false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    assert_eq!(
        answer.status,
        404,
        "no connection lists it: {}",
        answer.text()
    );
}

#[tokio::test]
async fn the_upstream_never_sees_what_is_the_clients_own() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    for dialect in Dialect::ALL {
        let id = dialect.connection("a");
        upstream.script(&id, [dialect.ok("pong")]);
        let answer = node
            .post(dialect.path(), &dialect.ask(false))
            .bearer("clients-own-key")
            .header("x-api-key", "clients-own-key")
            .header("cookie", "session=clients-own")
            .header("x-omniroute-budget", "clients-own")
            .header("x-session-id", "clients-own")
            .header("proxy-authorization", "Basic clients-own")
            .header("te", "trailers")
            .header("connection", "x-clients-hop")
            .header("x-clients-hop", "clients-own")
            .header("keep-alive", "timeout=5")
            .header("user-agent", "the-client/1.0")
            .header("anthropic-beta", "a-beta")
            .header("anthropic-version", "2023-06-01")
            .header("x-stainless-lang", "python")
            .send()
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let seen = upstream.request(&id, 1).await;
        assert_eq!(seen.key, format!("key-{id}"));
        for (name, value) in &seen.headers {
            assert!(!value.contains("clients-own"), "{name}: {value}");
            assert!(!name.starts_with("x-omniroute-"), "{name}");
        }
        for name in [
            "cookie",
            "te",
            "keep-alive",
            "proxy-authorization",
            "x-session-id",
        ] {
            assert_eq!(seen.header(name), None, "{name}");
        }
        let host = upstream.addr().to_string();
        assert_eq!(seen.header("host"), Some(host.as_str()));
        if dialect == Dialect::Messages {
            assert_eq!(seen.header("x-api-key"), Some(format!("key-{id}").as_str()));
            assert_eq!(seen.header("authorization"), None);
            assert_eq!(seen.header("anthropic-beta"), Some("a-beta"));
            assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
        }
    }
}

#[tokio::test]
async fn anthropic_gets_a_version_even_when_the_client_sends_none() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    upstream.script("messages-a", [Dialect::Messages.ok("pong")]);
    let body = Dialect::Messages.ask(false);
    node.post("/v1/messages", &body)
        .send()
        .await
        .expect_status(200);
    let seen = upstream.request("messages-a", 1).await;
    assert_eq!(seen.header("anthropic-version"), Some("2023-06-01"));
}

#[tokio::test]
async fn the_client_never_sees_what_is_the_accounts_own() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    let reply = Dialect::Messages
        .ok("pong")
        .header("set-cookie", "account=1")
        .header("anthropic-ratelimit-unified-status", "rejected")
        .header("x-omniroute-connection", "forged")
        .header("keep-alive", "timeout=5")
        .header("x-upstream-extra", "kept");
    upstream.script("messages-a", [reply]);
    let answer = node
        .post("/v1/messages", &Dialect::Messages.ask(false))
        .send()
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for name in [
        "set-cookie",
        "anthropic-ratelimit-unified-status",
        "keep-alive",
    ] {
        assert_eq!(answer.header(name), None, "{name}");
    }
    assert_eq!(answer.header("x-omniroute-connection"), Some("messages-a"));
    assert_eq!(
        answer
            .headers
            .get_all("x-omniroute-connection")
            .iter()
            .count(),
        1
    );
    assert_eq!(answer.headers.get_all("x-request-id").iter().count(), 1);
}

#[tokio::test]
async fn the_clients_request_id_is_kept_when_it_is_harmless() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let ask = |id: &str| {
        let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(false));
        call.header("x-request-id", id).send()
    };
    assert_eq!(
        ask("client-id-1").await.header("x-request-id"),
        Some("client-id-1")
    );
    let long = "x".repeat(4000);
    let answer = ask(&long).await.expect_status(200);
    assert_ne!(answer.header("x-request-id"), Some(long.as_str()));
    let first = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(false))
        .send()
        .await;
    let second = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(false))
        .send()
        .await;
    assert_ne!(first.header("x-request-id"), second.header("x-request-id"));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes)
        .read_to_end(&mut plain)
        .unwrap();
    plain
}

#[tokio::test]
async fn compressed_requests_are_understood() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let body = Dialect::Chat.ask(false);
    let call = Call::new(node.addr(), "POST", "/v1/chat/completions")
        .body("application/json", gzip(body.to_string().as_bytes()))
        .header("content-encoding", "gzip");
    call.send().await.expect_status(200);
    let mut wanted = body;
    wanted["model"] = json!("demo-model");
    assert_eq!(upstream.request("chat-a", 1).await.json(), wanted);
}

#[tokio::test]
async fn compressed_answers_arrive_as_the_client_asked() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    let plain = Dialect::Chat.answer(&"pong ".repeat(2000)).to_string();
    let zipped = Reply::bytes(200, "application/json", &gzip(plain.as_bytes()))
        .header("content-encoding", "gzip");
    let ask = || node.post("/v1/chat/completions", &Dialect::Chat.ask(false));

    upstream.script("chat-a", [zipped]);
    let answer = ask().send().await.expect_status(200);
    assert_eq!(answer.header("content-encoding"), None);
    assert_eq!(answer.text(), plain);
    let answer = ask()
        .header("accept-encoding", "gzip")
        .send()
        .await
        .expect_status(200);
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    assert_eq!(gunzip(&answer.body), plain.as_bytes());

    upstream.script("chat-a", [Reply::text(200, "application/json", &plain)]);
    let answer = ask()
        .header("accept-encoding", "gzip")
        .send()
        .await
        .expect_status(200);
    let body = match answer.header("content-encoding") {
        Some("gzip") => gunzip(&answer.body),
        other => {
            assert_eq!(other, None);
            answer.body.to_vec()
        }
    };
    assert_eq!(body, plain.as_bytes());
}

#[tokio::test]
async fn embeddings_go_through() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    let vector = "{\"object\":\"list\",\"data\":[{\"object\":\"embedding\",\"index\":0,\
        \"embedding\":[0.10,-1e-7]}],\"model\":\"m\",\"usage\":{\"prompt_tokens\":1,\"total_tokens\":1}}";
    upstream.script("chat-a", [Reply::text(200, "application/json", vector)]);
    let body = json!({"model": "chat/embed-1", "input": ["x"], "dimensions": 2});
    let answer = node
        .post("/v1/embeddings", &body)
        .send()
        .await
        .expect_status(200);
    assert_eq!(answer.text(), vector);
    let seen = upstream.request("chat-a", 1).await;
    assert_eq!(seen.path, "/v1/embeddings");
    assert_eq!(
        seen.json(),
        json!({"model": "embed-1", "input": ["x"], "dimensions": 2})
    );
}

#[tokio::test]
async fn large_bodies_go_through_whole() {
    let upstream = Upstream::start().await;
    let node = node_for(&upstream).await;
    let text = "0123456789abcdef".repeat(512 * 1024);
    upstream.script("chat-a", [Dialect::Chat.ok(&text)]);
    let mut body = Dialect::Chat.ask(false);
    body["messages"][0]["content"] = json!(text);
    let answer = node
        .post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);
    assert_eq!(answer.json(), Dialect::Chat.answer(&text));
    let seen = upstream.request("chat-a", 1).await;
    assert_eq!(seen.json()["messages"][0]["content"], text);
}
