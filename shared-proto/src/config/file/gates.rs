//! The gate in front of what combos fail on, and the retries of what expired.

use schemars::JsonSchema;
use serde::Deserialize;

/// The gate in front of providers and connections that combos fail on.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ProviderCooldown {
    /// Whether combos pass over a provider with too many failures in its window, and over a connection for
    /// a while after each failure. Default false.
    pub(crate) enabled: Option<bool>,
    /// A connection's rest after its first failure, ms; it doubles with each in a row. Default 5000.
    #[schemars(range(min = 0, max = 3_600_000))]
    pub(crate) min_retry_cooldown_ms: Option<u64>,
    /// A connection's longest rest, ms; at least the first. Default 300000.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) max_retry_cooldown_ms: Option<u64>,
}

/// Retries of connections whose credential was refused.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ExpiredRetry {
    /// Whether an expired connection is tried again by itself: its tokens are renewed, or a live test is
    /// made. Default true.
    pub(crate) enabled: Option<bool>,
    /// How often it is looked which are due, ms. Default 60000.
    #[schemars(range(min = 1000, max = 3_600_000))]
    pub(crate) sweep_ms: Option<u64>,
    /// Wait before the first retry, ms; it doubles with each, up to four hours. Default 300000.
    #[schemars(range(min = 1000, max = 86_400_000))]
    pub(crate) base_ms: Option<u64>,
    /// Retries; after them the connection stays expired. Default 3.
    #[schemars(range(min = 0, max = 10))]
    pub(crate) max_retries: Option<u64>,
}
