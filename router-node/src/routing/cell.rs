//! State that requests read without a lock and owners write.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use actix::Addr;
use arc_swap::ArcSwap;
use shared_proto::breaker::ProviderBreaker;
use shared_proto::clock::Millis;
use shared_proto::health::{Blocked, ConnectionHealth};
use shared_proto::id::{ConnectionId, ProviderId};
use shared_proto::lockout::ModelLockouts;
use shared_proto::mirror::key::Key;
use shared_proto::pick::ready::ReadyIndex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::gate::{GateCell, GateOwner};
use super::{Alarm, ToolsCell, ToolsOwner};
use crate::actor::owner::{Owner, Publish};
use crate::quota::QuotaCell;
use crate::token::cell::TokenCell;
use crate::token::refresher::Refresher;
use crate::wall::{LaneCell, LaneOwner};

/// The owner of a connection's health.
pub(crate) type ConnectionOwner = Owner<ConnectionHealth, PublishHealth>;
/// The owner of a connection's locked models.
pub(crate) type LockoutOwner = Owner<ModelLockouts, PublishLockouts>;
/// The owner of a provider's breaker.
pub(crate) type BreakerOwner = Owner<ProviderBreaker, PublishBreaker>;

/// Where a connection stands in an index of ready connections.
#[derive(Clone)]
pub(crate) struct Placement {
    pub(crate) index: Arc<ReadyIndex>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) leaf: usize,
}

/// A connection's published health and its load on this node.
#[derive(Default)]
pub(crate) struct ConnectionCell {
    health: ArcSwap<ConnectionHealth>,
    lockouts: ArcSwap<ModelLockouts>,
    in_flight: AtomicU32,
    /// Order of last use among all connections of this node; 0 is never.
    last_used: AtomicU64,
    /// When that was, ms of the store's time.
    used_at: AtomicU64,
    /// How often it was heard of that it rests.
    rests: AtomicU64,
    /// Wakes those who wait here for a slot.
    freed: Notify,
    placements: ArcSwap<Vec<Placement>>,
    owner: OnceLock<Addr<ConnectionOwner>>,
    /// Its OAuth tokens, where they are refreshed.
    pub(crate) token: TokenCell,
    lockout_owner: OnceLock<Addr<LockoutOwner>>,
    /// What is known of its usage wall, where it opted in.
    pub(crate) lane: LaneCell,
    /// What its answers told this node of its quota.
    pub(crate) quota: QuotaCell,
}

/// Orders uses over all connections.
static USES: AtomicU64 = AtomicU64::new(1);

impl ConnectionCell {
    /// The published health.
    pub(crate) fn health(&self) -> arc_swap::Guard<Arc<ConnectionHealth>> {
        self.health.load()
    }

    /// The published locks of its models.
    pub(crate) fn lockouts(&self) -> arc_swap::Guard<Arc<ModelLockouts>> {
        self.lockouts.load()
    }

    /// The owner of its models' locks, once the node has started it.
    pub(crate) fn lockout_owner(&self) -> Option<&Addr<LockoutOwner>> {
        self.lockout_owner.get()
    }

    /// Ties that owner to the cell; only the first one counts.
    pub(crate) fn own_lockouts(&self, start: impl FnOnce() -> Addr<LockoutOwner>) {
        self.lockout_owner.get_or_init(start);
    }

    /// Whether it may be used now, whatever the model.
    pub(crate) fn eligible(&self, now: Millis) -> Result<(), Blocked> {
        self.health.load().eligible(now)
    }

    /// Requests under way on this node.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Order of last use; 0 is never.
    pub(crate) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// When it was last used on this node; `None` is never.
    pub(crate) fn used_at(&self) -> Option<Millis> {
        let used_at = self.used_at.load(Ordering::Relaxed);
        (used_at > 0).then(|| Millis::from_epoch_ms(used_at))
    }

    /// How often this node heard that it may not be used: whoever sees another
    /// number than before missed nothing else.
    pub(crate) fn rests(&self) -> u64 {
        self.rests.load(Ordering::Relaxed)
    }

