//! What an upstream's stream means: the relay of one attempt between two ends
//! that speak the same protocol.
//!
//! ```text
//! Opening -> Peeking -> Committed -> Terminal
//! ```
//!
//! *Opening*: the first bytes decide whether this is an event stream, a JSON
//! body or a web page, whatever was asked for. *Peeking*: handshake events are
//! withheld, so that the attempt can still be replaced and the client never
//! know. *Committed*: from the first content on, events go through byte for
//! byte, and a failure can only be told in-band. *Terminal*: the closing mark
//! went through; nothing after it counts.
//!
//! The relay looks at every event for four things: an error, content, a finish
//! reason, and half a tool call. It mends what a client would stumble over
//! (fragments without an index, a finish told twice, a missing mark) and
//! leaves everything else as it came.

mod arguments;
pub(crate) mod chat;
mod dialect;
pub(crate) mod failure;
pub(crate) mod lenient;
pub(crate) mod messages;
pub(crate) mod open;
mod output;
mod relay;
pub(crate) mod responses;
mod tail;
pub(crate) mod usage;

pub(crate) use self::dialect::{frame, is_failure, may_be_empty, may_cut, typed_frame};
pub use self::failure::{Quirk, Quirks, StreamFailure, StreamFailureKind};
pub use self::open::{BodyShape, ContentType};
pub use self::relay::StreamRelay;
pub use self::tail::InBandError;
pub use self::usage::Usage;

use crate::sse::MAX_EVENT_BYTES;

/// What is to be known about an attempt before its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayOptions {
    /// What the response's headers promised.
    pub content_type: ContentType,
    /// Whether the provider is known never to send a finish reason, so that a
    /// clean end after content counts as complete. No effect on responses,
    /// which can't be closed without their terminal event.
    pub lenient_end: bool,
    /// Handshake events are withheld up to this many bytes; beyond, the stream
    /// is committed as it is.
    pub holdback_bytes: usize,
    /// Bound of one event, and of a JSON body in place of a stream, in bytes.
    pub event_bytes: usize,
    /// The output limit the client asked for; with 1 an answer may be empty.
    pub asked_max_tokens: Option<u64>,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            content_type: ContentType::Unknown,
            lenient_end: false,
            holdback_bytes: 64 * 1024,
            event_bytes: MAX_EVENT_BYTES,
            asked_max_tokens: None,
        }
    }
}

/// What a chunk brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Data events in it that are not mere signs of life.
    pub data_events: u32,
    /// The client may be given output from now on, or already was.
    pub committed: bool,
    /// The answer is complete; reading on is of no use.
    pub terminal: bool,
}

/// How the upstream's bytes came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamEnd {
    /// As the transport defines it.
    Clean,
    /// By a reset, an early end of a chunked body, a broken compression.
    Cut,
}

#[cfg(test)]
mod tests;
