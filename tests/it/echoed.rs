//! Refusals that repeat what their request said: no account answers for it.

use std::fmt::Write as _;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const ACCOUNTS: [&str; 3] = ["a", "b", "c"];

fn config(url: &str) -> Config {
    let config = Config::new().no_waiting().provider("acme", "openai", url);
    ACCOUNTS
        .iter()
        .fold(config, |config, id| config.connection(id, "acme"))
}

fn asking(model: &str, role: &str) -> Value {
    json!({"model": model, "messages": [{"role": role, "content": "ping"}]})
}

fn wrong_role(role: &str) -> Reply {
    let message = format!(
        "Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', \
         'function', 'tool', and 'developer'."
    );
    let error = json!({"message": message, "type": "invalid_request_error",
        "param": "messages[0].role", "code": "invalid_value"});
    Reply::json(400, &json!({"error": error}))
}

fn no_model(model: &str) -> Reply {
    let message = format!("The model `{model}` does not exist or you do not have access to it.");
    let error = json!({"message": message, "type": "invalid_request_error", "param": null,
        "code": "model_not_found"});
    Reply::json(404, &json!({"error": error}))
}

async fn ask(node: &Node, body: &Value) -> Answer {
    node.post("/v1/chat/completions", body).send().await
}

async fn all_are_well(node: &Node, why: &str) {
    for id in ACCOUNTS {
        let connection = node.connection(id).await;
        assert_eq!(
            connection["connectionStatus"], "healthy",
            "{why}: {connection}"
        );
    }
}

#[tokio::test]
async fn no_account_pays_for_a_models_name() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream.url())).await;
    for (sent, told) in [
        (
            "your account has been suspended",
            "your account has been suspended",
        ),
        ("Credits Exhausted", "credits exhausted"),
        ("no longer works", "no longer works"),
    ] {
        upstream.script_all([no_model(told)]);
        let refused = ask(&node, &asking(&format!("acme/{sent}"), "user")).await;
        assert_ne!(refused.status, 200);
        all_are_well(&node, sent).await;
        upstream.script_all([Dialect::Chat.ok("pong")]);
        let innocent = ask(&node, &asking("acme/m", "user")).await;
        innocent.expect_status(200);
    }
}

#[tokio::test]
async fn no_account_pays_for_a_role_a_prompt_or_a_header() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream.url())).await;
    for role in [
        "payment required",
        "no longer works",
        "security token",
        "your account has been suspended",
        "weekly usage limit, try again in 20 days",
    ] {
        upstream.script_all([wrong_role(role)]);
        ask(&node, &asking("acme/m", role)).await.expect_status(400);
        all_are_well(&node, role).await;
        // As a client that spells it in escapes would.
        let escaped = role.chars().fold(String::new(), |mut escaped, c| {
            write!(escaped, "\\u{:04x}", u32::from(c)).unwrap();
            escaped
        });
        let body = asking("acme/m", "ROLE")
            .to_string()
            .replace("ROLE", &escaped);
        let call = node.post("/v1/chat/completions", &json!({}));
        call.body("application/json", body)
            .send()
            .await
            .expect_status(400);
        all_are_well(&node, &escaped).await;
        let call = node.post("/v1/chat/completions", &asking("acme/m", "user"));
        call.header("anthropic-beta", role).send().await;
        all_are_well(&node, role).await;
    }
    let calls = upstream.requests().len();
    assert_eq!(calls, 5 * 3, "the request's fault goes nowhere else");
}

#[tokio::test]
async fn a_genuine_end_is_one_whatever_the_talk_is_about() {
    let upstream = Upstream::start().await;
    upstream.script("a", [Reply::error(403, "Your account has been suspended")]);
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let node = Node::start(&config(&upstream.url())).await;
    let mut body = asking("acme/m", "user");
    body["messages"][0]["content"] = json!("why was my account banned, suspended or unpaid?");
    ask(&node, &body).await.expect_status(200);
    assert_eq!(node.connection("a").await["testStatus"], "banned");
}

#[tokio::test]
async fn one_request_ends_one_account_at_most_for_what_a_text_says() {
    let upstream = Upstream::start().await;
    // Rephrased, so that nothing shows whose words they are.
    upstream.script_all([Reply::error(400, "Your account has been suspended")]);
    let node = Node::start(&config(&upstream.url())).await;
    ask(&node, &asking("acme/m", "user")).await;
    assert_eq!(node.connection("a").await["testStatus"], "banned");
    for id in ["b", "c"] {
        assert_eq!(
            node.connection(id).await["connectionStatus"],
            "cooling_down",
            "{id}"
        );
    }
}

