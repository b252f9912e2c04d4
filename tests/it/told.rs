//! What clients and those on call are told is true, whole, and the same words
//! everywhere.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, add_provider};
use cluster_tests::node::{Node, field};
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

fn chat(upstream: &Upstream, shorts: &[&str]) -> Config {
    let config = Config::new();
    let config = add_provider(config, Dialect::Chat, &upstream.url(), shorts, json!({}));
    config.no_waiting()
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("chat/demo-model", false);
    node.post("/v1/chat/completions", &body).send().await
}

fn told(answer: &Answer) -> (u16, String, String) {
    let message = answer.json()["error"]["message"].clone();
    let message = message.as_str().unwrap_or_default().to_owned();
    (answer.status, answer.code(), message)
}

/// The log's warnings.
fn warnings(node: &Node) -> Vec<Value> {
    let mut records = node.log().records();
    records.retain(|record| field(record, "level") == Some("WARN"));
    records
}

#[tokio::test]
async fn the_same_state_gives_the_same_answer() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a", "b"])).await;
    upstream.script(
        "chat-a",
        [Reply::error(403, "your account has been suspended")],
    );
    upstream.script("chat-b", [Reply::error(402, "payment required")]);
    let first = ask(&node).await;
    let second = ask(&node).await;
    assert_eq!(told(&first), told(&second));
    let (status, code, message) = told(&first);
    assert_eq!((status, code.as_str()), (404, "no_executable_targets"));
    let counted = "2 connections of chat: 1 banned, 1 out of credits";
    assert!(message.contains(counted), "{message}");
    assert_eq!(first.retry_after(), None);
    assert_eq!(upstream.requests().len(), 2);
    // Both attempts are told of all the same.
    assert_eq!(first.json()["diagnostics"]["attempted"], 2);
}

#[tokio::test]
async fn what_the_only_connection_said_is_passed_on_once() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a"])).await;
    upstream.script("chat-a", [Reply::error(402, "payment required")]);
    let first = ask(&node).await;
    assert_eq!(first.code(), "insufficient_quota", "{}", first.text());
    assert_eq!(first.header("x-should-retry"), Some("false"));
    for _ in 0..2 {
        let (status, code, message) = told(&ask(&node).await);
        assert_eq!((status, code.as_str()), (404, "no_executable_targets"));
        let counted = "1 connection of chat: 1 out of credits";
        assert!(message.contains(counted), "{message}");
    }
}

#[tokio::test]
async fn the_order_of_attempts_changes_nothing() {
    for limited_first in [true, false] {
        let upstream = Upstream::start().await;
        let node = Node::start(&chat(&upstream, &["a", "b"])).await;
        let mut replies = [Reply::limited(7), Reply::error(401, "invalid api key")];
        if !limited_first {
            replies.reverse();
        }
        for (id, reply) in ["chat-a", "chat-b"].into_iter().zip(replies) {
            upstream.script(id, [reply]);
        }
        let answer = ask(&node).await.expect_status(429);
        assert_eq!(answer.code(), "rate_limit_exceeded");
        assert!((6..=7).contains(&answer.retry_after().unwrap()));
        let trace = node.trace(&answer).await;
        let told: Vec<bool> = trace["attempts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|attempt| attempt["failure"]["clientRetryAfterMs"].is_u64())
            .collect();
        assert_eq!(told, [limited_first, !limited_first], "{trace}");
    }
}

#[tokio::test]
async fn what_the_request_alone_can_mend_is_no_limit() {
    let too_large = json!({"error": {"message": "Request too large for gpt-4o on tokens per \
        min (TPM): Limit 30000, Requested 30601. The input or output tokens must be reduced in \
        order to run successfully.", "type": "tokens", "code": "rate_limit_exceeded"}});
    let no_access = json!({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message":
        "You exceeded your current quota.\n* Quota exceeded for metric: \
        generativelanguage.googleapis.com/generate_content_free_tier_requests, limit: 0, \
        model: gemini-3-pro"}});
    for (provider, body) in [("openai", too_large), ("gemini", no_access)] {
        let upstream = Upstream::start().await;
        let config = Config::new()
            .no_waiting()
            .provider(provider, "openai", &upstream.url())
            .connection("a", provider)
            .connection("b", provider);
        let node = Node::start(&config).await;
        upstream.script_all([Reply::json(429, &body)]);
        let body = Dialect::Chat.request(&format!("{provider}/demo-model"), false);
        let answer = node.post("/v1/chat/completions", &body).send().await;
        assert!(matches!(answer.status, 400 | 404), "{}", answer.text());
        assert_ne!(answer.json()["error"]["type"], "rate_limit_error");
        assert_eq!(answer.retry_after(), None);
    }
}

