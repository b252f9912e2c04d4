//! The members of a message event, or of a whole message, that matter here.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::stream::lenient::{Filled, Int, Many, Maybe, Text};
use crate::stream::usage::MessagesUsage;

/// One event of a stream.
#[derive(Deserialize)]
pub(crate) struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(crate) kind: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) error: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) index: Int,
    #[serde(borrow, default)]
    pub(crate) message: Maybe<Message<'a>>,
    #[serde(borrow, default)]
    pub(crate) content_block: Maybe<Piece<'a>>,
    #[serde(borrow, default)]
    pub(crate) delta: Maybe<Piece<'a>>,
    #[serde(default)]
    pub(crate) usage: Maybe<MessagesUsage>,
}

/// A message, at its start or whole.
#[derive(Deserialize)]
pub(crate) struct Message<'a> {
    #[serde(borrow, default)]
    pub(crate) content: Many<Piece<'a>>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
    #[serde(default)]
    pub(crate) usage: Maybe<MessagesUsage>,
}

impl Message<'_> {
    /// Why it ended.
    pub(crate) fn stop_reason(&self) -> Option<&str> {
        self.stop_reason.as_str()
    }
}

/// A content block, or what an event adds to one or to the message.
#[derive(Deserialize)]
pub(crate) struct Piece<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(default)]
    text: Filled,
    #[serde(default)]
    thinking: Filled,
    #[serde(default)]
    signature: Filled,
    #[serde(borrow, default)]
    pub(crate) partial_json: Text<'a>,
    #[serde(borrow, default)]
    stop_reason: Text<'a>,
}

impl Piece<'_> {
    /// Whether a client's user would see anything of it. Kinds that are not
    /// text or thinking are content by being there.
    pub(crate) fn filled(&self) -> bool {
        match self.kind.as_str() {
            Some("text" | "text_delta") => self.text.0,
            Some("thinking" | "thinking_delta" | "signature_delta") => {
                self.thinking.0 || self.signature.0
            }
            Some("input_json_delta") => self.partial_json.filled(),
            Some(_) => true,
            None => self.text.0 || self.thinking.0 || self.partial_json.filled(),
        }
    }

    /// Whether it is a block whose input is streamed as JSON.
    pub(crate) fn calls_tool(&self) -> bool {
        self.kind
            .as_str()
            .is_some_and(|kind| kind.ends_with("tool_use"))
    }

    /// Why the message ended.
    pub(crate) fn stop_reason(&self) -> Option<&str> {
        self.stop_reason.as_str()
    }
}
