//! The checks of a request under a lease: at selection, and at the last
//! moment before it goes out.

use std::ops::ControlFlow::{Break, Continue};

use bytes::Bytes;

use super::code::LeaseCode;
use super::decide::{Decision, readable};
use super::record::Lease;
use super::seen::{Found, Seen, Stored, guard};
use super::token::{Generation, OwnerHash};
use crate::clock::Millis;
use crate::id::{ApiKeyId, ConnectionId};
use crate::mirror::hold::{Holder, Pool, Take};
use crate::mirror::record::Revision;

/// What a client claims to have, with the key that it authenticated by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Presented {
    /// Its owner token's hash.
    pub owner: OwnerHash,
    /// The generation it was granted.
    pub generation: Generation,
    /// Its API key.
    pub api_key: ApiKeyId,
}

impl Presented {
    /// Whether `lease`, the owner's, is the one that it claims.
    pub(super) fn is_of(&self, lease: &Lease) -> bool {
        self.generation == lease.generation && self.api_key == lease.api_key
    }
}

/// The check at selection: which connection the request is bound to.
///
/// In this order: [`LeaseCode::Required`] without an active lease,
/// [`LeaseCode::FenceStale`] for another generation and then for another key,
/// [`LeaseCode::ConnectionMismatch`] if the request is forced to a connection
/// that is not the bound one. The table is good enough to go on to the fence;
/// a refusal is always by what the store says.
pub fn select(
    seen: &Seen<'_>,
    presented: &Presented,
    forced: Option<&ConnectionId>,
    now: Millis,
) -> Decision {
    let now = seen.now(now);
    let owner = &presented.owner;
    let judge = |found| match active(found, presented, now) {
        Ok(found) if forced.is_some_and(|forced| *forced != found.body.connection) => {
            Err(LeaseCode::ConnectionMismatch)
        }
        judged => judged,
    };
    if seen.lease(owner).is_none()
        && let Ok(found) = judge(seen.table().lease(owner).found())
    {
        return Decision::answer(found);
    }
    match readable(seen.lease(owner), || Decision::load(Some(owner), &[])) {
        Continue(found) => match judge(found) {
            Ok(found) => Decision::answer(found),
            Err(code) => Decision::refuse(code),
        },
        Break(decision) => decision,
    }
}

/// The owner's lease, if it is active, of this generation and of this key.
pub(super) fn active<'f>(
    found: Option<&'f Found<Lease>>,
    presented: &Presented,
    now: Millis,
) -> Result<&'f Found<Lease>, LeaseCode> {
    let standing = found.filter(|found| found.body.is_active(now));
    let found = standing.ok_or(LeaseCode::Required)?;
    if presented.is_of(&found.body) {
        Ok(found)
    } else {
        Err(LeaseCode::FenceStale)
    }
}

/// What is asked of the store immediately before each attempt: in one step,
/// whether the lease still stands as `revision`, and a place among what is in
/// flight on the connection.
pub fn take(
    presented: &Presented,
    connection: &ConnectionId,
    revision: Revision,
    holder: Holder,
    ttl_ms: u64,
) -> Take {
    Take {
        pool: Pool::Leased(connection.clone()),
        holder,
        limit: None,
        ttl_ms,
        patience_ms: None,
        guard: Some(guard(&presented.owner, revision)),
        note: Bytes::new(),
    }
}

/// The judgement after the store said that the lease no longer stands as
/// expected: `newest` is what it holds and `at` its time. With the same lease
/// in another state (renewed, for one) the attempt asks again with this
/// revision; otherwise nothing goes out.
///
/// In this order: [`LeaseCode::Required`], [`LeaseCode::FenceStale`] for the
/// generation, [`LeaseCode::AuthorizationMismatch`] for the key,
/// [`LeaseCode::ConnectionMismatch`].
pub fn fenced(
    newest: &Stored<Lease>,
    presented: &Presented,
    connection: &ConnectionId,
    at: Millis,
) -> Result<Revision, LeaseCode> {
    let found = match newest {
        Stored::Unreadable => return Err(LeaseCode::ServiceUnavailable),
        Stored::Absent => return Err(LeaseCode::Required),
        Stored::Found(found) => found,
    };
    let lease = &found.body;
    if !lease.is_active(at) {
        Err(LeaseCode::Required)
    } else if lease.generation != presented.generation {
        Err(LeaseCode::FenceStale)
    } else if lease.api_key != presented.api_key {
        Err(LeaseCode::AuthorizationMismatch)
    } else if lease.connection != *connection {
        Err(LeaseCode::ConnectionMismatch)
    } else {
        Ok(found.revision)
    }
}
