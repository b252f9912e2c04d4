//! The signs by which failures are told apart: families of texts and of codes.
//! Texts are lowercase, codes are compared whole.

use super::pattern::Pat::{self, Has, Near, Seq, Seq3, Word};

/// The provider closed the account.
pub(super) const BANNED: &[Pat] = &[
    Has("account_deactivated"),
    Has("account has been deactivated"),
    Has("account has been disabled"),
    Has("your account has been suspended"),
    Has("this account is deactivated"),
    Has("this service has been disabled in this account"),
    Has("organization has been disabled"),
    Has("organization has been restricted"),
];
pub(super) const BANNED_WORDS: &[&str] = &[
    "account_deactivated",
    "organization_restricted",
    "organization_disabled",
    "consumer_suspended",
];

/// The money is gone.
pub(super) const CREDITS: &[Pat] = &[
    Has("insufficient_quota"),
    Has("billing_hard_limit_reached"),
    Has("exceeded your current quota"),
    Has("exceeded your current usage quota"),
    Has("exceeded current quota"),
    Has("credit_balance_too_low"),
    Has("your credit balance is too low"),
    Has("credits exhausted"),
    Has("out of credits"),
    Has("payment required"),
    Has("payment is past due"),
    Has("free tier of the model has been exhausted"),
    Has("tier has been exhausted"),
    Has("insufficient balance"),
    Has("insufficient_balance"),
    Has("insufficient account balance"),
    Has("insufficient credit"),
    Has("exhausted all your credits"),
    Has("used all available credits"),
    Has("usage balance exhausted"),
    Seq("credits", "depleted"),
    Has("余额不足"),
    Has("额度已用尽"),
];
pub(super) const CREDITS_WORDS: &[&str] = &[
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "exceeded_current_quota_error",
    "insufficient_balance_error",
    "arrearage",
];
/// Credits texts that hold on a 429 too, whoever relays it: they speak of money.
pub(super) const MONEY: &[Pat] = &[
    Has("insufficient balance"),
    Has("insufficient_balance"),
    Has("insufficient account balance"),
    Has("insufficient credit"),
    Has("余额不足"),
    Seq("credits", "depleted"),
];
/// The account stands still until a bill is paid; it may come back by itself.
pub(super) const BILLING_SUSPENSION: &[Pat] = &[
    Near("suspended", "spending limit", 120),
    Near("suspended", "billing", 120),
    Near("suspended", "invoice", 120),
    Near("suspended", "payment", 120),
];
/// How much of an over-dear request could be paid.
pub(super) const CAN_AFFORD: &str = "can only afford ";

/// Says a long quota outright, so that a 429 may be believed to be one.
pub(super) const LONG_QUOTA: &[Pat] = &[
    Seq("daily", "limit"),
    Seq("daily", "quota"),
    Seq("per day", "limit"),
    Seq("monthly", "limit"),
    Seq("monthly", "quota"),
    Seq("per month", "limit"),
    Seq("quota", "exceed"),
    Seq("exceed", "quota"),
    Seq("insufficient", "quota"),
    Seq("billing", "cap"),
    Seq("credit", "exhaust"),
    Has("out of credits"),
    Has("hard limit"),
    Seq("plan", "limit"),
    Has("individual quota reached"),
    Has("enable overages"),
    Has("insufficient_g1_credits_balance"),
    Seq("resource has been exhausted", "reset after"),
    Has("daily free allocation"),
    Near("24-hour", "limit", 40),
    Near("24 hour", "limit", 40),
];
pub(super) const LONG_QUOTA_WORDS: &[&str] =
    &["insufficient_g1_credits_balance", "quota_exhausted"];
