//! `POST /api/connections/{id}/test`: one smallest request to one connection,
//! whatever state it is in. A success makes it as good as new for all nodes, a
//! failure is judged like any other and counts for nothing that adds up.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, add_provider};
use cluster_tests::node::{Node, Setup};
use cluster_tests::proxy::{Kind, Manner, Proxy};
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::tokens::{SECRET, TokenEndpoint, in_ms};
use cluster_tests::upstream::{Refused, Upstream};
use serde_json::{Value, json};

fn config(upstream: &Upstream) -> Config {
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"models": ["small", "large"]}))
}

async fn post(node: &Node, id: &str, body: Option<&Value>) -> Answer {
    let call = node.admin_call("POST", &format!("/api/connections/{id}/test"));
    match body {
        Some(body) => call.json(body).send().await,
        None => call.send().await,
    }
}

async fn test(node: &Node, id: &str) -> Value {
    post(node, id, None).await.expect_status(200).json()
}

async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

fn expect(what: &Value, fields: &[(&str, Value)]) {
    for (name, value) in fields {
        assert_eq!(what[*name], *value, "{name} of {what}");
    }
}

#[tokio::test]
async fn a_healthy_connection_says_so_in_every_protocol() {
    for dialect in Dialect::ALL {
        let upstream = Upstream::start().await;
        let url = upstream.url();
        let config = add_provider(Config::new(), dialect, &url, &["a"], json!({}));
        let node = Node::start(&config).await;
        let id = dialect.connection("a");
        upstream.script(&id, [dialect.ok("pong")]);
        let body = json!({"model": "demo-model"});
        let tested = post(&node, &id, Some(&body))
            .await
            .expect_status(200)
            .json();
        expect(
            &tested,
            &[
                ("connection", json!(id)),
                ("ok", json!(true)),
                ("status", json!(200)),
                ("reason", Value::Null),
                ("message", Value::Null),
                ("model", json!("demo-model")),
                ("connectionStatus", json!("healthy")),
            ],
        );
        assert!(tested["latencyMs"].is_u64(), "{tested}");
        let [seen] = &upstream.requests()[..] else {
            panic!("not one request");
        };
        assert_eq!(
            (seen.method.as_str(), seen.path.as_str()),
            ("POST", dialect.path())
        );
        let sent = seen.json();
        assert_eq!(sent["model"], "demo-model", "{sent}");
        assert_ne!(sent["stream"], json!(true), "{sent}");
        let caps = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
        let caps: Vec<u64> = caps.iter().filter_map(|cap| sent[*cap].as_u64()).collect();
        // The least that a server of Responses takes is 16.
        let most = if dialect == Dialect::Responses { 16 } else { 1 };
        assert!(
            !caps.is_empty() && caps.iter().all(|cap| *cap <= most),
            "{sent}"
        );
    }
}

#[tokio::test]
async fn the_model_is_the_bodys_or_the_first_that_the_connection_names() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let config = config(&upstream).connection_with(
        "patterned",
        "acme",
        json!({"models": ["acme-*", "acme-mini"]}),
    );
    let node = Node::start(&config).await;
    for (id, body, model) in [
        ("a", None, "small"),
        ("a", Some(json!({})), "small"),
        ("a", Some(json!({"model": "large"})), "large"),
        // Also one that it does not list: the operator may want to know.
        ("a", Some(json!({"model": "another"})), "another"),
        // A pattern is no model.
        ("patterned", None, "acme-mini"),
    ] {
        let before = upstream.requests().len();
        let tested = post(&node, id, body.as_ref())
            .await
            .expect_status(200)
            .json();
        assert_eq!(tested["model"], model, "{tested}");
        let seen = upstream.requests();
        assert_eq!(seen.len(), before + 1);
        assert_eq!(seen[before].json()["model"], model);
    }
}

