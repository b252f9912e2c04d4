//! What happens to a connection's models, and what comes of it.

use super::{ModelLockouts, Scope};
use crate::clock::Millis;
use crate::failure::Failure;

/// Something that happened to a model of the connection.
#[derive(Clone, Debug, PartialEq)]
pub enum LockoutEvent {
    /// An attempt failed.
    Failed {
        /// When the attempt was dispatched.
        started_at: Millis,
        /// What was asked for, by the upstream's name.
        model: String,
        /// What the classifier made of it.
        failure: Failure,
        /// Whether output had gone to the client before.
        after_output: bool,
    },
    /// An attempt succeeded.
    Succeeded {
        /// When the attempt was dispatched.
        started_at: Millis,
        /// What was asked for.
        model: String,
        /// A combo's success only halves the count of failures.
        halve: bool,
    },
    /// An operator asked to forget one model, with its family, or all.
    Clear {
        /// Which; `None` is all.
        model: Option<String>,
    },
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A lock runs now, new or longer.
    Locked(Locked),
    /// Something is remembered that locks nothing yet.
    Noted,
    /// Something was forgotten.
    Recovered,
    /// The attempt began too early to tell anything new.
    Stale,
    /// Nothing to remember here.
    Nothing,
}

/// A lock that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locked {
    /// First moment at which it is over.
    pub until: Millis,
    /// Which models it is about.
    pub scope: Scope,
}

/// The result of one event.
pub type Step = crate::step::Step<ModelLockouts, Outcome>;
