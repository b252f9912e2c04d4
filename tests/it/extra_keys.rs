//! A connection with several keys: one that is refused gives way to the next, for
//! all nodes, and the connection is out of use when none is left.

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, add_provider};
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

/// Connection `a` with the keys `key-a`, `key-a2` and so on, and a spare one.
fn with_keys(upstream: &Upstream, keys: &[&str]) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let keys: Vec<String> = keys.iter().map(|key| format!("key-{key}")).collect();
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with(
            "a",
            "acme",
            json!({"models": ["m"], "providerSpecificData": {"extraApiKeys": keys}}),
        )
}

fn refused() -> Reply {
    Reply::error(401, "Incorrect API key provided: sk-12345678")
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

async fn keys(node: &Node) -> Value {
    node.connection("a").await["keys"].clone()
}

#[tokio::test]
async fn the_next_key_is_presented_in_the_same_request() {
    for dialect in [Dialect::Chat, Dialect::Messages, Dialect::Responses] {
        for stream in [false, true] {
            let upstream = Upstream::start().await;
            let id = dialect.connection("a");
            let more = json!({"extraApiKeys": ["key-2", "key-3"]});
            let config = add_provider(Config::new(), dialect, &upstream.url(), &[], json!({}))
                .no_waiting()
                .connection_with(&id, dialect.name(), json!({"providerSpecificData": more}))
                .connection_with("spare", dialect.name(), json!({"priority": 2}));
            let node = Node::start(&config).await;
            upstream.script(&id, [refused()]);
            upstream.script("2", [refused()]);
            let ok = if stream {
                dialect.ok_stream("pong")
            } else {
                dialect.ok("pong")
            };
            upstream.script("3", [ok]);
            let body = dialect.request(&dialect.model(), stream);
            for asked in [3, 4] {
                let answer = node.post(dialect.path(), &body).send().await;
                let answer = answer.expect_status(200);
                assert_eq!(answer.header("x-omniroute-connection"), Some(id.as_str()));
                assert_eq!(upstream.requests().len(), asked, "{:?}", upstream.order());
            }
            let row = node.connection(&id).await;
            assert_eq!(row["keys"], json!({"total": 3, "usable": 1}), "{row}");
            assert_eq!(row["testStatus"], "active");
            assert_eq!(row["lastErrorType"], Value::Null, "{row}");
        }
    }
}

#[tokio::test]
async fn the_record_of_the_request_shows_each_call() {
    let upstream = Upstream::start().await;
    let node = Node::start(&with_keys(&upstream, &["a2"])).await;
    upstream.script("a", [refused()]);
    let answer = ask(&node).await.expect_status(200);
    let trace = node.trace(&answer).await;
    let calls = trace["attempts"].as_array().unwrap();
    assert_eq!(calls.len(), 2, "{trace}");
    assert_eq!(calls[0]["outcome"], "failed");
    assert_eq!(calls[0]["status"], 401);
    assert_eq!(calls[0]["failure"]["rule"], "unauthorized");
    assert_eq!(calls[1]["outcome"], "success");
    assert_eq!(calls[0]["connection"], calls[1]["connection"]);
    assert_eq!(answer.header("x-omniroute-attempts"), Some("2"));
}

#[tokio::test]
async fn a_connection_with_one_key_says_nothing_of_keys() {
    let upstream = Upstream::start().await;
    let node = Node::start(&with_keys(&upstream, &[])).await;
    assert_eq!(keys(&node).await, Value::Null);
    upstream.script("a", [refused()]);
    assert_eq!(ask(&node).await.status, 503);
    assert_eq!(node.connection("a").await["testStatus"], "expired");
}

#[tokio::test]
async fn when_no_key_is_left_the_connection_is_out_of_use() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&with_keys(&upstream, &["a2", "a3"])).await;
    let banned = Reply::error(403, "Your account has been suspended");
    upstream.script("a", [refused()]);
    upstream.script("a2", [banned]);
    upstream.script("a3", [refused()]);
    assert_eq!(ask(&node).await.status, 503);
    assert_eq!(upstream.order(), ["a", "a2", "a3"]);
    for _ in 0..2 {
        let row = node.connection("a").await;
        assert_eq!(row["testStatus"], "expired", "the last refusal's: {row}");
        assert_eq!(row["keys"], json!({"total": 3, "usable": 0}), "{row}");
        assert_eq!(ask(&node).await.status, 404);
        assert_eq!(upstream.requests().len(), 3, "nobody is asked any more");
        node.kill_9().await;
        node = node.start_again().await;
    }
}

