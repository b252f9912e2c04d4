//! What happens to a connection, and what comes of it.

use crate::clock::Millis;
use crate::egress::{Exit, Limit};
use crate::failure::{Failure, Terminal};
use crate::health::ConnectionHealth;
use crate::id::ConnectionId;
use crate::quota::preflight::Origin;
use crate::rotation::RotationClass;

/// Something that happened to the connection.
#[derive(Clone, Debug, PartialEq)]
pub enum HealthEvent {
    /// An attempt failed.
    Failed {
        /// When the attempt was dispatched to this connection, not when its request arrived.
        started_at: Millis,
        /// What the classifier made of it.
        failure: Failure,
    },
    /// An attempt met a limit of the address it left from.
    LimitedAt {
        /// When the attempt was dispatched to this connection.
        started_at: Millis,
        /// What the classifier made of it, charged to the connection.
        failure: Failure,
        /// Where it left.
        exit: Exit,
        /// This connection.
        met_by: ConnectionId,
    },
    /// Another connection met a limit of the address that this one leaves by.
    SiblingLimited(Limit),
    /// A window of its quota is all but used up, and nothing is sent before it
    /// begins anew.
    Withheld(Origin),
    /// An attempt succeeded.
    Succeeded {
        /// When the attempt was dispatched to this connection.
        started_at: Millis,
    },
    /// An attempt failed in a way that the rotation gate counts; what else comes of
    /// it is told by itself.
    Counted {
        /// When the attempt was dispatched to this connection.
        started_at: Millis,
        /// Of which class it is.
        class: RotationClass,
    },
    /// One of the connection's keys was refused; others may be left.
    KeyRefused {
        /// When the attempt was dispatched to this connection.
        started_at: Millis,
        /// Which key, as [`key_mark`](super::key_mark) tells them apart.
        key: u64,
        /// What the classifier made of it.
        failure: Failure,
    },
    /// An attempt succeeded with a key that had been set aside.
    KeyAccepted {
        /// When the attempt was dispatched to this connection.
        started_at: Millis,
        /// Which key.
        key: u64,
    },
    /// An expired connection is about to be tried again.
    Retried {
        /// The how manieth time it is, from 1.
        number: u32,
        /// When the state began that is tried again.
        expired_at: Millis,
    },
    /// An operator asked to forget.
    Reset,
    /// The connection presents another credential now. A refreshed token of the
    /// same account is not another credential.
    CredentialsChanged,
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The connection cools now.
    Cooled {
        /// For this long, ms.
        cooldown_ms: u64,
        /// Whether the upstream's announcement decided.
        hinted: bool,
    },
    /// It became terminal.
    Terminal(Terminal),
    /// Only the error fields changed, or what the rotation gate counts.
    Noted,
    /// One of its keys is set aside now.
    SetAside,
    /// Everything held against it is gone.
    Recovered,
    /// It cools already; nothing was counted.
    Cooling,
    /// It is terminal already; nothing was counted.
    AlreadyTerminal,
    /// The retry is the reporter's to make.
    Retrying,
    /// The attempt began too early to tell anything new.
    Stale,
    /// Nothing to remember here.
    Nothing,
}

/// The result of one event.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The state to go on with.
    pub state: ConnectionHealth,
    /// Whether it differs from the one before, that is, whether to commit it.
    pub changed: bool,
    /// What is left of the cooldown, ms; 0 when it may be used or is terminal.
    pub remaining_ms: u64,
    /// What happened.
    pub outcome: Outcome,
}

/// What the state is called at a given time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It may be used.
    Active,
    /// It cools.
    Unavailable,
    /// No timer brings it back.
    Terminal(Terminal),
}

impl Status {
    /// The word of `testStatus`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Unavailable => "unavailable",
            Self::Terminal(kind) => kind.as_str(),
        }
    }
}

/// Why a connection may not be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Until this time.
    Cooling {
        /// The first moment it may be used again.
        until: Millis,
    },
    /// Until somebody does something.
    Terminal(Terminal),
}
