//! Whom a request that was served passed over: connections that stood before the
//! one that served it, and rested or were locked.

use shared_proto::clock::Millis;

use super::{Candidate, Picker};
use crate::request::trace::{Excluded, Trace};

/// Connections looked at, however many stand before.
const MAX_LOOKED: usize = 64;
/// Those that are named; the rest is counted.
const MAX_NAMED: usize = 16;

impl Picker<'_> {
    /// Notes who stood before `candidate`, which served, in its target's order.
    ///
    /// A target that names its connection has no order, and a lease picks by
    /// itself. Those of the candidate's own priority stood before it if they
    /// were used longer ago.
    pub(crate) fn note_before(&self, candidate: &Candidate, now: Millis, trace: &mut Trace) {
        let Some(target) = self.targets.list.get(candidate.target) else {
            return;
        };
        if target.connection.is_some() || self.leases.is_none() {
            return;
        }
        let own = &candidate.slot.connection;
        let order = match &self.picked {
            Some((id, order)) if *id == own.id => *order,
            // A pin or a slot chose another one than the order.
            _ => (own.priority, 0),
        };
        let all = &target.provider.by_priority;
        let (mut named, mut more) = (0_usize, 0_usize);
        for slot in all.iter().take(MAX_LOOKED) {
            if slot.connection.priority > own.priority {
                break;
            }
            let concerned = slot.order() < order
                && slot.serves(&target.model)
                && self.permitted(slot)
                && !self.passes_over(slot, &target.model);
            if !concerned || slot.eligible_for(&target.model, now).is_ok() {
                continue;
            }
            if named == MAX_NAMED {
                more = more.saturating_add(1);
                continue;
            }
            named = named.saturating_add(1);
            let (reason, until, detail) = self.why_out(target, slot, now);
            trace.exclude(Excluded {
                provider: slot.provider.id.clone(),
                connection: Some(slot.connection.id.clone()),
                model: std::sync::Arc::clone(&target.model),
                reason,
                until,
                detail,
            });
        }
        // Whoever else has a better priority could not be used either.
        let better = all.partition_point(|slot| slot.connection.priority < own.priority);
        let unseen = better.saturating_sub(MAX_LOOKED);
        let more = u64::try_from(more.saturating_add(unseen)).unwrap_or(u64::MAX);
        trace.edit(|record| record.more_excluded = record.more_excluded.saturating_add(more));
    }
}