    /// Tells those who wait here that a slot is free.
    pub(crate) fn slot_freed(&self) {
        self.freed.notify_waiters();
    }

    /// Resolves when a slot is freed by this node after the call.
    pub(crate) fn next_freed(&self) -> Notified<'_> {
        self.freed.notified()
    }

    /// Notes a use at `now`.
    pub(crate) fn note_use(&self, now: Millis) {
        let use_number = USES.fetch_add(1, Ordering::Relaxed);
        self.last_used.store(use_number, Ordering::Relaxed);
        self.used_at.fetch_max(now.as_epoch_ms(), Ordering::Relaxed);
    }

    /// Takes it for one request: it goes behind its equals until the next use
    /// of the others, and counts as loaded until the result is dropped.
    pub(crate) fn take(self: &Arc<Self>, now: Millis) -> InFlight {
        self.note_use(now);
        for placement in self.placements.load().iter() {
            placement.index.touch(placement.leaf);
        }
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Enters new indexes after a reload.
    pub(crate) fn place(&self, placements: Vec<Placement>, now: Millis) {
        self.placements.store(Arc::new(placements));
        self.mark(now);
    }

    /// Enters what the published health means into the indexes.
    fn mark(&self, now: Millis) {
        let blocked = self.eligible(now);
        for placement in self.placements.load().iter() {
            placement.index.set_ready(placement.leaf, blocked.is_ok());
            if let Err(Blocked::Cooling { until }) = blocked {
                placement.alarm.set(until);
            }
        }
    }

    /// Its owner, once the node has started it.
    pub(crate) fn owner(&self) -> Option<&Addr<ConnectionOwner>> {
        self.owner.get()
    }

    /// Ties the owner to the cell; only the first one counts.
    pub(crate) fn own(&self, start: impl FnOnce() -> Addr<ConnectionOwner>) {
        self.owner.get_or_init(start);
    }
}

