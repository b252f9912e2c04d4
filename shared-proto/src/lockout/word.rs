//! What operators are shown for why a lock stands.

use super::Lockout;
use crate::failure::Reason;

impl Lockout {
    /// What the status says of a right or a model that is missing, else the reason.
    pub const fn word(&self) -> &'static str {
        match (self.status, self.reason) {
            (402, _) => "credits",
            (403, _) => "forbidden",
            (404 | 410, _) => "not_found",
            (500.., Reason::Unknown) => Reason::ServerError.as_str(),
            (_, reason) => reason.as_str(),
        }
    }
}
