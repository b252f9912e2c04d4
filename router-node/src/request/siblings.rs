//! What a failure means for other connections than the one that met it: those
//! that leave by the same address, where a limit counts there, and those that go
//! the same way to a provider that is out of reach or refuses whoever comes by it.
//! Before the request goes on, their owners are told, so that it tries none of
//! them in vain.

use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use shared_proto::classify;
use shared_proto::clock::Millis;
use shared_proto::egress::Limit;
use shared_proto::failure::{Blame, Failure};
use shared_proto::health::{HealthEvent, Outage, Outcome};
use shared_proto::id::ConnectionId;
use tokio::time::timeout;

use super::transition::{Durable, OWNER_DEADLINE};
use crate::actor::owner::report;
use crate::node::Node;
use crate::routing::{Routing, Slot};

/// Siblings told by a request. Of a limit of an address, the coordinator's sweep
/// tells the others; of a failure of the provider, whoever meets it next.
const MAX_TOLD: usize = 1024;
/// Siblings in a trace.
const MAX_LISTED: usize = 64;

/// Whom a failure rested besides the connection that met it, for the trace.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shared {
    /// The address, where it is a limit of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) egress_ip: Option<IpAddr>,
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

    fn of(egress_ip: Option<IpAddr>, until: Millis, mut rested: Vec<ConnectionId>) -> Self {
        let count = rested.len();
        rested.truncate(MAX_LISTED);
        Self {
            egress_ip,
            until,
            more_siblings: count.saturating_sub(rested.len()),
            siblings: rested,
        }
    }
}

/// Whether `other` would meet what `slot` met, which is charged to its provider.
/// An operator's rule speaks of all its connections, every other sign of the way.
pub(crate) fn concerns((slot, failure): (&Slot, &Failure), other: &Slot) -> bool {
    let whole = classify::is_operators(&failure.rule);
    whole && slot.provider.id == other.provider.id || slot.goes_the_way_of(other)
}

/// Rests the siblings of `slot`, whose failure its own owner knows of already.
/// `None` where it says nothing of others.
pub(crate) async fn rest(
    node: &Node,
    routing: &Routing,
    (slot, failure): (&Slot, &Failure),
    durable: &mut Durable,
) -> Option<Shared> {
    match failure.blame {
        Blame::EgressIp => at_the_address(node, routing, slot, durable).await,
        Blame::Provider => at_the_provider(node, routing, (slot, failure), durable).await,
        Blame::Request
        | Blame::ProtocolQuirk
        | Blame::Model
        | Blame::Connection
        | Blame::Router
        | Blame::Client => None,
    }
}

async fn at_the_address(
    node: &Node,
    routing: &Routing,
    slot: &Slot,
    durable: &mut Durable,
) -> Option<Shared> {
    let now = node.now();
    let limit = Limit::of(&slot.cell.health(), now)?;
    let told = node.egress.siblings(&limit, now);
    let told = told.iter().filter_map(|id| routing.slots.get(id));
    let event = HealthEvent::SiblingLimited(limit.clone());
    let rested = tell((slot, told), (&event, limit.until), durable).await;
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
    Some(Shared::of(Some(limit.exit.address), limit.until, rested))
}

async fn at_the_provider(
    node: &Node,
    routing: &Routing,
    (slot, failure): (&Slot, &Failure),
    durable: &mut Durable,
) -> Option<Shared> {
    let outage = Outage::of(&slot.cell.health(), failure, node.now())?;
    let provider = routing.providers.get(&slot.provider.id)?;
    let told = provider.all.iter();
    let told = told.filter(|other| concerns((slot, failure), other));
    let until = outage.until;
    let event = HealthEvent::SiblingFailed(outage);
    let rested = tell((slot, told), (&event, until), durable).await;
    if !rested.is_empty() {
        tracing::info!(
            provider = slot.provider.id.as_str(),
            met_by = slot.connection.id.as_str(),
            rule = failure.rule,
            reason = failure.reason.as_str(),
            until = until.to_rfc3339(),
            siblings = rested.len(),
            "a failure of the provider rests all that go the same way"
        );
    }
    Some(Shared::of(None, until, rested))
}

/// Tells all of `others` but `slot` of what ends at `until`. Those that rest now.
async fn tell<'s>(
    (slot, others): (&Slot, impl Iterator<Item = &'s Arc<Slot>>),
    (event, until): (&HealthEvent, Millis),
    durable: &mut Durable,
) -> Vec<ConnectionId> {
    let own = &slot.connection.id;
    let others =
        others.filter(|other| other.connection.id != *own && !other.cell.health().outlasts(until));
    let telling = others.take(MAX_TOLD).map(async |other| {
        let reported = report(other.cell.owner()?, event.clone()).await?;
        let rests = matches!(reported.outcome, Outcome::Cooled { .. });
        rests.then(|| (other.connection.id.clone(), reported.durable))
    });
    let telling = timeout(OWNER_DEADLINE, futures_util::future::join_all(telling));
    let mut rested = Vec::new();
    for (id, receiver) in telling.await.unwrap_or_default().into_iter().flatten() {
        durable.push(receiver);
        rested.push(id);
    }
    rested
}
