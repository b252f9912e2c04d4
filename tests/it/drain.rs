//! Stopping: nothing new, everything begun is finished, then a clean exit.

use std::time::{Duration, Instant};

use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::net::TcpStream;

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

#[tokio::test]
async fn what_does_not_end_is_cut_after_the_drain_time() {
    let upstream = Upstream::start().await;
    let config =
        all_providers(&upstream.url(), &["a"], &json!({})).server("drainTimeoutMs", json!(700));
    let mut node = Node::start(&config).await;
    let reply = Reply::sse()
        .send(&Dialect::Chat.content("hel"))
        .end(Finish::Hang);
    upstream.script("chat-a", [reply]);
    let mut stream = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(true))
        .open()
        .await;
    stream.read_until("hel").await;
    let started = Instant::now();
    node.process().signal(Signal::SIGTERM);
    let status = node.process().exit(SOON).await;
    let took = started.elapsed();
    assert_eq!(status.code(), Some(0), "{status}");
    assert!(
        (Duration::from_millis(600)..Duration::from_secs(6)).contains(&took),
        "{took:?}"
    );
    stream.read_to_end().await;
    let text = stream.text();
    assert!(!text.contains("[DONE]"), "a cut stream looks whole: {text}");
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
