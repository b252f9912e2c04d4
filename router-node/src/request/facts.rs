//! What the router reads of a request's body. Everything else goes upstream
//! untouched, byte for byte.

mod edit;
mod scan;
mod session;

use std::borrow::Cow;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::value::RawValue;
use shared_proto::lockout::MODEL_MAX_BYTES;
use shared_proto::protocol::Protocol;

use crate::http::reply::ClientError;
use crate::upstream::Body;

pub(crate) use edit::{Edit, edited};
pub(crate) use session::session;

/// Up to this size a body is copied into one piece, which costs less than
/// sending three.
const COPY_UP_TO: usize = 16 * 1024;

/// The fields the router acts on.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// The body as it came, inflated.
    pub(crate) body: Bytes,
    /// The name in `model`.
    pub(crate) model: String,
    /// Where `model`'s value stands in the body, quotes included.
    model_at: Range<usize>,
    /// Whether the client asked for a stream.
    pub(crate) stream: bool,
    /// The output limit the client set, in tokens.
    pub(crate) max_tokens: Option<u64>,
    /// Nothing is asked but the list of models; there is no body.
    pub(crate) listing: bool,
    /// Whether the client asked for a response in the background; `body` does not
    /// ask for it any more.
    pub(crate) background: bool,
    /// Where the list of tools stands in the body.
    tools_at: Option<Range<usize>>,
}

#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stream: Option<&'a RawValue>,
    #[serde(borrow)]
    max_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    max_completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    max_output_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    background: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
}

/// The fields of nearly every valid body, for a fraction of the time.
fn quickly(body: &[u8]) -> Option<Typed<'_>> {
    let names = [
        "model",
        "stream",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "background",
        "tools",
    ];
    let [
        model,
        stream,
        max_tokens,
        completion,
        output,
        background,
        tools,
    ] = scan::members(body, names)?;
    let raw = |place: Option<Range<usize>>| match place {
        Some(place) => serde_json::from_slice(body.get(place)?).ok(),
        None => Some(None),
    };
    Some(Typed {
        model: raw(model)?,
        stream: raw(stream)?,
        max_tokens: raw(max_tokens)?,
        max_completion_tokens: raw(completion)?,
        max_output_tokens: raw(output)?,
        background: raw(background)?,
        tools: raw(tools)?,
    })
}

/// The fields of any body, or what is wrong with it.
fn thoroughly(body: &[u8]) -> Result<Typed<'_>, ClientError> {
    let text = std::str::from_utf8(body).map_err(|_| invalid_json("it is not valid UTF-8"))?;
    if !text.trim_start().starts_with('{') {
        return Err(invalid_json("it is not a JSON object"));
    }
    serde_json::from_str(text).map_err(|error| invalid_json(&error.to_string()))
}

impl Facts {
    /// Reads the body of a request of `protocol`.
    pub(crate) fn read(protocol: Protocol, body: Bytes) -> Result<Self, ClientError> {
        let typed = match quickly(&body) {
            Some(typed) => typed,
            None => thoroughly(&body)?,
        };
        if protocol == Protocol::Responses
            && let Some(raw) = typed.background.filter(|raw| raw.get() == "true")
        {
            let place = place(&body, raw);
            let (place, text) = match edit::member(&body, "background", &place) {
                Some(member) => (member, ""),
                // Its name has an escape in it.
                None => (place, "false"),
            };
            let body = edited(&body, &mut [(place, text.to_owned())]);
            let background = true;
            return Self::read(protocol, body).map(|facts| Self {
                background,
                ..facts
            });
        }
        let raw = typed.model.ok_or_else(|| {
            ClientError::bad_request(
                "missing_model",
                Some("model"),
                "the request has no `model`; GET /v1/models lists what there is",
            )
        })?;
        let model = model_name(raw)?;
        let model_at = place(&body, raw);
        let tools_at = typed.tools.map(|raw| place(&body, raw));
        let stream = protocol != Protocol::Embeddings && flag(typed.stream)?;
        let limits = [
            typed.max_completion_tokens,
            typed.max_tokens,
            typed.max_output_tokens,
        ];
        let max_tokens = limits
            .into_iter()
            .flatten()
            .find_map(|raw| raw.get().parse().ok());
        Ok(Self {
            body,
            model,
            model_at,
            stream,
            max_tokens,
            listing: false,
            background: false,
            tools_at,
        })
    }

