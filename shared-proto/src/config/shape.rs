//! The published schema, and the walk that holds a file against it. One source
//! of truth: types, bounds, names and what is not acted on yet all come from
//! the schema that the structs of [`super::file`] derive.
//!
//! The walk reports everything at once and hands back what is left when the
//! faulty parts are taken out, so that later checks see the rest.

use std::sync::LazyLock;

use serde_json::{Map, Value as Json};

use super::problem::{Path, shorten};
use super::report::Report;
use super::yaml::{Entry, Node, Value, scalar};

mod read;
mod section;

use read::{
    Property, alternatives, asks_for_something, describe, is_exact, kinds, listed, names, property,
};
pub(super) use section::{known_only, merge};

/// Marks keys that are accepted but not acted on.
const NOT_YET: &str = "x-notYet";
const EXACT: &str = "x-exact";

static SCHEMA: LazyLock<Json> =
    LazyLock::new(|| schemars::schema_for!(super::file::File).to_value());

/// JSON Schema (draft 2020-12) of the configuration file.
pub fn schema() -> Json {
    SCHEMA.clone()
}

/// The bounds of a number in one of the schema's definitions.
pub(super) fn bounds(definition: &str, key: &str) -> (u64, u64) {
    let of_key = SCHEMA.pointer(&format!("/$defs/{definition}/properties/{key}"));
    let bound = |name: &str| of_key?.get(name)?.as_u64();
    (
        bound("minimum").unwrap_or(0),
        bound("maximum").unwrap_or(u64::MAX),
    )
}

/// Holds `root` against the schema of the configuration file. What it returns
/// has the right shape, though required keys may be absent.
pub(super) fn check(root: &Node, report: &mut Report<'_>) -> Json {
    check_against(&SCHEMA, root, report)
}

/// The same against any schema made of the keywords that ours uses.
pub(super) fn check_against(schema: &Json, root: &Node, report: &mut Report<'_>) -> Json {
    Walk {
        top: schema,
        report,
        strict: false,
    }
    .whole(root)
}

/// The same for what a program sends instead of what a person writes: numbers
/// have to be numbers, whole ones, and within their bounds.
pub(super) fn check_strictly(root: &Node, report: &mut Report<'_>) -> Json {
    Walk {
        top: &SCHEMA,
        report,
        strict: true,
    }
    .whole(root)
}

/// One walk.
struct Walk<'s, 'r, 'a> {
    top: &'s Json,
    report: &'r mut Report<'a>,
    strict: bool,
}

impl<'s> Walk<'s, '_, '_> {
    fn whole(mut self, root: &Node) -> Json {
        self.value(root, self.top, &Path::default())
            .unwrap_or_else(|| Json::Object(Map::new()))
    }

    /// Checks one value; `None` where nothing of it can be kept.
    fn value(&mut self, node: &Node, schema: &'s Json, path: &Path) -> Option<Json> {
        let Some(fitting) = self.branch(node, schema) else {
            let mut message = format!("expected {}, found {}", self.wanted(schema), describe(node));
            if self.admits(schema, "string")
                && matches!(node.value, Value::Int(_) | Value::Float(_))
            {
                message.push_str("; put it in quotes");
            }
            self.report.problem(path, message);
            return None;
        };
        match &node.value {
            Value::Null => Some(Json::Null),
            Value::Bool(flag) => Some(Json::Bool(*flag)),
            Value::Int(whole) => Some(self.number(*whole, fitting, path)),
            Value::Float(_) if self.is_open(fitting) => Some(node.to_json()),
            Value::Float(number) => Some(self.cut(*number, fitting, path)),
            Value::Text(text) if self.admits(fitting, "string") => {
                self.text(text, fitting, path).map(Json::String)
            }
            Value::Text(text) => match scalar::number(text.trim())? {
                Value::Int(whole) => Some(self.number(whole, fitting, path)),
                Value::Float(number) => Some(self.cut(number, fitting, path)),
                Value::Null | Value::Bool(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                    None
                }
            },
            Value::List(items) => self.list(items, fitting, path),
            Value::Map(entries) => Some(self.map(entries, fitting, path)),
        }
    }

