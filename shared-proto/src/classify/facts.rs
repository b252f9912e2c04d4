//! What an error body says in fields made for machines.

use serde_json::{Map, Value};

use super::message;
use crate::hint::document::Document;

/// Entries of a list of details that are looked at.
const DETAILS_MAX: usize = 32;
/// Complaints of a list that are told.
const COMPLAINTS_MAX: usize = 3;
/// Steps of the place that a complaint names.
const LOCATION_MAX: usize = 8;
/// Where upstreams say what is wrong, the usual place first.
const MESSAGE_KEYS: &[&str] = &[
    "message",
    "msg",
    "error_msg",
    "errorMsg",
    "error_message",
    "error_description",
    "status_msg",
    "detail",
];
/// Longest code that is shown.
const CODE_MAX_CHARS: usize = 64;

/// Codes, types and message of an error body.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Codes, then types, then status words, lowercased; the more exact first.
    words: Vec<String>,
    /// The first code that is a word, the first type, the first number, as written.
    shown: [Option<String>; 3],
    /// An HTTP status given as a number or digits.
    pub status: Option<u16>,
    /// A status in the field that usually names a parameter: what a relay's upstream sent.
    pub param_status: Option<u16>,
    /// The parameter of the request that it is about, lowercased.
    pub parameter: Option<String>,
    /// A quota that is 0 by configuration; whether only in this region.
    pub zero_quota: Option<Zero>,
    /// Its own words, the innermost ones.
    pub message: Option<String>,
    /// The edge in front of the provider says that trying again is useless.
    pub edge_refusal: bool,
}

/// Where a quota is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Zero {
    /// In the region that served the request.
    Region,
    /// Everywhere.
    Everywhere,
}

impl Facts {
    /// Reads the JSON of `document`, if it is JSON.
    pub(super) fn read(document: &Document) -> Self {
        let mut facts = Self::default();
        let mut kinds = Vec::new();
        for container in document.containers() {
            facts.read_container(container, &mut kinds);
        }
        facts.words.append(&mut kinds);
        if facts.message.is_none() {
            facts.message = document.layers.iter().rev().find_map(bare_message);
        }
        facts
    }

    /// Whether one of the codes, types or status words is one of `words`.
    pub(super) fn is_any(&self, words: &[&str]) -> bool {
        self.words.iter().any(|word| words.contains(&word.as_str()))
    }

    /// The codes, types and status words, lowercased.
    pub(super) fn words(&self) -> impl Iterator<Item = &str> {
        self.words.iter().map(String::as_str)
    }

    /// The upstream's own code, if it is fit to be shown.
    pub(super) fn upstream_code(&self) -> Option<String> {
        let code = self.shown.iter().flatten().next()?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | ' ');
        let fit = code.chars().all(plain)
            && code.chars().count() <= CODE_MAX_CHARS
            && message::sanitise(code) == *code;
        fit.then(|| code.clone())
    }

    fn read_container(&mut self, container: &Map<String, Value>, kinds: &mut Vec<String>) {
        for key in ["code", "error_code", "errorCode", "statusCode"] {
            if let Some(value) = container.get(key) {
                self.add_code(value);
            }
        }
        for key in ["type", "status", "reason", "error_type", "error_name"] {
            if let Some(Value::String(kind)) = container.get(key)
                && !kind.is_empty()
                && kind != "error"
            {
                self.show(1, kind);
                kinds.push(kind.to_lowercase());
            }
        }
        for key in ["status_code", "status", "http_code"] {
            if let Some(status) = container.get(key).and_then(status) {
                self.status.get_or_insert(status);
            }
        }
        // A code of MiniMax's own that is no status.
        if let Some(Value::Number(code)) = container.get("status_code")
            && container.contains_key("status_msg")
        {
            kinds.push(format!("base_resp:{code}"));
        }
        if let Some(kind) = container
            .get("metadata")
            .and_then(|m| m.get("error_type"))
            .and_then(Value::as_str)
        {
            kinds.push(kind.to_lowercase());
        }
        if let Some(status) = container.get("param").and_then(status) {
            self.param_status.get_or_insert(status);
        }
        if let Some(Value::String(name)) = container.get("param")
            && name.starts_with(char::is_alphabetic)
        {
            self.parameter.get_or_insert_with(|| name.to_lowercase());
        }
        Self::add_details(container, kinds);
        self.zero_quota = self.zero_quota.or_else(|| zero_quota(container));
        self.edge_refusal |= edge_refusal(container);
        let said = MESSAGE_KEYS
            .iter()
            .find_map(|key| said(container.get(*key)?));
        if let Some(said) = said {
            self.message = Some(said);
        }
    }

    fn add_code(&mut self, value: &Value) {
        if let Some(status) = status(value) {
            self.status.get_or_insert(status);
        }
        let code = match value {
            Value::String(code) if !code.is_empty() => code.clone(),
            Value::Number(code) => code.to_string(),
            Value::String(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Object(_) => return,
        };
        let is_number = code.bytes().all(|b| b.is_ascii_digit());
        self.show(if is_number { 2 } else { 0 }, &code);
        self.words.push(code.to_lowercase());
    }

    fn show(&mut self, slot: usize, code: &str) {
        if let Some(slot) = self.shown.get_mut(slot) {
            slot.get_or_insert_with(|| code.to_owned());
        }
    }

    /// Reasons of `google.rpc` details and of the older `errors` list.
    fn add_details(container: &Map<String, Value>, kinds: &mut Vec<String>) {
        let lists = ["details", "errors"].map(|key| container.get(key).and_then(Value::as_array));
        let reasons = lists
            .into_iter()
            .flatten()
            .flat_map(|list| list.iter().take(DETAILS_MAX))
            .filter_map(|detail| detail.get("reason")?.as_str());
        kinds.extend(reasons.map(str::to_lowercase));
    }
}

