//! The events of each protocol's stream.

use serde_json::{Value, json};

use super::Dialect;

/// An event without a name.
fn plain(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// An event that is named like its type.
fn named(data: &Value) -> String {
    let name = data["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}

fn chunk(delta: &Value, finish: Option<&str>) -> String {
    plain(
        &json!({"id": "c1", "object": "chat.completion.chunk", "created": 1_700_000_000,
        "model": "demo-model",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}),
    )
}

fn output_item(text: &str) -> Value {
    json!({"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

/// A response object of the Responses API.
pub(super) fn response_object(status: &str, text: &str) -> Value {
    let output = match status {
        "completed" => json!([output_item(text)]),
        _ => json!([]),
    };
    json!({"id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status,
        "model": "demo-model", "output": output, "error": null, "incomplete_details": null,
        "instructions": null, "metadata": {}, "parallel_tool_calls": true, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0,
        "usage": {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2}})
}

pub(super) fn opening(dialect: Dialect) -> Vec<String> {
    match dialect {
        Dialect::Chat => vec![chunk(&json!({"role": "assistant", "content": ""}), None)],
        Dialect::Responses => vec![
            named(&json!({"type": "response.created", "sequence_number": 0,
                "response": response_object("in_progress", "")})),
            named(
                &json!({"type": "response.in_progress", "sequence_number": 1,
                "response": response_object("in_progress", "")}),
            ),
            named(
                &json!({"type": "response.output_item.added", "sequence_number": 2,
                "output_index": 0, "item": {"id": "msg_1", "type": "message",
                    "role": "assistant", "status": "in_progress", "content": []}}),
            ),
            named(
                &json!({"type": "response.content_part.added", "sequence_number": 3,
                "item_id": "msg_1", "output_index": 0, "content_index": 0,
                "part": {"type": "output_text", "text": "", "annotations": []}}),
            ),
        ],
        Dialect::Messages => vec![
            named(
                &json!({"type": "message_start", "message": {"id": "m1", "type": "message",
                "role": "assistant", "model": "demo-model", "content": [], "stop_reason": null,
                "stop_sequence": null, "usage": {"input_tokens": 1, "output_tokens": 1}}}),
            ),
            named(&json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "text", "text": ""}})),
        ],
    }
}

pub(super) fn content(dialect: Dialect, text: &str) -> String {
    match dialect {
        Dialect::Chat => chunk(&json!({"content": text}), None),
        Dialect::Responses => named(
            &json!({"type": "response.output_text.delta", "sequence_number": 4,
                "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text,
                "logprobs": []}),
        ),
        Dialect::Messages => named(&json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "text_delta", "text": text}})),
    }
}

pub(super) fn closing(dialect: Dialect, text: &str) -> Vec<String> {
    match dialect {
        Dialect::Chat => vec![
            chunk(&json!({}), Some("stop")),
            "data: [DONE]\n\n".to_owned(),
        ],
        Dialect::Responses => vec![
            named(
                &json!({"type": "response.output_text.done", "sequence_number": 5,
                "item_id": "msg_1", "output_index": 0, "content_index": 0, "text": text,
                "logprobs": []}),
            ),
            named(
                &json!({"type": "response.content_part.done", "sequence_number": 6,
                "item_id": "msg_1", "output_index": 0, "content_index": 0,
                "part": {"type": "output_text", "text": text, "annotations": []}}),
            ),
            named(
                &json!({"type": "response.output_item.done", "sequence_number": 7,
                "output_index": 0, "item": output_item(text)}),
            ),
            named(&json!({"type": "response.completed", "sequence_number": 8,
                "response": response_object("completed", text)})),
        ],
        Dialect::Messages => vec![
            named(&json!({"type": "content_block_stop", "index": 0})),
            named(&json!({"type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                "usage": {"output_tokens": 2}})),
            named(&json!({"type": "message_stop"})),
        ],
    }
}

pub(super) fn half_a_tool_call(dialect: Dialect) -> Vec<String> {
    match dialect {
        Dialect::Chat => vec![
            chunk(&json!({"role": "assistant", "content": null}), None),
            chunk(
                &json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
                    "function": {"name": "weather", "arguments": "{\"ci"}}]}),
                None,
            ),
        ],
        Dialect::Responses => {
            let mut all = opening(dialect);
            all.truncate(2);
            all.push(named(
                &json!({"type": "response.output_item.added", "sequence_number": 2,
                "output_index": 0, "item": {"id": "fc_1", "type": "function_call",
                    "status": "in_progress", "call_id": "call_1", "name": "weather",
                    "arguments": ""}}),
            ));
            all.push(named(
                &json!({"type": "response.function_call_arguments.delta",
                "sequence_number": 3, "item_id": "fc_1", "output_index": 0,
                "delta": "{\"ci"}),
            ));
            all
        }
        Dialect::Messages => {
            let mut all = opening(dialect);
            all.truncate(1);
            all.push(named(&json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "tool_use", "id": "toolu_1", "name": "weather",
                    "input": {}}})));
            all.push(named(&json!({"type": "content_block_delta", "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": "{\"ci"}})));
            all
        }
    }
}

pub(super) fn error_event(dialect: Dialect, kind: &str, message: &str) -> String {
    match dialect {
        Dialect::Chat => plain(&json!({"error": {"message": message, "type": kind, "code": kind}})),
        Dialect::Responses => named(&json!({"type": "error", "sequence_number": 9, "code": kind,
            "message": message, "param": null})),
        Dialect::Messages => {
            named(&json!({"type": "error", "error": {"type": kind, "message": message}}))
        }
    }
}