#[tokio::test]
async fn without_any_known_model_the_list_of_models_is_asked_for() {
    for dialect in [Dialect::Chat, Dialect::Messages] {
        let upstream = Upstream::start().await;
        let url = upstream.url();
        let config = add_provider(Config::new(), dialect, &url, &["a"], json!({}));
        let node = Node::start(&config).await;
        let id = dialect.connection("a");
        let list = Reply::json(200, &json!({"object": "list", "data": [{"id": "m"}]}));
        upstream.script(&id, [list, Reply::error(401, "invalid api key")]);
        let tested = test(&node, &id).await;
        expect(&tested, &[("ok", json!(true)), ("status", json!(200))]);
        let seen = upstream.request(&id, 1).await;
        assert_eq!(
            (seen.method.as_str(), seen.path.as_str()),
            ("GET", "/v1/models")
        );
        assert!(seen.body.is_empty());
        let tested = test(&node, &id).await;
        expect(
            &tested,
            &[
                ("ok", json!(false)),
                ("status", json!(401)),
                ("connectionStatus", json!("terminal")),
            ],
        );
    }
}

#[tokio::test]
async fn every_state_but_health_ends_with_a_success() {
    let refusals = [
        (Reply::error(401, "invalid api key"), "terminal"),
        (Reply::error(402, "payment required"), "terminal"),
        (
            Reply::error(403, "your account has been suspended"),
            "terminal",
        ),
        (Reply::limited(600), "cooling_down"),
        (Reply::error(500, "boom"), "cooling_down"),
    ];
    for (reply, status) in refusals {
        let upstream = Upstream::start().await;
        let node = Node::start(&config(&upstream)).await;
        upstream.script("a", [reply, Dialect::Chat.ok("pong")]);
        ask(&node, "acme/small").await;
        assert_eq!(node.connection("a").await["connectionStatus"], status);
        let tested = test(&node, "a").await;
        expect(
            &tested,
            &[("ok", json!(true)), ("connectionStatus", json!("healthy"))],
        );
        let a = node.connection("a").await;
        expect(
            &a,
            &[
                ("connectionStatus", json!("healthy")),
                ("testStatus", json!("active")),
                ("rateLimitedUntil", Value::Null),
                ("backoffLevel", json!(0)),
                ("lastErrorType", Value::Null),
                ("errorCode", Value::Null),
                ("lastErrorAt", Value::Null),
            ],
        );
        ask(&node, "acme/small").await.expect_status(200);
    }
}

#[tokio::test]
async fn a_failure_is_judged_like_any_other() {
    for (reply, status, reason, state, test_status) in [
        (
            Reply::error(401, "invalid api key"),
            401,
            "auth_error",
            "terminal",
            "expired",
        ),
        (
            Reply::error(402, "payment required"),
            402,
            "quota_exhausted",
            "terminal",
            "credits_exhausted",
        ),
        (
            Reply::error(403, "your account has been suspended"),
            403,
            "auth_error",
            "terminal",
            "banned",
        ),
        (
            Reply::limited(600),
            429,
            "rate_limit_exceeded",
            "cooling_down",
            "unavailable",
        ),
    ] {
        let upstream = Upstream::start().await;
        let mut node = Node::start(&config(&upstream)).await;
        upstream.script("a", [reply]);
        let tested = test(&node, "a").await;
        expect(
            &tested,
            &[
                ("ok", json!(false)),
                ("status", json!(status)),
                ("reason", json!(reason)),
                ("connectionStatus", json!(state)),
            ],
        );
        assert!(tested["message"].is_string(), "{tested}");
        // Once told it stands, also after a crash.
        node.kill_9().await;
        let node = node.start_again().await;
        let a = node.connection("a").await;
        expect(
            &a,
            &[
                ("connectionStatus", json!(state)),
                ("testStatus", json!(test_status)),
            ],
        );
        if state == "cooling_down" {
            let left = a["cooldownRemainingMs"].as_u64().unwrap();
            assert!((500_000..=600_000).contains(&left), "{a}");
        }
        assert_eq!(upstream.count("a"), 1, "tried once");
    }
}

