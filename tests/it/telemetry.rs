//! Traces as a collector gets them. The collector is a scripted upstream; the
//! exporter presents `collector-secret` to it.

pub(crate) mod spans;

use std::time::{Duration, Instant};

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::{Node, Setup, field};
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::{BlackHole, Refused, Upstream};
use cluster_tests::wait::{SOON, eventually};
use serde_json::{Value, json};

use spans::{Span, collected, whole_trace};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

fn config(upstream: &Upstream) -> Config {
    all_providers(&upstream.url(), &["a", "b"], &json!({})).no_waiting()
}

/// A node that exports to `address` without delay.
fn traced(config: &Config, address: &str) -> Setup {
    Setup::with(config)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
        .env(
            "OTEL_EXPORTER_OTLP_HEADERS",
            "authorization=Bearer%20collector-secret",
        )
        .env("OTEL_BSP_SCHEDULE_DELAY", "20")
}

fn address(upstream: &Upstream) -> String {
    format!("http://{}", upstream.addr())
}

async fn collector() -> Upstream {
    let collector = Upstream::start().await;
    collector.script_all([Reply::json(200, &json!({}))]);
    collector
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.ask(false);
    let call = node.post("/v1/chat/completions", &body);
    call.header("traceparent", PARENT).send().await
}

/// The log's line about the request of this answer.
async fn line(node: &Node, answer: &Answer) -> Value {
    let id = answer.header("x-request-id").unwrap();
    eventually("the request is logged", || async {
        let records = node.log().records();
        let mut about = records.into_iter();
        about.find(|record| field(record, "request_id") == Some(id))
    })
    .await
}

#[tokio::test]
async fn a_failed_over_request_is_one_trace() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let config = config(&upstream)
        .api_key("team", "the-teams-key", json!({}))
        .server("adminToken", json!("the-admin-token"));
    let setup = traced(&config, &address(&collector))
        .env(
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment.name=test",
        )
        .env("RUST_LOG", "trace");
    let mut node = setup.start().await;
    let words = "slow down, key-chat-a: Bearer key-chat-a";
    let limited = Reply::error(429, words).header("retry-after", "60");
    upstream.script("chat-a", [limited]);
    upstream.script("chat-b", [Dialect::Chat.ok("pong")]);
    let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(false));
    let call = call
        .bearer("the-teams-key")
        .header("traceparent", PARENT)
        .header("tracestate", "vendor=state")
        .header("baggage", "user=somebody")
        .header("cookie", "the-cookie");
    let answer = call.send().await.expect_status(200);
    let [server, first, second] = whole_trace(&collector, 3).await.try_into().unwrap();

    server.expect("name", &json!("POST /v1/chat/completions"));
    server.expect("kind", &json!(2));
    server.expect("traceId", &json!(TRACE_ID));
    server.expect("parentSpanId", &json!("b7ad6b7169203331"));
    assert!(!server.is_error());
    for (name, value) in [
        ("http.request.method", json!("POST")),
        ("http.route", json!("/v1/chat/completions")),
        ("http.response.status_code", json!(200)),
        ("gen_ai.operation.name", json!("chat")),
        ("omniroute.outcome", json!("success")),
        ("omniroute.attempts", json!(2)),
        ("omniroute.api_key", json!("team")),
        (
            "omniroute.request_id",
            json!(answer.header("x-request-id").unwrap()),
        ),
    ] {
        server.expect_attribute(name, Some(&value));
    }
    expect_failed(&server, &first);
    expect_succeeded(&server, &second);
    assert!(first.starts() <= first.ends() && first.ends() <= second.starts());
    assert!(server.starts() <= first.starts() && second.ends() <= server.ends());

    let logged = line(&node, &answer).await;
    assert_eq!(field(&logged, "trace_id"), Some(TRACE_ID), "{logged}");
    let id = answer.header("x-request-id").unwrap();
    let kept = node.get(&format!("/api/requests/{id}"));
    let kept = kept.bearer("the-admin-token").send().await.json();
    assert_eq!(kept["traceId"], TRACE_ID, "{kept}");
    for seen in upstream.requests() {
        for name in ["traceparent", "tracestate", "baggage"] {
            assert_eq!(seen.header(name), None, "{name} went upstream");
        }
    }
    node.stop().await;
    expect_no_secrets(&node, &collector);
}

