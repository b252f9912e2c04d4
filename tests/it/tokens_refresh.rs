//! Access tokens of one node's accounts: renewed ahead of their end, when they
//! have ended, and when the upstream refuses them; and what becomes of an
//! account whose tokens can't be renewed.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::metrics::Exposition;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::tokens::{SECRET, TokenEndpoint, Turn, in_ms};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use futures_util::future::join_all;
use serde_json::{Value, json};

/// An hour, in ms.
pub(crate) const LONG: i64 = 3_600_000;

/// Who is asked, and where its tokens come from.
pub(crate) struct World {
    pub(crate) upstream: Upstream,
    pub(crate) endpoint: TokenEndpoint,
}

impl World {
    /// Every token is good for the upstream until a test says otherwise.
    pub(crate) async fn new() -> Self {
        let upstream = Upstream::start().await;
        upstream.script_all([Dialect::Chat.ok("pong")]);
        Self {
            upstream,
            endpoint: TokenEndpoint::start().await,
        }
    }

    pub(crate) fn config(&self, accounts: &[&str], expires_at: Option<i64>) -> Config {
        self.endpoint
            .config(&self.upstream.url(), accounts, expires_at)
    }

    /// The upstream takes the first token of `a` for one that has ended.
    pub(crate) fn refuse(&self, token: &str) {
        let ended = Reply::error(401, "Invalid authentication credentials");
        self.upstream.script(token, [ended]);
    }
}

pub(crate) async fn start(config: &Config) -> Node {
    with_key(config, SECRET).start().await
}

pub(crate) fn with_key(config: &Config, keys: &str) -> Setup {
    Setup::with(config).env("OMNIROUTE_SECRET_KEY", keys)
}

pub(crate) async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("plan/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

async fn herd(node: &Node, n: usize) -> Vec<Answer> {
    join_all((0..n).map(|_| ask(node))).await
}

async fn refreshes(node: &Node) -> f64 {
    let text = node.get("/metrics").send().await.expect_status(200).text();
    Exposition::parse(&text).sum("omniroute_token_refreshes_total")
}

#[tokio::test]
async fn tokens_are_renewed_before_they_end_without_a_request() {
    let world = World::new().await;
    let node = start(&world.config(&["a"], in_ms(60_000))).await;
    let grant = world.endpoint.grant(1).await;
    assert_eq!(grant.field("grant_type"), "refresh_token");
    assert_eq!(grant.field("refresh_token"), "refresh-a.0");
    assert_eq!(grant.field("client_id"), "the-client");
    let form = grant.header("content-type").unwrap();
    assert!(form.starts_with("application/x-www-form-urlencoded"));
    node.log()
        .line("the refresh is told", |line| {
            line.contains("the tokens were refreshed")
        })
        .await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.upstream.count("a.1"), 1);
    assert_eq!(world.upstream.count("a.0"), 0);
    assert!((refreshes(&node).await - 1.0).abs() < f64::EPSILON);
    // An hour is far: nothing more is asked.
    herd(&node, 10).await;
    assert_eq!(world.endpoint.grants().len(), 1);
}

#[tokio::test]
async fn tokens_that_have_ended_are_renewed_once_for_all_requests() {
    let world = World::new().await;
    let gate = Gate::closed();
    world.endpoint.script([Turn::Behind(gate.clone())]);
    let node = start(&world.config(&["a"], in_ms(-1000))).await;
    let asking = herd(&node, 40);
    let opening = async {
        let_time_pass(Duration::from_millis(300), "all of them wait by then").await;
        assert_eq!(world.upstream.requests().len(), 0);
        gate.open();
    };
    let (answers, ()) = tokio::join!(asking, opening);
    for answer in answers {
        let answer = answer.expect_status(200);
        assert_eq!(answer.header("x-omniroute-attempts"), Some("1"));
    }
    assert_eq!(world.upstream.count("a.1"), 40);
    assert_eq!(world.endpoint.grants().len(), 1);
}

#[tokio::test]
async fn a_refused_token_is_renewed_and_the_same_account_asked_once_more() {
    let world = World::new().await;
    world.refuse("a.0");
    let node = start(&world.config(&["a"], in_ms(LONG))).await;
    let answers = herd(&node, 20).await;
    for answer in answers {
        let answer = answer.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("a"));
    }
    assert_eq!(world.endpoint.grants().len(), 1);
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
    assert_eq!(a["lastErrorType"], Value::Null, "{a}");
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-attempts"), Some("1"));
}

#[tokio::test]
async fn both_calls_are_in_the_trace() {
    let world = World::new().await;
    world.refuse("a.0");
    let node = start(&world.config(&["a"], None)).await;
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-attempts"), Some("2"));
    let trace = node.trace(&answer).await;
    let attempts = trace["attempts"].as_array().unwrap();
    let outcomes: Vec<_> = attempts.iter().map(|a| a["outcome"].as_str()).collect();
    assert_eq!(outcomes, [Some("failed"), Some("success")], "{trace}");
    assert_eq!(attempts[0]["status"], 401, "{trace}");
}