/// A quota of 0 in the metadata of a `google.rpc` detail.
fn zero_quota(container: &Map<String, Value>) -> Option<Zero> {
    let details = container.get("details")?.as_array()?;
    details.iter().take(DETAILS_MAX).find_map(|detail| {
        let metadata = detail.get("metadata")?;
        let value = metadata.get("quota_limit_value")?;
        if value.as_str() != Some("0") && value.as_u64() != Some(0) {
            return None;
        }
        let name = metadata.get("quota_limit").and_then(Value::as_str);
        let regional = name.is_some_and(|name| name.to_lowercase().contains("region"));
        Some(if regional {
            Zero::Region
        } else {
            Zero::Everywhere
        })
    })
}

/// The words of a value under one of [`MESSAGE_KEYS`]: a text, a list of texts,
/// or a list of complaints `{msg, loc}`, each with the field that it is about.
fn said(value: &Value) -> Option<String> {
    if let Value::String(text) = value {
        let words = !text.trim().is_empty() && !text.trim_start().starts_with('{');
        return words.then(|| text.clone());
    }
    let items = value.as_array()?.iter().take(DETAILS_MAX);
    let complaints: Vec<String> = items.filter_map(complaint).take(COMPLAINTS_MAX).collect();
    (!complaints.is_empty()).then(|| complaints.join("; "))
}

fn complaint(item: &Value) -> Option<String> {
    let words = item
        .as_str()
        .or_else(|| item.get("msg").and_then(Value::as_str))
        .or_else(|| item.get("message").and_then(Value::as_str))?
        .trim();
    if words.is_empty() {
        return None;
    }
    let place = item.get("loc").and_then(Value::as_array);
    let steps = place.into_iter().flatten().take(LOCATION_MAX);
    let steps: Vec<String> = steps
        .filter_map(|step| match step {
            Value::String(name) => Some(name.clone()),
            Value::Number(index) => Some(index.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        })
        .collect();
    Some(if steps.is_empty() {
        words.to_owned()
    } else {
        format!("{words} (at {})", steps.join(" > "))
    })
}

/// A message that stands by itself: `"..."`, `{"error": "..."}`.
fn bare_message(layer: &Value) -> Option<String> {
    let text = layer
        .as_str()
        .or_else(|| layer.get("error").and_then(Value::as_str))?;
    (!text.trim().is_empty()).then(|| text.to_owned())
}

/// A number or digits in the range of error statuses.
fn status(value: &Value) -> Option<u16> {
    let number = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(digits) => digits.parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    u16::try_from(number?)
        .ok()
        .filter(|status| (400..=599).contains(status))
}

/// Cloudflare's own refusals in JSON.
fn edge_refusal(container: &Map<String, Value>) -> bool {
    let is = |key: &str, wanted: bool| container.get(key).and_then(Value::as_bool) == Some(wanted);
    let code = container
        .get("error_code")
        .or_else(|| container.get("errorCode"))
        .and_then(|code| {
            code.as_u64()
                .or_else(|| code.as_str().and_then(|digits| digits.parse().ok()))
        });
    let named =
        container.get("error_name").and_then(Value::as_str) == Some("browser_signature_banned");
    let hopeless = is("retryable", false)
        && (is("cloudflare_error", true) || is("owner_action_required", true));
    code == Some(1010) || named || hopeless
}
