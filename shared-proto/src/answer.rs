//! What an upstream's whole answer means, and the two ways to set right an
//! answer of the other kind: [`aggregate`] makes an event stream the JSON that
//! was asked for, and the stream relay makes JSON a stream.

mod aggregate;
mod one_shot;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::protocol::Protocol;
use crate::stream::chat::wire::{Chunk, Delta};
use crate::stream::failure::{StreamFailure, StreamFailureKind, no_error, real_error};
use crate::stream::lenient::{Filled, normalise, object};
use crate::stream::messages::wire::{Event as MessagesError, Message};
use crate::stream::open::opening;
use crate::stream::responses::wire::Response;
use crate::stream::{BodyShape, ContentType, Usage, is_failure, may_be_empty, may_cut};

pub use self::aggregate::aggregate;
pub(crate) use self::one_shot::one_shot;

/// What is worth knowing about a good answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerFacts {
    /// Its token counts.
    pub usage: Option<Usage>,
    /// Why it ended, in the protocol's words, at most 64 characters.
    pub finish_reason: Option<String>,
}

/// What `body` is, whatever was asked for. An event stream in answer to a
/// request that asked for none goes through [`aggregate`].
pub fn shape(content_type: ContentType, body: &[u8]) -> BodyShape {
    opening(content_type, body).1
}

/// Judges a whole answer with status 200. `asked_max_tokens` is the output
/// limit of the request: with 1, an answer may be without content.
pub fn judge(
    protocol: Protocol,
    content_type: ContentType,
    body: &Bytes,
    asked_max_tokens: Option<u64>,
) -> Result<AnswerFacts, StreamFailure> {
    let (start, shape) = opening(content_type, body);
    match shape {
        BodyShape::Json => {}
        BodyShape::Blank => return Err(StreamFailure::new(StreamFailureKind::Empty)),
        BodyShape::Html | BodyShape::Events => {
            return Err(StreamFailure::new(StreamFailureKind::Garbage));
        }
    }
    let data = body.get(start..).unwrap_or_default().trim_ascii_end();
    let seen = match facts(protocol, data) {
        Verdict::Unreadable => match mend(data)? {
            Some(mended) => facts(protocol, &mended),
            None => Verdict::Unreadable,
        },
        verdict @ (Verdict::Seen(_) | Verdict::Failed(_)) => verdict,
    };
    match seen {
        Verdict::Failed(failure) => Err(failure),
        Verdict::Unreadable => Err(StreamFailure::new(StreamFailureKind::Garbage)),
        Verdict::Seen(seen) => {
            let reason = seen.facts.finish_reason.as_deref();
            let may_be_empty = seen.filled
                || reason.is_some_and(may_be_empty)
                || asked_max_tokens.is_some_and(|max| max <= 1);
            if !may_be_empty {
                return Err(StreamFailure::new(StreamFailureKind::Empty));
            }
            Ok(seen.facts)
        }
    }
}

/// What a first look at a well-formed answer gives.
struct Seen {
    facts: AnswerFacts,
    filled: bool,
}

enum Verdict {
    Seen(Seen),
    Failed(StreamFailure),
    Unreadable,
}

impl From<Result<Seen, StreamFailure>> for Verdict {
    fn from(result: Result<Seen, StreamFailure>) -> Self {
        result.map_or_else(Self::Failed, Self::Seen)
    }
}

fn seen(usage: Usage, reason: Option<&str>, filled: bool) -> Seen {
    let facts = AnswerFacts {
        usage: usage.known(),
        finish_reason: reason.map(|reason| reason.chars().take(64).collect()),
    };
    Seen { facts, filled }
}

/// The slow way for JSON the typed reader refused, or the verdict on what is none.
fn mend(data: &[u8]) -> Result<Option<Vec<u8>>, StreamFailure> {
    if let Some(mended) = normalise(data) {
        return Ok(Some(mended));
    }
    let broken = serde_json::from_str::<IgnoredAny>(&String::from_utf8_lossy(data));
    let cut = broken.is_err_and(|error| error.is_eof());
    Err(StreamFailure::new(if cut {
        StreamFailureKind::Truncated
    } else {
        StreamFailureKind::Garbage
    }))
}

