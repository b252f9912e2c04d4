//! A client that goes away: its upstream request ends at once, and it is
//! nobody's fault.

use std::time::{Duration, Instant};

use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::{Seen, Upstream};
use serde_json::json;

use crate::stream_before::pairs;

const AT_ONCE: Duration = Duration::from_secs(1);

async fn expect_dropped_at_once(seen: &Seen, left: Instant) {
    let dropped = seen.dropped(Duration::from_secs(10)).await;
    let took = dropped.saturating_duration_since(left);
    assert!(took < AT_ONCE, "the upstream was held for {took:?}");
}

async fn expect_no_mark(node: &Node, upstream: &Upstream, dialect: Dialect) {
    let a = node.connection(&dialect.connection("a")).await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
    assert_eq!(a["backoffLevel"], 0, "{a}");
    assert_eq!(a["breaker"]["failureCount"], 0, "{a}");
    assert_eq!(
        upstream.count(&dialect.connection("b")),
        0,
        "retried for nobody"
    );
}

#[tokio::test]
async fn in_the_middle_of_a_stream() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let a = dialect.connection("a");
        let mut frames = dialect.opening();
        frames.push(dialect.content("hel"));
        upstream.script(
            &a,
            [
                Reply::frames(&frames).end(Finish::Hang),
                dialect.ok_stream("pong"),
            ],
        );
        let mut stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
        stream.read_until("hel").await;
        drop(stream);
        let left = Instant::now();
        expect_dropped_at_once(&*upstream.request(&a, 1).await, left).await;
        expect_no_mark(&node, &upstream, dialect).await;
        let text = node
            .post(dialect.path(), &dialect.ask(true))
            .open()
            .await
            .finish()
            .await;
        dialect.expect_whole(&text, "pong");
    }
}

#[tokio::test]
async fn before_the_first_token() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let never = Gate::closed();
    for dialect in Dialect::ALL {
        let a = dialect.connection("a");
        for (n, reply) in [
            dialect.ok_stream("late").behind(&never),
            Reply::frames(&dialect.opening()).end(Finish::Hang),
            Reply::sse().send(": hello\n\n").end(Finish::Hang),
        ]
        .into_iter()
        .enumerate()
        {
            upstream.script(&a, [reply]);
            let call = tokio::spawn(node.post(dialect.path(), &dialect.ask(true)).try_open());
            let seen = upstream.request(&a, n + 1).await;
            // Aborting the waiting call closes its socket.
            call.abort();
            let left = Instant::now();
            expect_dropped_at_once(&seen, left).await;
        }
        expect_no_mark(&node, &upstream, dialect).await;
    }
}

#[tokio::test]
async fn while_waiting_for_a_whole_answer() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let never = Gate::closed();
    for dialect in Dialect::ALL {
        let a = dialect.connection("a");
        upstream.script(&a, [dialect.ok("late").behind(&never)]);
        let call = tokio::spawn(node.post(dialect.path(), &dialect.ask(false)).try_send());
        let seen = upstream.request(&a, 1).await;
        call.abort();
        let left = Instant::now();
        expect_dropped_at_once(&seen, left).await;
        expect_no_mark(&node, &upstream, dialect).await;
    }
}

#[tokio::test]
async fn many_at_once_leave_nothing_behind() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let reply = Reply::sse()
        .send(&Dialect::Chat.content("hel"))
        .end(Finish::Hang);
    upstream.script("chat-a", [reply]);
    let body = Dialect::Chat.ask(true);
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = node.post("/v1/chat/completions", &body).open().await;
        stream.read_until("hel").await;
        streams.push(stream);
    }
    assert_eq!(node.connection("chat-a").await["inFlight"], 50);
    drop(streams);
    cluster_tests::wait::eventually("nothing is in flight", || async {
        (node.connection("chat-a").await["inFlight"] == 0).then_some(())
    })
    .await;
    expect_no_mark(&node, &upstream, Dialect::Chat).await;
}

#[tokio::test]
async fn a_reader_that_is_slow_loses_nothing_and_holds_nobody() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let word = "x".repeat(4096);
    let mut frames = Dialect::Chat.opening();
    frames.extend((0..2000).map(|_| Dialect::Chat.content(&word)));
    frames.extend(Dialect::Chat.closing(""));
    upstream.script(
        "chat-a",
        [Reply::frames(&frames), Dialect::Chat.ok("quick")],
    );
    let slow = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(true))
        .open()
        .await;
    let quick = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(false))
        .send()
        .await;
    quick.expect_status(200);
    assert_eq!(slow.finish().await, frames.concat());
}
