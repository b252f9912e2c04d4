//! Signs of the account, its credential and its address.

use crate::classify::pattern::Family;
use crate::classify::pattern::Pat::{Has, Near, Seq, Word};

/// The provider closed the account.
pub(in crate::classify) const BANNED: Family = Family::new(&[
    Has("account_deactivated"),
    Has("account has been deactivated"),
    Has("account has been disabled"),
    Has("your account has been suspended"),
    Has("this account is deactivated"),
    Has("this service has been disabled in this account"),
    Has("organization has been disabled"),
    Has("organization has been restricted"),
    Seq("account has been locked", "contact"),
    Has("账户已被锁定"),
    Has("账户已被冻结"),
    Has("账号已被封"),
    Has("用户已被封禁"),
]);

pub(in crate::classify) const BANNED_WORDS: &[&str] = &[
    "account_deactivated",
    "organization_restricted",
    "organization_disabled",
    "consumer_suspended",
    "deactivated_workspace",
];

/// The money is gone.
pub(in crate::classify) const CREDITS: Family = Family::new(&[
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
    Has("credit limit exceeded"),
    Has("key limit exceeded"),
    Has("quota is not enough"),
    Has("可用额度不足"),
    Has("exhausted all your credits"),
    Has("used all available credits"),
    Has("usage balance exhausted"),
    Seq("credits", "depleted"),
    Has("balance is insufficient"),
    Has("余额不足"),
    Has("额度已用尽"),
    Has("欠费"),
    Has("套餐已到期"),
]);

pub(in crate::classify) const CREDITS_WORDS: &[&str] = &[
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "exceeded_current_quota_error",
    "insufficient_balance_error",
    "arrearage",
    "insufficient_user_quota",
    "pre_consume_token_quota_failed",
    "billing_disabled",
    "credit_balance_exhausted",
    "creditserror",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "budget_exceeded",
    "prepaidbilloverdue",
    "postpaidbilloverdue",
];

/// Credits texts that hold on a 429 too, whoever relays it: they speak of money.
pub(in crate::classify) const MONEY: Family = Family::new(&[
    Has("no credits remaining"),
    Has("have any credits"),
    Has("no payment method"),
    Has("insufficient funds"),
    Has("insufficient account funds"),
    Has("package has expired"),
    Has("subscription has expired"),
    Has("bill is overdue"),
    Seq("credit balance", "depleted"),
    Has("insufficient balance"),
    Has("insufficient_balance"),
    Has("insufficient account balance"),
    Has("insufficient credit"),
    Has("balance is insufficient"),
    Has("credit limit exceeded"),
    Has("余额不足"),
    Has("欠费"),
    Has("套餐已到期"),
    Seq("credits", "depleted"),
]);

/// A cap on spending that somebody set is reached.
pub(in crate::classify) const SPENDING_CAP: Family = Family::new(&[
    Has("key limit exceeded"),
    Has("spend cap"),
    Near("budget has been exceeded", "cost", 40),
    Near("budget exceeded", "spend", 40),
    Near("exceeded", "spending cap", 40),
    Near("reached", "spending cap", 40),
    Near("exceeded", "spending limit", 40),
    Near("reached", "spending limit", 40),
    Near("exceeded", "spend limit", 40),
    Near("reached", "spend limit", 40),
]);

/// Such a cap that begins anew soon.
pub(in crate::classify) const RENEWING_CAP: Family = Family::new(&[
    Near("limit", "daily", 20),
    Near("limit", "weekly", 20),
    Near("budget", "daily", 20),
    Near("budget", "weekly", 20),
]);

/// What was free of one model is spent; the others go on.
pub(in crate::classify) const MODEL_FREE_TIER: Family =
    Family::new(&[Has("free tier of the model has been exhausted")]);

/// The account stands still until a bill is paid.
pub(in crate::classify) const BILLING_SUSPENSION: Family = Family::new(&[
    Near("suspended", "spending limit", 120),
    Near("suspended", "billing", 120),
    Near("suspended", "invoice", 120),
    Near("suspended", "payment", 120),
]);

/// What stands before the part of an over-dear request that could be paid.
pub(in crate::classify) const CAN_AFFORD: &[&str] = &[
    "can only afford ",
    "剩余额度: ",
    "remain quota: ",
    "remaining quota: ",
];

/// Speaks of the key, though it may name a model.
pub(in crate::classify) const CREDENTIAL: Family = Family::new(&[
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
]);

/// The key is refused, whatever the status.
pub(in crate::classify) const CREDENTIAL_WORDS: &[&str] = &[
    "authentication_error",
    "invalid_api_key",
    "api_key_invalid",
    "invalidapikey",
    "unauthenticated",
];

/// The key is refused in so many words, with a status that says less.
pub(in crate::classify) const KEY_REFUSED: Family = Family::new(&[
    Has("reported as leaked"),
    Has("incorrect api key provided"),
    Has("api key not valid"),
    Near("security token", "invalid", 40),
    Near("security token", "expired", 60),
    Near("organization has disabled", "access", 60),
    Has("scope requirement"),
    Has("does not have access to claude code"),
]);

/// A stale token that a refresh may mend.
pub(in crate::classify) const OAUTH_TOKEN: Family = Family::new(&[
    Has("invalid authentication credentials"),
    Has("oauth 2"),
    Has("login cookie"),
    Has("valid authentication credential"),
    Has("invalid credentials"),
    Has("re-authenticate your"),
]);

