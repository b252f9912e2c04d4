//! A chat completion from its chunks.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::append;

/// Members of a delta that are names, not texts that grow.
const NAMES: [&str; 7] = ["role", "type", "id", "index", "format", "name", "signature"];

/// The completion the chunks add up to; `None` without any choice.
pub(super) fn fold(chunks: Vec<Value>) -> Option<Value> {
    let mut answer = Map::new();
    let mut choices: BTreeMap<u64, Map<String, Value>> = BTreeMap::new();
    let mut usage = Value::Null;
    for chunk in chunks {
        let Value::Object(chunk) = chunk else {
            continue;
        };
        for (name, value) in chunk {
            match (name.as_str(), value) {
                (_, Value::Null) => {}
                ("choices", Value::Array(parts)) => {
                    for part in parts {
                        take_choice(&mut choices, part);
                    }
                }
                ("usage", counts) => usage = counts,
                ("object" | "choices" | "obfuscation", _) => {}
                (_, value) => {
                    answer.entry(name).or_insert(value);
                }
            }
        }
    }
    if choices.is_empty() {
        return None;
    }
    answer.insert("object".to_owned(), json!("chat.completion"));
    let choices = choices.into_iter().map(finish_choice).collect();
    answer.insert("choices".to_owned(), Value::Array(choices));
    answer.insert("usage".to_owned(), usage);
    Some(Value::Object(answer))
}

fn take_choice(choices: &mut BTreeMap<u64, Map<String, Value>>, part: Value) {
    let Value::Object(mut part) = part else {
        return;
    };
    let index = part.remove("index").and_then(|index| index.as_u64());
    let choice = choices.entry(index.unwrap_or(0)).or_default();
    let message = part.remove("delta").or_else(|| part.remove("message"));
    if let Some(delta) = message {
        merge(choice.entry("message").or_insert(Value::Null), delta);
    }
    for (name, value) in part {
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("logprobs", value) => merge(choice.entry(name).or_insert(Value::Null), value),
            (_, value) => {
                choice.insert(name, value);
            }
        }
    }
}

fn finish_choice((index, mut choice): (u64, Map<String, Value>)) -> Value {
    let mut message = match choice.remove("message") {
        Some(Value::Object(message)) => message,
        Some(_) | None => Map::new(),
    };
    message.entry("role").or_insert_with(|| json!("assistant"));
    message.entry("content").or_insert(Value::Null);
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        if let Some(call) = call.as_object_mut() {
            call.remove("index");
            call.entry("type").or_insert_with(|| json!("function"));
        }
    }
    let mut whole = Map::new();
    whole.insert("index".to_owned(), json!(index));
    whole.insert("message".to_owned(), Value::Object(message));
    whole.insert("logprobs".to_owned(), Value::Null);
    whole.insert("finish_reason".to_owned(), Value::Null);
    whole.extend(choice);
    Value::Object(whole)
}

/// Adds a delta: texts grow, names stay, objects merge, array items merge by
/// their `index` and are appended without one.
fn merge(slot: &mut Value, delta: Value) {
    match (slot, delta) {
        (_, Value::Null) => {}
        (Value::Object(whole), Value::Object(delta)) => {
            for (name, value) in delta {
                let fixed = NAMES.contains(&name.as_str());
                let slot = whole.entry(name).or_insert(Value::Null);
                if !fixed || slot.is_null() || slot.as_str() == Some("") {
                    merge(slot, value);
                }
            }
        }
        (Value::Array(whole), Value::Array(items)) => {
            for item in items {
                let index = item.get("index").and_then(Value::as_u64);
                let known = whole.iter_mut().find(|known| {
                    index.is_some() && known.get("index").and_then(Value::as_u64) == index
                });
                match known {
                    Some(known) => merge(known, item),
                    None => whole.push(item),
                }
            }
        }
        (slot, Value::String(text)) => append(slot, &text),
        (slot @ Value::Null, Value::Array(items)) => {
            *slot = Value::Array(Vec::new());
            merge(slot, Value::Array(items));
        }
        (slot, value) => *slot = value,
    }
}