#[tokio::test]
async fn what_says_nothing_of_the_key_is_the_connections() {
    for (reply, status) in [
        (Reply::limited(60), "unavailable"),
        (Reply::error(503, "down"), "unavailable"),
        (Reply::error(402, "payment required"), "credits_exhausted"),
        (Reply::error(403, "you may not do this"), "unavailable"),
        (Reply::nothing(Finish::Reset), "unavailable"),
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&with_keys(&upstream, &["a2"])).await;
        upstream.script("a", [reply]);
        ask(&node).await;
        assert_eq!(upstream.count("a2"), 0);
        let row = node.connection("a").await;
        assert_eq!(row["testStatus"], status, "{row}");
        assert_eq!(row["keys"], json!({"total": 2, "usable": 2}), "{row}");
    }
}

#[tokio::test]
async fn all_nodes_pass_it_over_and_a_restart_does_too() {
    let config = |upstream: &Upstream| with_keys(upstream, &["a2"]);
    let mut cluster = Cluster::start(2, config).await;
    cluster.upstream.script("a", [refused()]);
    ask(&cluster.nodes[0]).await.expect_status(200);
    eventually("the other node knows", || async {
        let usable = keys(&cluster.nodes[1]).await["usable"].clone();
        (usable == 1).then_some(())
    })
    .await;
    ask(&cluster.nodes[1]).await.expect_status(200);
    cluster.nodes[0].kill_9().await;
    cluster.restart(0).await;
    ask(&cluster.nodes[0]).await.expect_status(200);
    assert_eq!(cluster.upstream.count("a"), 1);
    assert_eq!(cluster.upstream.count("a2"), 3);
}

