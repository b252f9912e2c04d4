//! Each failure raises the class that the SDK documents for it.

use cluster_tests::dialect::Dialect;
use cluster_tests::reply::Reply;
use cluster_tests::sdk::Sdk;
use serde_json::{Value, json};

use super::{OPENAI, World};

/// What an upstream does, what the client asks for, and what it then catches.
struct Case {
    reply: Option<Reply>,
    scenario: &'static str,
    model: Option<&'static str>,
    class: &'static str,
    status: u16,
}

fn cases(dialect: Dialect) -> Vec<Case> {
    let case = |reply, scenario, model, class, status| Case {
        reply,
        scenario,
        model,
        class,
        status,
    };
    let refusal = match dialect {
        Dialect::Messages => Reply::json(
            400,
            &json!({"type": "error", "error": {
            "type": "invalid_request_error", "message": "no"}}),
        ),
        Dialect::Chat | Dialect::Responses => Reply::json(
            400,
            &json!({"error": {
            "message": "no", "type": "invalid_request_error", "param": null, "code": "no"}}),
        ),
    };
    vec![
        case(Some(refusal), "error", None, "BadRequestError", 400),
        case(None, "wrong_key", None, "AuthenticationError", 401),
        case(None, "error", Some("no-such-model"), "NotFoundError", 404),
        case(
            Some(Reply::error(500, "boom")),
            "error",
            None,
            "InternalServerError",
            0,
        ),
        case(
            Some(Reply::limited(30)),
            "error",
            None,
            "RateLimitError",
            429,
        ),
    ]
}

async fn expect_classes(sdk: Sdk, dialect: Dialect) {
    for case in cases(dialect) {
        let world = World::new(&["a"]).await;
        world.script(dialect, [case.reply.unwrap_or_else(|| dialect.ok("pong"))]);
        let model = case.model.map_or_else(|| dialect.model(), str::to_owned);
        let told = world.run(sdk, case.scenario, &model).await;
        assert_eq!(told["class"], case.class, "{sdk:?}: {told}");
        if case.status != 0 {
            assert_eq!(told["status"], case.status, "{sdk:?}: {told}");
        }
        assert!(told["request_id"].is_string(), "{sdk:?}: {told}");
        if case.status == 429 {
            let seconds: u64 = told["retry_after"].as_str().unwrap().parse().unwrap();
            assert!((29..=30).contains(&seconds), "{told}");
        }
        if case.status == 404 {
            assert_eq!(told["code"], "model_not_found", "{told}");
        }
    }
}

#[tokio::test]
async fn openai_in_python() {
    expect_classes(Sdk::PythonOpenai, Dialect::Chat).await;
}

#[tokio::test]
async fn openai_in_node() {
    expect_classes(Sdk::NodeOpenai, Dialect::Chat).await;
}

#[tokio::test]
async fn anthropic_in_python() {
    expect_classes(Sdk::PythonAnthropic, Dialect::Messages).await;
}

#[tokio::test]
async fn a_forbidden_model_is_permission_denied() {
    let config = cluster_tests::config::Config::new().api_key(
        "sdk",
        "sdk-key",
        json!({"allowedModels": ["simulated/echo"]}),
    );
    let node = cluster_tests::node::Node::start(&config).await;
    let url = format!("http://{}", node.addr());
    for sdk in [Sdk::PythonOpenai, Sdk::NodeOpenai, Sdk::PythonAnthropic] {
        let told = cluster_tests::sdk::run(sdk, "error", &url, "simulated/ok").await;
        assert_eq!(told["class"], "PermissionDeniedError", "{sdk:?}: {told}");
    }
}

/// Streams `hel` and then breaks in one of the ways streams break.
fn breaking(dialect: Dialect) -> [Reply; 2] {
    let mut begun = dialect.opening();
    begun.push(dialect.content("hel"));
    let cut = Reply::frames(&begun);
    begun.push(dialect.error_event("server_error", "it broke"));
    [cut, Reply::frames(&begun)]
}

fn expect_mid_stream(sdk: Sdk, told: &Value) {
    assert_eq!(told["text"], "hel", "{sdk:?}: {told}");
    let class = told["class"].as_str().unwrap_or_default();
    assert!(
        class.starts_with("API"),
        "{sdk:?} raised no API error: {told}"
    );
}

#[tokio::test]
async fn a_stream_that_breaks_raises() {
    for (sdk, dialect) in [
        (Sdk::PythonOpenai, Dialect::Chat),
        (Sdk::NodeOpenai, Dialect::Chat),
        (Sdk::PythonAnthropic, Dialect::Messages),
    ] {
        for reply in breaking(dialect) {
            let world = World::new(&["a"]).await;
            world.script(dialect, [reply]);
            let told = world.run(sdk, "stream_error", &dialect.model()).await;
            expect_mid_stream(sdk, &told);
        }
    }
}

#[tokio::test]
async fn a_response_that_breaks_ends_in_response_failed() {
    for reply in breaking(Dialect::Responses) {
        let world = World::new(&["a"]).await;
        world.script(Dialect::Responses, [reply]);
        let model = Dialect::Responses.model();
        let told = world
            .run(Sdk::PythonOpenai, "responses_stream_error", &model)
            .await;
        assert_eq!(told["text"], "hel", "{told}");
        let kinds = told["kinds"].as_array().unwrap();
        assert_eq!(kinds.last(), Some(&json!("response.failed")), "{told}");
    }
}

#[tokio::test]
async fn every_target_failing_before_content_raises_at_the_call() {
    for sdk in OPENAI {
        let world = World::new(&["a", "b"]).await;
        for short in ["chat-a", "chat-b"] {
            let error = Dialect::Chat.error_event("server_error", "it broke");
            world.upstream.script(short, [Reply::frames(&[error])]);
        }
        let told = world.run(sdk, "stream_error", "chat/demo-model").await;
        assert_eq!(told["class"], "InternalServerError", "{sdk:?}: {told}");
        assert_eq!(told["text"], "");
    }
}
