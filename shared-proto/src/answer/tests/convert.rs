//! Streams as answers and answers as streams.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::stream::{Quirk, RelayOptions, StreamRelay, UpstreamEnd};

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
        for body in [Bytes::from(body), Bytes::from(format!("{{{json}"))] {
            if let Err(failure) = judge(protocol, ContentType::Json, &body, None) {
                prop_assert!(!failure.message().is_empty());
            }
            if let Ok(answer) = aggregate(protocol, RelayOptions::default(), &body) {
                prop_assert_eq!(answer.first(), Some(&b'{'));
            }
        }
    }
}