fn expect_failed(server: &Span, attempt: &Span) {
    attempt.expect("kind", &json!(3));
    attempt.expect("parentSpanId", &server.0["spanId"]);
    attempt.expect("traceId", &json!(TRACE_ID));
    assert!(attempt.is_error());
    for (name, value) in [
        ("gen_ai.provider.name", json!("chat")),
        ("gen_ai.operation.name", json!("chat")),
        ("omniroute.connection", json!("chat-a")),
        ("omniroute.attempt", json!(1)),
        ("http.response.status_code", json!(429)),
        ("error.type", json!("rate_limit_exceeded")),
        ("omniroute.reason", json!("rate_limit_exceeded")),
        ("omniroute.hint.source", json!("header")),
        ("omniroute.hint.field", json!("retry-after")),
        ("server.address", json!("127.0.0.1")),
    ] {
        attempt.expect_attribute(name, Some(&value));
    }
    let until = attempt.attribute("omniroute.cooled_until").unwrap();
    assert!(until.as_str().is_some_and(|until| until.ends_with('Z')));
}

fn expect_succeeded(server: &Span, attempt: &Span) {
    attempt.expect("kind", &json!(3));
    attempt.expect("parentSpanId", &server.0["spanId"]);
    assert!(!attempt.is_error());
    for (name, value) in [
        ("omniroute.connection", Some(json!("chat-b"))),
        ("omniroute.attempt", Some(json!(2))),
        ("http.request.resend_count", Some(json!(1))),
        ("http.response.status_code", Some(json!(200))),
        ("error.type", None),
        ("omniroute.cooled_until", None),
    ] {
        attempt.expect_attribute(name, value.as_ref());
    }
}

fn expect_no_secrets(node: &Node, collector: &Upstream) {
    let mut places = vec![("the log", node.log().text())];
    for seen in collector.requests() {
        assert_eq!(seen.key, "collector-secret", "the header was not sent");
        assert_eq!(seen.path, "/v1/traces");
        let text = String::from_utf8_lossy(&seen.body).into_owned();
        assert!(text.contains("deployment.environment.name"), "{text}");
        places.push(("an export", text));
    }
    for (place, text) in places {
        for secret in [
            "key-chat-a",
            "key-chat-b",
            "the-teams-key",
            "the-admin-token",
            "collector-secret",
            "the-cookie",
            "somebody",
        ] {
            assert!(!text.contains(secret), "{secret} in {place}: {text}");
        }
    }
}

#[tokio::test]
async fn every_way_to_end_is_told() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let node = traced(&config(&upstream), &address(&collector))
        .start()
        .await;
    let chat = Dialect::Chat;
    // A stream that breaks after its first content.
    upstream.script("chat-a", [Reply::sse().send(&chat.content("hel"))]);
    let stream = node.post(chat.path(), &chat.ask(true)).open().await;
    chat.expect_broken(&stream.finish().await, "hel");
    let [server, attempt] = whole_trace(&collector, 2).await.try_into().unwrap();
    assert!(server.is_error() && attempt.is_error());
    server.expect_attribute("omniroute.outcome", Some(&json!("stream_failed")));
    server.expect_attribute("error.type", Some(&json!("stream_failed")));
    attempt.expect_attribute("error.type", Some(&json!("server_error")));

    // A client that goes away before anything was answered.
    let never = Gate::closed();
    let messages = Dialect::Messages;
    upstream.script("messages-a", [messages.ok("late").behind(&never)]);
    let call = node.post(messages.path(), &messages.ask(false)).try_send();
    let waiting = tokio::spawn(call);
    upstream.request("messages-a", 1).await;
    waiting.abort();
    let [server, attempt] = whole_trace(&collector, 4).await[2..]
        .to_vec()
        .try_into()
        .unwrap();
    assert!(!server.is_error() && !attempt.is_error());
    server.expect_attribute("omniroute.outcome", Some(&json!("client_gone")));
    attempt.expect_attribute("omniroute.outcome", Some(&json!("client_gone")));

    // An upstream's own code is told to the client, and to nobody else.
    let own = json!({"error": {"message": "no", "code": "their-own-code"}});
    let responses = Dialect::Responses;
    upstream.script("responses-a", [Reply::json(400, &own)]);
    let call = node.post(responses.path(), &responses.ask(false));
    let answer = call.send().await.expect_status(400);
    assert_eq!(answer.code(), "their-own-code");
    let spans = whole_trace(&collector, 6).await;
    let text = format!("{:?}", &spans[4..]);
    assert!(!text.contains("their-own-code"), "{text}");
    assert!(spans[4].attribute("error.type").is_some(), "{text}");

    // A request that never got as far as an upstream.
    let body = chat.request("no-such-model", false);
    node.post(chat.path(), &body)
        .send()
        .await
        .expect_status(404);
    let [server] = whole_trace(&collector, 7).await[6..]
        .to_vec()
        .try_into()
        .unwrap();
    assert!(!server.is_error());
    server.expect_attribute("error.type", Some(&json!("model_not_found")));
    server.expect_attribute("http.response.status_code", Some(&json!(404)));
}

