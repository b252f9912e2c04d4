//! Which connection is tried next, and why the others are not. What is
//! different under a lease is in [`leased`], full connections are in [`aside`].

mod aside;
mod leased;

use std::sync::Arc;

use shared_proto::breaker::Admission;
use shared_proto::clock::Millis;
use shared_proto::config::ApiKey;
use shared_proto::failure::Blame;
use shared_proto::health::Blocked;
use shared_proto::id::ConnectionId;
use shared_proto::pick::ExclusionReason;

use super::resolve::{Target, Targets};
use super::trace::{Excluded, Trace};
use crate::lease::Leases;
use crate::routing::{ProviderSlot, Slot};

pub(crate) use aside::{Busy, Standing};

/// Connections of one provider looked at when none is ready, so that a
/// refusal can say why; past it only the count is kept.
const MAX_EXPLAINED: usize = 64;

/// Why something rests that nobody refused.
const PREFLIGHT: &str = "quota_preflight";

/// What the plan tries next.
pub(crate) enum Pick {
    /// This connection.
    Try(Candidate),
    /// The provider's breaker lets one probe through; it has to be claimed first.
    Probe(Candidate),
    /// Nobody is left.
    Nobody,
}

/// A connection and the model it is asked for.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) target: usize,
    pub(crate) slot: Arc<Slot>,
    pub(crate) provider: Arc<ProviderSlot>,
    pub(crate) model: Arc<str>,
    /// Whether it is one of a combo's targets.
    pub(crate) combo: bool,
}

/// Walks the targets of one request.
pub(crate) struct Picker<'a> {
    targets: &'a Targets,
    key: Option<&'a ApiKey>,
    /// For a request without a lease, which leaves alone what is set aside.
    leases: Option<&'a Leases>,
    at: usize,
    tried: Vec<ConnectionId>,
    /// Those that had no room.
    busy: Vec<Busy>,
    /// Those that failed with one model only, and are of use for others.
    tried_with: Vec<(ConnectionId, Arc<str>)>,
    /// Targets that are of no use any more: somebody else probes the provider,
    /// or the provider as a whole failed.
    skipped: Vec<usize>,
    /// When the first of the cooling connections comes back.
    earliest: Option<Millis>,
}

impl<'a> Picker<'a> {
    /// `leases` is absent for a request under a lease.
    pub(crate) fn new(
        targets: &'a Targets,
        key: Option<&'a ApiKey>,
        leases: Option<&'a Leases>,
    ) -> Self {
        Self {
            targets,
            key,
            leases,
            at: 0,
            tried: Vec::new(),
            busy: Vec::new(),
            tried_with: Vec::new(),
            skipped: Vec::new(),
            earliest: None,
        }
    }

    /// When the first cooling connection met on the way comes back.
    pub(crate) fn earliest(&self) -> Option<Millis> {
        self.earliest
    }

    /// Notes the targets that don't speak the client's protocol.
    pub(crate) fn note_foreign(&self, trace: &mut Trace) {
        for target in &self.targets.foreign {
            trace.exclude(Excluded::unavailable(target, "protocol_not_offered"));
        }
    }

    /// Leaves alone what the failure of `candidate` was charged to, for the rest
    /// of the request.
    pub(crate) fn failed(&mut self, candidate: &Candidate, blame: Blame) {
        if blame == Blame::Provider {
            self.provider_failed(candidate);
        } else if blame == Blame::Model {
            self.only_the_model_failed(candidate);
        }
    }

    /// A failure of the provider as a whole: its other connections would fail alike.
    fn provider_failed(&mut self, candidate: &Candidate) {
        for (place, target) in self.targets.list.iter().enumerate() {
            if Arc::ptr_eq(&target.provider, &candidate.provider) {
                self.skipped.push(place);
            }
        }
    }

    /// Starts over after a wait: everything may be tried again.
    pub(crate) fn restart(&mut self) {
        self.at = 0;
        self.tried.clear();
        self.busy.clear();
        self.tried_with.clear();
        self.skipped.clear();
        self.earliest = None;
    }

