//! Models that are not there, or not for this account.

use super::decide::{Case, Verdict};
use super::families;
use super::pattern;
use crate::failure::{Blame, Cooldown, ErrorType, Reason};

/// Rest of what is gone for good, ms.
const GONE_MS: u64 = 86_400_000;
/// Shortest name of a model that is looked for in a text, or a part of one.
const NAME_MIN: usize = 4;
/// Rest after a 404, ms.
const NOT_FOUND_MS: u64 = 120_000;

/// Rest of a model that an account may not use, ms.
const NO_ACCESS_MS: u64 = 120_000;

/// What requests ask of a model and some models can't do. Others may go on
/// asking such a model for what it can.
const FEATURES: &[&str] = &[
    "image",
    "images",
    "vision",
    "audio",
    "video",
    "pdf",
    "tool",
    "tools",
    "function call",
    "function calling",
    "stream",
    "streaming",
    "parameter",
    "parameters",
    "temperature",
    "response_format",
    "json mode",
    "reasoning",
    "thinking",
    "logprobs",
    "modality",
    "modalities",
];
/// Words beside which a feature is what is refused.
const OF_FEATURES: &[&str] = &["support", "must be verified"];
/// Characters between the two.
const FEATURE_GAP: usize = 60;

/// The account does not have this model, which rests alone so that it is not
/// asked for in vain with each request. A refusal of something that this one
/// request asks of the model rests nobody.
pub(super) fn no_model(case: &Case<'_>, reason: Reason) -> Verdict {
    let verdict =
        Verdict::new("model-access", reason, Blame::Model).typed(ErrorType::ModelNotFound);
    if about_feature(case) {
        verdict.resting(Cooldown::None)
    } else {
        verdict.for_ms(NO_ACCESS_MS)
    }
}

/// Whether the refusal is about a parameter or another feature of the request.
fn about_feature(case: &Case<'_>) -> bool {
    let parameter = case.facts.parameter.as_deref();
    if parameter.is_some_and(|name| !name.contains("model")) {
        return true;
    }
    // Names of models are made of such words too.
    let model = case.error.model.unwrap_or_default().to_lowercase();
    let text = if model.len() < NAME_MIN {
        case.text().to_owned()
    } else {
        case.text().replace(&model, " ")
    };
    text.lines().any(|line| {
        let beside = |feature: &str| {
            let mut words = OF_FEATURES.iter();
            words.any(|word| pattern::word_near(line, feature, word, FEATURE_GAP))
        };
        line.contains("long context") || FEATURES.iter().any(|feature| beside(feature))
    })
}

/// Whether the text says that the account has no access to what was asked for,
/// by its name and without the word "model".
pub(super) fn names_model(case: &Case<'_>) -> bool {
    let asked = case.error.model.unwrap_or_default().to_lowercase();
    if asked.is_empty() {
        return false;
    }
    case.text().split("access to ").skip(1).any(|rest| {
        let name = rest.split_whitespace().next().unwrap_or_default();
        let name = name.trim_matches(|c: char| !c.is_alphanumeric());
        // Names come with and without their maker or date; short ones are in every word.
        name == asked
            || name.len() >= NAME_MIN && asked.contains(name)
            || asked.len() >= NAME_MIN && name.contains(&asked)
    })
}

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
    let model = coded || case.mentions(families::MODEL_ACCESS);
    if case.mentions(families::NOT_THERE) && names_missing(case) {
        return Some(Verdict::request("resource-missing", Reason::Unknown, false));
    }
    if case.says(families::UNVERIFIED) {
        return Some(no_model(case, Reason::ModelCapacity));
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
    let verdict = Verdict::new("status-404", reason, blame).typed(ErrorType::ModelNotFound);
    if blame == Blame::Model && about_feature(case) {
        return Some(verdict.resting(Cooldown::None));
    }
    Some(verdict.for_ms(NOT_FOUND_MS))
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
    !case.mentions(families::MODEL_WORD) && names_resource(case.text())
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