#[tokio::test]
async fn a_failure_is_shown_as_it_was_acted_on() {
    let upstream = Upstream::start().await;
    for hints in [true, false] {
        let config = chat(&upstream, &["a"]);
        let config = config.resilience(
            "connectionCooldown.apikey.useUpstreamRetryHints",
            json!(hints),
        );
        let node = Node::start(&config).await;
        upstream.script("chat-a", [Reply::limited(40)]);
        let answer = ask(&node).await.expect_status(429);
        let trace = node.trace(&answer).await;
        let attempt = &trace["attempts"][0];
        let failure = &attempt["failure"];
        assert_eq!(failure["scope"], "connection", "{failure}");
        assert_eq!(failure["errorType"], "rate_limited", "{failure}");
        assert_eq!(failure["hint"]["waitMs"], 40_000, "{failure}");
        assert_eq!(failure["hintUsed"], hints, "{failure}");
        assert_eq!(failure["cooldownMs"] == 40_000, hints, "{failure}");
        assert_eq!(failure["until"], attempt["cooledUntil"], "{attempt}");
        assert!(failure["countsForBreaker"].is_boolean(), "{failure}");
        let wait = failure["clientRetryAfterMs"].as_u64().unwrap();
        assert_eq!(wait.div_ceil(1000), answer.retry_after().unwrap());
        let old = [
            "blame",
            "error_type",
            "client_retry_after_ms",
            "counts_for_breaker",
        ];
        assert!(
            old.iter().all(|name| failure.get(name).is_none()),
            "{failure}"
        );
    }
}

#[tokio::test]
async fn a_wait_that_nobody_was_told_is_not_shown() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a", "b"])).await;
    upstream.script("chat-a", [Reply::limited(40)]);
    upstream.script("chat-b", [Dialect::Chat.ok("pong")]);
    let answer = ask(&node).await.expect_status(200);
    let trace = node.trace(&answer).await;
    let failure = &trace["attempts"][0]["failure"];
    assert!(failure["hint"].is_object(), "{failure}");
    assert!(failure.get("clientRetryAfterMs").is_none(), "{failure}");
}

#[tokio::test]
async fn a_restated_failure_names_its_rule() {
    let upstream = Upstream::start().await;
    let rules = json!([{"id": "r1", "provider": "chat", "fromStatuses": [403],
        "toStatus": 429, "textMarkers": ["slow down"]}]);
    let config = chat(&upstream, &["a"]).set(&["settings", "statusRestatementRules"], rules);
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Reply::error(403, "slow down please")]);
    let answer = ask(&node).await.expect_status(429);
    let trace = node.trace(&answer).await;
    let failure = &trace["attempts"][0]["failure"];
    assert_eq!(
        failure["restated"],
        json!({"rule": "r1", "fromStatus": 403})
    );
    let line = node.log().line("the attempt's line", |line| {
        line.contains("an attempt failed")
    });
    let line: Value = serde_json::from_str(&line.await).unwrap();
    assert_eq!(field(&line, "restated_rule"), Some("r1"), "{line}");
    assert_eq!(line["restated_from_status"], 403, "{line}");
}

#[tokio::test]
async fn a_client_that_leaves_leaves_its_attempt() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a"])).await;
    let never = Gate::closed();
    for (n, reply) in [
        Dialect::Chat.ok("late").behind(&never),
        Reply::frames(&Dialect::Chat.opening()).end(Finish::Hang),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.script("chat-a", [reply]);
        let call = node.post("/v1/chat/completions", &Dialect::Chat.ask(n == 1));
        let call = tokio::spawn(call.try_send());
        let seen = upstream.request("chat-a", n + 1).await;
        call.abort();
        seen.dropped(Duration::from_secs(10)).await;
        let record = eventually("the request is remembered", || async {
            let all = node.admin_get("/api/requests?limit=5").await;
            let all = all["requests"].as_array().unwrap().clone();
            let gone = all.iter().filter(|one| one["outcome"] == "client_gone");
            (gone.count() == n + 1).then(|| all[0].clone())
        })
        .await;
        let attempt = &record["attempts"][0];
        assert_eq!(attempt["outcome"], "client_gone", "{record}");
        assert_eq!(attempt["connection"], "chat-a", "{record}");
        assert!(
            attempt["durationMs"].is_u64() && attempt.get("failure").is_none(),
            "{record}"
        );
        let id = record["id"].as_str().unwrap().to_owned();
        let line = node.log().line("its line", |line| line.contains(&id)).await;
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(field(&line, "connection"), Some("chat-a"), "{line}");
        assert_eq!(
            field(&line, "attempt_outcome"),
            Some("client_gone"),
            "{line}"
        );
        assert!(line["attempt_ms"].is_u64(), "{line}");
    }
    assert_eq!(
        node.connection("chat-a").await["connectionStatus"],
        "healthy"
    );
}

