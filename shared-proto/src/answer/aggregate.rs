//! An event stream as the whole answer a client asked for.

mod chat;
mod messages;
mod responses;

use bytes::Bytes;
use serde_json::Value;

use crate::protocol::Protocol;
use crate::sse::Decoder;
use crate::stream::failure::{StreamFailure, StreamFailureKind};
use crate::stream::lenient::normalise;
use crate::stream::{RelayOptions, StreamRelay, UpstreamEnd};

/// Builds the JSON answer from an event stream that came in answer to a request
/// for none. The stream is judged as the relay judges one, with `options`; the
/// failures are the same.
pub fn aggregate(
    protocol: Protocol,
    options: RelayOptions,
    body: &Bytes,
) -> Result<Bytes, StreamFailure> {
    let mut relay = StreamRelay::new(protocol, options);
    relay.push(body.clone())?;
    relay.end(UpstreamEnd::Clean)?;
    let clean = relay.take_output().unwrap_or_default();
    let events = values(clean);
    let answer = match protocol {
        Protocol::ChatCompletions => chat::fold(events),
        Protocol::Responses => responses::fold(events),
        Protocol::Messages => messages::fold(events),
        Protocol::Embeddings => None,
    };
    answer
        .map(|answer| Bytes::from(answer.to_string()))
        .ok_or_else(|| StreamFailure::new(StreamFailureKind::Garbage))
}

/// The JSON objects of a stream the relay let through.
fn values(stream: Bytes) -> Vec<Value> {
    let mut decoder = Decoder::new(usize::MAX);
    decoder.push(stream);
    let mut values = Vec::new();
    while let Ok(Some(event)) = decoder.next() {
        let data = event.data().unwrap_or_default().trim_ascii();
        let value = serde_json::from_slice(data)
            .ok()
            .filter(Value::is_object)
            .or_else(|| serde_json::from_slice(&normalise(data)?).ok());
        values.extend(value);
    }
    values
}

/// Adds a text to the text, if any, that `slot` holds.
fn append(slot: &mut Value, text: &str) {
    match slot {
        Value::String(whole) => whole.push_str(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            *slot = Value::from(text);
        }
    }
}
