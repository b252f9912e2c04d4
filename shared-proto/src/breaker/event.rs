//! What happens at a provider, and what comes of it.

use crate::breaker::{FailureKind, ProviderBreaker};
use crate::clock::Millis;
use crate::id::ConnectionId;

/// Something that happened at the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerEvent {
    /// An attempt failed in a way that counts (see [`counts`](crate::breaker::counts)).
    Failed {
        /// When the attempt was dispatched.
        started_at: Millis,
        /// Over which connection.
        connection: ConnectionId,
        /// The breaker's kind of the failure.
        kind: FailureKind,
        /// The claim it went out under.
        probe_generation: Option<u64>,
    },
    /// An attempt succeeded.
    Succeeded {
        /// When the attempt was dispatched.
        started_at: Millis,
        /// The claim it went out under.
        probe_generation: Option<u64>,
    },
    /// A request wants to try.
    ClaimProbe,
    /// A try ended without a verdict: the client went away, or the failure says nothing about the provider.
    ReleaseProbe {
        /// Its claim.
        generation: u64,
    },
    /// An operator asked to forget.
    Reset,
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerOutcome {
    /// A failure was counted; the breaker lets pass as before.
    Counted,
    /// The breaker opened, or opened again.
    Opened,
    /// A success took one off.
    Eased,
    /// The breaker closed after having been open, or was reset.
    Closed,
    /// The slot is the caller's.
    Claimed {
        /// What the result has to carry.
        generation: u64,
        /// When somebody else may claim.
        deadline: Millis,
    },
    /// The slot is free again.
    Released,
    /// No slot is needed.
    NotNeeded,
    /// No slot is free.
    Refused {
        /// When to ask again, ms.
        retry_after_ms: u64,
    },
    /// Met while open.
    IgnoredOpen,
    /// Its attempt began too early to tell anything new.
    IgnoredStale,
    /// The connection was counted a moment ago.
    IgnoredDuplicate,
    /// Its claim stands no more.
    IgnoredGeneration,
    /// Nothing to do.
    Nothing,
}

/// The result of one event.
pub type BreakerStep = crate::step::Step<ProviderBreaker, BreakerOutcome>;

/// Whether a request may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Yes.
    Admit,
    /// Only as the one try: claim the slot first.
    Probe,
    /// No.
    Reject {
        /// When to ask again, ms.
        retry_after_ms: u64,
    },
}
