//! The members of a chunk, or of a whole completion, that matter here.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::stream::arguments::Balance;
use crate::stream::dialect::is_failure;
use crate::stream::failure::{StreamFailure, real_error, wrap_error};
use crate::stream::lenient::{Filled, Int, Many, Maybe, Text, object};
use crate::stream::usage::{ChatUsage, Usage};

/// A chunk or a whole completion; they differ in `delta` and `message` only.
#[derive(Deserialize)]
pub(crate) struct Chunk<'a> {
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) choices: Many<Choice<'a>>,
    #[serde(default)]
    usage: Maybe<ChatUsage>,
    #[serde(borrow, default)]
    object: Text<'a>,
    #[serde(borrow, default, rename = "type")]
    kind: Text<'a>,
    #[serde(default)]
    base_resp: Maybe<BaseResp>,
    #[serde(borrow, default)]
    message: Text<'a>,
    #[serde(borrow, default)]
    msg: Text<'a>,
    #[serde(default)]
    code: Filled,
    #[serde(default)]
    detail: Filled,
    #[serde(default)]
    errors: Filled,
}

#[derive(Clone, Debug, Deserialize)]
struct BaseResp {
    #[serde(default)]
    status_code: Int,
}

impl Chunk<'_> {
    /// Its token counts.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
            .0
            .as_ref()
            .map_or_else(Usage::default, Usage::from)
    }

    /// The same for an object that should be something else than a chunk.
    pub(crate) fn foreign_error(data: &[u8]) -> Option<Bytes> {
        object::<Chunk<'_>>(data).ok()?.error_body(data)
    }

    /// What `data`, which this was read from, says went wrong. Asked before
    /// anything else: an error may well come with `choices: []`.
    pub(crate) fn error_body(&self, data: &[u8]) -> Option<Bytes> {
        let failed_inside = || {
            let status = self.base_resp.0.as_ref().map(|base| base.status_code.0);
            status.is_some_and(|code| code != Some(0))
        };
        // Without an `error` member: only where there is nothing else to read,
        // and a text alone only where there is not even a place for choices.
        let flat = || {
            let text = self
                .message
                .as_str()
                .or_else(|| self.msg.as_str())
                .is_some();
            failed_inside()
                || self.detail.0
                || self.errors.0
                || (text && (self.code.0 || !self.choices.present()))
        };
        let found = real_error(self.error).is_some()
            || self.object.as_str() == Some("error")
            || self.kind.as_str() == Some("error")
            || (self.choices.is_empty() && flat());
        found.then(|| Bytes::copy_from_slice(data))
    }
}

/// One choice.
#[derive(Deserialize)]
pub(crate) struct Choice<'a> {
    #[serde(default)]
    pub(crate) index: Int,
    #[serde(borrow, default)]
    delta: Maybe<Delta<'a>>,
    #[serde(borrow, default)]
    message: Maybe<Box<Delta<'a>>>,
    #[serde(borrow, default)]
    finish_reason: Text<'a>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) text: Filled,
}

impl<'a> Choice<'a> {
    /// What the choice adds, or the whole of it.
    pub(crate) fn delta(&self) -> Option<&Delta<'a>> {
        let whole = || self.message.0.as_deref();
        self.delta.0.as_ref().or_else(whole)
    }

    /// The failure a choice tells of itself.
    pub(crate) fn failure(&self) -> Result<(), StreamFailure> {
        if let Some(error) = real_error(self.error) {
            return Err(StreamFailure::error_event(Some(wrap_error(error))));
        }
        if self.finish_reason().is_some_and(is_failure) {
            return Err(StreamFailure::error_event(None));
        }
        Ok(())
    }

    /// The finish reason; some servers write the absence of one as a string.
    pub(crate) fn finish_reason(&self) -> Option<&str> {
        self.finish_reason.as_str().filter(|word| *word != "null")
    }
}

/// A message or a part of one.
#[derive(Deserialize)]
pub(crate) struct Delta<'a> {
    #[serde(default)]
    content: Filled,
    #[serde(default)]
    refusal: Filled,
    #[serde(default)]
    reasoning_content: Filled,
    #[serde(default)]
    reasoning: Filled,
    #[serde(default)]
    reasoning_details: Filled,
    #[serde(default)]
    thinking: Filled,
    #[serde(default)]
    audio: Filled,
    #[serde(default)]
    images: Filled,
    #[serde(borrow, default)]
    pub(crate) tool_calls: Many<Fragment<'a>>,
    #[serde(borrow, default)]
    pub(crate) function_call: Maybe<Box<Function<'a>>>,
}

impl Delta<'_> {
    /// Whether a client's user would see anything of it.
    pub(crate) fn filled(&self) -> bool {
        self.content.0
            || self.refusal.0
            || self.reasoning_content.0
            || self.reasoning.0
            || self.reasoning_details.0
            || self.thinking.0
            || self.audio.0
            || self.images.0
            || self
                .function_call
                .0
                .as_deref()
                .is_some_and(Function::filled)
            || self.tool_calls.iter().any(|(_, call)| call.filled())
    }

    /// Whether the arguments of a whole call stop in the middle.
    pub(crate) fn half_call(&self) -> bool {
        let calls = self.tool_calls.iter();
        let functions = calls
            .filter_map(|(_, call)| call.function.0.as_ref())
            .chain(self.function_call.0.as_deref());
        functions
            .filter_map(|function| function.arguments.as_str())
            .any(|arguments| {
                let mut balance = Balance::default();
                balance.feed(arguments);
                !balance.closed()
            })
    }
}

/// A tool call or a part of one.
#[derive(Deserialize)]
pub(crate) struct Fragment<'a> {
    #[serde(default)]
    pub(crate) index: Int,
    #[serde(borrow, default)]
    pub(crate) id: Text<'a>,
    #[serde(borrow, default)]
    pub(crate) function: Maybe<Function<'a>>,
    #[serde(default)]
    custom: Maybe<Custom>,
}

impl Fragment<'_> {
    /// Whether it names a tool.
    pub(crate) fn named(&self) -> bool {
        let function = self.function.0.as_ref();
        let custom = self.custom.0.as_ref();
        function.is_some_and(|function| function.name.0) || custom.is_some_and(|tool| tool.name.0)
    }

    fn filled(&self) -> bool {
        let input = self.custom.0.as_ref().is_some_and(|tool| tool.input.0);
        let function = self.function.0.as_ref().is_some_and(Function::filled);
        self.id.filled() || function || input || self.named()
    }
}

/// The name and input of a tool without a schema, or a part of them.
#[derive(Deserialize)]
struct Custom {
    #[serde(default)]
    name: Filled,
    #[serde(default)]
    input: Filled,
}

/// A tool's name and arguments, or a part of them.
#[derive(Deserialize)]
pub(crate) struct Function<'a> {
    #[serde(default)]
    name: Filled,
    #[serde(borrow, default)]
    pub(crate) arguments: Text<'a>,
}

impl Function<'_> {
    fn filled(&self) -> bool {
        self.name.0 || self.arguments.filled()
    }
}