#[tokio::test]
async fn a_bad_parent_begins_a_trace_of_its_own() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let node = traced(&config(&upstream), &address(&collector))
        .start()
        .await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let long = format!("{PARENT}{}", "-00".repeat(10_000));
    let parents = [
        "",
        "nonsense",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        &long,
    ];
    for parent in parents {
        let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(false));
        let call = call.header("traceparent", parent);
        call.send().await.expect_status(200);
    }
    // Two of them are none.
    let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(false));
    let call = call
        .header("traceparent", PARENT)
        .header("traceparent", PARENT);
    call.send().await.expect_status(200);
    let spans = whole_trace(&collector, 10).await;
    let servers: Vec<&Span> = spans.iter().filter(|span| span.0["kind"] == 2).collect();
    assert_eq!(servers.len(), 5);
    for server in servers {
        assert_ne!(server.0["traceId"], TRACE_ID);
        let parent = server.0["parentSpanId"].as_str().unwrap_or_default();
        assert_eq!(parent, "", "{server:?}");
    }
}

#[tokio::test]
async fn protobuf_and_gzip_are_spoken_too_and_the_service_has_a_name() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    for (name, value, content_type, encoding) in [
        (
            "OTEL_SERVICE_NAME",
            "my-router",
            "application/x-protobuf",
            None,
        ),
        (
            "OTEL_EXPORTER_OTLP_COMPRESSION",
            "gzip",
            "application/x-protobuf",
            Some("gzip"),
        ),
    ] {
        let before = collector.requests().len();
        let setup = Setup::with(&config(&upstream))
            .env(
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
                &format!("{}/in", address(&collector)),
            )
            .env(name, value);
        let mut node = setup.start().await;
        upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
        ask(&node).await.expect_status(200);
        // The usual delay is 5 s: the stop sends what waits.
        node.stop().await;
        let exports = collector.requests().split_off(before);
        assert_eq!(exports.len(), 1);
        assert_eq!(exports[0].path, "/in");
        assert_eq!(exports[0].header("content-type"), Some(content_type));
        assert_eq!(exports[0].header("content-encoding"), encoding);
        if encoding.is_none() {
            let text = String::from_utf8_lossy(&exports[0].body).into_owned();
            assert!(
                text.contains("my-router") && text.contains("chat-a"),
                "{text}"
            );
        }
    }
}

