//! The words for failures: closed sets shared by the classifier, the machines,
//! the traces and the answers.

use serde::{Deserialize, Serialize};

/// Why an attempt failed, as the classifier sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A quota (plan window, daily or monthly allowance, credits) is used up.
    QuotaExhausted,
    /// Too many requests or tokens in a short window.
    RateLimitExceeded,
    /// The model is overloaded, missing here or not fit for the request.
    ModelCapacity,
    /// The upstream broke: 5xx, a reset, a truncated or empty answer.
    ServerError,
    /// The credential was refused.
    AuthError,
    /// The model or path does not exist at the upstream.
    NotFound,
    /// A local service is not up.
    ServiceNotRunning,
    /// Nothing known fits.
    Unknown,
}

impl Reason {
    /// The word used in JSON, logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QuotaExhausted => "quota_exhausted",
            Self::RateLimitExceeded => "rate_limit_exceeded",
            Self::ModelCapacity => "model_capacity",
            Self::ServerError => "server_error",
            Self::AuthError => "auth_error",
            Self::NotFound => "not_found",
            Self::ServiceNotRunning => "service_not_running",
            Self::Unknown => "unknown",
        }
    }
}

/// Whom a failure is charged to; exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The request itself: no target would do better, or nothing is to be remembered.
    Request,
    /// A harmless oddity of the upstream's protocol.
    ProtocolQuirk,
    /// This model on this connection.
    Model,
    /// The account.
    Connection,
    /// The address the request left from.
    EgressIp,
    /// The provider as a whole.
    Provider,
    /// Ourselves.
    Router,
    /// The client went away; nobody's fault.
    Client,
}

impl Blame {
    /// The word used in JSON, logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::ProtocolQuirk => "protocol_quirk",
            Self::Model => "model",
            Self::Connection => "connection",
            Self::EgressIp => "egress_ip",
            Self::Provider => "provider",
            Self::Router => "router",
            Self::Client => "client",
        }
    }
}

/// What a provider's rule may charge a failure to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RuleScope {
    /// The request; nothing is remembered.
    Request,
    /// The model on this connection.
    Model,
    /// The account.
    Connection,
    /// The provider as a whole.
    Provider,
}

impl RuleScope {
    /// Whom that is.
    pub const fn blame(self) -> Blame {
        match self {
            Self::Request => Blame::Request,
            Self::Model => Blame::Model,
            Self::Connection => Blame::Connection,
            Self::Provider => Blame::Provider,
        }
    }
}

/// The second classifier's words ("error types"); they drive terminal states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorType {
    /// 429 without a sign of a used-up quota.
    RateLimited,
    /// The credential is not accepted.
    Unauthorized,
    /// The provider closed or suspended the account.
    AccountDeactivated,
    /// The account may not do this at all.
    Forbidden,
    /// 5xx.
    ServerError,
    /// Quota or credits used up.
    QuotaExhausted,
    /// A project or API switch is missing; the account is fine.
    ProjectRouteError,
    /// The prompt does not fit.
    ContextOverflow,
    /// The OAuth token is stale; a refresh may mend it.
    OauthInvalidToken,
    /// 200 without content.
    EmptyContent,
    /// The model is not there for this account.
    ModelNotFound,
    /// The edge refused our fingerprint.
    FingerprintRejection,
    /// The region is refused.
    GeoBlocked,
    /// The provider refused the request without a reason.
    RequestRejected,
    /// Nobody refused: a window of the quota was all but used up before the call.
    QuotaPreflight,
}

impl ErrorType {
    /// The word used in JSON, logs and spans.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RateLimited => "rate_limited",
            Self::Unauthorized => "unauthorized",
            Self::AccountDeactivated => "account_deactivated",
            Self::Forbidden => "forbidden",
            Self::ServerError => "server_error",
            Self::QuotaExhausted => "quota_exhausted",
            Self::ProjectRouteError => "project_route_error",
            Self::ContextOverflow => "context_overflow",
            Self::OauthInvalidToken => "oauth_invalid_token",
            Self::EmptyContent => "empty_content",
            Self::ModelNotFound => "model_not_found",
            Self::FingerprintRejection => "fingerprint_rejection",
            Self::GeoBlocked => "geo_blocked",
            Self::RequestRejected => "request_rejected",
            Self::QuotaPreflight => "quota_preflight",
        }
    }
}

