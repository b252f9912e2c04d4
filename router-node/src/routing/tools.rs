//! How many tools a provider takes, as its owner publishes it.

use std::sync::{Arc, OnceLock};

use actix::Addr;
use arc_swap::ArcSwap;
use shared_proto::clock::Millis;
use shared_proto::tools::ToolLimit;

use crate::actor::owner::{Owner, Publish};

/// The owner of what is known of a provider's limit on tools.
pub(crate) type ToolsOwner = Owner<ToolLimit, PublishTools>;

/// What is known of a provider's limit on tools.
#[derive(Default)]
pub(crate) struct ToolsCell {
    state: ArcSwap<ToolLimit>,
    owner: OnceLock<Addr<ToolsOwner>>,
}

impl ToolsCell {
    /// What is known.
    pub(crate) fn state(&self) -> ToolLimit {
        **self.state.load()
    }

    /// Its owner, once the node has started it.
    pub(crate) fn owner(&self) -> Option<&Addr<ToolsOwner>> {
        self.owner.get()
    }

    /// Ties the owner to the cell; only the first one counts.
    pub(crate) fn own(&self, start: impl FnOnce() -> Addr<ToolsOwner>) {
        self.owner.get_or_init(start);
    }
}

/// Publishes it.
pub(crate) struct PublishTools(pub(crate) Arc<ToolsCell>);

impl Publish<ToolLimit> for PublishTools {
    fn publish(&mut self, state: &ToolLimit, _: Millis) {
        self.0.state.store(Arc::new(*state));
    }
}
