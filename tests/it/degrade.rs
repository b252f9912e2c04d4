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
use cluster_tests::wait::eventually;
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
        .combo("both", &["acme/m", "other/m"])
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

/// How many tools the last request of a connection brought.
fn sent(upstream: &Upstream, id: &str) -> usize {
    let seen = upstream.requests_of(id);
    let body = seen.last().expect("nothing was sent").json();
    body["tools"].as_array().map_or(0, Vec::len)
}

/// What `acme` takes is sent whole, one more not at all.
async fn expect_limit(node: &Node, upstream: &Upstream, limit: usize, what: &str) {
    let answer = with_tools(node, "acme/m", limit).await;
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert_eq!(sent(upstream, "a"), limit, "{what}");
    let before = upstream.count("a");
    let answer = with_tools(node, "acme/m", limit + 1).await;
    assert_eq!(answer.status, 400, "{what}: {}", answer.text());
    assert_eq!(answer.code(), "too_many_tools", "{what}");
    assert!(answer.text().contains(&limit.to_string()), "{what}");
    assert_eq!(upstream.count("a"), before, "{what}: sent all the same");
    // It is the request's own fault.
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{what}: {a}");
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
        expect_limit(&node, &upstream, limit, &format!("{value:?}")).await;
    }
}

/// The refusal, and from the next request on the limit that it states.
async fn learning(words: &str) -> (Upstream, Node) {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let refused = Reply::error(400, words);
    upstream.script("a", [refused, Dialect::Chat.ok("pong")]);
    let node = Node::start(&chat(&upstream)).await;
    with_tools(&node, "acme/m", 100).await;
    (upstream, node)
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
        ("maximum number of tools is 20000", 128),
        ("maximum number of tools is 0", 128),
        ("too many tools", 128),
        ("the maximum is 64", 128),
    ] {
        let (upstream, node) = learning(words).await;
        expect_limit(&node, &upstream, limit, words).await;
        // Another provider has a limit of its own.
        with_tools(&node, "other/m", 100).await.expect_status(200);
        assert_eq!(sent(&upstream, "o"), 100, "{words}");
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
        assert_eq!(sent(&upstream, "a"), 100, "{status}");
    }
}

/// Who takes more is asked instead.
#[tokio::test]
async fn a_request_with_many_tools_goes_to_who_takes_them() {
    let (upstream, node) = learning("maximum number of tools is 64").await;
    let before = upstream.count("a");
    let answer = with_tools(&node, "both", 100).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("o"));
    assert_eq!(upstream.count("a"), before);
    assert_eq!(sent(&upstream, "o"), 100);
    let answer = with_tools(&node, "both", 64).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("a"));
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
    let knows = |at: usize| {
        let asking = with_tools(&cluster.nodes[at], "acme/m", 100);
        async move { (asking.await.status == 400).then_some(()) }
    };
    for at in [0, 1] {
        eventually("the node knows it", || knows(at)).await;
    }
    let before = cluster.upstream.count("a");
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    let answer = with_tools(&cluster.nodes[1], "acme/m", 100).await;
    assert_eq!(answer.status, 400, "forgotten: {}", answer.text());
    assert_eq!(cluster.upstream.count("a"), before);
}

/// A limit is for tools, not for what else is called so.
#[tokio::test]
async fn only_the_tools_of_the_request_are_counted() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let setup = Setup::with(&chat(&upstream)).env("OMNIROUTE_MAX_TOOLS_LIMIT", "2");
    let node = setup.start().await;
    let mut body = Dialect::Chat.request("acme/m", false);
    body["tools"] = json!([
        {"type": "function", "function": {"name": "one", "description": "a \"]\" \\ }, {"}},
        {"type": "function", "function": {"name": "two", "parameters": {"enum": [1, [2], 3]}}},
    ]);
    body["metadata"] = json!({"tools": [1, 2, 3, 4]});
    node.post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);
    body["model"] = json!("m");
    assert_eq!(upstream.requests_of("a")[0].json(), body);
}
