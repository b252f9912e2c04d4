//! A connection with several keys: one that is refused is set aside for all nodes,
//! and the same attempt presents the next.

use shared_proto::failure::Failure;
use shared_proto::health::{HealthEvent, Outcome, names_key};

use super::after::After;
use super::dispatch::Failed;
use super::transition;
use crate::routing::{Key, Slot};

/// The keys of one attempt.
#[derive(Default)]
pub(super) struct Keys {
    /// Those that were refused in it.
    refused: Vec<u64>,
    is_test: bool,
}

impl Keys {
    /// Those of a request, or of a live test.
    pub(super) const fn of(is_test: bool) -> Self {
        Self {
            refused: Vec::new(),
            is_test,
        }
    }

    /// The key that the next call presents, where `slot` has several.
    pub(super) fn next<'s>(&self, slot: &'s Slot) -> Option<&'s Key> {
        slot.next_key(&self.refused, self.is_test)
    }

    /// After a failure with `key`: whether the call is made again with another one.
    /// Of the last one only what is final is remembered; the rest is the connection's.
    pub(super) async fn give_way(
        &mut self,
        key: Option<u64>,
        failed: &Failed,
        after: &After,
    ) -> bool {
        let Some(key) = key.filter(|_| names_key(&failed.failure)) else {
            return false;
        };
        self.refused.push(key);
        let slot = &after.candidate().slot;
        let is_left = self.next(slot).is_some();
        if is_left || failed.failure.terminal.is_some() {
            let event = HealthEvent::KeyRefused {
                started_at: after.began(),
                key,
                failure: failed.failure.clone(),
            };
            let outcome = transition::tell_health(after.candidate(), event).await;
            if outcome == Some(Outcome::SetAside) {
                note(slot, key, &failed.failure);
            }
        }
        is_left
    }
}

/// Whether a failure with `key` leaves the connection another one.
pub(super) fn leaves_another(slot: &Slot, key: u64, failure: &Failure) -> bool {
    names_key(failure) && slot.next_key(&[key], false).is_some()
}

fn note(slot: &Slot, key: u64, failure: &Failure) {
    tracing::warn!(
        connection = slot.connection.id.as_str(),
        key = slot.key_number(key),
        of = slot.keys.len(),
        status = failure.status,
        rule = failure.rule.as_str(),
        "a key was refused and is set aside; the connection goes on with the others, if any is left"
    );
}
