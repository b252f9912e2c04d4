//! What an operation comes to.

use std::ops::ControlFlow::{self, Break, Continue};

use super::code::{LeaseCode, Refusal};
use super::record::Lease;
use super::rules::LeaseRules;
use super::seen::{Found, Stored, Wanted};
use super::token::OwnerHash;
use crate::id::ConnectionId;
use crate::mirror::commit::{Commit, Committed, Guard, Transaction};
use crate::mirror::key::Key;
use crate::mirror::record::{BodyError, Revision};

/// A lease that an operation came to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    /// The lease, active unless the operation ended it.
    pub lease: Lease,
    /// The owner's record of it: what the fence asks for.
    pub revision: Revision,
}

/// How an operation ends.
pub type Outcome = Result<Binding, Refusal>;

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Read this, and judge again.
    Load(Wanted),
    /// Nothing is to be written.
    Done(Outcome),
    /// Make this change; when it is made, that is the end.
    Commit(Planned),
}

/// A change, and what it comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The change. Its first commit is of the owner's record.
    pub transaction: Transaction,
    /// The lease afterwards, or what is answered although it was changed.
    then: Result<Lease, Refusal>,
}

impl Planned {
    /// How the operation ends, now that the change is made.
    pub fn made(self, committed: &[Committed]) -> Outcome {
        let first = committed.first().ok_or(LeaseCode::ServiceUnavailable)?;
        Ok(Binding {
            lease: self.then?,
            revision: first.revision,
        })
    }
}

impl Decision {
    pub(super) fn refuse(why: impl Into<Refusal>) -> Self {
        Self::Done(Err(why.into()))
    }

    pub(super) fn answer(found: &Found<Lease>) -> Self {
        Self::Done(Ok(Binding {
            lease: found.body.clone(),
            revision: found.revision,
        }))
    }

    /// Read the records of an owner and of connections.
    pub(super) fn load(owner: Option<&OwnerHash>, connections: &[&ConnectionId]) -> Self {
        let bounds = connections.iter().map(|&id| Key::Bound(id.clone()));
        Self::Load(Wanted {
            records: owner
                .map(OwnerHash::key)
                .into_iter()
                .chain(bounds)
                .collect(),
            in_flight: Vec::new(),
        })
    }

    /// A transaction of `changes`. A body that can't be written, which none
    /// here should be, refuses the operation.
    pub(super) fn commit(
        changes: Result<(Vec<Commit>, Vec<Guard>), BodyError>,
        replicas: u32,
        then: Result<Lease, Refusal>,
    ) -> Self {
        match changes {
            Ok((commits, guards)) => Self::Commit(Planned {
                transaction: Transaction {
                    guards,
                    commits,
                    replicas,
                },
                then,
            }),
            Err(_) => Self::refuse(LeaseCode::ServiceUnavailable),
        }
    }
}

/// The lease that stands as it is: with replicas to wait for, it is written
/// again, because whoever was granted it may have been told that they lack it.
pub(super) fn stands(owner: &OwnerHash, found: &Found<Lease>, rules: &LeaseRules) -> Decision {
    if rules.min_replicas() == 0 {
        return Decision::answer(found);
    }
    let lease = &found.body;
    let on = Some(found.revision);
    let commit = super::seen::put(owner.key(), on, lease, lease.record_expires_at());
    Decision::commit(
        commit.map(|commit| {
            (
                vec![commit],
                vec![super::seen::guard(owner, found.revision)],
            )
        }),
        rules.min_replicas(),
        Ok(lease.clone()),
    )
}

/// The record, `None` when there is none, or what to do for want of it.
pub(super) fn readable<T>(
    stored: Option<&Stored<T>>,
    load: impl FnOnce() -> Decision,
) -> ControlFlow<Decision, Option<&Found<T>>> {
    match stored {
        None => Break(load()),
        Some(Stored::Unreadable) => Break(Decision::refuse(LeaseCode::ServiceUnavailable)),
        Some(Stored::Absent) => Continue(None),
        Some(Stored::Found(found)) => Continue(Some(found)),
    }
}
