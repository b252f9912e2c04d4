//! A provider whose servers fail is left alone as a whole for a while.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

/// Connections that never cool, so that only the breaker speaks; each has a
/// combo `only-ID`.
fn config(upstream: &Upstream, provider: Value, ids: &[&str]) -> Config {
    let mut config = Config::new()
        .provider_with("acme", "openai", &upstream.url(), provider)
        .no_waiting();
    for id in ids {
        config = config
            .connection_with(id, "acme", json!({"disableCooling": true}))
            .combo(&format!("only-{id}"), &[&format!("acme/m@{id}")]);
    }
    config
}

async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

fn expect_open(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.header("x-omniroute-provider-breaker"), Some("open"));
    let body = answer.json();
    assert_eq!(body["error"]["code"], "provider_circuit_open", "{body}");
    assert_eq!(body["error"]["type"], "server_error", "{body}");
    assert_eq!(body["error"]["provider"], "acme", "{body}");
    let told = answer.retry_after().expect("no Retry-After");
    assert_eq!(body["error"]["retry_after"], told, "{body}");
    assert!(
        body["error"]["message"].as_str().unwrap().contains("acme"),
        "{body}"
    );
    told
}

#[tokio::test]
async fn one_failure_too_many_opens_it_for_every_connection() {
    let upstream = Upstream::start().await;
    let config = config(&upstream, json!({}), &["a", "b"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("providerBreaker.apikey.resetTimeoutMs", json!(60_000));
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::error(503, "down")]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    assert!(ask(&node, "only-a").await.status >= 500);
    let sent = upstream.requests().len();
    let answer = ask(&node, "acme/m").await;
    assert!((55..=60).contains(&expect_open(&answer)));
    assert_eq!(upstream.requests().len(), sent);
    for id in ["a", "b"] {
        let connection = node.connection(id).await;
        assert_eq!(
            connection["connectionStatus"], "circuit_open",
            "{connection}"
        );
        let breaker = &connection["breaker"];
        assert!(
            breaker["state"]
                .as_str()
                .unwrap()
                .eq_ignore_ascii_case("open"),
            "{breaker}"
        );
        assert!(breaker["failureCount"].as_u64().unwrap() >= 1, "{breaker}");
        assert!(
            breaker["retryAfterMs"].as_u64().unwrap() > 50_000,
            "{breaker}"
        );
    }
}

#[tokio::test]
async fn the_wait_that_is_told_is_over_when_breaker_and_cooldown_are() {
    let one = |upstream: &Upstream, reset_ms: u64| {
        Config::new()
            .provider("acme", "openai", &upstream.url())
            .connection("a", "acme")
            .provider("other", "openai", &upstream.url())
            .connection("b", "other")
            .combo("both", &["acme/m", "other/m"])
            .resilience("providerBreaker.apikey.failureThreshold", json!(1))
            .resilience("providerBreaker.apikey.resetTimeoutMs", json!(reset_ms))
            .no_waiting()
    };
    let told = |answer: Answer| {
        assert!(answer.status >= 429, "{}", answer.text());
        answer.retry_after().expect("no Retry-After")
    };
    // The connection rests 3 s; the request that opened the breaker hears of the breaker.
    let upstream = Upstream::start().await;
    upstream.script("a", [Reply::error(503, "down")]);
    let node = Node::start(&one(&upstream, 60_000)).await;
    for _ in 0..2 {
        let wait = told(ask(&node, "acme/m").await);
        assert!((55..=60).contains(&wait), "{wait}");
    }
    // Another target of the combo is back before.
    upstream.script("b", [Reply::limited(20)]);
    for _ in 0..2 {
        let wait = told(ask(&node, "both").await);
        assert!((15..=20).contains(&wait), "{wait}");
    }
    // The breaker is through long before the connection is.
    let upstream = Upstream::start().await;
    let reply = Reply::error(503, "down").header("retry-after", "90");
    upstream.script("a", [reply]);
    let node = Node::start(&one(&upstream, 5_000)).await;
    for _ in 0..2 {
        let wait = told(ask(&node, "acme/m").await);
        assert!((80..=90).contains(&wait), "{wait}");
    }
}

#[tokio::test]
async fn what_does_not_count_never_opens_it() {
    for reply in [
        Reply::limited(1),
        Reply::error(529, "overloaded"),
        Reply::error(400, "bad request"),
        Reply::error(404, "no such thing"),
        Reply::error(403, "no"),
    ] {
        let upstream = Upstream::start().await;
        let config = config(&upstream, json!({}), &["a", "b"])
            .resilience("providerBreaker.apikey.failureThreshold", json!(1));
        let node = Node::start(&config).await;
        let what = format!("{reply:?}");
        upstream.script("a", [reply]);
        upstream.script("b", [Dialect::Chat.ok("pong")]);
        assert!(ask(&node, "only-a").await.status >= 400);
        assert_eq!(ask(&node, "only-b").await.status, 200, "{what}");
    }
}

#[tokio::test]
async fn thresholds_go_by_profile() {
    for (profile, threshold) in [("local", 2), ("oauth", 3), ("apiKey", 4)] {
        let upstream = Upstream::start().await;
        let ids = ["a", "b", "c", "d", "e"];
        let config = config(&upstream, json!({"profile": profile}), &ids)
            .resilience("providerBreaker.oauth.failureThreshold", json!(3))
            .resilience("providerBreaker.apikey.failureThreshold", json!(4));
        let node = Node::start(&config).await;
        for id in ids {
            upstream.script(id, [Reply::error(503, "down")]);
        }
        for id in &ids[..threshold] {
            let answer = ask(&node, &format!("only-{id}")).await;
            assert_eq!(upstream.count(id), 1, "{profile}: {}", answer.text());
        }
        expect_open(&ask(&node, "only-e").await);
        assert_eq!(upstream.count("e"), 0, "{profile}");
    }
}

#[tokio::test]
async fn one_connection_failing_at_once_counts_once() {
    let upstream = Upstream::start().await;
    let config = config(&upstream, json!({}), &["a", "b"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(2));
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::error(503, "down")]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    for _ in 0..4 {
        assert!(ask(&node, "only-a").await.status >= 500);
    }
    ask(&node, "only-b").await.expect_status(200);
}

#[tokio::test]
async fn after_its_time_one_request_probes_and_a_success_closes_it() {
    let upstream = Upstream::start().await;
    let gate = Gate::closed();
    let config = config(&upstream, json!({}), &["a"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("providerBreaker.apikey.resetTimeoutMs", json!(1000));
    let node = Node::start(&config).await;
    upstream.script(
        "a",
        [
            Reply::error(503, "down"),
            Dialect::Chat.ok("pong").behind(&gate),
            Dialect::Chat.ok("pong"),
        ],
    );
    assert!(ask(&node, "acme/m").await.status >= 500);
    expect_open(&ask(&node, "acme/m").await);
    let body = Dialect::Chat.request("acme/m", false);
    let probe = eventually("a probe is let through", || async {
        let probe = tokio::spawn(node.post("/v1/chat/completions", &body).try_send());
        let settled = eventually("sent or refused", || async {
            (upstream.count("a") == 2 || probe.is_finished()).then_some(upstream.count("a") == 2)
        })
        .await;
        settled.then_some(probe)
    })
    .await;
    let others = (0..10).map(|_| tokio::spawn(node.post("/v1/chat/completions", &body).try_send()));
    for other in others.collect::<Vec<_>>() {
        expect_open(&other.await.unwrap().unwrap());
    }
    assert_eq!(upstream.count("a"), 2, "more than one probe");
    gate.open();
    probe.await.unwrap().unwrap().expect_status(200);
    for _ in 0..5 {
        ask(&node, "acme/m").await.expect_status(200);
    }
    assert_eq!(node.connection("a").await["connectionStatus"], "healthy");
}

#[tokio::test]
async fn a_failed_probe_opens_it_again() {
    let upstream = Upstream::start().await;
    let config = config(&upstream, json!({}), &["a"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("providerBreaker.apikey.resetTimeoutMs", json!(1000));
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::error(503, "down")]);
    ask(&node, "acme/m").await;
    eventually("a probe is sent", || async {
        ask(&node, "acme/m").await;
        (upstream.count("a") == 2).then_some(())
    })
    .await;
    expect_open(&ask(&node, "acme/m").await);
    assert_eq!(upstream.count("a"), 2);
}

#[tokio::test]
async fn a_combo_goes_around_an_open_provider() {
    let upstream = Upstream::start().await;
    let config = config(&upstream, json!({}), &["a"])
        .provider("other", "openai", &upstream.url())
        .connection("o", "other")
        .combo("both", &["acme/m", "other/m"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1));
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::error(503, "down")]);
    upstream.script("o", [Dialect::Chat.ok("pong"), Reply::limited(7)]);
    assert!(ask(&node, "only-a").await.status >= 500);
    let answer = ask(&node, "both").await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-attempts"), Some("1"));
    assert_eq!(upstream.order(), ["a", "o"]);
    let trace = node.trace(&answer).await.to_string();
    assert!(trace.contains("circuit_open"), "{trace}");
    ask(&node, "both").await;
    let answer = ask(&node, "both").await.expect_status(503);
    assert_eq!(answer.code(), "all_targets_cooling_down");
    assert!((1..=7).contains(&answer.retry_after().unwrap()));
}

#[tokio::test]
async fn an_open_breaker_survives_a_restart_and_yields_to_a_reset() {
    let upstream = Upstream::start().await;
    let config = config(&upstream, json!({}), &["a"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("providerBreaker.apikey.resetTimeoutMs", json!(600_000));
    let mut node = Node::start(&config).await;
    upstream.script("a", [Reply::error(503, "down"), Dialect::Chat.ok("pong")]);
    ask(&node, "acme/m").await;
    expect_open(&ask(&node, "acme/m").await);
    node.kill_9().await;
    let node = node.start_again().await;
    let told = expect_open(&ask(&node, "acme/m").await);
    assert!((500..=600).contains(&told), "{told}");
    let other = node.post(
        "/api/resilience/reset",
        &json!({"scope": "breakers", "provider": "openai"}),
    );
    other.send().await.expect_status(200);
    expect_open(&ask(&node, "acme/m").await);
    let reset = node.post(
        "/api/resilience/reset",
        &json!({"scope": "breakers", "provider": "acme"}),
    );
    reset.send().await.expect_status(200);
    eventually("the breaker is closed", || async {
        (ask(&node, "acme/m").await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_silent_server_counts_too() {
    let upstream = Upstream::start().await;
    let never = Gate::closed();
    let provider = json!({"timeouts": {"connectMs": 100, "totalMs": 200}});
    let config = config(&upstream, provider, &["a", "b"])
        .resilience("providerBreaker.apikey.failureThreshold", json!(1));
    let node = Node::start(&config).await;
    upstream.script("a", [Dialect::Chat.ok("late").behind(&never)]);
    let answer = ask(&node, "only-a").await.expect_status(504);
    assert!(answer.took < Duration::from_secs(5));
    expect_open(&ask(&node, "only-b").await);
    assert_eq!(upstream.count("b"), 0);
}