/// One request under way on a connection.
pub(crate) struct InFlight(Arc<ConnectionCell>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Publishes a connection's health to its cell.
pub(crate) struct PublishHealth(pub(crate) Arc<ConnectionCell>);

impl Publish<ConnectionHealth> for PublishHealth {
    fn publish(&mut self, state: &ConnectionHealth, now: Millis) {
        self.0.health.store(Arc::new(state.clone()));
        if state.eligible(now).is_err() {
            self.0.rests.fetch_add(1, Ordering::Relaxed);
        }
        self.0.mark(now);
    }
}

/// Publishes the locks of a connection's models to its cell.
pub(crate) struct PublishLockouts(pub(crate) Arc<ConnectionCell>);

impl Publish<ModelLockouts> for PublishLockouts {
    fn publish(&mut self, state: &ModelLockouts, _: Millis) {
        self.0.lockouts.store(Arc::new(state.clone()));
    }
}

/// A provider's published breaker.
#[derive(Default)]
pub(crate) struct BreakerCell {
    breaker: ArcSwap<ProviderBreaker>,
    owner: OnceLock<Addr<BreakerOwner>>,
}

impl BreakerCell {
    /// The published breaker.
    pub(crate) fn breaker(&self) -> arc_swap::Guard<Arc<ProviderBreaker>> {
        self.breaker.load()
    }

    /// Its owner, once the node has started it.
    pub(crate) fn owner(&self) -> Option<&Addr<BreakerOwner>> {
        self.owner.get()
    }

    /// Ties the owner to the cell; only the first one counts.
    pub(crate) fn own(&self, start: impl FnOnce() -> Addr<BreakerOwner>) {
        self.owner.get_or_init(start);
    }
}

/// Publishes a provider's breaker to its cell.
pub(crate) struct PublishBreaker(pub(crate) Arc<BreakerCell>);

impl Publish<ProviderBreaker> for PublishBreaker {
    fn publish(&mut self, state: &ProviderBreaker, _: Millis) {
        self.0.breaker.store(Arc::new(state.clone()));
    }
}

/// The cells by name; they outlive a configuration.
#[derive(Default)]
pub(crate) struct Cells {
    connections: HashMap<ConnectionId, Arc<ConnectionCell>>,
    breakers: HashMap<ProviderId, Arc<BreakerCell>>,
    gates: HashMap<ProviderId, Arc<GateCell>>,
    tools: HashMap<ProviderId, Arc<ToolsCell>>,
}

impl Cells {
    /// The cell of a connection, made when it is new.
    pub(crate) fn connection(&mut self, id: &ConnectionId) -> Arc<ConnectionCell> {
        Arc::clone(self.connections.entry(id.clone()).or_default())
    }

    /// The cell of a provider's breaker, made when it is new.
    pub(crate) fn breaker(&mut self, id: &ProviderId) -> Arc<BreakerCell> {
        Arc::clone(self.breakers.entry(id.clone()).or_default())
    }

    /// The cell of a provider's gate, made when it is new.
    pub(crate) fn gate(&mut self, id: &ProviderId) -> Arc<GateCell> {
        Arc::clone(self.gates.entry(id.clone()).or_default())
    }

    /// The cell of a provider's limit on tools, made when it is new.
    pub(crate) fn tools(&mut self, id: &ProviderId) -> Arc<ToolsCell> {
        Arc::clone(self.tools.entry(id.clone()).or_default())
    }

    /// The owner of a provider's limit on tools, if there is one.
    pub(crate) fn tools_owner(&self, id: &ProviderId) -> Option<Addr<ToolsOwner>> {
        self.tools.get(id)?.owner().cloned()
    }

    /// The owner of a connection's health, if there is one.
    pub(crate) fn connection_owner(&self, id: &ConnectionId) -> Option<Addr<ConnectionOwner>> {
        self.connections.get(id)?.owner().cloned()
    }

    /// The owner of the locks of a connection's models, if there is one.
    pub(crate) fn lockout_owner(&self, id: &ConnectionId) -> Option<Addr<LockoutOwner>> {
        self.connections.get(id)?.lockout_owner().cloned()
    }

    /// The owner of what is known of a connection's usage wall, if there is one.
    pub(crate) fn lane_owner(&self, id: &ConnectionId) -> Option<Addr<LaneOwner>> {
        self.connections.get(id)?.lane.owner().cloned()
    }

    /// The owner of a provider's breaker, if there is one.
    pub(crate) fn breaker_owner(&self, id: &ProviderId) -> Option<Addr<BreakerOwner>> {
        self.breakers.get(id)?.owner().cloned()
    }

    /// The owner of a provider's gate, if there is one.
    pub(crate) fn gate_owner(&self, id: &ProviderId) -> Option<Addr<GateOwner>> {
        self.gates.get(id)?.owner().cloned()
    }

    /// Who refreshes a connection's tokens, if anybody does.
    pub(crate) fn refresher(&self, id: &ConnectionId) -> Option<Addr<Refresher>> {
        self.connections.get(id)?.token.refresher().cloned()
    }

    /// The connections whose tokens somebody refreshes.
    pub(crate) fn refreshed(&self) -> impl Iterator<Item = &ConnectionId> {
        let with = self.connections.iter();
        with.filter_map(|(id, cell)| cell.token.refresher().map(|_| id))
    }

    /// The records whose owners are here.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let connections = self.connections.keys().cloned();
        let walls = self.connections.iter();
        let walls = walls.filter(|(_, cell)| cell.lane.owner().is_some());
        connections
            .flat_map(|id| [Key::Health(id.clone()), Key::Lockout(id)])
            .chain(walls.map(|(id, _)| Key::Lane(id.clone())))
            .chain(self.refreshed().cloned().map(Key::Token))
            .chain(self.breakers.keys().cloned().map(Key::Breaker))
            .chain(self.gates.keys().cloned().map(Key::Gate))
            .chain(self.tools.keys().cloned().map(Key::Tools))
            .collect()
    }
}
