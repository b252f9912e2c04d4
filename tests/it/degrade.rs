//! What is served in a smaller form rather than refused: background requests,
//! tools beyond a provider's limit, and a request whose provider is out of money.

mod emergency;

use cluster_tests::client::Answer;
use cluster_tests::cluster::Plan;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const WARNING: &str = "x-omniroute-warning";

fn responses(upstream: &Upstream) -> Config {
    Config::new()
        .no_waiting()
        .provider("acme", "responses", &upstream.url())
        .connection_with("a", "acme", json!({"priority": 1}))
        .connection_with("b", "acme", json!({"priority": 2}))
}

async fn respond(node: &Node, stream: bool, background: Option<Value>) -> Answer {
    let mut body = Dialect::Responses.request("acme/m", stream);
    if let Some(background) = background {
        body["background"] = background;
    }
    node.post("/v1/responses", &body).send().await
}

/// BG-01: run at once, and said so.
#[tokio::test]
async fn a_background_request_is_run_at_once_and_says_so() {
    for stream in [false, true] {
        let upstream = Upstream::start().await;
        let node = Node::start(&responses(&upstream)).await;
        let good = if stream {
            Dialect::Responses.ok_stream("pong")
        } else {
            Dialect::Responses.ok("pong")
        };
        // Whoever serves it in the end.
        upstream.script("a", [Reply::limited(60)]);
        upstream.script("b", [good]);
        let answer = respond(&node, stream, Some(json!(true))).await;
        let answer = answer.expect_status(200);
        assert_eq!(answer.header(WARNING), Some("background_degraded"));
        for seen in upstream.requests() {
            let sent = seen.json();
            assert_ne!(sent["background"], json!(true), "{sent}");
            assert_eq!(sent["input"], "ping", "{sent}");
        }
        if stream {
            Dialect::Responses.expect_whole(&answer.text(), "pong");
        } else {
            let body = answer.json();
            assert_eq!(Dialect::Responses.text_of_answer(&body), "pong");
            let metadata = body["metadata"].to_string();
            assert!(metadata.contains("background_degraded"), "{body}");
        }
    }
}

/// What the upstream put into the metadata stays.
#[tokio::test]
async fn the_answers_own_metadata_stays() {
    let upstream = Upstream::start().await;
    let node = Node::start(&responses(&upstream)).await;
    let mut answer = Dialect::Responses.answer("pong");
    answer["metadata"] = json!({"order": "17"});
    upstream.script("a", [Reply::json(200, &answer)]);
    let body = respond(&node, false, Some(json!(true))).await;
    let body = body.expect_status(200).json();
    assert_eq!(body["metadata"]["order"], "17", "{body}");
    let metadata = body["metadata"].to_string();
    assert!(metadata.contains("background_degraded"), "{body}");
}

/// BG-02.
#[tokio::test]
async fn an_ordinary_request_carries_no_warning() {
    for background in [None, Some(json!(false)), Some(Value::Null)] {
        for stream in [false, true] {
            let upstream = Upstream::start().await;
            let node = Node::start(&responses(&upstream)).await;
            let good = if stream {
                Dialect::Responses.ok_stream("pong")
            } else {
                Dialect::Responses.ok("pong")
            };
            upstream.script("a", [good]);
            let answer = respond(&node, stream, background.clone()).await;
            let answer = answer.expect_status(200);
            assert_eq!(answer.header(WARNING), None, "{background:?}");
            assert!(!answer.text().contains("background_degraded"));
        }
    }
}

fn chat(upstream: &Upstream) -> Config {
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"priority": 1}))
        .provider("other", "openai", &upstream.url())
        .connection("o", "other")
}

async fn with_tools(node: &Node, model: &str, count: usize) -> Answer {
    let mut body = Dialect::Chat.request(model, false);
    body["tools"] = (0..count)
        .map(|n| {
            json!({"type": "function",
                "function": {"name": format!("tool_{n}"), "parameters": {"type": "object"}}})
        })
        .collect();
    node.post("/v1/chat/completions", &body).send().await
}