/// The same, of tokens that are refreshed as a matter of course.
pub(in crate::classify) const TOKEN_EXPIRED: Family = Family::new(&[
    Has("token has expired"),
    Has("token is expired"),
    Has("token expired"),
    Has("token_expired"),
]);

/// The token is dead, which says nothing of the account that it was made for.
pub(in crate::classify) const TOKEN_REVOKED: Family =
    Family::new(&[Has("token has been revoked"), Has("token was revoked")]);

/// A switch of the project is off; the account is fine.
pub(in crate::classify) const PROJECT: Family = Family::new(&[
    Has("it is disabled"),
    Has("verify your account to continue"),
    Has("user is not authorized to make this call"),
]);

/// The project lacks the API until somebody enables it.
pub(in crate::classify) const PROJECT_OFF: Family =
    Family::new(&[Has("has not been used in project")]);

pub(in crate::classify) const PROJECT_OFF_WORDS: &[&str] =
    &["service_disabled", "accessnotconfigured"];

/// Only certain programs are served.
pub(in crate::classify) const CLIENT_REFUSED: Family = Family::new(&[
    Near("only available for", "agent", 40),
    Near("only available for", "client", 40),
    Near("only available to", "client", 40),
    Near("only authorized for use with", "claude code", 20),
    Near("only be used with", "claude code", 20),
    Has("client is not supported"),
    Has("unsupported client"),
    Has("unauthorized client"),
    Has("client version is not supported"),
]);

pub(in crate::classify) const CLIENT_WORDS: &[&str] = &["access_terminated_error"];

/// The account lets in other addresses than ours.
pub(in crate::classify) const ADDRESS: Family = Family::new(&[
    Near("ip address", "not authorized", 30),
    Near("ip address", "not allowed", 30),
    Near("your ip", "not allowed", 30),
    Has("ip allowlist"),
    Has("ip whitelist"),
    Has("virtual network/firewall"),
    Has("ip 不在"),
]);

pub(in crate::classify) const ADDRESS_WORDS: &[&str] = &["ip_not_authorized", "ip_not_allowed"];

/// The edge lets nobody in from our network.
pub(in crate::classify) const NETWORK: Family = Family::new(&[Has("check your network settings")]);

/// A relay that passes on, in its own sentence, what was said to its account.
pub(in crate::classify) const RELAYS: Family = Family::new(&[
    Has("received model group="),
    Seq("litellm.", "exception - "),
    Has("error from provider"),
    Has("upstream request failed"),
    Has("provider returned error"),
]);

/// What was bought on top of the plan is spent; a wait that is named beside it is the plan's.
pub(in crate::classify) const EXTRA_USAGE_SPENT: Family = Family::new(&[Has("out of extra usage")]);

/// Codes by which relays pass on that money is missing.
pub(in crate::classify) const RELAY_MONEY_WORDS: &[&str] = &[
    "billing_not_active",
    "insufficient_quota",
    "billing_hard_limit_reached",
    "exceeded_current_quota_error",
    "insufficient_balance_error",
    "arrearage",
];

/// Codes by which relays pass on a limit.
pub(in crate::classify) const RELAY_LIMIT_WORDS: &[&str] = &["rate_limit_exceeded"];

/// What relays say whatever happened behind them.
pub(in crate::classify) const RELAY_BUSY: Family = Family::new(&[
    Has("饱和"),
    Has("upstream load is saturated"),
    Has("upstream load of the current group"),
]);

pub(in crate::classify) const PROJECT_WORDS: &[&str] =
    &["permission_denied", "gcp_project_required"];

/// The edge blocks the account.
pub(in crate::classify) const SENTINEL: Family = Family::new(&[
    Has("sentinel_blocked"),
    Near("sentinel", "blocked", 80),
    Has("turnstile required"),
]);

/// The region is refused.
pub(in crate::classify) const GEO: Family = Family::new(&[
    Has("location is not supported"),
    Has("not supported for the api use"),
    Has("region is not supported"),
    Has("unsupported location"),
    Has("not available in your location"),
    Has("not available in your region"),
    Has("not available in your country"),
    Has("country, region, or territory not supported"),
]);

pub(in crate::classify) const GEO_WORDS: &[&str] = &["unsupported_country_region_territory"];

/// The key serves other routes.
pub(in crate::classify) const ROUTE: Family = Family::new(&[Has("not authorized for this route")]);

/// Refused without a reason.
pub(in crate::classify) const NOT_ALLOWED: Family = Family::new(&[Word("request not allowed")]);

/// A gateway has no account of its own.
pub(in crate::classify) const NO_CREDENTIALS: Family = Family::new(&[Has("no credentials")]);

/// Every family of this file.
pub(super) const ACCOUNT: &[Family] = &[
    BANNED,
    CREDITS,
    MONEY,
    SPENDING_CAP,
    RENEWING_CAP,
    MODEL_FREE_TIER,
    BILLING_SUSPENSION,
    CREDENTIAL,
    KEY_REFUSED,
    OAUTH_TOKEN,
    TOKEN_EXPIRED,
    TOKEN_REVOKED,
    PROJECT,
    PROJECT_OFF,
    CLIENT_REFUSED,
    ADDRESS,
    NETWORK,
    RELAYS,
    EXTRA_USAGE_SPENT,
    RELAY_BUSY,
    SENTINEL,
    GEO,
    ROUTE,
    NOT_ALLOWED,
    NO_CREDENTIALS,
];
