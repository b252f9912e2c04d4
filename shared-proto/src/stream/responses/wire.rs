//! The members of a response event, or of a whole response, that matter here.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::track::Part;
use crate::stream::lenient::{Filled, Int, Many, Maybe, Text};
use crate::stream::usage::ResponsesUsage;

/// One event of a stream.
#[derive(Deserialize)]
pub(crate) struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    pub(crate) kind: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) delta: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) item_id: Text<'a>,
    #[serde(default)]
    pub(crate) output_index: Int,
    #[serde(default)]
    pub(crate) content_index: Int,
    #[serde(default)]
    pub(crate) summary_index: Int,
    #[serde(borrow, default)]
    pub(crate) sequence_number: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) item: Maybe<Item<'a>>,
    #[serde(borrow, default)]
    pub(crate) part: Maybe<Piece<'a>>,
    #[serde(borrow, default)]
    pub(crate) text: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) arguments: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) refusal: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) input: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) response: Maybe<Response<'a>>,
}

/// A response, at its start or whole.
#[derive(Deserialize)]
pub(crate) struct Response<'a> {
    #[serde(borrow, default)]
    pub(crate) id: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) model: Text<'a>,
    #[serde(default)]
    pub(crate) created_at: Int,
    #[serde(borrow, default)]
    pub(crate) status: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    incomplete_details: Maybe<Incomplete<'a>>,
    #[serde(borrow, default)]
    pub(crate) output: Many<Item<'a>>,
    #[serde(default)]
    pub(crate) usage: Maybe<ResponsesUsage>,
}

#[derive(Deserialize)]
struct Incomplete<'a> {
    #[serde(borrow, default)]
    reason: Text<'a>,
}

impl Response<'_> {
    /// Whether it says of itself that it failed.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.status.as_str(), Some("failed" | "cancelled"))
    }

    /// Why it is not complete.
    pub(crate) fn incomplete_reason(&self) -> Option<&str> {
        let details = self.incomplete_details.0.as_ref();
        details.and_then(|details| details.reason.as_str())
    }

    /// Whether any item holds something.
    pub(crate) fn has_output(&self) -> bool {
        self.output.iter().any(|(_, item)| item.filled())
    }
}

/// An output item.
#[derive(Deserialize)]
pub(crate) struct Item<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    content: Many<Piece<'a>>,
    #[serde(default)]
    summary: Filled,
    #[serde(default)]
    encrypted_content: Filled,
    #[serde(borrow, default)]
    pub(crate) arguments: Text<'a>,
    #[serde(borrow, default)]
    input: Text<'a>,
}

/// One part of an item's content or of a summary.
#[derive(Deserialize)]
pub(crate) struct Piece<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(default)]
    text: Filled,
    #[serde(default)]
    refusal: Filled,
}

impl Piece<'_> {
    /// The kind of text that such a part streams, unless it came filled.
    pub(crate) fn streamed_part(&self) -> Option<Part> {
        let part = match self.kind.as_str() {
            Some("output_text") => Part::Text,
            Some("refusal") => Part::Refusal,
            Some("summary_text") => Part::Summary,
            Some("reasoning_text") => Part::Reasoning,
            Some(_) | None => return None,
        };
        (!self.filled()).then_some(part)
    }

    /// Whether a client's user would see anything of it.
    pub(crate) fn filled(&self) -> bool {
        match self.kind.as_str() {
            Some("output_text" | "reasoning_text" | "summary_text" | "text") | None => self.text.0,
            Some("refusal") => self.refusal.0,
            Some(_) => true,
        }
    }
}

impl Item<'_> {
    /// Its id.
    pub(crate) fn id(&self) -> Option<&str> {
        self.id.as_str()
    }

    /// Whether a client's user would see anything of it. Kinds that are not
    /// text or reasoning are content by being there.
    pub(crate) fn filled(&self) -> bool {
        match self.kind.as_str() {
            Some("message") => self.content.iter().any(|(_, part)| part.filled()),
            Some("reasoning") => {
                self.summary.0
                    || self.encrypted_content.0
                    || self.content.iter().any(|(_, part)| part.filled())
            }
            Some(_) => true,
            None => false,
        }
    }

    /// The kind of text such an item streams besides content parts.
    pub(crate) fn streamed_part(&self) -> Option<Part> {
        match self.kind.as_str() {
            Some("function_call") => Some(Part::FunctionArguments),
            Some("mcp_call") => Some(Part::McpArguments),
            Some("custom_tool_call") => Some(Part::ToolInput),
            Some(_) | None => None,
        }
    }

    /// That text, as far as the item holds it.
    pub(crate) fn streamed_text(&self) -> Option<&str> {
        self.arguments.as_str().or_else(|| self.input.as_str())
    }

    /// Whether it is a function call whose arguments stop in the middle.
    pub(crate) fn half_call(&self) -> bool {
        let mut balance = crate::stream::arguments::Balance::default();
        balance.feed(self.arguments.as_str().unwrap_or_default());
        self.streamed_part().is_some_and(Part::is_json) && !balance.closed()
    }
}
