//! The refresh-token grant on the wire: what is sent, and what comes back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use super::{ClientAuth, GrantBody, TokenEndpoint, Tokens, told_expiry};
use crate::clock::Millis;

/// Longest token that is taken, in bytes.
pub const MAX_TOKEN_BYTES: usize = 64 * 1024;

/// The year 2300: no end of a token is believed to be later, in seconds.
const LATEST_SECONDS: f64 = 10_413_792_000.0;

/// Everything but unreserved characters, as a form has them.
const FORM: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Words that say that the refresh token itself is no good any more.
const REFUSED: [&str; 8] = [
    "invalid_grant",
    "bad_refresh_token",
    "invalid_refresh_token",
    "refresh_token_expired",
    "refresh_token_invalidated",
    "refresh_token_reused",
    "refresh_token_revoked",
    "token_revoked",
];

/// Other words of the standard, shown as they are.
const OTHER: [&str; 7] = [
    "invalid_client",
    "invalid_request",
    "invalid_scope",
    "server_error",
    "temporarily_unavailable",
    "unauthorized_client",
    "unsupported_grant_type",
];

/// A grant ready to be sent.
#[derive(Clone, Debug)]
pub struct GrantRequest {
    /// The body's kind.
    pub content_type: &'static str,
    /// The value of `Authorization`, where the client proves itself there.
    pub authorization: Option<SecretString>,
    /// The body; it holds the refresh token.
    pub body: SecretString,
}

/// What a token endpoint's answer says.
#[derive(Clone, Debug)]
pub enum Answer {
    /// New tokens. Without a new refresh token the old one stays good.
    Granted {
        /// The pair to go on with.
        tokens: Tokens,
        /// When the access token ends, if anything says so.
        expires_at: Option<Millis>,
    },
    /// The refresh token is not accepted any more.
    Refused {
        /// The endpoint's word, of a closed set.
        code: &'static str,
    },
    /// Anything else; the same refresh token may be tried again.
    Failed {
        /// Why, in one word.
        code: String,
    },
}

/// The grant that spends `refresh` at `endpoint`.
pub fn request(endpoint: &TokenEndpoint, refresh: &SecretString) -> GrantRequest {
    let mut fields = vec![
        ("grant_type", "refresh_token".to_owned()),
        ("refresh_token", refresh.expose_secret().to_owned()),
    ];
    let secret = endpoint.client_secret.as_ref();
    let secret = secret.map(ExposeSecret::expose_secret);
    let mut authorization = None;
    match (endpoint.client_auth, &endpoint.client_id) {
        (ClientAuth::Basic, Some(id)) => {
            // Both are form-encoded first (RFC 6749, 2.3.1).
            let pair = format!("{}:{}", encoded(id), encoded(secret.unwrap_or_default()));
            let value = format!("Basic {}", STANDARD.encode(pair));
            authorization = Some(SecretString::from(value));
        }
        (ClientAuth::Body | ClientAuth::Basic, id) => {
            fields.extend(id.clone().map(|id| ("client_id", id)));
            fields.extend(secret.map(|secret| ("client_secret", secret.to_owned())));
        }
    }
    if !endpoint.scopes.is_empty() {
        fields.push(("scope", endpoint.scopes.join(" ")));
    }
    let (content_type, body) = match endpoint.body {
        GrantBody::Form => {
            let pairs = fields.iter();
            let pairs = pairs.map(|(name, value)| format!("{name}={}", encoded(value)));
            let body = pairs.collect::<Vec<_>>().join("&");
            ("application/x-www-form-urlencoded", body)
        }
        GrantBody::Json => {
            let fields = fields.into_iter();
            let object = fields.map(|(name, value)| (name.to_owned(), Value::String(value)));
            let object = Value::Object(object.collect::<Map<_, _>>());
            ("application/json", object.to_string())
        }
    };
    GrantRequest {
        content_type,
        authorization,
        body: body.into(),
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, FORM).to_string()
}

/// Makes sense of an answer to a grant that was sent at `sent_at` and spent
/// `refresh`. Total; nothing of the body is shown but words of a closed set.
pub fn read_answer(status: u16, body: &[u8], refresh: &SecretString, sent_at: Millis) -> Answer {
    let said: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let words = words(&said);
    if let Some(code) = REFUSED.into_iter().find(|code| words.contains(code))
        && status < 500
    {
        return Answer::Refused { code };
    }
    let failed = |code: &str| Answer::Failed {
        code: code.to_owned(),
    };
    if let Some(code) = OTHER.into_iter().find(|code| words.contains(code)) {
        return failed(code);
    }
    if !(200..300).contains(&status) {
        return failed(&format!("status_{status}"));
    }
    let Some(access) = said.get("access_token").and_then(token) else {
        return failed("malformed_answer");
    };
    let refresh = match said.get("refresh_token") {
        None | Some(Value::Null) => refresh.clone(),
        Some(Value::String(text)) if text.is_empty() => refresh.clone(),
        Some(given) => match token(given) {
            Some(next) => next,
            None => return failed("malformed_answer"),
        },
    };
    let life = said.get("expires_in").and_then(number).and_then(seconds);
    let expires_at = life.map(|ms| sent_at.plus(ms));
    Answer::Granted {
        expires_at: expires_at.or_else(|| told_expiry(&access)),
        tokens: Tokens { access, refresh },
    }
}

/// A token as JSON has it: visible ASCII, since it goes into a header.
fn token(value: &Value) -> Option<SecretString> {
    let text = value.as_str()?;
    let visible = text.bytes().all(|byte| (0x21..=0x7e).contains(&byte));
    let fits = (1..=MAX_TOKEN_BYTES).contains(&text.len());
    (visible && fits).then(|| SecretString::from(text))
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Seconds as ms, at most [`LATEST_SECONDS`]; nothing of what is not above 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is positive, and below 2^53"
)]
pub(super) fn seconds(given: f64) -> Option<u64> {
    (given > 0.0).then(|| (given.min(LATEST_SECONDS) * 1000.0) as u64)
}

/// The words in the places where endpoints put their error codes.
fn words(said: &Value) -> Vec<&str> {
    let error = said.get("error");
    let inner = error.and_then(Value::as_object);
    let of = |name| inner.and_then(|inner| inner.get(name));
    let places = [error, of("code"), of("type"), of("error"), said.get("code")];
    places
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}
