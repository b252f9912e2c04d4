//! Stopping: nothing new, everything begun is finished, then a clean exit.

use std::time::{Duration, Instant};

use cluster_tests::client::{Answer, Streaming, read_raw};
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

async fn stops_taking(node: &Node) {
    eventually("new connections are refused", || async {
        TcpStream::connect(node.addr()).await.is_err().then_some(())
    })
    .await;
}

#[tokio::test]
async fn streams_and_answers_in_flight_are_finished() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&all_providers(&upstream.url(), &["a", "b"], &json!({}))).await;
    let gate = Gate::closed();
    for dialect in Dialect::ALL {
        let mut reply = Reply::frames(&dialect.opening());
        reply = reply.send(&dialect.content("pong")).hold(&gate);
        for frame in dialect.closing("pong") {
            reply = reply.send(&frame);
        }
        upstream.script(
            &dialect.connection("a"),
            [reply, dialect.ok("late").behind(&gate)],
        );
        upstream.script(&dialect.connection("b"), [dialect.ok("late").behind(&gate)]);
    }
    let mut streams = Vec::new();
    for dialect in Dialect::ALL {
        let mut stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
        stream.read_until("pong").await;
        streams.push((dialect, stream));
    }
    let body = Dialect::Chat.ask(false);
    let plain = tokio::spawn(node.post("/v1/chat/completions", &body).try_send());
    eventually("all requests are upstream", || async {
        (upstream.requests().len() == 4).then_some(())
    })
    .await;

    node.process().signal(Signal::SIGTERM);
    stops_taking(&node).await;
    gate.open();
    for (dialect, stream) in streams {
        dialect.expect_whole(&stream.finish().await, "pong");
    }
    plain.await.unwrap().unwrap().expect_status(200);
    let status = node.process().exit(SOON).await;
    assert_eq!(status.code(), Some(0), "{status}");
}

#[tokio::test]
async fn readiness_fails_before_the_door_closes_or_with_it() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&all_providers(&upstream.url(), &["a"], &json!({}))).await;
    let never = Gate::closed();
    upstream.script("chat-a", [Dialect::Chat.ok("late").behind(&never)]);
    let body = Dialect::Chat.ask(false);
    let flying = tokio::spawn(node.post("/v1/chat/completions", &body).try_send());
    upstream.request("chat-a", 1).await;
    node.process().signal(Signal::SIGTERM);
    eventually("readyz fails", || async {
        match node.get("/readyz").try_send().await {
            Ok(answer) if answer.status == 200 => None,
            Ok(answer) => {
                assert_eq!(answer.status, 503, "{}", answer.text());
                Some(())
            }
            Err(_) => Some(()),
        }
    })
    .await;
    never.open();
    flying.await.unwrap().unwrap().expect_status(200);
    assert_eq!(node.process().exit(SOON).await.code(), Some(0));
}

/// Streams and answers that will not end by themselves: for each protocol a
/// committed stream, a stream without content and a plain request.
struct Endless {
    node: Node,
    upstream: Upstream,
    committed: Vec<(Dialect, Streaming)>,
    unanswered: Vec<(Dialect, JoinHandle<Result<Answer, String>>)>,
}

impl Endless {
    async fn start(drain_ms: u64) -> Self {
        let upstream = Upstream::start().await;
        let config = all_providers(&upstream.url(), &["a"], &json!({}));
        let config = config.server("drainTimeoutMs", json!(drain_ms));
        let node = Node::start(&config).await;
        let mut committed = Vec::new();
        let mut unanswered = Vec::new();
        for dialect in Dialect::ALL {
            let mut frames = dialect.opening();
            let silent = Reply::frames(&frames).end(Finish::Hang);
            frames.push(dialect.content("hel"));
            let begun = Reply::frames(&frames).end(Finish::Hang);
            let mute = Reply::nothing(Finish::Hang);
            let a = dialect.connection("a");
            upstream.script(&a, [begun, silent, mute]);
            let mut stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
            stream.read_until("hel").await;
            committed.push((dialect, stream));
            for (n, streamed) in [(2, true), (3, false)] {
                let call = node.post(dialect.path(), &dialect.ask(streamed));
                unanswered.push((dialect, tokio::spawn(call.try_send())));
                upstream.request(&a, n).await;
            }
        }
        Self {
            node,
            upstream,
            committed,
            unanswered,
        }
    }
}

