//! `settings.egress` of the file.

use schemars::JsonSchema;
use serde::Deserialize;

/// Limits that count by the address a connection leaves by, and how that is found out.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Egress {
    /// Asked for the address that a connection leaves by, through its own proxy: answers `{"ip": "..."}`
    /// or the bare address. Nobody asks it without a connection whose limits count that way. Default
    /// `https://api64.ipify.org?format=json`.
    pub(crate) echo_url: Option<String>,
    /// How long an answer counts before it is asked again, ms. Default 300000.
    #[schemars(range(min = 100, max = 86_400_000))]
    pub(crate) cache_ms: Option<u64>,
    /// How long an answer may take, ms. Default 6000.
    #[schemars(range(min = 100, max = 60_000))]
    pub(crate) timeout_ms: Option<u64>,
    /// How long the last known address counts when nobody answers, ms. Default 86400000.
    #[schemars(range(min = 1000, max = 86_400_000))]
    pub(crate) observation_max_age_ms: Option<u64>,
    /// Providers whose limits count by address, as one family; an empty list is nobody. Default: the
    /// families of the catalogue and of `providers`. `OMNIROUTE_EGRESS_IP_LOCK_PROVIDERS` is the same,
    /// parted by commas, or `none`; it counts where this is absent.
    pub(crate) lock_providers: Option<Vec<String>>,
}