#[tokio::test]
async fn an_operators_rule_goes_before_a_ban() {
    let upstream = Upstream::start().await;
    upstream.script_all([Reply::error(403, "Your account has been suspended")]);
    let rule = json!([{"status": 403, "match": "account has been suspended", "scope": "model"}]);
    let config = config(&upstream.url()).set(&["settings", "providerErrorRules", "acme"], rule);
    let node = Node::start(&config).await;
    ask(&node, &asking("acme/m", "user")).await;
    all_are_well(&node, "the operator knows better").await;
}

fn with_tools(role: &str, tools: usize) -> Value {
    let mut body = asking("acme/m", role);
    let tool = |at| json!({"type": "function", "function": {"name": format!("t{at}")}});
    body["tools"] = Value::Array((0..tools).map(tool).collect());
    body
}

#[tokio::test]
async fn no_client_teaches_how_many_tools_a_provider_takes() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream.url())).await;
    let role = "maximum number of tools is 1";
    upstream.script_all([wrong_role(role)]);
    ask(&node, &with_tools(role, 2)).await.expect_status(400);
    // One name that is too long says nothing of how many there may be.
    let long = "Invalid 'tools[0].function.name': string too long. Expected a string with maximum \
                length 1, but got a string with length 65 instead.";
    upstream.script_all([Reply::error(400, long)]);
    ask(&node, &with_tools("user", 2)).await.expect_status(400);
    upstream.script_all([Dialect::Chat.ok("pong")]);
    ask(&node, &with_tools("user", 2)).await.expect_status(200);
}

#[tokio::test]
async fn an_operator_unteaches_it() {
    let upstream = Upstream::start().await;
    let url = upstream.url();
    let learns = async |node: &Node| {
        upstream.script_all([Reply::error(400, "the maximum number of tools is 3")]);
        ask(node, &with_tools("user", 4)).await.expect_status(400);
        upstream.script_all([Dialect::Chat.ok("pong")]);
        ask(node, &with_tools("user", 4)).await
    };
    let node = Node::start(&config(&url)).await;
    for reset in [
        json!({"scope": "all"}),
        json!({"scope": "lockouts", "provider": "acme"}),
    ] {
        assert_eq!(learns(&node).await.code(), "too_many_tools");
        let call = node
            .admin_call("POST", "/api/resilience/reset")
            .json(&reset);
        let told = call.send().await.expect_status(200).json();
        assert_eq!(told["toolLimits"], 1, "{told}");
        ask(&node, &with_tools("user", 4)).await.expect_status(200);
    }
    let own = json!({"maxTools": 4});
    let config = Config::new().no_waiting();
    let config = config
        .provider_with("acme", "openai", &url, own)
        .connection("a", "acme");
    let node = Node::start(&config).await;
    learns(&node).await.expect_status(200);
    let refused = ask(&node, &with_tools("user", 5)).await.expect_status(400);
    assert!(
        refused.text().contains("its maxTools"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn no_prompt_goes_to_the_emergency_target_for_a_word_of_its_own() {
    let upstream = Upstream::start().await;
    upstream.script("s", [Dialect::Chat.ok("from spare")]);
    let target = json!({"enabled": true, "target": "spare/m"});
    let config = config(&upstream.url())
        .provider("spare", "openai", &upstream.url())
        .connection("s", "spare")
        .set(&["settings", "emergencyFallback"], target);
    let node = Node::start(&config).await;
    for (status, text) in [
        (400, "unknown field 'billing'"),
        (500, "failed at 'billing'"),
    ] {
        for id in ACCOUNTS {
            upstream.script(id, [Reply::error(status, text)]);
        }
        let mut body = asking("acme/m", "user");
        body["billing"] = json!(true);
        assert_ne!(ask(&node, &body).await.status, 200, "{text}");
    }
    // The request's fault, whoever wrote it.
    for id in ACCOUNTS {
        let reset = format!("/api/connections/{id}/reset");
        node.admin_call("POST", &reset).send().await;
        upstream.script(id, [Reply::error(400, "unknown field 'billing'")]);
    }
    assert_ne!(ask(&node, &asking("acme/m", "user")).await.status, 200);
    assert_eq!(upstream.count("s"), 0);
}
