//! Signs of limits, quotas and overload.

use crate::classify::pattern::Family;
use crate::classify::pattern::Pat::{Has, Near, Seq, Seq3, Word};

/// Says a long quota outright, so that a 429 may be believed to be one.
pub(in crate::classify) const LONG_QUOTA: Family = Family::new(&[
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
    Seq("当日", "上限"),
    Seq("今日", "上限"),
]);

pub(in crate::classify) const LONG_QUOTA_WORDS: &[&str] =
    &["insufficient_g1_credits_balance", "quota_exhausted"];

/// Ends at midnight.
pub(in crate::classify) const DAILY: Family = Family::new(&[
    Has("today's quota"),
    Has("daily quota"),
    Has("try again tomorrow"),
    Has("daily free allocation"),
    Seq("当日", "上限"),
    Seq("今日", "上限"),
]);

/// Daily by the size of the bucket.
pub(in crate::classify) const PER_DAY: Family = Family::new(&[
    Has("per-day"),
    Has("requests per day"),
    Has("tokens per day"),
    Word("rpd"),
    Word("tpd"),
]);

/// A window of a subscription.
pub(in crate::classify) const SUBSCRIPTION: Family = Family::new(&[
    Has("usage limit reached"),
    Has("usage limit has been"),
    Has("usage limit exceeded"),
    Has("claude pro usage limit"),
    Has("you've reached your usage limit"),
    Has("you have reached your usage limit"),
    Seq("reached your", "usage limit"),
    Seq("hit your", "usage limit"),
    Has("使用上限"),
]);

pub(in crate::classify) const SUBSCRIPTION_WORDS: &[&str] =
    &["usage_limit_reached", "usage_not_included"];

/// Counts only where the provider is Anthropic.
pub(in crate::classify) const SUBSCRIPTION_CLAUDE: Family =
    Family::new(&[Has("this request would exceed your account's rate limit")]);

pub(in crate::classify) const WEEKLY: Family = Family::new(&[
    Has("weekly usage limit"),
    Has("weekly limit reached"),
    Has("reached your weekly"),
    Has("1-week quota"),
    Has("week quota"),
    Has("weekly/monthly limit"),
    Seq3("weekly", "quota", "exhaust"),
]);

pub(in crate::classify) const SESSION: Family = Family::new(&[
    Has("session usage limit"),
    Has("session limit reached"),
    Seq("reached your session", "usage limit"),
]);

pub(in crate::classify) const HOURLY: Family =
    Family::new(&[Has("hourly usage limit"), Has("hourly limit reached")]);

pub(in crate::classify) const MONTHLY: Family = Family::new(&[
    Has("monthly quota"),
    Has("monthly usage limit"),
    Has("monthly limit"),
    Has("calls / month"),
    Has("calls per month"),
]);

pub(in crate::classify) const ROLLING_DAY: Family = Family::new(&[
    Near("rolling", "24-hour", 40),
    Near("rolling", "24 hour", 40),
    Has("rolling 24h"),
]);

/// General texts of a quota.
pub(in crate::classify) const QUOTA: Family = Family::new(&[
    Has("hour quota"),
    Has("quota has been exceeded"),
    Has("quota exceeded"),
    Has("quota will reset"),
    Has("quota will be replenished"),
    Has("exceeded the service quota"),
    Has("quota depleted"),
    Has("exhausted your capacity"),
    Has("quota exhausted"),
    Has("free tier of the model has been exhausted"),
    Has("out of extra usage"),
    Has("extra usage required"),
]);

/// General texts of a rate limit.
pub(in crate::classify) const RATE_LIMIT: Family =
    Family::new(&[Has("rate limit"), Has("too many requests"), Has("速率限制")]);

/// Rate limits told with a 400.
pub(in crate::classify) const RATE_LIMIT_400: Family = Family::new(&[
    Has("throttlingexception"),
    Has("rate exceeded"),
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
]);

/// The limit is the model's own, or of whoever serves it behind a relay.
pub(in crate::classify) const MODEL_LIMIT: Family = Family::new(&[
    Has("specific to this model"),
    Has("model-specific"),
    Has("model specific"),
    Has("limit for this model"),
    Has("rate-limited upstream"),
    Near("rate limit", ", model: ", 120),
    Seq("for team", "and model "),
    Has("error from provider"),
]);

pub(in crate::classify) const MODEL_LIMIT_WORDS: &[&str] = &["model_rate_limit"];

/// The model has no room for anybody.
pub(in crate::classify) const OVERLOAD: Family = Family::new(&[
    Has("capacity"),
    Has("overloaded"),
    Has("high demand"),
    Has("we're receiving too many requests"),
    Has("high traffic"),
    Has("too busy"),
    Has("no available channel"),
    Has("no available model"),
    Has("无可用渠道"),
    Has("no deployments available"),
    Has("is saturated"),
    Has("cooling down"),
    Has("all accounts are"),
    Near("no available", "account", 30),
    Has("model is unavailable"),
    Has("scaling up"),
    Has("currently loading"),
    Near("model", "not ready", 20),
    Has("访问量过大"),
    Has("繁忙"),
    Has("饱和"),
]);

pub(in crate::classify) const OVERLOAD_WORDS: &[&str] = &[
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
    "queue_exceeded",
    "slow_down",
];

/// The limit is of the account, whatever else is said.
pub(in crate::classify) const PER_ACCOUNT: Family =
    Family::new(&[Has("rate limit"), Has("速率限制")]);

pub(in crate::classify) const LONG_CONTEXT: Family = Family::new(&[Has("long context")]);

/// A limit that stands for a right that is missing.
pub(in crate::classify) const LIMIT_IS_ACCESS: Family = Family::new(&[
    Has("required for long context"),
    Has("plan not support model"),
    Has("plan does not support"),
    Has("plan does not include"),
    Has("not included in your plan"),
    Seq("未开放", "权限"),
    Seq("套餐", "不支持"),
]);

/// Google's own measures.
pub(in crate::classify) const GOOGLE: Family =
    Family::new(&[Has("generativelanguage.googleapis.com")]);

/// Measures of a minute.
pub(in crate::classify) const GOOGLE_MINUTE: Family =
    Family::new(&[Has("_requests"), Has("token_count")]);

pub(in crate::classify) const GOOGLE_DAY: Family =
    Family::new(&[Has("_per_day"), Has("per day"), Has("perday"), Has("daily")]);

/// A quota of none.
pub(in crate::classify) const ZERO_LIMIT: Family = Family::new(&[Has("limit: 0")]);

/// Every family of this file.
pub(super) const LIMITS: &[Family] = &[
    LONG_QUOTA,
    DAILY,
    PER_DAY,
    SUBSCRIPTION,
    SUBSCRIPTION_CLAUDE,
    WEEKLY,
    SESSION,
    HOURLY,
    MONTHLY,
    ROLLING_DAY,
    QUOTA,
    RATE_LIMIT,
    RATE_LIMIT_400,
    MODEL_LIMIT,
    OVERLOAD,
    PER_ACCOUNT,
    LONG_CONTEXT,
    LIMIT_IS_ACCESS,
    GOOGLE,
    GOOGLE_MINUTE,
    GOOGLE_DAY,
    ZERO_LIMIT,
];
