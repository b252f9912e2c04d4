//! Anthropic message events.

pub(crate) mod wire;

use bytes::Bytes;
use serde_json::{Value, json};

use self::wire::{Event, Piece};
use super::arguments::Balance;
use super::dialect::{
    Action, Dialect, MAX_TRACKED, Meaning, Refused, Verdict, bounded, is_failure, kind_of,
    may_be_empty, may_cut, typed_frame,
};
use super::failure::{Quirk, StreamFailure, StreamFailureKind};
use super::lenient::object;
use super::tail::InBandError;
use super::usage::{MessagesUsage, Usage};

/// Follows one stream of message events.
#[derive(Default)]
pub(crate) struct Messages {
    blocks: Vec<Block>,
    stop: Option<String>,
    usage: MessagesUsage,
    /// The `message_delta` that gave the stop reason, until something follows it.
    closing: Option<Value>,
}

/// One content block.
struct Block {
    index: u64,
    open: bool,
    /// The arguments, if it calls a tool.
    arguments: Option<Balance>,
}

impl Dialect for Messages {
    fn on_data(&mut self, name: &[u8], data: &[u8]) -> Result<Verdict, Refused> {
        if data == b"[DONE]" {
            return Ok(Verdict::drop());
        }
        let event: Event<'_> = object(data)?;
        let kind = kind_of(event.kind.as_str(), event.error, name, data)?;
        Ok(self.event(kind, &event, data)?)
    }

    fn complete(&self) -> bool {
        self.stop.is_some()
    }

    fn tool_call_open(&self) -> bool {
        let open = |block: &Block| block.open && block.arguments.is_some();
        self.half_call() || self.blocks.iter().any(open)
    }

    fn empty_ok(&self) -> bool {
        self.stop.as_deref().is_some_and(may_be_empty)
    }

    fn closing(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        if self.stop.is_none() {
            out = self.block_stops();
            out.extend(typed_frame(&json!({
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                "usage": {"output_tokens": Usage::from(&self.usage).output.unwrap_or(0)},
            })));
        }
        out.extend(typed_frame(&json!({"type": "message_stop"})));
        Some(out)
    }

    fn error_events(&self, error: &InBandError<'_>, begun: bool) -> Vec<u8> {
        let mut out = Vec::new();
        if begun {
            out = self.block_stops();
        }
        out.extend(error.messages());
        out
    }

    fn usage(&self) -> Option<Usage> {
        Usage::from(&self.usage).known()
    }

    fn finish_reason(&self) -> Option<&str> {
        self.stop.as_deref()
    }
}

impl Messages {
    fn event(
        &mut self,
        kind: &str,
        event: &Event<'_>,
        data: &[u8],
    ) -> Result<Verdict, StreamFailure> {
        let meaning = match kind {
            "ping" => Meaning::Ping,
            "message_delta" => return self.message_delta(event, data),
            "message_stop" => {
                if self.stop.is_none() && self.half_call() {
                    return Err(StreamFailure::new(StreamFailureKind::TruncatedToolCall));
                }
                self.closing = None;
                Meaning::Terminal {
                    empty_ok: self.empty_ok(),
                }
            }
            "message_start" => self.message_start(event),
            "content_block_start" => self.block_start(event),
            "content_block_delta" => self.block_delta(event),
            "content_block_stop" => {
                let index = event.index.0.unwrap_or(0);
                if let Some(block) = self.open_block(index) {
                    block.open = false;
                }
                Meaning::Quiet
            }
            _ => Meaning::Quiet,
        };
        Ok(Verdict::forward(meaning))
    }

    fn message_start(&mut self, event: &Event<'_>) -> Meaning {
        let Some(message) = &event.message.0 else {
            return Meaning::Quiet;
        };
        if let Some(usage) = &message.usage.0 {
            self.usage.update(usage);
        }
        meaning(message.content.iter().any(|(_, block)| block.filled()))
    }

    fn block_start(&mut self, event: &Event<'_>) -> Meaning {
        let Some(piece) = &event.content_block.0 else {
            return Meaning::Quiet;
        };
        let index = event.index.0.unwrap_or(0);
        if self.open_block(index).is_none() && self.blocks.len() < MAX_TRACKED {
            self.blocks.push(Block {
                index,
                open: true,
                arguments: piece.calls_tool().then(Balance::default),
            });
        }
        meaning(piece.filled())
    }

    fn block_delta(&mut self, event: &Event<'_>) -> Meaning {
        let Some(delta) = &event.delta.0 else {
            return Meaning::Quiet;
        };
        if let Some(json) = delta.partial_json.as_str() {
            let block = self.open_block(event.index.0.unwrap_or(0));
            if let Some(arguments) = block.and_then(|block| block.arguments.as_mut()) {
                arguments.feed(json);
            }
        }
        meaning(delta.filled())
    }

    fn message_delta(&mut self, event: &Event<'_>, data: &[u8]) -> Result<Verdict, StreamFailure> {
        if let Some(usage) = &event.usage.0 {
            self.usage.update(usage);
        }
        if self.stop.is_some() {
            return Ok(self.amend(data));
        }
        let Some(reason) = event.delta.0.as_ref().and_then(Piece::stop_reason) else {
            return Ok(Verdict::forward(Meaning::Quiet));
        };
        if is_failure(reason) {
            return Err(StreamFailure::error_event(None));
        }
        if !may_cut(reason) && self.half_call() {
            return Err(StreamFailure::new(StreamFailureKind::TruncatedToolCall));
        }
        self.stop = Some(bounded(reason));
        self.closing = serde_json::from_slice(data).ok();
        Ok(Verdict {
            meaning: Meaning::Quiet,
            action: Action::Hold,
            quirk: None,
        })
    }

    /// A further `message_delta` only corrects the usage of the one that waits.
    fn amend(&mut self, data: &[u8]) -> Verdict {
        let later: Option<Value> = serde_json::from_slice(data).ok();
        let usage = later.as_ref().and_then(|later| later.get("usage"));
        let mut action = Action::Drop;
        if let (Some(closing), Some(Value::Object(usage))) = (&mut self.closing, usage) {
            let merged = closing
                .as_object_mut()
                .map(|closing| closing.entry("usage").or_insert_with(|| json!({})));
            if let Some(merged) = merged {
                if !merged.is_object() {
                    *merged = json!({});
                }
                for (name, count) in usage.iter().filter(|(_, count)| !count.is_null()) {
                    if let Some(map) = merged.as_object_mut() {
                        map.insert(name.clone(), count.clone());
                    }
                }
                action = Action::Amend(Bytes::from(typed_frame(closing)));
            }
        }
        Verdict {
            meaning: Meaning::Quiet,
            action,
            quirk: Some(Quirk::RepeatedFinish),
        }
    }

    /// Whether the arguments of a tool call stop in the middle.
    fn half_call(&self) -> bool {
        let mut calls = self.blocks.iter().filter_map(|block| block.arguments);
        calls.any(|arguments| !arguments.closed())
    }

    fn open_block(&mut self, index: u64) -> Option<&mut Block> {
        self.blocks
            .iter_mut()
            .rev()
            .find(|block| block.index == index && block.open)
    }

    fn block_stops(&self) -> Vec<u8> {
        self.blocks
            .iter()
            .filter(|block| block.open)
            .flat_map(|block| {
                typed_frame(&json!({"type": "content_block_stop", "index": block.index}))
            })
            .collect()
    }
}

const fn meaning(content: bool) -> Meaning {
    if content {
        Meaning::Content
    } else {
        Meaning::Quiet
    }
}
