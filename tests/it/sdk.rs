//! The official client SDKs, which must not notice that a router is in between.
//! Each scenario also runs against the scripted upstream itself, so that a
//! failure here is the router's and not the script's.

mod errors;
mod scripts;

use std::time::Duration;

use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Reply};
use cluster_tests::sdk::{Sdk, run};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

const OPENAI: [Sdk; 2] = [Sdk::PythonOpenai, Sdk::NodeOpenai];

/// A node that knows the SDKs' key, in front of a scripted upstream.
struct World {
    upstream: Upstream,
    node: Node,
}

impl World {
    async fn new(shorts: &[&str]) -> Self {
        let upstream = Upstream::start().await;
        let config = all_providers(&upstream.url(), shorts, &json!({}))
            .api_key("sdk", "sdk-key", json!({}))
            .no_waiting();
        let node = Node::start(&config).await;
        Self { upstream, node }
    }

    /// Scripts connection a of a dialect.
    fn script(&self, dialect: Dialect, replies: impl IntoIterator<Item = Reply>) {
        self.upstream.script(&dialect.connection("a"), replies);
    }

    async fn run(&self, sdk: Sdk, scenario: &str, model: &str) -> Value {
        run(
            sdk,
            scenario,
            &format!("http://{}", self.node.addr()),
            model,
        )
        .await
    }
}

/// Runs a scenario against the upstream itself, whose only answer is `reply`.
async fn direct(sdk: Sdk, scenario: &str, reply: Reply) -> Value {
    let upstream = Upstream::start().await;
    upstream.script_all([reply]);
    run(
        sdk,
        scenario,
        &format!("http://{}", upstream.addr()),
        "demo-model",
    )
    .await
}

/// The same through the router, and the same result apart from the time.
async fn same(world: &World, sdk: Sdk, scenario: &str, dialect: Dialect, reply: Reply) -> Value {
    let without = |mut value: Value| {
        value.as_object_mut().unwrap().remove("took_ms");
        value
    };
    world.script(dialect, [reply.clone()]);
    let model = dialect.model();
    let (through, straight) = tokio::join!(
        world.run(sdk, scenario, &model),
        direct(sdk, scenario, reply)
    );
    let through = without(through);
    assert_eq!(through, without(straight), "{sdk:?} {scenario}");
    through
}

fn chat_tool_call() -> Reply {
    Reply::json(
        200,
        &json!({"id": "c1", "object": "chat.completion", "created": 1,
        "model": "demo-model", "choices": [{"index": 0, "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": null, "tool_calls": [{"id": "call_1",
                "type": "function",
                "function": {"name": "weather", "arguments": "{\"city\": \"Łódź\"}"}}]}}]}),
    )
}

fn chat_tool_stream() -> Reply {
    let chunk = |delta: Value, finish: Value| {
        let chunk = json!({"id": "c1", "object": "chat.completion.chunk", "created": 1,
            "model": "demo-model",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
        format!("data: {chunk}\n\n")
    };
    let arguments =
        |text: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": text}}]});
    Reply::frames(&[
        chunk(
            json!({"role": "assistant", "tool_calls": [{"index": 0, "id": "call_1",
            "type": "function", "function": {"name": "weather", "arguments": ""}}]}),
            Value::Null,
        ),
        chunk(arguments("{\"city\": \"Łó"), Value::Null),
        chunk(arguments("dź\"}"), Value::Null),
        chunk(json!({}), json!("tool_calls")),
        "data: [DONE]\n\n".to_owned(),
    ])
}

fn message_tool_call() -> Reply {
    Reply::json(
        200,
        &json!({"id": "m1", "type": "message", "role": "assistant",
        "model": "demo-model", "stop_reason": "tool_use", "stop_sequence": null,
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather",
            "input": {"city": "Łódź"}}],
        "usage": {"input_tokens": 1, "output_tokens": 1}}),
    )
}

