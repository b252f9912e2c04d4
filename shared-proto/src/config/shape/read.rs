//! How parts of the schema and of a tree are read.

use serde_json::Value as Json;

use super::super::yaml::{Node, Value, scalar};
use super::EXACT;

/// What a mapping's schema says of one key.
pub(super) enum Property<'s> {
    /// Anything.
    Open,
    /// This.
    Of(&'s Json),
}

pub(super) fn property<'s>(schema: &'s Json, key: &str) -> Option<Property<'s>> {
    if let Some(of_key) = schema.get("properties").and_then(|all| all.get(key)) {
        return Some(Property::Of(of_key));
    }
    match schema.get("additionalProperties") {
        Some(Json::Bool(false)) => None,
        Some(of_any @ Json::Object(_)) => Some(Property::Of(of_any)),
        _ => Some(Property::Open),
    }
}

/// The branches of `anyOf` or `oneOf`.
pub(super) fn alternatives(schema: &Json) -> &[Json] {
    let branches = schema.get("anyOf").or_else(|| schema.get("oneOf"));
    branches.and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// The words of an enumeration, listed or one by one.
pub(super) fn names(schema: &Json) -> Option<Vec<&str>> {
    if let Some(listed) = schema.get("enum").and_then(Json::as_array) {
        return Some(listed.iter().filter_map(Json::as_str).collect());
    }
    let branches = alternatives(schema);
    let names: Vec<&str> = branches
        .iter()
        .filter_map(|branch| branch.get("const").and_then(Json::as_str))
        .collect();
    (!names.is_empty() && names.len() == branches.len()).then_some(names)
}

/// The JSON types as which a value may be read, best first.
pub(super) fn kinds(node: &Node) -> &'static [&'static str] {
    match &node.value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Int(_) => &["integer"],
        Value::Float(number) if number.is_finite() => &["integer"],
        Value::Float(_) => &[],
        Value::Text(text) => match scalar::number(text.trim()) {
            Some(Value::Int(_)) => &["string", "integer"],
            Some(Value::Float(number)) if number.is_finite() => &["string", "integer"],
            _ => &["string"],
        },
        Value::List(_) => &["array"],
        Value::Map(_) => &["object"],
    }
}

pub(super) fn describe(node: &Node) -> &'static str {
    match node.value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Float(number) if number.is_nan() => "no number (NaN)",
        Value::Float(number) if number.is_infinite() => "infinity",
        Value::Int(_) | Value::Float(_) => "a number",
        Value::Text(_) => "text",
        Value::List(_) => "a list",
        Value::Map(_) => "a mapping",
    }
}

pub(super) fn listed(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}

/// Whether a number has to fit as it is.
pub(super) fn is_exact(schema: &Json) -> bool {
    schema.get(EXACT) == Some(&Json::Bool(true))
}

/// Whether a value of a key that is not acted on would change anything if it were.
pub(super) fn asks_for_something(not_yet: Option<&Json>, value: &Json) -> bool {
    let idle: &[Json] = match not_yet {
        None => return false,
        Some(Json::Array(idle)) => idle,
        Some(_) => &[],
    };
    let nothing = match value {
        Json::Null | Json::Bool(false) => true,
        Json::Bool(true) | Json::Number(_) => false,
        Json::String(text) => text.is_empty(),
        Json::Array(items) => items.is_empty(),
        Json::Object(map) => map.is_empty() || map.get("enabled") == Some(&Json::Bool(false)),
    };
    !nothing && !idle.contains(value)
}
