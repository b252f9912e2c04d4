//! Upstream bodies that are compressed without a word, or under a word with two meanings.

use std::io::Write;

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use serde_json::json;

/// How a body is compressed, and what its head says of it.
#[derive(Clone, Copy, Debug)]
enum Kind {
    GzipUnsaid,
    GzipAsIdentity,
    Zlib,
    ZlibByItsName,
    Deflate,
}

const KINDS: [Kind; 5] = [
    Kind::GzipUnsaid,
    Kind::GzipAsIdentity,
    Kind::Zlib,
    Kind::ZlibByItsName,
    Kind::Deflate,
];

impl Kind {
    fn encode(self, plain: &[u8]) -> Vec<u8> {
        let fast = Compression::fast();
        match self {
            Self::GzipUnsaid | Self::GzipAsIdentity => {
                let mut writer = GzEncoder::new(Vec::new(), fast);
                writer.write_all(plain).unwrap();
                writer.finish().unwrap()
            }
            Self::Zlib | Self::ZlibByItsName => {
                let mut writer = ZlibEncoder::new(Vec::new(), fast);
                writer.write_all(plain).unwrap();
                writer.finish().unwrap()
            }
            Self::Deflate => {
                let mut writer = DeflateEncoder::new(Vec::new(), fast);
                writer.write_all(plain).unwrap();
                writer.finish().unwrap()
            }
        }
    }

    fn reply(self, status: u16, content_type: &str, plain: &str) -> Reply {
        let reply = Reply::bytes(status, content_type, &self.encode(plain.as_bytes()));
        match self {
            Self::GzipUnsaid => reply,
            Self::GzipAsIdentity => reply.header("content-encoding", "identity"),
            Self::Zlib | Self::Deflate => reply.header("content-encoding", "deflate"),
            Self::ZlibByItsName => reply.header("content-encoding", "zlib"),
        }
    }
}

fn config(upstream: &Upstream) -> Config {
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"models": ["m"]}))
}

#[tokio::test]
async fn a_refusal_is_read() {
    for kind in KINDS {
        // Whole, and byte by byte.
        for size in [usize::MAX, 1] {
            let upstream = Upstream::start().await;
            let node = Node::start(&config(&upstream)).await;
            let error = json!({"error": {"message": "your account has been suspended"}});
            let reply = kind.reply(403, "application/json", &error.to_string());
            upstream.script("a", [reply.in_pieces_of(size)]);
            let body = Dialect::Chat.request("acme/m", false);
            node.post("/v1/chat/completions", &body).send().await;
            let a = node.connection("a").await;
            assert_eq!(a["testStatus"], "banned", "{kind:?} {size}: {a}");
        }
    }
}

#[tokio::test]
async fn answers_and_streams_arrive_as_they_were() {
    for kind in KINDS {
        for dialect in [Dialect::Chat, Dialect::Messages] {
            let upstream = Upstream::start().await;
            let url = upstream.url();
            let empty = json!({});
            let config = cluster_tests::dialect::all_providers(&url, &["a"], &empty).no_waiting();
            let node = Node::start(&config).await;
            let id = dialect.connection("a");
            let plain = dialect.answer(&"pong ".repeat(500)).to_string();
            upstream.script(&id, [kind.reply(200, "application/json", &plain)]);
            let ask = |stream| node.post(dialect.path(), &dialect.ask(stream)).send();
            let answer = ask(false).await.expect_status(200);
            assert_eq!(answer.text(), plain, "{kind:?}");
            assert_eq!(answer.header("content-encoding"), None);

            let events = dialect.stream("pong").concat();
            let reply = kind.reply(200, "text/event-stream", &events);
            upstream.script(&id, [reply.in_pieces_of(2)]);
            let answer = ask(true).await.expect_status(200);
            dialect.expect_whole(&answer.text(), "pong");
        }
    }
}

/// A small body that becomes a large one is stopped at its limit.
#[tokio::test]
async fn what_inflates_beyond_the_limit_is_a_failed_attempt() {
    for kind in KINDS {
        let upstream = Upstream::start().await;
        let config = config(&upstream).server("maxResponseBytes", json!(65_536));
        let node = Node::start(&config).await;
        let plain = Dialect::Chat.answer(&"x".repeat(50_000_000)).to_string();
        upstream.script("a", [kind.reply(200, "application/json", &plain)]);
        let body = Dialect::Chat.request("acme/m", false);
        let answer = node.post("/v1/chat/completions", &body).send().await;
        assert_eq!(answer.status, 502, "{kind:?}: {}", answer.text());
        let a = node.connection("a").await;
        assert_eq!(a["lastErrorRule"], "upstream-too-large", "{a}");
    }
}

/// Two bytes of it are no gzip.
#[tokio::test]
async fn what_only_begins_like_it_is_garbage() {
    for start in [
        &[0x1f_u8][..],
        &[0x1f, 0x8b],
        &[0x1f, 0x8b, 0x08],
        &[0x1f, b'{'],
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&config(&upstream)).await;
        upstream.script("a", [Reply::bytes(200, "application/json", start)]);
        let body = Dialect::Chat.request("acme/m", false);
        let answer = node.post("/v1/chat/completions", &body).send().await;
        assert_eq!(answer.status, 502, "{start:?}: {}", answer.text());
    }
}
