//! Refusals that a relay passes on in its own words, with the true status in a field.

use super::decide::{Case, Verdict};
use super::families;
use crate::failure::{Blame, ErrorType, Reason};

/// Code of a relay whose upstream answered with an error status.
const BAD_STATUS: &[&str] = &["bad_response_status_code"];

/// A canned sentence beside the status that the relay's upstream sent. What
/// went wrong went wrong there, for this model; our account at the relay is fine.
pub(super) fn passed_on(case: &Case<'_>) -> Option<Verdict> {
    if case.status == 429
        && case.says(families::RELAY_BUSY)
        && case.facts.is_any(families::RELAY_LIMIT_WORDS)
    {
        // The sentence is canned, the code is what it heard.
        let verdict = Verdict::new("relay-limit", Reason::RateLimitExceeded, Blame::Model);
        return Some(verdict.typed(ErrorType::RateLimited));
    }
    if !case.facts.is_any(BAD_STATUS) {
        return None;
    }
    let of_model = |reason| Verdict::new("relay-status", reason, Blame::Model).off_breaker();
    let verdict = match case.facts.param_status? {
        404 | 410 => of_model(Reason::NotFound)
            .typed(ErrorType::ModelNotFound)
            .for_ms(120_000)
            .without_hint(),
        401..=403 => of_model(Reason::AuthError),
        429 => of_model(Reason::RateLimitExceeded).typed(ErrorType::RateLimited),
        529 => of_model(Reason::ModelCapacity),
        500..=599 => of_model(Reason::ServerError).typed(ErrorType::ServerError),
        _ => return None,
    };
    Some(verdict)
}

/// Whether a relay passes on, in a sentence of its own, what its upstream said
/// to it: whatever was wrong there, our account at the relay is fine.
pub(super) fn quotes(case: &Case<'_>) -> bool {
    !case.document.html && case.signs.any(families::RELAYS)
}

/// Money is missing behind a relay that says it is busy: it may take another
/// of its accounts next time.
pub(super) fn broke_behind(case: &Case<'_>) -> Option<Verdict> {
    let broke = case.facts.is_any(families::RELAY_MONEY_WORDS) && case.says(families::RELAY_BUSY);
    broke.then(|| {
        Verdict::new("relay-billing", Reason::QuotaExhausted, Blame::Connection)
            .typed(ErrorType::QuotaExhausted)
    })
}