fn facts(protocol: Protocol, data: &[u8]) -> Verdict {
    match protocol {
        Protocol::ChatCompletions => {
            object(data).map_or(Verdict::Unreadable, |answer| chat(&answer, data).into())
        }
        Protocol::Responses => object(data).map_or(Verdict::Unreadable, |answer| {
            responses(&answer, data).into()
        }),
        Protocol::Messages => match (object(data), object(data)) {
            (Ok(error), Ok(answer)) => messages(&error, &answer, data).into(),
            (Err(_), _) | (_, Err(_)) => Verdict::Unreadable,
        },
        Protocol::Embeddings => match (object(data), object(data)) {
            (Ok(error), Ok(answer)) => embeddings(&error, &answer, data).into(),
            (Err(_), _) | (_, Err(_)) => Verdict::Unreadable,
        },
    }
}

/// An object that is not an answer of the protocol at all.
fn foreign(data: &[u8]) -> StreamFailure {
    Chunk::foreign_error(data).map_or_else(
        || StreamFailure::new(StreamFailureKind::Garbage),
        |body| StreamFailure::error_event(Some(body)),
    )
}

fn chat(answer: &Chunk<'_>, data: &[u8]) -> Result<Seen, StreamFailure> {
    if let Some(body) = answer.error_body(data) {
        return Err(StreamFailure::error_event(Some(body)));
    }
    if !answer.choices.present() {
        return Err(StreamFailure::new(StreamFailureKind::Garbage));
    }
    let mut filled = false;
    let mut first = None;
    for (_, choice) in answer.choices.iter() {
        choice.failure()?;
        let reason = choice.finish_reason();
        let delta = choice.delta();
        filled |= choice.text.0 || delta.is_some_and(Delta::filled);
        if !reason.is_some_and(may_cut) && delta.is_some_and(Delta::half_call) {
            return Err(StreamFailure::new(StreamFailureKind::TruncatedToolCall));
        }
        first = first.or(reason);
    }
    Ok(seen(answer.usage(), first, filled))
}

fn responses(answer: &Response<'_>, data: &[u8]) -> Result<Seen, StreamFailure> {
    if real_error(answer.error).is_some() {
        return Err(StreamFailure::error_event(Some(Bytes::copy_from_slice(
            data,
        ))));
    }
    if answer.failed() {
        return Err(StreamFailure::error_event(None));
    }
    if !answer.output.present() && answer.status.as_str().is_none() {
        return Err(foreign(data));
    }
    let usage = answer
        .usage
        .0
        .as_ref()
        .map_or_else(Usage::default, Usage::from);
    let status = answer.status.as_str();
    // A background response has nothing to show yet, and that is fine.
    let waiting = matches!(status, Some("queued" | "in_progress"));
    let cut = status == Some("incomplete") || answer.incomplete_reason().is_some();
    let half = answer.output.iter().any(|(_, item)| item.half_call());
    if half && !cut && !waiting {
        return Err(StreamFailure::new(StreamFailureKind::TruncatedToolCall));
    }
    let filled = answer.has_output() || waiting || cut;
    Ok(seen(usage, answer.incomplete_reason().or(status), filled))
}

fn messages(
    error: &MessagesError<'_>,
    answer: &Message<'_>,
    data: &[u8],
) -> Result<Seen, StreamFailure> {
    no_error(error.kind.as_str(), error.error, data)?;
    if !answer.content.present() {
        return Err(foreign(data));
    }
    if answer.stop_reason().is_some_and(is_failure) {
        return Err(StreamFailure::error_event(None));
    }
    let usage = answer
        .usage
        .0
        .as_ref()
        .map_or_else(Usage::default, Usage::from);
    let filled = answer.content.iter().any(|(_, block)| block.filled());
    Ok(seen(usage, answer.stop_reason(), filled))
}

#[derive(Deserialize)]
struct Vectors {
    data: Option<Filled>,
}

fn embeddings(error: &Chunk<'_>, answer: &Vectors, data: &[u8]) -> Result<Seen, StreamFailure> {
    if let Some(body) = error.error_body(data) {
        return Err(StreamFailure::error_event(Some(body)));
    }
    let vectors = answer
        .data
        .ok_or_else(|| StreamFailure::new(StreamFailureKind::Garbage))?;
    Ok(seen(error.usage(), None, vectors.0))
}

#[cfg(test)]
mod tests;
