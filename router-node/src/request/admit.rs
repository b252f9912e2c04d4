//! Admission of one request to connections: a slot where there is a cap, the
//! queue where all are full. Nobody is refused: who waited long enough, or finds
//! the queue full, goes without a slot.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use shared_proto::config::QueueRules;
use shared_proto::id::ConnectionId;
use tokio::time::{Instant, sleep_until};

use super::pick::{Candidate, Picker};
use super::trace::Trace;
use super::transition::Claim;
use super::{Admitted, credential, pinned};
use crate::routing::{ConnectionCell, Slot};
use crate::slots::{Asked, Limit, Slots, Ticket};
use crate::timer::after;

/// Who does not ask again within this time loses its place in the queue, ms.
const PATIENCE_MS: u64 = 3_000;
/// The next in the queue asks this often; who is behind asks more rarely.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// Everybody asks at least this often.
const ASK_LEAST: Duration = Duration::from_millis(500);
/// Full connections other than the one that is queued for are asked this often,
/// one after the other.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// What one request has and waits for.
pub(super) struct Admission<'a> {
    request: &'a Admitted,
    rules: QueueRules,
    /// When it has waited long enough, over all its queues.
    deadline: Option<Instant>,
    queued: Option<Queued>,
    /// What waiting has brought; no ticket is a call without a slot.
    granted: Option<(ConnectionId, Option<Ticket>)>,
}

/// A place in the queue for a connection.
struct Queued {
    slot: Arc<Slot>,
    ticket: Ticket,
}

/// How waiting ended.
enum Waited {
    /// This connection may be called, with a slot or without.
    For(Arc<Slot>, Option<Ticket>, &'static str),
    /// A connection that rested may be back.
    LookAgain,
}

impl<'a> Admission<'a> {
    pub(super) const fn new(request: &'a Admitted, rules: QueueRules) -> Self {
        Self {
            request,
            rules,
            deadline: None,
            queued: None,
            granted: None,
        }
    }

    /// Lets the request to `picked`, or to the one that its session is pinned
    /// to. `None` when that is full: it goes behind the others.
    pub(super) async fn enter(
        &mut self,
        (picked, probe): (Candidate, Option<u64>),
        picker: &mut Picker<'_>,
        trace: &mut Trace,
    ) -> Option<(Candidate, Option<Ticket>)> {
        let candidate = pinned::choose(self.request, picker, picked, probe).await;
        // Before it has a slot: it may have to wait for new tokens.
        credential::prepare(&candidate, probe, self.request.worker.now()).await;
        let connection = &candidate.slot.connection;
        let granted = self.granted.take().filter(|(id, _)| *id == connection.id);
        let ticket = match (granted, connection.max_concurrent) {
            (Some((_, ticket)), _) => ticket,
            (None, None) => None,
            (None, Some(_)) => {
                let claim = Claim::of(&candidate, probe);
                self.request.worker.node.look_around().await;
                let slots = self.slots();
                let mut ticket = slots.ticket(&candidate.slot);
                let limit = self.limit(&candidate.slot);
                let asked = slots.ask(&mut ticket, limit, None).await;
                if let Asked::Full { ahead } = asked {
                    picker.is_full(&candidate, ahead, trace);
                    return None;
                }
                claim.used();
                let how = match asked {
                    Asked::Held => "free",
                    Asked::Lent => "share",
                    Asked::Uncounted | Asked::Full { .. } => "uncounted",
                };
                slots.metrics.admitted(how);
                (asked != Asked::Uncounted).then_some(ticket)
            }
        };
        self.queued = None;
        trace.include(&connection.id, &candidate.model);
        Some((candidate, ticket))
    }

    /// Waits for a slot of one of the full connections. Afterwards the request
    /// picks anew.
    pub(super) async fn wait(&mut self, picker: &mut Picker<'_>, trace: &mut Trace) {
        // What it had waited for is of no use any more.
        self.granted = None;
        let started = Instant::now();
        let metrics = &self.slots().metrics;
        let waiting = Waiting::new(&metrics.waiting);
        let waited = self.queue(picker).await;
        drop(waiting);
        trace.queued(started.elapsed());
        match waited {
            Waited::For(slot, ticket, how) => {
                metrics.wait.observe(started.elapsed().as_secs_f64());
                metrics.admitted(how);
                let id = &slot.connection.id;
                if ticket.is_none() {
                    tracing::warn!(connection = %id, why = how, "a request goes without a slot");
                }
                picker.has_room(id);
                self.granted = Some((id.clone(), ticket));
                self.queued = None;
            }
            Waited::LookAgain => picker.look_again(),
        }
    }

