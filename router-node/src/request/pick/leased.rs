//! Picking under a lease: the bound connection and no other; and where a lease
//! could go if that one is of no use.

use std::sync::Arc;

use shared_proto::breaker::Admission;
use shared_proto::clock::Millis;
use shared_proto::failure::Reason;
use shared_proto::health::Blocked;
use shared_proto::id::ConnectionId;
use shared_proto::lease::{self, EndReason};

use super::{Candidate, Pick, Picker, circuit_open};
use crate::request::resolve::Target;
use crate::request::trace::Trace;
use crate::routing::Slot;

impl Picker<'_> {
    /// The connection that the lease binds, if it can serve the request now.
    pub(crate) fn bound(&self, bound: &ConnectionId, now: Millis) -> Pick {
        for (place, target) in self.open_targets() {
            if self.has_tried(bound, &target.model) {
                continue;
            }
            let admission = target.provider.breaker.breaker().admit(now);
            let slot = self.slot(target, bound);
            let slot = slot.filter(|slot| slot.eligible_for(&target.model, now).is_ok());
            let Some(slot) = slot else { continue };
            let candidate = Candidate {
                target: place,
                slot: Arc::clone(slot),
                provider: Arc::clone(&target.provider),
                model: Arc::clone(&target.model),
                combo: self.targets.combo,
            };
            match admission {
                Admission::Admit => return Pick::Try(candidate),
                Admission::Probe => return Pick::Probe(candidate),
                Admission::Reject { .. } => {}
            }
        }
        Pick::Nobody
    }

    /// Whether the request has been sent to `bound`, which could be used again
    /// for others: what ails it is not told by its state.
    pub(crate) fn failed_on(&self, bound: &ConnectionId, now: Millis) -> bool {
        let usable = |target: &Target| {
            if !self.has_tried(bound, &target.model) {
                return false;
            }
            let rejects = matches!(
                target.provider.breaker.breaker().admit(now),
                Admission::Reject { .. }
            );
            let slot = self.slot(target, bound).filter(|_| !rejects);
            slot.is_some_and(|slot| slot.eligible_for(&target.model, now).is_ok())
        };
        self.targets.list.iter().any(usable)
    }

    /// Every connection that ordinary routing would use now, leased or not, in
    /// its order.
    pub(crate) fn open(&self, now: Millis) -> Vec<lease::Candidate> {
        let mut open: Vec<lease::Candidate> = Vec::new();
        for (_, target) in self.open_targets() {
            let admission = target.provider.breaker.breaker().admit(now);
            if matches!(admission, Admission::Reject { .. }) {
                continue;
            }
            let mut slots: Vec<&Arc<Slot>> = self
                .of_target(target)
                .filter(|slot| {
                    let id = &slot.connection.id;
                    slot.eligible_for(&target.model, now).is_ok()
                        && !self.has_tried(id, &target.model)
                        && !self.would_fail_alike(slot)
                        && !open.iter().any(|known| known.connection == *id)
                })
                .collect();
            slots.sort_by_key(|slot| slot.order());
            open.extend(slots.into_iter().map(|slot| lease::Candidate {
                connection: slot.connection.id.clone(),
                provider: slot.provider.id.clone(),
            }));
        }
        open
    }

    /// Whether any connection could serve the request at all, now or later.
    pub(crate) fn anybody(&self) -> bool {
        let mut targets = self.targets.list.iter();
        targets.any(|target| self.of_target(target).next().is_some())
    }

    /// Notes why each of them is not used.
    pub(crate) fn explain_all(&mut self, now: Millis, trace: &mut Trace) {
        let targets = self.targets;
        for target in &targets.list {
            let admission = target.provider.breaker.breaker().admit(now);
            if let Admission::Reject { retry_after_ms } = admission {
                trace.exclude(circuit_open(target, now, retry_after_ms));
                continue;
            }
            let slots: Vec<Arc<Slot>> = self
                .of_target(target)
                .filter(|slot| slot.eligible_for(&target.model, now).is_err())
                .cloned()
                .collect();
            if !slots.is_empty() {
                self.explain(target, slots.iter(), now, trace);
            }
        }
    }

    /// Why a lease ends when no connection is left for it.
    pub(crate) fn end_reason(&self, now: Millis) -> EndReason {
        let (mut resting, mut used_up, mut terminal, mut others) = (0_u32, 0_u32, 0_u32, 0_u32);
        for target in &self.targets.list {
            let admission = target.provider.breaker.breaker().admit(now);
            let open = matches!(admission, Admission::Reject { .. });
            for slot in self.of_target(target) {
                let counter = match slot.eligible_for(&target.model, now) {
                    Err(Blocked::Terminal(_)) => &mut terminal,
                    Err(Blocked::Cooling { .. }) if of_quota(slot) => &mut used_up,
                    Err(Blocked::Cooling { .. }) => &mut resting,
                    Ok(()) if open => &mut resting,
                    Ok(()) => &mut others,
                };
                *counter = counter.saturating_add(1);
            }
        }
        match (resting, used_up, terminal, others) {
            (1.., ..) => EndReason::HealthOrCooldown,
            (0, 1.., ..) => EndReason::QuotaUnavailable,
            (0, 0, 1.., 0) => EndReason::AuthorizationChanged,
            (0, 0, _, _) => EndReason::ConnectionIneligible,
        }
    }

    fn open_targets(&self) -> impl Iterator<Item = (usize, &Target)> {
        let targets = self.targets.list.iter().enumerate();
        targets.filter(|(place, _)| !self.skipped.contains(place))
    }

    /// The connections of a target that the key may use and that serve the model.
    fn of_target<'t>(&'t self, target: &'t Target) -> impl Iterator<Item = &'t Arc<Slot>> {
        target.candidates(self.key)
    }

    fn slot<'t>(&self, target: &'t Target, id: &ConnectionId) -> Option<&'t Arc<Slot>> {
        let slot = match &target.connection {
            Some(slot) => Some(slot).filter(|slot| slot.connection.id == *id),
            None => target.provider.slot(id),
        };
        slot.filter(|slot| self.permitted(slot) && slot.serves(&target.model))
    }
}

fn of_quota(slot: &Slot) -> bool {
    let health = slot.cell.health();
    let last = health.last_error.as_ref();
    last.is_some_and(|last| last.reason == Reason::QuotaExhausted)
}
