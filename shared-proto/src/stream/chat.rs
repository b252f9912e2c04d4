//! Chat completion chunks.

pub(crate) mod tools;
pub(crate) mod wire;

use bytes::Bytes;
use serde_json::Value;

use self::tools::{Calls, Place};
use self::wire::{Choice, Chunk, Delta};
use super::dialect::{
    Action, Dialect, Meaning, Refused, Verdict, bounded, frame, may_be_empty, may_cut,
};
use super::failure::{Quirk, StreamFailure, StreamFailureKind};
use super::lenient::object;
use super::tail::InBandError;
use super::usage::Usage;

/// Follows one stream of chat completion chunks.
#[derive(Default)]
pub(crate) struct Chat {
    /// Choices that appeared, a bit each; those from 63 on share the last bit.
    seen: u64,
    /// Choices with a finish reason.
    finished: u64,
    finish: Option<String>,
    usage: Usage,
    calls: Calls,
}

/// One change to make to a chunk before it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fix {
    /// A tool call fragment gets its true index, and its first id if it brought another.
    Fragment {
        choice: usize,
        call: usize,
        index: u64,
        id: Option<String>,
    },
    /// A finish reason that was told before goes; the choice too if it brings nothing else.
    Finish { choice: usize, keep: bool },
}

impl Dialect for Chat {
    fn on_data(&mut self, _name: &[u8], data: &[u8]) -> Result<Verdict, Refused> {
        if data == b"[DONE]" {
            return Ok(self.done()?);
        }
        let chunk: Chunk<'_> = object(data)?;
        Ok(self.chunk(&chunk, data)?)
    }

    fn complete(&self) -> bool {
        self.finished != 0 && self.seen & !self.finished == 0
    }

    fn tool_call_open(&self) -> bool {
        self.calls.any_open(self.finished, true)
    }

    fn empty_ok(&self) -> bool {
        self.finish.as_deref().is_some_and(may_be_empty)
    }

    fn closing(&self) -> Option<Vec<u8>> {
        Some(frame(b"", b"[DONE]"))
    }

    fn error_events(&self, error: &InBandError<'_>, _begun: bool) -> Vec<u8> {
        error.chat()
    }

    fn usage(&self) -> Option<Usage> {
        self.usage.known()
    }

    fn finish_reason(&self) -> Option<&str> {
        self.finish.as_deref()
    }
}

impl Chat {
    fn done(&self) -> Result<Verdict, StreamFailure> {
        if self.calls.any_open(self.finished, false) {
            return Err(StreamFailure::new(StreamFailureKind::TruncatedToolCall));
        }
        Ok(Verdict::forward(Meaning::Terminal {
            empty_ok: self.empty_ok(),
        }))
    }

    fn chunk(&mut self, chunk: &Chunk<'_>, data: &[u8]) -> Result<Verdict, StreamFailure> {
        self.usage.update(chunk.usage());
        if let Some(body) = chunk.error_body(data) {
            return Err(StreamFailure::error_event(Some(body)));
        }
        let mut fixes = Vec::new();
        let mut content = false;
        for (position, choice) in chunk.choices.iter() {
            content |= self.choice(position, choice, &mut fixes)?;
        }
        let meaning = if content {
            Meaning::Content
        } else {
            Meaning::Quiet
        };
        Ok(verdict(meaning, &fixes, data))
    }

    /// Takes one choice's part of a chunk; whether it holds content.
    fn choice(
        &mut self,
        position: usize,
        choice: &Choice<'_>,
        fixes: &mut Vec<Fix>,
    ) -> Result<bool, StreamFailure> {
        let index = choice.index.0.unwrap_or(0);
        let bit = bit(index);
        self.seen |= bit;
        choice.failure()?;
        let mut content = choice.text.0;
        if let Some(delta) = choice.delta() {
            content |= delta.filled();
            self.fragments(Place { position, index }, delta, fixes);
        }
        let Some(reason) = choice.finish_reason() else {
            return Ok(content);
        };
        if self.finished & bit != 0 {
            fixes.push(Fix::Finish {
                choice: position,
                keep: content,
            });
        } else if !may_cut(reason) && self.calls.open_in(index) {
            return Err(StreamFailure::new(StreamFailureKind::TruncatedToolCall));
        } else {
            self.finished |= bit;
            self.finish.get_or_insert_with(|| bounded(reason));
        }
        Ok(content)
    }

    fn fragments(&mut self, place: Place, delta: &Delta<'_>, fixes: &mut Vec<Fix>) {
        let alone = delta.tool_calls.len() == 1;
        for (position, fragment) in delta.tool_calls.iter() {
            let Some(call) = self.calls.resolve(place.index, position, alone, fragment) else {
                continue;
            };
            let changed = fragment
                .id
                .as_str()
                .filter(|id| call.id.as_deref() != Some(id));
            if fragment.index.0 != Some(call.index) || changed.is_some() {
                fixes.push(Fix::Fragment {
                    choice: place.position,
                    call: position,
                    index: call.index,
                    id: changed.and_then(|_| call.id.clone()),
                });
            }
        }
        if let Some(function) = &delta.function_call.0 {
            self.calls.legacy(place.index, function);
        }
    }
}

/// The bit of a choice.
pub(crate) fn bit(index: u64) -> u64 {
    1_u64 << index.min(63)
}

fn verdict(meaning: Meaning, fixes: &[Fix], data: &[u8]) -> Verdict {
    let quirk = match fixes.last() {
        None => return Verdict::forward(meaning),
        Some(Fix::Fragment { .. }) => Quirk::ToolFragmentRepaired,
        Some(Fix::Finish { .. }) => Quirk::RepeatedFinish,
    };
    let action = apply(fixes, data).map_or(Action::Drop, |fixed| {
        Action::Replace(Bytes::from(frame(b"", &fixed)))
    });
    Verdict {
        meaning,
        action,
        quirk: Some(quirk),
    }
}

/// The chunk with all `fixes` made; `None` if nothing worth sending is left.
fn apply(fixes: &[Fix], data: &[u8]) -> Option<Vec<u8>> {
    let mut chunk: Value = serde_json::from_slice(data).ok()?;
    let choices = chunk.get_mut("choices")?.as_array_mut()?;
    for fix in fixes {
        match fix {
            Fix::Fragment {
                choice,
                call,
                index,
                id,
            } => {
                let fragment = choices
                    .get_mut(*choice)
                    .and_then(|choice| choice.get_mut("delta"))
                    .and_then(|delta| delta.get_mut("tool_calls"))
                    .and_then(|calls| calls.get_mut(*call))
                    .and_then(Value::as_object_mut);
                if let Some(fragment) = fragment {
                    fragment.insert("index".to_owned(), Value::from(*index));
                    if let Some(id) = id {
                        fragment.insert("id".to_owned(), Value::from(id.as_str()));
                    }
                }
            }
            Fix::Finish { choice, keep } => {
                if let Some(slot) = choices.get_mut(*choice) {
                    match slot.get_mut("finish_reason") {
                        Some(reason) if *keep => *reason = Value::Null,
                        Some(_) | None => *slot = Value::Null,
                    }
                }
            }
        }
    }
    choices.retain(|choice| !choice.is_null());
    let empty = choices.is_empty();
    let usage = chunk.get("usage").is_some_and(|usage| !usage.is_null());
    (!empty || usage).then(|| chunk.to_string().into_bytes())
}
