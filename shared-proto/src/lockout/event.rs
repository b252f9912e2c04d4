//! What happens to a connection's models, and what comes of it.

use super::{ModelLockouts, Scope};
use crate::clock::Millis;
use crate::failure::Failure;
use crate::quota::preflight::{Origin, Policy};
use crate::quota::usage::Usage;

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
    /// A window of the quota of a model is all but used up, and nothing is sent
    /// for it before that begins anew.
    Withheld {
        /// What was asked for.
        model: String,
        /// The window.
        origin: Origin,
    },
    /// The usage is about to be asked for that may end such a lock early.
    Looking {
        /// The lock's key.
        key: String,
        /// Why it was set.
        origin: Origin,
        /// The how manieth time it is, from 1.
        number: u32,
    },
    /// The usage was asked for.
    Freed(Box<Freed>),
    /// An operator asked to forget one model, with its family, or all.
    Clear {
        /// Which; `None` is all.
        model: Option<String>,
    },
}

/// A live usage, and what it was asked for: the lock as it stood before the question.
#[derive(Clone, Debug, PartialEq)]
pub struct Freed {
    /// The lock's key.
    pub key: String,
    /// Why it was set.
    pub origin: Origin,
    /// Its end.
    pub until: Millis,
    /// How much of a window has to be left.
    pub policy: Policy,
    /// The answer.
    pub usage: Usage,
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
    /// The question is the reporter's to ask.
    Looking,
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
