//! Metrics of token refreshes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use shared_proto::id::ProviderId;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    provider: String,
    result: &'static str,
}

/// Counters of calls to token endpoints.
#[derive(Clone, Default)]
pub(crate) struct TokenMetrics {
    refreshes: Family<Labels, Counter>,
}

impl TokenMetrics {
    /// Enters them; `registry` has the common prefix.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "token_refreshes",
            "Calls to token endpoints by provider and result",
            self.refreshes.clone(),
        );
    }

    /// Counts a call; `result` is `refreshed`, `refused`, `failed` or `superseded`.
    pub(crate) fn refresh(&self, provider: &ProviderId, result: &'static str) {
        let labels = Labels {
            provider: provider.as_str().to_owned(),
            result,
        };
        self.refreshes.get_or_create(&labels).inc();
    }
}