#[tokio::test]
async fn what_a_200_says_counts_too() {
    let words = json!({"error": {"message": "invalid api key", "code": 401}});
    for reply in [
        Reply::json(200, &words),
        Reply::text(200, "text/html", "<html>Sign in</html>"),
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&config(&upstream)).await;
        upstream.script("a", [reply]);
        let tested = test(&node, "a").await;
        assert_eq!(tested["ok"], false, "{tested}");
        assert!(tested["reason"].is_string(), "{tested}");
        let a = node.connection("a").await;
        assert!(a["lastErrorType"].is_string(), "{a}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_has_no_status() {
    let refused = Refused::new();
    let config = Config::new()
        .no_waiting()
        .provider("acme", "openai", &refused.url())
        .connection_with("a", "acme", json!({"models": ["small"]}));
    let node = Node::start(&config).await;
    let tested = test(&node, "a").await;
    expect(
        &tested,
        &[
            ("ok", json!(false)),
            ("status", Value::Null),
            ("reason", json!("server_error")),
        ],
    );
    assert!(tested["message"].is_string(), "{tested}");
    let a = node.connection("a").await;
    assert_eq!(a["lastErrorType"], "server_error", "{a}");
}

/// Nothing that adds up: the breaker, the ladder.
#[tokio::test]
async fn a_failure_raises_nothing() {
    let upstream = Upstream::start().await;
    let config = config(&upstream)
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(60_000));
    let node = Node::start(&config).await;
    for reply in [
        Reply::error(503, "down"),
        Reply::error(429, "slow down"),
        Reply::nothing(Finish::Reset),
    ] {
        upstream.script("a", [reply]);
        for _ in 0..3 {
            let tested = test(&node, "a").await;
            assert_eq!(tested["ok"], false, "{tested}");
            let a = node.connection("a").await;
            assert_eq!(a["breaker"]["state"], "CLOSED", "{a}");
            assert_eq!(a["breaker"]["failureCount"], 0, "{a}");
            assert_eq!(a["backoffLevel"], 0, "{a}");
        }
        let left = node.connection("a").await["cooldownRemainingMs"].clone();
        assert!(left.as_u64().unwrap() <= 60_000, "{left}");
    }
    // A level that is there is not lost by it either.
    let reset = node.admin_call("POST", "/api/connections/a/reset");
    reset.send().await.expect_status(200);
    upstream.script("a", [Reply::error(429, "slow down")]);
    ask(&node, "acme/small").await.expect_status(429);
    test(&node, "a").await;
    let a = node.connection("a").await;
    assert_eq!(a["backoffLevel"], 1, "{a}");
}

/// `Request not allowed` three times is a ban, but not by tests.
#[tokio::test]
async fn tests_never_complete_the_streak_of_rejected_requests() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .no_waiting()
        .provider_with("claude", "anthropic", &upstream.url(), json!({}))
        .connection_with(
            "a",
            "claude",
            json!({"models": ["claude-x"], "oauth": {"accessToken": "key-a"}}),
        );
    let node = Node::start(&config).await;
    let refused = json!({"type": "error",
        "error": {"type": "forbidden", "message": "Request not allowed"}});
    upstream.script("a", [Reply::json(403, &refused)]);
    for _ in 0..4 {
        let tested = test(&node, "a").await;
        assert_eq!(tested["status"], 403, "{tested}");
        let a = node.connection("a").await;
        assert_ne!(a["testStatus"], "banned", "{a}");
        assert_ne!(a["connectionStatus"], "terminal", "{a}");
    }
    // The first real one is the first of the streak.
    let ok = Dialect::Messages.ok("pong");
    upstream.script("a", [ok, Reply::json(403, &refused)]);
    assert_eq!(test(&node, "a").await["ok"], true);
    let body = Dialect::Messages.request("claude/claude-x", false);
    node.post("/v1/messages", &body).send().await;
    let a = node.connection("a").await;
    assert_eq!(a["testStatus"], "unavailable", "{a}");
    let left = a["cooldownRemainingMs"].as_u64().unwrap();
    assert!((200_000..=300_000).contains(&left), "{a}");
}

