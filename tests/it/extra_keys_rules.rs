//! A connection with several keys of one account: a key that is refused is set
//! aside and the next one is tried in the same request, before anything counts
//! against the connection.

mod checked;
mod ends;
mod hidden;
mod shared;

use cluster_tests::client::Answer;
use cluster_tests::config::{Config, upstream_key};
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Reply};
use cluster_tests::upstream::Upstream;
use futures_util::future::join_all;
use serde_json::{Value, json};

/// The keys of `a`, in their order, as the scripted upstream calls them.
const KEYS: [&str; 3] = ["a", "a2", "a3"];

/// The data of a connection with these keys besides its own.
fn extra(keys: &[&str]) -> Value {
    let keys: Vec<String> = keys.iter().map(|key| upstream_key(key)).collect();
    json!({"extraApiKeys": keys})
}

/// `a` with three keys, then `b` with one; all of them are good until a test
/// says otherwise.
fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let own = json!({"priority": 1, "models": ["m"], "providerSpecificData": extra(&KEYS[1..])});
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", own)
        .connection_with("b", "acme", json!({"priority": 2, "models": ["m"]}))
}

fn refused() -> Reply {
    Reply::error(401, "invalid api key")
}

/// These keys are refused from now on.
fn refuse(upstream: &Upstream, keys: &[&str]) {
    for key in keys {
        upstream.script(key, [refused()]);
    }
}

/// These keys are good from now on.
fn accept(upstream: &Upstream, keys: &[&str]) {
    for key in keys {
        upstream.script(key, [Dialect::Chat.ok("pong")]);
    }
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

/// Asks once, and which keys that took.
async fn asked(node: &Node, upstream: &Upstream) -> (Answer, Vec<String>) {
    let before = upstream.requests().len();
    let answer = ask(node).await;
    (answer, upstream.order().split_off(before))
}

/// A request that these keys are tried for, the last one of which serves it.
async fn serves(node: &Node, upstream: &Upstream, keys: &[&str], what: &str) -> Answer {
    let (answer, order) = asked(node, upstream).await;
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert_eq!(order, keys, "{what}");
    answer
}

/// How many keys `a` has and how many of them are used.
async fn keys(node: &Node) -> (u64, u64) {
    let a = node.connection("a").await;
    let number = |name: &str| {
        let number = a["keys"][name].as_u64();
        number.unwrap_or_else(|| panic!("keys.{name}: {a}"))
    };
    (number("total"), number("usable"))
}

/// `a` is as healthy as ever.
async fn expect_healthy(node: &Node, what: &str) {
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{what}: {a}");
    assert_eq!(a["rateLimitedUntil"], Value::Null, "{what}: {a}");
    assert_eq!(a["backoffLevel"], 0, "{what}: {a}");
    assert_eq!(a["breaker"]["failureCount"], 0, "{what}: {a}");
    for end in ["expired", "banned", "credits_exhausted", "unavailable"] {
        assert_ne!(a["testStatus"], end, "{what}: {a}");
    }
}

async fn reset(node: &Node) {
    let call = node.admin_call("POST", "/api/connections/a/reset");
    call.send().await.expect_status(200);
}

#[tokio::test]
async fn the_first_key_is_used_while_it_is_good() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    for _ in 0..3 {
        serves(&node, &upstream, &["a"], "all are good").await;
    }
    assert_eq!(keys(&node).await, (3, 3));
    let b = node.connection("b").await;
    assert_eq!(b["keys"], Value::Null, "it has one key: {b}");
}

#[tokio::test]
async fn a_refused_key_is_set_aside_and_the_next_one_serves() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    refuse(&upstream, &["a"]);
    let answer = serves(&node, &upstream, &["a", "a2"], "the first is refused").await;
    assert_eq!(answer.header("x-omniroute-connection"), Some("a"));
    assert_eq!(answer.header("x-omniroute-attempts"), Some("2"));
    expect_healthy(&node, "one key is left out").await;
    assert_eq!(keys(&node).await, (3, 2));
    // From now on it is left out.
    serves(&node, &upstream, &["a2"], "later").await;
    refuse(&upstream, &["a2"]);
    serves(&node, &upstream, &["a2", "a3"], "the second, too").await;
    expect_healthy(&node, "two are left out").await;
    assert_eq!(keys(&node).await, (3, 1));
    serves(&node, &upstream, &["a3"], "later still").await;
}

#[tokio::test]
async fn one_request_goes_as_far_as_it_has_to() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    refuse(&upstream, &["a", "a2"]);
    let answer = serves(&node, &upstream, &KEYS, "two are refused").await;
    assert_eq!(answer.header("x-omniroute-attempts"), Some("3"));
    expect_healthy(&node, "one key is good").await;
    assert_eq!(keys(&node).await, (3, 1));
}

