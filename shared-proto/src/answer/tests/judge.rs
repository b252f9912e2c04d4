//! Verdicts on whole answers.

use super::*;

#[test]
fn good_answers() {
    let chat = r#" {"choices":[{"index":0,"message":{"role":"assistant","content":"pong"},"finish_reason":"stop"}],
        "usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}} "#;
    let facts = verdict(Protocol::ChatCompletions, chat).unwrap();
    assert_eq!(facts.finish_reason.as_deref(), Some("stop"));
    let usage = |input, output, cached| Usage {
        input: Some(input),
        output: Some(output),
        cached,
    };
    assert_eq!(facts.usage, Some(usage(3, 1, Some(2))));

    let response = r#"{"object":"response","status":"completed","error":null,"output":[{"type":"message",
        "content":[{"type":"output_text","text":"pong"}]}],"usage":{"input_tokens":3,"output_tokens":1}}"#;
    let facts = verdict(Protocol::Responses, response).unwrap();
    assert_eq!(facts.finish_reason.as_deref(), Some("completed"));
    assert_eq!(facts.usage, Some(usage(3, 1, None)));

    let message = r#"{"type":"message","content":[{"type":"text","text":"pong"}],"stop_reason":"end_turn",
        "usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":1}}"#;
    let facts = verdict(Protocol::Messages, message).unwrap();
    assert_eq!(facts.finish_reason.as_deref(), Some("end_turn"));
    assert_eq!(facts.usage, Some(usage(7, 1, Some(4))));

    let vectors = r#"{"object":"list","data":[{"embedding":[0.1]}],"usage":{"prompt_tokens":3,"total_tokens":3}}"#;
    let facts = verdict(Protocol::Embeddings, vectors).unwrap();
    assert_eq!(facts.usage.unwrap().input, Some(3));
}

