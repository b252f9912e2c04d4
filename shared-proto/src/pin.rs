//! A session's pin: the connection that its requests go to while it lasts.
//!
//! The record is quiet: it is not in the log, and there may be as many as
//! there are sessions. It is made by compare-and-set, so that first requests
//! that come at once agree; whoever loses learns from the conflict what is
//! pinned. It expires a time to live after its last use. Its key is a hash, so
//! that no store ever sees what a session is called, and two API keys never
//! share one.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::clock::Millis;
use crate::id::{ApiKeyId, ConnectionId, ProviderId};
use crate::mirror::commit::{Commit, Expected};
use crate::mirror::key::{self, Key};
use crate::mirror::record::{Body, BodyError, Record, Revision};

#[cfg(test)]
mod tests;

/// Where a session's requests go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// The connection.
    pub connection: ConnectionId,
    /// When it was pinned to it.
    pub created_at: Millis,
    /// The last use that was told.
    pub used_at: Millis,
}

impl Body for Pin {
    const KIND: &'static str = key::PIN;
    const VERSION: u16 = 1;
}

/// The hash that a pin is stored by, in lower-case hex: of the provider, the
/// API key and what the session is called.
pub fn name(provider: &ProviderId, api_key: Option<&ApiKeyId>, session: &str) -> Arc<str> {
    use std::fmt::Write as _;
    let mut hash = Sha256::new();
    // Lengths first, so that no two triples are the same bytes.
    for part in [provider.as_str(), api_key.map_or("", ApiKeyId::as_str)] {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.update([u8::from(api_key.is_some())]);
    hash.update(session.as_bytes());
    let mut hex = String::with_capacity(64);
    for byte in hash.finalize() {
        // Writing to a String does not fail.
        write!(hex, "{byte:02x}").ok();
    }
    hex.into()
}

impl Pin {
    /// A new one.
    pub const fn new(connection: ConnectionId, now: Millis) -> Self {
        Self {
            connection,
            created_at: now,
            used_at: now,
        }
    }

    /// Stores it under `name` for `ttl_ms` after its last use.
    pub fn commit(
        &self,
        name: &Arc<str>,
        expected: Expected,
        ttl_ms: u64,
    ) -> Result<Commit, BodyError> {
        let commit = Commit::put(Key::Pin(Arc::clone(name)), expected, self)?;
        Ok(commit.expiring(self.used_at.plus(ttl_ms)))
    }
}

/// What a store holds under a pin's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A pin that lives.
    Live(Pin, Revision),
    /// Nothing that counts; what a commit in its place has to expect.
    Over(Expected),
    /// A newer version wrote it: it is neither understood nor replaced.
    Newer,
}

impl Stored {
    /// What `record` means at `now`.
    pub fn of(record: Option<&Record>, now: Millis) -> Self {
        let Some(record) = record else {
            return Self::Over(Expected::Absent);
        };
        let replace = Self::Over(Expected::Revision(record.revision));
        match record.decode::<Pin>() {
            Err(BodyError::Newer { .. }) => Self::Newer,
            Ok(pin) if !record.is_expired(now) => Self::Live(pin, record.revision),
            // A body that makes no sense is as good as none.
            Ok(_) | Err(_) => replace,
        }
    }
}

/// When a connection was used, for the choice of a session's first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The last use that is known, on any node; `None` is never.
    pub used_at: Option<Millis>,
    /// The order of uses on this node, for those of the same moment.
    pub order: u64,
    /// Lower goes first among equals.
    pub priority: u32,
}

impl Use {
    /// Least recently used first: never used before all others, these by
    /// priority.
    pub fn rank(&self) -> impl Ord + use<> {
        match self.used_at {
            None => (Millis::from_epoch_ms(0), u64::from(self.priority), 0),
            Some(at) => (at, self.order, self.priority),
        }
    }
}
