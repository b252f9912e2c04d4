//! The operator's rules about upstream failures and locks, as the file writes them.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::failure::{Reason, RuleScope};

/// What a refusal of a provider means.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ErrorRule {
    /// The upstream's status.
    #[schemars(required, range(min = 100, max = 599), extend("x-exact" = true))]
    pub(crate) status: Option<u64>,
    /// Text that the upstream's answer has to hold, upper or lower case; never a pattern.
    #[schemars(required, length(min = 1, max = 200))]
    pub(crate) r#match: Option<String>,
    /// What the failure is charged to.
    #[schemars(required)]
    pub(crate) scope: Option<RuleScopeName>,
    /// Its reason. Default `quota_exhausted`.
    pub(crate) reason: Option<RuleReason>,
    /// How long what it is charged to rests, ms. Default: the ladder, or what the upstream announces.
    #[schemars(range(min = 0, max = 86_400_000), extend("x-exact" = true))]
    pub(crate) cooldown_ms: Option<u64>,
}

/// Locks of one model on one connection.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ModelLockout {
    /// Whether a passing failure with one of `errorCodes` locks the model instead of resting the
    /// connection. What is plainly about one model locks it anyway. Default false.
    pub(crate) enabled: Option<bool>,
    /// Statuses that lock; those outside 100-599 are dropped. Default 403, 404, 429, 502, 503, 504.
    pub(crate) error_codes: Option<Vec<i64>>,
    /// First step of the ladder, ms. Default 120000.
    #[schemars(range(min = 5000, max = 600_000))]
    pub(crate) base_cooldown_ms: Option<u64>,
    /// Cap of the ladder, ms, of connections too; at least `baseCooldownMs`. Default 1800000.
    #[schemars(range(min = 5000, max = 3_600_000))]
    pub(crate) max_cooldown_ms: Option<u64>,
    /// Doublings of the ladder. Default 10.
    #[schemars(range(min = 0, max = 20))]
    pub(crate) max_backoff_steps: Option<u64>,
    /// Whether the ladder doubles. Default true.
    pub(crate) use_exponential_backoff: Option<bool>,
    /// Zone in which a day's quota is counted, such as `Europe/Warsaw`. Default UTC.
    pub(crate) daily_quota_reset_timezone: Option<String>,
    /// Hour there at which it begins anew. Default 0.
    #[schemars(range(min = 0, max = 23))]
    pub(crate) daily_quota_reset_hour: Option<u64>,
}

/// A status that means another one.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RestatementRule {
    /// Its name in traces. Default: operator-, its provider and its place in the list.
    #[schemars(length(min = 1, max = 100))]
    pub(crate) id: Option<String>,
    /// Whose status.
    #[schemars(required, length(min = 1, max = 100))]
    pub(crate) provider: Option<String>,
    /// The statuses that it sends.
    #[schemars(required)]
    pub(crate) from_statuses: Option<Vec<Status>>,
    /// What they mean.
    #[schemars(required)]
    pub(crate) to_status: Option<Status>,
    /// Texts of which the answer has to hold one, upper or lower case; at most 20.
    #[schemars(required)]
    pub(crate) text_markers: Option<Vec<Marker>>,
    /// Texts of which it may hold none; at most 20.
    pub(crate) exclude_markers: Option<Vec<Marker>>,
    /// What the client is told to wait where the upstream doesn't say, ms.
    #[schemars(range(min = 0, max = 86_400_000), extend("x-exact" = true))]
    pub(crate) default_retry_after_ms: Option<u64>,
}

/// A status of HTTP that is an error.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Status(
    #[schemars(range(min = 400, max = 599), extend("x-exact" = true))] pub(crate) u64,
);

/// A text of at most 200 characters.
#[derive(Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Marker(#[schemars(length(min = 1, max = 200))] pub(crate) String);

/// What a rule may charge.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) enum RuleScopeName {
    /// The model on this connection.
    Model,
    /// The provider.
    Provider,
    /// The connection.
    Connection,
}

impl From<RuleScopeName> for RuleScope {
    fn from(name: RuleScopeName) -> Self {
        match name {
            RuleScopeName::Model => Self::Model,
            RuleScopeName::Provider => Self::Provider,
            RuleScopeName::Connection => Self::Connection,
        }
    }
}

/// What a rule may give as the reason.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RuleReason {
    /// A quota is used up.
    QuotaExhausted,
    /// Too many requests.
    RateLimitExceeded,
    /// The model is overloaded or missing.
    ModelCapacity,
    /// The upstream broke.
    ServerError,
    /// The credential was refused.
    AuthError,
    /// Nothing known.
    Unknown,
}

impl From<RuleReason> for Reason {
    fn from(reason: RuleReason) -> Self {
        match reason {
            RuleReason::QuotaExhausted => Self::QuotaExhausted,
            RuleReason::RateLimitExceeded => Self::RateLimitExceeded,
            RuleReason::ModelCapacity => Self::ModelCapacity,
            RuleReason::ServerError => Self::ServerError,
            RuleReason::AuthError => Self::AuthError,
            RuleReason::Unknown => Self::Unknown,
        }
    }
}