#[tokio::test]
async fn a_collector_that_is_away_is_one_line_and_no_slow_request() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let mut node = traced(&config(&upstream), &address(&collector))
        .start()
        .await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    for (reply, lines) in [
        (
            Reply::error(401, "who are you"),
            ["does not take traces", "status 401"],
        ),
        (Reply::json(200, &json!({})), ["takes traces again", ""]),
    ] {
        collector.script_all([reply]);
        for _ in 0..3 {
            let before = collector.requests().len();
            ask(&node).await.expect_status(200);
            eventually("an export is tried", || async {
                (collector.requests().len() > before).then_some(())
            })
            .await;
        }
        let told = |line: &str| lines.iter().all(|words| line.contains(words));
        node.log().line(lines[0], told).await;
    }
    node.stop().await;
    let lines = node.log().lines();
    let count = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
    assert_eq!(count("does not take traces"), 1, "{lines:?}");
    assert_eq!(count("takes traces again"), 1, "{lines:?}");
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let mut node = traced(&config(&upstream), &address(&collector))
        .start()
        .await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    collector.script_all([Reply::error(503, "busy"), Reply::json(200, &json!({}))]);
    ask(&node).await.expect_status(200);
    eventually("the batch is sent again", || async {
        let requests = collector.requests();
        let same = requests.len() >= 2 && requests[0].body == requests[1].body;
        same.then_some(())
    })
    .await;
    node.stop().await;
    let log = node.log().text();
    assert!(!log.contains("does not take traces"), "{log}");
}

#[tokio::test]
async fn without_a_collector_requests_are_served_and_the_process_stops_in_time() {
    let upstream = Upstream::start().await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let (refused, hole) = (Refused::new(), BlackHole::start().await);
    for url in [refused.url(), hole.url()] {
        // A queue of one: what does not fit is dropped, and nobody waits for it.
        let setup = traced(&config(&upstream), &url).env("OTEL_BSP_MAX_QUEUE_SIZE", "1");
        let mut node = setup.start().await;
        for _ in 0..20 {
            let answer = ask(&node).await.expect_status(200);
            assert!(answer.took < Duration::from_secs(2), "{:?}", answer.took);
        }
        let started = Instant::now();
        let status = node.stop().await;
        assert_eq!(status.code(), Some(0), "{status}");
        assert!(
            started.elapsed() < Duration::from_secs(6),
            "{:?}",
            started.elapsed()
        );
    }
}

#[tokio::test]
async fn it_is_off_unless_asked_for() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let here = traced(&config(&upstream), &address(&collector));
    for setup in [
        traced(&config(&upstream), ""),
        here.clone().env("OTEL_SDK_DISABLED", "true"),
        here.clone().env("OTEL_TRACES_EXPORTER", "none"),
    ] {
        let mut node = setup.start().await;
        let answer = ask(&node).await.expect_status(200);
        let logged = line(&node, &answer).await;
        assert_eq!(field(&logged, "trace_id"), None, "{logged}");
        assert_eq!(node.trace(&answer).await["traceId"], Value::Null);
        node.stop().await;
    }
    // On, but not for this one: its parent is not sampled.
    let mut node = here.start().await;
    let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(false));
    let unsampled = PARENT.replace("-01", "-00");
    let call = call.header("traceparent", &unsampled);
    let answer = call.send().await.expect_status(200);
    let logged = line(&node, &answer).await;
    assert_eq!(field(&logged, "trace_id"), Some(TRACE_ID), "{logged}");
    node.stop().await;
    assert!(collected(&collector).is_empty());
}

#[tokio::test]
async fn bad_values_are_named_and_the_node_starts() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let setup = traced(&config(&upstream), &address(&collector))
        .env("OTEL_TRACES_SAMPLER", "sometimes")
        .env("OTEL_BSP_MAX_QUEUE_SIZE", "many")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "header-secret");
    let mut node = setup.start().await;
    for name in [
        "OTEL_TRACES_SAMPLER: ",
        "OTEL_BSP_MAX_QUEUE_SIZE: ",
        "OTEL_EXPORTER_OTLP_HEADERS: ",
    ] {
        node.log().line(name, |line| line.contains(name)).await;
    }
    ask(&node).await.expect_status(200);
    whole_trace(&collector, 2).await;
    node.process().signal(nix::sys::signal::Signal::SIGTERM);
    node.process().exit(SOON).await;
    let log = node.log().text();
    assert!(!log.contains("header-secret"), "{log}");
}
