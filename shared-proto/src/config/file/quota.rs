//! `settings.resilience.quotaPreflight`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

/// Leaving a connection alone before its quota is spent, by what its answers tell of their windows.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct QuotaPreflight {
    /// Whether a connection, or the models that share a quota, rests from when a window is used up to when
    /// that begins anew. Default false.
    pub(crate) enabled: Option<bool>,
    /// Left-over percentage that counts as used up. Default 2.
    #[schemars(range(min = 0, max = 99))]
    pub(crate) default_threshold_percent: Option<u64>,
    /// Left-over percentage that is worth a line in the log; more than the one above. Default 20.
    #[schemars(range(min = 0, max = 100))]
    pub(crate) warn_threshold_percent: Option<u64>,
    /// Left-over percentages that count as used up, by provider and window.
    pub(crate) provider_window_defaults: Option<BTreeMap<String, BTreeMap<String, Percent>>>,
}

/// A percentage.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Percent(#[schemars(range(min = 0, max = 100))] pub(crate) u64);
