//! Metrics of what nodes share.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Seconds; dense around the tenth of a second within which a change has to
/// be acted on.
const LAG_BUCKETS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CauseLabels {
    cause: &'static str,
}

/// Metrics of the follower and the roster.
pub(crate) struct ClusterMetrics {
    pub(crate) lag: Histogram,
    pub(crate) nodes: Gauge,
    snapshots: Family<CauseLabels, Counter>,
}

impl ClusterMetrics {
    pub(super) fn new() -> Self {
        Self {
            lag: Histogram::new(LAG_BUCKETS),
            nodes: Gauge::default(),
            snapshots: Family::default(),
        }
    }

    /// Enters them; `registry` has the common prefix.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "change_lag_seconds",
            "From the commit of a change of shared state to its application on this node",
            self.lag.clone(),
        );
        registry.register(
            "live_nodes",
            "Router nodes that live, as last read",
            self.nodes.clone(),
        );
        registry.register(
            "snapshots",
            "Readings of the whole shared state after the start, by cause",
            self.snapshots.clone(),
        );
    }

    /// Counts a reading.
    pub(crate) fn read_again(&self, cause: &'static str) {
        self.snapshots.get_or_create(&CauseLabels { cause }).inc();
    }
}
