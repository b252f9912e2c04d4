//! Limits that count by address: whoever meets one rests with all that leave by
//! the same address, before the request tries any of them.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::metrics::Exposition;
use cluster_tests::node::{Node, Setup};
use cluster_tests::proxy::{Kind, Proxy};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

const ADDRESS: &str = "203.0.113.7";

fn says(address: &str) -> Reply {
    Reply::json(200, &json!({"ip": address}))
}

fn limit() -> Reply {
    Reply::error(429, "rate limit reached")
}

/// An echo service that tells everybody the same.
async fn echo() -> Upstream {
    let echo = Upstream::start().await;
    echo.script_all([says(ADDRESS)]);
    echo
}

fn base(upstream: &Upstream, echo: &Upstream) -> Config {
    let url = format!("http://{}/?format=json", echo.addr());
    Config::new()
        .no_waiting()
        // Longer than a busy machine takes to look at it.
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(60_000))
        .set(&["settings", "egress", "echoUrl"], json!(url))
        .provider("opencode-go", "openai", &upstream.url())
        .provider("opencode-cli", "openai", &upstream.url())
        .provider("openai", "openai", &upstream.url())
}

/// `a`, `b` and `c` are of the family, `d` is not.
fn config(upstream: &Upstream, echo: &Upstream) -> Config {
    base(upstream, echo)
        .connection_with("a", "opencode-go", json!({"priority": 1}))
        .connection_with("b", "opencode-go", json!({"priority": 2}))
        .connection_with("c", "opencode-cli", json!({}))
        .connection_with("d", "openai", json!({}))
        .combo("both", &["opencode-go/m", "opencode-cli/m", "openai/m"])
}

async fn ask(node: &Node, model: &str) -> u16 {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await.status
}

async fn address_is_known(node: &Node, id: &str, address: &str) {
    eventually("its address is known", || async {
        let connection = node.connection(id).await;
        (connection["egressIp"] == address).then_some(())
    })
    .await;
}

fn left_ms(connection: &Value) -> u64 {
    connection["cooldownRemainingMs"].as_u64().unwrap()
}

