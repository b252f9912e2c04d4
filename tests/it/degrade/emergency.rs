//! The emergency fallback: off unless asked for, since it sends prompts to
//! another vendor.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const FLAG: &str = "OMNIROUTE_EMERGENCY_FALLBACK";

fn config(upstream: &Upstream) -> Config {
    upstream.script("n", [Dialect::Chat.ok("from afar")]);
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection("a", "acme")
        .provider("nvidia", "openai", &upstream.url())
        .connection("n", "nvidia")
        .combo("only", &["acme/m"])
}

async fn start(upstream: &Upstream, flag: &str) -> Node {
    Setup::with(&config(upstream)).env(FLAG, flag).start().await
}

async fn ask(node: &Node, more: &Value) -> Answer {
    let mut body = Dialect::Chat.request("acme/m", false);
    let more = more.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(more);
    node.post("/v1/chat/completions", &body).send().await
}

fn broke() -> Reply {
    Reply::error(402, "Payment Required")
}

/// EF-01.
#[tokio::test]
async fn a_provider_that_is_out_of_money_is_stood_in_for() {
    for flag in ["true", "1", "yes", "ON"] {
        let upstream = Upstream::start().await;
        let node = start(&upstream, flag).await;
        upstream.script("a", [broke()]);
        let answer = ask(&node, &json!({})).await.expect_status(200);
        assert_eq!(Dialect::Chat.text_of_answer(&answer.json()), "from afar");
        assert_eq!(answer.header("x-omniroute-provider"), Some("nvidia"));
        let sent = upstream.request("n", 1).await.json();
        assert_eq!(sent["model"], "openai/gpt-oss-120b", "{sent}");
        assert_eq!(sent["messages"][0]["content"], "ping", "{sent}");
        let a = node.connection("a").await;
        assert_eq!(a["testStatus"], "credits_exhausted", "{a}");
        let trace = node.trace(&answer).await;
        assert!(trace.to_string().contains("emergency"), "{trace}");
    }
}

#[tokio::test]
async fn its_output_is_capped() {
    for (more, most) in [
        (json!({}), 4096),
        (json!({"max_tokens": 100_000}), 4096),
        (json!({"max_completion_tokens": 100_000}), 4096),
        (json!({"max_tokens": 100}), 100),
    ] {
        let upstream = Upstream::start().await;
        let node = start(&upstream, "true").await;
        upstream.script("a", [broke()]);
        ask(&node, &more).await.expect_status(200);
        let sent = upstream.request("n", 1).await.json();
        let caps = ["max_tokens", "max_completion_tokens"];
        let caps: Vec<u64> = caps.iter().filter_map(|cap| sent[*cap].as_u64()).collect();
        assert!(!caps.is_empty(), "{more}: {sent}");
        assert!(caps.iter().all(|cap| *cap == most), "{more}: {sent}");
    }
}

#[tokio::test]
async fn streams_are_stood_in_for_too() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, "true").await;
    upstream.script("a", [broke()]);
    upstream.script("n", [Dialect::Chat.ok_stream("from afar")]);
    let answer = ask(&node, &json!({"stream": true})).await;
    Dialect::Chat.expect_whole(&answer.expect_status(200).text(), "from afar");
}

#[tokio::test]
async fn words_of_an_empty_purse_count_whatever_the_status() {
    for (status, words, stands_in) in [
        (403, "Insufficient funds on this account", true),
        (429, "Budget exceeded for this key", true),
        (400, "monthly spending limit reached", true),
        (403, "your organization is out of credits", true),
        // EF-05.
        (500, "internal error", false),
        (429, "slow down", false),
        (400, "messages: at least one is needed", false),
    ] {
        let upstream = Upstream::start().await;
        let node = start(&upstream, "true").await;
        upstream.script("a", [Reply::error(status, words)]);
        let answer = ask(&node, &json!({})).await;
        let served = answer.status == 200;
        assert_eq!(served, stands_in, "{words}: {}", answer.text());
        assert_eq!(upstream.count("n"), usize::from(stands_in), "{words}");
    }
}

/// EF-02: another model would not know how the tools are used.
#[tokio::test]
async fn a_request_with_tools_is_not_redirected() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, "true").await;
    upstream.script("a", [broke()]);
    let tools = json!({"tools": [{"type": "function", "function": {"name": "weather"}}]});
    let answer = ask(&node, &tools).await;
    assert!(answer.status >= 400, "{}", answer.text());
    assert_eq!(upstream.count("n"), 0);
}

/// EF-04, and the default of this project.
#[tokio::test]
async fn it_is_off_unless_asked_for() {
    for flag in [None, Some("false"), Some("0"), Some("off"), Some("")] {
        let upstream = Upstream::start().await;
        let setup = Setup::with(&config(&upstream));
        let setup = match flag {
            None => setup,
            Some(flag) => setup.env(FLAG, flag),
        };
        let node = setup.start().await;
        upstream.script("a", [broke()]);
        let answer = ask(&node, &json!({})).await;
        assert!(answer.status >= 400, "{flag:?}: {}", answer.text());
        assert_eq!(upstream.count("n"), 0, "{flag:?}");
    }
}

/// EF-06: what was saved goes before the variable, either way.
#[tokio::test]
async fn what_was_saved_beats_the_variable() {
    for (flag, saved) in [("true", false), ("false", true)] {
        let upstream = Upstream::start().await;
        let node = start(&upstream, flag).await;
        let body = json!({"emergencyFallback": {"enabled": saved}});
        let call = node.admin_call("PATCH", "/api/settings").json(&body);
        call.send().await.expect_status(200);
        upstream.script("a", [broke()]);
        let answer = ask(&node, &json!({})).await;
        assert_eq!(answer.status == 200, saved, "{}", answer.text());
        assert_eq!(upstream.count("n"), usize::from(saved));
    }
}

/// Whoever else the client named goes first.
#[tokio::test]
async fn an_ordinary_target_goes_first() {
    let upstream = Upstream::start().await;
    let config = config(&upstream)
        .provider("backup", "openai", &upstream.url())
        .connection("b", "backup")
        .combo("both", &["acme/m", "backup/m"]);
    let node = Setup::with(&config).env(FLAG, "true").start().await;
    upstream.script("a", [broke()]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let body = Dialect::Chat.request("both", false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    answer.expect_status(200);
    assert_eq!(upstream.order(), ["a", "b"]);
}

/// A key that may not use the other vendor does not use it in an emergency.
#[tokio::test]
async fn what_a_key_may_not_use_stays_forbidden() {
    for limits in [
        json!({"allowedConnections": ["a"]}),
        json!({"allowedModels": ["acme/m"]}),
    ] {
        let upstream = Upstream::start().await;
        let config = config(&upstream).api_key("team", "the-teams-key", limits.clone());
        let node = Setup::with(&config).env(FLAG, "true").start().await;
        upstream.script("a", [broke()]);
        let body = Dialect::Chat.request("acme/m", false);
        let call = node.post("/v1/chat/completions", &body);
        let answer = call.bearer("the-teams-key").send().await;
        assert!(answer.status >= 400, "{limits}: {}", answer.text());
        assert_eq!(upstream.count("n"), 0, "{limits}");
    }
}

/// It is asked once; when it can't serve either, the client hears of the first.
#[tokio::test]
async fn a_stand_in_that_fails_is_the_end() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, "true").await;
    upstream.script("a", [broke()]);
    upstream.script("n", [broke()]);
    let answer = ask(&node, &json!({})).await;
    assert!(answer.status >= 400, "{}", answer.text());
    assert_eq!(upstream.order(), ["a", "n"]);
}
