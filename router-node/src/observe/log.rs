//! The log: lines for people on a terminal, JSON elsewhere.

use std::io::IsTerminal as _;

use opentelemetry_sdk::trace::SdkTracer;
use shared_proto::id::ApiKeyId;
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use super::telemetry::TARGET;
use crate::request::resolve::shown;
use crate::request::trace::Record;

/// Starts logging to standard error. `filter` is `RUST_LOG`'s value; it says
/// nothing about the spans that go to `tracer`, if there is one.
pub(crate) fn init(filter: Option<&str>, tracer: Option<SdkTracer>) {
    let filter = filter
        .filter(|text| !text.is_empty())
        .map_or_else(|| EnvFilter::new("info"), EnvFilter::new);
    let registry = tracing_subscriber::registry();
    let terminal = std::io::stderr().is_terminal();
    // A filter for all is quicker than one for each layer.
    let started = match (tracer, terminal) {
        (None, true) => registry.with(filter).with(text()).try_init(),
        (None, false) => registry.with(filter).with(json()).try_init(),
        (Some(tracer), true) => registry
            .with(text().with_filter(filter))
            .with(spans(tracer))
            .try_init(),
        (Some(tracer), false) => registry
            .with(json().with_filter(filter))
            .with(spans(tracer))
            .try_init(),
    };
    // A second start in one process (tests) keeps the first log.
    started.ok();
}

fn text<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    fmt::layer().with_writer(std::io::stderr).with_target(false)
}

fn json<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    fmt::layer()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_writer(std::io::stderr)
}

/// Only our own spans, and no lines of the log: those say more than a
/// collector has to know.
fn spans<S: Subscriber + for<'a> LookupSpan<'a>>(tracer: SdkTracer) -> impl Layer<S> {
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_level(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false)
        .with_filter(Targets::new().with_target(TARGET, LevelFilter::INFO))
}

/// One line a request.
pub(super) fn request(record: &Record) {
    let last = record.attempts.last();
    let failure = last.and_then(|attempt| attempt.failure.as_ref());
    tracing::info!(
        target: "request",
        request_id = &*record.id,
        trace_id = record.trace_id.as_deref(),
        protocol = record.protocol.as_str(),
        model = record.model.as_deref().map(shown).as_deref(),
        stream = record.stream,
        api_key = record.api_key.as_ref().map(ApiKeyId::as_str),
        outcome = record.outcome.as_str(),
        status = record.status,
        code = record.error.as_ref().map(|error| error.code.as_str()),
        provider = last.map(|attempt| attempt.provider.as_str()),
        connection = last.map(|attempt| attempt.connection.as_str()),
        attempts = record.attempts.len(),
        reason = failure.map(|failure| failure.reason.as_str()),
        rule = failure.map(|failure| failure.rule.as_str()),
        duration_ms = record.duration_ms,
        first_byte_ms = record.first_byte_ms,
        input_tokens = record.usage.and_then(|usage| usage.input),
        output_tokens = record.usage.and_then(|usage| usage.output),
        "request"
    );
}
