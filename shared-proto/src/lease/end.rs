//! Ending a lease: by its owner, by routing, by an operator, by time.

use std::ops::ControlFlow::{Break, Continue};

use super::code::{LeaseCode, Refusal};
use super::decide::{Decision, readable};
use super::fence::Presented;
use super::record::{End, EndReason, Lease, LeaseState};
use super::seen::{Found, Seen, Stored, guard, put};
use super::token::{Generation, LeaseId, OwnerHash};
use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::mirror::commit::{Commit, Guard};
use crate::mirror::key::Key;
use crate::mirror::record::BodyError;

/// Its owner gives a lease back; `reason` is [`EndReason::OwnerExit`] or
/// [`EndReason::ClientCancelled`].
///
/// Giving back what the same owner, generation and key has given back already
/// is answered as the first time. Everything else that is not this active
/// lease is [`LeaseCode::FenceStale`].
pub fn release(seen: &Seen<'_>, presented: &Presented, reason: EndReason, now: Millis) -> Decision {
    let now = seen.now(now);
    let owner = &presented.owner;
    let found = match readable(seen.lease(owner), || Decision::load(Some(owner), &[])) {
        Continue(found) => found.filter(|found| presented.is_of(&found.body)),
        Break(decision) => return decision,
    };
    match found.map(|found| (found, found.body.state(now))) {
        Some((found, LeaseState::Active)) => end(seen, owner, found, End { reason, at: now }, None),
        Some((found, LeaseState::Released)) => Decision::answer(found),
        Some((_, LeaseState::Expired | LeaseState::Invalidated)) | None => {
            Decision::refuse(LeaseCode::FenceStale)
        }
    }
}

/// Ends a lease without its owner: its key is gone, an operator revoked it.
/// [`LeaseCode::Required`] when that lease is not active.
pub fn invalidate(seen: &Seen<'_>, lease: &LeaseId, reason: EndReason, now: Millis) -> Decision {
    let now = seen.now(now);
    let owner = &lease.owner;
    let found = match readable(seen.lease(owner), || Decision::load(Some(owner), &[])) {
        Continue(found) => found,
        Break(decision) => return decision,
    };
    match found.filter(|f| f.body.generation == lease.generation && f.body.is_active(now)) {
        Some(found) => end(seen, owner, found, End { reason, at: now }, None),
        None => Decision::refuse(LeaseCode::Required),
    }
}

/// Writes down that an owner's lease ran out, so that everybody hears of it.
/// Nothing depends on it: a lease that ran out is not active, written or not.
/// [`LeaseCode::Required`] when there is nothing to write.
pub fn expire(seen: &Seen<'_>, owner: &OwnerHash, now: Millis) -> Decision {
    let now = seen.now(now);
    let found = match readable(seen.lease(owner), || Decision::load(Some(owner), &[])) {
        Continue(found) => found,
        Break(decision) => return decision,
    };
    let ran_out = |found: &&Found<Lease>| {
        found.body.end.is_none() && found.body.state(now) == LeaseState::Expired
    };
    match found.filter(ran_out) {
        Some(found) => {
            let how = End {
                reason: EndReason::TtlExpired,
                at: found.body.expires_at,
            };
            end(seen, owner, found, how, None)
        }
        None => Decision::refuse(LeaseCode::Required),
    }
}

/// Ends the lease that stands in `found`, and the connection's record with it
/// if it is this lease's and can be read. One that can't lapses by itself.
pub(super) fn end(
    seen: &Seen<'_>,
    owner: &OwnerHash,
    found: &Found<Lease>,
    how: End,
    answer: Option<Refusal>,
) -> Decision {
    let (lease, connection) = (&found.body, &found.body.connection);
    if seen.bound(connection).is_none() {
        return Decision::load(None, &[connection]);
    }
    let ended = lease.ended(how);
    let changes = || {
        let on = Some(found.revision);
        let own = put(owner.key(), on, &ended, ended.record_expires_at())?;
        let (commit, unlike) = leave(seen, connection, owner, lease.generation, how)?;
        let commits = std::iter::once(own).chain(commit).collect();
        Ok((commits, guards(owner, found, how).chain(unlike).collect()))
    };
    Decision::commit(changes(), 0, answer.map_or(Ok(ended), Err))
}

/// Who ends a lease takes it for alive, by the store's clock.
fn guards(owner: &OwnerHash, found: &Found<Lease>, how: End) -> impl Iterator<Item = Guard> {
    let is_alive = match how.reason {
        EndReason::TtlExpired => false,
        EndReason::OwnerExit
        | EndReason::ClientCancelled
        | EndReason::ConnectionIneligible
        | EndReason::HealthOrCooldown
        | EndReason::ModelIneligible
        | EndReason::QuotaUnavailable
        | EndReason::AuthorizationChanged
        | EndReason::ManagedKeyRevoked => true,
    };
    is_alive.then(|| guard(owner, found.revision)).into_iter()
}

/// What a transaction says of the connection that a lease leaves: that the
/// lease's binding ends, or, if the record is not of that lease, that it is
/// still so. Everything that was judged by is in the transaction, so that
/// records read from before and after a failover can't be mixed.
pub(super) fn leave(
    seen: &Seen<'_>,
    connection: &ConnectionId,
    owner: &OwnerHash,
    generation: Generation,
    how: End,
) -> Result<(Option<Commit>, Option<Guard>), BodyError> {
    let key = Key::Bound(connection.clone());
    match seen.bound(connection).and_then(Stored::found) {
        Some(found) if found.body.is_of(owner, generation) => {
            let ended = found.body.ended(how);
            let on = Some(found.revision);
            Ok((Some(put(key, on, &ended, ended.record_expires_at())?), None))
        }
        Some(found) => Ok((
            None,
            Some(Guard {
                key,
                revision: found.revision,
            }),
        )),
        None => Ok((None, None)),
    }
}
