//! Requests that bring more tools than a provider takes.

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

fn config(url: &str) -> Config {
    Config::new()
        .no_waiting()
        .provider("small", "openai", url)
        .provider("large", "openai", url)
        .connection("s", "small")
        .connection("l", "large")
        .combo("both", &["small/m", "large/m"])
}

async fn ask(node: &Node, model: &str, tools: usize) -> Answer {
    let mut body = Dialect::Chat.request(model, false);
    let tool = |at| json!({"type": "function", "function": {"name": format!("t{at}")}});
    body["tools"] = Value::Array((0..tools).map(tool).collect());
    node.post("/v1/chat/completions", &body).send().await
}

fn too_many() -> Reply {
    let message = "Invalid 'tools': array too long. Expected an array with maximum length 64, \
                   but got an array with length 100 instead.";
    Reply::error(400, message)
}

#[tokio::test]
async fn more_than_the_usual_limit_is_refused_before_it_is_sent() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let node = Node::start(&config(&upstream.url())).await;
    ask(&node, "small/m", 128).await.expect_status(200);
    let refused = ask(&node, "small/m", 129).await.expect_status(400);
    assert_eq!(refused.code(), "too_many_tools");
    let text = refused.text();
    for said in ["129 tools", "`small`", "at most 128", "settings.maxTools"] {
        assert!(text.contains(said), "{said} in {text}");
    }
    assert_eq!(upstream.requests().len(), 1);
    let config = config(&upstream.url()).set(&["settings", "maxTools"], json!(200));
    let node = Node::start(&config).await;
    ask(&node, "small/m", 200).await.expect_status(200);
    ask(&node, "small/m", 201).await.expect_status(400);
}

#[tokio::test]
async fn the_variable_gives_the_usual_limit() {
    for (value, limit) in [("10", 10), ("0", 128), ("many", 128)] {
        let upstream = Upstream::start().await;
        upstream.script_all([Dialect::Chat.ok("pong")]);
        let setup = Setup::with(&config(&upstream.url()));
        let node = setup.env("OMNIROUTE_MAX_TOOLS_LIMIT", value).start().await;
        ask(&node, "small/m", limit).await.expect_status(200);
        ask(&node, "small/m", limit + 1).await.expect_status(400);
    }
}

#[tokio::test]
async fn a_limit_that_a_provider_states_is_learned_and_others_are_tried() {
    let upstream = Upstream::start().await;
    upstream.script("s", [too_many()]);
    upstream.script("l", [Dialect::Chat.ok("from large")]);
    let mut node = Node::start(&config(&upstream.url())).await;
    assert_eq!(ask(&node, "small/m", 100).await.status, 400);
    let refused = ask(&node, "small/m", 65).await.expect_status(400);
    assert_eq!(refused.code(), "too_many_tools");
    let text = refused.text();
    assert!(
        text.contains("at most 64") && text.contains("said itself"),
        "{text}"
    );
    assert_eq!(upstream.count("s"), 1, "not sent again");
    let answer = ask(&node, "both", 100).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-provider"), Some("large"));
    let trace = node.trace(&answer).await;
    assert_eq!(trace["excluded"][0]["detail"], "too_many_tools", "{trace}");
    upstream.script("s", [Dialect::Chat.ok("pong")]);
    ask(&node, "small/m", 64).await.expect_status(200);
    node.stop().await;
    let node = node.start_again().await;
    assert_eq!(ask(&node, "small/m", 65).await.code(), "too_many_tools");
}

#[tokio::test]
async fn what_one_node_learned_all_know() {
    let cluster = Cluster::start(2, |upstream| {
        upstream.script("s", [too_many()]);
        config(&upstream.url())
    })
    .await;
    assert_eq!(ask(&cluster.nodes[0], "small/m", 100).await.status, 400);
    eventually("the other node knows it", || async {
        let refused = ask(&cluster.nodes[1], "small/m", 100).await;
        (refused.code() == "too_many_tools").then_some(())
    })
    .await;
}
