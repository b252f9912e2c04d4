//! Which models a lock is about.
//!
//! Inside a connection a key is one of
//! * `exact:MODEL`, for failures that say something about this model only;
//! * the name of the model's family, where models share a quota, else `MODEL`;
//! * `MODEL`, for one that isn't there.
//!
//! Models are trimmed and lowercased. The whole name of a lock, as operators
//! see it, is `PROVIDER:CONNECTION:KEY`, the provider by its catalogue name.

use serde::{Deserialize, Serialize};

use crate::config::ModelFamily;
use crate::failure::{ErrorType, Failure, Reason};

/// Which models a lock is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// This model.
    Exact,
    /// The models that share its quota.
    Family,
    /// This model, which isn't there.
    NotFound,
}

impl Scope {
    /// The word used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Family => "family",
            Self::NotFound => "not_found",
        }
    }
}

fn named(model: &str) -> String {
    model.trim().to_lowercase()
}

pub(super) fn exact(model: &str) -> String {
    format!("exact:{}", named(model))
}

/// The key of locks that are about the quota of `model`: its family's, or its own.
pub fn quota_key(model: &str, families: &[ModelFamily]) -> String {
    let model = named(model);
    let family = families.iter().find(|family| family.has(&model));
    family.map_or(model, |family| family.name.clone())
}

/// Every key under which a lock of `model` may stand.
pub fn keys(model: &str, families: &[ModelFamily]) -> [String; 3] {
    [exact(model), quota_key(model, families), named(model)]
}

/// The key and scope of a lock that `failure` calls for.
pub(super) fn of(model: &str, failure: &Failure, families: &[ModelFamily]) -> (String, Scope) {
    let missing = failure.reason == Reason::NotFound
        || failure.status == 404
        || failure.error_type == Some(ErrorType::ModelNotFound);
    if missing {
        return (named(model), Scope::NotFound);
    }
    // These speak of a quota or a right; everything else of the model itself.
    if matches!(failure.status, 402 | 403 | 429) {
        return (quota_key(model, families), Scope::Family);
    }
    (exact(model), Scope::Exact)
}
