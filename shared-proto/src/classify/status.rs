//! What a bare status means, and which status an error inside a 200 stands for.

use super::decide::{Case, Verdict};
use super::facts::Facts;
use super::families;
use super::pattern::{Family, Signs};
use crate::failure::{Blame, Cooldown, ErrorType, Profile, Reason};
use crate::hint::headers;

/// The statuses that a provider's breaker counts.
pub(super) const COUNTED: [u16; 5] = [408, 500, 502, 503, 504];

/// Rest of a connection whose local service is down, ms.
const SERVICE_DOWN_MS: u64 = 5_000;
/// Rest after a 432 that doesn't say until when, ms.
const QUOTA_MS: u64 = 3_600_000;

/// Codes and types, and the status each stands for.
const STANDS_FOR: &[(&[&str], u16)] = &[
    (
        &[
            "context_length_exceeded",
            "context_window_exceeded",
            "invalid_prompt",
            "content_filter",
            "content_policy_violation",
            "cyber_policy",
            "unsupported_parameter",
            "unsupported_value",
            "base_resp:1026",
            "base_resp:1027",
            "base_resp:1039",
            "base_resp:2013",
        ],
        400,
    ),
    (
        &[
            "rate_limit_exceeded",
            "rate_limit_error",
            "rate_limited",
            "rate_limit_reached_error",
            "too_many_requests",
            "usage_limit_reached",
            "insufficient_quota",
            "quota_exceeded",
            "quota_exhausted",
            "resource_exhausted",
            "base_resp:1002",
            "base_resp:1041",
            "base_resp:2056",
        ],
        429,
    ),
    (&["overloaded_error", "overloaded", "model_overloaded"], 529),
    (
        &[
            "server_is_overloaded",
            "service_unavailable",
            "service_unavailable_error",
            "unavailable",
            "slow_down",
            "engine_overloaded_error",
            "provider_unavailable",
            "model_capacity_exhausted",
        ],
        503,
    ),
    (
        &[
            "authentication_error",
            "invalid_api_key",
            "unauthorized",
            "unauthenticated",
            "token_expired",
            "base_resp:1004",
            "base_resp:2049",
        ],
        401,
    ),
    (
        &[
            "billing_error",
            "payment_required",
            "insufficient_credits",
            "base_resp:1008",
        ],
        402,
    ),
    (
        &[
            "permission_error",
            "permission_denied",
            "forbidden",
            "access_denied",
        ],
        403,
    ),
    (
        &[
            "model_not_found",
            "not_found_error",
            "not_found",
            "deployment_not_found",
        ],
        404,
    ),
    (&["request_too_large"], 413),
    (&["timeout_error", "timeout", "deadline_exceeded"], 504),
    (
        &[
            "server_error",
            "api_error",
            "internal_error",
            "internal",
            "internal_server_error",
        ],
        500,
    ),
    // The least exact last: much travels under this name.
    (
        &[
            "invalid_request_error",
            "invalid_request",
            "invalid_argument",
            "bad_request",
        ],
        400,
    ),
];

/// The status that an error told inside a 200 stands for; 502 when nothing says it.
pub(super) fn stands_for(signs: &Signs<'_>, facts: &Facts) -> u16 {
    let by_word = || {
        facts.words().find_map(|word| {
            STANDS_FOR
                .iter()
                .find(|(words, _)| words.contains(&word))
                .map(|(_, status)| *status)
        })
    };
    facts
        .status
        .or_else(by_word)
        .or_else(|| by_text(signs))
        .unwrap_or(502)
}

fn by_text(signs: &Signs<'_>) -> Option<u16> {
    let families: [(Family, u16); 7] = [
        (families::RATE_LIMIT, 429),
        (families::OVERLOAD, 503),
        (families::CREDITS, 402),
        (families::MONEY, 402),
        (families::OVERFLOW, 400),
        (families::CREDENTIAL, 401),
        (families::POLICY, 400),
    ];
    families
        .into_iter()
        .find(|(family, _)| signs.any(*family))
        .map(|(_, status)| status)
}

/// A supervisor beside the local server says that it isn't up yet.
pub(super) fn service_not_running(case: &Case<'_>) -> Option<Verdict> {
    let hint = headers::get(case.error.answer.headers, "x-omni-fallback-hint")?;
    (case.status == 503 && hint.eq_ignore_ascii_case("connection_cooldown")).then(|| {
        Verdict::new(
            "service-not-running",
            Reason::ServiceNotRunning,
            Blame::Connection,
        )
        .for_ms(SERVICE_DOWN_MS)
        .off_breaker()
    })
}

/// The last resort.
pub(super) fn by_status(case: &Case<'_>) -> Verdict {
    let broken =
        |rule, blame| Verdict::new(rule, Reason::ServerError, blame).typed(ErrorType::ServerError);
    let is_local = case.error.profile == Profile::Local;
    match case.status {
        408 => Verdict::new("status-408", Reason::ServerError, Blame::Connection),
        406 => Verdict::new("status-406", Reason::ServerError, Blame::Connection),
        // The gateway works; its own upstreams for this model don't.
        500 | 502 | 503 | 504 if case.quotes_others() => broken("gateway-summary", Blame::Model),
        // Quotas per model go with servers per model; a bare 500 says nothing at all.
        500 | 502..=504 if case.error.per_model_quota && !is_local => {
            let verdict = broken("status-5xx", Blame::Model);
            if case.status == 500 {
                verdict.resting(Cooldown::None)
            } else {
                verdict
            }
        }
        500 | 502 | 503 | 504 => broken("status-5xx", Blame::Connection),
        // Cloudflare gave up waiting for a model that thinks too long.
        524 => broken("status-524", Blame::Model),
        // Cloudflare can't reach the provider, whichever account asks.
        520..=523 | 525..=527 | 530 => {
            broken("edge-unreachable", Blame::Provider).resting(Cooldown::None)
        }
        432 => Verdict::new("status-432", Reason::QuotaExhausted, Blame::Connection)
            .typed(ErrorType::QuotaExhausted)
            .for_ms(QUOTA_MS),
        other => {
            let base = match case.error.profile {
                Profile::Oauth => 5_000,
                Profile::ApiKey => 3_000,
                Profile::Local => 2_000,
            };
            let verdict =
                Verdict::new("status-other", Reason::Unknown, Blame::Connection).for_ms(base);
            if other >= 500 {
                verdict.typed(ErrorType::ServerError)
            } else {
                verdict
            }
        }
    }
}
