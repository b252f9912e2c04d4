//! Connections that a request passes over because they are full, and how the
//! one that its session is pinned to stands.

use std::sync::Arc;

use shared_proto::clock::Millis;
use shared_proto::id::ConnectionId;
use shared_proto::pick::ExclusionReason;

use super::{Candidate, Picker};
use crate::request::resolve::Target;
use crate::request::trace::{Excluded, Trace};
use crate::routing::Slot;

/// Full connections met by one request at most; past it no other one with a
/// cap is asked for a slot.
const MAX_BUSY: usize = 32;

/// A connection without room.
#[derive(Clone)]
pub(crate) struct Busy {
    pub(crate) slot: Arc<Slot>,
    /// How many waited for it when it was asked.
    pub(crate) ahead: u32,
}

/// How a connection stands with a request.
pub(crate) enum Standing {
    /// It can be called.
    Usable(Arc<Slot>),
    /// It was called already, or is full: for this request only.
    PassedOver,
    /// It rests or worse, or is not for this request.
    Out,
}

impl Picker<'_> {
    /// `candidate` has no room: it goes behind those that have.
    pub(crate) fn is_full(&mut self, candidate: &Candidate, ahead: u32, trace: &mut Trace) {
        let slot = Arc::clone(&candidate.slot);
        trace.exclude(Excluded {
            provider: slot.provider.id.clone(),
            connection: Some(slot.connection.id.clone()),
            model: Arc::clone(&candidate.model),
            reason: ExclusionReason::Unavailable,
            until: None,
            detail: Some("at_capacity"),
        });
        self.busy.push(Busy { slot, ahead });
    }

    /// The full ones, in the order in which they were met.
    pub(crate) fn busy(&self) -> &[Busy] {
        &self.busy
    }

    /// Whether `id` was met full.
    pub(crate) fn is_busy(&self, id: &ConnectionId) -> bool {
        self.busy.iter().any(|busy| busy.slot.connection.id == *id)
    }

    /// `id` may be called now: the request looks at all targets anew.
    pub(crate) fn has_room(&mut self, id: &ConnectionId) {
        self.busy.retain(|busy| busy.slot.connection.id != *id);
        self.look_again();
    }

    /// Looks at all targets anew: one that rested may be back.
    pub(crate) fn look_again(&mut self) {
        self.at = 0;
        self.earliest = None;
    }

    /// Whether the request does not call the connection for `model`, now or
    /// again.
    pub(super) fn passes_over(&self, slot: &Slot, model: &str) -> bool {
        self.is_done_with(slot, model) || self.would_fail_alike(slot)
    }

    /// The same as far as it is told otherwise than as an exclusion.
    pub(super) fn is_done_with(&self, slot: &Slot, model: &str) -> bool {
        let id = &slot.connection.id;
        let crowded = self.busy.len() >= MAX_BUSY && slot.connection.max_concurrent.is_some();
        crowded || self.has_tried(id, model) || self.is_busy(id)
    }

    /// How connection `id` stands as one of the target's at `place`.
    pub(crate) fn standing(&self, place: usize, id: &ConnectionId, now: Millis) -> Standing {
        let target = self.targets.list.get(place);
        let slot = target.and_then(|target| {
            let slot = target.provider.slot(id)?;
            self.is_open(target, slot, now).then_some((target, slot))
        });
        match slot {
            None => Standing::Out,
            Some((target, slot)) if self.passes_over(slot, &target.model) => Standing::PassedOver,
            Some((_, slot)) => Standing::Usable(Arc::clone(slot)),
        }
    }

    /// Whether the target at `place` names its connection.
    pub(crate) fn names_connection(&self, place: usize) -> bool {
        let target = self.targets.list.get(place);
        target.is_some_and(|target| target.connection.is_some())
    }

    /// Every connection that the target at `place` could use now.
    pub(crate) fn usable(&self, place: usize, now: Millis) -> impl Iterator<Item = &Arc<Slot>> {
        let target = self.targets.list.get(place);
        let all = target.into_iter().flat_map(|target| {
            let all = target.provider.all.iter();
            all.map(move |slot| (target, slot))
        });
        all.filter(move |(target, slot)| {
            self.is_open(target, slot, now) && !self.passes_over(slot, &target.model)
        })
        .map(|(_, slot)| slot)
    }

    fn is_open(&self, target: &Target, slot: &Slot, now: Millis) -> bool {
        self.permitted(slot)
            && slot.serves(&target.model)
            && slot.eligible_for(&target.model, now).is_ok()
            && self.set_aside(slot, now).is_none()
            && self.gated(target, slot, now).is_none()
    }

    /// Until when a combo passes over the connection because it, or its
    /// provider, failed too often. A lease says where its requests go.
    pub(super) fn gated(&self, target: &Target, slot: &Slot, now: Millis) -> Option<Millis> {
        if !self.targets.combo || self.leases.is_none() {
            return None;
        }
        let provider = &target.provider;
        let id = &slot.connection.id;
        provider.gate.shut(id, &provider.gate_rules, now)
    }
}
