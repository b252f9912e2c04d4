//! What a request's session is called: the first place of an ordered list that
//! says it, and the first user's text where none does.

use std::borrow::Cow;

use actix_web::http::header::HeaderMap;
use serde::Deserialize;
use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use shared_proto::protocol::Protocol;

use super::scan;

/// Headers that name a session, in their order.
const HEADERS: [&str; 3] = ["x-codex-session-id", "x-session-id", "x-omniroute-session"];
/// Characters of the first user's text that tell sessions apart.
const TEXT_CHARS: usize = 4096;

/// The name of the session that a request of `protocol` belongs to. It is never
/// stored or sent on: only its hash is.
pub(crate) fn session(protocol: Protocol, headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let of_headers = HEADERS.iter().find_map(|name| {
        let value = String::from_utf8_lossy(headers.get(*name)?.as_bytes());
        named(&value)
    });
    of_headers.or_else(|| of_body(protocol, body))
}

/// What is there, without the white space around it.
fn named(text: &str) -> Option<String> {
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The parts of a body that may say it.
#[derive(Default, Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    conversation_id: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_cache_key: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
    #[serde(borrow, rename = "sessionId")]
    camel: Option<&'a RawValue>,
}

/// The parts of nearly every body, for a fraction of the time.
fn quickly(body: &[u8]) -> Option<Parts<'_>> {
    let names = [
        "metadata",
        "conversation_id",
        "session_id",
        "prompt_cache_key",
        "messages",
        "input",
    ];
    let places = scan::members(body, names)?;
    let [
        metadata,
        conversation_id,
        session_id,
        prompt_cache_key,
        messages,
        input,
    ] = places.map(|place| serde_json::from_slice(body.get(place?)?).ok());
    Some(Parts {
        metadata,
        conversation_id,
        session_id,
        prompt_cache_key,
        messages,
        input,
    })
}

fn of_body(protocol: Protocol, body: &[u8]) -> Option<String> {
    let parts = quickly(body).or_else(|| serde_json::from_slice(body).ok())?;
    let metadata = parts.metadata.map(RawValue::get).unwrap_or_default();
    let metadata: Metadata<'_> = serde_json::from_str(metadata).unwrap_or_default();
    let places = [
        metadata.session_id,
        metadata.camel,
        parts.conversation_id,
        parts.session_id,
        parts.prompt_cache_key,
    ];
    let said = places
        .into_iter()
        .flatten()
        .find_map(|raw| named(&text(raw)?));
    said.or_else(|| {
        let text = first_text(protocol, &parts)?;
        let end = text.char_indices().nth(TEXT_CHARS).map(|(at, _)| at);
        let start = text.get(..end.unwrap_or(text.len()))?;
        let mut name = String::from("input:sha256:");
        for byte in Sha256::digest(start) {
            use std::fmt::Write as _;
            // Writing to a String does not fail.
            write!(name, "{byte:02x}").ok();
        }
        Some(name)
    })
}

fn first_text<'a>(protocol: Protocol, parts: &Parts<'a>) -> Option<Cow<'a, str>> {
    match protocol {
        Protocol::Responses => {
            let input = parts.input?;
            text(input).or_else(|| first(input, |item| text_of(item).map(Some)).flatten())
        }
        Protocol::ChatCompletions | Protocol::Messages => first_of_user(parts.messages?),
        // Texts to embed are no conversation.
        Protocol::Embeddings => None,
    }
    .filter(|text| !text.is_empty())
}

/// The text of the first message of a user, or of the first message.
fn first_of_user(messages: &RawValue) -> Option<Cow<'_, str>> {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        role: Option<Cow<'a, str>>,
    }
    let mut zeroth = None;
    let of_user = first(messages, |message| {
        zeroth.get_or_insert(message);
        let read: Message<'_> = serde_json::from_str(message.get()).ok()?;
        (read.role.as_deref() == Some("user")).then_some(message)
    });
    of_user.or(zeroth).and_then(text_of)
}

/// The text of a message, an item or a part: its own, or that of what it holds.
fn text_of<'a>(raw: &'a RawValue) -> Option<Cow<'a, str>> {
    #[derive(Deserialize)]
    struct Holder<'a> {
        #[serde(borrow)]
        text: Option<&'a RawValue>,
        #[serde(borrow)]
        content: Option<&'a RawValue>,
    }
    let part = |raw: &'a RawValue| {
        let own = || {
            let part: Holder<'a> = serde_json::from_str(raw.get()).ok()?;
            text(part.text?)
        };
        text(raw).or_else(own).filter(|text| !text.is_empty())
    };
    part(raw).or_else(|| {
        let holder: Holder<'a> = serde_json::from_str(raw.get()).ok()?;
        let content = holder.content?;
        part(content).or_else(|| first(content, part))
    })
}

/// A JSON string's text.
fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let json = raw.get();
    let plain = json.strip_prefix('"')?.strip_suffix('"')?;
    if !plain.contains('\\') {
        return Some(Cow::Borrowed(plain));
    }
    serde_json::from_str(json).ok().map(Cow::Owned)
}

/// The first that `find` finds in a JSON array. What follows it is not read.
fn first<'a, T>(array: &'a RawValue, find: impl FnMut(&'a RawValue) -> Option<T>) -> Option<T> {
    let mut search = Search { find, found: None };
    let mut reader = serde_json::Deserializer::from_str(array.get());
    // It ends with an error as soon as something is found.
    reader.deserialize_any(&mut search).ok();
    search.found
}

struct Search<F, T> {
    find: F,
    found: Option<T>,
}

impl<'a, T, F: FnMut(&'a RawValue) -> Option<T>> Visitor<'a> for &mut Search<F, T> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element()? {
            self.found = (self.find)(item);
            if self.found.is_some() {
                return Err(A::Error::custom("found"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
