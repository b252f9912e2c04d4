//! What a connection's record says about a failure.

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::failure::{ErrorType, Failure, Reason, Terminal};

const MESSAGE_CHARS: usize = 300;
const CODE_CHARS: usize = 64;

/// A state that no timer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalState {
    /// Which one.
    pub kind: Terminal,
    /// What tells, for instance, a deactivated account from another ban.
    #[serde(default)]
    pub sub_reason: Option<ErrorType>,
    /// When it was set.
    pub at: Millis,
}

/// Refusals without a reason that followed each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// How many.
    pub count: u32,
    /// When the last was counted.
    pub at: Millis,
}

/// A failure as it is stored and shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// The second classifier's word.
    #[serde(default)]
    pub error_type: Option<ErrorType>,
    /// Why it failed.
    pub reason: Reason,
    /// The status after restatement.
    pub status: u16,
    /// The upstream's own code, at most 64 characters.
    #[serde(default)]
    pub code: Option<String>,
    /// When it was seen.
    pub at: Millis,
    /// Sanitised words, at most 300 characters.
    #[serde(default)]
    pub message: String,
    /// Whose status it is.
    #[serde(default)]
    pub source: ErrorSource,
    /// The rule that decided.
    #[serde(default)]
    pub rule: String,
}

/// Whose status a stored failure carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorSource {
    /// The upstream's, or the one a transport failure stands for.
    #[default]
    Upstream,
    /// A restatement rule's.
    Restated,
    /// Nobody's: nothing was sent, and it stands for what would have come.
    Foreseen,
}

impl ErrorSource {
    /// The word used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Upstream => "upstream",
            Self::Restated => "restated",
            Self::Foreseen => "foreseen",
        }
    }
}

impl LastError {
    pub(super) fn new(failure: &Failure, at: Millis) -> Self {
        let code = failure.upstream_code.as_ref();
        Self {
            error_type: failure.error_type,
            reason: failure.reason,
            status: failure.status,
            code: code.map(|code| code.chars().take(CODE_CHARS).collect()),
            at,
            message: failure.message.chars().take(MESSAGE_CHARS).collect(),
            source: match failure.restated {
                Some(_) => ErrorSource::Restated,
                None => ErrorSource::Upstream,
            },
            rule: failure.rule.clone(),
        }
    }
}