/// Why a connection is out of use until an operator or new credentials bring it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terminal {
    /// The account is banned or deactivated.
    Banned,
    /// The credential expired or was revoked.
    Expired,
    /// The prepaid balance is gone.
    CreditsExhausted,
}

impl Terminal {
    /// The word of `testStatus`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Banned => "banned",
            Self::Expired => "expired",
            Self::CreditsExhausted => "credits_exhausted",
        }
    }
}

/// Which numbers apply to a provider's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Profile {
    /// Subscription accounts.
    Oauth,
    /// API keys.
    ApiKey,
    /// Servers on the operator's own machines.
    Local,
}

/// Where an announced reset was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HintSource {
    /// A response header.
    Header,
    /// Google's `RetryInfo` detail.
    GoogleRpcRetryInfo,
    /// A field or text of the body.
    Body,
    /// Not this answer: a window of the account's quota, as earlier ones told of it.
    QuotaWindow,
}

impl HintSource {
    /// The word used in JSON, logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::GoogleRpcRetryInfo => "google_rpc_retry_info",
            Self::Body => "body",
            Self::QuotaWindow => "quota_window",
        }
    }
}

/// When the upstream says it will serve again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResetHint {
    /// From now, in ms; above 0, rounded up, within the bound of its reason.
    pub wait_ms: u64,
    /// The kind of place it was read from.
    pub source: HintSource,
    /// The exact header or field, such as `retry-after-ms`.
    pub field: String,
}

/// How long a failed connection rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cooldown {
    /// Not at all.
    None,
    /// The next step of the ladder, unless a hint is allowed to replace it.
    Ladder,
    /// This long, in ms, at the level it had.
    Fixed(u64),
    /// Longer with each in a row; the third ends the connection's use.
    Streak,
}

/// A classified failure: everything the plan, the machines, the trace and the
/// answer need to know about one failed attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The status after restatement; for a transport failure the one it stands for.
    pub status: u16,
    /// Why it failed.
    pub reason: Reason,
    /// Whom it is charged to.
    pub blame: Blame,
    /// The second classifier's word, where it has one.
    pub error_type: Option<ErrorType>,
    /// Whether the request may go to another target.
    pub fallback: bool,
    /// A state only an operator or new credentials end.
    pub terminal: Option<Terminal>,
    /// How long the connection rests when it is blamed and not terminal.
    pub cooldown: Cooldown,
    /// The upstream's own announcement, kept even where it is not used.
    pub hint: Option<ResetHint>,
    /// What the client is told to wait when nobody else could serve, ms.
    pub client_retry_after_ms: Option<u64>,
    /// Whether the provider's breaker counts it.
    pub counts_for_breaker: bool,
    /// Id of the rule that decided.
    pub rule: String,
    /// Id of the restatement rule that changed the status, and the status before.
    pub restated: Option<(String, u16)>,
    /// The upstream's own error code or type, at most 64 characters.
    pub upstream_code: Option<String>,
    /// What happened in words, free of keys and ids, at most 300 characters.
    pub message: String,
}

impl Failure {
    /// The time to wait that counts, if there is one. `use_hints` is whether the
    /// operator heeds announcements; a window of the quota that was known before is
    /// no word of the refusal, and counts either way.
    pub fn heeded_hint(&self, use_hints: bool) -> Option<&ResetHint> {
        let heeded = |hint: &&ResetHint| use_hints || hint.source == HintSource::QuotaWindow;
        self.hint
            .as_ref()
            .filter(heeded)
            .filter(|hint| hint.wait_ms > 0)
    }
}
