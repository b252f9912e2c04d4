//! What operators see: the log, the metrics, the journal of recent requests,
//! and traces where a collector is named.

mod cluster;
mod egress;
mod journal;
mod leases;
mod log;
mod metrics;
mod seldom;
mod slots;
mod telemetry;
mod tokens;
mod trials;
mod wall;

use std::time::Duration;

pub(crate) use egress::EgressMetrics;
pub(crate) use journal::{ById, Journal, Newest, Shelf};
pub(crate) use leases::LeaseMetrics;
pub(crate) use log::init as init_log;
pub(crate) use metrics::{Metrics, ReloadLabels, StateLabels};
pub(crate) use seldom::{Seldom, SeldomEach};
pub(crate) use slots::{PinMetrics, SlotMetrics};
pub(crate) use telemetry::Spans;
pub(crate) use telemetry::{AttemptSpan, RequestSpan, Telemetry};
pub(crate) use tokens::TokenMetrics;

use crate::request::trace::{Outcome, Record};

/// Takes in what each request's trace ends with.
pub(crate) struct Observer {
    pub(crate) metrics: Metrics,
    pub(crate) journal: Journal,
    /// How requests are traced, where they are.
    pub(crate) spans: Option<Spans>,
    /// When it was last said that nobody is left for a model.
    nobody_left: SeldomEach,
}

impl Observer {
    /// An observer with empty counters and an empty journal.
    pub(crate) fn new(spans: Option<Spans>) -> Self {
        Self {
            metrics: Metrics::new(),
            journal: Journal::new(),
            spans,
            nobody_left: SeldomEach::default(),
        }
    }

    /// Counts a request in.
    pub(crate) fn request_began(&self) {
        self.metrics.requests_in_flight.inc();
    }

    /// Counts a request out, writes its log line and keeps its record.
    pub(crate) fn request_ended(&self, record: Record, took: Duration) {
        self.metrics.requests_in_flight.dec();
        match record.test {
            None => self.metrics.request_ended(&record, took),
            Some(why) => self.metrics.trials.ended(&record, why),
        }
        log::failures(&record);
        log::request(&record);
        if record.nobody_left && record.outcome == Outcome::Error {
            let model = record.model.as_deref().unwrap_or_default();
            if self
                .nobody_left
                .due(model, record.at.plus(record.duration_ms))
            {
                log::nobody_left(&record);
            }
        }
        self.journal.push(record);
    }
}
