//! Which connection a request of a session takes: the one that the session is
//! pinned to, if that can be used; else the least recently used, which the
//! session is pinned to from then on.
//!
//! A pinned connection that is only full, or that failed this one request,
//! keeps its pin; one that rests or worse loses it. While the store is away the
//! pin is this node's own, and is told when the store is back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use shared_proto::clock::Millis;
use shared_proto::mirror::commit::Expected;
use shared_proto::pin::{self, Pin, Use};
use tokio::time::timeout;

use super::Admitted;
use super::pick::{Candidate, Picker, Standing};
use super::transition::Claim;
use crate::pins::{Known, Pins, Proposed};
use crate::routing::Slot;

/// The store has this long to say what a session's pin is.
const DEADLINE: Duration = Duration::from_millis(250);
/// Pins of connections that can't be used are replaced at most this often.
const MAX_ROUNDS: usize = 8;

/// The connection for the request: that of `picked`, or another of its provider.
pub(super) async fn choose(
    request: &Admitted,
    picker: &Picker<'_>,
    picked: Candidate,
    probe: Option<u64>,
) -> Candidate {
    let Some(session) = &request.session else {
        return picked;
    };
    let provider = &picked.slot.provider.id;
    let api_key = request.key.as_ref().map(|key| &key.id);
    let choice = Choice {
        pins: &request.worker.node.pins,
        picker,
        picked: &picked,
        name: pin::name(provider, api_key, session),
        ttl_ms: request.routing.config.settings.session_affinity_ttl_ms,
        now: request.worker.now(),
    };
    // The claim of a probe is its provider's, whatever the connection.
    let claim = Claim::of(&picked, probe);
    let (slot, what) = choice.slot().await;
    claim.used();
    request.worker.node.pins.metrics.chosen(what);
    match slot {
        Some(slot) => Candidate { slot, ..picked },
        None => picked,
    }
}

/// A slot in place of the picked one, if there is one; and a word for it.
type Chosen = (Option<Arc<Slot>>, &'static str);

struct Choice<'a> {
    pins: &'a Pins,
    picker: &'a Picker<'a>,
    picked: &'a Candidate,
    name: Arc<str>,
    ttl_ms: u64,
    now: Millis,
}

impl Choice<'_> {
    async fn slot(&self) -> Chosen {
        let known = self.pins.known(&self.name, self.now);
        let wanted = match &known {
            None => None,
            Some(known) => match self.standing(known) {
                Standing::Usable(slot) if known.is_current(&slot.cell) => {
                    self.pins.used(&self.name, known, self.now);
                    return (Some(slot), "kept");
                }
                Standing::Usable(slot) => Some(slot),
                Standing::PassedOver => return (None, "spilled"),
                Standing::Out if self.forced() => return (None, "spilled"),
                Standing::Out => None,
            },
        };
        let expected = known.as_ref().map_or(Expected::Absent, |k| k.expected());
        if self.pins.store_answers() {
            let agreeing = self.agree(expected, wanted.clone());
            if let Ok(Some(chosen)) = timeout(DEADLINE, agreeing).await {
                return chosen;
            }
        }
        let slot = wanted.or_else(|| self.first(&HashMap::new()));
        if let Some(slot) = &slot {
            let pin = Pin::new(slot.connection.id.clone(), self.now);
            let known = self
                .pins
                .learn_own(&self.name, (&pin, expected), self.ttl_ms, &slot.cell);
            self.pins.used(&self.name, &known, self.now);
        }
        (slot, "local")
    }

    /// Agrees with all nodes on the session's connection. `None` when the store
    /// can't say.
    async fn agree(&self, mut expected: Expected, wanted: Option<Arc<Slot>>) -> Option<Chosen> {
        let provider = &self.picked.slot.provider.id;
        let slot = match wanted {
            Some(slot) => slot,
            None if self.forced() => Arc::clone(&self.picked.slot),
            None => self.first(&self.pins.uses(provider).await)?,
        };
        let pin = Pin::new(slot.connection.id.clone(), self.now);
        for _ in 0..MAX_ROUNDS {
            let wish = (expected, self.ttl_ms);
            match self.pins.propose(&self.name, &pin, wish, provider).await {
                Proposed::Made(revision) => {
                    slot.cell.note_use(self.now);
                    let made = (&pin, revision);
                    self.pins.learn(&self.name, made, self.ttl_ms, &slot.cell);
                    return Some((Some(slot), "made"));
                }
                Proposed::Other(pin, revision) => {
                    let theirs = self.picked.provider.slot(&pin.connection);
                    // One that is not configured here is out in any case.
                    let cell = theirs.map_or(&slot.cell, |theirs| &theirs.cell);
                    let known = self
                        .pins
                        .learn(&self.name, (&pin, revision), self.ttl_ms, cell);
                    match self.standing(&known) {
                        Standing::Usable(slot) => {
                            self.pins.used(&self.name, &known, self.now);
                            return Some((Some(slot), "found"));
                        }
                        Standing::PassedOver => return Some((None, "spilled")),
                        Standing::Out if self.forced() => return Some((None, "spilled")),
                        Standing::Out => expected = Expected::Revision(revision),
                    }
                }
                Proposed::Away => return None,
            }
        }
        None
    }

    fn standing(&self, known: &Known) -> Standing {
        let place = self.picked.target;
        self.picker.standing(place, &known.connection, self.now)
    }

    /// Whether the target names its connection: then a pin of another one goes
    /// first if that can be used, and stays as it is if not.
    fn forced(&self) -> bool {
        self.picker.names_connection(self.picked.target)
    }

    /// The least recently used of those that can be used; `uses` is what other
    /// nodes told.
    fn first(&self, uses: &HashMap<shared_proto::id::ConnectionId, Millis>) -> Option<Arc<Slot>> {
        if self.forced() {
            return Some(Arc::clone(&self.picked.slot));
        }
        let rank = |slot: &&Arc<Slot>| {
            let told = uses.get(&slot.connection.id).copied();
            let used = Use {
                used_at: slot.cell.used_at().max(told),
                order: slot.cell.last_used(),
                priority: slot.connection.priority,
            };
            used.rank()
        };
        let usable = self.picker.usable(self.picked.target, self.now);
        usable.min_by_key(rank).cloned()
    }
}
