//! The only place where a refusal or failure becomes a status, headers and a
//! body, in the shape of the protocol that was called.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use shared_proto::protocol::Protocol;

/// Which envelope an error wears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `{"error": {...}}`, also the management API's.
    OpenAi,
    /// `{"type": "error", "error": {...}, "request_id"}`.
    Anthropic,
    /// `{"error": {"message", "type", "code"}}` and nothing that a lease's
    /// client is not to read.
    Lease,
}

impl From<Protocol> for Shape {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::ChatCompletions | Protocol::Responses | Protocol::Embeddings => Self::OpenAi,
            Protocol::Messages => Self::Anthropic,
        }
    }
}

/// An answer that is not a success. What it holds is fit for the client's eyes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ClientError {
    /// HTTP status.
    pub(crate) status: u16,
    /// The router's own code, `error.code`.
    pub(crate) code: String,
    /// `error.type` where the status alone does not say it.
    pub(crate) kind: Option<&'static str>,
    /// What is wrong and what to do.
    pub(crate) message: String,
    /// When trying again may help, ms.
    pub(crate) retry_after_ms: Option<u64>,
    /// The provider it is about.
    pub(crate) provider: Option<String>,
    /// The request field it is about.
    pub(crate) param: Option<&'static str>,
    /// Further headers; ASCII.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// Members beside `error`.
    pub(crate) extra: Map<String, Value>,
}

impl ClientError {
    /// An error with a status, a code and a message.
    pub(crate) fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.into(),
            ..Self::default()
        }
    }

    /// A 400 about one field of the request.
    pub(crate) fn bad_request(
        code: &'static str,
        param: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            param,
            ..Self::new(400, code, message)
        }
    }

    /// Seconds for `Retry-After`: rounded up, at least 1.
    pub(crate) fn retry_after_seconds(&self) -> Option<u64> {
        self.retry_after_ms.map(|ms| ms.div_ceil(1000).max(1))
    }

    /// `error.type` in `shape`.
    pub(crate) fn kind(&self, shape: Shape) -> &'static str {
        if let Some(kind) = self.kind.filter(|_| shape != Shape::Anthropic) {
            return kind;
        }
        match (self.status, shape) {
            (401, _) => "authentication_error",
            (402, _) => "billing_error",
            (403, _) => "permission_error",
            (404, Shape::Anthropic) => "not_found_error",
            (413, Shape::Anthropic) => "request_too_large",
            (429, _) => "rate_limit_error",
            (504 | 408, Shape::Anthropic) => "timeout_error",
            (529, _) => "overloaded_error",
            (500.., Shape::Anthropic) => "api_error",
            (500.., Shape::OpenAi | Shape::Lease) => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body as JSON.
    pub(crate) fn body(&self, shape: Shape, request_id: &str) -> Value {
        let mut error = Map::new();
        error.insert("message".to_owned(), json!(self.message));
        error.insert("type".to_owned(), json!(self.kind(shape)));
        error.insert("code".to_owned(), json!(self.code));
        if shape == Shape::Lease {
            let mut body = self.extra.clone();
            body.insert("error".to_owned(), Value::Object(error));
            return Value::Object(body);
        }
        if shape == Shape::OpenAi {
            error.insert("param".to_owned(), json!(self.param));
        }
        if let Some(provider) = &self.provider {
            error.insert("provider".to_owned(), json!(provider));
        }
        if let Some(seconds) = self.retry_after_seconds() {
            error.insert("retry_after".to_owned(), json!(seconds));
        }
        let mut body = Map::new();
        if shape == Shape::Anthropic {
            body.insert("type".to_owned(), json!("error"));
        }
        body.insert("error".to_owned(), Value::Object(error));
        body.insert("request_id".to_owned(), json!(request_id));
        for (key, value) in &self.extra {
            body.insert(key.clone(), value.clone());
        }
        Value::Object(body)
    }

    /// The whole response.
    pub(crate) fn response(&self, shape: Shape, request_id: &str) -> HttpResponse {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = HttpResponse::build(status);
        if let Some(seconds) = self.retry_after_seconds() {
            response.insert_header(("retry-after", seconds));
            if seconds > LONGEST_CLIENT_RETRY_S {
                // Client libraries that read this give up at once instead of
                // asking again every few seconds.
                response.insert_header(("x-should-retry", "false"));
            }
        }
        for (name, value) in &self.headers {
            if let Ok(value) = HeaderValue::from_str(value) {
                response.insert_header((HeaderName::from_static(name), value));
            }
        }
        stamp(&mut response, request_id);
        response.json(self.body(shape, request_id))
    }
}

/// Official client libraries don't wait longer than this for a retry.
const LONGEST_CLIENT_RETRY_S: u64 = 120;

/// Marks an answer that is not quite what was asked for.
pub(crate) fn mark(response: &mut HttpResponse, warning: &'static str) {
    let name = HeaderName::from_static("x-omniroute-warning");
    let value = HeaderValue::from_static(warning);
    response.headers_mut().append(name, value);
}

/// Puts the request's id where each protocol's clients look for it.
pub(crate) fn stamp(response: &mut actix_web::HttpResponseBuilder, request_id: &str) {
    if let Ok(value) = HeaderValue::from_str(request_id) {
        response.insert_header((HeaderName::from_static("x-request-id"), value.clone()));
        response.insert_header((HeaderName::from_static("request-id"), value));
    }
}