const CHAT: &[(&str, &str)] = &[
    (r#"{"choices":[{"message":{"content":"x"}}]}"#, "ok"),
    (
        r#"{"choices":[{"message":{"content":[{"type":"text","text":"x"}]},"finish_reason":"stop"}]}"#,
        "ok",
    ),
    (
        r#"{"choices":[{"message":{"content":null,"refusal":"no"},"finish_reason":"stop"}]}"#,
        "ok",
    ),
    (
        r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"a","function":{"name":"f","arguments":""}}]},"finish_reason":"tool_calls"}]}"#,
        "ok",
    ),
    (
        r#"{"choices":[{"message":{"content":"","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"a\""}}]},"finish_reason":"tool_calls"}]}"#,
        "truncated_tool_call",
    ),
    (
        r#"{"choices":[{"message":{"function_call":{"name":"f","arguments":"{"}},"finish_reason":"stop"}]}"#,
        "truncated_tool_call",
    ),
    (
        r#"{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":"{\"a\""}}]},"finish_reason":"length"}]}"#,
        "ok",
    ),
    (
        r#"{"choices":[{"message":{"content":""},"finish_reason":"length"}]}"#,
        "ok",
    ),
    (
        r#"{"choices":[{"message":{"content":""},"finish_reason":"content_filter"}]}"#,
        "ok",
    ),
    (
        r#"{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}"#,
        "empty",
    ),
    (r#"{"choices":[]}"#, "empty"),
    (
        r#"{"id":"","object":"","created":0,"model":"","system_fingerprint":null,"choices":null,"usage":null}"#,
        "empty",
    ),
    (
        r#"{"id":"1","choices":null,"base_resp":{"status_code":1039,"status_msg":"token limit"}}"#,
        "error_event",
    ),
    (
        r#"{"choices":[{"message":{"content":"x"}}],"base_resp":{"status_code":0}}"#,
        "ok",
    ),
    (
        r#"{"id":"gen","choices":[{"index":0,"message":{"content":"partial"},"finish_reason":"error"}],"usage":{"prompt_tokens":null}}"#,
        "error_event",
    ),
    (
        r#"{"choices":[{"error":{"code":502,"message":"x"},"message":{"content":"x"}}]}"#,
        "error_event",
    ),
    (
        r#"{"error":{"message":"Rate limit exceeded, please retry","code":429}}"#,
        "error_event",
    ),
    (
        r#"{"error":"no","choices":[{"message":{"content":"x"}}]}"#,
        "error_event",
    ),
    (
        r#"{"error":null,"choices":[{"message":{"content":"x"}}]}"#,
        "ok",
    ),
    (
        r#"[{"error":{"code":429,"status":"RESOURCE_EXHAUSTED"}}]"#,
        "error_event",
    ),
    (r#"{"detail":"Not authenticated"}"#, "error_event"),
    (r#"{"code":"InvalidApiKey","message":"no"}"#, "error_event"),
    (r#"{"message":"Unauthorized"}"#, "error_event"),
    (
        r#"{"code":500,"msg":"404 NOT_FOUND","success":false}"#,
        "error_event",
    ),
    (
        r#"{"success":false,"errors":[{"code":7000,"message":"no"}]}"#,
        "error_event",
    ),
    (
        r#"{"choices":[{"message":{"content":"x"},"finish_reason":"network_error"}]}"#,
        "error_event",
    ),
    (r#"{"choices":[],"message":"x"}"#, "empty"),
    (
        r#"{"object":"error","message":"no","code":400}"#,
        "error_event",
    ),
    (r#"{"hello":"world"}"#, "garbage"),
    ("[]", "garbage"),
    ("7", "garbage"),
    (
        r#"{"choices":[{"message":{"content":"The quick bro"#,
        "truncated",
    ),
    (r#"{"choices":[}"#, "garbage"),
    ("<html>", "garbage"),
    ("data: {}", "garbage"),
    (" \n\r\n\t", "empty"),
    ("", "empty"),
    (
        "\u{feff}{\"choices\":[{\"message\":{\"content\":\"x\"}}]}",
        "ok",
    ),
    (
        r#"{"choices":[],"choices":[{"message":{"content":"x"}}]}"#,
        "ok",
    ),
];

#[test]
fn verdicts_on_chat_completions() {
    for (body, expected) in CHAT {
        assert_eq!(kind(Protocol::ChatCompletions, body), *expected, "{body}");
    }
}

const RESPONSES: &[(&str, &str)] = &[
    (r#"{"status":"completed","output":[]}"#, "empty"),
    (
        r#"{"status":"completed","output":[{"type":"reasoning","summary":[]}]}"#,
        "empty",
    ),
    (
        r#"{"status":"completed","output":[{"type":"message","content":[{"type":"refusal","refusal":"no"}]}]}"#,
        "ok",
    ),
    (
        r#"{"status":"completed","output":[{"type":"function_call","name":"f","arguments":""}]}"#,
        "ok",
    ),
    (
        r#"{"status":"completed","output":[{"type":"function_call","name":"f","arguments":"{"}]}"#,
        "truncated_tool_call",
    ),
    (
        r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[{"type":"function_call","name":"f","arguments":"{"}]}"#,
        "ok",
    ),
    (
        r#"{"status":"incomplete","incomplete_details":{"reason":"content_filter"},"output":[]}"#,
        "ok",
    ),
    (r#"{"status":"queued","output":[]}"#, "ok"),
    (
        r#"{"status":"failed","error":{"code":"server_error","message":"x"},"output":[]}"#,
        "error_event",
    ),
    (
        r#"{"status":"failed","error":null,"output":[]}"#,
        "error_event",
    ),
    (r#"{"error":{"message":"x"}}"#, "error_event"),
    (r#"{"detail":"x"}"#, "error_event"),
    (r#"{"hello":"world"}"#, "garbage"),
    (r#"{"status":"completed","output":[{"#, "truncated"),
];

#[test]
fn verdicts_on_responses() {
    for (body, expected) in RESPONSES {
        assert_eq!(kind(Protocol::Responses, body), *expected, "{body}");
    }
}

#[test]
fn verdicts_on_messages_and_embeddings() {
    for (body, expected) in [
        (r#"{"content":[],"stop_reason":"end_turn"}"#, "empty"),
        (
            r#"{"content":[{"type":"text","text":""}],"stop_reason":"end_turn"}"#,
            "empty",
        ),
        (r#"{"content":[],"stop_reason":"max_tokens"}"#, "ok"),
        (r#"{"content":[],"stop_reason":"refusal"}"#, "ok"),
        (
            r#"{"content":[{"type":"tool_use","name":"f","input":{}}],"stop_reason":"tool_use"}"#,
            "ok",
        ),
        (
            r#"{"content":[{"type":"redacted_thinking","data":"x"}],"stop_reason":"end_turn"}"#,
            "ok",
        ),
        (
            r#"{"content":[{"type":"text","text":"x"}],"stop_reason":"error"}"#,
            "error_event",
        ),
        (
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            "error_event",
        ),
        (r#"{"type":"error","message":"x"}"#, "error_event"),
        (r#"{"choices":[]}"#, "garbage"),
        (r#"{"content":[{"type":"text","text":"x"#, "truncated"),
    ] {
        assert_eq!(kind(Protocol::Messages, body), expected, "{body}");
    }
    for (body, expected) in [
        (r#"{"data":[]}"#, "empty"),
        (r#"{"data":[{"embedding":"AAAA"}]}"#, "ok"),
        (r#"{"error":{"message":"x"},"data":[]}"#, "error_event"),
        (r#"{"data":null}"#, "garbage"),
        (r#"{"hello":"world"}"#, "garbage"),
        (r#"{"data":[{"embedding":[0.1,"#, "truncated"),
    ] {
        assert_eq!(kind(Protocol::Embeddings, body), expected, "{body}");
    }
}

#[test]
fn error_bodies_are_kept_whole() {
    let body = r#"{"error":{"message":"slow down"},"status_code":429}"#;
    for protocol in Protocol::ALL {
        let failure = verdict(protocol, body).unwrap_err();
        assert_eq!(failure.error_body.as_deref(), Some(body.as_bytes()));
    }
}

#[test]
fn an_answer_of_one_token_may_be_empty() {
    let body = Bytes::from(r#"{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}"#);
    let asked = |max| {
        judge(
            Protocol::ChatCompletions,
            ContentType::Unknown,
            &body,
            Some(max),
        )
    };
    assert!(asked(1).is_ok());
    assert!(asked(2).is_err());
}

#[test]
fn shapes() {
    for (content_type, body, expected) in [
        (ContentType::EventStream, "{}", BodyShape::Json),
        (ContentType::Json, "data: {}", BodyShape::Events),
        (ContentType::Json, ": hi", BodyShape::Events),
        (ContentType::Json, "true", BodyShape::Json),
        (ContentType::Unknown, "<", BodyShape::Html),
        (ContentType::Html, "oops", BodyShape::Html),
        (ContentType::Unknown, "  ", BodyShape::Blank),
    ] {
        assert_eq!(shape(content_type, body.as_bytes()), expected, "{body}");
    }
}
