//! A whole answer as the stream a client asked for: every event it would have
//! got, each text in one piece.

use serde_json::{Map, Value, json};

use crate::protocol::Protocol;
use crate::stream::lenient::normalise;
use crate::stream::{frame, typed_frame};

/// The event stream that says what `body`, a good whole answer, says. `None`
/// for what is no object, and for embeddings, which are never streamed.
pub(crate) fn one_shot(protocol: Protocol, body: &[u8]) -> Option<Vec<u8>> {
    let Value::Object(answer) = serde_json::from_slice(&normalise(body)?).ok()? else {
        return None;
    };
    match protocol {
        Protocol::ChatCompletions => Some(chat(answer)),
        Protocol::Responses => Some(responses(&answer)),
        Protocol::Messages => Some(messages(answer)),
        Protocol::Embeddings => None,
    }
}

fn chat(mut answer: Map<String, Value>) -> Vec<u8> {
    let choices = answer.remove("choices");
    let usage = answer.remove("usage").filter(|usage| !usage.is_null());
    answer.insert("object".to_owned(), json!("chat.completion.chunk"));
    let chunk = |choices: Vec<Value>, usage: Option<&Value>| {
        let mut chunk = answer.clone();
        chunk.insert("choices".to_owned(), Value::Array(choices));
        if let Some(usage) = usage {
            chunk.insert("usage".to_owned(), usage.clone());
        }
        frame(b"", Value::Object(chunk).to_string().as_bytes())
    };
    let mut deltas = Vec::new();
    let mut ends = Vec::new();
    for choice in into_array(choices) {
        let Value::Object(mut choice) = choice else {
            continue;
        };
        let reason = choice.remove("finish_reason").unwrap_or(Value::Null);
        let index = choice.get("index").cloned().unwrap_or_else(|| json!(0));
        let message = choice.remove("message").unwrap_or_else(|| json!({}));
        choice.insert("delta".to_owned(), with_call_indices(message));
        choice.insert("finish_reason".to_owned(), Value::Null);
        deltas.push(Value::Object(choice));
        ends.push(json!({"index": index, "delta": {}, "finish_reason": reason}));
    }
    // The counts go with the last choices: a chunk without any would trouble
    // clients that did not ask for counts.
    let mut out = chunk(deltas, None);
    out.extend(chunk(ends, usage.as_ref()));
    out.extend(frame(b"", b"[DONE]"));
    out
}

/// Numbers the tool calls of a message, as chunks do.
fn with_call_indices(mut message: Value) -> Value {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for (index, call) in calls.into_iter().flatten().enumerate() {
        if let Some(call) = call.as_object_mut() {
            call.insert("index".to_owned(), json!(index));
        }
    }
    message
}

fn messages(mut answer: Map<String, Value>) -> Vec<u8> {
    let blocks = into_array(answer.insert("content".to_owned(), json!([])));
    let stop_reason = answer.insert("stop_reason".to_owned(), Value::Null);
    let stop_sequence = answer.insert("stop_sequence".to_owned(), Value::Null);
    let usage = answer.get("usage").cloned().unwrap_or_else(|| json!({}));
    let mut out = typed_frame(&json!({"type": "message_start", "message": answer}));
    for (index, block) in blocks.into_iter().enumerate() {
        message_block(&mut out, index, block);
    }
    out.extend(typed_frame(&json!({
        "type": "message_delta",
        "delta": {
            "stop_reason": stop_reason.filter(|reason| !reason.is_null()).unwrap_or_else(|| json!("end_turn")),
            "stop_sequence": stop_sequence,
        },
        "usage": usage,
    })));
    out.extend(typed_frame(&json!({"type": "message_stop"})));
    out
}

fn message_block(out: &mut Vec<u8>, index: usize, mut block: Value) {
    let mut deltas = Vec::new();
    let kind = block
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let moved: &[(&str, &str, &str)] = match kind {
        "text" => &[("text", "text_delta", "text")],
        "thinking" => &[
            ("thinking", "thinking_delta", "thinking"),
            ("signature", "signature_delta", "signature"),
        ],
        "tool_use" | "server_tool_use" | "mcp_tool_use" => {
            &[("input", "input_json_delta", "partial_json")]
        }
        _ => &[],
    };
    for (member, kind, piece) in moved {
        let Some(value) = block.get_mut(member) else {
            continue;
        };
        let (rest, text) = match value.take() {
            Value::String(text) => (json!(""), text),
            other @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_)) => (json!({}), other.to_string()),
        };
        *value = rest;
        if !text.is_empty() {
            deltas.push(json!({"type": kind, *piece: text}));
        }
    }
    out.extend(typed_frame(
        &json!({"type": "content_block_start", "index": index, "content_block": block}),
    ));
    for delta in deltas {
        out.extend(typed_frame(
            &json!({"type": "content_block_delta", "index": index, "delta": delta}),
        ));
    }
    out.extend(typed_frame(
        &json!({"type": "content_block_stop", "index": index}),
    ));
}

