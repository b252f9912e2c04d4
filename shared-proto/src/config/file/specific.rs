//! `providerSpecificData` of a connection, as far as its keys have a shape of their own.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Secret;

/// Provider-specific switches of a connection; those not named here are kept as written.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProviderSpecific {
    /// More keys of the same account, at most 16, beside `apiKey`. A key that the upstream refuses is
    /// set aside and the next one is presented; only when all are refused is the connection out of use.
    pub(crate) extra_api_keys: Option<Vec<Secret>>,
    /// The connection's own numbers of the rotation gate, instead of the environment's.
    pub(crate) rotation_overrides: Option<RotationOverrides>,
    /// The rest.
    #[serde(flatten)]
    pub(crate) switches: serde_json::Map<String, serde_json::Value>,
}

/// Which failures of a connection may move a request on, and from how many on.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RotationOverrides {
    /// Whether a 400 that would be the client's answer moves on. `OMNIROUTE_ROTATE_ON_400`, else false.
    pub(crate) rotate_on400: Option<bool>,
    /// Whether a 429 moves on. `OMNIROUTE_ROTATE_ON_429`, else true.
    pub(crate) rotate_on429: Option<bool>,
    /// Whether a 5xx other than 502 moves on. `OMNIROUTE_ROTATE_ON_500`, else true.
    pub(crate) rotate_on500: Option<bool>,
    /// Whether a 502, or no answer at all, moves on. `OMNIROUTE_ROTATE_ON_502`, else true.
    pub(crate) rotate_on502: Option<bool>,
    /// The how manieth 400 within the window moves on. `OMNIROUTE_ROTATE_400_THRESHOLD`, else 1.
    #[schemars(range(min = 1, max = 100), extend("x-exact" = true))]
    pub(crate) error400_threshold: Option<u64>,
    /// How long a 400 is counted, s. `OMNIROUTE_ROTATE_400_WINDOW_SECONDS`, else 120.
    #[schemars(range(min = 1, max = 86_400), extend("x-exact" = true))]
    pub(crate) error400_window_seconds: Option<u64>,
    /// The how manieth 429 within the window moves on. `OMNIROUTE_ROTATE_429_THRESHOLD`, else 1.
    #[schemars(range(min = 1, max = 100), extend("x-exact" = true))]
    pub(crate) error429_threshold: Option<u64>,
    /// How long a 429 is counted, s. `OMNIROUTE_ROTATE_429_WINDOW_SECONDS`, else 120.
    #[schemars(range(min = 1, max = 86_400), extend("x-exact" = true))]
    pub(crate) error429_window_seconds: Option<u64>,
    /// The how manieth 5xx other than 502 within the window moves on. `OMNIROUTE_ROTATE_500_THRESHOLD`, else 1.
    #[schemars(range(min = 1, max = 100), extend("x-exact" = true))]
    pub(crate) error500_threshold: Option<u64>,
    /// How long such a 5xx is counted, s. `OMNIROUTE_ROTATE_500_WINDOW_SECONDS`, else 120.
    #[schemars(range(min = 1, max = 86_400), extend("x-exact" = true))]
    pub(crate) error500_window_seconds: Option<u64>,
    /// The how manieth 502 within the window moves on. `OMNIROUTE_ROTATE_502_THRESHOLD`, else 1.
    #[schemars(range(min = 1, max = 100), extend("x-exact" = true))]
    pub(crate) error502_threshold: Option<u64>,
    /// How long a 502 is counted, s. `OMNIROUTE_ROTATE_502_WINDOW_SECONDS`, else 120.
    #[schemars(range(min = 1, max = 86_400), extend("x-exact" = true))]
    pub(crate) error502_window_seconds: Option<u64>,
    /// How long a rate limit rests that says nothing of its end, s; 0 is the ladder.
    /// `OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS`, else 0.
    #[schemars(range(min = 0, max = 86_400), extend("x-exact" = true))]
    pub(crate) rate_limit_reset_seconds: Option<u64>,
}
