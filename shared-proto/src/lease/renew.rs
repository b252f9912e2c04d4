//! Making a lease last, and asking what it is.

use std::ops::ControlFlow::{self, Break, Continue};

use super::code::{LeaseCode, Refusal};
use super::decide::{Decision, readable};
use super::end::end;
use super::fence::Presented;
use super::record::{Bound, End, EndReason, Lease};
use super::rules::LeaseRules;
use super::seen::{Found, Seen, Stored, guard, put};
use crate::clock::Millis;
use crate::mirror::key::Key;

/// Makes an active lease last for the whole time again from now on. The only
/// thing that does. Whatever is not exactly this active lease is
/// [`LeaseCode::FenceStale`].
pub fn renew(seen: &Seen<'_>, presented: &Presented, rules: &LeaseRules, now: Millis) -> Decision {
    let now = seen.now(now);
    let found = match exactly(seen, presented, now) {
        Continue(found) => found,
        Break(decision) => return decision,
    };
    let connection = &found.body.connection;
    let Some(bound) = seen.bound(connection) else {
        return Decision::load(None, &[connection]);
    };
    let on = match bound {
        Stored::Unreadable => return Decision::refuse(LeaseCode::ServiceUnavailable),
        Stored::Absent => None,
        Stored::Found(b) if b.body.is_of(&presented.owner, presented.generation) => {
            Some(b.revision)
        }
        // Both records change in one step, so this can't come about here. The
        // connection's own word counts.
        Stored::Found(_) => return lost(seen, presented, found, now),
    };
    let lease = Lease {
        renewed_at: now,
        expires_at: now.plus(rules.ttl_ms()),
        ..found.body.clone()
    };
    let bound = Bound {
        owner: presented.owner.clone(),
        generation: lease.generation,
        expires_at: lease.expires_at,
        end: None,
    };
    let changes = || {
        let key = presented.owner.key();
        let of = Some(found.revision);
        let commits = vec![
            put(key, of, &lease, lease.record_expires_at())?,
            put(
                Key::Bound(connection.clone()),
                on,
                &bound,
                bound.record_expires_at(),
            )?,
        ];
        Ok((commits, vec![guard(&presented.owner, found.revision)]))
    };
    Decision::commit(changes(), rules.min_replicas(), Ok(lease))
}

/// What a lease is. Whatever is not exactly this active lease is
/// [`LeaseCode::FenceStale`].
pub fn status(seen: &Seen<'_>, presented: &Presented, now: Millis) -> Decision {
    match exactly(seen, presented, seen.now(now)) {
        Continue(found) => Decision::answer(found),
        Break(decision) => decision,
    }
}

fn lost(seen: &Seen<'_>, presented: &Presented, found: &Found<Lease>, now: Millis) -> Decision {
    let how = End {
        reason: EndReason::ConnectionIneligible,
        at: now,
    };
    let stale = Refusal::Code(LeaseCode::FenceStale);
    end(seen, &presented.owner, found, how, Some(stale))
}

fn exactly<'s>(
    seen: &'s Seen<'_>,
    presented: &Presented,
    now: Millis,
) -> ControlFlow<Decision, &'s Found<Lease>> {
    let owner = &presented.owner;
    let found = readable(seen.lease(owner), || Decision::load(Some(owner), &[]))?;
    match found.filter(|found| presented.is_of(&found.body) && found.body.is_active(now)) {
        Some(found) => Continue(found),
        None => Break(Decision::refuse(LeaseCode::FenceStale)),
    }
}
