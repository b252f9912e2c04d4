//! What the relay asks of each protocol.

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

use super::chat::wire::Chunk;
use super::failure::{Quirk, StreamFailure, no_error};
use super::lenient::Unreadable;
use super::tail::InBandError;
use super::usage::Usage;

/// What one data event means for the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// A sign of life, no progress.
    Ping,
    /// Progress without content: handshakes, closings, usage.
    Quiet,
    /// Something the client's user would see.
    Content,
    /// The protocol's closing mark; whether an answer without content is fine.
    Terminal { empty_ok: bool },
}

/// What becomes of its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// They go on as they are.
    Forward,
    /// They don't.
    Drop,
    /// These framed events go in their place.
    Replace(Bytes),
    /// They wait for the next event, which may correct them.
    Hold,
    /// These framed bytes take the place of those that wait, if any do.
    Amend(Bytes),
}

/// Meaning and fate of one data event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) meaning: Meaning,
    pub(crate) action: Action,
    pub(crate) quirk: Option<Quirk>,
}

impl Verdict {
    /// The event goes on as it is.
    pub(crate) const fn forward(meaning: Meaning) -> Self {
        Self {
            meaning,
            action: Action::Forward,
            quirk: None,
        }
    }

    /// The event is left out and means nothing.
    pub(crate) const fn drop() -> Self {
        Self {
            meaning: Meaning::Quiet,
            action: Action::Drop,
            quirk: None,
        }
    }
}

/// Why there is no verdict.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The data has to be normalised first; nothing was changed.
    Unreadable,
    /// The attempt failed.
    Failed(StreamFailure),
}

impl From<Unreadable> for Refused {
    fn from(Unreadable: Unreadable) -> Self {
        Self::Unreadable
    }
}

impl From<StreamFailure> for Refused {
    fn from(failure: StreamFailure) -> Self {
        Self::Failed(failure)
    }
}

/// One protocol's knowledge of its own stream.
pub(crate) trait Dialect: Send {
    /// Judges one data event. `data` is trimmed and not empty.
    fn on_data(&mut self, name: &[u8], data: &[u8]) -> Result<Verdict, Refused>;

    /// Whether the answer is known to be complete, closing mark or not.
    fn complete(&self) -> bool;

    /// Whether a tool call has been begun and not finished.
    fn tool_call_open(&self) -> bool;

    /// Whether the finish reason explains an answer without content.
    fn empty_ok(&self) -> bool;

    /// Closing events to add after an end that counts as complete. `None`:
    /// without a finish reason this protocol can't be closed.
    fn closing(&self) -> Option<Vec<u8>>;

    /// The events that end a stream with an error; `begun`: the client has seen
    /// what was forwarded.
    fn error_events(&self, error: &InBandError<'_>, begun: bool) -> Vec<u8>;

    /// Token counts seen so far.
    fn usage(&self) -> Option<Usage>;

    /// The first finish reason.
    fn finish_reason(&self) -> Option<&str>;
}

/// Most tool calls, blocks or items one answer is followed in; further ones
/// pass unexamined.
pub(crate) const MAX_TRACKED: usize = 1024;

/// One event in the plain framing: `event:` where there is a name, `data:` for each line.
pub(crate) fn frame(name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len().saturating_add(name.len()).saturating_add(32));
    if !name.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name);
        out.push(b'\n');
    }
    for line in data.split(|byte| *byte == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.push(b'\n');
    out
}

/// An event named by its own `type`.
pub(crate) fn typed_frame(value: &Value) -> Vec<u8> {
    let name = value
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    frame(name.as_bytes(), value.to_string().as_bytes())
}

/// What kind of event `data` is, by its own `type` (`kind`) or the event's
/// name. Fails with the error that it tells of, be it that of another protocol.
pub(crate) fn kind_of<'a>(
    kind: Option<&'a str>,
    error: Option<&RawValue>,
    name: &'a [u8],
    data: &[u8],
) -> Result<&'a str, StreamFailure> {
    no_error(kind, error, data)?;
    let kind = kind
        .or_else(|| std::str::from_utf8(name).ok())
        .unwrap_or_default();
    if kind.is_empty()
        && let Some(body) = Chunk::foreign_error(data)
    {
        return Err(StreamFailure::error_event(Some(body)));
    }
    Ok(kind)
}

/// At most 64 characters of a finish reason.
pub(crate) fn bounded(reason: &str) -> String {
    reason.chars().take(64).collect()
}

/// Whether a finish reason is another way to say that the answer failed.
pub(crate) fn is_failure(reason: &str) -> bool {
    const WORDS: [&str; 7] = [
        "error",
        "network_error",
        "abort",
        "insufficient_system_resource",
        "malformed_function_call",
        "unexpected_tool_call",
        "too_many_tool_calls",
    ];
    WORDS.iter().any(|word| reason.eq_ignore_ascii_case(word))
}

/// Whether an answer that ended for this reason may stop inside a tool call.
pub(crate) fn may_cut(reason: &str) -> bool {
    const WORDS: [&str; 9] = [
        "length",
        "max_tokens",
        "max_output_tokens",
        "model_context_window_exceeded",
        "model_length",
        "content_filter",
        "refusal",
        "safety",
        "sensitive",
    ];
    WORDS.iter().any(|word| reason.eq_ignore_ascii_case(word))
}

/// Whether an answer that ended for this reason may be without content.
pub(crate) fn may_be_empty(reason: &str) -> bool {
    const WORDS: [&str; 6] = [
        "tool_calls",
        "tool_use",
        "tool",
        "function_call",
        "pause_turn",
        "stop_sequence",
    ];
    may_cut(reason) || WORDS.iter().any(|word| reason.eq_ignore_ascii_case(word))
}