    /// `candidate` was called; this request does not call it again.
    pub(crate) fn tried(&mut self, candidate: &Candidate) {
        self.tried.push(candidate.slot.connection.id.clone());
    }

    /// What failed was the model: the connection may still serve another one.
    fn only_the_model_failed(&mut self, candidate: &Candidate) {
        let id = &candidate.slot.connection.id;
        self.tried.retain(|tried| tried != id);
        self.tried_with
            .push((id.clone(), Arc::clone(&candidate.model)));
    }

    /// Whether the request is done with `id` for `model`.
    fn has_tried(&self, id: &ConnectionId, model: &str) -> bool {
        let with = |(tried, of): &(ConnectionId, Arc<str>)| tried == id && &**of == model;
        self.tried.contains(id) || self.tried_with.iter().any(with)
    }

    /// The probe that `candidate` needed is somebody else's.
    pub(crate) fn not_claimed(&mut self, candidate: &Candidate, now: Millis, trace: &mut Trace) {
        self.skipped.push(candidate.target);
        if let Some(target) = self.targets.list.get(candidate.target) {
            let wait = candidate.provider.breaker.breaker().retry_after_ms(now);
            trace.exclude(circuit_open(target, now, wait));
        }
    }

    /// The best candidate not tried yet.
    pub(crate) fn next(&mut self, now: Millis, trace: &mut Trace) -> Pick {
        let targets = self.targets;
        while let Some(target) = targets.list.get(self.at) {
            if !self.skipped.contains(&self.at) {
                let admission = target.provider.breaker.breaker().admit(now);
                if let Admission::Reject { retry_after_ms } = admission {
                    trace.exclude(circuit_open(target, now, retry_after_ms));
                } else if let Some(slot) = self.connection(target, now, trace) {
                    let candidate = Candidate {
                        target: self.at,
                        slot,
                        provider: Arc::clone(&target.provider),
                        model: Arc::clone(&target.model),
                        combo: targets.combo,
                    };
                    return match admission {
                        Admission::Admit => Pick::Try(candidate),
                        Admission::Probe | Admission::Reject { .. } => Pick::Probe(candidate),
                    };
                }
            }
            self.at = self.at.saturating_add(1);
        }
        Pick::Nobody
    }

    /// The provider of the target after `candidate`'s, in a combo.
    pub(crate) fn next_target_shares_provider(&self, candidate: &Candidate) -> bool {
        let next = self.targets.list.get(candidate.target.saturating_add(1));
        self.targets.combo
            && next.is_some_and(|next| Arc::ptr_eq(&next.provider, &candidate.provider))
    }

    fn connection(&mut self, target: &Target, now: Millis, trace: &mut Trace) -> Option<Arc<Slot>> {
        let usable = |slot: &&Arc<Slot>| {
            !self.passes_over(slot, &target.model)
                && slot.eligible_for(&target.model, now).is_ok()
                && self.set_aside(slot, now).is_none()
                && self.gated(target, slot, now).is_none()
        };
        if let Some(slot) = &target.connection {
            let permitted = self.permitted(slot) && slot.serves(&target.model);
            let found = Some(slot).filter(|_| permitted).filter(usable).cloned();
            if found.is_none() {
                self.explain(target, std::iter::once(slot), now, trace);
            }
            return found;
        }
        if let Some(allowed) = self.key.and_then(|key| key.allowed_connections.as_ref()) {
            let listed = target.provider.all.iter();
            // The list of a key is short; the provider's may be long.
            let of_key: Vec<&Arc<Slot>> = if allowed.len() < target.provider.all.len() {
                allowed
                    .iter()
                    .filter_map(|id| target.provider.slot(id))
                    .collect()
            } else {
                listed.filter(|slot| self.permitted(slot)).collect()
            };
            let serving = of_key
                .iter()
                .copied()
                .filter(|slot| slot.serves(&target.model));
            let found = serving
                .clone()
                .filter(usable)
                .min_by_key(|slot| slot.order())
                .cloned();
            if found.is_none() {
                self.explain(target, serving, now, trace);
            }
            return found;
        }
        let found = target
            .provider
            .ready(&target.model, now)
            .find(usable)
            .cloned();
        // The index may lag behind a view by a moment: the slow path looks
        // at the states themselves, and explains when it finds nobody.
        let serving = || {
            let all = target.provider.all.iter();
            all.filter(|slot| slot.serves(&target.model))
        };
        let found = found.or_else(|| {
            serving()
                .filter(usable)
                .min_by_key(|slot| slot.order())
                .cloned()
        });
        if found.is_none() {
            self.explain(target, serving(), now, trace);
        }
        found
    }

