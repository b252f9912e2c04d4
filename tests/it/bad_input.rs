//! Whatever a client sends, it gets a clear answer, and the next client is served.

use std::time::Duration;

use cluster_tests::client::{Call, raw, read_raw};
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually, let_time_pass};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

async fn world(config: impl FnOnce(Config) -> Config) -> (Upstream, Node) {
    let upstream = Upstream::start().await;
    for dialect in Dialect::ALL {
        upstream.script(&dialect.connection("a"), [dialect.ok("pong")]);
    }
    let base = all_providers(&upstream.url(), &["a"], &json!({}));
    let node = Node::start(&config(base)).await;
    (upstream, node)
}

async fn still_serves(node: &Node) {
    for dialect in Dialect::ALL {
        let answer = node.post(dialect.path(), &dialect.ask(false)).send().await;
        answer.expect_status(200);
    }
}

#[tokio::test]
async fn bodies_that_are_no_request_are_400() {
    let (upstream, node) = world(|config| config).await;
    let deep = "[".repeat(200_000);
    let deep_field = format!("{{\"model\":\"chat/m\",\"x\":{deep}");
    for body in [
        "",
        " ",
        "{",
        "[]",
        "null",
        "1",
        "\"model\"",
        "{\"model\"}",
        "{\"model\": }",
        "{\"model\": \"chat/m\",}",
        "{\"model\": \"chat/m\"} trailing",
        "{\"messages\": []}",
        "{\"model\": 7}",
        "{\"model\": null}",
        "{\"model\": [\"chat/m\"]}",
        "{\"model\": {}}",
        "{\"model\": \"chat/m\", \"stream\": \"yes\"}",
        "{\"model\": \"chat/m\", \"stream\": 1}",
        "{'model': 'chat/m'}",
        "model=chat/m",
        "\u{feff}",
        &deep,
        &deep_field,
    ] {
        for dialect in Dialect::ALL {
            let call = Call::new(node.addr(), "POST", dialect.path());
            let answer = call.body("application/json", body.to_owned()).send().await;
            let shown: String = body.chars().take(40).collect();
            assert_eq!(answer.status, 400, "{shown:?}: {}", answer.text());
            let error = answer.json()["error"].clone();
            assert!(
                error["message"]
                    .as_str()
                    .is_some_and(|text| text.len() < 1000),
                "{error}"
            );
            assert!(error["code"].is_string(), "{error}");
        }
    }
    assert_eq!(upstream.requests().len(), 0);
    still_serves(&node).await;
}

#[tokio::test]
async fn bytes_that_are_no_text_and_encodings_that_lie() {
    let (upstream, node) = world(|config| config).await;
    let post = |body: &[u8]| {
        Call::new(node.addr(), "POST", "/v1/chat/completions")
            .body("application/json", body.to_vec())
    };
    post(b"{\"model\": \"chat/\xff\xfe\"}")
        .send()
        .await
        .expect_status(400);
    let plain = Dialect::Chat.ask(false).to_string();
    for encoding in ["gzip", "br", "zstd", "deflate"] {
        let call = post(plain.as_bytes()).header("content-encoding", encoding);
        call.send().await.expect_status(400);
    }
    let unknown = post(plain.as_bytes()).header("content-encoding", "rot13");
    let answer = unknown.send().await;
    assert!(matches!(answer.status, 400 | 415), "{}", answer.text());
    assert_eq!(upstream.requests().len(), 0);
    still_serves(&node).await;
}

#[tokio::test]
async fn absurd_model_names_are_answered_briefly() {
    let (upstream, node) = world(|config| config).await;
    let longest = "x".repeat(256);
    for model in [
        longest.as_str(),
        "no\r\nx-injected: 1",
        "no\u{0}thing",
        "../../etc/passwd",
        "💥",
        "nobody/%00",
        "{{7*7}}",
    ] {
        let body = Dialect::Chat.request(model, false);
        let answer = node.post("/v1/chat/completions", &body).send().await;
        assert_eq!(answer.status, 404, "{}", answer.text());
        assert_eq!(answer.code(), "model_not_found");
        assert!(answer.body.len() < 2000, "{} bytes", answer.body.len());
        assert_eq!(answer.header("x-injected"), None);
    }
    // Such a name would fill the records of locks.
    let body = Dialect::Chat.request(&"x".repeat(257), false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (400, "invalid_model")
    );
    let odd = Dialect::Chat.request("chat/no\r\nx-injected: \u{1}é", false);
    let answer = node
        .post("/v1/chat/completions", &odd)
        .send()
        .await
        .expect_status(200);
    assert_eq!(answer.header("x-injected"), None);
    assert_eq!(
        upstream.request("chat-a", 1).await.json()["model"],
        "no\r\nx-injected: \u{1}é"
    );
}