/// Writes response events with rising sequence numbers.
#[derive(Default)]
struct Sequence {
    out: Vec<u8>,
    next: u64,
}

impl Sequence {
    fn send(&mut self, kind: &str, members: Value) {
        let mut event = json!({"type": kind, "sequence_number": self.next});
        self.next = self.next.saturating_add(1);
        if let (Value::Object(event), Value::Object(members)) = (&mut event, members) {
            event.extend(members);
        }
        self.out.extend(typed_frame(&event));
    }
}

fn responses(answer: &Map<String, Value>) -> Vec<u8> {
    let mut events = Sequence::default();
    let mut opened = answer.clone();
    opened.insert("status".to_owned(), json!("in_progress"));
    opened.insert("usage".to_owned(), Value::Null);
    opened.insert("incomplete_details".to_owned(), Value::Null);
    let items = into_array(opened.insert("output".to_owned(), json!([])));
    events.send("response.created", json!({"response": opened}));
    events.send("response.in_progress", json!({"response": opened}));
    for (index, item) in items.into_iter().enumerate() {
        response_item(&mut events, index, &item);
    }
    let incomplete = answer.get("status").and_then(Value::as_str) == Some("incomplete");
    events.send(
        if incomplete {
            "response.incomplete"
        } else {
            "response.completed"
        },
        json!({"response": answer}),
    );
    events.out
}

fn response_item(events: &mut Sequence, index: usize, item: &Value) {
    let kind = item.get("type").and_then(Value::as_str).unwrap_or_default();
    let id = item.get("id").cloned().unwrap_or(Value::Null);
    let (member, stem) = match kind {
        "message" => ("content", ""),
        "reasoning" => ("summary", ""),
        "function_call" => ("arguments", "response.function_call_arguments"),
        "mcp_call" => ("arguments", "response.mcp_call_arguments"),
        "custom_tool_call" => ("input", "response.custom_tool_call_input"),
        _ => ("", ""),
    };
    let mut opened = item.clone();
    let whole = opened.get_mut(member).map_or(Value::Null, Value::take);
    if let Value::Object(opened) = &mut opened
        && !member.is_empty()
    {
        let empty = if stem.is_empty() {
            json!([])
        } else {
            json!("")
        };
        opened.insert(member.to_owned(), empty);
        opened.insert("status".to_owned(), json!("in_progress"));
    }
    events.send(
        "response.output_item.added",
        json!({"output_index": index, "item": opened}),
    );
    if !stem.is_empty() {
        let place = json!({"item_id": id, "output_index": index});
        text_events(events, (stem, member), &place, whole.clone());
    }
    for (part_index, part) in into_array(Some(whole)).into_iter().enumerate() {
        let place = |name: &str| json!({"item_id": id, "output_index": index, name: part_index});
        if kind == "reasoning" {
            part_events(
                events,
                "reasoning_summary_part",
                &place("summary_index"),
                &part,
            );
        } else {
            part_events(events, "content_part", &place("content_index"), &part);
        }
    }
    events.send(
        "response.output_item.done",
        json!({"output_index": index, "item": item}),
    );
}

fn part_events(events: &mut Sequence, kind: &str, place: &Value, part: &Value) {
    let (member, stem) = match part.get("type").and_then(Value::as_str) {
        Some("output_text") => ("text", "response.output_text"),
        Some("refusal") => ("refusal", "response.refusal"),
        Some("summary_text") => ("text", "response.reasoning_summary_text"),
        Some("reasoning_text") => ("text", "response.reasoning_text"),
        Some(_) | None => ("", ""),
    };
    let mut opened = part.clone();
    let text = opened.get_mut(member).map_or(Value::Null, Value::take);
    if let Some(slot) = opened.get_mut(member) {
        *slot = json!("");
    }
    events.send(
        &format!("response.{kind}.added"),
        with(place, [("part", opened)]),
    );
    if !stem.is_empty() {
        text_events(events, (stem, member), place, text);
    }
    events.send(
        &format!("response.{kind}.done"),
        with(place, [("part", part.clone())]),
    );
}

fn text_events(events: &mut Sequence, (stem, member): (&str, &str), place: &Value, text: Value) {
    let logprobs = (stem == "response.output_text").then(|| ("logprobs", json!([])));
    let filled = text.as_str().is_some_and(|text| !text.is_empty());
    if filled {
        let members = [Some(("delta", text.clone())), logprobs.clone()];
        events.send(
            &format!("{stem}.delta"),
            with(place, members.into_iter().flatten()),
        );
    }
    let members = [Some((member, text)), logprobs];
    events.send(
        &format!("{stem}.done"),
        with(place, members.into_iter().flatten()),
    );
}

fn with<'a>(place: &Value, members: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let mut whole = place.clone();
    if let Value::Object(map) = &mut whole {
        for (name, value) in members {
            map.insert(name.to_owned(), value);
        }
    }
    whole
}

fn into_array(value: Option<Value>) -> Vec<Value> {
    if let Some(Value::Array(items)) = value {
        items
    } else {
        Vec::new()
    }
}
