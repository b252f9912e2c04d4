//! Metrics of addresses that connections leave by.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

/// Counters of probes and of what they are good for.
#[derive(Clone, Default)]
pub(crate) struct EgressMetrics {
    probes: Family<ResultLabels, Counter>,
    rested: Counter,
}

impl EgressMetrics {
    /// Enters them; `registry` has the common prefix.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "egress_probes",
            "Questions to the echo service, by whether it told an address",
            self.probes.clone(),
        );
        registry.register(
            "egress_siblings_rested",
            "Connections rested because another one met the limit of their address",
            self.rested.clone(),
        );
    }

    /// Counts a question.
    pub(crate) fn probed(&self, is_known: bool) {
        let result = if is_known { "known" } else { "unknown" };
        self.probes.get_or_create(&ResultLabels { result }).inc();
    }

    /// Counts siblings.
    pub(crate) fn rested(&self, count: usize) {
        self.rested.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }
}
