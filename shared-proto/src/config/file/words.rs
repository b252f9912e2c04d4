//! The words and small values of the file.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

/// A protocol that a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ProtocolName {
    /// Chat completions and embeddings.
    Openai,
    /// The Responses API.
    Responses,
    /// Anthropic Messages.
    Anthropic,
    /// Gemini; no client protocol reaches it yet.
    Gemini,
    /// Answers in the process.
    Simulated,
}

/// One protocol or several.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    /// One.
    One(ProtocolName),
    /// Several.
    Many(Vec<ProtocolName>),
}

impl OneOrMany {
    /// All of them.
    pub(crate) fn as_slice(&self) -> &[ProtocolName] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
    }
}

/// Kind of credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Auth {
    /// A static key.
    ApiKey,
    /// An access token, perhaps with a refresh token.
    Oauth,
    /// None: a local server.
    None,
}

/// Where a client names itself to a token endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ClientAuth {
    /// In the body.
    Body,
    /// By HTTP basic authentication.
    Basic,
}

/// How a grant is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum GrantBody {
    /// As a form.
    Form,
    /// As JSON.
    Json,
}

/// The header that carries a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AuthHeader {
    /// `Authorization: Bearer`.
    Bearer,
    /// `x-api-key`.
    XApiKey,
    /// `api-key`.
    ApiKey,
    /// `x-goog-api-key`.
    XGoogApiKey,
}

/// Which numbers apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ProfileName {
    /// Subscription accounts.
    Oauth,
    /// API keys.
    ApiKey,
    /// Servers on the operator's own machines.
    Local,
}

/// A secret: the text itself, or where to find it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Secret {
    /// The secret itself.
    Text(String),
    /// Kept elsewhere; exactly one of the two.
    Elsewhere {
        /// The variable that holds it.
        env: Option<String>,
        /// The file that holds it.
        file: Option<String>,
    },
}

impl JsonSchema for Secret {
    fn schema_name() -> Cow<'static, str> {
        "Secret".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A secret: the text itself, {env: NAME} or {file: PATH}.",
            "anyOf": [
                {"type": "string"},
                elsewhere()
            ]
        })
    }
}

/// What names the place of a text that is kept elsewhere.
fn elsewhere() -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "env": {"type": "string", "description": "The variable that holds it."},
            "file": {
                "type": "string",
                "description": "The file that holds it, relative to the working directory."
            }
        },
        "additionalProperties": false,
        "minProperties": 1,
        "maxProperties": 1
    })
}

/// A point in time as a file writes it.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Instant {
    /// Ms since the Unix epoch.
    Ms(u64),
    /// RFC 3339, or the digits of the above.
    Text(String),
    /// The same, kept elsewhere.
    Elsewhere(Secret),
}

impl JsonSchema for Instant {
    fn schema_name() -> Cow<'static, str> {
        "Instant".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A time: RFC 3339, or ms since the Unix epoch; or {env: NAME} or {file: PATH}.",
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string"},
                elsewhere()
            ]
        })
    }
}
