//! What is odd on the wire of a stream but no failure, and what the router
//! owes the client's own wire.

use std::io::Write;
use std::time::Duration;

use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::events::{comments, events};
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::Upstream;
use serde_json::json;

use crate::stream_before::pairs;

async fn stream(node: &Node, upstream: &Upstream, dialect: Dialect, reply: Reply) -> String {
    upstream.script(&dialect.connection("a"), [reply]);
    let stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
    assert_eq!(stream.status, 200, "{dialect:?}");
    stream.finish().await
}

async fn expect_untouched(node: &Node, upstream: &Upstream) {
    for dialect in Dialect::ALL {
        assert_eq!(upstream.count(&dialect.connection("b")), 0, "{dialect:?}");
        let a = node.connection(&dialect.connection("a")).await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
    }
}

#[tokio::test]
async fn any_cut_of_the_bytes_gives_the_same_stream() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let whole = dialect.ok_stream("zażółć 🦀 gęślą");
        let length = whole.data().len();
        for at in (1..length).step_by(length / 40) {
            let text = stream(&node, &upstream, dialect, whole.clone().cut_at(at)).await;
            assert_eq!(text.as_bytes(), whole.data(), "{dialect:?} cut at {at}");
        }
        for size in [1, 3] {
            let text = stream(&node, &upstream, dialect, whole.clone().in_pieces_of(size)).await;
            assert_eq!(text.as_bytes(), whole.data(), "{dialect:?} in {size}s");
        }
    }
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn every_kind_of_line_end_is_understood() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let lf = dialect.stream("pong").concat();
        let mut mixed = lf.replacen('\n', "\r\n", 3);
        mixed.insert(0, '\u{feff}');
        for text in [lf.replace('\n', "\r\n"), lf.replace('\n', "\r"), mixed] {
            for size in [1, 2, 100_000] {
                let reply = Reply::sse().send(&text).in_pieces_of(size);
                let got = stream(&node, &upstream, dialect, reply).await;
                assert_eq!(events(&got), events(&lf), "{dialect:?}");
            }
        }
    }
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn the_grammar_is_followed_to_the_letter() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let usual = Dialect::Chat.stream("pong").concat();
    let tight = usual.replace("data: ", "data:");
    let extra = usual.replace(
        "data: {",
        "id: 7\nretry: 10\nx-unknown: 1\nnothing\ndata: {",
    );
    let several = usual.replace("data: {\"id\":\"c1\",", "data: {\"id\":\"c1\",\ndata: ");
    for text in [tight, extra, several] {
        assert_ne!(text, usual);
        let got = stream(&node, &upstream, Dialect::Chat, Reply::sse().send(&text)).await;
        Dialect::Chat.expect_whole(&got, "pong");
    }
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn an_end_mark_that_is_missing_is_added() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in [Dialect::Chat, Dialect::Messages] {
        let mut frames = dialect.stream("pong");
        frames.pop();
        for reply in [
            Reply::frames(&frames),
            Reply::frames(&frames).end(Finish::Close),
        ] {
            let got = stream(&node, &upstream, dialect, reply).await;
            dialect.expect_whole(&got, "pong");
        }
    }
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn an_end_mark_that_comes_twice_is_passed_on_once() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let mut frames = dialect.stream("pong");
        frames.push(frames.last().unwrap().clone());
        let got = stream(&node, &upstream, dialect, Reply::frames(&frames)).await;
        dialect.expect_whole(&got, "pong");
    }
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn a_connection_that_stays_open_after_the_end_does_not_hold_the_client() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let reply = dialect.ok_stream("pong").end(Finish::Hang);
        let started = std::time::Instant::now();
        let got = stream(&node, &upstream, dialect, reply).await;
        dialect.expect_whole(&got, "pong");
        assert!(started.elapsed() < Duration::from_secs(5), "{dialect:?}");
    }
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn usage_chunks_and_null_usage_are_neither_errors_nor_ends() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let first = json!({"id": "", "choices": [], "prompt_filter_results": [], "usage": null,
        "error": null});
    let usage = json!({"id": "c1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}});
    let again = json!({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"total_tokens": 11}});
    let mut frames = Dialect::Chat.stream("pong");
    frames.insert(0, format!("data: {first}\n\n"));
    let done = frames.pop().unwrap();
    frames.push(format!("data: {usage}\n\n"));
    frames.push(format!("data: {again}\n\n"));
    frames.push(done);
    let got = stream(&node, &upstream, Dialect::Chat, Reply::frames(&frames)).await;
    Dialect::Chat.expect_whole(&got, "pong");
    assert!(
        got.contains("prompt_filter_results") && got.contains("\"prompt_tokens\":9"),
        "{got}"
    );
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn tool_calls_of_every_shape_go_through() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    let call = |fragment: serde_json::Value| {
        let chunk =
            json!({"id": "c1", "choices": [{"index": 0, "delta": {"tool_calls": [fragment]}}]});
        format!("data: {chunk}\n\n")
    };
    let finish =
        json!({"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]});
    let mut frames = Dialect::Chat.opening();
    frames.extend([
        call(json!({"index": 0, "id": "one", "function": {"name": "f", "arguments": ""}})),
        call(json!({"index": 1, "id": "two", "function": {"name": "g", "arguments": "{\"a\""}})),
        call(json!({"index": 0, "function": {"arguments": "{}"}})),
        call(json!({"index": 1, "id": "changed", "function": {"arguments": ":1}"}})),
        call(json!({"id": "three", "function": {"name": "h", "arguments": "{}"}})),
        format!("data: {finish}\n\n"),
        "data: [DONE]\n\n".to_owned(),
    ]);
    let got = stream(&node, &upstream, Dialect::Chat, Reply::frames(&frames)).await;
    // The bytes are the upstream's but for two repairs: an id sticks to its
    // first value, and a fragment without an index gets one.
    let calls: Vec<(u64, Option<String>, String)> = events(&got)
        .iter()
        .filter_map(|event| serde_json::from_str::<serde_json::Value>(&event.data).ok())
        .filter_map(|chunk| {
            chunk["choices"][0]["delta"]["tool_calls"]
                .as_array()
                .cloned()
        })
        .flatten()
        .map(|call| {
            (
                call["index"].as_u64().unwrap(),
                call["id"].as_str().map(str::to_owned),
                call["function"]["arguments"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    let text = |index: u64| -> String {
        let of_it = calls.iter().filter(|call| call.0 == index);
        of_it.map(|call| call.2.as_str()).collect()
    };
    assert_eq!(
        (text(0), text(1), text(2)),
        ("{}".into(), "{\"a\":1}".into(), "{}".into())
    );
    let ids: Vec<&str> = calls.iter().filter_map(|call| call.1.as_deref()).collect();
    assert!(!ids.contains(&"changed"), "{ids:?}");
    Dialect::Chat.expect_whole(&got, "");
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn a_whole_answer_where_a_stream_was_asked_for_becomes_one() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let got = stream(&node, &upstream, dialect, dialect.ok("pong")).await;
        dialect.expect_whole(&got, "pong");
    }
    expect_untouched(&node, &upstream).await;
}

#[tokio::test]
async fn a_stream_where_a_whole_answer_was_asked_for_becomes_one() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        upstream.script(&dialect.connection("a"), [dialect.ok_stream("pong")]);
        upstream.script(&dialect.connection("b"), [dialect.ok("pong")]);
        let answer = node.post(dialect.path(), &dialect.ask(false)).send().await;
        assert_eq!(answer.status, 200, "{dialect:?}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(
            dialect.text_of_answer(&answer.json()),
            "pong",
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn a_compressed_stream_is_inflated_and_a_broken_one_is_told() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let plain = dialect.stream("pong").concat();
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zip.write_all(plain.as_bytes()).unwrap();
        let zipped = Reply::sse()
            .send_bytes(&zip.finish().unwrap())
            .header("content-encoding", "gzip");
        upstream.script(&dialect.connection("a"), [zipped.in_pieces_of(5)]);
        let call = node
            .post(dialect.path(), &dialect.ask(true))
            .header("accept-encoding", "gzip");
        let answer = call.open().await;
        assert_eq!(answer.header("content-encoding"), None);
        assert_eq!(answer.finish().await, plain);
        let seen = upstream.request(&dialect.connection("a"), 1).await;
        assert!(
            matches!(seen.header("accept-encoding"), None | Some("identity")),
            "{:?}",
            seen.headers
        );

        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zip.write_all(dialect.opening().concat().as_bytes())
            .unwrap();
        zip.write_all(dialect.content("hel").as_bytes()).unwrap();
        zip.flush().unwrap();
        let cut = Reply::sse()
            .send_bytes(zip.get_ref())
            .header("content-encoding", "gzip");
        let got = stream(&node, &upstream, dialect, cut).await;
        dialect.expect_broken(&got, "hel");
    }
}

#[tokio::test]
async fn the_clients_wire_is_not_buffered_anywhere() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pairs(&upstream, &json!({}))).await;
    for dialect in Dialect::ALL {
        let gate = Gate::closed();
        let mut reply = Reply::frames(&dialect.opening());
        reply = reply.send(&dialect.content("first")).hold(&gate);
        for frame in dialect.closing("first") {
            reply = reply.send(&frame);
        }
        upstream.script(&dialect.connection("a"), [reply]);
        let call = node.post(dialect.path(), &dialect.ask(true));
        let mut stream = call.header("accept-encoding", "gzip, br").open().await;
        assert_eq!(stream.header("content-type"), Some("text/event-stream"));
        assert_eq!(stream.header("content-encoding"), None);
        assert_eq!(stream.header("x-accel-buffering"), Some("no"));
        let cache = stream.header("cache-control").unwrap_or_default();
        assert!(
            cache.contains("no-cache") && cache.contains("no-transform"),
            "{cache}"
        );
        stream.read_until("first").await;
        gate.open();
        stream.finish().await;
    }
}

#[tokio::test]
async fn a_silent_stream_is_kept_warm_for_the_client() {
    let upstream = Upstream::start().await;
    let config = pairs(&upstream, &json!({})).server("keepAliveMs", json!(200));
    let node = Node::start(&config).await;
    for dialect in Dialect::ALL {
        let gate = Gate::closed();
        let mut reply = Reply::frames(&dialect.opening());
        reply = reply.send(&dialect.content("pong")).hold(&gate);
        for frame in dialect.closing("pong") {
            reply = reply.send(&frame);
        }
        upstream.script(&dialect.connection("a"), [reply]);
        let mut stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
        stream.read_until("pong").await;
        while comments(&stream.text()).len() < 3 {
            assert!(stream.read_more().await);
        }
        gate.open();
        dialect.expect_whole(&stream.finish().await, "pong");
    }
}

#[tokio::test]
async fn keep_alives_stay_between_events() {
    let upstream = Upstream::start().await;
    let config = pairs(&upstream, &json!({})).server("keepAliveMs", json!(100));
    let node = Node::start(&config).await;
    for dialect in Dialect::ALL {
        let frame = dialect.content("pong");
        let (head, tail) = frame.split_at(frame.len() / 2);
        let mut reply = Reply::frames(&dialect.opening()).send(&dialect.content("a "));
        reply = reply.send(head).wait_ms(500).send(tail);
        for frame in dialect.closing("a pong") {
            reply = reply.send(&frame);
        }
        let got = stream(&node, &upstream, dialect, reply).await;
        dialect.expect_whole(&got, "a pong");
    }
}

#[tokio::test]
async fn early_keep_alives_settle_the_status_and_later_failures_are_told_in_band() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({}))
        .no_waiting()
        .server("keepAliveMs", json!(200))
        .server("earlyKeepAlive", json!(true));
    let node = Node::start(&config).await;
    for dialect in Dialect::ALL {
        for (reply, good) in [
            (dialect.ok_stream("pong"), true),
            (Reply::error(500, "boom"), false),
        ] {
            let gate = Gate::closed();
            upstream.script(&dialect.connection("a"), [reply.behind(&gate)]);
            let mut stream = node.post(dialect.path(), &dialect.ask(true)).open().await;
            assert_eq!(stream.status, 200);
            assert_eq!(stream.header("content-type"), Some("text/event-stream"));
            while comments(&stream.text()).len() < 2 {
                assert!(stream.read_more().await);
            }
            gate.open();
            let text = stream.finish().await;
            if good {
                dialect.expect_whole(&text, "pong");
            } else {
                dialect.expect_broken(&text, "");
            }
        }
    }
}