/// Every call is in the record, as where a token was refreshed.
#[tokio::test]
async fn the_record_tells_of_every_call() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    refuse(&upstream, &["a", "a2"]);
    let answer = ask(&node).await.expect_status(200);
    let trace = node.trace(&answer).await;
    let attempts = trace["attempts"].as_array().unwrap();
    let outcomes: Vec<_> = attempts.iter().map(|a| a["outcome"].as_str()).collect();
    let failed = Some("failed");
    assert_eq!(outcomes, [failed, failed, Some("success")], "{trace}");
    for attempt in attempts {
        assert_eq!(attempt["connection"], "a", "{trace}");
    }
    for attempt in &attempts[..2] {
        assert_eq!(attempt["status"], 401, "{trace}");
        assert!(attempt["cooledUntil"].is_null(), "nothing rests: {trace}");
    }
}

#[tokio::test]
async fn it_is_so_in_every_protocol_and_for_streams() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start().await;
        let own = json!({"priority": 1, "providerSpecificData": extra(&["a2"])});
        let config = Config::new()
            .no_waiting()
            .provider("acme", dialect.protocol(), &upstream.url())
            .connection_with("a", "acme", own)
            .connection_with("b", "acme", json!({"priority": 2}));
        let node = Node::start(&config).await;
        let body = |stream| dialect.request("acme/m", stream);
        for stream in [true, false] {
            refuse(&upstream, &["a"]);
            let good = if stream {
                dialect.ok_stream("pong")
            } else {
                dialect.ok("pong")
            };
            upstream.script("a2", [good.clone()]);
            let answer = node.post(dialect.path(), &body(stream)).send().await;
            let what = format!("{dialect:?}, streamed: {stream}: {}", answer.text());
            assert_eq!(answer.status, 200, "{what}");
            assert_eq!(answer.header("x-omniroute-connection"), Some("a"));
            assert!(answer.text().contains("pong"), "{what}");
            assert_eq!(keys(&node).await, (2, 1), "{what}");
            reset(&node).await;
        }
        assert_eq!(upstream.order(), ["a", "a2", "a", "a2"], "{dialect:?}");
    }
}

/// Many at once: each is served, whoever set the key aside.
#[tokio::test]
async fn a_herd_is_served_by_the_next_key() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    refuse(&upstream, &["a"]);
    for answer in join_all((0..20).map(|_| ask(&node))).await {
        let answer = answer.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("a"));
    }
    assert!(upstream.count("a") <= 20, "{}", upstream.count("a"));
    assert_eq!(upstream.count("a2"), 20);
    assert_eq!(upstream.count("a3") + upstream.count("b"), 0);
    expect_healthy(&node, "after the herd").await;
    assert_eq!(keys(&node).await, (3, 2));
}

/// The next key is tried in the slot that the request has.
#[tokio::test]
async fn a_capped_connection_needs_no_second_slot() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let own = json!({"maxConcurrent": 1, "providerSpecificData": extra(&KEYS[1..])});
    let config = Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", own);
    let node = Node::start(&config).await;
    refuse(&upstream, &["a", "a2"]);
    for answer in join_all((0..4).map(|_| ask(&node))).await {
        let answer = answer.expect_status(200);
        assert!(answer.took.as_secs() < 20, "{:?}", answer.took);
    }
    let a = node.connection("a").await;
    assert_eq!(a["inFlight"], 0, "{a}");
}

/// What is no word about the key leaves the keys alone.
#[tokio::test]
async fn other_failures_rotate_no_key() {
    let quota = json!({"error": {"message": "You exceeded your current quota",
        "type": "insufficient_quota", "code": "insufficient_quota"}});
    let cases = [
        (Reply::error(402, "payment required"), "terminal"),
        (Reply::json(429, &quota), "terminal"),
        (Reply::limited(600), "cooling_down"),
        (Reply::error(403, "no"), "cooling_down"),
        (Reply::error(500, "boom"), "cooling_down"),
        (Reply::error(503, "down"), "cooling_down"),
        (Reply::nothing(Finish::Reset), "cooling_down"),
    ];
    for (reply, status) in cases {
        let what = format!("{reply:?}");
        let upstream = Upstream::start().await;
        let config =
            config(&upstream).resilience("connectionCooldown.apikey.baseCooldownMs", json!(60_000));
        let node = Node::start(&config).await;
        upstream.script("a", [reply]);
        ask(&node).await.expect_status(200);
        assert_eq!(upstream.count("a2") + upstream.count("a3"), 0, "{what}");
        assert_eq!(upstream.count("b"), 1, "{what}");
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], status, "{what}: {a}");
        assert_eq!(keys(&node).await, (3, 3), "{what}");
    }
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    upstream.script("a", [Reply::error(400, "the colour must be green")]);
    ask(&node).await.expect_status(400);
    assert_eq!(upstream.order(), ["a"]);
    assert_eq!(keys(&node).await, (3, 3));
}
