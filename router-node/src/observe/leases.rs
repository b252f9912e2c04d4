//! Metrics of session leases.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FenceLabels {
    result: &'static str,
}

/// Counters of what is asked of leases. Results are `ok`, `valid` and the codes.
#[derive(Clone, Default)]
pub(crate) struct LeaseMetrics {
    operations: Family<OperationLabels, Counter>,
    fences: Family<FenceLabels, Counter>,
    pub(crate) cut: Counter,
    pub(crate) keepers: Gauge,
}

impl LeaseMetrics {
    /// Enters them; `registry` has the common prefix.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "lease_operations",
            "Operations on session leases by result",
            self.operations.clone(),
        );
        registry.register(
            "lease_fences",
            "Questions to the fence before an attempt under a lease, by result",
            self.fences.clone(),
        );
        registry.register(
            "lease_cuts",
            "Requests in flight that were cut because their lease was lost",
            self.cut.clone(),
        );
        registry.register(
            "leases_served",
            "Session leases that requests came in under on this node and that are not over",
            self.keepers.clone(),
        );
    }

    /// Counts an operation.
    pub(crate) fn operation(&self, operation: &'static str, result: &'static str) {
        let labels = OperationLabels { operation, result };
        self.operations.get_or_create(&labels).inc();
    }

    /// Counts a question to the fence.
    pub(crate) fn fence(&self, result: &'static str) {
        self.fences.get_or_create(&FenceLabels { result }).inc();
    }
}
