//! Expired connections are tried again by whichever node is first: a retry is
//! counted in the connection's record, and whoever counted it makes it. No
//! coordinator is needed; without the store nobody tries.
//!
//! A retry is a live test. An access token that is still good is only tried, so
//! that a refresh token that can be spent once is not spent for it; one that
//! has ended is renewed first, as for any request, and that its refresh token
//! was refused before is forgiven for this once.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use shared_proto::clock::Millis;
use shared_proto::health::{ConnectionHealth, HealthEvent, Outcome, Retry};
use shared_proto::id::ConnectionId;
use tokio::time::{Instant, timeout};

use super::{Node, Worker};
use crate::actor::owner::Report;
use crate::request::trial::{Trial, Why};
use crate::routing::{Routing, Slot};
use crate::timer::{random, spread};
use crate::upstream::Clients;

/// Connections tried again in one sweep; those left come in the next.
const BATCH: usize = 64;
/// Of these at a time.
const AT_ONCE: usize = 4;
/// How often it is looked whether a sweep is due: a reload may have changed that.
const LOOK: Duration = Duration::from_secs(1);
/// The store has a claim within this time, or the retry is not made.
const CLAIM_DEADLINE: Duration = Duration::from_secs(2);

/// Sweeps for ever.
pub(super) async fn keep(node: Arc<Node>) {
    let worker = Rc::new(Worker {
        node: Arc::clone(&node),
        clients: Clients::default(),
    });
    loop {
        let (began, chance) = (Instant::now(), random());
        loop {
            let every = node.routing().config.settings.expired_retry.sweep_ms;
            let every = spread(Duration::from_millis(every), chance);
            let left = every.saturating_sub(began.elapsed());
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
        if node.store_is_up() && !node.stop.begun() {
            sweep(&worker).await;
        }
    }
}

/// Tries what is due.
async fn sweep(worker: &Rc<Worker>) {
    let routing = worker.node.routing();
    let due = due(&routing, worker.now());
    let tries = due.into_iter().map(|id| again(worker, &routing, id));
    let all = futures_util::stream::iter(tries).buffer_unordered(AT_ONCE);
    all.for_each(|()| std::future::ready(())).await;
}

fn due(routing: &Routing, now: Millis) -> Vec<ConnectionId> {
    let rules = &routing.config.settings.expired_retry;
    let is_due = |slot: &&Arc<Slot>| match slot.cell.health().retry(rules) {
        Retry::At { due, .. } => due <= now,
        Retry::Never | Retry::Over => false,
    };
    let slots = routing.slots.values().filter(is_due);
    slots
        .take(BATCH)
        .map(|slot| slot.connection.id.clone())
        .collect()
}

/// Tries one connection again, if it is this node that does.
async fn again(worker: &Rc<Worker>, routing: &Arc<Routing>, id: ConnectionId) {
    let Some((provider, slot)) = routing.connection(id.as_str()) else {
        return;
    };
    let Some(number) = claim(routing, &slot, worker.now()).await else {
        return;
    };
    let trial = Trial {
        worker: Rc::clone(worker),
        routing: Arc::clone(routing),
        provider,
        slot: Arc::clone(&slot),
        model: None,
        id: format!("test_{}", uuid::Uuid::new_v4().simple()).into(),
        why: Why::ExpiredRetry,
    };
    let Ok(verdict) = trial.run().await else {
        return;
    };
    if verdict.passed() {
        tracing::info!(connection = %id, number, "an expired connection can be used again");
        return;
    }
    let over = slot
        .cell
        .health()
        .retry(&routing.config.settings.expired_retry)
        == Retry::Over;
    if over {
        tracing::warn!(connection = %id, number, "an expired connection was tried for the last time; it needs another credential, or a reset");
    } else {
        tracing::info!(connection = %id, number, "an expired connection was tried in vain");
    }
}

/// Counts the retry that is due at `now`. Its number, once the store says that
/// it is this node's.
async fn claim(routing: &Routing, slot: &Slot, now: Millis) -> Option<u32> {
    let health = slot.cell.health().clone();
    let expired_at = health.terminal?.at;
    let number = match health.retry(&routing.config.settings.expired_retry) {
        Retry::At { number, due } if due <= now => number,
        Retry::At { .. } | Retry::Never | Retry::Over => return None,
    };
    let event = HealthEvent::Retried { number, expired_at };
    let claiming = async {
        let owner = slot.cell.owner()?;
        let reported = owner.send(Report::<ConnectionHealth>(event)).await.ok()?;
        if reported.outcome != Outcome::Retrying {
            return None;
        }
        reported.durable?.await.ok()
    };
    let outcome = timeout(CLAIM_DEADLINE, claiming).await.ok()??;
    (outcome == Outcome::Retrying).then_some(number)
}
