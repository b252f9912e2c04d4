//! Limits that count by the address a request leaves from.
//!
//! Some providers count the requests of an address instead of an account's.
//! There a limit that one connection meets is met by all that leave by the same
//! address, and trying them one after the other costs a failed call each. So
//! the connection that met it rests, and with it its *siblings*: the other
//! connections of the family whose last known address is the same.
//!
//! What an address is known from is a probe of each way out ([`echo`]); each
//! node tells the others what it saw ([`Observations`]), and all see the same
//! [`Board`]. A connection without a proxy leaves by each node's own address,
//! so what the node that asks has seen itself goes first; the address of a
//! proxy is the same for all, and there the newest word counts.
//!
//! An address is only a hint. A limit rests siblings and never ends them, the
//! longer of two cooldowns holds, and a level is not touched
//! ([`HealthEvent::SiblingLimited`](crate::health::HealthEvent)).

pub mod board;
pub mod echo;
mod limit;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;

pub use board::{Board, MAX_OBSERVED, Observation, Observations};
pub use limit::{Exit, Limit, Mark, charged, is_limit};

/// How long a way out is taken for the same after a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// When the probe ended.
    pub at: Millis,
}

impl Probed {
    /// Whether it still counts at `now`, `cache_ms` being how long one does,
    /// whatever it found.
    pub const fn is_fresh(self, now: Millis, cache_ms: u64) -> bool {
        now.since(self.at) < cache_ms
    }
}

#[cfg(test)]
mod tests;