/// Ends at midnight.
pub(super) const DAILY: &[Pat] = &[
    Has("today's quota"),
    Has("daily quota"),
    Has("try again tomorrow"),
    Has("daily free allocation"),
];
/// Daily by the size of the bucket.
pub(super) const PER_DAY: &[Pat] = &[
    Has("per-day"),
    Has("requests per day"),
    Has("tokens per day"),
    Word("rpd"),
    Word("tpd"),
];
/// A window of a subscription.
pub(super) const SUBSCRIPTION: &[Pat] = &[
    Has("usage limit reached"),
    Has("usage limit has been"),
    Has("usage limit exceeded"),
    Has("claude pro usage limit"),
    Has("you've reached your usage limit"),
    Has("you have reached your usage limit"),
    Has("使用上限"),
];
pub(super) const SUBSCRIPTION_WORDS: &[&str] = &["usage_limit_reached"];
/// Counts only where the provider is Anthropic.
pub(super) const SUBSCRIPTION_CLAUDE: &[Pat] =
    &[Has("this request would exceed your account's rate limit")];
pub(super) const WEEKLY: &[Pat] = &[
    Has("weekly usage limit"),
    Has("weekly limit reached"),
    Has("reached your weekly"),
    Has("1-week quota"),
    Has("week quota"),
    Has("weekly/monthly limit"),
    Seq3("weekly", "quota", "exhaust"),
];
pub(super) const SESSION: &[Pat] = &[
    Has("session usage limit"),
    Has("session limit reached"),
    Seq("reached your session", "usage limit"),
];
pub(super) const ROLLING_DAY: &[Pat] = &[
    Near("rolling", "24-hour", 40),
    Near("rolling", "24 hour", 40),
    Has("rolling 24h"),
];

/// General texts of a quota.
pub(super) const QUOTA: &[Pat] = &[
    Has("hour quota"),
    Has("quota has been exceeded"),
    Has("quota exceeded"),
    Has("quota will reset"),
    Has("quota depleted"),
    Has("exhausted your capacity"),
    Has("quota exhausted"),
    Has("free tier of the model has been exhausted"),
    Has("out of extra usage"),
    Has("extra usage required"),
];
/// General texts of a rate limit.
pub(super) const RATE_LIMIT: &[Pat] =
    &[Has("rate limit"), Has("too many requests"), Has("速率限制")];
/// Rate limits told with a 400.
pub(super) const RATE_LIMIT_400: &[Pat] = &[
    Has("high frequency"),
    Has("high-frequency"),
    Has("high_frequency"),
    Has("non-compliant"),
    Has("too many requests"),
    Has("rate limit"),
    Has("rate-limit"),
    Has("rate_limit"),
    Has("ratelimit"),
    Has("频繁"),
    Has("频率"),
];
/// The limit is the model's own.
pub(super) const MODEL_LIMIT: &[Pat] = &[
    Has("specific to this model"),
    Has("model-specific"),
    Has("model specific"),
];
pub(super) const MODEL_LIMIT_WORDS: &[&str] = &["model_rate_limit"];
/// The model has no room for anybody.
pub(super) const OVERLOAD: &[Pat] = &[
    Has("capacity"),
    Has("overloaded"),
    Has("high demand"),
    Has("we're receiving too many requests"),
    Has("访问量过大"),
    Has("饱和"),
];
pub(super) const OVERLOAD_WORDS: &[&str] = &[
    "overloaded",
    "overloaded_error",
    "model_overloaded",
    "server_is_overloaded",
    "server_overloaded",
    "engine_overloaded",
    "engine_overloaded_error",
    "model_capacity_exhausted",
    "provider_unavailable",
    "provider_overloaded",
];

/// The prompt does not fit.
pub(super) const OVERFLOW: &[Pat] = &[
    Word("input is too long"),
    Word("input too long"),
    Seq("context", "too long"),
    Seq("context", "exceeded"),
    Seq("context", "overflow"),
    Seq("context", "limit"),
    Seq("exceed", "context"),
    Has("context length"),
    Has("context window"),
    Has("maximum context"),
    Has("prompt too large"),
    Has("prompt is too long"),
    Has("too many tokens"),
    Seq("max", "token"),
    Has("token limit"),
    Has("request too large"),
    Has("messages exceed"),
    Has("input length should be"),
    Has("tokens per minute"),
    Word("tpm"),
];
pub(super) const OVERFLOW_WORDS: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "request_too_large",
    "string_above_max_length",
];
/// One request is bigger than a whole minute's allowance.
pub(super) const TOO_LARGE_FOR_LIMIT: &[Pat] =
    &[Has("request too large"), Has("reduce your message size")];

