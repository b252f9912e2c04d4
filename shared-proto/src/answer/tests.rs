//! Whole answers, and the way between streams and them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::stream::{Quirk, RelayOptions, StreamRelay, UpstreamEnd};

fn verdict(protocol: Protocol, body: &str) -> Result<AnswerFacts, StreamFailure> {
    judge(
        protocol,
        ContentType::Json,
        &Bytes::copy_from_slice(body.as_bytes()),
        None,
    )
}

fn kind(protocol: Protocol, body: &str) -> &'static str {
    verdict(protocol, body).map_or_else(|failure| failure.kind.as_str(), |_| "ok")
}

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

#[test]
fn verdicts_on_chat_completions() {
    for (body, expected) in [
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
    ] {
        assert_eq!(kind(Protocol::ChatCompletions, body), expected, "{body}");
    }
}

#[test]
fn verdicts_on_responses() {
    for (body, expected) in [
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
    ] {
        assert_eq!(kind(Protocol::Responses, body), expected, "{body}");
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

fn fold(protocol: Protocol, stream: &str) -> Value {
    let body = Bytes::copy_from_slice(stream.as_bytes());
    let answer = aggregate(protocol, RelayOptions::default(), &body).unwrap();
    serde_json::from_slice(&answer).unwrap()
}

fn data(values: &[Value]) -> String {
    use std::fmt::Write as _;
    values.iter().fold(String::new(), |mut stream, value| {
        write!(stream, "data: {value}\n\n").unwrap();
        stream
    })
}

#[test]
fn chunks_become_a_completion() {
    let chunk = |delta: Value, reason: Value| {
        json!({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
               "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], "usage": null})
    };
    let stream = data(&[
        chunk(json!({"role": "assistant", "content": ""}), Value::Null),
        chunk(
            json!({"role": "assistant", "reasoning_content": "h"}),
            Value::Null,
        ),
        chunk(json!({"reasoning_content": "m"}), Value::Null),
        chunk(json!({"content": "a"}), Value::Null),
        chunk(json!({"content": "b"}), Value::Null),
        chunk(
            json!({"tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\":"}}]}),
            Value::Null,
        ),
        chunk(
            json!({"tool_calls": [{"id": "y", "function": {"name": "g", "arguments": ""}}]}),
            Value::Null,
        ),
        chunk(
            json!({"tool_calls": [{"id": "x", "function": {"arguments": "1}"}}]}),
            Value::Null,
        ),
        chunk(json!({}), json!("tool_calls")),
        json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}),
    ]);
    let stream = format!("{stream}data: [DONE]\n\n");
    assert_eq!(
        fold(Protocol::ChatCompletions, &stream),
        json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "message": {
                "role": "assistant", "content": "ab", "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
                    {"id": "y", "type": "function", "function": {"name": "g", "arguments": ""}},
                ],
            }, "logprobs": null, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        })
    );
}

#[test]
fn events_become_a_message() {
    let stream = data(&[
        json!({"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": [],
               "stop_reason": null, "usage": {"input_tokens": 3, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {"n": 1}}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "b"}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"a\":"}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "1}"}}),
        json!({"type": "content_block_stop", "index": 2}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null}, "usage": {"output_tokens": 9}}),
    ]);
    assert_eq!(
        fold(Protocol::Messages, &stream),
        json!({
            "id": "m", "type": "message", "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "text", "text": "ab", "citations": [{"n": 1}]},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
            "stop_reason": "tool_use", "usage": {"input_tokens": 3, "output_tokens": 9},
        })
    );
}

#[test]
fn a_response_comes_from_its_terminal_event() {
    let item =
        json!({"type": "message", "id": "m", "content": [{"type": "output_text", "text": "a"}]});
    let done = json!({"type": "response.output_item.done", "output_index": 0, "item": item});
    let terminal = |output: Value| json!({"type": "response.completed", "response": {"id": "r", "status": "completed", "output": output}});
    let expected = json!({"id": "r", "status": "completed", "output": [item]});
    for output in [json!([item]), json!([]), Value::Null] {
        let stream = data(&[done.clone(), terminal(output)]);
        assert_eq!(fold(Protocol::Responses, &stream), expected);
    }
}