    /// How many tools the request brings.
    pub(crate) fn tools(&self) -> usize {
        let list = self.tools_at.clone();
        let Some(list) = list.and_then(|place| self.body.get(place)) else {
            return 0;
        };
        scan::elements(list).unwrap_or_else(|| {
            let list: Option<Vec<serde::de::IgnoredAny>> = serde_json::from_slice(list).ok();
            list.map_or(0, |list| list.len())
        })
    }

    /// A question for the list of models.
    pub(crate) const fn listing() -> Self {
        Self {
            body: Bytes::new(),
            model: String::new(),
            model_at: 0..0,
            stream: false,
            max_tokens: None,
            background: false,
            tools_at: None,
            listing: true,
        }
    }

    /// The same request with an answer of at most `most` tokens. `None` for what has
    /// no such limit.
    pub(crate) fn capped(&self, protocol: Protocol, most: u64) -> Option<Self> {
        let usual = match protocol {
            Protocol::ChatCompletions | Protocol::Messages => "max_tokens",
            Protocol::Responses => "max_output_tokens",
            Protocol::Embeddings => return None,
        };
        let typed = quickly(&self.body).or_else(|| thoroughly(&self.body).ok())?;
        let limits = [
            typed.max_completion_tokens,
            typed.max_tokens,
            typed.max_output_tokens,
        ];
        let given: Vec<&RawValue> = limits.into_iter().flatten().collect();
        let over = |raw: &&&RawValue| raw.get().parse().is_ok_and(|own: u64| own > most);
        let mut edits: Vec<Edit> = given
            .iter()
            .filter(over)
            .map(|raw| (place(&self.body, raw), most.to_string()))
            .collect();
        if given.is_empty() {
            // It names a model, so that something follows.
            let begin = self.body.iter().position(|b| *b == b'{')?.checked_add(1)?;
            edits.push((begin..begin, format!("\"{usual}\":{most},")));
        }
        let body = edited(&self.body, &mut edits);
        Self::read(protocol, body).ok()
    }

    /// The body with `model` in place of the client's name for it.
    pub(crate) fn body_for(&self, model: &str) -> Body {
        if model == self.model {
            return Body::whole(self.body.clone());
        }
        let name = serde_json::Value::from(model).to_string();
        let before = self.body.slice(..self.model_at.start);
        let after = self.body.slice(self.model_at.end..);
        let length = before
            .len()
            .saturating_add(name.len())
            .saturating_add(after.len());
        if length > COPY_UP_TO {
            return Body::new(before, Bytes::from(name), after);
        }
        let mut whole = BytesMut::with_capacity(length);
        whole.extend_from_slice(&before);
        whole.extend_from_slice(name.as_bytes());
        whole.extend_from_slice(&after);
        Body::whole(whole.freeze())
    }
}

/// Where a part of `body` stands in it.
fn place(body: &Bytes, raw: &RawValue) -> Range<usize> {
    let start = (raw.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
    start..start.saturating_add(raw.get().len())
}

/// Where the members called `names` stand in a JSON object; see [`scan::members`].
pub(crate) fn members<const N: usize>(
    body: &[u8],
    names: [&str; N],
) -> Option<[Option<Range<usize>>; N]> {
    scan::members(body, names)
}

fn model_name(raw: &RawValue) -> Result<String, ClientError> {
    let wrong = |message: &str| ClientError::bad_request("invalid_model", Some("model"), message);
    let name: Cow<'_, str> =
        serde_json::from_str(raw.get()).map_err(|_| wrong("`model` has to be a string"))?;
    if name.trim().is_empty() {
        return Err(wrong("`model` is empty"));
    }
    if name.len() > MODEL_MAX_BYTES {
        let message = format!("`model` is longer than {MODEL_MAX_BYTES} bytes");
        return Err(wrong(&message));
    }
    Ok(name.into_owned())
}

fn flag(raw: Option<&RawValue>) -> Result<bool, ClientError> {
    match raw.map(RawValue::get) {
        None | Some("null" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ClientError::bad_request(
            "invalid_stream",
            Some("stream"),
            "`stream` has to be true or false",
        )),
    }
}

fn invalid_json(why: &str) -> ClientError {
    ClientError::bad_request(
        "invalid_json",
        None,
        format!("the request body is not valid JSON: {why}"),
    )
}

#[cfg(test)]
mod tests;
