//! Errors inside a 200, before anything of it went to the client, are of the
//! class of the status that they stand for.

use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::json;

use super::{Knob, expect_untouched, on, threshold, with_variables};

async fn start(upstream: &Upstream, knobs: &[Knob]) -> Node {
    let config = all_providers(&upstream.url(), &["a", "b"], &json!({})).no_waiting();
    for dialect in Dialect::ALL {
        upstream.script(&dialect.connection("b"), [dialect.ok_stream("pong")]);
    }
    with_variables(Setup::with(&config), knobs).start().await
}

/// Asks for a stream and says whether `b` was tried.
async fn goes_on(node: &Node, upstream: &Upstream, dialect: Dialect) -> bool {
    let (a, b) = (dialect.connection("a"), dialect.connection("b"));
    let before = (upstream.count(&a), upstream.count(&b));
    let answer = node.post(dialect.path(), &dialect.ask(true)).send().await;
    assert!(upstream.count(&a) > before.0, "{dialect:?}: not asked");
    let served = answer.text().contains("pong");
    let tried = upstream.count(&b) > before.1;
    assert_eq!(served, tried, "{dialect:?}: {}", answer.text());
    tried
}

/// An error of a class, at once and after the handshake.
fn errors(dialect: Dialect, class: &str) -> [Reply; 2] {
    let event = match (class, dialect) {
        ("429", _) => dialect.error_event("rate_limit_error", "Rate limit reached"),
        (_, Dialect::Messages) => dialect.error_event("overloaded_error", "Overloaded"),
        (_, Dialect::Chat | Dialect::Responses) => dialect.error_event("server_error", "boom"),
    };
    let mut opened = dialect.opening();
    opened.push(event.clone());
    [Reply::frames(&[event]), Reply::frames(&opened)]
}

#[tokio::test]
async fn a_class_that_is_off_ends_streams_too() {
    for off in ["429", "500"] {
        let upstream = Upstream::start().await;
        let node = start(&upstream, &[on(off, false)]).await;
        for dialect in Dialect::ALL {
            let a = dialect.connection("a");
            for reply in errors(dialect, off) {
                upstream.script(&a, [reply.clone()]);
                let went = goes_on(&node, &upstream, dialect).await;
                assert!(!went, "{dialect:?}, {off} is off: {reply:?}");
                expect_untouched(&node.connection(&a).await, &format!("{reply:?}"));
            }
            let other = if off == "429" { "500" } else { "429" };
            let [reply, _] = errors(dialect, other);
            upstream.script(&a, [reply.clone()]);
            let went = goes_on(&node, &upstream, dialect).await;
            assert!(went, "{dialect:?}, only {off} is off: {reply:?}");
        }
    }
}

#[tokio::test]
async fn they_count_like_any_other() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start().await;
        let node = start(&upstream, &[threshold("429", 3)]).await;
        let a = dialect.connection("a");
        let [first, second] = errors(dialect, "429");
        upstream.script(&a, [first, Reply::error(429, "slow down"), second]);
        for n in 1..=2 {
            let went = goes_on(&node, &upstream, dialect).await;
            assert!(!went, "{dialect:?}: failure {n} of 3");
            expect_untouched(&node.connection(&a).await, &format!("{dialect:?} {n}"));
        }
        assert!(goes_on(&node, &upstream, dialect).await, "{dialect:?}");
        let a = node.connection(&a).await;
        assert_eq!(a["connectionStatus"], "cooling_down", "{dialect:?}: {a}");
    }
}

/// A whole answer of status 200 that holds nothing but an error.
#[tokio::test]
async fn so_does_a_whole_answer_that_is_an_error() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, &[on("429", false)]).await;
    let told = json!({"error": {"message": "Rate limit reached", "code": 429}});
    upstream.script("chat-a", [Reply::json(200, &told)]);
    let body = Dialect::Chat.ask(false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(upstream.count("chat-b"), 0);
    expect_untouched(&node.connection("chat-a").await, "an error in a 200");
}
