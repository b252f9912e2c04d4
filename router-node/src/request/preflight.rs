//! Before a call: is so little left of a window of the connection's quota that
//! nothing is sent? Then its rest is written, once, and the request goes on as if
//! the connection had rested before.

use shared_proto::clock::Millis;
use shared_proto::health::{self, ConnectionHealth, HealthEvent};
use shared_proto::lockout::{self, LockoutEvent, ModelLockouts, quota_key};
use shared_proto::quota::preflight::Origin;
use tokio::time::timeout;

use super::Admitted;
use super::pick::Candidate;
use super::transition::{Claim, Durable, OWNER_DEADLINE};
use crate::actor::owner::report;
use crate::routing::Slot;

/// Whether the candidate may not be called after all. `probe` is given back then.
pub(super) async fn withholds(
    request: &Admitted,
    candidate: &Candidate,
    probe: Option<u64>,
    durable: &mut Durable,
) -> bool {
    let now = request.worker.now();
    let Some((of_models, origin)) = spent(candidate, now) else {
        return false;
    };
    let claim = Claim::of(candidate, probe);
    let (slot, model) = (&candidate.slot, &candidate.model);
    let told = if of_models {
        lock(slot, model, origin.clone(), durable).await
    } else {
        rest(slot, origin.clone(), durable).await
    };
    if told == Some(true) {
        tracing::info!(
            connection = %slot.connection.id,
            provider = %slot.provider.id,
            model = &**model,
            window = origin.window,
            until = origin.resets_at.to_rfc3339(),
            "a window of the quota is all but used up; nothing is sent before it begins anew"
        );
    }
    // Where the owner knows better, the connection is called.
    let withheld = slot.eligible_for(model, request.worker.now()).is_err();
    if !withheld {
        claim.used();
    }
    withheld
}

/// The window that is used up, and whether it counts some models only.
fn spent(candidate: &Candidate, now: Millis) -> Option<(bool, Origin)> {
    let slot = &candidate.slot;
    let rules = &slot.lockout_rules;
    if !rules.preflight.enabled {
        return None;
    }
    let key = quota_key(&candidate.model, &rules.families);
    let windows = slot.cell.quota.windows();
    let reset_at = slot.cell.health().renewed_at;
    let heard_after = reset_at.max(slot.cell.lockouts().heard_after());
    let spent = rules.preflight.spent(&windows, &key, heard_after, now);
    spent.map(|(window, origin)| (window.scope.is_some(), origin))
}

/// Whether the models of the quota rest from now on; `None` if that is not known.
async fn lock(slot: &Slot, model: &str, origin: Origin, durable: &mut Durable) -> Option<bool> {
    let event = LockoutEvent::Withheld {
        model: model.to_owned(),
        origin,
    };
    let owner = slot.cell.lockout_owner()?;
    let telling = timeout(OWNER_DEADLINE, report::<ModelLockouts, _>(owner, event));
    let reported = telling.await.ok()??;
    durable.push(reported.durable);
    Some(matches!(reported.outcome, lockout::Outcome::Locked(_)))
}

/// Whether the connection rests from now on; `None` if that is not known.
async fn rest(slot: &Slot, origin: Origin, durable: &mut Durable) -> Option<bool> {
    let owner = slot.cell.owner()?;
    let event = HealthEvent::Withheld(origin);
    let telling = timeout(OWNER_DEADLINE, report::<ConnectionHealth, _>(owner, event));
    let reported = telling.await.ok()??;
    durable.push(reported.durable);
    Some(matches!(reported.outcome, health::Outcome::Cooled { .. }))
}