    /// The alternative of `schema` that speaks of values like `node`.
    fn branch(&self, node: &Node, schema: &'s Json) -> Option<&'s Json> {
        let schema = self.resolve(schema);
        let branches = alternatives(schema);
        if branches.is_empty() || names(schema).is_some() {
            let kinds = kinds(node).iter().take(if self.strict { 1 } else { 2 });
            let fits = kinds.into_iter().any(|kind| self.admits(schema, kind));
            return fits.then_some(schema);
        }
        branches.iter().find_map(|branch| self.branch(node, branch))
    }

    /// Follows `$ref`.
    fn resolve(&self, schema: &'s Json) -> &'s Json {
        let mut schema = schema;
        while let Some(target) = schema.get("$ref").and_then(Json::as_str) {
            let Some(found) = target.strip_prefix('#').and_then(|at| self.top.pointer(at)) else {
                break;
            };
            schema = found;
        }
        schema
    }

    /// Whether values of this JSON type can fit at all.
    fn admits(&self, schema: &'s Json, kind: &str) -> bool {
        let schema = self.resolve(schema);
        match schema.get("type") {
            Some(Json::String(only)) => only == kind,
            Some(Json::Array(several)) => several.iter().any(|one| one == kind),
            _ => {
                let branches = alternatives(schema);
                if branches.is_empty() {
                    return self.is_open(schema);
                }
                branches.iter().any(|branch| self.admits(branch, kind))
            }
        }
    }

    /// Whether the schema takes anything.
    fn is_open(&self, schema: &'s Json) -> bool {
        let schema = self.resolve(schema);
        schema.get("type").is_none() && names(schema).is_none() && alternatives(schema).is_empty()
    }

    /// A whole number, clamped.
    fn number(&mut self, number: i64, schema: &'s Json, path: &Path) -> Json {
        let bound = |name: &str| schema.get(name).and_then(Json::as_i64);
        let (least, most) = (bound("minimum"), bound("maximum"));
        let kept = number
            .max(least.unwrap_or(i64::MIN))
            .min(most.unwrap_or(i64::MAX));
        if kept != number {
            let exact = self.strict || is_exact(schema);
            let bounds = match (least, most) {
                (Some(least), Some(most)) => format!("{least} to {most}"),
                (Some(least), None) => format!("at least {least}"),
                (None, Some(most)) => format!("at most {most}"),
                (None, None) => String::new(),
            };
            let fault = format!("{number} is out of bounds ({bounds})");
            if exact {
                self.report.problem(path, fault);
            } else {
                self.report.warn(path, format!("{fault}; {kept} is used"));
            }
        }
        Json::from(kept)
    }

    /// A number with a fraction or beyond 64 bits, cut to a whole one.
    fn cut(&mut self, number: f64, schema: &'s Json, path: &Path) -> Json {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "cutting is the rule, and the cast saturates"
        )]
        let whole = number.trunc() as i64;
        if number.fract() != 0.0 && (self.strict || is_exact(schema)) {
            self.report
                .problem(path, format!("{number} is not a whole number"));
        } else if number.fract() != 0.0 {
            self.report
                .warn(path, format!("{number} is cut to {whole}"));
        }
        self.number(whole, schema, path)
    }

    fn text(&mut self, text: &str, schema: &'s Json, path: &Path) -> Option<String> {
        if let Some(names) = names(schema)
            && !names.contains(&text)
        {
            let message = format!("`{}` is not one of {}", shorten(text), listed(&names));
            self.report.unknown(path, message, text, names);
            return None;
        }
        let length = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
        let bound = |name: &str| schema.get(name).and_then(Json::as_u64);
        let (least, most) = (bound("minLength"), bound("maxLength"));
        if least.is_some_and(|least| length < least) {
            self.report.problem(path, "may not be empty");
            return None;
        }
        if let Some(most) = most.filter(|most| length > *most) {
            self.report
                .problem(path, format!("longer than {most} characters"));
            return None;
        }
        Some(text.to_owned())
    }