#[tokio::test]
async fn what_does_not_end_within_the_drain_time_is_told_so() {
    let mut run = Endless::start(700).await;
    let started = Instant::now();
    run.node.process().signal(Signal::SIGTERM);
    for (dialect, stream) in run.committed {
        let text = stream.finish().await;
        dialect.expect_broken(&text, "hel");
        assert!(text.contains("server_shutting_down"), "{dialect:?}: {text}");
    }
    for (dialect, call) in run.unanswered {
        let answer = call.await.unwrap().unwrap().expect_status(503);
        assert_eq!(answer.code(), "server_shutting_down", "{dialect:?}");
        assert_eq!(answer.retry_after(), Some(1), "{dialect:?}");
        let anthropic = answer.json()["type"] == "error";
        assert_eq!(anthropic, dialect == Dialect::Messages, "{}", answer.text());
    }
    for seen in run.upstream.requests() {
        seen.dropped(SOON).await;
    }
    let status = run.node.process().exit(SOON).await;
    let took = started.elapsed();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(
        (Duration::from_millis(700)..Duration::from_secs(6)).contains(&took),
        "{took:?}"
    );
    let again = run.node.start_again().await;
    for dialect in Dialect::ALL {
        let a = again.connection(&dialect.connection("a")).await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
        assert_eq!(a["lastErrorType"], json!(null), "{a}");
        assert_eq!(a["breaker"]["failureCount"], 0, "{a}");
    }
}

#[tokio::test]
async fn a_stream_that_waits_for_content_behind_a_sent_head_is_told_in_band() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({}))
        .server("drainTimeoutMs", json!(200))
        .server("keepAliveMs", json!(100));
    let mut node = Node::start(&config).await;
    upstream.script("chat-a", [Reply::nothing(Finish::Hang)]);
    let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(true));
    let mut stream = call.open().await;
    stream.read_until(": keep-alive").await;
    node.process().signal(Signal::SIGTERM);
    let text = stream.finish().await;
    Dialect::Chat.expect_broken(&text, "");
    assert!(text.contains("server_shutting_down"), "{text}");
    assert_eq!(node.process().exit(SOON).await.code(), Some(0));
}

#[tokio::test]
async fn half_a_body_and_a_client_that_does_not_read_hold_nothing_up() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({}));
    let mut node = Node::start(&config.server("drainTimeoutMs", json!(300))).await;
    let mut half = TcpStream::connect(node.addr()).await.unwrap();
    half.write_all(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        .await
        .unwrap();
    let mut deaf = TcpStream::connect(node.addr()).await.unwrap();
    let huge = "x".repeat(8 << 20);
    upstream.script("chat-a", [Dialect::Chat.ok(&huge)]);
    let body = Dialect::Chat.ask(false).to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    deaf.write_all((head + &body).as_bytes()).await.unwrap();
    // Its answer fills the buffers on the way and stays there.
    deaf.readable().await.unwrap();
    let started = Instant::now();
    node.process().signal(Signal::SIGTERM);
    let told = read_raw(&mut half, SOON).await;
    assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    assert!(told.contains("server_shutting_down"), "{told}");
    let status = node.process().exit(SOON).await;
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(started.elapsed() < Duration::from_secs(8), "{started:?}");
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    for again in [Signal::SIGTERM, Signal::SIGINT] {
        let mut run = Endless::start(60_000).await;
        run.node.process().signal(Signal::SIGTERM);
        let draining = |line: &str| line.contains("draining");
        run.node.log().line("it drains", draining).await;
        let started = Instant::now();
        run.node.process().signal(again);
        let status = run.node.process().exit(SOON).await;
        assert_eq!(status.code(), Some(0), "{again}: {status}");
        let took = started.elapsed();
        assert!(took < Duration::from_secs(3), "{again}: {took:?}");
    }
}

#[tokio::test]
async fn an_idle_node_stops_at_once_on_either_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut node = Node::start(&Config::new()).await;
        // A kept connection without a request is nothing to wait for.
        let idle = TcpStream::connect(node.addr()).await.unwrap();
        let started = Instant::now();
        node.process().signal(signal);
        let status = node.process().exit(SOON).await;
        assert_eq!(status.code(), Some(0), "{signal}: {status}");
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{signal}: {:?}",
            started.elapsed()
        );
        drop(idle);
    }
}

#[tokio::test]
async fn a_second_start_finds_everything_released() {
    let mut node = Node::start(&Config::new()).await;
    for _ in 0..3 {
        assert_eq!(node.stop().await.code(), Some(0));
        node = node.start_again().await;
    }
    let body = Dialect::Chat.request("simulated/ok", false);
    node.post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);
}
