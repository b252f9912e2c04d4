//! When a target fails, the next one answers, and the client does not notice.

use std::time::Duration;

use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, add_provider};
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::{BlackHole, Refused, Upstream};
use serde_json::{Value, json};

/// Two connections of the chat provider, tried in the order a, b.
fn pair(upstream: &Upstream, more: Value) -> Config {
    add_provider(
        Config::new(),
        Dialect::Chat,
        &upstream.url(),
        &["a", "b"],
        more,
    )
    .no_waiting()
}

/// Has b answer after a, and returns the state of a.
async fn expect_b_serves(node: &Node, upstream: &Upstream, what: &str) -> Value {
    upstream.script("chat-b", [Dialect::Chat.ok("pong")]);
    let answer = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(false))
        .send()
        .await;
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert_eq!(
        answer.header("x-omniroute-connection"),
        Some("chat-b"),
        "{what}"
    );
    // A wire that broke before the first byte may be tried once more afresh.
    let attempts = answer.header("x-omniroute-attempts");
    assert!(matches!(attempts, Some("2" | "3")), "{what}: {attempts:?}");
    assert_eq!(Dialect::Chat.text_of_answer(&answer.json()), "pong");
    node.connection("chat-a").await
}

#[tokio::test]
async fn every_failure_of_the_account_or_server_moves_on() {
    let refusals: [(Reply, &str); 11] = [
        (Reply::limited(60), "cooling_down"),
        (Reply::error(429, "slow down"), "cooling_down"),
        (Reply::error(500, "boom"), "cooling_down"),
        (Reply::error(502, "boom"), "cooling_down"),
        (Reply::error(503, "busy"), "cooling_down"),
        (Reply::error(504, "late"), "cooling_down"),
        // Only the model has no room.
        (Reply::error(529, "overloaded"), "healthy"),
        (Reply::error(408, "late"), "cooling_down"),
        (Reply::error(401, "invalid api key"), "terminal"),
        (Reply::error(402, "payment required"), "terminal"),
        (Reply::error(403, "no"), "cooling_down"),
    ];
    for (reply, status) in refusals {
        let what = format!("{reply:?}");
        let upstream = Upstream::start().await;
        let node = Node::start(&pair(&upstream, json!({}))).await;
        upstream.script("chat-a", [reply]);
        let a = expect_b_serves(&node, &upstream, &what).await;
        assert_eq!(a["connectionStatus"], status, "{what}: {a}");
        expect_only_b(&node, &upstream).await;
    }
}

/// The marked connection is left alone by the next request.
async fn expect_only_b(node: &Node, upstream: &Upstream) {
    let before = upstream.count("chat-a");
    let answer = node
        .post("/v1/chat/completions", &Dialect::Chat.ask(false))
        .send()
        .await;
    assert_eq!(
        answer.header("x-omniroute-attempts"),
        Some("1"),
        "{}",
        answer.text()
    );
    assert_eq!(upstream.count("chat-a"), before);
}