#[tokio::test]
async fn a_stream_is_renewed_for_too() {
    let world = World::new().await;
    world.refuse("a.0");
    world
        .upstream
        .script("a.1", [Dialect::Chat.ok_stream("pong")]);
    let node = start(&world.config(&["a"], None)).await;
    let body = Dialect::Chat.request("plan/m", true);
    let stream = node.post("/v1/chat/completions", &body).open().await;
    Dialect::Chat.expect_whole(&stream.finish().await, "pong");
}

#[tokio::test]
async fn what_new_tokens_do_not_mend_counts() {
    let world = World::new().await;
    world.upstream.script_all([Reply::error(
        401,
        "OAuth authentication is currently not allowed",
    )]);
    let node = start(&world.config(&["a"], in_ms(LONG))).await;
    let answer = ask(&node).await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    let a = node.connection_becomes("a", "terminal").await;
    assert_eq!(a["testStatus"], "expired", "{a}");
    assert_eq!(world.endpoint.grants().len(), 1);
    assert_eq!(world.upstream.requests().len(), 2);
}

#[tokio::test]
async fn a_slow_endpoint_holds_up_nobody_with_a_valid_token() {
    let world = World::new().await;
    let gate = Gate::closed();
    world.endpoint.script([Turn::Withheld(gate.clone())]);
    let node = start(&world.config(&["a"], in_ms(60_000))).await;
    world.endpoint.grant(1).await;
    for answer in herd(&node, 10).await {
        let answer = answer.expect_status(200);
        assert!(answer.took < Duration::from_secs(2), "{:?}", answer.took);
    }
    assert_eq!(world.upstream.count("a.0"), 10);
    gate.open();
    eventually("the new token is used", || async {
        ask(&node).await.expect_status(200);
        (world.upstream.count("a.1") > 0).then_some(())
    })
    .await;
    assert_eq!(world.endpoint.grants().len(), 1);
}

fn overloaded() -> Turn {
    Turn::Answer(503, json!({"error": "temporarily_unavailable"}), vec![])
}

#[tokio::test]
async fn a_failing_endpoint_changes_nothing_while_the_token_is_valid() {
    let world = World::new().await;
    world.endpoint.script([overloaded(), overloaded()]);
    let node = start(&world.config(&["a"], in_ms(60_000))).await;
    world.endpoint.grant(1).await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.upstream.count("a.0"), 1);
    // It is tried again, later each time, with the same refresh token.
    for n in 1..=3 {
        let grant = world.endpoint.grant(n).await;
        assert_eq!(grant.field("refresh_token"), "refresh-a.0");
    }
    eventually("the new token is used", || async {
        ask(&node).await.expect_status(200);
        (world.upstream.count("a.1") > 0).then_some(())
    })
    .await;
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
}

#[tokio::test]
async fn without_a_valid_token_the_request_goes_to_another_account() {
    let world = World::new().await;
    let asked = vec![("retry-after", "30")];
    let limited = Turn::Answer(429, json!({"error": "rate_limited"}), asked);
    world.endpoint.script([limited]);
    let config = world.config(&["a"], in_ms(-1000)).connection_with(
        "b",
        "plan",
        json!({
            "priority": 2, "oauth": {"accessToken": "key-b"},
        }),
    );
    let node = start(&config).await;
    for _ in 0..3 {
        let answer = ask(&node).await.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    }
    assert_eq!(world.upstream.count("a.0"), 0);
    assert_eq!(world.endpoint.grants().len(), 1);
    let a = node.connection_becomes("a", "cooling_down").await;
    let left = a["cooldownRemainingMs"].as_u64().unwrap();
    assert!((20_000..=30_000).contains(&left), "{a}");
}

#[tokio::test]
async fn alone_it_is_refused_with_the_time_of_the_next_try() {
    let world = World::new().await;
    let asked = vec![("retry-after", "30")];
    world
        .endpoint
        .script([Turn::Answer(500, json!("boom"), asked)]);
    let node = start(&world.config(&["a"], in_ms(-1000))).await;
    world.endpoint.grant(1).await;
    let answer = ask(&node).await.expect_status(503);
    let wait = answer.retry_after().unwrap();
    assert!((20..=30).contains(&wait), "{wait}");
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    assert_eq!(world.upstream.requests().len(), 0);
}

