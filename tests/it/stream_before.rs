//! Streams that fail before the first content: the client never notices, and
//! the account is marked like for any other failure.

use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

/// Two connections a dialect, tried in the order a, b.
pub(crate) fn pairs(upstream: &Upstream, more: &Value) -> Config {
    all_providers(&upstream.url(), &["a", "b"], more).no_waiting()
}

/// Streams once through a and b; a fails as scripted, b's answer arrives whole.
async fn expect_b_streams(node: &Node, upstream: &Upstream, dialect: Dialect, reply: Reply) {
    let (a, b) = (dialect.connection("a"), dialect.connection("b"));
    upstream.script(&a, [reply]);
    let good = dialect.ok_stream("pong");
    upstream.script(&b, [good.clone()]);
    let before = (upstream.count(&a), upstream.count(&b));
    let stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
    assert_eq!(stream.status, 200, "{dialect:?}");
    assert_eq!(stream.header("x-omniroute-connection"), Some(b.as_str()));
    let attempts = stream.header("x-omniroute-attempts").map(str::to_owned);
    let text = stream.finish().await;
    assert_eq!(
        text.as_bytes(),
        good.data(),
        "{dialect:?}: not b's bytes alone"
    );
    assert!(
        matches!(attempts.as_deref(), Some("2" | "3")),
        "{attempts:?}"
    );
    assert!(upstream.count(&a) > before.0 && upstream.count(&b) == before.1 + 1);
}

/// Runs one failure on every dialect, each on a fresh node.
async fn for_each_dialect(more: &Value, fail: impl Fn(Dialect) -> Reply) {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, more)).await;
    for dialect in Dialect::ALL {
        expect_b_streams(&node, &upstream, dialect, fail(dialect)).await;
    }
}

/// A stream of the opening events, then these frames, then a proper end.
fn opened_then(dialect: Dialect, frames: &[String]) -> Reply {
    let mut all = dialect.opening();
    all.extend_from_slice(frames);
    Reply::frames(&all)
}

#[tokio::test]
async fn an_error_as_the_first_event() {
    for kind in [
        "overloaded_error",
        "insufficient_quota",
        "server_error",
        "rate_limit_error",
    ] {
        for_each_dialect(&json!({}), |dialect| {
            Reply::frames(&[dialect.error_event(kind, "it went wrong")])
        })
        .await;
    }
}

#[tokio::test]
async fn an_error_after_the_handshake() {
    for_each_dialect(&json!({}), |dialect| {
        opened_then(
            dialect,
            &[dialect.error_event("overloaded_error", "Overloaded")],
        )
    })
    .await;
}

#[tokio::test]
async fn a_response_that_failed_at_once() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let failed = json!({"type": "response.failed", "sequence_number": 4, "response": {
        "id": "resp_1", "status": "failed", "output": [],
        "error": {"code": "rate_limit_exceeded", "message": "Rate limit reached"}}});
    let frame = format!("event: response.failed\ndata: {failed}\n\n");
    let reply = opened_then(Dialect::Responses, &[frame]);
    expect_b_streams(&node, &upstream, Dialect::Responses, reply).await;
}

#[tokio::test]
async fn an_error_that_looks_like_a_usage_chunk() {
    for error in [
        json!({"message": "no credits", "code": 402}),
        json!("it broke"),
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&pairs(&upstream, &json!({}))).await;
        let chunk = json!({"id": "c1", "object": "chat.completion.chunk", "choices": [],
            "usage": null, "error": error});
        let reply = opened_then(Dialect::Chat, &[format!("data: {chunk}\n\n")]);
        expect_b_streams(&node, &upstream, Dialect::Chat, reply).await;
    }
}

#[tokio::test]
async fn a_finish_reason_that_says_error() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let chunk = json!({"id": "c1", "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error",
            "error": {"code": 502, "message": "provider went away"}}]});
    let frames = [format!("data: {chunk}\n\n"), "data: [DONE]\n\n".to_owned()];
    let reply = opened_then(Dialect::Chat, &frames);
    expect_b_streams(&node, &upstream, Dialect::Chat, reply).await;
}

#[tokio::test]
async fn an_end_without_any_content() {
    for_each_dialect(&json!({}), |dialect| opened_then(dialect, &[])).await;
    for_each_dialect(&json!({}), |_| Reply::sse()).await;
    for_each_dialect(&json!({}), |dialect| {
        opened_then(dialect, &[": only a comment\n\n".to_owned()]).close_delimited()
    })
    .await;
}

#[tokio::test]
async fn a_well_formed_stream_with_nothing_in_it() {
    for_each_dialect(&json!({}), |dialect| {
        let closing = dialect.closing("");
        match dialect {
            Dialect::Responses => {
                let empty = json!({"type": "response.completed", "sequence_number": 9,
                    "response": {"id": "resp_1", "status": "completed", "output": []}});
                let mut frames = dialect.opening();
                frames.truncate(2);
                frames.push(format!("event: response.completed\ndata: {empty}\n\n"));
                Reply::frames(&frames)
            }
            Dialect::Chat | Dialect::Messages => opened_then(dialect, &closing),
        }
    })
    .await;
}

