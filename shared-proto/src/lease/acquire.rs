//! Getting a connection: a first lease, or another connection for a lease.

use std::ops::ControlFlow::{Break, Continue};

use super::code::{LeaseCode, Refusal};
use super::decide::{Decision, readable, stands};
use super::end::{end, leave};
use super::fence::{Presented, active};
use super::handover::{Candidate, Choice, choose};
use super::record::{Bound, End, EndReason, Lease};
use super::rules::LeaseRules;
use super::seen::{Found, Seen, guard, put};
use super::token::{Generation, OwnerHash};
use crate::clock::Millis;
use crate::id::{ApiKeyId, ConnectionId};

/// Asks for a lease.
#[derive(Clone, Copy, Debug)]
pub struct Acquire<'a> {
    /// For whom.
    pub owner: &'a OwnerHash,
    /// With which key.
    pub api_key: &'a ApiKeyId,
    /// Every connection that ordinary routing would use for the model now, in
    /// its order, leased or not.
    pub candidates: &'a [Candidate],
    /// The answer when there are none: [`LeaseCode::NoEligibleConnection`] or
    /// [`LeaseCode::EligibilityUnavailable`].
    pub none: LeaseCode,
}

/// Grants a lease, or answers with the one that stands.
///
/// An active lease whose connection is still eligible stands as it is, expiry
/// included; one whose connection is not moves to a free one and keeps its
/// generation. An owner that is active under another key is
/// [`LeaseCode::FenceStale`], and nothing changes.
pub fn acquire(seen: &Seen<'_>, ask: &Acquire<'_>, rules: &LeaseRules, now: Millis) -> Decision {
    let now = seen.now(now);
    let first = || {
        let likely = ask.candidates.first().map(|first| &first.connection);
        Decision::load(Some(ask.owner), likely.as_slice())
    };
    let last = match readable(seen.lease(ask.owner), first) {
        Continue(last) => last,
        Break(decision) => return decision,
    };
    let standing = last.filter(|found| found.body.is_active(now));
    if let Some(found) = standing {
        if found.body.api_key != *ask.api_key {
            return Decision::refuse(LeaseCode::FenceStale);
        }
        if binds_one_of(&found.body, ask.candidates) {
            return stands(ask.owner, found, rules);
        }
    }
    if ask.candidates.is_empty() {
        return Decision::refuse(ask.none);
    }
    let Some(generation) = standing
        .map(|found| found.body.generation)
        .or_else(|| Generation::following(last.map(|found| found.body.generation), now))
    else {
        return Decision::refuse(LeaseCode::ServiceUnavailable);
    };
    let bind = Bind {
        owner: ask.owner,
        api_key: ask.api_key,
        generation,
        last,
        leaves: standing.map(|found| (&found.body.connection, EndReason::ConnectionIneligible)),
    };
    bind.to_one_of(ask.candidates, seen, rules, now)
}

/// Asks to move a lease, because its connection can't serve a request.
#[derive(Clone, Copy, Debug)]
pub struct Transition<'a> {
    /// What the request presented.
    pub presented: &'a Presented,
    /// The connection that can't serve it.
    pub from: &'a ConnectionId,
    /// Why it ends; [`EndReason::ConnectionIneligible`] unless more is known.
    pub reason: EndReason,
    /// Every connection that ordinary routing would use for the request, in
    /// its order, leased or not; `from` is not among them.
    pub candidates: &'a [Candidate],
    /// Why the lease ends when there is none.
    pub none: EndReason,
}

