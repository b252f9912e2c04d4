//! By which addresses connections leave, as this node and the others saw it.
//!
//! One task ([`prober`]) asks an echo service through each way out that a
//! connection of a family uses, in the background and never for a request, and
//! tells the owner of this node's record. Requests read the [`Board`]: what all
//! nodes saw, as far as the change log has brought it here. What it is good for
//! is said by [`shared_proto::egress`].

mod call;
mod prober;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use actix::Addr;
use arc_swap::ArcSwap;
use shared_proto::clock::Millis;
use shared_proto::egress::{Board, Exit, Limit, Observations};
use shared_proto::id::ConnectionId;
use shared_proto::mirror::key::Key;

use crate::actor::owner::{Heard, Owner, Publish, Reading, StoreIsBack, Stored, report};
use crate::observe::EgressMetrics;
use crate::routing::Slot;

pub(crate) use prober::keep;

/// The owner of this node's record.
pub(crate) type ObservedOwner = Owner<Observations, PublishObserved>;

/// What a node knows of addresses.
pub(crate) struct Egress {
    node: Arc<str>,
    board: Arc<ArcSwap<Board>>,
    owner: OnceLock<Addr<ObservedOwner>>,
    pub(crate) metrics: EgressMetrics,
}

impl Egress {
    /// For the node of this name.
    pub(crate) fn new(node: &str, metrics: EgressMetrics) -> Self {
        Self {
            node: node.into(),
            board: Arc::default(),
            owner: OnceLock::new(),
            metrics,
        }
    }

    /// The key of this node's record.
    pub(crate) fn key(&self) -> Key {
        Key::Egress(Arc::clone(&self.node))
    }

    /// Ties the owner of the record to it; only the first one counts.
    pub(crate) fn own(&self, start: impl FnOnce(PublishObserved) -> Addr<ObservedOwner>) {
        let publish = PublishObserved {
            node: Arc::clone(&self.node),
            board: Arc::clone(&self.board),
        };
        self.owner.get_or_init(|| start(publish));
    }

    /// Tells the owner what this node sees now.
    async fn saw(&self, observations: Observations) {
        if let Some(owner) = self.owner.get() {
            report(owner, observations).await;
        }
    }

    /// The address that `connection` leaves by, as far as is known.
    pub(crate) fn address(&self, connection: &ConnectionId, now: Millis) -> Option<IpAddr> {
        let board = self.board.load();
        let seen = board.latest(Some(&self.node), connection, now)?;
        Some(seen.address)
    }

    /// Where a connection of a family leaves, as far as is known.
    pub(crate) fn exit(&self, slot: &Slot, now: Millis) -> Option<Exit> {
        let family = slot.egress_family.clone()?;
        let address = self.address(&slot.connection.id, now)?;
        Some(Exit { family, address })
    }

    /// Who leaves by the address of `limit`, but for the one that met it.
    pub(crate) fn siblings(&self, limit: &Limit, now: Millis) -> Vec<ConnectionId> {
        self.board.load().siblings(Some(&self.node), limit, now)
    }

    /// Takes what the store holds of the record of `node`: this one's goes to
    /// its owner, and is waited for.
    pub(crate) async fn tell(&self, node: &str, heard: Heard) {
        if *node != *self.node {
            self.saw_elsewhere(node, &heard.stored);
        } else if let Some(owner) = self.owner.get() {
            // An owner ends with the node.
            owner.send(heard).await.ok();
        }
    }

    /// Takes all records of a snapshot.
    pub(crate) async fn tell_all(
        &self,
        mut held: Vec<(Arc<str>, Stored)>,
        reading: Option<Reading>,
    ) {
        let is_own = |(name, _): &(Arc<str>, Stored)| **name == *self.node;
        let own = held.iter().position(is_own);
        let own = own.map(|at| held.swap_remove(at).1);
        let mut board = Board::default();
        if let Some(known) = self.board.load().of(&self.node) {
            board.set(&self.node, known.clone());
        }
        self.board.store(Arc::new(board));
        for (name, stored) in &held {
            self.saw_elsewhere(name, stored);
        }
        let heard = Heard {
            stored: own.unwrap_or(Stored::Nothing(None)),
            reading,
        };
        if let (Some(owner), Some(_)) = (self.owner.get(), reading) {
            owner.send(heard).await.ok();
        }
    }

    /// The store answers again.
    pub(crate) fn store_is_back(&self) {
        if let Some(owner) = self.owner.get() {
            owner.do_send(StoreIsBack);
        }
    }

    fn saw_elsewhere(&self, node: &str, stored: &Stored) {
        let told = match stored {
            Stored::Record(record) => record.decode::<Observations>().ok(),
            Stored::Unreadable(_) | Stored::Nothing(_) => None,
        };
        self.board.rcu(|board| {
            let mut board = Board::clone(board);
            match &told {
                Some(told) => board.set(node, told.clone()),
                None => board.remove(node),
            }
            board
        });
    }
}

/// Publishes this node's record to its board.
pub(crate) struct PublishObserved {
    node: Arc<str>,
    board: Arc<ArcSwap<Board>>,
}

impl Publish<Observations> for PublishObserved {
    fn publish(&mut self, state: &Observations, _: Millis) {
        self.board.rcu(|board| {
            let mut board = Board::clone(board);
            board.set(&self.node, state.clone());
            board
        });
    }
}