#[tokio::test]
async fn absurd_heads_are_refused() {
    let (upstream, node) = world(|config| config).await;
    let limit = Duration::from_secs(5);
    let long = "a".repeat(1_000_000);
    let many: String = (0..5000)
        .map(|n| ["x-", &n.to_string(), ": 1\r\n"].concat())
        .collect();
    for head in [
        format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-long: {long}\r\n\r\n"),
        format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\n{many}\r\n"),
        format!("GET /{long} HTTP/1.1\r\nhost: x\r\n\r\n"),
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: ten\r\n\r\n".into(),
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n".into(),
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc".into(),
        "POST /v1/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n".into(),
        "POST /v1/messages HTTP/9.9\r\nhost: x\r\n\r\n".into(),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}".into(),
        "nonsense\r\n\r\n".into(),
    ] {
        let answer = raw(node.addr(), head.as_bytes(), limit).await;
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        assert!(answer.is_empty() || status.starts_with('4') || status == "505", "{answer}");
    }
    assert_eq!(upstream.requests().len(), 0);
    still_serves(&node).await;
}

#[tokio::test]
async fn two_framings_do_not_smuggle_a_second_request() {
    let (upstream, node) = world(|config| config).await;
    let inner = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\
         transfer-encoding: chunked\r\n\r\n0\r\n\r\n{inner}",
        inner.len() + 5
    );
    let answer = raw(node.addr(), head.as_bytes(), Duration::from_secs(2)).await;
    assert!(!answer.contains("HTTP/1.1 200"), "{answer}");
    assert_eq!(upstream.requests().len(), 0);
    still_serves(&node).await;
}

#[tokio::test]
async fn requests_in_one_write_are_answered_in_order() {
    let (_upstream, node) = world(|config| config).await;
    let one = |model: &str| {
        let body = Dialect::Chat.request(model, false).to_string();
        format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
            content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let both = one("chat/m") + &one("no-such-model");
    let mut stream = TcpStream::connect(node.addr()).await.unwrap();
    stream.write_all(both.as_bytes()).await.unwrap();
    let text = read_raw(&mut stream, Duration::from_secs(3)).await;
    let first = text.find("HTTP/1.1 200").expect("no first answer");
    let second = text.find("HTTP/1.1 404").expect("no second answer");
    assert!(first < second, "{text}");
}

#[tokio::test]
async fn half_a_body_and_a_close_reach_nobody() {
    let (upstream, node) = world(|config| config).await;
    for dialect in Dialect::ALL {
        let body = dialect.ask(false).to_string();
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
            content-length: {}\r\n\r\n{}",
            dialect.path(),
            body.len(),
            &body[..body.len() / 2]
        );
        let mut stream = TcpStream::connect(node.addr()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        drop(stream);
    }
    still_serves(&node).await;
    assert_eq!(upstream.requests().len(), 3);
}

#[tokio::test]
async fn a_sender_that_stops_is_told_408() {
    let (upstream, node) = world(|config| config.server("bodyIdleTimeoutMs", json!(300))).await;
    let body = Dialect::Chat.ask(false).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\
        content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let (start, rest) = body.split_at(10);
    let answer = raw(node.addr(), format!("{head}{start}").as_bytes(), SOON).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("\"error\""), "{answer}");

    let mut stream = TcpStream::connect(node.addr()).await.unwrap();
    stream
        .write_all(format!("{head}{start}").as_bytes())
        .await
        .unwrap();
    for byte in rest.as_bytes().chunks(20) {
        let_time_pass(
            Duration::from_millis(100),
            "a slow sender that does not stop",
        )
        .await;
        stream.write_all(byte).await.unwrap();
    }
    let answer = read_raw(&mut stream, Duration::from_secs(3)).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(upstream.requests().len(), 1);
}

#[tokio::test]
async fn many_silent_connections_do_not_keep_others_out() {
    let (_upstream, node) = world(|config| config).await;
    let mut silent = Vec::new();
    for n in 0..300 {
        let mut stream = TcpStream::connect(node.addr()).await.unwrap();
        if n % 2 == 0 {
            let half = b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-le";
            stream.write_all(half).await.unwrap();
        }
        silent.push(stream);
    }
    still_serves(&node).await;
}

#[tokio::test]
async fn an_endless_upstream_answer_is_cut() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({}))
        .server("maxResponseBytes", json!(100_000))
        .no_waiting();
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Dialect::Chat.ok(&"x".repeat(200_000))]);
    let answer = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(false))
        .send()
        .await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert!(answer.body.len() < 2000);
}

#[tokio::test]
async fn state_of_one_request_never_shows_in_another() {
    let (_upstream, node) = world(|config| config).await;
    let mut calls = Vec::new();
    for n in 0..100 {
        let marker = format!("marker-{n}-");
        let broken = format!("{{\"model\": \"{marker}\", \"x\": ");
        let call = Call::new(node.addr(), "POST", "/v1/chat/completions");
        let broken = call.body("application/json", broken);
        calls.push((None, tokio::spawn(broken.try_send())));
        let body = Dialect::Messages.request(&marker, false);
        calls.push((
            Some(marker),
            tokio::spawn(node.post("/v1/messages", &body).try_send()),
        ));
    }
    for (marker, call) in calls {
        let text = call.await.unwrap().unwrap().text();
        let others = text.matches("marker-").count();
        match marker {
            Some(marker) => assert_eq!(others, text.matches(&marker).count(), "{text}"),
            None => assert!(others <= 1, "{text}"),
        }
    }
    eventually("nothing is in flight", || async {
        (node.connection("chat-a").await["inFlight"] == 0).then_some(())
    })
    .await;
}