/// The names of the tools in the last request of a connection.
fn sent(upstream: &Upstream, id: &str) -> Vec<String> {
    let seen = upstream.requests_of(id);
    let body = seen.last().expect("nothing was sent").json();
    let tools = body["tools"].as_array().cloned().unwrap_or_default();
    tools
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn expect_first(upstream: &Upstream, id: &str, count: usize, what: &str) {
    let wanted: Vec<String> = (0..count).map(|n| format!("tool_{n}")).collect();
    assert_eq!(sent(upstream, id), wanted, "{what}");
}

/// TL-03, TL-04, and what else the variable may say.
#[tokio::test]
async fn no_provider_is_sent_more_tools_than_the_limit() {
    for (value, limit) in [
        (None, 128),
        (Some("0"), 128),
        (Some("-3"), 128),
        (Some("many"), 128),
        (Some(""), 128),
        (Some("5"), 5),
        (Some("300"), 300),
    ] {
        let upstream = Upstream::start().await;
        upstream.script_all([Dialect::Chat.ok("pong")]);
        let setup = Setup::with(&chat(&upstream));
        let setup = match value {
            None => setup,
            Some(value) => setup.env("OMNIROUTE_MAX_TOOLS_LIMIT", value),
        };
        let node = setup.start().await;
        for count in [1, limit, limit + 40] {
            with_tools(&node, "acme/m", count).await.expect_status(200);
            expect_first(&upstream, "a", count.min(limit), &format!("{value:?}"));
        }
    }
}

#[tokio::test]
async fn a_limit_is_learned_from_the_refusal_that_states_it() {
    for (words, limit) in [
        ("maximum number of tools is 64", 64),
        ("The MAXIMUM number of Tools allowed is 7.", 7),
        (
            "Invalid 'tools': array too long. Expected an array with maximum length 64, \
             but got an array with length 100 instead.",
            64,
        ),
        ("tools: the maximum number of items is 20", 20),
        // Nothing is learned: out of bounds, or not stated.
        ("maximum number of tools is 20000", 100),
        ("maximum number of tools is 0", 100),
        ("too many tools", 100),
        ("the maximum is 64", 100),
    ] {
        let upstream = Upstream::start().await;
        upstream.script_all([Dialect::Chat.ok("pong")]);
        upstream.script("a", [Reply::error(400, words), Dialect::Chat.ok("pong")]);
        let node = Node::start(&chat(&upstream)).await;
        with_tools(&node, "acme/m", 100).await;
        with_tools(&node, "acme/m", 100).await.expect_status(200);
        expect_first(&upstream, "a", limit, words);
        // Another provider has a limit of its own.
        with_tools(&node, "other/m", 100).await.expect_status(200);
        expect_first(&upstream, "o", 100, words);
    }
}

/// TL-02: only a 400 states it.
#[tokio::test]
async fn other_refusals_teach_nothing() {
    for status in [500, 429, 403] {
        let upstream = Upstream::start().await;
        let words = "maximum number of tools is 64";
        upstream.script("a", [Reply::error(status, words), Dialect::Chat.ok("pong")]);
        let node = Node::start(&chat(&upstream)).await;
        with_tools(&node, "acme/m", 100).await;
        let reset = node.admin_call("POST", "/api/connections/a/reset");
        reset.send().await.expect_status(200);
        with_tools(&node, "acme/m", 100).await.expect_status(200);
        expect_first(&upstream, "a", 100, &status.to_string());
    }
}

#[tokio::test]
async fn what_one_node_learned_all_know_also_after_a_restart() {
    let plan = Plan::of(2);
    let mut cluster = plan
        .start(|upstream| {
            let stated = Reply::error(400, "maximum number of tools is 64");
            upstream.script("a", [stated, Dialect::Chat.ok("pong")]);
            chat(upstream)
        })
        .await;
    with_tools(&cluster.nodes[0], "acme/m", 100).await;
    with_tools(&cluster.nodes[0], "acme/m", 100)
        .await
        .expect_status(200);
    expect_first(&cluster.upstream, "a", 64, "the first node");
    cluster_tests::wait::eventually("the other node knows it", || async {
        let node = &cluster.nodes[1];
        with_tools(node, "acme/m", 100).await.expect_status(200);
        (sent(&cluster.upstream, "a").len() == 64).then_some(())
    })
    .await;
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    with_tools(&cluster.nodes[1], "acme/m", 100)
        .await
        .expect_status(200);
    expect_first(&cluster.upstream, "a", 64, "after a restart");
}

/// Every other byte of the body goes through as it came.
#[tokio::test]
async fn only_the_tools_are_shortened() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let setup = Setup::with(&chat(&upstream)).env("OMNIROUTE_MAX_TOOLS_LIMIT", "2");
    let node = setup.start().await;
    let mut body = Dialect::Chat.request("acme/m", false);
    body["tools"] = json!([
        {"type": "function", "function": {"name": "one", "description": "a \"]\" \\ }"}},
        {"type": "function", "function": {"name": "two", "parameters": {"enum": [1, [2]]}}},
        {"type": "function", "function": {"name": "three"}},
    ]);
    body["metadata"] = json!({"tools": [1, 2, 3, 4]});
    body["unheard_of"] = json!({"keep": [true, null, 1.5e300]});
    node.post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);
    body["model"] = json!("m");
    body["tools"].as_array_mut().unwrap().truncate(2);
    assert_eq!(upstream.requests_of("a")[0].json(), body);
}
