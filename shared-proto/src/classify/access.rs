//! Models that are not there.

use super::decide::{Case, Verdict};
use super::families;
use super::pattern;
use crate::failure::{Blame, Cooldown, ErrorType, Reason};

/// Rest of what is gone for good, ms.
const GONE_MS: u64 = 86_400_000;
/// Rest after a 404, ms.
const NOT_FOUND_MS: u64 = 120_000;

/// A model that was withdrawn, or an endpoint that moved.
pub(super) fn retired_or_moved(case: &Case<'_>) -> Option<Verdict> {
    if matches!(case.status, 404 | 410) && case.says(families::RETIRED) {
        return Some(
            Verdict::new("model-retired", Reason::NotFound, Blame::Model)
                .typed(ErrorType::ModelNotFound)
                .for_ms(GONE_MS),
        );
    }
    case.says(families::MOVED).then(|| {
        Verdict::new("endpoint-moved", Reason::NotFound, Blame::Connection).for_ms(GONE_MS)
    })
}

/// 404 and 410: something that the request names, or the model.
pub(super) fn missing(case: &Case<'_>) -> Option<Verdict> {
    if !matches!(case.status, 404 | 410) {
        return None;
    }
    let coded = case.facts.is_any(families::MODEL_ACCESS_WORDS);
    let model = coded || case.says(families::MODEL_ACCESS);
    if case.says(families::NOT_THERE) && names_missing(case) {
        return Some(Verdict::request("resource-missing", Reason::Unknown, false));
    }
    if case.says(families::UNVERIFIED) {
        return Some(
            Verdict::new("model-access", Reason::ModelCapacity, Blame::Model)
                .typed(ErrorType::ModelNotFound)
                .resting(Cooldown::None),
        );
    }
    let reason = if model {
        Reason::NotFound
    } else {
        Reason::Unknown
    };
    // A web page means that the path is wrong, for every model.
    let path = case.says(families::WRONG_PATH) || case.facts.is_any(families::WRONG_PATH_WORDS);
    let blame = if case.document.html || path {
        Blame::Connection
    } else {
        Blame::Model
    };
    Some(
        Verdict::new("status-404", reason, blame)
            .typed(ErrorType::ModelNotFound)
            .for_ms(NOT_FOUND_MS),
    )
}

/// A model that can't be brought up, whatever the status: others on the server can.
pub(super) fn down(case: &Case<'_>) -> Option<Verdict> {
    let down =
        (matches!(case.status, 400 | 404) || case.status >= 500) && case.says(families::MODEL_DOWN);
    down.then(|| {
        Verdict::new("model-down", Reason::ServerError, Blame::Model)
            .typed(ErrorType::ServerError)
            .off_breaker()
    })
}

/// Whether what is missing is something that the request names, and no model.
pub(super) fn names_missing(case: &Case<'_>) -> bool {
    !case.says(families::MODEL_WORD) && names_resource(case.text())
}

fn names_resource(text: &str) -> bool {
    text.lines().any(|line| {
        families::MISSING.iter().any(|missing| {
            families::RESOURCES
                .iter()
                .any(|resource| pattern::word_near(line, resource, missing, families::RESOURCE_GAP))
                || pattern::word_near(line, "file-", missing, families::RESOURCE_GAP)
        })
    })
}