#[tokio::test]
async fn an_open_breaker_does_not_keep_a_test_from_going_out() {
    let upstream = Upstream::start().await;
    let config = config(&upstream)
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("providerBreaker.apikey.resetTimeoutMs", json!(600_000));
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::error(503, "down"), Dialect::Chat.ok("pong")]);
    ask(&node, "acme/small").await;
    let a = node.connection("a").await;
    assert_eq!(a["breaker"]["state"], "OPEN", "{a}");
    let tested = test(&node, "a").await;
    assert_eq!(tested["ok"], true, "{tested}");
    assert_eq!(upstream.count("a"), 2);
}

#[tokio::test]
async fn all_nodes_hear_of_it() {
    let cluster = Cluster::start(2, config).await;
    let [one, two] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    let refused = Reply::error(401, "invalid api key");
    cluster
        .upstream
        .script("a", [refused, Dialect::Chat.ok("pong")]);
    let tested = test(one, "a").await;
    assert_eq!(tested["connectionStatus"], "terminal", "{tested}");
    two.connection_becomes("a", "terminal").await;
    let tested = test(two, "a").await;
    assert_eq!(tested["connectionStatus"], "healthy", "{tested}");
    one.connection_becomes("a", "healthy").await;
    ask(one, "acme/small").await.expect_status(200);
}

#[tokio::test]
async fn a_recovery_that_was_told_outlives_a_crash() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&config(&upstream)).await;
    let refused = Reply::error(401, "invalid api key");
    upstream.script("a", [refused, Dialect::Chat.ok("pong")]);
    ask(&node, "acme/small").await;
    node.connection_becomes("a", "terminal").await;
    assert_eq!(test(&node, "a").await["ok"], true);
    node.kill_9().await;
    let node = node.start_again().await;
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
}

#[tokio::test]
async fn a_refused_access_token_is_renewed_first() {
    let upstream = Upstream::start().await;
    let endpoint = TokenEndpoint::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let ended = Reply::error(401, "Invalid authentication credentials");
    upstream.script("a.0", [ended]);
    let config = endpoint.config(&upstream.url(), &["a"], in_ms(3_600_000));
    let setup = Setup::with(&config).env("OMNIROUTE_SECRET_KEY", SECRET);
    let node = setup.start().await;
    let tested = post(&node, "a", Some(&json!({"model": "m"})))
        .await
        .expect_status(200)
        .json();
    assert_eq!(tested["ok"], true, "{tested}");
    assert_eq!(endpoint.grants().len(), 1);
    assert_eq!(upstream.count("a.1"), 1);
}

#[tokio::test]
async fn what_it_tells_holds_no_secret_and_is_short() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&config(&upstream)).env("RUST_LOG", "trace");
    let mut node = setup.start().await;
    let words = format!("Incorrect API key provided: key-a. {}", "ż".repeat(2000));
    upstream.script("a", [Reply::error(401, &words)]);
    let answer = post(&node, "a", None).await.expect_status(200);
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    assert!(message.chars().count() <= 300, "{message}");
    assert!(!answer.text().contains("key-a"), "{}", answer.text());
    node.stop().await;
    assert!(
        !node.log().text().contains("key-a"),
        "{}",
        node.log().text()
    );
}

#[tokio::test]
async fn bad_calls_reach_no_upstream() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let node = Node::start(&config(&upstream)).await;
    for id in ["nobody", "a%20", "A"] {
        let answer = post(&node, id, None).await.expect_status(404);
        assert_eq!(answer.code(), "connection_not_found", "{id}");
    }
    for body in [
        "{",
        "[]",
        "\"small\"",
        "{\"model\": 5}",
        "{\"model\": \"\"}",
        "{\"model\": null, \"modle\": \"small\"}",
        "{\"model\": [\"small\"]}",
    ] {
        let call = node.admin_call("POST", "/api/connections/a/test");
        let answer = call.body("application/json", body).send().await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert!(!answer.code().is_empty());
    }
    let answer = node
        .admin_call("GET", "/api/connections/a/test")
        .send()
        .await;
    assert_eq!(answer.status, 405, "{}", answer.text());
    assert_eq!(upstream.requests().len(), 0);
}