#[tokio::test]
async fn without_early_keep_alives_the_status_stays_open() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a"], &json!({}))
        .no_waiting()
        .server("keepAliveMs", json!(50))
        .server("earlyKeepAlive", json!(false));
    let node = Node::start(&config).await;
    for dialect in Dialect::ALL {
        upstream.script(
            &dialect.connection("a"),
            [Reply::error(500, "boom").after_ms(400)],
        );
        let answer = node.post(dialect.path(), &dialect.ask(true)).send().await;
        assert!(answer.status >= 500, "{}: {}", answer.status, answer.text());
    }
}

#[tokio::test]
async fn a_server_that_never_marks_its_end_can_be_declared_so() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .provider_with(
            "acme",
            "openai",
            &upstream.url(),
            json!({"lenientStreamEnd": true}),
        )
        .connection("a", "acme");
    let node = Node::start(&config).await;
    let frames = [
        Dialect::Chat.opening().concat(),
        Dialect::Chat.content("pong"),
    ];
    upstream.script("a", [Reply::frames(&frames)]);
    let body = Dialect::Chat.request("acme/m", true);
    let text = node
        .post("/v1/chat/completions", &body)
        .open()
        .await
        .finish()
        .await;
    Dialect::Chat.expect_whole(&text, "pong");
    assert_eq!(node.connection("a").await["connectionStatus"], "healthy");
}
