//! The spans of a request: one for the request, one below it for each upstream
//! call, named and described by the semantic conventions for HTTP and for
//! generative AI.
//!
//! What they say comes from the request's record and from the configuration,
//! never from headers, bodies or an upstream's words.

use actix_web::http::header::HeaderMap;
use http::Uri;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{Status, TraceContextExt as _};
use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use shared_proto::failure::{ErrorType, Terminal};
use shared_proto::protocol::Protocol;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::TARGET;
use crate::request::resolve::shown;
use crate::request::trace::{Attempt, Outcome, Record};

/// Longest `tracestate` that is taken over, bytes; a longer one is left out.
const MAX_TRACE_STATE: usize = 512;

/// How requests are traced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    /// Whether a client's `traceparent` is taken as parent.
    pub(super) parents: bool,
}

/// The span of a request. It ends when dropped.
pub(crate) struct RequestSpan(Span);

/// The span of one upstream call. It ends when dropped.
pub(crate) struct AttemptSpan {
    span: Span,
    protocol: Protocol,
    /// Which call of its request it is, from 1.
    number: usize,
    server: Option<(String, u16)>,
}

impl Spans {
    /// Begins the span of a request that came with `headers`.
    pub(crate) fn begin(self, protocol: Protocol, headers: &HeaderMap) -> RequestSpan {
        let path = protocol.path();
        let span = tracing::info_span!(
            target: TARGET,
            parent: None,
            "request",
            otel.name = format!("POST /v1/{path}"),
            otel.kind = "server",
        );
        if self.parents {
            let parent = TraceContextPropagator::new().extract(&Headers(headers));
            // Fails only where no layer listens, and then there is no span either.
            span.set_parent(parent).ok();
        }
        RequestSpan(span)
    }
}

impl RequestSpan {
    /// The trace's id in hex; `None` where nothing listens.
    pub(crate) fn trace_id(&self) -> Option<String> {
        let context = self.0.context();
        let span = context.span();
        let span = span.span_context();
        span.is_valid().then(|| span.trace_id().to_string())
    }

    /// Begins the span of the request's upstream call `number`, from 1.
    pub(crate) fn attempt(
        &self,
        protocol: Protocol,
        model: &str,
        url: Option<&Uri>,
        number: usize,
    ) -> AttemptSpan {
        let operation = operation(protocol);
        let span = tracing::info_span!(
            target: TARGET,
            parent: &self.0,
            "attempt",
            otel.name = format!("{operation} {}", shown(model)),
            otel.kind = "client",
        );
        let server = url.and_then(|url| {
            let port = if url.scheme_str() == Some("http") {
                80
            } else {
                443
            };
            Some((url.host()?.to_owned(), url.port_u16().unwrap_or(port)))
        });
        AttemptSpan {
            span,
            protocol,
            number,
            server,
        }
    }

    /// Ends the span with what the record says.
    pub(crate) fn end(self, record: &Record) {
        let context = self.0.context();
        let span = context.span();
        if !span.is_recording() {
            return;
        }
        span.set_attributes(of_request(record));
        let failed = match record.outcome {
            Outcome::Success | Outcome::ClientGone => false,
            // A refusal of what the client sent is no error of the server.
            Outcome::Error => record.status.is_none_or(|status| status >= 500),
            Outcome::StreamFailed => true,
        };
        if failed {
            span.set_status(Status::error(""));
        }
    }
}

impl AttemptSpan {
    /// Ends the span with what the trace says of the attempt.
    pub(crate) fn end(self, attempt: &Attempt) {
        let context = self.span.context();
        let span = context.span();
        if !span.is_recording() {
            return;
        }
        span.set_attributes(self.attributes(attempt));
        if attempt.outcome == "failed" {
            span.set_status(Status::error(""));
        }
    }

