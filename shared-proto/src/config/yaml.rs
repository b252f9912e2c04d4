//! Text to a tree that remembers lines. Bounded in depth and size; every fault
//! that YAML itself has is told with its place.

use serde_json::Value as Json;

use super::problem::Problem;

mod builder;
pub(crate) mod scalar;

use builder::Builder;

/// Largest file, in bytes.
pub(crate) const MAX_BYTES: usize = 4 * 1024 * 1024;

/// A value with its place, counted from 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) value: Value,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping, with the key's place.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) node: Node,
}

impl Node {
    /// The tree of a JSON value; it has no places.
    pub(crate) fn of_json(json: &Json) -> Self {
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(flag) => Value::Bool(*flag),
            Json::Number(number) => number.as_i64().map_or_else(
                || Value::Float(number.as_f64().unwrap_or(f64::NAN)),
                Value::Int,
            ),
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(items) => Value::List(items.iter().map(Self::of_json).collect()),
            Json::Object(map) => Value::Map(map.iter().map(Entry::of_json).collect()),
        };
        Self {
            line: 0,
            column: 0,
            value,
        }
    }

    /// The value as JSON, as it stands; a number that JSON does not have is null.
    pub(crate) fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(flag) => Json::Bool(*flag),
            Value::Int(whole) => Json::from(*whole),
            Value::Float(number) => Json::from(*number),
            Value::Text(text) => Json::String(text.clone()),
            Value::List(items) => items.iter().map(Self::to_json).collect(),
            Value::Map(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.node.to_json()))
                .collect(),
        }
    }
}

impl Entry {
    fn of_json((key, value): (&String, &Json)) -> Self {
        Self {
            key: key.clone(),
            line: 0,
            column: 0,
            node: Node::of_json(value),
        }
    }
}

/// The tree, as far as it could be built, and what was wrong. No tree and no
/// problem: the file says nothing.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub(crate) root: Option<Node>,
    pub(crate) problems: Vec<Problem>,
}

/// Reads one YAML document.
pub(crate) fn parse(file: &str, bytes: &[u8]) -> Parsed {
    let at = |line, column, message: String| Problem {
        file: file.to_owned(),
        line,
        column,
        path: String::new(),
        message,
        suggestion: None,
    };
    if bytes.len() > MAX_BYTES {
        let message = format!("the file is larger than {MAX_BYTES} bytes");
        return Parsed {
            root: None,
            problems: vec![at(1, 1, message)],
        };
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.strip_prefix('\u{feff}').unwrap_or(text),
        Err(fault) => {
            let before = bytes.get(..fault.valid_up_to()).unwrap_or_default();
            let line = before.split(|b| *b == b'\n').count();
            return Parsed {
                root: None,
                problems: vec![at(line, 1, "the file is not UTF-8 text".to_owned())],
            };
        }
    };
    let (root, faults) = Builder::read(text);
    let problems = faults
        .into_iter()
        .map(|fault| at(fault.line, fault.column, fault.message))
        .collect();
    let says_something = |node: &Node| node.value != Value::Null;
    Parsed {
        root: root.filter(says_something),
        problems,
    }
}
