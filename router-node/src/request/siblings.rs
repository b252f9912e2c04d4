//! What a limit of an address means for the other connections that leave by it:
//! before the request goes on, their owners are told, so that it tries none of
//! them in vain.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use shared_proto::clock::Millis;
use shared_proto::egress::Limit;
use shared_proto::failure::{Blame, Failure};
use shared_proto::health::{HealthEvent, Outcome};
use shared_proto::id::ConnectionId;
use tokio::time::timeout;

use super::transition::{Durable, OWNER_DEADLINE};
use crate::actor::owner::report;
use crate::node::Node;
use crate::routing::{Routing, Slot};

/// Siblings told by a request; the coordinator's sweep tells the others.
const MAX_TOLD: usize = 1024;
/// Siblings in a trace.
const MAX_LISTED: usize = 64;

/// Whom a limit of an address rested, for the trace.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shared {
    /// The address.
    pub(crate) egress_ip: IpAddr,
    /// Until when they rest.
    #[serde(serialize_with = "super::trace::rfc3339_of")]
    pub(crate) until: Millis,
    /// The siblings that rest because of it.
    pub(crate) siblings: Vec<ConnectionId>,
    /// Those beyond the ones listed.
    pub(crate) more_siblings: usize,
}

impl Shared {
    /// How many there are.
    pub(crate) const fn count(&self) -> usize {
        self.siblings.len().saturating_add(self.more_siblings)
    }
}

/// Rests the siblings of `slot`, whose failure its own owner knows of already.
/// `None` where it was no limit of an address.
pub(crate) async fn rest(
    node: &Node,
    routing: &Routing,
    (slot, failure): (&Slot, &Failure),
    durable: &mut Durable,
) -> Option<Shared> {
    if failure.blame != Blame::EgressIp {
        return None;
    }
    let now = node.now();
    let limit = Limit::of(&slot.cell.health(), now)?;
    let own = &slot.connection.id;
    let told = node.egress.siblings(&limit, now).into_iter();
    let told = told.filter(|id| id != own).filter_map(|id| {
        let slot = routing.slots.get(&id)?;
        let rests = slot.cell.health().outlasts(&limit);
        (!rests).then_some(slot)
    });
    let telling = told.take(MAX_TOLD).map(|slot| tell(slot, &limit));
    let telling = timeout(OWNER_DEADLINE, futures_util::future::join_all(telling));
    let mut rested = Vec::new();
    for (id, receiver) in telling.await.unwrap_or_default().into_iter().flatten() {
        durable.push(receiver);
        rested.push(id);
    }
    Some(shown(node, &limit, rested))
}

type Told = (
    ConnectionId,
    Option<tokio::sync::oneshot::Receiver<Outcome>>,
);

async fn tell(slot: &Arc<Slot>, limit: &Limit) -> Option<Told> {
    let event = HealthEvent::SiblingLimited(limit.clone());
    let reported = report(slot.cell.owner()?, event).await?;
    let rests = matches!(reported.outcome, Outcome::Cooled { .. });
    rests.then(|| (slot.connection.id.clone(), reported.durable))
}

fn shown(node: &Node, limit: &Limit, mut rested: Vec<ConnectionId>) -> Shared {
    let count = rested.len();
    if count > 0 {
        node.egress.metrics.rested(count);
        tracing::info!(
            egress_ip = %limit.exit.address,
            family = &*limit.exit.family,
            met_by = limit.met_by.as_str(),
            reason = limit.reason.as_str(),
            until = limit.until.to_rfc3339(),
            siblings = count,
            "the limit of an address rests all that leave by it"
        );
    }
    rested.truncate(MAX_LISTED);
    Shared {
        egress_ip: limit.exit.address,
        until: limit.until,
        more_siblings: count.saturating_sub(rested.len()),
        siblings: rested,
    }
}
