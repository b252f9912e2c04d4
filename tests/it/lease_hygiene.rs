//! What a client chose as its lease's token is its secret: it is not sent
//! upstream, not logged, not stored, not shown.

use std::fmt::Write as _;

use cluster_tests::client::Call;
use cluster_tests::cluster::Plan;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{GENERATION, KEY, OWNER, Owner, RIVAL, managed};
use cluster_tests::reply::Reply;
use cluster_tests::wait::eventually;
use sha2::{Digest, Sha256};

fn hash(token: &str) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(token.as_bytes()) {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

#[tokio::test]
async fn tokens_and_control_headers_stay_inside() {
    let plan = Plan::of(2)
        .env(0, "RUST_LOG", "trace")
        .env(1, "RUST_LOG", "trace");
    let cluster = plan
        .start(|upstream| managed(&upstream.url(), &Dialect::ALL, &["a"]))
        .await;
    let monitor = cluster.redis.monitor().await;
    let mut events = Call::new(cluster.nodes[0].addr(), "GET", "/api/events")
        .open()
        .await;
    let owner = Owner::new("s3cret-owner", KEY);
    let other = Owner::new("s3cret-rival", RIVAL);
    let mut told = String::new();
    for dialect in Dialect::ALL {
        let a = dialect.connection("a");
        let failed = Reply::error(500, "boom");
        cluster
            .upstream
            .script(&a, [dialect.ok("pong"), dialect.ok("pong"), failed]);
        let held = owner.hold(&cluster.nodes[0], &dialect.model()).await;
        for node in &cluster.nodes {
            let answer = owner.ask(node, dialect, held, false).send().await;
            let answer = answer.expect_status(200);
            write!(told, "{:?}", answer.headers).unwrap();
            told += &node.trace(&answer).await.to_string();
        }
        let failing = owner
            .ask(&cluster.nodes[1], dialect, held, false)
            .send()
            .await;
        told += &failing.text();
        told += &node_lists(&cluster.nodes).await;
        told += &other
            .acquire(&cluster.nodes[1], &dialect.model())
            .await
            .text();
        told += &other
            .ask(&cluster.nodes[1], dialect, held, false)
            .send()
            .await
            .text();
        told += &owner.renew(&cluster.nodes[1], held + 1).await.text();
        told += &owner.release(&cluster.nodes[1], held).await.text();
    }
    events.read_until("data:").await;
    told += &events.text();
    for seen in cluster.upstream.requests() {
        for (name, value) in &seen.headers {
            assert_ne!(name, OWNER);
            assert_ne!(name, GENERATION);
            assert!(!name.starts_with("x-omniroute"), "{name}: {value}");
            assert!(!value.contains("s3cret"), "{name}: {value}");
        }
        assert!(!String::from_utf8_lossy(&seen.body).contains("s3cret"));
    }
    assert!(cluster.upstream.requests().len() >= 9);
    expect_hidden("answers", &told);
    for secret in [&owner.token, &other.token] {
        assert!(!told.contains(&hash(secret)), "a hash of a token in {told}");
    }
    for node in &cluster.nodes {
        expect_hidden("the log", &node.log().text());
    }
    eventually("the monitor has heard of the lease", || async {
        (!monitor.lines().is_empty()).then_some(())
    })
    .await;
    expect_hidden("Redis", &cluster.redis.contents().await);
    expect_hidden("commands to Redis", &monitor.lines().join("\n"));
}

async fn node_lists(nodes: &[cluster_tests::node::Node]) -> String {
    let mut text = String::new();
    for node in nodes {
        for path in ["/api/leases", "/api/requests", "/api/nodes", "/metrics"] {
            let answer = node.admin_call("GET", path).send().await;
            text += &answer.expect_status(200).text();
        }
    }
    text
}

fn expect_hidden(place: &str, text: &str) {
    // A part of it would be too much as well.
    let at = text.find("s3cret");
    let around = at.map(|at| &text[at.saturating_sub(200)..(at + 80).min(text.len())]);
    assert_eq!(around, None, "in {place}");
}

#[tokio::test]
async fn an_embedded_store_has_no_token_either() {
    let upstream = cluster_tests::upstream::Upstream::start().await;
    let config = managed(&upstream.url(), &[Dialect::Chat], &["a"]);
    let mut node = cluster_tests::node::Node::start(&config).await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let owner = Owner::new("s3cret-owner", KEY);
    let held = owner.hold(&node, "chat/demo-model").await;
    owner
        .ask(&node, Dialect::Chat, held, false)
        .send()
        .await
        .expect_status(200);
    assert!(node.stop().await.success());
    let dir = node.setup().dir().join("omniroute-data");
    let mut files = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        expect_hidden("a file", &String::from_utf8_lossy(&bytes));
        files += 1;
    }
    assert!(files > 0);
}
