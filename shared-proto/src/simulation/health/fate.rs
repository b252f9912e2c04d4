//! What happens to the account, and how a request meets it.

use crate::clock::Millis;
use crate::failure::{Blame, Cooldown, Failure, Reason, Terminal};
use crate::health::{HealthEvent, Outcome};

/// What really happens to the account; each is met by several requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Outage,
    Refused,
    Reset,
    Recovered,
}

/// One request's experience of a fate.
#[derive(Clone, Debug)]
pub(super) struct Met {
    /// Which fate.
    pub(super) fate: usize,
    pub(super) event: HealthEvent,
    pub(super) at: Millis,
    /// What it did to the state it was last applied to.
    pub(super) outcome: Option<Outcome>,
}

pub(super) fn failure(fate: Fate) -> Failure {
    let terminal = fate == Fate::Refused;
    Failure {
        status: if terminal { 401 } else { 503 },
        reason: Reason::ServerError,
        blame: Blame::Connection,
        error_type: None,
        fallback: true,
        terminal: terminal.then_some(Terminal::Expired),
        cooldown: Cooldown::Ladder,
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker: false,
        rule: "status".into(),
        restated: None,
        upstream_code: None,
        message: String::new(),
    }
}