#[tokio::test]
async fn every_failure_of_the_wire_moves_on() {
    for (what, reply) in [
        ("reset", Reply::nothing(Finish::Reset)),
        ("close", Reply::nothing(Finish::Close)),
        (
            "garbage",
            Reply::wire(b"\x16\x03\x01\x00 not http at all\r\n\r\n"),
        ),
        ("half a head", Reply::wire(b"HTTP/1.1 200 OK\r\ncontent-ty")),
        ("bad status", Reply::wire(b"HTTP/1.1 999999 ?\r\n\r\n")),
        (
            "two lengths",
            Reply::wire(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"),
        ),
        (
            "short body",
            Dialect::Chat
                .ok("pong")
                .header("content-length", "100000")
                .end(Finish::Close),
        ),
        (
            "bad chunk",
            Reply::wire(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}"),
        ),
        (
            "not json",
            Reply::text(200, "application/json", "{\"choices\": ["),
        ),
        ("html", Reply::text(200, "text/html", "<html>login</html>")),
        ("empty", Reply::text(200, "application/json", "")),
        ("null", Reply::text(200, "application/json", "null")),
        ("error in 200", Reply::error(200, "Rate limit reached")),
        (
            "nothing in it",
            Reply::json(200, &json!({"id": "x", "choices": []})),
        ),
        ("blank", Dialect::Chat.ok("")),
        (
            "bad gzip",
            Dialect::Chat.ok("pong").header("content-encoding", "gzip"),
        ),
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&pair(&upstream, json!({}))).await;
        upstream.script("chat-a", [reply]);
        expect_b_serves(&node, &upstream, what).await;
        assert!((1..=2).contains(&upstream.count("chat-a")), "{what}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_moves_on() {
    let refused = Refused::new();
    let hole = BlackHole::start().await;
    for url in [refused.url(), hole.url()] {
        let upstream = Upstream::start().await;
        let timeouts = json!({"timeouts": {"connectMs": 300}});
        let config = Config::new()
            .provider_with("dead", "openai", &url, timeouts)
            .connection("dead-a", "dead")
            .provider("chat", "openai", &upstream.url())
            .connection("chat-b", "chat")
            .combo("both", &["dead/m", "chat/m"])
            .no_waiting();
        let node = Node::start(&config).await;
        upstream.script("chat-b", [Dialect::Chat.ok("pong")]);
        let body = Dialect::Chat.request("both", false);
        let answer = node.post("/v1/chat/completions", &body).send().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.header("x-omniroute-attempts"), Some("2"));
        assert!(answer.took < Duration::from_secs(5), "{:?}", answer.took);
        let dead = node.connection("dead-a").await;
        assert_ne!(dead["connectionStatus"], "healthy", "{dead}");
    }
}

#[tokio::test]
async fn each_timer_of_a_plain_answer_moves_on() {
    let never = Gate::closed();
    for (timeouts, reply) in [
        (
            json!({"connectMs": 100, "totalMs": 300}),
            Dialect::Chat.ok("late").behind(&never),
        ),
        (
            json!({"byteIdleMs": 300}),
            Dialect::Chat
                .ok("late")
                .hold(&never)
                .send("x")
                .header("content-length", "9999"),
        ),
        (
            json!({"totalMs": 500}),
            (0..200)
                .fold(Reply::text(200, "application/json", " "), |reply, _| {
                    reply.wait_ms(50).send(" ")
                })
                .header("content-length", "9999"),
        ),
    ] {
        let upstream = Upstream::start().await;
        let what = timeouts.to_string();
        let node = Node::start(&pair(&upstream, json!({"timeouts": timeouts}))).await;
        upstream.script("chat-a", [reply]);
        expect_b_serves(&node, &upstream, &what).await;
        upstream
            .request("chat-a", 1)
            .await
            .dropped(Duration::from_secs(5))
            .await;
    }
}

#[tokio::test]
async fn connections_go_by_priority_then_by_least_recent_use() {
    let upstream = Upstream::start().await;
    let mut config = Config::new().provider("acme", "openai", &upstream.url());
    for (id, priority) in [("late", 2), ("x", 1), ("y", 1), ("z", 1)] {
        upstream.script(id, [Dialect::Chat.ok(id)]);
        config = config.connection_with(id, "acme", json!({"priority": priority}));
    }
    let node = Node::start(&config).await;
    let body = Dialect::Chat.request("acme/m", false);
    for _ in 0..6 {
        node.post("/v1/chat/completions", &body)
            .send()
            .await
            .expect_status(200);
    }
    let order = upstream.order();
    let mut first: Vec<String> = order[..3].to_vec();
    first.sort();
    assert_eq!(first, ["x", "y", "z"], "{order:?}");
    assert_eq!(
        order[..3],
        order[3..],
        "not the least recently used: {order:?}"
    );
}

#[tokio::test]
async fn a_disabled_connection_takes_no_part() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("off", "acme", json!({"enabled": false, "priority": 1}))
        .connection_with("on", "acme", json!({"priority": 2}));
    let node = Node::start(&config).await;
    upstream.script("on", [Dialect::Chat.ok("pong")]);
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);
    assert_eq!(upstream.count("off"), 0);
}