#[tokio::test]
async fn only_those_who_manage_may() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let config = config(&upstream)
        .server("adminToken", json!("the-admin-token"))
        .api_key("client", "clients-key", json!({}))
        .api_key("operator", "operators-key", json!({"scopes": ["manage"]}));
    let node = Node::start(&config).await;
    let call = || node.admin_call("POST", "/api/connections/a/test");
    call().send().await.expect_status(401);
    for key in ["clients-key", "nobodys-key"] {
        call().bearer(key).send().await.expect_status(403);
    }
    assert_eq!(upstream.requests().len(), 0);
    for key in ["the-admin-token", "operators-key"] {
        let tested = call().bearer(key).send().await.expect_status(200).json();
        assert_eq!(tested["ok"], true, "{tested}");
    }
}

/// A server that never answers is given up, and nobody waits for that.
#[tokio::test]
async fn a_test_has_an_end_and_holds_nobody_up() {
    let upstream = Upstream::start().await;
    let never = Gate::closed();
    let config = Config::new()
        .no_waiting()
        .provider_with(
            "acme",
            "openai",
            &upstream.url(),
            json!({"timeouts": {"responseHeadersMs": 1500, "totalMs": 1500}}),
        )
        .connection_with("a", "acme", json!({"models": ["small"]}))
        .connection_with("b", "acme", json!({"models": ["small"]}));
    let node = Node::start(&config).await;
    upstream.script("a", [Dialect::Chat.ok("late").behind(&never)]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let testing = test(&node, "a");
    let meanwhile = async {
        upstream.request("a", 1).await;
        let tested = test(&node, "b").await;
        assert_eq!(tested["ok"], true, "{tested}");
        assert!(tested["latencyMs"].as_u64().unwrap() < 1500, "{tested}");
    };
    let (tested, ()) = tokio::join!(testing, meanwhile);
    expect(&tested, &[("ok", json!(false)), ("status", Value::Null)]);
    let took = Duration::from_millis(tested["latencyMs"].as_u64().unwrap());
    assert!(took >= Duration::from_millis(1400), "{tested}");
}

#[tokio::test]
async fn the_simulated_provider_is_tested_in_the_process() {
    let node = Node::start(&Config::new()).await;
    let tested = post(&node, "simulated", Some(&json!({"model": "ok"})))
        .await
        .expect_status(200)
        .json();
    assert_eq!(tested["ok"], true, "{tested}");
    let body = json!({"model": "status-401"});
    let tested = post(&node, "simulated", Some(&body)).await.json();
    expect(
        &tested,
        &[
            ("ok", json!(false)),
            ("status", json!(401)),
            ("connectionStatus", json!("terminal")),
        ],
    );
}

/// A test goes the way that the connection's requests go.
#[tokio::test]
async fn it_goes_through_the_connections_proxy() {
    for kind in [Kind::Http, Kind::Socks5] {
        let (upstream, proxy) = (Upstream::start().await, Proxy::start(kind).await);
        upstream.script_all([Dialect::Chat.ok("pong").end(Finish::Close)]);
        let config = Config::new()
            .no_waiting()
            .provider("acme", "openai", &upstream.url())
            .connection_with(
                "a",
                "acme",
                json!({"models": ["small"], "proxyUrl": proxy.url()}),
            );
        let node = Node::start(&config).await;
        let tested = test(&node, "a").await;
        assert_eq!(tested["ok"], true, "{kind:?}: {tested}");
        assert_eq!(proxy.count(upstream.addr()), 1, "{kind:?}");
        proxy.set(Manner::Refuse);
        let tested = test(&node, "a").await;
        // What a proxy says to a whole address can't be told from its upstream's word.
        let status = match kind {
            Kind::Http => json!(502),
            Kind::Socks5 => Value::Null,
        };
        expect(&tested, &[("ok", json!(false)), ("status", status)]);
    }
}
