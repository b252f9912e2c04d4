//! Slots of connections with `maxConcurrent`, counted over all nodes.
//!
//! A request asks the store for a slot before each attempt, in one round trip,
//! and holds it until its answer has ended. While the store is away a node keeps
//! to its own share. Nobody is ever refused for want of a slot: what can't be
//! counted goes out uncounted.
//!
//! | file | what |
//! |---|---|
//! | this one | asking, and the ticket that a request has |
//! | [`porter`] | the one actor that keeps what is held, gives it back, and lends while the store is away |

mod porter;

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor as _, Addr};
use shared_proto::mirror::hold::{HoldError, Holder, Place, Pool, Take, Taken};
use shared_proto::mirror::{Health, Mirror};
use tokio::time::{sleep, timeout};

use crate::observe::{Seldom, SlotMetrics};
use crate::routing::{ConnectionCell, Slot};
use porter::{AskHere, GiveAllBack, Holds, Left, Porter, TellAgain};

/// A question to the store that takes longer counts as unanswered.
const DEADLINE: Duration = Duration::from_millis(250);
/// A store that is away for less than this may be back in time, ms: a
/// connection to it that broke is made anew within.
const JUST_AWAY_MS: u64 = 1_000;
/// Between two questions to a store that has just gone.
const PAUSE: Duration = Duration::from_millis(20);
/// A slot that is not kept lapses after this time, ms.
const SLOT_TTL_MS: u64 = 15_000;

/// A node's way to slots.
pub(crate) struct Slots {
    mirror: Arc<dyn Mirror>,
    porter: Addr<Porter>,
    pub(crate) metrics: SlotMetrics,
    refused: Seldom,
}

/// How many may be on a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// On all nodes together.
    pub(crate) cap: u32,
    /// Nodes that live, for the share of this one.
    pub(crate) nodes: u32,
}

impl Limit {
    /// What this node may use while the store is away.
    fn share(self) -> u32 {
        self.cap.checked_div(self.nodes).unwrap_or(self.cap).max(1)
    }
}

/// What becomes of a question for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The ticket is a slot now.
    Held,
    /// The ticket is a slot of this node's share: the store is away.
    Lent,
    /// There is no room, and so many wait before it.
    Full {
        /// Those who came earlier.
        ahead: u32,
    },
    /// It can't be counted.
    Uncounted,
}

/// A slot, or a place in the queue for one. Dropping it gives it back.
pub(crate) struct Ticket {
    place: Place,
    cell: Arc<ConnectionCell>,
    porter: Addr<Porter>,
    /// Somebody may know of it.
    asked: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.asked {
            self.porter.do_send(Left {
                place: self.place.clone(),
                cell: Arc::clone(&self.cell),
            });
        }
    }
}

impl Slots {
    pub(crate) fn start(mirror: &Arc<dyn Mirror>, metrics: SlotMetrics) -> Self {
        let porter = Porter::new(Arc::clone(mirror), metrics.clone());
        Self {
            mirror: Arc::clone(mirror),
            porter: porter.start(),
            metrics,
            refused: Seldom::default(),
        }
    }

    /// A ticket for a connection; it is nothing yet.
    pub(crate) fn ticket(&self, slot: &Slot) -> Ticket {
        Ticket {
            place: Place {
                pool: Pool::Slots(slot.connection.id.clone()),
                holder: Holder(uuid::Uuid::new_v4().simple().to_string().into()),
            },
            cell: Arc::clone(&slot.cell),
            porter: self.porter.clone(),
            asked: false,
        }
    }

    /// Asks for a slot, once. With `patience_ms` a place in the queue is kept
    /// for that long.
    pub(crate) async fn ask(
        &self,
        ticket: &mut Ticket,
        limit: Limit,
        patience_ms: Option<u64>,
    ) -> Asked {
        // Before the question: whatever becomes of it, the place is given back.
        ticket.asked = true;
        let take = |limit| Take {
            pool: ticket.place.pool.clone(),
            holder: ticket.place.holder.clone(),
            limit: Some(limit),
            ttl_ms: SLOT_TTL_MS,
            patience_ms,
            guard: None,
            note: bytes::Bytes::new(),
        };
        let soon = Duration::from_millis(JUST_AWAY_MS);
        let answered = timeout(soon, self.ask_store(take(limit.cap))).await;
        if let Ok(Some(asked)) = answered {
            return asked;
        }
        let here = AskHere(take(limit.share()));
        // An error means that the node ends.
        let asked = self.porter.send(here).await;
        asked.unwrap_or(Asked::Uncounted)
    }

    /// Asks the store; again where it has only just gone, since a connection to
    /// it that broke says nothing of the slots. `None` when it is away.
    async fn ask_store(&self, take: Take) -> Option<Asked> {
        loop {
            if let Health::Degraded { since, .. } = self.mirror.health() {
                if self.mirror.now().since(since) >= JUST_AWAY_MS {
                    return None;
                }
                sleep(PAUSE).await;
                continue;
            }
            match timeout(DEADLINE, self.mirror.take(take.clone())).await {
                Ok(Ok(Taken::Held { .. })) => {
                    let holds = self.porter.send(Holds(take));
                    return Some(holds.await.unwrap_or(Asked::Uncounted));
                }
                Ok(Ok(Taken::Full { ahead })) => return Some(Asked::Full { ahead }),
                Ok(Ok(Taken::Fenced { .. })) => return Some(Asked::Uncounted),
                Ok(Err(HoldError::Refused(why))) => {
                    if self.refused.due(self.mirror.now()) {
                        tracing::warn!(
                            pool = ?take.pool,
                            why,
                            "slots can't be counted: requests go to this connection uncounted"
                        );
                    }
                    return Some(Asked::Uncounted);
                }
                Ok(Err(HoldError::Unreachable(_))) => sleep(PAUSE).await,
                Err(_) => return None,
            }
        }
    }

    /// The store has lost what it knew: it is told at once what is in use here.
    pub(crate) fn tell_again(&self) {
        self.porter.do_send(TellAgain);
    }

    /// Gives back whatever this node still holds, as far as the store answers
    /// within a second.
    pub(crate) async fn leave(&self) {
        let leaving = self.porter.send(GiveAllBack);
        timeout(Duration::from_secs(1), leaving).await.ok();
    }
}

#[cfg(test)]
mod tests;
