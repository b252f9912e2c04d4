//! The ways a stream or an answer fails, and the oddities it is forgiven.

use bytes::Bytes;
use serde_json::value::RawValue;

/// Why an attempt's bytes do not make a good answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamFailureKind {
    /// The upstream said so: an error event, an error object where an answer
    /// was expected, an `error:` field, or `finish_reason: "error"`.
    ErrorEvent,
    /// A clean end without any sign that the answer was complete.
    Truncated,
    /// An end inside the arguments of a tool call.
    TruncatedToolCall,
    /// Well-formed and complete, but without content and without a tool call.
    Empty,
    /// One event, or a whole answer in place of a stream, beyond the bound.
    EventTooLarge,
    /// HTML, plain text or broken JSON where an answer was expected.
    Garbage,
    /// The transport broke before the answer was complete.
    Cut,
}

impl StreamFailureKind {
    /// The word used in JSON, logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ErrorEvent => "error_event",
            Self::Truncated => "truncated",
            Self::TruncatedToolCall => "truncated_tool_call",
            Self::Empty => "empty",
            Self::EventTooLarge => "event_too_large",
            Self::Garbage => "garbage",
            Self::Cut => "cut",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::ErrorEvent => "the upstream reported an error inside a successful response",
            Self::Truncated => "the upstream ended the answer before it was complete",
            Self::TruncatedToolCall => "the upstream ended the answer inside a tool call",
            Self::Empty => "the upstream answered without any content",
            Self::EventTooLarge => "the upstream sent an event beyond the size limit",
            Self::Garbage => "the upstream sent something that is not an answer",
            Self::Cut => "the connection to the upstream broke during the answer",
        }
    }
}

/// A failed attempt, with what the classifier needs to judge it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamFailure {
    /// Which way it failed.
    pub kind: StreamFailureKind,
    /// What the upstream said, as a JSON object of the shape an HTTP error has
    /// (`{"error": ...}`, or the flat object that was sent). Only with
    /// [`StreamFailureKind::ErrorEvent`], and not always then.
    pub error_body: Option<Bytes>,
    message: String,
}

impl StreamFailure {
    pub(crate) fn new(kind: StreamFailureKind) -> Self {
        Self::because(kind, kind.message())
    }

    pub(crate) fn because(kind: StreamFailureKind, message: &str) -> Self {
        Self {
            kind,
            error_body: None,
            message: message.to_owned(),
        }
    }

    pub(crate) fn error_event(body: Option<Bytes>) -> Self {
        Self {
            error_body: body,
            ..Self::new(StreamFailureKind::ErrorEvent)
        }
    }

    /// What happened, in our own words; never upstream text.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl std::fmt::Display for StreamFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StreamFailure {}

/// The value of an `error` member, unless it is one of the ways to say "none".
pub(crate) fn real_error(value: Option<&RawValue>) -> Option<&RawValue> {
    value.filter(|raw| {
        let text = raw.get();
        let inner = text
            .strip_prefix(['{', '[', '"'])
            .and_then(|rest| rest.strip_suffix(['}', ']', '"']));
        inner.map_or(!matches!(text, "false" | "0" | "null"), |inner| {
            !inner.trim_ascii().is_empty()
        })
    })
}

/// Fails with the error that `data` tells of: it has one, or is of that kind.
pub(crate) fn no_error(
    kind: Option<&str>,
    error: Option<&RawValue>,
    data: &[u8],
) -> Result<(), StreamFailure> {
    if real_error(error).is_some() || kind == Some("error") {
        let body = Bytes::copy_from_slice(data);
        return Err(StreamFailure::error_event(Some(body)));
    }
    Ok(())
}

/// `{"error": value}`.
pub(crate) fn wrap_error(value: &RawValue) -> Bytes {
    Bytes::from(format!("{{\"error\":{}}}", value.get()))
}

/// An error body from whatever an `error` event or field carried; `None` for nothing.
pub(crate) fn body_of_text(text: &[u8], wrap_objects: bool) -> Option<Bytes> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return None;
    }
    let json = serde_json::from_slice::<&RawValue>(text).ok();
    match json {
        Some(raw) if text.starts_with(b"{") && !wrap_objects => {
            Some(Bytes::copy_from_slice(raw.get().as_bytes()))
        }
        Some(raw) if text.starts_with(b"{") || text.starts_with(b"\"") => Some(wrap_error(raw)),
        Some(_) | None => {
            let message = String::from_utf8_lossy(text);
            Some(Bytes::from(
                serde_json::json!({"error": {"message": message}}).to_string(),
            ))
        }
    }
}

/// Something odd that was mended or forgiven: worth counting, not a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Quirk {
    /// The protocol's closing mark never came, but the finish reason did.
    MissingTerminalMark,
    /// The transport broke after the finish reason.
    CutAfterFinish,
    /// No finish reason and no mark, from a provider that never sends them.
    LenientEnd,
    /// The finish reason came twice.
    RepeatedFinish,
    /// Tool call fragments without an index, or whose id changed.
    ToolFragmentRepaired,
    /// A closing event held more than had been streamed.
    LateContent,
    /// A whole JSON answer came where a stream was asked for.
    WholeAnswer,
}

impl Quirk {
    /// Every quirk there is.
    pub const ALL: [Self; 7] = [
        Self::MissingTerminalMark,
        Self::CutAfterFinish,
        Self::LenientEnd,
        Self::RepeatedFinish,
        Self::ToolFragmentRepaired,
        Self::LateContent,
        Self::WholeAnswer,
    ];

    /// The word used in logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MissingTerminalMark => "missing_terminal_mark",
            Self::CutAfterFinish => "cut_after_finish",
            Self::LenientEnd => "lenient_end",
            Self::RepeatedFinish => "repeated_finish",
            Self::ToolFragmentRepaired => "tool_fragment_repaired",
            Self::LateContent => "late_content",
            Self::WholeAnswer => "whole_answer",
        }
    }
}

/// The set of quirks one stream showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quirks(u8);

impl Quirks {
    pub(crate) fn add(&mut self, quirk: Quirk) {
        self.0 |= Self::bit(quirk);
    }

    /// Whether the stream showed `quirk`.
    pub fn has(self, quirk: Quirk) -> bool {
        self.0 & Self::bit(quirk) != 0
    }

    /// The quirks it showed, each once.
    pub fn iter(self) -> impl Iterator<Item = Quirk> {
        Quirk::ALL.into_iter().filter(move |quirk| self.has(*quirk))
    }

    const fn bit(quirk: Quirk) -> u8 {
        1 << quirk as u8
    }
}