#[test]
fn a_stream_that_fails_makes_no_answer() {
    for (protocol, stream, expected) in [
        (
            Protocol::ChatCompletions,
            "data: {\"error\":{\"message\":\"x\"}}\n\n",
            "error_event",
        ),
        (
            Protocol::ChatCompletions,
            "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n",
            "truncated",
        ),
        (
            Protocol::Messages,
            "data: {\"type\":\"message_stop\"}\n\n",
            "empty",
        ),
        (Protocol::Responses, "data: [DONE]\n\n", "truncated"),
        (Protocol::ChatCompletions, "hello\n\n", "garbage"),
        (
            Protocol::Embeddings,
            "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n",
            "garbage",
        ),
    ] {
        let body = Bytes::from(stream);
        let failure = aggregate(protocol, RelayOptions::default(), &body).unwrap_err();
        assert_eq!(failure.kind.as_str(), expected, "{stream}");
    }
}

/// The answer as a stream, and the stream as an answer again.
fn there_and_back(protocol: Protocol, answer: &Value) -> Value {
    let mut relay = StreamRelay::new(protocol, RelayOptions::default());
    relay.push(Bytes::from(answer.to_string())).unwrap();
    relay.end(UpstreamEnd::Clean).unwrap();
    assert!(relay.quirks().has(Quirk::WholeAnswer));
    let stream = relay.take_output().unwrap();
    let judged = judge(
        protocol,
        ContentType::Json,
        &answer.to_string().into(),
        None,
    )
    .unwrap();
    assert_eq!(relay.usage(), judged.usage);
    assert_eq!(relay.finish_reason(), judged.finish_reason.as_deref());
    fold(protocol, std::str::from_utf8(&stream).unwrap())
}

proptest! {
    #[test]
    fn answers_survive_the_way_there_and_back(
        texts in prop::collection::vec(".{1,12}", 1..4),
        arguments in prop::collection::vec(".{0,8}", 0..3),
    ) {
        let inputs: Vec<Value> = arguments.iter().map(|text| json!({"a": text})).collect();
        let chat = json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "m",
            "choices": texts.iter().enumerate().map(|(index, text)| {
                let mut message = json!({"role": "assistant", "content": text});
                if !inputs.is_empty() {
                    message["tool_calls"] = inputs.iter().enumerate().map(|(n, input)| json!({
                        "id": format!("call_{n}"), "type": "function",
                        "function": {"name": "f", "arguments": input.to_string()},
                    })).collect();
                }
                json!({"index": index, "message": message, "logprobs": null, "finish_reason": "stop"})
            }).collect::<Vec<_>>(),
            "usage": {"prompt_tokens": 1, "completion_tokens": 2},
        });
        prop_assert_eq!(there_and_back(Protocol::ChatCompletions, &chat), chat);

        let blocks = texts.iter().map(|text| json!({"type": "text", "text": text}));
        let tools = inputs.iter().map(|input| json!({"type": "tool_use", "id": "t", "name": "f", "input": input}));
        let message = json!({
            "id": "m", "type": "message", "role": "assistant", "model": "m",
            "content": blocks.chain(tools).collect::<Vec<_>>(),
            "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 1, "output_tokens": 2},
        });
        prop_assert_eq!(there_and_back(Protocol::Messages, &message), message);

        let items = texts.iter().map(|text| json!({
            "id": "i", "type": "message", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }));
        let calls = inputs.iter().map(|input| json!({
            "id": "f", "type": "function_call", "call_id": "c", "name": "f", "arguments": input.to_string(), "status": "completed",
        }));
        let response = json!({
            "id": "r", "object": "response", "status": "completed", "error": null,
            "output": items.chain(calls).collect::<Vec<_>>(), "usage": {"input_tokens": 1, "output_tokens": 2},
        });
        prop_assert_eq!(there_and_back(Protocol::Responses, &response), response);
    }

    #[test]
    fn arbitrary_bodies_never_panic(
        body in prop::collection::vec(any::<u8>(), 0..200),
        json in "[\\[{\"choicesntedusag:,0-9}\\] ]{0,80}",
        which in 0..Protocol::ALL.len(),
    ) {
        let protocol = Protocol::ALL[which];
        for body in [Bytes::from(body.clone()), Bytes::from(format!("{{{json}"))] {
            if let Err(failure) = judge(protocol, ContentType::Json, &body, None) {
                prop_assert!(!failure.message().is_empty());
            }
            if let Ok(answer) = aggregate(protocol, RelayOptions::default(), &body) {
                prop_assert_eq!(answer.first(), Some(&b'{'));
            }
        }
    }
}
