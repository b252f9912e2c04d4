//! What requests read of a provider's gate.

use std::sync::{Arc, OnceLock};

use actix::Addr;
use arc_swap::ArcSwap;
use shared_proto::clock::Millis;
use shared_proto::gate::{GateRules, ProviderGate};
use shared_proto::id::ConnectionId;

use crate::actor::owner::{Owner, Publish};

/// The owner of a provider's gate.
pub(crate) type GateOwner = Owner<ProviderGate, PublishGate>;

/// A provider's published gate.
#[derive(Default)]
pub(crate) struct GateCell {
    gate: ArcSwap<ProviderGate>,
    owner: OnceLock<Addr<GateOwner>>,
}

impl GateCell {
    /// What is remembered.
    pub(crate) fn gate(&self) -> arc_swap::Guard<Arc<ProviderGate>> {
        self.gate.load()
    }

    /// Until when combos pass over `connection`, if they do.
    pub(crate) fn shut(
        &self,
        connection: &ConnectionId,
        rules: &GateRules,
        now: Millis,
    ) -> Option<Millis> {
        if !rules.enabled {
            return None;
        }
        self.gate.load().shut(connection, rules, now)
    }

    /// Its owner, once the node has started it.
    pub(crate) fn owner(&self) -> Option<&Addr<GateOwner>> {
        self.owner.get()
    }

    /// Ties the owner to the cell; only the first one counts.
    pub(crate) fn own(&self, start: impl FnOnce() -> Addr<GateOwner>) {
        self.owner.get_or_init(start);
    }
}

/// Publishes a provider's gate to its cell.
pub(crate) struct PublishGate(pub(crate) Arc<GateCell>);

impl Publish<ProviderGate> for PublishGate {
    fn publish(&mut self, state: &ProviderGate, _: Millis) {
        self.0.gate.store(Arc::new(state.clone()));
    }
}