    fn attributes(&self, attempt: &Attempt) -> Vec<KeyValue> {
        let mut list = Attributes::of_call(self.protocol);
        list.add("gen_ai.provider.name", attempt.provider.as_str().to_owned());
        list.add("gen_ai.request.model", shown(&attempt.model));
        list.add(
            "omniroute.connection",
            attempt.connection.as_str().to_owned(),
        );
        list.add("omniroute.attempt", whole(self.number));
        list.add("omniroute.outcome", attempt.outcome);
        if self.number > 1 {
            list.add(
                "http.request.resend_count",
                whole(self.number.saturating_sub(1)),
            );
        }
        if let Some((host, port)) = &self.server {
            list.add("server.address", host.clone());
            list.add("server.port", i64::from(*port));
        }
        list.maybe("http.response.status_code", attempt.status.map(i64::from));
        list.maybe("omniroute.cooled_until", attempt.cooled_until.clone());
        if let Some(shared) = &attempt.shared {
            list.add("omniroute.egress.siblings", whole(shared.count()));
        }
        let Some(failure) = &attempt.failure else {
            if attempt.outcome != "success" {
                list.add("error.type", attempt.outcome);
            }
            return list.0;
        };
        let reason = failure.reason.as_str();
        list.add("error.type", reason);
        list.add("omniroute.reason", reason);
        list.add("omniroute.rule", failure.rule.clone());
        list.add("omniroute.scope", failure.blame.as_str());
        list.maybe(
            "omniroute.error_type",
            failure.error_type.map(ErrorType::as_str),
        );
        if let Some((rule, from_status)) = &failure.restated {
            list.add("omniroute.restated.rule", rule.clone());
            list.add("omniroute.restated.from_status", i64::from(*from_status));
            list.add("omniroute.restated.status", i64::from(failure.status));
        }
        list.maybe("omniroute.cooldown_ms", failure.cooldown_ms().map(whole));
        list.add("omniroute.counts_for_breaker", failure.counts_for_breaker);
        list.maybe("omniroute.terminal", failure.terminal.map(Terminal::as_str));
        list.add("omniroute.fallback", failure.fallback);
        if let Some(hint) = &failure.hint {
            list.add("omniroute.hint.source", hint.source.as_str());
            list.add("omniroute.hint.field", hint.field.clone());
            list.add("omniroute.hint.wait_ms", whole(hint.wait_ms));
            list.maybe("omniroute.hint.used", failure.hint_used());
        }
        list.0
    }
}

fn of_request(record: &Record) -> Vec<KeyValue> {
    let mut list = Attributes(Vec::with_capacity(24));
    if let Some(protocol) = record.protocol {
        list = Attributes::of_call(protocol);
        let path = format!("/v1/{}", protocol.path());
        list.add("url.path", path.clone());
        list.add("http.route", path);
    }
    list.add("url.scheme", "http");
    list.maybe("http.response.status_code", record.status.map(i64::from));
    list.maybe("gen_ai.request.model", record.model.as_deref().map(shown));
    if let Some(usage) = record.usage {
        list.maybe("gen_ai.usage.input_tokens", usage.input.map(whole));
        list.maybe("gen_ai.usage.output_tokens", usage.output.map(whole));
    }
    list.maybe("error.type", error_type(record));
    let told = record.error.as_ref();
    let wait = told.and_then(|told| told.retry_after_ms).map(whole);
    list.maybe("omniroute.retry_after_ms", wait);
    list.add("omniroute.request_id", record.id.to_string());
    list.add("omniroute.outcome", record.outcome.as_str());
    list.add("omniroute.stream", record.stream);
    list.add("omniroute.attempts", whole(record.attempts.len()));
    list.add("omniroute.waits", whole(record.waits_ms.len()));
    list.maybe("omniroute.first_byte_ms", record.first_byte_ms.map(whole));
    let key = record.api_key.as_ref().map(|key| key.as_str().to_owned());
    list.maybe("omniroute.api_key", key);
    let excluded = record.excluded.iter();
    let mut reasons: Vec<_> = excluded.map(|one| one.reason.as_str()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    if !reasons.is_empty() {
        let reasons = reasons.into_iter().map(StringValue::from).collect();
        list.add("omniroute.excluded", Value::Array(Array::String(reasons)));
    }
    list.0
}

/// What went wrong, in a word of ours: an error may carry the upstream's own
/// code, for which its reason stands in.
fn error_type(record: &Record) -> Option<String> {
    if record.outcome == Outcome::StreamFailed {
        return Some("stream_failed".to_owned());
    }
    let code = &record.error.as_ref()?.code;
    let mut failures = record
        .attempts
        .iter()
        .filter_map(|one| one.failure.as_ref());
    let foreign = failures.rfind(|failure| failure.upstream_code.as_ref() == Some(code));
    Some(foreign.map_or_else(
        || code.clone(),
        |failure| failure.reason.as_str().to_owned(),
    ))
}

/// Attributes in the making.
struct Attributes(Vec<KeyValue>);

impl Attributes {
    /// Those that a request and its upstream calls have in common.
    fn of_call(protocol: Protocol) -> Self {
        let mut list = Self(Vec::with_capacity(20));
        list.add("gen_ai.operation.name", operation(protocol));
        list.add("http.request.method", "POST");
        list.add("omniroute.protocol", protocol.as_str());
        list
    }

    fn add(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push(KeyValue::new(name, value));
    }

    fn maybe(&mut self, name: &'static str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }
}

const fn operation(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::ChatCompletions | Protocol::Responses | Protocol::Messages => "chat",
        Protocol::Embeddings => "embeddings",
    }
}

fn whole(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// The two headers that name a parent.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    /// A header that came once; more than one is nobody's.
    fn get(&self, key: &str) -> Option<&str> {
        let mut values = self.0.get_all(key);
        let value = values.next()?.to_str().ok()?;
        let fits = key != "tracestate" || value.len() <= MAX_TRACE_STATE;
        (values.next().is_none() && fits).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0
            .keys()
            .map(actix_web::http::header::HeaderName::as_str)
            .collect()
    }
}
