//! What a gate remembers of a connection, what happens to it, and what comes of it.

use serde::{Deserialize, Serialize};

use super::ProviderGate;
use crate::clock::Millis;
use crate::id::ConnectionId;

/// A connection that failed since its last success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// How often.
    pub count: u32,
    /// When it was last counted.
    pub last_at: Millis,
}

/// Something that happened to a combo's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateEvent {
    /// An attempt failed.
    Failed {
        /// When the attempt was dispatched.
        started_at: Millis,
        /// On which connection.
        connection: ConnectionId,
    },
    /// An attempt succeeded.
    Succeeded {
        /// When the attempt was dispatched.
        started_at: Millis,
        /// On which connection.
        connection: ConnectionId,
    },
    /// An operator asked to forget.
    Reset,
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOutcome {
    /// One failure more.
    Counted,
    /// Something was forgotten.
    Forgot,
    /// Nothing new.
    Nothing,
}

/// The result of one event.
pub type GateStep = crate::step::Step<ProviderGate, GateOutcome>;
