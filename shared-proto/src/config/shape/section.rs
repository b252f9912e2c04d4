//! Sections: mappings with keys of their own in the schema. They merge key by
//! key; lists, and mappings whose keys are somebody's names, are one value.

use serde_json::{Map, Value as Json};

use super::SCHEMA;
use super::read::{Property, alternatives, property};

/// The section that `schema` takes, if it takes one.
fn section(schema: &'static Json) -> Option<&'static Json> {
    if let Some(target) = schema.get("$ref").and_then(Json::as_str) {
        return section(SCHEMA.pointer(target.strip_prefix('#')?)?);
    }
    if schema.get("properties").is_some() {
        return Some(schema);
    }
    alternatives(schema).iter().find_map(section)
}

/// The schema of `settings`.
fn of_settings() -> Option<&'static Json> {
    section(SCHEMA.pointer("/properties/settings")?)
}

/// The section below the key of another.
fn below(schema: Option<&'static Json>, key: &str) -> Option<&'static Json> {
    section(schema?.get("properties")?.get(key)?)
}

/// Enters `news` into `settings`: a null takes a key out, and a section that
/// is left empty goes.
pub(in super::super) fn merge(settings: &mut Map<String, Json>, news: &Map<String, Json>) {
    merge_below(settings, news, of_settings());
}

fn merge_below(
    into: &mut Map<String, Json>,
    news: &Map<String, Json>,
    schema: Option<&'static Json>,
) {
    for (key, value) in news {
        match (value, below(schema, key)) {
            (Json::Null, _) => {
                into.shift_remove(key);
            }
            (Json::Object(news), Some(schema)) => {
                let mut inner = match into.shift_remove(key) {
                    Some(Json::Object(inner)) => inner,
                    _ => Map::new(),
                };
                merge_below(&mut inner, news, Some(schema));
                if !inner.is_empty() {
                    into.insert(key.clone(), Json::Object(inner));
                }
            }
            (value, _) => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// `settings` without what a newer version put there.
pub(in super::super) fn known_only(settings: &Map<String, Json>) -> Map<String, Json> {
    of_settings().map_or_else(Map::new, |schema| known_below(settings, schema))
}

fn known_below(map: &Map<String, Json>, schema: &'static Json) -> Map<String, Json> {
    let mut known = Map::new();
    for (key, value) in map {
        let kept = match (property(schema, key), value) {
            (None, _) => continue,
            (Some(Property::Of(schema)), Json::Object(inner)) => section(schema).map_or_else(
                || value.clone(),
                |schema| Json::Object(known_below(inner, schema)),
            ),
            (Some(Property::Of(_) | Property::Open), _) => value.clone(),
        };
        known.insert(key.clone(), kept);
    }
    known
}
