//! The memory of request bodies, over all requests of a node.

use std::io::Write as _;

use cluster_tests::client::{Answer, Call, read_raw};
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const KIB: usize = 1 << 10;

/// Room for ten bodies of a hundred kibibytes, and a little.
fn narrow(upstream: &Upstream) -> Config {
    all_providers(&upstream.url(), &["a"], &json!({}))
        .server("maxBodyBytes", json!(512 * KIB))
        .server("maxBodyMemoryBytes", json!(1030 * KIB))
}

async fn holds(node: &Node, bytes: usize) {
    let wanted = format!("omniroute_request_body_bytes {bytes}");
    eventually("the bodies are counted", || async {
        let text = node.get("/metrics").send().await.text();
        text.lines().any(|line| line == wanted).then_some(())
    })
    .await;
}

fn call(node: &Node, dialect: Dialect, kib: usize) -> Call {
    let mut body = dialect.ask(false).to_string();
    body += &" ".repeat(kib * KIB - body.len());
    node.post(dialect.path(), &json!({}))
        .body("application/json", body)
}

fn expect_overloaded(dialect: Dialect, answer: &Answer) {
    assert_eq!(answer.status, 503, "{dialect:?}: {}", answer.text());
    assert_eq!(answer.code(), "server_overloaded");
    assert_eq!(answer.retry_after(), Some(1));
    let anthropic = answer.json()["type"] == "error";
    assert_eq!(anthropic, dialect == Dialect::Messages);
}

#[tokio::test]
async fn is_bounded_and_given_back() {
    let upstream = Upstream::start().await;
    let node = Node::start(&narrow(&upstream)).await;
    let gate = Gate::closed();
    let slow: Vec<Reply> = vec![Dialect::Chat.ok("pong").behind(&gate)];
    upstream.script("chat-a", slow);
    upstream.script("messages-a", [Dialect::Messages.ok("pong")]);
    holds(&node, 0).await;
    let mut flying = Vec::new();
    for n in 1..=10 {
        flying.push(tokio::spawn(call(&node, Dialect::Chat, 100).try_send()));
        upstream.request("chat-a", n).await;
    }
    holds(&node, 1000 * KIB).await;
    for dialect in Dialect::ALL {
        expect_overloaded(dialect, &call(&node, dialect, 100).send().await);
    }
    // A small one still has room.
    let small = call(&node, Dialect::Messages, 20).send().await;
    small.expect_status(200);
    gate.open();
    for one in flying {
        one.await.unwrap().unwrap().expect_status(200);
    }
    holds(&node, 0).await;
    let again = call(&node, Dialect::Messages, 500).send().await;
    again.expect_status(200);
}

#[tokio::test]
async fn counts_what_arrives_not_what_is_announced_and_what_inflates_as_it_inflates() {
    let upstream = Upstream::start().await;
    let node = Node::start(&narrow(&upstream)).await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        500 * KIB
    );
    // Many announce much and send little: that alone keeps nobody out.
    let mut halves = Vec::new();
    for _ in 0..20 {
        let mut half = TcpStream::connect(node.addr()).await.unwrap();
        half.write_all(head.as_bytes()).await.unwrap();
        half.write_all(&[b' '; KIB]).await.unwrap();
        halves.push(half);
    }
    holds(&node, 20 * KIB).await;
    call(&node, Dialect::Chat, 400)
        .send()
        .await
        .expect_status(200);
    // Two that send nearly all of it leave no room for a third's rest.
    let most = vec![b' '; 490 * KIB];
    for half in &mut halves[..2] {
        half.write_all(&most).await.unwrap();
    }
    holds(&node, 20 * KIB + 2 * 490 * KIB).await;
    let third = &mut halves[2];
    // The refusal may come, and the door close, before everything is written.
    third.write_all(&most).await.ok();
    let told = read_raw(third, SOON).await;
    assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    assert!(told.contains("server_overloaded"), "{told}");

    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![b' '; 400 * KIB]).unwrap();
    let squeezed = call(&node, Dialect::Chat, 1)
        .body("application/json", bomb.finish().unwrap())
        .header("content-encoding", "gzip");
    expect_overloaded(Dialect::Chat, &squeezed.send().await);
    // Who goes away in the middle gives back what was held.
    drop(halves);
    holds(&node, 0).await;
}

#[tokio::test]
async fn a_stream_holds_its_body_until_its_end() {
    let upstream = Upstream::start().await;
    let node = Node::start(&narrow(&upstream)).await;
    let gate = Gate::closed();
    let begun = Reply::frames(&[Dialect::Chat.content("hel")]).hold(&gate);
    upstream.script("chat-a", [begun]);
    let mut body = Dialect::Chat.ask(true).to_string();
    body += &" ".repeat(100 * KIB - body.len());
    let call = node.post("/v1/chat/completions", &json!({}));
    let mut stream = call.body("application/json", body).open().await;
    stream.read_until("hel").await;
    holds(&node, 100 * KIB).await;
    gate.open();
    stream.read_to_end().await;
    holds(&node, 0).await;
    let refused = node.post("/v1/chat/completions", &json!([]));
    tokio::time::timeout(SOON, refused.send()).await.unwrap();
    holds(&node, 0).await;
}
