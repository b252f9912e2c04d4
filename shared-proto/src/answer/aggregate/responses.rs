//! A response from its events: the terminal one holds it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The response of the terminal event. Some servers leave its `output` empty;
/// then the finished items fill it.
pub(super) fn fold(events: Vec<Value>) -> Option<Value> {
    let mut items: BTreeMap<u64, Value> = BTreeMap::new();
    let mut whole = None;
    for mut event in events {
        let kind = event.get("type").and_then(Value::as_str);
        match kind.unwrap_or_default() {
            "response.output_item.done" => {
                let index = event.get("output_index").and_then(Value::as_u64);
                let next = u64::try_from(items.len()).unwrap_or(u64::MAX);
                if let Some(item) = event.get_mut("item") {
                    items.insert(index.unwrap_or(next), item.take());
                }
            }
            "response.completed" | "response.incomplete" | "response.done" => {
                whole = event.get_mut("response").map(Value::take);
            }
            _ => {}
        }
    }
    let mut whole = whole.filter(Value::is_object)?;
    let listed = whole.get("output").and_then(Value::as_array);
    if listed.is_none_or(Vec::is_empty) && !items.is_empty() {
        whole["output"] = json!(items.into_values().collect::<Vec<_>>());
    }
    Some(whole)
}
