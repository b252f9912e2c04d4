//! Responses API events.

pub(crate) mod track;
pub(crate) mod wire;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use self::track::{Key, Part, Tracks};
use self::wire::{Event, Item, Piece, Response};
use super::dialect::{
    Action, Dialect, Meaning, Refused, Verdict, bounded, frame, kind_of, may_be_empty, typed_frame,
};
use super::failure::{Quirk, StreamFailure, StreamFailureKind, real_error, wrap_error};
use super::lenient::object;
use super::tail::InBandError;
use super::usage::Usage;

/// Follows one stream of response events.
#[derive(Default)]
pub(crate) struct Responses {
    tracks: Tracks,
    identity: Option<Identity>,
    /// One above the last sequence number the client was given.
    next_sequence: u64,
    /// Events that were put in, by which later sequence numbers move.
    inserted: u64,
    finish: Option<String>,
    usage: Usage,
}

/// What a response is called, for the event that ends it with an error.
#[derive(Clone, Debug)]
struct Identity {
    id: String,
    model: Option<String>,
    created_at: Option<u64>,
}

impl Dialect for Responses {
    fn on_data(&mut self, name: &[u8], data: &[u8]) -> Result<Verdict, Refused> {
        if data == b"[DONE]" {
            return Ok(Verdict::drop());
        }
        let event: Event<'_> = object(data)?;
        let kind = kind_of(event.kind.as_str(), event.error, name, data)?;
        let mut verdict = self.event(kind, &event)?;
        if let Some(sequence) = event.sequence_number {
            self.renumber(&mut verdict, sequence, name, data);
        }
        Ok(verdict)
    }

    fn complete(&self) -> bool {
        false // nothing but the terminal event ends a response
    }

    fn tool_call_open(&self) -> bool {
        self.tracks.any_call_open()
    }

    fn empty_ok(&self) -> bool {
        self.finish.as_deref().is_some_and(may_be_empty)
    }

    fn closing(&self) -> Option<Vec<u8>> {
        None
    }

    fn error_events(&self, error: &InBandError<'_>, begun: bool) -> Vec<u8> {
        let identity = self.identity.as_ref();
        let mut response = json!({
            "id": identity.map_or("resp_failed", |identity| identity.id.as_str()),
            "object": "response",
            "created_at": identity.and_then(|identity| identity.created_at).unwrap_or(0),
            "status": "failed",
            "error": error.responses(),
            "incomplete_details": null,
            "instructions": null,
            "metadata": {},
            "model": identity.and_then(|identity| identity.model.as_deref()),
            "output": [],
            "parallel_tool_calls": true,
            "temperature": null,
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "usage": null,
        });
        if let (Some(id), Some(Value::Object(metadata))) =
            (error.request_id, response.get_mut("metadata"))
        {
            metadata.insert("request_id".to_owned(), Value::from(id));
        }
        typed_frame(&json!({
            "type": "response.failed",
            "sequence_number": if begun { self.next_sequence } else { 0 },
            "response": response,
        }))
    }

    fn usage(&self) -> Option<Usage> {
        self.usage.known()
    }

    fn finish_reason(&self) -> Option<&str> {
        self.finish.as_deref()
    }
}

impl Responses {
    fn event(&mut self, kind: &str, event: &Event<'_>) -> Result<Verdict, StreamFailure> {
        if let Some(response) = &event.response.0 {
            self.response(response)?;
        }
        let verdict = match kind {
            "ping" | "keepalive" | "response.ping" | "response.keepalive"
            | "response.heartbeat" => Verdict::forward(Meaning::Ping),
            "response.failed" | "response.cancelled" => {
                return Err(StreamFailure::error_event(None));
            }
            "response.completed" | "response.incomplete" | "response.done" => {
                self.terminal(kind, event.response.0.as_ref())?
            }
            "response.output_item.added" => self.item_added(event),
            "response.output_item.done" => self.item_done(event),
            "response.content_part.added" | "response.reasoning_summary_part.added" => {
                self.part_added(event)
            }
            _ => match kind.rsplit_once('.') {
                Some((stem, "delta")) => self.delta(stem, event),
                Some((stem, "done")) => self.done(stem, event),
                Some(_) | None => Verdict::forward(Meaning::Quiet),
            },
        };
        Ok(verdict)
    }

    fn response(&mut self, response: &Response<'_>) -> Result<(), StreamFailure> {
        if let Some(usage) = &response.usage.0 {
            self.usage.update(usage.into());
        }
        if let Some(error) = real_error(response.error) {
            return Err(StreamFailure::error_event(Some(wrap_error(error))));
        }
        if let (None, Some(id)) = (&self.identity, response.id.as_str()) {
            self.identity = Some(Identity {
                id: id.chars().take(256).collect(),
                model: response
                    .model
                    .as_str()
                    .map(|model| model.chars().take(256).collect()),
                created_at: response.created_at.0,
            });
        }
        Ok(())
    }

