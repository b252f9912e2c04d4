//! What somebody who means harm, or a careless tool, may try.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::{Seen, Upstream};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

fn one(upstream: &Upstream) -> Config {
    Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection("a", "acme")
        .no_waiting()
}

async fn ask(node: &Node, stream: bool) -> cluster_tests::client::Answer {
    let body = Dialect::Chat.request("acme/m", stream);
    node.post("/v1/chat/completions", &body).send().await
}

#[tokio::test]
async fn an_emptied_file_does_not_open_the_door() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Dialect::Chat.ok("pong")]);
    let config = one(&upstream)
        .server("adminToken", json!("the-admin-token"))
        .api_key("team", "the-teams-key", json!({}));
    let setup = Setup::with(&config);
    let node = setup.start().await;
    let keyless = one(&upstream)
        .server("adminToken", json!("the-admin-token"))
        .to_yaml();
    let tokenless = one(&upstream)
        .api_key("team", "the-teams-key", json!({}))
        .to_yaml();
    for (text, word) in [
        ("", "the file is empty"),
        ("# soon\n\n", "the file is empty"),
        (keyless.as_str(), "apiKeys is gone"),
        (tokenless.as_str(), "adminToken is gone"),
    ] {
        std::fs::write(setup.file(), text).unwrap();
        let told = |line: &str| line.contains(word);
        node.log().line("the change is refused", told).await;
        let body = Dialect::Chat.request("simulated/ok", false);
        let call = node.post("/v1/chat/completions", &body);
        call.send().await.expect_status(401);
        let call = node.get("/api/resilience/connections");
        call.send().await.expect_status(401);
        let body = Dialect::Chat.request("acme/m", false);
        let call = node.post("/v1/chat/completions", &body);
        call.bearer("the-teams-key").send().await.expect_status(200);
    }
}

#[tokio::test]
async fn a_request_that_an_upstream_took_is_not_sent_again() {
    for broken in [
        Reply::nothing(Finish::Close),
        Reply::nothing(Finish::Reset),
        Reply::wire(b"NOT HTTP\r\n\r\n"),
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&one(&upstream)).await;
        upstream.script("a", [broken]);
        let answer = ask(&node, false).await;
        assert!(answer.status >= 500, "{}", answer.text());
        assert_eq!(upstream.count("a"), 1);
        assert_eq!(answer.header("x-omniroute-attempts"), Some("1"));
    }
}

#[tokio::test]
async fn an_upstream_that_repeats_the_key_does_not_leak_it() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"apiKey": "PLAINSECRET7"}))
        .no_waiting();
    let setup = Setup::with(&config);
    let mut node = setup.start().await;
    let mut told = String::new();
    let in_code = json!({"error": {"message": "no", "code": "PLAINSECRET7"}});
    let after = Reply::sse().send(&Dialect::Chat.content("hel"));
    for (reply, stream) in [
        (Reply::error(400, "bad PLAINSECRET7"), false),
        (Reply::text(400, "text/plain", "bad PLAINSECRET7"), false),
        (Reply::json(400, &in_code), false),
        (after.send(&format!("data: {in_code}\n\n")), true),
        (
            Dialect::Chat.ok("pong").header("x-echo", "PLAINSECRET7"),
            false,
        ),
    ] {
        upstream.script_all([reply]);
        let reset = json!({"scope": "all"});
        let reset = node.post("/api/resilience/reset", &reset);
        reset.send().await.expect_status(200);
        let answer = ask(&node, stream).await;
        told.extend([format!("{:?}", answer.headers), answer.text()]);
        told += &node.admin_get("/api/requests").await.to_string();
        told += &node
            .admin_get("/api/resilience/connections")
            .await
            .to_string();
    }
    let seen = upstream.requests();
    assert_eq!(seen.len(), 5);
    let used = |one: &Arc<Seen>| one.header("authorization") == Some("Bearer PLAINSECRET7");
    assert!(seen.iter().all(used), "the key was not used");
    node.stop().await;
    node.log().closed().await;
    told += &node.log().text();
    assert!(!told.contains("PLAINSECRET7"), "{told}");
}

#[tokio::test]
async fn a_page_of_another_site_is_turned_away() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Dialect::Chat.ok("pong")]);
    let node = Node::start(&one(&upstream)).await;
    let body = Dialect::Chat.request("acme/m", false);
    for (name, value, status) in [
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("sec-fetch-site", "cross-site", 403),
        ("origin", "http://localhost:3000", 200),
        ("origin", "http://127.0.0.1", 200),
        ("sec-fetch-site", "same-origin", 200),
    ] {
        let call = node.post("/v1/chat/completions", &body).header(name, value);
        call.send().await.expect_status(status);
        let call = node.post("/api/connections/a/reset", &json!({}));
        call.header(name, value).send().await.expect_status(status);
    }
    assert_eq!(upstream.count("a"), 3);
}

#[tokio::test]
async fn an_inflated_body_is_stopped_at_its_limit() {
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    let block = vec![b'x'; 1 << 20];
    for _ in 0..200 {
        bomb.write_all(&block).unwrap();
    }
    let bomb = bomb.finish().unwrap();
    let config = Config::new().server("maxBodyBytes", json!(1 << 20));
    let node = Node::start(&config).await;
    let before = resident(&node).await;
    for _ in 0..5 {
        let call = node.post("/v1/chat/completions", &json!({}));
        let call = call.body("application/json", bomb.clone());
        let call = call.header("content-encoding", "gzip");
        call.send().await.expect_status(413);
    }
    let peak = std::fs::read_to_string(format!("/proc/{}/status", node.process_id())).unwrap();
    let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak: u64 = peak
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    assert!(
        peak * 1024 < before + (32 << 20),
        "{peak} kB from {before} bytes"
    );
}

async fn resident(node: &Node) -> u64 {
    let text = node.get("/metrics").send().await.text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_time_limit_is_what_it_says() {
    let never = Gate::closed();
    for (timeouts, stream) in [
        (json!({"connectMs": 60_000, "responseHeadersMs": 300}), true),
        (json!({"connectMs": 60_000, "totalMs": 300}), false),
    ] {
        let upstream = Upstream::start().await;
        let config = Config::new()
            .provider_with(
                "acme",
                "openai",
                &upstream.url(),
                json!({"timeouts": timeouts}),
            )
            .connection("a", "acme")
            .no_waiting();
        let node = Node::start(&config).await;
        upstream.script("a", [Dialect::Chat.ok("late").behind(&never)]);
        let answer = ask(&node, stream).await.expect_status(504);
        // Far below the connect limit that used to be added.
        assert!(answer.took < Duration::from_secs(30), "{:?}", answer.took);
    }
}

#[tokio::test]
async fn a_plain_answer_that_is_not_text_is_no_answer() {
    let upstream = Upstream::start().await;
    let config = one(&upstream).connection_with("b", "acme", json!({"priority": 2}));
    let node = Node::start(&config).await;
    let mut body = Dialect::Chat.ok("pong").data();
    let at = body.windows(4).position(|four| four == b"pong").unwrap();
    body[at] = 0xFF;
    upstream.script("a", [Reply::bytes(200, "application/json", &body)]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let answer = ask(&node, false).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
}