/// EGR-01, EGR-07, EGR-08, EGR-11, EGR-12.
#[tokio::test]
async fn a_limit_rests_all_that_leave_by_the_address() {
    let (upstream, echo) = (Upstream::start().await, echo().await);
    upstream.script_all([Dialect::Chat.ok("pong")]);
    upstream.script("a", [limit()]);
    let node = Node::start(&config(&upstream, &echo)).await;
    for id in ["a", "b", "c"] {
        address_is_known(&node, id, ADDRESS).await;
    }
    assert_eq!(echo.requests().len(), 1, "one way out, one question");
    let body = Dialect::Chat.request("both", false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    let answer = answer.expect_status(200);
    assert_eq!(upstream.order(), ["a", "d"], "none of the family was tried");

    let a = node.connection("a").await;
    assert_eq!(a["backoffLevel"], 1);
    assert_eq!(a["lockouts"], json!([]));
    assert!((1..=60_000).contains(&left_ms(&a)), "{a}");
    for id in ["b", "c"] {
        let sibling = node.connection(id).await;
        assert_eq!(sibling["testStatus"], "unavailable", "{sibling}");
        assert_eq!(sibling["rateLimitedUntil"], a["rateLimitedUntil"]);
        assert_eq!(sibling["backoffLevel"], 0);
        assert_eq!(sibling["errorCode"], 429);
        assert_eq!(sibling["lastErrorType"], "rate_limit_exceeded");
        assert_eq!(sibling["lockouts"], json!([]));
    }
    let d = node.connection("d").await;
    assert_eq!(
        (&d["testStatus"], &d["egressIp"]),
        (&json!("active"), &Value::Null)
    );

    let trace = node.trace(&answer).await;
    let attempt = &trace["attempts"][0];
    assert_eq!(attempt["failure"]["blame"], "egress_ip");
    assert_eq!(attempt["shared"]["egressIp"], ADDRESS);
    assert_eq!(attempt["shared"]["siblings"], json!(["b", "c"]));
    assert_eq!(attempt["shared"]["until"], attempt["cooledUntil"]);
    let log = node.log().text();
    assert!(log.contains("the limit of an address rests all"), "{log}");
    let metrics = Exposition::parse(&node.get("/metrics").send().await.text());
    assert!(metrics.sum("omniroute_egress_siblings_rested_total") >= 1.0);
    let probes = metrics.sum("omniroute_egress_probes_total");
    assert!((0.5..1.5).contains(&probes), "{probes}");
}

/// EGR-05, EGR-09 and the longer of two cooldowns.
#[tokio::test]
async fn who_rests_longer_or_for_good_or_never_is_left_alone() {
    let (upstream, echo) = (Upstream::start().await, echo().await);
    upstream.script("ended", [Reply::error(401, "invalid api key")]);
    let down = Reply::error(500, "boom");
    upstream.script("long", [down.clone().header("retry-after", "600")]);
    upstream.script("short", [down.header("retry-after", "20")]);
    upstream.script("a", [Reply::limited(60)]);
    upstream.script("never", [Dialect::Chat.ok("pong")]);
    let mut config = base(&upstream, &echo);
    for id in ["a", "ended", "long", "short"] {
        config = config.connection(id, "opencode-go");
    }
    config = config.connection_with("never", "opencode-go", json!({"disableCooling": true}));
    for id in ["a", "ended", "long", "short", "never"] {
        config = config.combo(id, &[&format!("opencode-go/m@{id}")]);
    }
    let flat = json!([
        {"id": "opencode-go", "protocol": "openai", "baseUrl": upstream.url(), "perModelQuota": false}
    ]);
    let node = Node::start(&config.set(&["providers"], flat)).await;
    address_is_known(&node, "a", ADDRESS).await;
    for id in ["ended", "long", "short"] {
        ask(&node, id).await;
    }
    assert_eq!(node.connection("ended").await["testStatus"], "expired");
    let before = left_ms(&node.connection("short").await);
    assert!((1..=20_000).contains(&before), "{before}");
    ask(&node, "a").await;
    assert_eq!(node.connection("ended").await["testStatus"], "expired");
    let left = left_ms(&node.connection("long").await);
    assert!((500_000..=600_000).contains(&left), "{left}");
    let left = left_ms(&node.connection("short").await);
    assert!((30_000..=60_000).contains(&left), "{left}");
    let never = node.connection("never").await;
    assert_eq!(
        (&never["testStatus"], &never["egressIp"]),
        (&json!("active"), &Value::Null)
    );

    // And what it meets itself is nobody else's.
    let reset = node.post("/api/resilience/reset", &json!({"scope": "all"}));
    reset.send().await.expect_status(200);
    upstream.script("never", [limit()]);
    ask(&node, "never").await;
    assert_eq!(node.connection("a").await["testStatus"], "active");
}

/// EGR-04.
#[tokio::test]
async fn without_a_known_address_only_the_connection_rests() {
    let upstream = Upstream::start().await;
    let echo = Upstream::start().await;
    echo.script_all([Reply::json(200, &json!({"ip": "not an address"}))]);
    upstream.script_all([Dialect::Chat.ok("pong")]);
    upstream.script("a", [limit()]);
    let node = Node::start(&config(&upstream, &echo)).await;
    eventually("the echo service was asked", || async {
        (!echo.requests().is_empty()).then_some(())
    })
    .await;
    assert_eq!(ask(&node, "opencode-go/m").await, 200);
    assert_eq!(upstream.order(), ["a", "b"]);
    let a = node.connection("a").await;
    assert_eq!(
        (&a["testStatus"], &a["lockouts"]),
        (&json!("unavailable"), &json!([]))
    );
    assert_eq!(node.connection("c").await["testStatus"], "active");
}

/// EGR-03.
#[tokio::test]
async fn only_a_429_is_a_limit_of_the_address() {
    let (upstream, echo) = (Upstream::start().await, echo().await);
    let node = Node::start(&config(&upstream, &echo)).await;
    address_is_known(&node, "b", ADDRESS).await;
    for status in [402, 403, 500] {
        upstream.script("a", [Reply::error(status, "quota exceeded")]);
        upstream.script("b", [Dialect::Chat.ok("pong")]);
        ask(&node, "opencode-go/m").await;
        for id in ["b", "c"] {
            let sibling = node.connection(id).await;
            assert_eq!(sibling["testStatus"], "active", "{status}: {sibling}");
        }
        let reset = node.post("/api/resilience/reset", &json!({"scope": "all"}));
        reset.send().await.expect_status(200);
    }
}

/// EGR-13, EGR-14.
#[tokio::test]
async fn the_lock_is_the_operator_s_choice() {
    let (upstream, echo) = (Upstream::start().await, echo().await);
    upstream.script_all([Dialect::Chat.ok("pong")]);
    upstream.script("a", [limit()]);
    let setup = Setup::with(&config(&upstream, &echo));
    let off = setup.env("OMNIROUTE_EGRESS_IP_LOCK_PROVIDERS", "off");
    let node = off.start().await;
    assert_eq!(ask(&node, "opencode-go/m").await, 200);
    let a = node.connection("a").await;
    assert_eq!(
        (&a["testStatus"], &a["egressIp"]),
        (&json!("active"), &Value::Null)
    );
    assert_eq!(
        a["lockouts"][0]["model"], "m",
        "quotas of models count again"
    );
    assert_eq!(node.connection("b").await["testStatus"], "active");
    assert_eq!(echo.requests().len(), 0, "nobody asks unasked");
    drop(node);

    let listed = ["settings", "egress", "lockProviders"];
    let config = config(&upstream, &echo).set(&listed, json!(["openai", "OpenCode-Go"]));
    let node = Node::start(&config).await;
    address_is_known(&node, "d", ADDRESS).await;
    assert_eq!(ask(&node, "opencode-go/m").await, 429);
    assert_eq!(node.connection("d").await["testStatus"], "unavailable");
    assert_eq!(node.connection("c").await["testStatus"], "active");
}

/// A proxy behind which the echo service has another face, which is scripted.
async fn another_way(echo: &Upstream) -> (Proxy, Upstream) {
    let (proxy, face) = (Proxy::start(Kind::Http).await, Upstream::start().await);
    proxy.lead(echo.addr(), face.addr());
    (proxy, face)
}

/// Each way out has its own address, and is asked about through itself.
#[tokio::test]
async fn a_proxy_s_connections_are_siblings_of_each_other() {
    let (upstream, echo) = (Upstream::start().await, echo().await);
    let (proxy, face) = another_way(&echo).await;
    face.script_all([says("203.0.113.8")]);
    let by_proxy = json!({"proxyUrl": proxy.url()});
    let config = base(&upstream, &echo)
        .connection("direct", "opencode-go")
        .connection_with("p1", "opencode-go", by_proxy.clone())
        .connection_with("p2", "opencode-cli", by_proxy)
        .combo("p1", &["opencode-go/m@p1"])
        .combo("direct", &["opencode-go/m@direct"]);
    let node = Node::start(&config).await;
    address_is_known(&node, "direct", ADDRESS).await;
    address_is_known(&node, "p2", "203.0.113.8").await;
    assert_eq!((echo.requests().len(), face.requests().len()), (1, 1));
    upstream.script_all([limit()]);
    assert_eq!(ask(&node, "p1").await, 429);
    assert_eq!(node.connection("p2").await["testStatus"], "unavailable");
    assert_eq!(node.connection("direct").await["testStatus"], "active");
    assert_eq!(ask(&node, "direct").await, 429);
}

/// EGR-15: what counts is the last address that was seen.
#[tokio::test]
async fn an_address_is_asked_for_again_and_outlives_a_restart() {
    let (upstream, echo) = (Upstream::start().await, echo().await);
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let (proxy, face) = another_way(&echo).await;
    face.script_all([says(ADDRESS), says("203.0.113.8")]);
    let config = base(&upstream, &echo)
        .set(&["settings", "egress", "cacheMs"], json!(300))
        .connection_with("a", "opencode-go", json!({"priority": 1}))
        .connection_with("b", "opencode-go", json!({"priority": 2}))
        .connection_with(
            "moved",
            "opencode-go",
            json!({"proxyUrl": proxy.url(), "priority": 3}),
        );
    let setup = Setup::with(&config).env("OMNIROUTE_NODE_ID", "the-node");
    let mut node = setup.start().await;
    address_is_known(&node, "moved", "203.0.113.8").await;
    let asked = || echo.requests().len() + face.requests().len();
    let before = asked();
    eventually("what it knows is stored by now", || async {
        (asked() >= before + 4).then_some(())
    })
    .await;
    node.kill_9().await;
    // Nobody answers any more.
    echo.script_all([Reply::error(500, "boom")]);
    face.script_all([Reply::error(500, "boom")]);
    let node = node.start_again().await;
    address_is_known(&node, "a", ADDRESS).await;
    upstream.script("a", [limit()]);
    assert_eq!(ask(&node, "opencode-go/m").await, 200);
    assert_eq!(upstream.order(), ["a", "moved"]);
    assert_eq!(node.connection("b").await["testStatus"], "unavailable");
}

/// A limit told inside a stream, before anything of it was passed on and after.
#[tokio::test]
async fn a_limit_in_a_stream_rests_siblings_too() {
    let (upstream, echo) = (Upstream::start().await, echo().await);
    let told = json!({"error": {"code": 429, "message": "rate limit reached"}});
    let told = format!("data: {told}\n\n");
    let output = Dialect::Chat.content("hel");
    for reply in [Reply::sse(), Reply::sse().send(&output)] {
        upstream.script_all([Dialect::Chat.ok_stream("pong")]);
        upstream.script("a", [reply.send(&told)]);
        let node = Node::start(&config(&upstream, &echo)).await;
        address_is_known(&node, "b", ADDRESS).await;
        let body = Dialect::Chat.request("opencode-go/m", true);
        let call = node.post("/v1/chat/completions", &body);
        drop(call.try_send().await);
        assert_eq!(upstream.count("b"), 0);
        node.connection_becomes("b", "cooling_down").await;
        node.connection_becomes("c", "cooling_down").await;
    }
}