    /// A faulty mapping in a list is kept, emptied, so that the others keep
    /// their places; any other faulty item takes the list with it.
    fn list(&mut self, items: &[Node], schema: &'s Json, path: &Path) -> Option<Json> {
        let Some(item_schema) = schema.get("items") else {
            return Some(Json::Array(items.iter().map(Node::to_json).collect()));
        };
        let mut kept = Vec::with_capacity(items.len());
        let mut whole = true;
        for (at, item) in items.iter().enumerate() {
            match self.value(item, item_schema, &path.index(at)) {
                Some(value) => kept.push(value),
                None if self.admits(item_schema, "object") => kept.push(Json::Object(Map::new())),
                None => whole = false,
            }
        }
        whole.then_some(Json::Array(kept))
    }

    fn map(&mut self, entries: &[Entry], schema: &'s Json, path: &Path) -> Json {
        let none = Map::new();
        let known = schema
            .get("properties")
            .and_then(Json::as_object)
            .unwrap_or(&none);
        let mut kept = Map::new();
        for entry in entries {
            let below = path.key(&entry.key);
            let Some(of_key) = property(schema, &entry.key) else {
                let place = (entry.line, entry.column);
                let names = known.keys().map(String::as_str);
                self.report.unknown_key(&below, place, &entry.key, names);
                continue;
            };
            match of_key {
                Property::Open => {
                    kept.insert(entry.key.clone(), entry.node.to_json());
                }
                Property::Of(of_key) => {
                    if let Some(value) = self.value(&entry.node, of_key, &below) {
                        if asks_for_something(of_key.get(NOT_YET), &value) {
                            let message = "accepted, but this version does not act on it yet";
                            self.report.warn(&below, message);
                        }
                        kept.insert(entry.key.clone(), value);
                    }
                }
            }
        }
        if !self.count_fits(entries, schema, path) {
            return Json::Object(Map::new());
        }
        let required = schema.get("required").and_then(Json::as_array);
        for name in required.into_iter().flatten().filter_map(Json::as_str) {
            if !entries.iter().any(|entry| entry.key == name) {
                self.report.problem(&path.key(name), "is missing");
            }
        }
        Json::Object(kept)
    }

    /// Least and greatest number of keys; ours only ever says "exactly one".
    fn count_fits(&mut self, entries: &[Entry], schema: &'s Json, path: &Path) -> bool {
        let bound = |name: &str| schema.get(name).and_then(Json::as_u64);
        let count = u64::try_from(entries.len()).unwrap_or(u64::MAX);
        let too_few = bound("minProperties").is_some_and(|least| count < least);
        let too_many = bound("maxProperties").is_some_and(|most| count > most);
        if too_few || too_many {
            let keys = schema.get("properties").and_then(Json::as_object);
            let keys: Vec<&str> = keys
                .into_iter()
                .flat_map(Map::keys)
                .map(String::as_str)
                .collect();
            let message = format!("takes exactly one of {}", listed(&keys));
            self.report.problem(path, message);
        }
        !too_few && !too_many
    }

    /// What the schema would take, in words.
    fn wanted(&self, schema: &'s Json) -> String {
        let kinds = [
            ("boolean", "true or false"),
            ("integer", "a whole number"),
            ("string", "text"),
            ("array", "a list"),
            ("object", "a mapping"),
        ];
        let words: Vec<&str> = kinds
            .iter()
            .filter(|(kind, _)| self.admits(schema, kind))
            .map(|(_, words)| *words)
            .collect();
        words.join(" or ")
    }
}