    async fn queue(&mut self, picker: &Picker<'_>) -> Waited {
        let now = Instant::now();
        let limit = Duration::from_millis(self.rules.timeout_ms);
        let deadline = *self.deadline.get_or_insert_with(|| after(now, limit));
        let back = picker.earliest().map(|at| {
            let wait = at.since(self.request.worker.now()).saturating_add(1);
            after(now, Duration::from_millis(wait))
        });
        let Some(first) = picker.busy().iter().min_by_key(|busy| busy.ahead) else {
            return Waited::LookAgain;
        };
        if !self.rules.enabled || now >= deadline {
            return Waited::For(Arc::clone(&first.slot), None, "timeout");
        }
        let newcomer = self.queued.is_none();
        if newcomer && first.ahead >= self.rules.depth {
            return Waited::For(Arc::clone(&first.slot), None, "queue_full");
        }
        let mut queued = self.queued.take().unwrap_or_else(|| Queued {
            slot: Arc::clone(&first.slot),
            ticket: self.slots().ticket(&first.slot),
        });
        let until = back.map_or(deadline, |back| back.min(deadline));
        let depth = newcomer.then_some(self.rules.depth);
        let waited = self.stand(&mut queued, picker, depth, until).await;
        match waited {
            Stood::Has(slot, ticket) => Waited::For(slot, Some(ticket), "waited"),
            Stood::Got(how) => Waited::For(queued.slot, Some(queued.ticket), how),
            Stood::Without(why) => Waited::For(queued.slot, None, why),
            Stood::Still if Instant::now() >= deadline => Waited::For(queued.slot, None, "timeout"),
            Stood::Still => {
                self.queued = Some(queued);
                Waited::LookAgain
            }
        }
    }

    /// Stands in the queue until its turn, `until` at the latest.
    async fn stand(
        &self,
        queued: &mut Queued,
        picker: &Picker<'_>,
        mut depth: Option<u32>,
        until: Instant,
    ) -> Stood {
        let slots = self.slots();
        let home = Arc::clone(&queued.slot);
        let elsewhere = picker.busy().iter().map(|busy| &busy.slot);
        let mut elsewhere = elsewhere
            .filter(|slot| slot.connection.id != home.connection.id)
            .cycle();
        let mut look_around = after(Instant::now(), LOOK_AROUND);
        while Instant::now() < until {
            let freed = home.cell.next_freed();
            let limit = self.limit(&home);
            let asked = slots.ask(&mut queued.ticket, limit, Some(PATIENCE_MS));
            let ahead = match asked.await {
                Asked::Held => return Stood::Got("waited"),
                Asked::Lent => return Stood::Got("share"),
                Asked::Uncounted => return Stood::Without("uncounted"),
                Asked::Full { ahead } => ahead,
            };
            if depth.take().is_some_and(|depth| ahead >= depth) {
                return Stood::Without("queue_full");
            }
            if Instant::now() >= look_around
                && let Some(slot) = elsewhere.next()
            {
                look_around = after(Instant::now(), LOOK_AROUND);
                let mut ticket = slots.ticket(slot);
                let limit = self.limit(slot);
                if slots.ask(&mut ticket, limit, None).await == Asked::Held {
                    return Stood::Has(Arc::clone(slot), ticket);
                }
            }
            let wait = ASK_EVERY.saturating_mul(ahead.saturating_add(1));
            let wait = after(Instant::now(), wait.min(ASK_LEAST)).min(until);
            rest(&home.cell, freed, ahead, wait).await;
        }
        Stood::Still
    }

    fn limit(&self, slot: &Slot) -> Limit {
        Limit {
            cap: slot.connection.max_concurrent.unwrap_or(u32::MAX),
            nodes: self.request.worker.node.live_nodes(),
        }
    }

    fn slots(&self) -> &'a Slots {
        &self.request.worker.node.slots
    }
}

/// How standing in a queue ended.
enum Stood {
    /// With a slot of the connection that was queued for; how it came by it.
    Got(&'static str),
    /// With one of another connection.
    Has(Arc<Slot>, Ticket),
    Without(&'static str),
    /// Not at all: it is time for something else.
    Still,
}

/// Rests until it is worth asking again: `wait` is over, or this node has freed
/// a slot for the next in the queue.
async fn rest(
    cell: &ConnectionCell,
    freed: tokio::sync::futures::Notified<'_>,
    ahead: u32,
    wait: Instant,
) {
    let turn = async {
        freed.await;
        for _ in 0..ahead {
            cell.next_freed().await;
        }
    };
    tokio::select! {
        () = turn => {}
        () = sleep_until(wait) => {}
    }
}

/// Counts a request among those that wait, until it is dropped.
struct Waiting(Gauge);

impl Waiting {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.dec();
    }
}
