//! A message from its events.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::append;

/// A content block that grows.
#[derive(Default)]
struct Block {
    value: Value,
    input: String,
}

/// The message the events add up to; `None` without its start.
pub(super) fn fold(events: Vec<Value>) -> Option<Value> {
    let mut message: Option<Map<String, Value>> = None;
    let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
    for mut event in events {
        let index = event.get("index").and_then(Value::as_u64).unwrap_or(0);
        let mut member = |name: &str| event.get_mut(name).map_or(Value::Null, Value::take);
        match member("type").as_str().unwrap_or_default() {
            "message_start" => {
                if let Value::Object(start) = member("message") {
                    message.get_or_insert(start);
                }
            }
            "content_block_start" => {
                let value = member("content_block");
                blocks.entry(index).or_insert(Block {
                    value,
                    input: String::new(),
                });
            }
            "content_block_delta" => {
                grow(blocks.entry(index).or_default(), &member("delta"));
            }
            "message_delta" => {
                let (delta, usage) = (member("delta"), member("usage"));
                let whole = message.get_or_insert_default();
                update(whole, delta);
                if let Value::Object(counts) = whole.entry("usage").or_insert_with(|| json!({})) {
                    update(counts, usage);
                }
            }
            _ => {}
        }
    }
    let mut message = message?;
    let content = blocks.into_values().map(finish_block).collect();
    message.insert("content".to_owned(), Value::Array(content));
    Some(Value::Object(message))
}

fn grow(block: &mut Block, delta: &Value) {
    let member = |name: &str| delta.get(name).and_then(Value::as_str).unwrap_or_default();
    if !block.value.is_object() {
        block.value = json!({"type": "text"});
    }
    let Value::Object(value) = &mut block.value else {
        return;
    };
    match member("type") {
        "text_delta" => append(value.entry("text").or_insert(Value::Null), member("text")),
        "thinking_delta" => append(
            value.entry("thinking").or_insert(Value::Null),
            member("thinking"),
        ),
        "signature_delta" => {
            value.insert("signature".to_owned(), json!(member("signature")));
        }
        "input_json_delta" => block.input.push_str(member("partial_json")),
        "citations_delta" => {
            let citations = value.entry("citations").or_insert(Value::Null);
            if !citations.is_array() {
                *citations = json!([]);
            }
            if let (Some(list), Some(citation)) = (citations.as_array_mut(), delta.get("citation"))
            {
                list.push(citation.clone());
            }
        }
        _ => {}
    }
}

fn finish_block(mut block: Block) -> Value {
    // Input that was cut at the output limit does not parse and stays as it began.
    if let (Value::Object(value), Ok(input)) = (
        &mut block.value,
        serde_json::from_str::<Value>(&block.input),
    ) {
        value.insert("input".to_owned(), input);
    }
    block.value
}

fn update(whole: &mut Map<String, Value>, later: Value) {
    if let Value::Object(later) = later {
        whole.extend(later.into_iter().filter(|(_, value)| !value.is_null()));
    }
}
