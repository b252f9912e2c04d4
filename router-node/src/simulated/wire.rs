//! The simulated provider's answers in each protocol's own words.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::{Value, json};
use shared_proto::protocol::Protocol;

/// Characters of the echoed text.
const MAX_ECHO: usize = 64 * 1024;

/// The text of the last user message, in any of the protocols.
pub(super) fn last_user_text(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let input = &body["input"];
    if let Some(text) = input.as_str() {
        return text.chars().take(MAX_ECHO).collect();
    }
    let turns = body["messages"].as_array().or_else(|| input.as_array());
    let last = turns
        .into_iter()
        .flatten()
        .rev()
        .find(|turn| turn["role"] == "user" || turn.is_string());
    let text = match last {
        Some(turn) => text_of(turn),
        None => String::new(),
    };
    let text = if text.is_empty() {
        "(nothing to echo)".to_owned()
    } else {
        text
    };
    text.chars().take(MAX_ECHO).collect()
}

/// The text of one turn: itself, its content, or its content's parts.
fn text_of(turn: &Value) -> String {
    let content = &turn["content"];
    if let Some(text) = turn.as_str().or_else(|| content.as_str()) {
        return text.to_owned();
    }
    let parts = content.as_array().into_iter().flatten();
    parts.filter_map(|part| part["text"].as_str()).collect()
}

/// The whole answer.
pub(super) fn whole(protocol: Protocol, model: &str, words: &[String]) -> Bytes {
    let text: String = words.concat();
    let tokens = words.len();
    let body = match protocol {
        Protocol::ChatCompletions => json!({
            "id": "chatcmpl-simulated", "object": "chat.completion", "created": 0, "model": model,
            "choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": text, "refusal": null}}],
            "usage": {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens.saturating_add(1)},
        }),
        Protocol::Responses => response(model, "completed", &text, tokens),
        Protocol::Messages => json!({
            "id": "msg_simulated", "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "end_turn", "stop_sequence": null,
            "usage": {"input_tokens": 1, "output_tokens": tokens},
        }),
        Protocol::Embeddings => json!({
            "object": "list", "model": model,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.6, 0.8, 0.0]}],
            "usage": {"prompt_tokens": 1, "total_tokens": 1},
        }),
    };
    Bytes::from(body.to_string())
}

fn response(model: &str, status: &str, text: &str, tokens: usize) -> Value {
    let done = status == "completed";
    let output = if done {
        json!([message(text)])
    } else {
        json!([])
    };
    json!({
        "id": "resp_simulated", "object": "response", "created_at": 0, "model": model,
        "status": status, "output": output, "error": null, "incomplete_details": null,
        "instructions": null, "metadata": {}, "parallel_tool_calls": true, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0,
        "usage": done.then(|| json!({
            "input_tokens": 1, "output_tokens": tokens, "total_tokens": tokens.saturating_add(1),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        })),
    })
}

fn message(text: &str) -> Value {
    json!({"id": "msg_simulated", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}]})
}

/// The stream's chunks: the handshake, one a word, the end.
pub(super) fn stream(protocol: Protocol, model: &str, words: &[String]) -> Vec<Bytes> {
    match protocol {
        Protocol::ChatCompletions => chat(model, words),
        Protocol::Responses => responses(model, words),
        Protocol::Messages => messages(model, words),
        Protocol::Embeddings => vec![whole(protocol, model, words)],
    }
}

fn event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

fn chat(model: &str, words: &[String]) -> Vec<Bytes> {
    let chunk = |delta: Value, finish: Option<&str>| {
        let data = json!({
            "id": "chatcmpl-simulated", "object": "chat.completion.chunk", "created": 0,
            "model": model, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        });
        format!("data: {data}\n\n")
    };
    let mut chunks = vec![Bytes::from(chunk(
        json!({"role": "assistant", "content": ""}),
        None,
    ))];
    chunks.extend(
        words
            .iter()
            .map(|word| Bytes::from(chunk(json!({"content": word}), None))),
    );
    let mut end = chunk(json!({}), Some("stop"));
    end.push_str("data: [DONE]\n\n");
    chunks.push(Bytes::from(end));
    chunks
}

fn messages(model: &str, words: &[String]) -> Vec<Bytes> {
    let mut begin = event(
        "message_start",
        &json!({"type": "message_start", "message": {
            "id": "msg_simulated", "type": "message", "role": "assistant", "model": model,
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": 1, "output_tokens": 0}}}),
    );
    begin.push_str(&event(
        "content_block_start",
        &json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    ));
    let mut chunks = vec![Bytes::from(begin)];
    chunks.extend(words.iter().map(|word| {
        let delta = json!({"type": "text_delta", "text": word});
        let data = json!({"type": "content_block_delta", "index": 0, "delta": delta});
        Bytes::from(event("content_block_delta", &data))
    }));
    let mut end = event(
        "content_block_stop",
        &json!({"type": "content_block_stop", "index": 0}),
    );
    end.push_str(&event(
        "message_delta",
        &json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null},
            "usage": {"output_tokens": words.len()}}),
    ));
    end.push_str(&event("message_stop", &json!({"type": "message_stop"})));
    chunks.push(Bytes::from(end));
    chunks
}

fn responses(model: &str, words: &[String]) -> Vec<Bytes> {
    let mut number = 0_u64;
    let mut next = |kind: &str, mut data: Value| {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(number);
        number = number.saturating_add(1);
        event(kind, &data)
    };
    let begun = response(model, "in_progress", "", 0);
    let text: String = words.concat();
    let place = json!({"item_id": "msg_simulated", "output_index": 0, "content_index": 0});
    let with = |extra: Value| {
        let mut data = place.clone();
        if let (Some(data), Some(extra)) = (data.as_object_mut(), extra.as_object()) {
            data.extend(extra.clone());
        }
        data
    };
    let mut item = message("");
    item["status"] = json!("in_progress");
    item["content"] = json!([]);
    let part =
        |text: &str| json!({"part": {"type": "output_text", "text": text, "annotations": []}});
    let mut begin = String::new();
    for (kind, data) in [
        ("response.created", json!({"response": begun})),
        ("response.in_progress", json!({"response": begun})),
        (
            "response.output_item.added",
            json!({"output_index": 0, "item": item}),
        ),
        ("response.content_part.added", with(part(""))),
    ] {
        write!(begin, "{}", next(kind, data)).ok();
    }
    let mut chunks = vec![Bytes::from(begin)];
    for word in words {
        let data = with(json!({"delta": word, "logprobs": []}));
        chunks.push(Bytes::from(next("response.output_text.delta", data)));
    }
    let mut end = String::new();
    for (kind, data) in [
        (
            "response.output_text.done",
            with(json!({"text": text, "logprobs": []})),
        ),
        ("response.content_part.done", with(part(&text))),
        (
            "response.output_item.done",
            json!({"output_index": 0, "item": message(&text)}),
        ),
        (
            "response.completed",
            json!({"response": response(model, "completed", &text, words.len())}),
        ),
    ] {
        write!(end, "{}", next(kind, data)).ok();
    }
    chunks.push(Bytes::from(end));
    chunks
}
