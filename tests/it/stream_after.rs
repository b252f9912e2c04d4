//! Streams that fail after the first content: what was sent stands, the client
//! is told in its own protocol, and nobody else continues the sentence.

use std::time::Duration;

use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

use crate::stream_before::pairs;

/// The opening and one piece of content.
fn begun(dialect: Dialect) -> Reply {
    let mut frames = dialect.opening();
    frames.push(dialect.content("hel"));
    Reply::frames(&frames)
}

/// Streams from a, which fails as scripted after `hel`; b stays out of it.
async fn expect_told(node: &Node, upstream: &Upstream, dialect: Dialect, reply: Reply) -> String {
    let (a, b) = (dialect.connection("a"), dialect.connection("b"));
    upstream.script(&a, [reply]);
    upstream.script(&b, [dialect.ok_stream("pong")]);
    let stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
    assert_eq!(stream.status, 200, "{dialect:?}");
    assert_eq!(stream.header("x-omniroute-connection"), Some(a.as_str()));
    let text = stream.finish().await;
    dialect.expect_broken(&text, "hel");
    assert_eq!(upstream.count(&b), 0, "{dialect:?}: b was asked to go on");
    text
}

async fn for_each_dialect(more: &Value, fail: impl Fn(Dialect) -> Reply) {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, more)).await;
    for dialect in Dialect::ALL {
        expect_told(&node, &upstream, dialect, fail(dialect)).await;
    }
}

#[tokio::test]
async fn an_error_event() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let reply = begun(dialect).send(&dialect.error_event("server_error", "it broke"));
        expect_told(&node, &upstream, dialect, reply).await;
        let a = node.connection(&dialect.connection("a")).await;
        assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    }
}

#[tokio::test]
async fn an_error_beside_empty_choices_and_a_finish_reason_error() {
    for chunk in [
        json!({"choices": [], "error": {"message": "it broke", "code": 502}}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}],
            "error": {"message": "it broke", "code": 502}}),
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&pairs(&upstream, &json!({}))).await;
        let reply = begun(Dialect::Chat).send(&format!("data: {chunk}\n\n"));
        let text = expect_told(&node, &upstream, Dialect::Chat, reply).await;
        assert!(!text.contains("\"finish_reason\":\"error\""), "{text}");
    }
}

#[tokio::test]
async fn an_end_without_evidence_that_it_is_one() {
    for_each_dialect(&json!({}), begun).await;
    for_each_dialect(&json!({}), |dialect| begun(dialect).close_delimited()).await;
}

#[tokio::test]
async fn a_reset_and_a_cut() {
    for finish in [Finish::Reset, Finish::Close] {
        for_each_dialect(&json!({}), |dialect| begun(dialect).wait_ms(50).end(finish)).await;
    }
}

#[tokio::test]
async fn a_frame_that_is_cut_in_the_middle_is_not_passed_on() {
    for_each_dialect(&json!({}), |dialect| {
        let frame = dialect.content("lo, world");
        begun(dialect).send(&frame[..frame.len() / 2])
    })
    .await;
}

#[tokio::test]
async fn half_a_tool_call() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let (a, b) = (dialect.connection("a"), dialect.connection("b"));
        upstream.script(&a, [Reply::frames(&dialect.half_a_tool_call())]);
        upstream.script(&b, [dialect.ok_stream("pong")]);
        let stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
        let text = stream.finish().await;
        if upstream.count(&b) == 0 {
            dialect.expect_broken(&text, "");
        } else {
            dialect.expect_whole(&text, "pong");
            assert!(!text.contains("weather"), "two answers in one: {text}");
        }
    }
}

#[tokio::test]
async fn a_tool_call_whose_arguments_never_became_json_is_a_failure() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    upstream.script("chat-b", [Dialect::Chat.ok_stream("pong")]);
    let mut frames = Dialect::Chat.half_a_tool_call();
    frames.push("data: [DONE]\n\n".to_owned());
    upstream.script("chat-a", [Reply::frames(&frames)]);
    let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(true));
    let text = call.open().await.finish().await;
    if upstream.count("chat-b") == 0 {
        Dialect::Chat.expect_broken(&text, "");
    } else {
        Dialect::Chat.expect_whole(&text, "pong");
    }
}

#[tokio::test]
async fn a_stall() {
    let never = Gate::closed();
    for more in [
        json!({"timeouts": {"byteIdleMs": 400}}),
        json!({"timeouts": {"progressIdleMs": 400}}),
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&pairs(&upstream, &more)).await;
        for dialect in Dialect::ALL {
            let reply = begun(dialect).hold(&never);
            expect_told(&node, &upstream, dialect, reply).await;
            let seen = upstream.request(&dialect.connection("a"), 1).await;
            seen.dropped(Duration::from_secs(5)).await;
        }
    }
}

#[tokio::test]
async fn keep_alives_are_not_progress_but_keep_the_wire() {
    let drip = |dialect: Dialect| {
        let mut reply = begun(dialect);
        for _ in 0..20 {
            reply = reply.wait_ms(100).send(": keepalive\n\n");
        }
        reply
    };
    let more = json!({"timeouts": {"progressIdleMs": 600, "byteIdleMs": 60_000}});
    for_each_dialect(&more, drip).await;

    let more = json!({"timeouts": {"progressIdleMs": 60_000, "byteIdleMs": 900}});
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &more)).await;
    for dialect in Dialect::ALL {
        let mut reply = drip(dialect);
        for frame in dialect.closing("hel") {
            reply = reply.send(&frame);
        }
        upstream.script(&dialect.connection("a"), [reply]);
        let stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
        dialect.expect_whole(&stream.finish().await, "hel");
    }
}

#[tokio::test]
async fn a_line_without_an_end() {
    let megabyte = vec![b'x'; 1 << 20];
    for_each_dialect(&json!({}), |dialect| {
        let start = begun(dialect).send("data: {\"padding\": \"");
        (0..12).fold(start, |reply, _| reply.send_bytes(&megabyte))
    })
    .await;
}

#[tokio::test]
async fn an_error_with_a_limit_still_marks_the_account() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let error = json!({"error": {"message": "Rate limit reached. Please try again in 90s",
        "type": "rate_limit_error", "code": "rate_limit_exceeded"}});
    let reply = begun(Dialect::Chat).send(&format!("data: {error}\n\n"));
    expect_told(&node, &upstream, Dialect::Chat, reply).await;
    let a = node.connection("chat-a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    assert!(a["cooldownRemainingMs"].as_u64().unwrap() > 60_000, "{a}");
    assert_eq!(a["hintSource"], "body", "{a}");
}