    fn terminal(
        &mut self,
        kind: &str,
        response: Option<&Response<'_>>,
    ) -> Result<Verdict, StreamFailure> {
        if response.is_some_and(Response::failed) {
            return Err(StreamFailure::error_event(None));
        }
        let cut = response.and_then(Response::incomplete_reason);
        let incomplete = kind == "response.incomplete" || cut.is_some();
        let word = cut.unwrap_or(if incomplete {
            "incomplete"
        } else {
            "completed"
        });
        if !incomplete && self.tracks.any_half_call() {
            return Err(StreamFailure::new(StreamFailureKind::TruncatedToolCall));
        }
        self.finish = Some(bounded(word));
        let filled = response.is_some_and(Response::has_output);
        Ok(Verdict::forward(Meaning::Terminal {
            empty_ok: filled || incomplete,
        }))
    }

    fn item_added(&mut self, event: &Event<'_>) -> Verdict {
        let Some(item) = &event.item.0 else {
            return Verdict::forward(Meaning::Quiet);
        };
        if let Some(part) = item.streamed_part() {
            let key = Key::of_item(event, part);
            self.tracks.begin(key);
        }
        quiet_unless(item.filled())
    }

    fn part_added(&mut self, event: &Event<'_>) -> Verdict {
        let Some(piece) = &event.part.0 else {
            return Verdict::forward(Meaning::Quiet);
        };
        if let Some(part) = piece.streamed_part() {
            self.tracks.begin(Key::of_event(event, part));
        }
        quiet_unless(piece.filled())
    }

    fn item_done(&mut self, event: &Event<'_>) -> Verdict {
        let Some(item) = &event.item.0 else {
            return Verdict::forward(Meaning::Quiet);
        };
        let mut verdict = quiet_unless(item.filled());
        if let Some(part) = item.streamed_part() {
            let key = Key::of_item(event, part);
            if let Some(missing) = self.tracks.finish(&key, item.streamed_text()) {
                verdict = self.insert_delta(part, event, missing);
            }
            self.tracks.close(&key);
        }
        verdict
    }

    fn delta(&mut self, stem: &str, event: &Event<'_>) -> Verdict {
        if let (Some(part), Some(text)) = (Part::of_stem(stem), event.delta.as_str()) {
            self.tracks.feed(Key::of_event(event, part), text);
        }
        quiet_unless(event.delta.filled())
    }

    fn done(&mut self, stem: &str, event: &Event<'_>) -> Verdict {
        let Some(part) = Part::of_stem(stem) else {
            return quiet_unless(event.part.0.as_ref().is_some_and(Piece::filled));
        };
        let text = part.whole_text(event);
        let missing = self.tracks.finish(&Key::of_event(event, part), text);
        match missing {
            Some(missing) => self.insert_delta(part, event, missing),
            None => quiet_unless(text.is_some()),
        }
    }

    /// Tells what a closing event adds as one more delta in front of it.
    fn insert_delta(&mut self, part: Part, event: &Event<'_>, missing: &str) -> Verdict {
        let mut delta = json!({"type": format!("{}.delta", part.stem()), "delta": missing});
        let item_id = event
            .item_id
            .as_str()
            .or_else(|| event.item.0.as_ref().and_then(Item::id));
        let members = [
            ("item_id", item_id.map(Value::from)),
            ("output_index", event.output_index.0.map(Value::from)),
            ("content_index", event.content_index.0.map(Value::from)),
            ("summary_index", event.summary_index.0.map(Value::from)),
            (
                "sequence_number",
                event
                    .sequence_number
                    .and_then(number)
                    .map(|number| Value::from(number.saturating_add(self.inserted))),
            ),
        ];
        if let Value::Object(map) = &mut delta {
            for (name, value) in members {
                if let Some(value) = value {
                    map.insert(name.to_owned(), value);
                }
            }
        }
        self.inserted = self.inserted.saturating_add(1);
        Verdict {
            meaning: Meaning::Content,
            action: Action::Replace(Bytes::from(typed_frame(&delta))),
            quirk: Some(Quirk::LateContent),
        }
    }

    /// Keeps the sequence without gaps or repeats behind an inserted event.
    fn renumber(&mut self, verdict: &mut Verdict, sequence: &RawValue, name: &[u8], data: &[u8]) {
        let Some(number) = number(sequence) else {
            return;
        };
        let moved = number.saturating_add(self.inserted);
        self.next_sequence = self.next_sequence.max(moved.saturating_add(1));
        if self.inserted == 0 {
            return;
        }
        let start = (sequence.get().as_ptr() as usize).wrapping_sub(data.as_ptr() as usize);
        let (Some(head), Some(tail)) = (
            data.get(..start),
            data.get(start.wrapping_add(sequence.get().len())..),
        ) else {
            return;
        };
        let renumbered = [head, moved.to_string().as_bytes(), tail].concat();
        let framed = frame(name, &renumbered);
        verdict.action = match std::mem::replace(&mut verdict.action, Action::Drop) {
            Action::Replace(inserted) => Action::Replace([&inserted[..], &framed].concat().into()),
            Action::Forward => Action::Replace(framed.into()),
            other @ (Action::Drop | Action::Hold | Action::Amend(_)) => other,
        };
    }
}

fn number(raw: &RawValue) -> Option<u64> {
    raw.get().parse().ok()
}

fn quiet_unless(content: bool) -> Verdict {
    Verdict::forward(if content {
        Meaning::Content
    } else {
        Meaning::Quiet
    })
}