/// The model or its provider refuses the content.
pub(super) const POLICY: &[Pat] = &[
    Has("content management policy"),
    Has("content policy"),
    Has("usage policies"),
    Has("usage policy"),
    Has("safety system"),
    Has("input was flagged"),
    Has("content was flagged"),
    Has("prompt was flagged"),
    Has("requires moderation"),
    Has("内容安全"),
    Has("敏感"),
];
pub(super) const POLICY_WORDS: &[&str] = &[
    "content_filter",
    "content_policy_violation",
    "content_policy",
    "cyber_policy",
    "responsibleaipolicyviolation",
    "moderation_blocked",
    "data_inspection_failed",
    "datainspectionfailed",
    "prohibited_content",
];

/// The request is not well formed.
pub(super) const MALFORMED: &[Pat] = &[
    Has("improperly formed request"),
    Seq3("invalid", "message", "format"),
    Has("messages must alternate"),
    Has("empty message"),
    Has("empty content"),
    Seq3("function", "name", "blank"),
    Seq3("function", "name", "empty"),
    Seq3("tool", "name", "blank"),
    Seq3("tool", "name", "empty"),
    Near("function name", "missing", 40),
    Near("tool name", "missing", 40),
    Seq("max_tokens", "illegal"),
    Seq("max_tokens", "must be"),
    Seq("max_tokens", "range"),
    Has("parameter is illegal"),
    Seq("is illegal", "range"),
    Has("extra inputs are not permitted"),
    Has("additional inputs are not permitted"),
    Has("extra inputs not permitted"),
    Has("additional properties are not allowed"),
    Has("unknown field"),
    Has("unknown parameter"),
    Has("unrecognized field"),
    Has("unrecognized parameter"),
    Has("unrecognized request argument"),
    Has("unrecognised field"),
    Has("unrecognised parameter"),
    Has("unexpected field"),
    Has("unexpected parameter"),
    Has("invalid field"),
    Has("invalid parameter"),
];
/// A parameter that this model does not take, whoever serves it.
pub(super) const UNSUPPORTED_PARAMETER: &[Pat] =
    &[Has("unsupported parameter"), Has("unsupported value")];
pub(super) const UNSUPPORTED_PARAMETER_WORDS: &[&str] =
    &["unsupported_parameter", "unsupported_value"];

/// This account may not use this model, or there is no such model.
pub(super) const MODEL_ACCESS: &[Pat] = &[
    Word("invalid model"),
    Seq3("model", "not", "available"),
    Seq3("model", "not", "found"),
    Seq3("model", "not", "supported"),
    Seq3("model", "not", "accessible"),
    Seq("model", "does not exist"),
    Seq("model", "doesn't exist"),
    Near("model", "does not support", 80),
    Near("model", "doesn't support", 80),
    Near("model", "unsupported", 80),
    Has("unsupported model"),
    Seq3("access", "denied", "model"),
    Seq3("model", "access", "denied"),
    Has("please select a different model"),
    Near("access", "model", 60),
    Near("permission", "model", 60),
    Has("unknown provider for model"),
    Near("must be verified", "model", 60),
    Has("required for long context"),
    Seq("无权", "模型"),
    Seq("未开放", "权限"),
];
pub(super) const MODEL_ACCESS_WORDS: &[&str] = &[
    "model_not_found",
    "model_not_supported",
    "deployment_not_found",
    "deploymentnotfound",
    "not_found_error",
];
/// Only the name is wrong: the model isn't served, to nobody.
pub(super) const MODEL_NOT_SUPPORTED: &[Pat] = &[Near("model", "is not supported", 80)];
/// Speaks of the key, though it may name a model.
pub(super) const CREDENTIAL: &[Pat] = &[
    Near("invalid", "api key", 20),
    Near("incorrect", "api key", 20),
    Near("expired", "api key", 20),
    Near("missing", "api key", 20),
    Near("revoked", "api key", 20),
    Has("authentication failed"),
    Has("authentication error"),
    Has("authentication required"),
    Has("invalid token"),
    Has("expired token"),
    Has("missing token"),
    Has("revoked token"),
    Has("invalid credential"),
    Has("expired credential"),
    Has("missing credential"),
    Has("revoked credential"),
    Has("invalid bearer"),
    Has("expired bearer"),
    Has("missing bearer"),
    Word("unauthorized"),
    Has("not authenticated"),
];
/// The key is refused, whatever the status.
pub(super) const CREDENTIAL_WORDS: &[&str] = &[
    "authentication_error",
    "invalid_api_key",
    "api_key_invalid",
    "invalidapikey",
    "unauthenticated",
];
/// The key must not be used any more.
pub(super) const LEAKED: &[Pat] = &[Has("reported as leaked")];
/// A stale token that a refresh may mend.
pub(super) const OAUTH_TOKEN: &[Pat] = &[
    Has("invalid authentication credentials"),
    Has("oauth 2"),
    Has("login cookie"),
    Has("valid authentication credential"),
    Has("invalid credentials"),
    Has("re-authenticate your"),
];