#[tokio::test]
async fn a_combo_goes_through_its_targets_in_order() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .provider("one", "openai", &upstream.url())
        .provider("two", "openai", &upstream.url())
        .connection_with("one-a", "one", json!({"priority": 1}))
        .connection_with("one-b", "one", json!({"priority": 2}))
        .connection("two-a", "two")
        .combo("chain", &["one/m1@one-b", "two/m2", "one/m3"])
        .no_waiting();
    let node = Node::start(&config).await;
    upstream.script("one-b", [Reply::error(500, "boom")]);
    upstream.script("two-a", [Reply::limited(60)]);
    upstream.script("one-a", [Dialect::Chat.ok("pong")]);
    let body = Dialect::Chat.request("chain", false);
    let answer = node
        .post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);
    assert_eq!(upstream.order(), ["one-b", "two-a", "one-a"]);
    let models: Vec<Value> = upstream
        .requests()
        .iter()
        .map(|seen| seen.json()["model"].clone())
        .collect();
    assert_eq!(models, [json!("m1"), json!("m2"), json!("m3")]);
    assert_eq!(answer.header("x-omniroute-attempts"), Some("3"));
    assert_eq!(answer.header("x-omniroute-provider"), Some("one"));
    assert_eq!(answer.header("x-omniroute-connection"), Some("one-a"));
    assert_eq!(answer.header("x-omniroute-model"), Some("m3"));
}

#[tokio::test]
async fn attempts_are_bounded() {
    let upstream = Upstream::start().await;
    let mut config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .no_waiting()
        .resilience("providerBreaker.apikey.failureThreshold", json!(1000));
    for n in 0..100 {
        let id = format!("c{n}");
        upstream.script(&id, [Reply::error(500, "boom")]);
        config = config.connection(&id, "acme");
    }
    let node = Node::start(&config).await;
    let body = Dialect::Chat.request("acme/m", false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    assert!(answer.status >= 500, "{}", answer.text());
    let attempts: usize = answer
        .header("x-omniroute-attempts")
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(attempts, upstream.requests().len());
    assert!((2..=50).contains(&attempts), "{attempts}");
}

#[tokio::test]
async fn a_connection_that_served_is_reused_over_the_wire() {
    let upstream = Upstream::start().await;
    // Each worker has sockets of its own.
    let config = pair(&upstream, json!({})).server("workers", json!(1));
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    upstream.script("chat-b", [Dialect::Chat.ok("pong")]);
    for _ in 0..10 {
        let ask = node.post("/v1/chat/completions", &Dialect::Chat.ask(false));
        ask.send().await.expect_status(200);
    }
    let mut sockets: Vec<u64> = upstream.requests().iter().map(|seen| seen.tcp).collect();
    sockets.dedup();
    assert!(
        sockets.len() <= 4,
        "a new connection for each request: {sockets:?}"
    );
}

#[tokio::test]
async fn a_kept_connection_that_died_is_replaced_without_a_mark() {
    let upstream = Upstream::start().await;
    let node = Node::start(&pair(&upstream, json!({}))).await;
    let then_close = || Dialect::Chat.ok("pong").end(Finish::Close);
    upstream.script("chat-a", [then_close(), then_close(), then_close()]);
    for _ in 0..5 {
        let ask = node.post("/v1/chat/completions", &Dialect::Chat.ask(false));
        let answer = ask.send().await.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("chat-a"));
    }
    assert_eq!(
        node.connection("chat-a").await["connectionStatus"],
        "healthy"
    );
}

#[tokio::test]
async fn many_requests_at_once_do_not_mix_their_answers() {
    let upstream = Upstream::start().await;
    let mut config = Config::new().provider("acme", "openai", &upstream.url());
    for n in 0..8 {
        let id = format!("c{n}");
        upstream.script(&id, [Dialect::Chat.ok(&id)]);
        config = config
            .connection(&id, "acme")
            .combo(&format!("m{n}"), &[&format!("acme/m{n}@{id}")]);
    }
    let node = Node::start(&config).await;
    let calls = (0..200).map(|n| {
        let body = Dialect::Chat.request(&format!("m{}", n % 8), false);
        (
            n % 8,
            tokio::spawn(node.post("/v1/chat/completions", &body).try_send()),
        )
    });
    for (n, call) in calls.collect::<Vec<_>>() {
        let answer = call.await.unwrap().unwrap().expect_status(200);
        let id = format!("c{n}");
        assert_eq!(Dialect::Chat.text_of_answer(&answer.json()), id);
        assert_eq!(answer.header("x-omniroute-connection"), Some(id.as_str()));
    }
}
