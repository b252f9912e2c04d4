//! Announcements in fields of a body.

use serde_json::{Map, Value};

use super::document::Document;
use super::duration::{Decimal, MILLISECOND, SECOND};
use super::headers::{self, seconds_or_duration};
use super::moment::{self, When};
use super::{Answer, HintSource, Place, Rank, Search, text};

/// Prose is searched no further than this.
const PROSE_MAX_BYTES: usize = 8 << 10;
/// Entries of a list of details that are looked at.
const DETAILS_MAX: usize = 32;
/// Headers repeated in a body that are looked at.
const HEADERS_MAX: usize = 128;

/// Relative waits, with their unit.
const RELATIVE: &[(&str, u128)] = &[
    ("resets_in_seconds", SECOND),
    ("retry_after_seconds", SECOND),
    ("retryAfterSeconds", SECOND),
    ("reset_seconds", SECOND),
    ("retry_after_ms", MILLISECOND),
    ("retryAfterMs", MILLISECOND),
];
/// Times, or seconds where the number is small.
const MOMENTS: &[&str] = &["resets_at", "reset_at", "retryAfter", "retry_after"];

/// Notes what the body announces.
pub(super) fn search(answer: &Answer<'_>, document: &Document, search: &mut Search) {
    let place = Place {
        rank: None,
        source: HintSource::Body,
        prefix: "",
    };
    fields(answer.status, document, place, search);
    text::search(
        document.head(PROSE_MAX_BYTES),
        answer.provider,
        place,
        search,
    );
    let Some(raw) = &document.raw else {
        return;
    };
    // Good only if the relay itself says nothing: it is about a pool, not about our account.
    let place = Place {
        rank: Some(Rank::Pool),
        prefix: "error.metadata.raw: ",
        ..place
    };
    let inner = Document::of_text(raw);
    fields(answer.status, &inner, place, search);
    text::search(inner.head(PROSE_MAX_BYTES), answer.provider, place, search);
}

fn fields(status: u16, document: &Document, place: Place<'_>, search: &mut Search) {
    for layer in &document.layers {
        // A frame that carries the status and headers of an answer of its own.
        if let Some(map) = layer.get("headers").and_then(Value::as_object) {
            let status = layer
                .get("status_code")
                .or_else(|| layer.get("status"))
                .and_then(Value::as_u64)
                .and_then(|s| u16::try_from(s).ok())
                .unwrap_or(status);
            embedded(map, status, place, search);
        }
    }
    for container in document.containers() {
        plain(container, place, search);
        google(container, place, search);
        if let Some(Value::Object(map)) = container.get("metadata").and_then(|m| m.get("headers")) {
            embedded(map, 429, place, search);
        }
    }
}

fn embedded(map: &Map<String, Value>, status: u16, place: Place<'_>, search: &mut Search) {
    let headers: Vec<(String, String)> = map
        .iter()
        .take(HEADERS_MAX)
        .filter_map(|(name, value)| Some((name.to_lowercase(), scalar(value)?)))
        .collect();
    headers::search(&headers, status, place, search);
}

/// A string or number as text.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn plain(container: &Map<String, Value>, place: Place<'_>, search: &mut Search) {
    let value = |name: &str| container.get(name).and_then(scalar);
    for (name, unit) in RELATIVE {
        if let Some(number) = value(name).as_deref().and_then(Decimal::exact) {
            search.wait(place, Rank::Specific, number.millis(*unit), name);
        }
    }
    for name in MOMENTS {
        match value(name).as_deref().and_then(moment::any) {
            Some(When::In(ms)) => search.wait(place, Rank::Specific, ms, name),
            Some(When::At(at)) => search.until(place, Rank::Absolute, at, name),
            None => {}
        }
    }
}

/// `google.rpc` details.
fn google(container: &Map<String, Value>, place: Place<'_>, search: &mut Search) {
    let Some(details) = container.get("details").and_then(Value::as_array) else {
        return;
    };
    let rpc = Place {
        source: HintSource::GoogleRpcRetryInfo,
        ..place
    };
    for detail in details.iter().take(DETAILS_MAX) {
        let kind = detail.get("@type").and_then(Value::as_str).unwrap_or("");
        let delay = detail.get("retryDelay").and_then(scalar);
        if kind.contains("RetryInfo")
            && let Some(ms) = delay.as_deref().and_then(seconds_or_duration)
        {
            search.wait(rpc, Rank::Specific, ms, "RetryInfo.retryDelay");
        }
        let metadata = |name: &str| detail.get("metadata")?.get(name)?.as_str();
        if let Some(ms) = metadata("quotaResetDelay").and_then(seconds_or_duration) {
            search.wait(place, Rank::Specific, ms, "quotaResetDelay");
        }
        if let Some(at) = metadata("quotaResetTimeStamp").and_then(moment::rfc3339) {
            search.until(place, Rank::Absolute, at, "quotaResetTimeStamp");
        }
    }
}