/// Moves a lease to a free connection, with the same generation and a fresh
/// expiry. Without any candidate the lease ends, and the ordinary routing
/// error is the answer; if each is held by somebody else it stays.
///
/// A lease that has meanwhile moved to one of the candidates stands as it is.
pub fn transition(
    seen: &Seen<'_>,
    ask: &Transition<'_>,
    rules: &LeaseRules,
    now: Millis,
) -> Decision {
    let now = seen.now(now);
    let owner = &ask.presented.owner;
    let load = || Decision::load(Some(owner), &[ask.from]);
    let last = match readable(seen.lease(owner), load) {
        Continue(last) => last,
        Break(decision) => return decision,
    };
    let found = match active(last, ask.presented, now) {
        Ok(found) => found,
        Err(code) => return Decision::refuse(code),
    };
    if binds_one_of(&found.body, ask.candidates) {
        return stands(owner, found, rules);
    }
    if ask.candidates.is_empty() {
        if found.body.connection != *ask.from {
            return Decision::refuse(Refusal::Ordinary);
        }
        let how = End {
            reason: ask.none,
            at: now,
        };
        return end(seen, owner, found, how, Some(Refusal::Ordinary));
    }
    let bind = Bind {
        owner,
        api_key: &ask.presented.api_key,
        generation: found.body.generation,
        last: Some(found),
        leaves: Some((&found.body.connection, ask.reason)),
    };
    bind.to_one_of(ask.candidates, seen, rules, now)
}

fn binds_one_of(lease: &Lease, candidates: &[Candidate]) -> bool {
    let bound = &lease.connection;
    candidates.iter().any(|c| c.connection == *bound)
}

/// A lease to be bound to some connection.
struct Bind<'a> {
    owner: &'a OwnerHash,
    api_key: &'a ApiKeyId,
    generation: Generation,
    /// The owner's record as it is.
    last: Option<&'a Found<Lease>>,
    /// For a lease that stands: its connection, and why it leaves that.
    leaves: Option<(&'a ConnectionId, EndReason)>,
}

impl Bind<'_> {
    fn to_one_of(
        &self,
        candidates: &[Candidate],
        seen: &Seen<'_>,
        rules: &LeaseRules,
        now: Millis,
    ) -> Decision {
        // Read first what is left, so that a choice is followed by its commit.
        if let Some((left, _)) = self.leaves
            && seen.bound(left).is_none()
        {
            return Decision::load(None, &[left]);
        }
        match choose(seen, self.owner, candidates, rules, now) {
            Choice::Load(wanted) => Decision::Load(wanted),
            Choice::Unreadable => Decision::refuse(LeaseCode::ServiceUnavailable),
            Choice::Held(capacity) => Decision::refuse(Refusal::Capacity(capacity)),
            Choice::Free(candidate) => self.to(candidate, seen, rules, now),
        }
    }

    fn to(
        &self,
        candidate: &Candidate,
        seen: &Seen<'_>,
        rules: &LeaseRules,
        now: Millis,
    ) -> Decision {
        let expires_at = now.plus(rules.ttl_ms());
        let lease = Lease {
            generation: self.generation,
            api_key: self.api_key.clone(),
            provider: candidate.provider.clone(),
            connection: candidate.connection.clone(),
            acquired_at: now,
            renewed_at: now,
            expires_at,
            end: None,
        };
        let bound = Bound {
            owner: self.owner.clone(),
            generation: self.generation,
            expires_at,
            end: None,
        };
        let changes = || {
            let last = self.last.map(|found| found.revision);
            let before = seen.bound(&candidate.connection);
            let before = before.and_then(super::seen::Stored::revision);
            let mut commits = vec![
                put(self.owner.key(), last, &lease, lease.record_expires_at())?,
                put(
                    crate::mirror::key::Key::Bound(candidate.connection.clone()),
                    before,
                    &bound,
                    bound.record_expires_at(),
                )?,
            ];
            let mut guards = Vec::new();
            if let Some((left, reason)) = self.leaves {
                let how = End { reason, at: now };
                let (end, unlike) = leave(seen, left, self.owner, self.generation, how)?;
                commits.extend(end);
                // A lease that moves has to be alive by the store's own clock.
                guards.extend(self.last.map(|found| guard(self.owner, found.revision)));
                guards.extend(unlike);
            }
            Ok((commits, guards))
        };
        Decision::commit(changes(), rules.min_replicas(), Ok(lease))
    }
}
