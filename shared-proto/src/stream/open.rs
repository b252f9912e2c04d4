//! What a response turns out to be, by its first bytes and its content type.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::failure::{body_of_text, real_error};
use crate::sse::Event;

/// What a response's `content-type` promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ContentType {
    /// `text/event-stream`.
    EventStream,
    /// `application/json` and its relatives.
    Json,
    /// `text/html`.
    Html,
    /// Anything else, or none.
    #[default]
    Unknown,
}

impl ContentType {
    /// Reads a header's value; parameters are ignored.
    pub fn parse(value: Option<&str>) -> Self {
        let kind = value.and_then(|value| value.split(';').next());
        let kind = kind.unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "text/event-stream" => Self::EventStream,
            "text/html" | "application/xhtml+xml" => Self::Html,
            "application/json" | "text/json" => Self::Json,
            other if other.ends_with("+json") => Self::Json,
            _ => Self::Unknown,
        }
    }
}

/// What a body is, whatever was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyShape {
    /// Nothing but white space so far.
    Blank,
    /// One JSON value.
    Json,
    /// A web page.
    Html,
    /// An event stream, or at least nothing else that could be told.
    Events,
}

/// Where the body begins behind white space and a byte order mark, and what it
/// is. The first byte decides, the content type only where that can't.
pub(crate) fn opening(content_type: ContentType, bytes: &[u8]) -> (usize, BodyShape) {
    let blank = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0xEF | 0xBB | 0xBF);
    let Some(start) = bytes.iter().position(|byte| !blank(byte)) else {
        return (bytes.len(), BodyShape::Blank);
    };
    let shape = match bytes.get(start) {
        Some(b'{' | b'[') => BodyShape::Json,
        Some(b'<') => BodyShape::Html,
        // Every field of the grammar, and a comment, begin with one of these.
        Some(b'd' | b'e' | b'i' | b'r' | b':') => BodyShape::Events,
        Some(_) | None => match content_type {
            ContentType::Json => BodyShape::Json,
            ContentType::Html => BodyShape::Html,
            ContentType::EventStream | ContentType::Unknown => BodyShape::Events,
        },
    };
    (start, shape)
}

/// The error an event carries by its framing: in a field named `error`, or by
/// being called `error`. The inner `None` is an error without a body.
#[expect(clippy::option_option, reason = "an error may come without a body")]
pub(crate) fn error_of_event(event: &Event) -> Option<Option<Bytes>> {
    if let Some(text) = event.error() {
        let text = text.trim_ascii();
        let real = serde_json::from_slice::<&RawValue>(text)
            .map_or(true, |value| real_error(Some(value)).is_some());
        if real && !text.is_empty() {
            return Some(body_of_text(text, true));
        }
    }
    let called_error = event.name() == b"error";
    called_error.then(|| body_of_text(event.data().unwrap_or_default(), false))
}
