//! The log: lines for people on a terminal, JSON elsewhere.

mod line;
mod sink;

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal as _;

use opentelemetry_sdk::trace::SdkTracer;
use shared_proto::failure::{ErrorType, Terminal};
use shared_proto::id::ApiKeyId;
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use super::telemetry::TARGET;
use crate::request::resolve::shown;
use crate::request::trace::{Attempt, Record};
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
        let restated = failure.restated.as_ref();
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
            error_type = failure.error_type.map(ErrorType::as_str),
            rule = failure.rule.as_str(),
            restated_rule = restated.map(|(rule, _)| rule.as_str()),
            restated_from_status = restated.map(|(_, from)| *from),
            restated_status = restated.map(|_| failure.status),
            terminal = failure.terminal.map(Terminal::as_str),
            hint_wait_ms = hint.map(|hint| hint.wait_ms),
            hint_source = hint.map(|hint| hint.source.as_str()),
            hint_field = hint.map(|hint| hint.field.as_str()),
            hint_used = failure.hint_used(),
            cooldown_ms = failure.cooldown_ms(),
            cooled_until = attempt.cooled_until.as_deref(),
            client_retry_after_ms = failure.client_retry_after_ms,
            counts_for_breaker = failure.counts_for_breaker,
            fallback = failure.fallback,
            rotation = attempt.rotation.map(|gated| gated.ruling.as_str()),
            "an attempt failed"
        );
    }
}

/// The attempt that the client was told of, else the last one.
fn told_of(record: &Record) -> Option<&Attempt> {
    let told = record.told.and_then(|place| record.attempts.get(place));
    told.or_else(|| record.attempts.last())
}

/// Why candidates were left out, each reason once, with how many: `connection_cooldown:2,
/// unavailable(banned):1`. `None` where nobody was.
fn excluded(record: &Record) -> Option<String> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for one in &record.excluded {
        let reason = one.reason.as_str();
        let word = one
            .detail
            .map_or_else(|| reason.to_owned(), |detail| format!("{reason}({detail})"));
        let count = counts.entry(word).or_default();
        *count = count.saturating_add(1);
    }
    if record.more_excluded > 0 {
        counts.insert("more".to_owned(), record.more_excluded);
    }
    let words = counts.iter().map(|(word, count)| format!("{word}:{count}"));
    (!counts.is_empty()).then(|| words.collect::<Vec<_>>().join(","))
}

/// The operator's warning about a request that nobody was left for.
pub(super) fn nobody_left(record: &Record) {
    let error = record.error.as_ref();
    let wait = error.and_then(|error| error.retry_after_ms);
    tracing::warn!(
        target: "request",
        request_id = &*record.id,
        trace_id = record.trace_id.as_deref(),
        model = record.model.as_deref().map(shown).as_deref(),
        status = record.status,
        code = error.map(|error| error.code.as_str()),
        excluded = excluded(record).as_deref(),
        attempts = record.attempts.len(),
        reasons = failed(record).as_deref(),
        retry_after_seconds = wait.map(|ms| ms.div_ceil(1000).max(1)),
        "nobody is left to serve this model; told at most every 10 s"
    );
}

/// Why its attempts failed, each reason once.
fn failed(record: &Record) -> Option<String> {
    let failures = record
        .attempts
        .iter()
        .filter_map(|one| one.failure.as_ref());
    let reasons: BTreeSet<&str> = failures.map(|failure| failure.reason.as_str()).collect();
    (!reasons.is_empty()).then(|| reasons.into_iter().collect::<Vec<_>>().join(","))
}

/// One line a request.
pub(super) fn request(record: &Record) {
    let last = told_of(record);
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
        attempt_outcome = last.map(|attempt| attempt.outcome),
        attempt_ms = last.map(|attempt| attempt.duration_ms),
        excluded = excluded(record).as_deref(),
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
