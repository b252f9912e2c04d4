//! What is held for a while: slots of a capped connection, requests in flight
//! under a lease, live nodes.
//!
//! A *pool* is a set of holders, each with a time at which it lapses unless it
//! is kept. Holds are no records: they are not in the log, not in snapshots,
//! and a store may forget them all when it restarts. Time is the store's own.
//!
//! # Turns
//!
//! A pool with a limit is fair: who finds it full may wait, keeps the place it
//! came at, and is let in once there is room for everybody before it. A waiter
//! asks again within its `patience`, or loses its place; so one that died holds
//! nobody up for longer than that. One that asks without patience gives up the
//! place it had.

use std::sync::Arc;

use bytes::Bytes;

use super::Unreachable;
use super::commit::Guard;
use super::record::Record;
use crate::clock::Millis;
use crate::id::{ConnectionId, ProviderId};

/// Longest name of a holder, in bytes.
pub const MAX_HOLDER_BYTES: usize = 128;
/// Largest note of a holder, in bytes.
pub const MAX_NOTE_BYTES: usize = 4096;
/// Holders of one pool at most, the waiting included; more are refused.
pub const MAX_HOLDERS: usize = 100_000;
/// Holds kept or given back in one call at most; callers send more in turns.
pub const MAX_HOLDS_AT_ONCE: usize = 256;

pub mod board;

/// Which set of holders.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pool {
    /// Slots of a connection with `maxConcurrent`.
    Slots(ConnectionId),
    /// Requests under way on a leased connection.
    Leased(ConnectionId),
    /// Nodes and coordinators that live.
    Nodes,
    /// Connections of a provider by when sessions were last given to them; each
    /// connection is the holder of that name.
    Uses(ProviderId),
}

/// Who holds: unique in its pool, made by the caller (a node's id and a
/// number, or a random id). At most [`MAX_HOLDER_BYTES`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub Arc<str>);

/// Asks for a place in a pool. Who holds already keeps its place, for `ttl_ms`
/// from now and with the new note, also when the limit has become lower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// Which pool.
    pub pool: Pool,
    /// Who.
    pub holder: Holder,
    /// How many may hold at once; `None` is any number.
    pub limit: Option<u32>,
    /// How long it holds unless it is kept, in ms from the store's present.
    pub ttl_ms: u64,
    /// How long its place in the queue is kept when there is no room, in ms;
    /// `None` does not wait.
    pub patience_ms: Option<u64>,
    /// Only while this record is so, judged in the same step; otherwise nothing
    /// is changed, a hold that is had already included.
    pub guard: Option<Guard>,
    /// What others read of it; at most [`MAX_NOTE_BYTES`].
    pub note: Bytes,
}

impl Take {
    /// What can be said against it without the store. Every backend asks this
    /// first.
    pub(crate) fn check(&self) -> Result<(), HoldError> {
        if self.holder.0.len() > MAX_HOLDER_BYTES {
            return Err(HoldError::Refused("the holder's name is too long"));
        }
        if self.note.len() > MAX_NOTE_BYTES {
            return Err(HoldError::Refused("the note is too large"));
        }
        Ok(())
    }
}

/// What can be said against keeping or giving back `places` without the store.
/// Every backend asks this first.
pub(crate) const fn check_places(places: &[Place]) -> Result<(), HoldError> {
    if places.len() > MAX_HOLDS_AT_ONCE {
        return Err(HoldError::Refused("they are too many at once"));
    }
    Ok(())
}

/// What became of a [`Take`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It holds until then, store time.
    Held {
        /// When it lapses.
        until: Millis,
    },
    /// There is no room.
    Full {
        /// How many wait before it.
        ahead: u32,
    },
    /// The guarded record is another, or has expired.
    Fenced {
        /// What is stored.
        newest: Option<Record>,
        /// The store's time of the judgement.
        at: Millis,
    },
}

/// One hold, as kept or given back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which pool.
    pub pool: Pool,
    /// Who.
    pub holder: Holder,
}

/// A live holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Who.
    pub holder: Holder,
    /// When it lapses, store time.
    pub until: Millis,
    /// Its note.
    pub note: Bytes,
}

/// Why a hold is not known to be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The store did not answer for certain.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// Something is beyond its bound; says what.
    #[error("the hold is refused: {0}")]
    Refused(&'static str),
}
