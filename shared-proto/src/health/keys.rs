//! A connection with several keys: those that the upstream refused are set aside,
//! and the connection serves on with the others.
//!
//! A refusal of a key is not the connection's until no key is left; then it
//! counts as that of a connection with one key. What is set aside is known to
//! all nodes by a hash of the key. It comes back with an operator's reset, with
//! a success of that very key (a live test presents it, or a request where no
//! other is left), and it is nobody's any more when the configuration has
//! another key in its place.

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{ConnectionHealth, HealthRules, Outcome, Step};
use crate::clock::Millis;
use crate::failure::{ErrorType, Failure};
use crate::id::ConnectionId;
use crate::token::may_be_stale;

/// Keys of one connection that are remembered: twice as many as it can have,
/// since nodes may have two configurations for a while.
const MOST: usize = 34;

/// A key that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyAside {
    /// Which, as [`key_mark`] tells them apart.
    pub mark: u64,
    /// Why.
    #[serde(default)]
    pub reason: Option<ErrorType>,
    /// When it was refused.
    pub at: Millis,
}

/// Tells keys of a connection apart without keeping them: the first eight bytes
/// of a hash over its name and the key.
pub fn key_mark(connection: &ConnectionId, key: &SecretString) -> u64 {
    let mut hash = Sha256::new();
    hash.update(connection.as_str().as_bytes());
    hash.update([0]);
    hash.update(key.expose_secret().as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(digest.get(..8).unwrap_or(&[0; 8]));
    u64::from_be_bytes(first)
}

/// Whether a failure says that the key is no good, or the account behind it:
/// another key of the connection may still be.
pub fn names_key(failure: &Failure) -> bool {
    may_be_stale(failure) || failure.error_type == Some(ErrorType::AccountDeactivated)
}

impl ConnectionHealth {
    /// Why and since when the key with this mark is set aside, if it is.
    pub fn aside(&self, mark: u64) -> Option<&KeyAside> {
        self.keys_aside.iter().find(|key| key.mark == mark)
    }

    /// An attempt that began then was refused with one of the keys.
    pub(super) fn key_refused(
        &self,
        (started_at, key): (Millis, u64),
        failure: &Failure,
        now: Millis,
        rules: &HealthRules,
    ) -> Step {
        if self.aside(key).is_some() {
            return self.kept(now, Outcome::Nothing);
        }
        let renewed = self.renewed_at.is_some_and(|at| started_at <= at);
        if renewed || self.recovered_from.is_some_and(|from| started_at < from) {
            return self.kept(now, Outcome::Stale);
        }
        let mut state = self.clone();
        let surplus = state
            .keys_aside
            .len()
            .saturating_sub(MOST.saturating_sub(1));
        state.keys_aside.drain(..surplus);
        state.keys_aside.push(KeyAside {
            mark: key,
            reason: failure.error_type,
            at: now,
        });
        state.credential = rules.credential.or(state.credential);
        state.into_step(now, Outcome::SetAside)
    }

    /// An attempt that began then succeeded with one of the keys.
    pub(super) fn key_accepted(&self, (started_at, key): (Millis, u64), now: Millis) -> Step {
        let mut step = self.succeeded(started_at, now);
        let is_older = self.aside(key).is_some_and(|aside| aside.at <= started_at);
        if is_older {
            step.state.keys_aside.retain(|aside| aside.mark != key);
            step.state.recovered_from = step.state.recovered_from.max(Some(started_at));
            step.changed = true;
            step.outcome = Outcome::Recovered;
        }
        step
    }
}