#[tokio::test]
async fn many_requests_at_once_set_it_aside_once() {
    let upstream = Upstream::start().await;
    let node = Node::start(&with_keys(&upstream, &["a2"])).await;
    let gate = Gate::closed();
    upstream.script("a", [refused().behind(&gate)]);
    let asking = futures_util::future::join_all((0..8).map(|_| ask(&node)));
    let opening = async {
        upstream.request("a", 8).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(asking, opening);
    for answer in answers {
        answer.expect_status(200);
    }
    assert_eq!(upstream.count("a2"), 8);
    assert_eq!(keys(&node).await, json!({"total": 2, "usable": 1}));
}

#[tokio::test]
async fn a_reset_brings_every_key_back() {
    let upstream = Upstream::start().await;
    let node = Node::start(&with_keys(&upstream, &["a2"])).await;
    for path in ["/api/connections/a/reset", "/api/resilience/reset"] {
        upstream.script("a", [refused(), Dialect::Chat.ok("pong")]);
        ask(&node).await.expect_status(200);
        assert_eq!(keys(&node).await["usable"], 1);
        let reset = node.post(path, &json!({"scope": "all"})).send().await;
        reset.expect_status(200);
        assert_eq!(keys(&node).await["usable"], 2, "{path}");
        let before = upstream.count("a");
        ask(&node).await.expect_status(200);
        assert_eq!(upstream.count("a"), before + 1);
    }
}

#[tokio::test]
async fn a_live_test_of_a_key_brings_it_back_or_leaves_it() {
    let upstream = Upstream::start().await;
    let node = Node::start(&with_keys(&upstream, &["a2", "a3"])).await;
    let test = || async {
        let call = node.admin_call("POST", "/api/connections/a/test");
        call.send().await.expect_status(200).json()
    };
    upstream.script("a", [refused()]);
    ask(&node).await.expect_status(200);
    // Still refused: the test goes on with the next, as a request does.
    let tested = test().await;
    assert_eq!(tested["ok"], true, "{tested}");
    assert_eq!(keys(&node).await["usable"], 2);
    assert_eq!(upstream.order(), ["a", "a2", "a", "a2"]);
    upstream.script("a", [Dialect::Chat.ok("pong")]);
    assert_eq!(test().await["ok"], true);
    assert_eq!(keys(&node).await["usable"], 3);
    ask(&node).await.expect_status(200);
    assert_eq!(upstream.order()[4..], ["a", "a"]);
    // All of them refused: the test ends the connection as a request does.
    for id in ["a", "a2", "a3"] {
        upstream.script(id, [refused()]);
    }
    let tested = test().await;
    assert_eq!(tested["connectionStatus"], "terminal", "{tested}");
    assert_eq!(keys(&node).await["usable"], 0);
    // The success of one of them brings the connection back, with that key.
    upstream.script("a2", [Dialect::Chat.ok("pong")]);
    assert_eq!(test().await["ok"], true);
    assert_eq!(keys(&node).await["usable"], 1);
    let before = upstream.count("a");
    ask(&node).await.expect_status(200);
    assert_eq!(upstream.count("a"), before);
}

#[tokio::test]
async fn another_key_in_the_configuration_is_a_new_one() {
    let upstream = Upstream::start().await;
    let node = Node::start(&with_keys(&upstream, &["a2"])).await;
    for id in ["a", "a2"] {
        upstream.script(id, [refused()]);
    }
    ask(&node).await;
    assert_eq!(node.connection("a").await["testStatus"], "expired");
    let changed = with_keys(&upstream, &["a2", "a3"]);
    std::fs::write(node.setup().file(), changed.to_yaml()).unwrap();
    eventually("the new key counts", || async {
        (keys(&node).await == json!({"total": 3, "usable": 1})).then_some(())
    })
    .await;
    ask(&node).await.expect_status(200);
    assert_eq!(
        upstream.order(),
        ["a", "a2", "a3"],
        "the others stay refused"
    );
}

#[tokio::test]
async fn an_error_inside_a_stream_counts_for_the_key_too() {
    let upstream = Upstream::start().await;
    let node = Node::start(&with_keys(&upstream, &["a2"])).await;
    let dialect = Dialect::Chat;
    let error = dialect.error_event("invalid_api_key", "Incorrect API key provided");
    let mut frames = dialect.opening();
    frames.push(error.clone());
    upstream.script("a", [Reply::frames(&frames)]);
    upstream.script("a2", [dialect.ok_stream("pong")]);
    let body = dialect.request("acme/m", true);
    let call = || node.post("/v1/chat/completions", &body).send();
    dialect.expect_whole(&call().await.expect_status(200).text(), "pong");
    assert_eq!(keys(&node).await["usable"], 1);

    // After output nobody repeats the call, but the next request presents another.
    let reset = node.admin_call("POST", "/api/connections/a/reset");
    reset.send().await.expect_status(200);
    let mut frames = dialect.opening();
    frames.extend([dialect.content("half"), error]);
    upstream.script("a", [Reply::frames(&frames)]);
    dialect.expect_broken(&call().await.text(), "half");
    let row = node.connection("a").await;
    assert_eq!(row["testStatus"], "active", "{row}");
    assert_eq!(row["keys"], json!({"total": 2, "usable": 1}), "{row}");
    dialect.expect_whole(&call().await.expect_status(200).text(), "pong");
}

#[tokio::test]
async fn a_refusal_that_is_not_final_stays_with_the_connection_once_no_key_is_left() {
    let upstream = Upstream::start().await;
    let node = Node::start(&with_keys(&upstream, &["a2"])).await;
    for id in ["a", "a2"] {
        let stale = Reply::error(401, "Request had invalid authentication credentials.");
        upstream.script(id, [stale, Dialect::Chat.ok("pong")]);
    }
    ask(&node).await;
    assert_eq!(upstream.order(), ["a", "a2"]);
    let row = node.connection("a").await;
    assert_eq!(row["testStatus"], "unavailable", "{row}");
    assert_eq!(row["keys"], json!({"total": 2, "usable": 1}), "{row}");
}

#[tokio::test]
async fn no_key_is_ever_shown() {
    let upstream = Upstream::start().await;
    let config = with_keys(&upstream, &["a2"]);
    let setup = Setup::with(&config).env("RUST_LOG", "trace");
    let mut node = setup.start().await;
    let quoting = |key: &str| Reply::error(401, &format!("Incorrect API key provided: {key}"));
    upstream.script("a", [quoting("key-a and key-a2")]);
    upstream.script("a2", [quoting("key-a2")]);
    let answer = ask(&node).await;
    let shown = [
        answer.text(),
        node.trace(&answer).await.to_string(),
        node.connection("a").await.to_string(),
        node.admin_get("/api/settings").await.to_string(),
    ];
    node.stop().await;
    for text in shown.iter().chain([&node.log().text()]) {
        assert!(!text.contains("key-a"), "{text}");
    }
}
