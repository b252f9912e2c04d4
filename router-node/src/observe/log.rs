//! The log: lines for people on a terminal, JSON elsewhere.

use std::io::IsTerminal as _;

use shared_proto::id::ApiKeyId;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

use crate::request::resolve::shown;
use crate::request::trace::Record;

/// Starts logging to standard error. `filter` is `RUST_LOG`'s value.
pub(crate) fn init(filter: Option<&str>) {
    let filter = filter
        .filter(|text| !text.is_empty())
        .map_or_else(|| EnvFilter::new("info"), EnvFilter::new);
    let registry = tracing_subscriber::registry().with(filter);
    let started = if std::io::stderr().is_terminal() {
        registry
            .with(fmt::layer().with_writer(std::io::stderr).with_target(false))
            .try_init()
    } else {
        let json = fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_writer(std::io::stderr);
        registry.with(json).try_init()
    };
    // A second start in one process (tests) keeps the first log.
    started.ok();
}

/// One line a request.
pub(super) fn request(record: &Record) {
    let last = record.attempts.last();
    let failure = last.and_then(|attempt| attempt.failure.as_ref());
    tracing::info!(
        target: "request",
        request_id = &*record.id,
        protocol = record.protocol(),
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