#[tokio::test]
async fn a_refused_token_that_can_not_be_renewed_is_not_the_end_of_the_account() {
    let world = World::new().await;
    let refused = Reply::error(401, "this token was revoked by nobody in particular");
    world.upstream.script("a.0", [refused]);
    world.endpoint.script([overloaded()]);
    let node = start(&world.config(&["a"], in_ms(LONG))).await;
    assert_eq!(ask(&node).await.status, 503);
    let a = node.connection_becomes("a", "cooling_down").await;
    assert_eq!(a["testStatus"], "unavailable", "{a}");
    assert_eq!(world.upstream.count("a.0"), 1);
    // After the rests of both, it mends.
    eventually("the account serves again", || async {
        (ask(&node).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(world.upstream.count("a.1"), 1);
}

#[tokio::test]
async fn a_refused_refresh_token_ends_the_account_until_an_operator_says_otherwise() {
    let world = World::new().await;
    world.refuse("a.0");
    let no = Turn::Answer(400, json!({"error": "invalid_grant"}), vec![]);
    world.endpoint.script([no]);
    let node = start(&world.config(&["a"], in_ms(LONG))).await;
    for answer in herd(&node, 10).await {
        assert_eq!(answer.status, 503, "{}", answer.text());
    }
    let a = node.connection_becomes("a", "terminal").await;
    assert_eq!(a["testStatus"], "expired", "{a}");
    let_time_pass(Duration::from_millis(300), "a second grant would show").await;
    assert_eq!(world.endpoint.grants().len(), 1);
    let reset = node.post("/api/connections/a/reset", &json!({}));
    reset.send().await.expect_status(200);
    node.connection_becomes("a", "healthy").await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.endpoint.grants().len(), 2);
}

#[tokio::test]
async fn a_refused_refresh_token_does_not_take_a_valid_access_token_away() {
    let world = World::new().await;
    let no = Turn::Answer(400, json!({"error": "invalid_grant"}), vec![]);
    world.endpoint.script([no]);
    // Due, since it ends in less than five minutes, and good for a minute and more.
    let node = start(&world.config(&["a"], in_ms(64_000))).await;
    world.endpoint.grant(1).await;
    node.log()
        .line("it is told", |line| line.contains("needs a new login"))
        .await;
    ask(&node).await.expect_status(200);
    // With less than a minute left it is out of use, asked or not.
    let a = node.connection_becomes("a", "terminal").await;
    assert_eq!(a["testStatus"], "expired", "{a}");
    assert_eq!(world.endpoint.grants().len(), 1);
}

#[tokio::test]
async fn an_endpoint_that_does_not_rotate_is_asked_with_the_same_token() {
    let world = World::new().await;
    world.endpoint.rotates(false);
    world.endpoint.life_s(Some(2));
    let node = start(&world.config(&["a"], in_ms(-1000))).await;
    for n in 1..=3 {
        let grant = world.endpoint.grant(n).await;
        assert_eq!(grant.field("refresh_token"), "refresh-a.0");
        assert_eq!(grant.status, 200);
    }
    ask(&node).await.expect_status(200);
}

#[tokio::test]
async fn an_endpoint_that_does_not_say_how_long_is_asked_after_a_refusal_only() {
    let world = World::new().await;
    world.endpoint.life_s(None);
    let node = start(&world.config(&["a"], in_ms(-1000))).await;
    ask(&node).await.expect_status(200);
    let_time_pass(Duration::from_millis(300), "a second grant would show").await;
    assert_eq!(world.endpoint.grants().len(), 1);
}

#[tokio::test]
async fn grants_are_written_as_the_provider_wants_them() {
    let world = World::new().await;
    let url = world.endpoint.url();
    let more = json!({"auth": "oauth", "oauth": {
        "tokenUrl": url, "clientId": "id with:signs", "clientSecret": {"env": "CLIENT_SECRET"},
        "clientAuth": "basic", "body": "json", "scopes": ["one", "two"],
    }});
    let oauth = json!({"oauth": {"accessToken": {"env": "ACCESS"},
        "refreshToken": {"env": "REFRESH"}, "expiresAt": {"env": "EXPIRES"}}});
    let config = Config::new()
        .provider_with("plan", "openai", &world.upstream.url(), more)
        .connection_with("a", "plan", oauth);
    let node = with_key(&config, SECRET)
        .env("CLIENT_SECRET", "client secret")
        .env("ACCESS", "key-a.0")
        .env("REFRESH", "refresh-a.0")
        .env("EXPIRES", "2020-01-01T00:00:00Z")
        .start()
        .await;
    ask(&node).await.expect_status(200);
    let grant = world.endpoint.grant(1).await;
    assert_eq!(grant.header("content-type"), Some("application/json"));
    assert_eq!(grant.field("scope"), "one two");
    assert_eq!(grant.field("client_secret"), "");
    // id%20with%3Asigns:client%20secret
    let basic = "Basic aWQlMjB3aXRoJTNBc2lnbnM6Y2xpZW50JTIwc2VjcmV0";
    assert_eq!(grant.header("authorization"), Some(basic));
    assert_eq!(world.upstream.count("a.1"), 1);
}

#[tokio::test]
async fn without_a_key_nothing_is_refreshed_and_the_start_says_so() {
    let world = World::new().await;
    world.upstream.script("a.0", [Dialect::Chat.ok("pong")]);
    let node = Node::start(&world.config(&["a"], in_ms(60_000))).await;
    node.log()
        .line("the warning", |line| {
            line.contains("refreshToken") && line.contains("OMNIROUTE_SECRET_KEY is not set")
        })
        .await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.endpoint.grants().len(), 0);
}
