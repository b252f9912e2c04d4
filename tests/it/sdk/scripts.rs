//! The SDK scripts against the scripted upstream itself: what they report is
//! what the SDKs do when nothing is in between.

use cluster_tests::dialect::Dialect;
use cluster_tests::reply::Reply;
use cluster_tests::sdk::{Sdk, run};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

use super::{chat_tool_call, chat_tool_stream, message_tool_call, message_tool_stream};

async fn direct(sdk: Sdk, scenario: &str, replies: &[Reply]) -> (Value, Upstream) {
    let upstream = Upstream::start().await;
    upstream.script_all(replies.to_vec());
    let url = format!("http://{}", upstream.addr());
    let told = run(sdk, scenario, &url, "demo-model").await;
    (told, upstream)
}

const EACH: [(Sdk, Dialect); 3] = [
    (Sdk::PythonOpenai, Dialect::Chat),
    (Sdk::NodeOpenai, Dialect::Chat),
    (Sdk::PythonAnthropic, Dialect::Messages),
];

#[tokio::test]
async fn plain_and_streamed() {
    for (sdk, dialect) in EACH {
        for (scenario, reply) in [
            ("plain", dialect.ok("é")),
            ("stream", dialect.ok_stream("é")),
        ] {
            let (told, _) = direct(sdk, scenario, &[reply]).await;
            assert_eq!(told["text"], "é", "{sdk:?} {scenario}: {told}");
        }
    }
    for sdk in [Sdk::PythonOpenai, Sdk::NodeOpenai] {
        let dialect = Dialect::Responses;
        for (scenario, reply) in [
            ("responses", dialect.ok("é")),
            ("responses_stream", dialect.ok_stream("é")),
        ] {
            let (told, _) = direct(sdk, scenario, &[reply]).await;
            assert_eq!(told["text"], "é", "{sdk:?} {scenario}: {told}");
        }
    }
}

#[tokio::test]
async fn tools_are_put_together() {
    for (sdk, dialect) in EACH {
        let (plain, streamed) = match dialect {
            Dialect::Messages => (message_tool_call(), message_tool_stream()),
            Dialect::Chat | Dialect::Responses => (chat_tool_call(), chat_tool_stream()),
        };
        for (scenario, reply) in [("tools", plain), ("stream_tools", streamed)] {
            let (told, upstream) = direct(sdk, scenario, &[reply]).await;
            assert_eq!(
                told["arguments"],
                json!({"city": "Łódź"}),
                "{sdk:?}: {told}"
            );
            assert!(upstream.requests()[0].json()["tools"].is_array());
        }
    }
}

#[tokio::test]
async fn failures_raise() {
    for (sdk, dialect) in EACH {
        for (status, class) in [(403, "PermissionDeniedError"), (429, "RateLimitError")] {
            let (told, _) = direct(sdk, "error", &[Reply::error(status, "no")]).await;
            assert_eq!(told["class"], class, "{sdk:?}: {told}");
        }
        let frames = [
            dialect.opening().concat(),
            dialect.content("hel"),
            dialect.error_event("server_error", "it broke"),
        ];
        let (told, _) = direct(sdk, "stream_error", &[Reply::frames(&frames)]).await;
        assert_eq!(told["text"], "hel", "{sdk:?}: {told}");
        assert!(
            told["class"].as_str().unwrap().starts_with("API"),
            "{sdk:?}: {told}"
        );
    }
}

#[tokio::test]
async fn a_failed_response_is_an_event() {
    let dialect = Dialect::Responses;
    let failed = json!({"type": "response.failed", "sequence_number": 5, "response": {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "failed",
        "model": "demo-model", "output": [], "parallel_tool_calls": true, "tool_choice": "auto",
        "tools": [], "error": {"code": "server_error", "message": "it broke"}}});
    let frames = [
        dialect.opening().concat(),
        dialect.content("hel"),
        format!("event: response.failed\ndata: {failed}\n\n"),
    ];
    let sdk = Sdk::PythonOpenai;
    let (told, _) = direct(sdk, "responses_stream_error", &[Reply::frames(&frames)]).await;
    assert_eq!(told["text"], "hel", "{told}");
    assert_eq!(
        told["kinds"].as_array().unwrap().last(),
        Some(&json!("response.failed"))
    );
}

#[tokio::test]
async fn a_retry_waits_as_told() {
    for (sdk, dialect) in EACH {
        let replies = [Reply::limited(1), dialect.ok("pong")];
        let (told, upstream) = direct(sdk, "retry_plain", &replies).await;
        assert_eq!(told["text"], "pong", "{sdk:?}: {told}");
        let seen = upstream.requests();
        assert_eq!(seen.len(), 2);
        let gap = seen[1].at - seen[0].at;
        assert!(gap.as_millis() >= 900, "{sdk:?}: {gap:?}");
    }
}