#[tokio::test]
async fn a_reset_and_a_cut_before_any_content() {
    for finish in [Finish::Reset, Finish::Close] {
        for_each_dialect(&json!({}), |dialect| opened_then(dialect, &[]).end(finish)).await;
        for_each_dialect(&json!({}), |_| Reply::sse().end(finish)).await;
        for_each_dialect(&json!({}), |_| Reply::nothing(finish)).await;
    }
}

#[tokio::test]
async fn an_answer_of_another_kind_than_a_stream() {
    let html = "<!DOCTYPE html><html><title>502</title></html>";
    for reply in [
        Reply::error(200, "Rate limit reached"),
        Reply::text(200, "text/html", html),
        Reply::text(200, "text/event-stream", html),
        Reply::text(
            200,
            "text/event-stream",
            "{\"error\": {\"message\": \"busy\"}}",
        ),
        Reply::text(200, "text/plain", "upstream connect error"),
        Reply::text(200, "application/json", "{\"cut"),
        Reply::error(503, "busy"),
        Reply::limited(60),
    ] {
        for_each_dialect(&json!({}), |_| reply.clone()).await;
    }
}

#[tokio::test]
async fn silence_before_the_first_content() {
    let never = Gate::closed();
    for more in [
        json!({"timeouts": {"firstContentMs": 400}}),
        json!({"timeouts": {"byteIdleMs": 400}}),
    ] {
        for_each_dialect(&more, |dialect| opened_then(dialect, &[]).hold(&never)).await;
    }
    let more = json!({"timeouts": {"responseHeadersMs": 400}});
    for_each_dialect(&more, |dialect| dialect.ok_stream("late").behind(&never)).await;
}

#[tokio::test]
async fn keep_alives_are_not_content() {
    let more = json!({"timeouts": {"firstContentMs": 500, "byteIdleMs": 60_000}});
    for_each_dialect(&more, |dialect| {
        let mut reply = opened_then(dialect, &[]);
        for _ in 0..100 {
            reply = reply.wait_ms(50).send(": OPENROUTER PROCESSING\n\n");
            if dialect == Dialect::Messages {
                reply = reply.send("event: ping\ndata: {\"type\": \"ping\"}\n\n");
            }
        }
        reply
    })
    .await;
}

#[tokio::test]
async fn an_error_told_in_an_unusual_field() {
    for_each_dialect(&json!({}), |_| {
        Reply::sse().send("error: {\"message\": \"Rate limit reached\", \"code\": 429}\n\n")
    })
    .await;
}

#[tokio::test]
async fn a_line_without_an_end() {
    let megabyte = vec![b'x'; 1 << 20];
    for_each_dialect(&json!({}), |_| {
        let start = Reply::sse().send("data: {\"choices\": [{\"delta\": {\"role\": \"");
        (0..12).fold(start, |reply, _| reply.send_bytes(&megabyte))
    })
    .await;
}

#[tokio::test]
async fn compressed_bytes_that_are_none() {
    for_each_dialect(&json!({}), |dialect| {
        dialect.ok_stream("pong").header("content-encoding", "gzip")
    })
    .await;
}

#[tokio::test]
async fn the_marks_are_those_of_the_error_told() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let reply = Reply::frames(&[dialect.error_event("server_error", "it broke")]);
        expect_b_streams(&node, &upstream, dialect, reply).await;
        let a = node.connection(&dialect.connection("a")).await;
        assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
        assert_eq!(a["backoffLevel"], 1, "{a}");
    }
}

#[tokio::test]
async fn when_every_target_fails_before_content_the_status_tells_it() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        for short in ["a", "b"] {
            let error = dialect.error_event("overloaded_error", "Overloaded");
            upstream.script(&dialect.connection(short), [opened_then(dialect, &[error])]);
        }
        let answer = node.post(dialect.path(), &dialect.ask(true)).send().await;
        assert!(
            matches!(answer.status, 503 | 529),
            "{}: {}",
            answer.status,
            answer.text()
        );
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert!(answer.json()["error"]["message"].is_string());
        assert!(!answer.text().contains("message_start"));
    }
}

#[tokio::test]
async fn short_answers_that_were_asked_for_are_not_failures() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let finish = |reason: &str| {
        let chunk = json!({"id": "c1", "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
        format!("data: {chunk}\n\n")
    };
    let refusal = json!({"id": "c1", "choices": [{"index": 0, "delta": {"refusal": "I can't"}}]});
    for frames in [
        vec![finish("length"), "data: [DONE]\n\n".into()],
        vec![finish("content_filter"), "data: [DONE]\n\n".into()],
        vec![
            format!("data: {refusal}\n\n"),
            finish("stop"),
            "data: [DONE]\n\n".into(),
        ],
    ] {
        let reply = opened_then(Dialect::Chat, &frames);
        upstream.script("chat-a", [reply.clone()]);
        let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(true));
        let stream = call.open().await;
        assert_eq!(stream.status, 200);
        assert_eq!(stream.finish().await.as_bytes(), reply.data());
    }
    let mut body = Dialect::Chat.ask(true);
    body["max_tokens"] = json!(1);
    let empty = opened_then(Dialect::Chat, &Dialect::Chat.closing(""));
    upstream.script("chat-a", [empty.clone()]);
    let stream = node.post("/v1/chat/completions", &body).open().await;
    assert_eq!(stream.finish().await.as_bytes(), empty.data());
    assert_eq!(upstream.count("chat-b"), 0);
    assert_eq!(
        node.connection("chat-a").await["connectionStatus"],
        "healthy"
    );
}