#[tokio::test]
async fn an_end_and_a_refusal_are_warned_of_once() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a", "b"])).await;
    upstream.script("chat-a", [Reply::error(401, "invalid api key")]);
    upstream.script("chat-b", [Reply::limited(600)]);
    for _ in 0..3 {
        ask(&node).await;
    }
    let warnings = eventually("both are warned of", || async {
        let all = warnings(&node);
        (all.len() >= 2).then_some(all)
    })
    .await;
    let about = |name: &str, value: &str| {
        let found = warnings
            .iter()
            .filter(|one| field(one, name) == Some(value));
        found.collect::<Vec<_>>()
    };
    let [ended] = about("terminal", "expired")[..] else {
        panic!("{warnings:#?}");
    };
    assert_eq!(field(ended, "connection"), Some("chat-a"), "{ended}");
    assert_eq!(field(ended, "provider"), Some("chat"), "{ended}");
    assert_eq!(ended["status"], 401, "{ended}");
    assert!(
        field(ended, "rule").is_some() && field(ended, "reason").is_some(),
        "{ended}"
    );
    let [refused] = about("target", "request")[..] else {
        panic!("{warnings:#?}");
    };
    assert_eq!(
        field(refused, "model"),
        Some("chat/demo-model"),
        "{refused}"
    );
    assert!(
        (590..=600).contains(&refused["retry_after_seconds"].as_u64().unwrap()),
        "{refused}"
    );
    assert_eq!(
        field(refused, "reasons"),
        Some("auth_error,rate_limit_exceeded"),
        "{refused}"
    );
}

#[tokio::test]
async fn what_came_is_told() {
    let upstream = Upstream::start().await;
    let mut many = Reply::json(200, &json!({}));
    for n in 0..150 {
        many = many.header(&format!("x-filler-{n}"), "x");
    }
    let page = "<!DOCTYPE html><title>Attention Required!</title>";
    let cases = [
        (
            Reply::text(301, "text/html", "moved")
                .header("location", "https://login.acme.example/?k=hunter"),
            502,
            Some(301),
            "answered 301, a redirect to host login.acme.example",
        ),
        (many, 502, None, "headers than are taken"),
        (
            Reply::wire(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
            502,
            None,
            "not HTTP",
        ),
        (
            Reply::json(
                422,
                &json!({"detail": [{"loc": ["body", "n"], "msg": "field required"}]}),
            ),
            422,
            Some(422),
            "field required (at body > n)",
        ),
        (
            Reply::error(500, &"x ".repeat(200_000)),
            502,
            Some(500),
            "longer explanation",
        ),
        (
            Reply::text(403, "text/html", page),
            503,
            Some(403),
            "HTML page",
        ),
    ];
    for (reply, status, own, words) in cases {
        let node = Node::start(&chat(&upstream, &["a"])).await;
        upstream.script("chat-a", [reply]);
        let answer = ask(&node).await;
        let (told, code, message) = told(&answer);
        assert_eq!(told, status, "{words}: {}", answer.text());
        assert!(message.contains(words), "{words}: {message}");
        assert!(!message.contains("hunter"), "{message}");
        assert_eq!(code == "upstream_blocked", words == "HTML page", "{code}");
        let trace = node.trace(&answer).await;
        let attempt = &trace["attempts"][0];
        assert_eq!(attempt["status"].as_u64(), own, "{attempt}");
        if status == 502 && own == Some(301) {
            assert_eq!(attempt["failure"]["status"], 301, "{attempt}");
            assert_eq!(attempt["failure"]["countsForBreaker"], false, "{attempt}");
        }
    }
}

#[tokio::test]
async fn codes_of_upstreams_are_words_of_their_own() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a"])).await;
    for (code, told) in [
        ("bad_colour", "bad_colour"),
        ("LEASE_LOST", "upstream_rejected_request"),
        ("no_executable_targets", "upstream_rejected_request"),
        ("about:blank", "upstream_rejected_request"),
        ("1302", "upstream_rejected_request"),
    ] {
        let body = json!({"error": {"message": "no: password=hunter", "code": code}});
        upstream.script("chat-a", [Reply::json(400, &body)]);
        let answer = ask(&node).await.expect_status(400);
        assert_eq!(answer.code(), told, "{}", answer.text());
        assert!(!answer.text().contains("hunter"), "{}", answer.text());
    }
}

#[tokio::test]
async fn a_success_names_whom_it_passed_over() {
    let upstream = Upstream::start().await;
    let mut config = Config::new()
        .no_waiting()
        .provider("chat", "openai", &upstream.url());
    for n in 1..=20 {
        config = config.connection_with(&format!("c{n}"), "chat", json!({"priority": n}));
        upstream.script(&format!("c{n}"), [Reply::limited(600)]);
    }
    upstream.script("c1", [Dialect::Chat.ok("pong"), Reply::limited(600)]);
    upstream.script("c20", [Dialect::Chat.ok("pong")]);
    let node = Node::start(&config).await;
    let first = ask(&node).await.expect_status(200);
    assert_eq!(node.trace(&first).await["excluded"], json!([]));
    let second = ask(&node).await.expect_status(200);
    // They were tried, so they are among the attempts.
    assert_eq!(
        node.trace(&second).await["attempts"]
            .as_array()
            .unwrap()
            .len(),
        20
    );
    let third = ask(&node).await.expect_status(200);
    let trace = node.trace(&third).await;
    let excluded = trace["excluded"].as_array().unwrap();
    assert_eq!(excluded.len(), 16, "{trace}");
    assert_eq!(trace["moreExcluded"], 3, "{trace}");
    assert_eq!(excluded[0]["connection"], "c1", "{trace}");
    for one in excluded {
        assert_eq!(one["reason"], "connection_cooldown", "{one}");
        assert!(one["until"].is_string(), "{one}");
    }
}
