//! Background responses are run while the client waits, and say so.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, field};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const WARNING: &str = "x-omniroute-warning";

async fn node(upstream: &Upstream) -> Node {
    let config = Config::new()
        .no_waiting()
        .provider("r", "responses", &upstream.url())
        .connection("a", "r");
    Node::start(&config).await
}

fn body(background: Option<bool>, stream: bool) -> Value {
    let mut body = Dialect::Responses.request("r/m", stream);
    if let Some(background) = background {
        body["background"] = json!(background);
    }
    body
}

#[tokio::test]
async fn a_background_response_is_answered_at_once_with_a_warning() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Dialect::Responses.ok("pong")]);
    let mut node = node(&upstream).await;
    let call = node.post("/v1/responses", &body(Some(true), false));
    let answer = call.send().await.expect_status(200);
    assert_eq!(answer.header(WARNING), Some("background_degraded"), "BG-01");
    let told = answer.json();
    assert_eq!(
        told["metadata"]["omniroute_warning"], "background_degraded",
        "{told}"
    );
    assert_eq!(told["status"], "completed", "{told}");
    let sent = upstream.request("a", 1).await.json();
    assert_eq!(sent.get("background"), None, "{sent}");
    assert_eq!(sent["input"], "ping");
    let trace = node.trace(&answer).await;
    assert_eq!(trace["warnings"], json!(["background_degraded"]), "{trace}");
    node.stop().await;
    let records = node.log().records();
    let said = |record: &&Value| field(record, "warning") == Some("background_degraded");
    assert_eq!(records.iter().filter(said).count(), 1);
}

#[tokio::test]
async fn a_stream_of_one_is_marked_too() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Dialect::Responses.ok_stream("pong")]);
    let node = node(&upstream).await;
    let call = node.post("/v1/responses", &body(Some(true), true));
    let answer = call.send().await.expect_status(200);
    assert_eq!(answer.header(WARNING), Some("background_degraded"));
    assert_eq!(Dialect::Responses.text_of(&answer.text()), "pong");
}

#[tokio::test]
async fn others_are_not_marked() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Dialect::Responses.ok("pong")]);
    let node = node(&upstream).await;
    for background in [None, Some(false)] {
        let call = node.post("/v1/responses", &body(background, false));
        let answer = call.send().await.expect_status(200);
        assert_eq!(answer.header(WARNING), None, "BG-02");
        assert!(!answer.text().contains("omniroute_warning"));
    }
}
