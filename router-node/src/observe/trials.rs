//! Metrics of live tests, which are no client's requests.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::request::trace::{Outcome, Record};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    why: &'static str,
    result: &'static str,
}

/// Counters of live tests.
#[derive(Clone, Default)]
pub(crate) struct TrialMetrics {
    tests: Family<Labels, Counter>,
}

impl TrialMetrics {
    /// Enters them; `registry` has the common prefix.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "connection_tests",
            "Live tests of connections by who wanted to know and result",
            self.tests.clone(),
        );
    }

    /// Counts one that is over.
    pub(super) fn ended(&self, record: &Record, why: &'static str) {
        let result = match record.outcome {
            Outcome::Success => "passed",
            Outcome::Error | Outcome::StreamFailed => "failed",
            Outcome::ClientGone => "cancelled",
        };
        self.tests.get_or_create(&Labels { why, result }).inc();
    }
}