fn message_tool_stream() -> Reply {
    let frame = |data: &Value| {
        let name = data["type"].as_str().unwrap();
        format!("event: {name}\ndata: {data}\n\n")
    };
    let piece = |text: &str| {
        frame(&json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": text}}))
    };
    let mut frames = vec![Dialect::Messages.opening()[0].clone()];
    frames.extend([
        frame(
            &json!({"type": "content_block_start", "index": 0, "content_block": {
            "type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}}),
        ),
        piece("{\"city\": \"Łó"),
        piece("dź\"}"),
        frame(&json!({"type": "content_block_stop", "index": 0})),
        frame(
            &json!({"type": "message_delta", "usage": {"output_tokens": 5},
            "delta": {"stop_reason": "tool_use", "stop_sequence": null}}),
        ),
        frame(&json!({"type": "message_stop"})),
    ]);
    Reply::frames(&frames)
}

#[tokio::test]
async fn openai_chat_plain_and_streamed() {
    let world = World::new(&["a"]).await;
    for sdk in OPENAI {
        let reply = Dialect::Chat.ok("pong é");
        let told = same(&world, sdk, "plain", Dialect::Chat, reply).await;
        assert_eq!(
            told,
            json!({"text": "pong é", "finish": "stop", "total_tokens": 2})
        );
        let reply = Dialect::Chat.ok_stream("pong é").in_pieces_of(3);
        let told = same(&world, sdk, "stream", Dialect::Chat, reply).await;
        assert_eq!(
            (&told["text"], &told["finish"]),
            (&json!("pong é"), &json!("stop"))
        );
    }
}

#[tokio::test]
async fn openai_tools_in_the_request_and_the_answer() {
    let world = World::new(&["a"]).await;
    for sdk in OPENAI {
        let before = world.upstream.count("chat-a");
        let told = same(&world, sdk, "tools", Dialect::Chat, chat_tool_call()).await;
        assert_eq!(told["arguments"], json!({"city": "Łódź"}));
        let told = same(
            &world,
            sdk,
            "stream_tools",
            Dialect::Chat,
            chat_tool_stream(),
        )
        .await;
        assert_eq!(
            told,
            json!({"name": "weather", "arguments": {"city": "Łódź"}})
        );
        for n in 1..=2 {
            let seen = world.upstream.request("chat-a", before + n).await.json();
            assert_eq!(seen["tools"][0]["function"]["name"], "weather", "{seen}");
            assert_eq!(seen["model"], "demo-model");
        }
    }
}

#[tokio::test]
async fn openai_responses_plain_and_streamed() {
    let world = World::new(&["a"]).await;
    for sdk in OPENAI {
        let reply = Dialect::Responses.ok("pong é");
        let told = same(&world, sdk, "responses", Dialect::Responses, reply).await;
        assert_eq!(told, json!({"text": "pong é", "status": "completed"}));
        let reply = Dialect::Responses.ok_stream("pong é");
        let told = same(&world, sdk, "responses_stream", Dialect::Responses, reply).await;
        assert_eq!(
            (&told["text"], &told["status"]),
            (&json!("pong é"), &json!("completed"))
        );
        assert_eq!(told["kinds"].as_array().unwrap().len(), 9, "{told}");
    }
}

#[tokio::test]
async fn openai_embeddings_and_models() {
    let world = World::new(&["a"]).await;
    let vector = Reply::json(
        200,
        &json!({"object": "list", "model": "demo-model",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -1.5]}],
        "usage": {"prompt_tokens": 1, "total_tokens": 1}}),
    );
    for sdk in OPENAI {
        let told = same(&world, sdk, "embeddings", Dialect::Chat, vector.clone()).await;
        assert_eq!(told["vector"], json!([0.25, -1.5]));
        let told = world.run(sdk, "models", "-").await;
        assert!(told["ids"].is_array(), "{told}");
    }
}

#[tokio::test]
async fn anthropic_plain_streamed_and_tools() {
    let world = World::new(&["a"]).await;
    let sdk = Sdk::PythonAnthropic;
    let dialect = Dialect::Messages;
    let told = same(&world, sdk, "plain", dialect, dialect.ok("pong é")).await;
    assert_eq!(
        told,
        json!({"text": "pong é", "finish": "end_turn", "output_tokens": 1})
    );
    let reply = dialect.ok_stream("pong é").in_pieces_of(3);
    let told = same(&world, sdk, "stream", dialect, reply).await;
    assert_eq!(
        told,
        json!({"text": "pong é", "final": "pong é", "finish": "end_turn"})
    );
    let told = same(&world, sdk, "tools", dialect, message_tool_call()).await;
    assert_eq!(
        (&told["finish"], &told["arguments"]["city"]),
        (&json!("tool_use"), &json!("Łódź"))
    );
    let told = same(&world, sdk, "stream_tools", dialect, message_tool_stream()).await;
    assert_eq!(
        told,
        json!({"name": "weather", "arguments": {"city": "Łódź"}})
    );
    let seen = world.upstream.request("messages-a", 3).await;
    assert_eq!(seen.json()["tools"][0]["name"], "weather");
    assert_eq!(seen.key, "key-messages-a");
}

#[tokio::test]
async fn a_failover_goes_unnoticed() {
    let world = World::new(&["a", "b"]).await;
    for (sdk, dialect) in [
        (Sdk::PythonOpenai, Dialect::Chat),
        (Sdk::NodeOpenai, Dialect::Chat),
        (Sdk::PythonAnthropic, Dialect::Messages),
    ] {
        let reset = world.node.admin_call("POST", "/api/resilience/reset");
        reset.send().await.expect_status(200);
        let mut opening = dialect.opening();
        opening.push(dialect.error_event("overloaded_error", "Overloaded"));
        world.script(dialect, [Reply::frames(&opening)]);
        world
            .upstream
            .script(&dialect.connection("b"), [dialect.ok_stream("pong")]);
        let told = world.run(sdk, "stream", &dialect.model()).await;
        assert_eq!(told["text"], "pong", "{sdk:?}: {told}");
    }
}

#[tokio::test]
async fn retry_after_is_honoured() {
    for (sdk, dialect) in [
        (Sdk::PythonOpenai, Dialect::Chat),
        (Sdk::NodeOpenai, Dialect::Chat),
        (Sdk::PythonAnthropic, Dialect::Messages),
    ] {
        let world = World::new(&["a"]).await;
        world.script(dialect, [Reply::limited(2), dialect.ok("pong")]);
        let told = world.run(sdk, "retry_plain", &dialect.model()).await;
        assert_eq!(told["text"], "pong", "{sdk:?}: {told}");
        let attempts = world.upstream.requests_of(&dialect.connection("a"));
        assert_eq!(
            attempts.len(),
            2,
            "{sdk:?} asked before the time it was told"
        );
        let gap = attempts[1].at - attempts[0].at;
        assert!(gap >= Duration::from_millis(1900), "{sdk:?}: {gap:?}");
    }
}

#[tokio::test]
async fn a_node_client_that_breaks_off_frees_the_upstream() {
    let world = World::new(&["a"]).await;
    let reply = Reply::sse()
        .send(&Dialect::Chat.content("hel"))
        .end(Finish::Hang);
    world.script(Dialect::Chat, [reply]);
    let told = world
        .run(Sdk::NodeOpenai, "abandon", "chat/demo-model")
        .await;
    assert_eq!(told["left"], true);
    let seen = world.upstream.request("chat-a", 1).await;
    seen.dropped(Duration::from_secs(5)).await;
    assert_eq!(
        world.node.connection("chat-a").await["connectionStatus"],
        "healthy"
    );
}

#[tokio::test]
async fn all_of_them_talk_to_the_simulated_provider() {
    let config = Config::new().api_key("sdk", "sdk-key", json!({}));
    let node = Node::start(&config).await;
    let url = format!("http://{}", node.addr());
    for sdk in OPENAI {
        for scenario in ["plain", "stream", "responses", "responses_stream"] {
            let told = run(sdk, scenario, &url, "simulated/echo").await;
            let text = told["text"].as_str().unwrap();
            assert!(text.contains("ping"), "{sdk:?} {scenario}: {told}");
        }
        let told = run(sdk, "embeddings", &url, "simulated/ok").await;
        assert!(
            told["vector"]
                .as_array()
                .is_some_and(|vector| !vector.is_empty()),
            "{told}"
        );
    }
    for scenario in ["plain", "stream"] {
        let told = run(Sdk::PythonAnthropic, scenario, &url, "simulated/echo").await;
        assert!(
            told["text"].as_str().unwrap().contains("ping"),
            "{scenario}: {told}"
        );
    }
}
