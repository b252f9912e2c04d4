//! The harness itself: a scripted upstream that could not misbehave to order
//! would prove nothing.

use std::time::Duration;

use cluster_tests::client::{Call, End};
use cluster_tests::dialect::Dialect;
use cluster_tests::events::{comments, events};
use cluster_tests::metrics::Exposition;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::{BlackHole, Fate, Refused, Upstream};
use cluster_tests::wait::SOON;
use serde_json::json;

fn ask(upstream: &Upstream, id: &str) -> Call {
    Call::new(upstream.addr(), "POST", "/v1/chat/completions")
        .bearer(&format!("key-{id}"))
        .json(&Dialect::Chat.ask(false))
}

#[tokio::test]
async fn replies_come_in_order_and_the_last_one_repeats() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Reply::limited(7), Dialect::Chat.ok("pong")]);

    let first = ask(&upstream, "a").send().await;
    assert_eq!((first.status, first.retry_after()), (429, Some(7)));
    for _ in 0..2 {
        let answer = ask(&upstream, "a").send().await.expect_status(200);
        assert_eq!(Dialect::Chat.text_of_answer(&answer.json()), "pong");
    }
    let unknown = ask(&upstream, "b").send().await;
    assert_eq!(unknown.status, 418);
    assert_eq!(upstream.count("a"), 3);
    assert_eq!(upstream.order(), ["a", "a", "a", "b"]);
    let seen = upstream.request("a", 1).await;
    assert_eq!(seen.json(), Dialect::Chat.ask(false));
    assert_eq!(seen.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn every_dialect_streams_whole_at_every_cut() {
    let upstream = Upstream::start().await;
    for dialect in Dialect::ALL {
        let whole = dialect.ok_stream("zażółć 🦀");
        for size in [1, 2, 3, 7] {
            upstream.script("a", [whole.clone().in_pieces_of(size)]);
            let text = ask(&upstream, "a").open().await.finish().await;
            assert_eq!(text.as_bytes(), whole.data());
            dialect.expect_whole(&text, "zażółć 🦀");
        }
        let at = whole.data().len() / 2;
        upstream.script("a", [whole.clone().cut_at(at)]);
        let text = ask(&upstream, "a").open().await.finish().await;
        assert_eq!(text.as_bytes(), whole.data());
    }
}

#[tokio::test]
async fn connections_end_in_every_way() {
    let upstream = Upstream::start().await;
    let part = || Reply::sse().send(&Dialect::Chat.content("hel"));
    for (finish, broken) in [(Finish::Close, true), (Finish::Reset, true)] {
        upstream.script("a", [part().end(finish)]);
        let mut stream = ask(&upstream, "a").open().await;
        let end = stream.read_to_end().await;
        assert_eq!(matches!(end, End::Broken(_)), broken, "{finish:?}");
        upstream.script("a", [Reply::nothing(finish)]);
        assert!(ask(&upstream, "a").try_send().await.is_err());
    }
    upstream.script("a", [part().close_delimited()]);
    let text = ask(&upstream, "a").open().await.finish().await;
    assert_eq!(Dialect::Chat.text_of(&text), "hel");
    upstream.script("a", [Reply::wire(b"\x00\xffgarbage\r\n\r\n")]);
    assert!(ask(&upstream, "a").try_send().await.is_err());
}

#[tokio::test]
async fn the_upstream_notices_a_client_that_leaves() {
    let upstream = Upstream::start().await;
    let gate = Gate::closed();
    upstream.script(
        "a",
        [
            Dialect::Chat.ok("late").behind(&gate),
            Reply::sse().send(": hi\n\n").end(Finish::Hang),
            Dialect::Chat.ok("pong"),
        ],
    );
    let waiting = tokio::spawn(ask(&upstream, "a").try_send());
    let seen = upstream.request("a", 1).await;
    assert_eq!(seen.fate(), Fate::Running);
    waiting.abort();
    seen.dropped(SOON).await;

    let mut stream = ask(&upstream, "a").open().await;
    stream.read_until("hi").await;
    drop(stream);
    upstream.request("a", 2).await.dropped(SOON).await;

    ask(&upstream, "a").send().await.expect_status(200);
}

#[tokio::test]
async fn a_held_stream_goes_on_when_the_gate_opens() {
    let upstream = Upstream::start().await;
    let gate = Gate::closed();
    let frames = Dialect::Chat.stream("pong");
    let mut reply = Reply::sse().send(&frames[0]).hold(&gate);
    for frame in &frames[1..] {
        reply = reply.send(frame);
    }
    upstream.script("a", [reply]);
    let mut stream = ask(&upstream, "a").open().await;
    stream.read_until("assistant").await;
    assert!(!stream.text().contains("pong"));
    gate.open();
    Dialect::Chat.expect_whole(&stream.finish().await, "pong");
}

#[tokio::test]
async fn ports_refuse_and_swallow() {
    let refused = Refused::new();
    let hole = BlackHole::start().await;
    let addr = |url: String| {
        let host = url.trim_start_matches("http://").trim_end_matches("/v1");
        host.parse().unwrap()
    };
    let call = Call::new(addr(refused.url()), "GET", "/");
    let error = call.try_send().await.unwrap_err();
    assert!(error.to_lowercase().contains("refused"), "{error}");
    let call = Call::new(addr(hole.url()), "GET", "/").try_send();
    let waited = tokio::time::timeout(Duration::from_millis(500), call).await;
    assert!(waited.is_err(), "the connection was established");
}

#[test]
fn events_are_read_by_the_grammar() {
    let text = "\u{feff}: hello\r\nevent: x\rdata:a\ndata: b\n\n\ndata: [DONE]\n\n: bye\n\n";
    let read = events(text);
    assert_eq!(read.len(), 2);
    assert_eq!(read[0].name.as_deref(), Some("x"));
    assert_eq!(read[0].data, "a\nb");
    assert_eq!(comments(text), ["hello", "bye"]);
}

#[test]
fn metrics_of_bad_style_are_complained_about() {
    let good = "# HELP r_requests_total Requests.\n# TYPE r_requests_total counter\n\
        r_requests_total{path=\"/a\",code=\"2\\\"x\"} 3\n\
        # HELP r_wait_seconds Wait.\n# TYPE r_wait_seconds histogram\n\
        r_wait_seconds_bucket{le=\"+Inf\"} 1\nr_wait_seconds_sum 0.5\nr_wait_seconds_count 1\n";
    let read = Exposition::parse(good);
    assert_eq!(read.complaints(), Vec::<String>::new());
    assert!((read.sum("r_requests_total") - 3.0).abs() < f64::EPSILON);
    assert_eq!(read.samples[0].labels["path"], "/a");

    let bad = "# TYPE r_wait_ms gauge\nr_wait_ms 1\nr_wait_ms 1\nother 2\n\
        # HELP x_calls Calls.\n# TYPE x_calls counter\nx_calls 1\n";
    let complaints = Exposition::parse(bad).complaints().join("; ");
    for word in ["base unit", "HELP", "twice", "no TYPE", "_total", "prefix"] {
        assert!(complaints.contains(word), "{word} not in {complaints}");
    }
}

#[test]
fn broken_and_whole_streams_are_told_apart() {
    for dialect in Dialect::ALL {
        let whole = dialect.stream("x").concat();
        dialect.expect_whole(&whole, "x");
        let mut cut: String = dialect.opening().concat() + &dialect.content("x");
        if dialect == Dialect::Responses {
            let failed = json!({"type": "response.failed", "response": {"id": "resp_1",
                "error": {"code": "server_error", "message": "cut"}}});
            cut.extend([
                "event: response.failed\ndata: ",
                &failed.to_string(),
                "\n\n",
            ]);
        } else {
            cut += &dialect.error_event("server_error", "cut");
        }
        dialect.expect_broken(&cut, "x");
        let taken = std::panic::catch_unwind(|| dialect.expect_whole(&cut, "x"));
        assert!(taken.is_err());
        let taken = std::panic::catch_unwind(|| dialect.expect_broken(&whole, "x"));
        assert!(taken.is_err());
    }
}
