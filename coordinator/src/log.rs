//! The log: lines for people on a terminal, JSON elsewhere.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// What is logged where `RUST_LOG` says nothing. What clients send that is no
/// HTTP is answered, and is no error of ours.
const DEFAULT: &str = "info,actix_http=off";

/// Starts logging to standard error. `filter` is `RUST_LOG`'s value.
pub(crate) fn init(filter: Option<&str>) {
    let filter = filter
        .filter(|text| !text.is_empty())
        .map_or_else(|| EnvFilter::new(DEFAULT), EnvFilter::new);
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let started = if std::io::stderr().is_terminal() {
        log.with_target(false).try_init()
    } else {
        log.json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init()
    };
    // A second start in one process (tests) keeps the first log.
    started.ok();
}
