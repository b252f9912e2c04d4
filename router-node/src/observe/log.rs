//! The log: lines for people on a terminal, JSON elsewhere.

mod line;
mod sink;

use std::io::IsTerminal as _;

use opentelemetry_sdk::trace::SdkTracer;
use shared_proto::failure::Terminal;
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
use line::JsonLine;
use sink::Sink;

/// Writes the last lines of the log when dropped, at the end of the process.
#[must_use]
pub(crate) struct Flush(Option<Sink>);

impl Drop for Flush {
    fn drop(&mut self) {
        if let Some(sink) = &self.0 {
            sink.close();
        }
    }
}

/// What is logged where `RUST_LOG` says nothing. What clients send that is no
/// HTTP is answered, and is no error of ours.
const DEFAULT: &str = "info,actix_http=off";

/// Starts logging to standard error. `filter` is `RUST_LOG`'s value; it says
/// nothing about the spans that go to `tracer`, if there is one.
pub(crate) fn init(filter: Option<&str>, tracer: Option<SdkTracer>) -> Flush {
    let filter = filter
        .filter(|text| !text.is_empty())
        .map_or_else(|| EnvFilter::new(DEFAULT), EnvFilter::new);
    let registry = tracing_subscriber::registry();
    let sink = if std::io::stderr().is_terminal() {
        None
    } else {
        // Without the thread lines are written one by one.
        sink::start(std::io::stderr()).ok()
    };
    // A filter for all is quicker than one for each layer.
    let started = match (tracer, sink.clone()) {
        (None, None) => registry.with(filter).with(text()).try_init(),
        (None, Some(sink)) => registry.with(filter).with(json(sink)).try_init(),
        (Some(tracer), None) => registry
            .with(text().with_filter(filter))
            .with(spans(tracer))
            .try_init(),
        (Some(tracer), Some(sink)) => registry
            .with(json(sink).with_filter(filter))
            .with(spans(tracer))
            .try_init(),
    };
    // A second start in one process (tests) keeps the first log.
    started.ok();
    Flush(sink)
}

fn text<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    fmt::layer().with_writer(std::io::stderr).with_target(false)
}

fn json<S: Subscriber + for<'a> LookupSpan<'a>>(sink: Sink) -> impl Layer<S> {
    fmt::layer().event_format(JsonLine).with_writer(sink)
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

/// One line for each attempt of a request that failed.
pub(super) fn failures(record: &Record) {
    for (index, attempt) in record.attempts.iter().enumerate() {
        let Some(failure) = &attempt.failure else {
            continue;
        };
        let hint = failure.hint.as_ref();
        tracing::info!(
            target: "attempt",
            request_id = &*record.id,
            trace_id = record.trace_id.as_deref(),
            attempt = index.saturating_add(1),
            provider = attempt.provider.as_str(),
            connection = attempt.connection.as_str(),
            model = shown(&attempt.model),
            status = attempt.status,
            reason = failure.reason.as_str(),
            scope = failure.blame.as_str(),
            rule = failure.rule.as_str(),
            terminal = failure.terminal.map(Terminal::as_str),
            hint_ms = hint.map(|hint| hint.wait_ms),
            hint_source = hint.map(|hint| hint.source.as_str()),
            hint_field = hint.map(|hint| hint.field.as_str()),
            cooled_until = attempt.cooled_until.as_deref(),
            fallback = failure.fallback,
            rotation = attempt.rotation.map(|gated| gated.ruling.as_str()),
            "an attempt failed"
        );
    }
}

/// One line a request.
pub(super) fn request(record: &Record) {
    let last = record.attempts.last();
    let failure = last.and_then(|attempt| attempt.failure.as_ref());
    tracing::info!(
        target: "request",
        request_id = &*record.id,
        trace_id = record.trace_id.as_deref(),
        protocol = record.protocol(),
        model = record.model.as_deref().map(shown).as_deref(),
        stream = record.stream,
        api_key = record.api_key.as_ref().map(ApiKeyId::as_str),
        test = record.test,
        outcome = record.outcome.as_str(),
        status = record.status,
        code = record.error.as_ref().map(|error| error.code.as_str()),
        retry_after_ms = record.error.as_ref().and_then(|error| error.retry_after_ms),
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

#[cfg(test)]
mod tests;
