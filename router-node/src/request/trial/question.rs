//! The least that an upstream can be asked: one token of output, an embedding
//! of one word, or where no model is known, which models there are.

use bytes::Bytes;
use serde_json::{Value, json};
use shared_proto::protocol::Protocol;

use crate::http::reply::ClientError;
use crate::request::facts::Facts;
use crate::routing::Slot;
use crate::simulated;

/// The least that the Responses API takes as a limit, in tokens.
const LEAST_OF_RESPONSES: u64 = 16;
/// What every test says.
const WORD: &str = "ping";

/// What is asked, and in which protocol.
pub(super) struct Question {
    pub(super) protocol: Protocol,
    pub(super) facts: Facts,
}

impl Question {
    /// What to ask `slot`, about `model` or else the first that is known.
    pub(super) fn of(slot: &Slot, model: Option<&str>) -> Result<Self, ClientError> {
        let own = slot.provider.id.as_str();
        let of_operator = model.map(|model| {
            let bare = model.strip_prefix(own);
            bare.and_then(|rest| rest.strip_prefix('/'))
                .unwrap_or(model)
        });
        let model = of_operator.or_else(|| known_model(slot));
        let protocol = protocol(slot, model).ok_or_else(|| {
            ClientError::bad_request(
                "protocol_not_offered",
                None,
                "the provider speaks no protocol that this router calls",
            )
        })?;
        let facts = match model {
            None => Facts::listing(),
            Some(model) => {
                let body = body(slot, protocol, model);
                Facts::read(protocol, Bytes::from(body.to_string()))?
            }
        };
        Ok(Self { protocol, facts })
    }
}

/// The first model that the connection names, or its provider.
fn known_model(slot: &Slot) -> Option<&str> {
    if slot.simulated() {
        return simulated::MODELS.first().copied();
    }
    let exact = |name: &&String| !name.ends_with('*');
    let own = slot.connection.models.iter().find(exact);
    let of_provider = || {
        let mut models = slot.provider.models.iter().filter(exact);
        // It says less of the account than an answer would.
        models.find(|name| !embeds(name))
    };
    own.or_else(of_provider).map(String::as_str)
}

fn embeds(model: &str) -> bool {
    model.to_ascii_lowercase().contains("embed")
}

fn protocol(slot: &Slot, model: Option<&str>) -> Option<Protocol> {
    let order = if model.is_some_and(embeds) {
        [
            Protocol::Embeddings,
            Protocol::ChatCompletions,
            Protocol::Messages,
            Protocol::Responses,
        ]
    } else {
        [
            Protocol::ChatCompletions,
            Protocol::Messages,
            Protocol::Responses,
            Protocol::Embeddings,
        ]
    };
    order
        .into_iter()
        .find(|protocol| slot.simulated() || slot.url(*protocol).is_some())
}

fn body(slot: &Slot, protocol: Protocol, model: &str) -> Value {
    let messages = json!([{"role": "user", "content": WORD}]);
    match protocol {
        // Its newer models know the limit by its other name only.
        Protocol::ChatCompletions if slot.provider.canonical.as_str() == "openai" => {
            json!({"model": model, "messages": messages, "max_completion_tokens": 1})
        }
        Protocol::ChatCompletions | Protocol::Messages => {
            json!({"model": model, "messages": messages, "max_tokens": 1})
        }
        Protocol::Responses => {
            json!({"model": model, "input": WORD, "max_output_tokens": LEAST_OF_RESPONSES})
        }
        Protocol::Embeddings => json!({"model": model, "input": WORD}),
    }
}
