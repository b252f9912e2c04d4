//! Metrics of what accounts do at the wall of their limit.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use shared_proto::id::ProviderId;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    provider: String,
    event: &'static str,
    reason: &'static str,
}

/// Counters of what accounts do at their wall.
#[derive(Clone, Default)]
pub(crate) struct WallMetrics {
    events: Family<Labels, Counter>,
}

impl WallMetrics {
    /// Enters them; `registry` has the common prefix.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "usage_wall",
            "What accounts did at the wall of their usage limit, by provider, event and reason",
            self.events.clone(),
        );
    }

    /// Counts an event: `retry` by why, `served`, `ended` by why, `reset` by its result.
    pub(crate) fn count(&self, provider: &ProviderId, event: &'static str, reason: &'static str) {
        let labels = Labels {
            provider: provider.as_str().to_owned(),
            event,
            reason,
        };
        self.events.get_or_create(&labels).inc();
    }
}