/// A switch of the project is off; the account is fine.
pub(super) const PROJECT: &[Pat] = &[
    Has("has not been used in project"),
    Has("it is disabled"),
    Has("verify your account to continue"),
];
pub(super) const PROJECT_WORDS: &[&str] = &[
    "service_disabled",
    "accessnotconfigured",
    "permission_denied",
    "gcp_project_required",
];
/// The edge blocks the account.
pub(super) const SENTINEL: &[Pat] = &[
    Has("sentinel_blocked"),
    Near("sentinel", "blocked", 80),
    Has("turnstile required"),
];

/// The region is refused.
pub(super) const GEO: &[Pat] = &[
    Has("location is not supported"),
    Has("not supported for the api use"),
    Has("region is not supported"),
    Has("unsupported location"),
    Has("not available in your location"),
    Has("not available in your region"),
    Has("not available in your country"),
    Has("country, region, or territory not supported"),
];
pub(super) const GEO_WORDS: &[&str] = &["unsupported_country_region_territory"];

/// The model is gone for good.
pub(super) const RETIRED: &[Pat] = &[
    Has("no longer available"),
    Has("no longer supported"),
    Has("has reached its end of life"),
    Has("has reached the end of life"),
    Near("model", "deprecated", 40),
    Near("model", "retired", 40),
    Near("model", "discontinued", 40),
    Near("model", "decommissioned", 40),
];
/// The base URL is out of date.
pub(super) const MOVED: &[Pat] = &[
    Has("endpoint has moved"),
    Has("no longer works"),
    Has("update your base url"),
];
/// NVIDIA's word for a function that is down.
pub(super) const DEGRADED: &[Pat] = &[Near("function", "degraded", 80)];

/// Things that requests name and that may be missing.
pub(super) const RESOURCES: &[&str] = &[
    "file",
    "files",
    "input file",
    "file id",
    "item",
    "response",
    "vector store",
    "upload",
];
pub(super) const MISSING: &[&str] = &["not found", "does not exist"];
pub(super) const RESOURCE_GAP: usize = 160;

/// A gateway that quotes the refusals of others.
pub(super) const QUOTED_STATUS: &[Pat] = &[
    Has("status code: 4"),
    Has("status code 4"),
    Seq3("all", "failed", "error"),
];

/// Ended by ourselves or by the client.
pub(super) const LOCAL_LIFECYCLE: &[Pat] = &[
    Has("controller is already closed"),
    Has("request_signal_aborted"),
    Has("client disconnected"),
    Has("operation was aborted"),
];
/// Codes and types of failures that belong to the request, not to the provider.
pub(super) const NOT_BREAKER_WORDS: &[&str] = &[
    "context_length_exceeded",
    "context_window_exceeded",
    "upstream_empty_response",
    "upstream_response_failed",
    "combo_target_timeout",
    "rate_limit_queue_timeout",
    "rate_limit_queue_full",
    "rate_limit_queue_wedged",
    "token_limit_exceeded",
    "resource_pressure",
    "heap_pressure",
    "invalid_request_error",
    "local_queue_capacity",
    "freetiererror",
    "stream_readiness_timeout",
    "enoent",
    "eacces",
    "epipe",
    "err_child_process_stdio_maxbuffer",
];
