//! The log: lines for people on a terminal, JSON elsewhere.

mod line;
mod sink;

use std::io::IsTerminal as _;

use shared_proto::id::ApiKeyId;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::prelude::*;

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

/// Starts logging to standard error. `filter` is `RUST_LOG`'s value.
pub(crate) fn init(filter: Option<&str>) -> Flush {
    let filter = filter
        .filter(|text| !text.is_empty())
        .map_or_else(|| EnvFilter::new("info"), EnvFilter::new);
    let registry = tracing_subscriber::registry().with(filter);
    let sink = if std::io::stderr().is_terminal() {
        None
    } else {
        // Without the thread lines are written one by one.
        sink::start(std::io::stderr()).ok()
    };
    let started = match &sink {
        None => registry
            .with(fmt::layer().with_writer(std::io::stderr).with_target(false))
            .try_init(),
        Some(sink) => registry
            .with(
                fmt::layer()
                    .event_format(JsonLine)
                    .with_writer(sink.clone()),
            )
            .try_init(),
    };
    // A second start in one process (tests) keeps the first log.
    started.ok();
    Flush(sink)
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

#[cfg(test)]
mod tests;
