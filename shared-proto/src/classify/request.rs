//! Failures of the request itself.

use super::decide::{Case, Verdict};
use super::families;
use crate::failure::{Blame, Cooldown, ErrorType, Reason, Terminal};

/// A conversation that lives on another account.
pub(super) fn binding(case: &Case<'_>) -> Option<Verdict> {
    let coded = case.facts.is_any(&["invalid_previous_response_binding"]);
    let told = case.status == 409 && case.says(families::FOREIGN_BINDING);
    (coded || told).then(|| Verdict::request("response-binding", Reason::Unknown, false))
}

/// A request that is bigger than anything this target takes; a larger one may take it.
pub(super) fn too_large(case: &Case<'_>) -> Option<Verdict> {
    let by_code = matches!(case.status, 400 | 413 | 422 | 429 | 500)
        && case.facts.is_any(families::OVERFLOW_WORDS);
    // Bigger than a whole minute's allowance: no wait helps, so none is announced.
    let over_limit =
        case.status == 429 && !case.announced && case.says(families::TOO_LARGE_FOR_LIMIT);
    (case.status == 413 || by_code || over_limit).then(overflow)
}

fn overflow() -> Verdict {
    Verdict::request("context-overflow", Reason::ModelCapacity, true)
        .typed(ErrorType::ContextOverflow)
}

/// The content is refused. Trying it on other accounts would put them at risk too.
pub(super) fn policy(case: &Case<'_>) -> Option<Verdict> {
    let refused = matches!(case.status, 400 | 403 | 422 | 451) && case.says(families::POLICY)
        || case.status != 429 && case.facts.is_any(families::POLICY_WORDS);
    refused.then(|| Verdict::request("content-policy", Reason::Unknown, false))
}

/// 400 and 422.
pub(super) fn bad_request(case: &Case<'_>) -> Option<Verdict> {
    if !matches!(case.status, 400 | 422) {
        return None;
    }
    let says = |family| case.says(family);
    let bare = case.error.answer.body.trim_ascii().is_empty();
    if bare && case.error.reading.unsaid_overflow.bare_400 {
        return Some(overflow());
    }
    if case.facts.is_any(families::MODEL_ACCESS_WORDS) {
        return Some(model_access());
    }
    if case.facts.is_any(families::CREDENTIAL_WORDS) {
        return Some(
            Verdict::end("unauthorized", Reason::AuthError, Terminal::Expired)
                .typed(ErrorType::Unauthorized),
        );
    }
    if case.facts.is_any(families::MODEL_OUTPUT_WORDS) {
        return Some(Verdict::request("model-output", Reason::ServerError, true));
    }
    if says(families::UNVERIFIED) {
        // Another account has been verified.
        return Some(model_access());
    }
    let parameter = says(families::UNSUPPORTED_PARAMETER)
        || case.facts.is_any(families::UNSUPPORTED_PARAMETER_WORDS);
    if parameter {
        return Some(Verdict::request(
            "unsupported-parameter",
            Reason::Unknown,
            false,
        ));
    }
    told(case).or_else(|| Some(Verdict::request("status-400", Reason::Unknown, false)))
}

/// What the words of a 400 or 422 say.
fn told(case: &Case<'_>) -> Option<Verdict> {
    let says = |family| case.says(family);
    if says(families::IMPROPER) {
        return Some(Verdict::request("malformed", Reason::ModelCapacity, true));
    }
    if says(families::QUOTA) {
        return Some(
            Verdict::new("quota-text", Reason::QuotaExhausted, case.limit_blame())
                .typed(ErrorType::QuotaExhausted),
        );
    }
    if says(families::RATE_LIMIT) {
        return Some(rate_limited(case));
    }
    if says(families::OVERLOAD) {
        return Some(Verdict::new(
            "overloaded",
            Reason::ModelCapacity,
            Blame::Model,
        ));
    }
    if says(families::OVERFLOW) {
        return Some(overflow());
    }
    if says(families::MALFORMED) {
        return Some(Verdict::request("malformed", Reason::ModelCapacity, true));
    }
    if says(families::MODEL_ACCESS) && !says(families::CREDENTIAL) {
        return Some(model_access());
    }
    if says(families::DEGRADED) && !says(families::DEGRADED_MODEL) {
        return Some(
            Verdict::new("function-degraded", Reason::ModelCapacity, Blame::Model)
                .resting(Cooldown::None),
        );
    }
    says(families::RATE_LIMIT_400).then(|| rate_limited(case))
}

fn rate_limited(case: &Case<'_>) -> Verdict {
    Verdict::new(
        "rate-limit-text",
        Reason::RateLimitExceeded,
        case.limit_blame(),
    )
    .typed(ErrorType::RateLimited)
}

fn model_access() -> Verdict {
    Verdict::new("model-access", Reason::ModelCapacity, Blame::Model)
        .typed(ErrorType::ModelNotFound)
        .resting(Cooldown::None)
}
