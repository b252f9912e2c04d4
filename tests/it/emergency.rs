//! The last resort when money is the reason that nobody could serve.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const WARNING: &str = "x-omniroute-warning";

fn config(url: &str) -> Config {
    Config::new()
        .no_waiting()
        .provider("acme", "openai", url)
        .connection("a", "acme")
        .provider("spare", "openai", url)
        .connection("s", "spare")
        .set(
            &["settings", "emergencyFallback", "target"],
            json!("spare/vendor/free-model"),
        )
}

fn enabled(config: Config) -> Config {
    config.set(&["settings", "emergencyFallback", "enabled"], json!(true))
}

async fn ask(node: &Node, more: &Value) -> Answer {
    let mut body = Dialect::Chat.request("acme/m", false);
    if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
        body.extend(more.clone());
    }
    node.post("/v1/chat/completions", &body).send().await
}

async fn upstream(first: Reply) -> Upstream {
    let upstream = Upstream::start().await;
    upstream.script("a", [first]);
    upstream.script("s", [Dialect::Chat.ok("from spare")]);
    upstream
}

fn broke() -> Reply {
    Reply::error(402, "Payment required: top up your account")
}

#[tokio::test]
async fn a_refusal_for_money_goes_to_the_emergency_target() {
    let upstream = upstream(broke()).await;
    let node = Node::start(&enabled(config(&upstream.url()))).await;
    let answer = ask(&node, &json!({"max_tokens": 9000}))
        .await
        .expect_status(200);
    assert_eq!(answer.header(WARNING), Some("emergency_fallback"), "EF-01");
    assert_eq!(answer.header("x-omniroute-provider"), Some("spare"));
    assert_eq!(answer.header("x-omniroute-attempts"), Some("2"));
    let sent = upstream.request("s", 1).await.json();
    assert_eq!(
        (&sent["model"], &sent["max_tokens"]),
        (&json!("vendor/free-model"), &json!(4096))
    );
    let trace = node.trace(&answer).await;
    assert_eq!(trace["warnings"], json!(["emergency_fallback"]), "{trace}");
    // The account is out of money for good, and the next request finds that out.
    let answer = ask(&node, &json!({"max_tokens": 100}))
        .await
        .expect_status(200);
    assert_eq!(answer.header(WARNING), Some("emergency_fallback"));
    let sent = upstream.request("s", 2).await.json();
    assert_eq!(sent["max_tokens"], 100);
    assert_eq!(upstream.count("a"), 1);
}

#[tokio::test]
async fn it_stays_off_unless_it_is_switched_on() {
    let upstream = upstream(broke()).await;
    let cases = [
        (config(&upstream.url()), "", false),
        (config(&upstream.url()), "false", false),
        (config(&upstream.url()), "on", true),
        // EF-06: what is set goes before the variable.
        (
            config(&upstream.url())
                .set(&["settings", "emergencyFallback", "enabled"], json!(false)),
            "true",
            false,
        ),
    ];
    for (config, variable, fires) in cases {
        let setup = Setup::with(&config).env("OMNIROUTE_EMERGENCY_FALLBACK", variable);
        let node = setup.start().await;
        let answer = ask(&node, &json!({})).await;
        assert_eq!(answer.status == 200, fires, "{variable}: {}", answer.text());
        assert_eq!(answer.header(WARNING).is_some(), fires, "{variable}");
    }
}

#[tokio::test]
async fn never_with_tools_and_never_for_other_reasons() {
    let upstream = upstream(broke()).await;
    let node = Node::start(&enabled(config(&upstream.url()))).await;
    let tool = json!({"type": "function", "function": {"name": "t"}});
    let answer = ask(&node, &json!({"tools": [tool]})).await;
    assert_ne!(answer.status, 200, "EF-02");
    let node = Node::start(&enabled(config(&upstream.url()))).await;
    upstream.script("a", [Reply::error(500, "internal error")]);
    assert_ne!(ask(&node, &json!({})).await.status, 200, "EF-05");
    assert_eq!(upstream.count("s"), 0);
}

#[tokio::test]
async fn where_it_fails_too_the_first_refusal_is_told_and_others_are_tried_first() {
    let upstream = upstream(broke()).await;
    upstream.script("s", [Reply::error(500, "spare is down")]);
    upstream.script("b", [Dialect::Chat.ok("from b")]);
    let node = Node::start(&enabled(config(&upstream.url()))).await;
    let answer = ask(&node, &json!({})).await;
    assert!(
        answer.text().contains("Payment required"),
        "{}",
        answer.text()
    );
    assert_eq!(answer.header(WARNING), None);
    assert_eq!(upstream.count("s"), 1, "once");
    let config = enabled(config(&upstream.url())).connection("b", "acme");
    let node = Node::start(&config).await;
    let answer = ask(&node, &json!({})).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    assert_eq!(answer.header(WARNING), None);
}

#[tokio::test]
async fn a_key_that_may_not_go_there_does_not() {
    let upstream = upstream(broke()).await;
    let config = enabled(config(&upstream.url()));
    let narrow = json!({"allowedModels": ["acme/m"]});
    let config = config.api_key("narrow", "sk-narrow-0123456789abcdef", narrow);
    let node = Node::start(&config).await;
    let body = Dialect::Chat.request("acme/m", false);
    let call = node.post("/v1/chat/completions", &body);
    let answer = call.bearer("sk-narrow-0123456789abcdef").send().await;
    assert_ne!(answer.status, 200);
    assert_eq!(upstream.count("s"), 0);
}