    /// Why a request without a lease leaves the connection alone.
    fn set_aside(&self, slot: &Slot, now: Millis) -> Option<&'static str> {
        let leases = self.leases?;
        if slot.reserved {
            Some("reserved")
        } else {
            let leased = leases.is_leased(&slot.connection.id, now);
            leased.then_some("leased")
        }
    }

    fn permitted(&self, slot: &Slot) -> bool {
        self.key
            .and_then(|key| key.allowed_connections.as_ref())
            .is_none_or(|allowed| allowed.contains(&slot.connection.id))
    }

    fn explain<'s>(
        &mut self,
        target: &Target,
        slots: impl Iterator<Item = &'s Arc<Slot>>,
        now: Millis,
        trace: &mut Trace,
    ) {
        let mut explained = 0_usize;
        for slot in slots {
            let set_aside = self.set_aside(slot, now);
            let (reason, until, detail) = match slot.cell.eligible(now) {
                _ if set_aside.is_some() => (ExclusionReason::Unavailable, None, set_aside),
                Err(Blocked::Cooling { until }) => {
                    let detail = slot.cell.health().preflight.as_ref().map(|_| PREFLIGHT);
                    (ExclusionReason::ConnectionCooldown, Some(until), detail)
                }
                Err(Blocked::Terminal(terminal)) => {
                    (ExclusionReason::Unavailable, None, Some(terminal.as_str()))
                }
                Ok(()) => match slot.lock(&target.model, now) {
                    Some((until, withheld)) => {
                        let detail = withheld.then_some(PREFLIGHT);
                        (ExclusionReason::ModelLockout, Some(until), detail)
                    }
                    None => match self.gated(target, slot, now) {
                        Some(until) => (ExclusionReason::ProviderCooldown, Some(until), None),
                        None => (ExclusionReason::Unavailable, None, Some("not_allowed")),
                    },
                },
            };
            if let Some(until) = until {
                self.earliest = Some(self.earliest.map_or(until, |known| known.min(until)));
            }
            if self.passes_over(slot, &target.model) {
                continue;
            }
            explained = explained.saturating_add(1);
            if explained > MAX_EXPLAINED {
                continue;
            }
            trace.exclude(Excluded {
                provider: target.provider.provider.id.clone(),
                connection: Some(slot.connection.id.clone()),
                model: Arc::clone(&target.model),
                reason,
                until,
                detail,
            });
        }
        let nobody_met = self.tried.is_empty() && self.tried_with.is_empty();
        if explained == 0 && nobody_met && self.busy.is_empty() {
            trace.exclude(Excluded {
                provider: target.provider.provider.id.clone(),
                connection: None,
                model: Arc::clone(&target.model),
                reason: ExclusionReason::Unavailable,
                until: None,
                detail: Some("no_connection"),
            });
        }
    }
}

fn circuit_open(target: &Target, now: Millis, wait_ms: u64) -> Excluded {
    Excluded {
        provider: target.provider.provider.id.clone(),
        connection: match (&target.connection, target.provider.all.as_slice()) {
            (Some(slot), _) | (None, [slot]) => Some(slot.connection.id.clone()),
            (None, _) => None,
        },
        model: Arc::clone(&target.model),
        reason: ExclusionReason::CircuitOpen,
        until: Some(now.plus(wait_ms)),
        detail: None,
    }
}
