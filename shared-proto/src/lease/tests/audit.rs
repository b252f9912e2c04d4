//! The numbered invariants of leases, as checks of what a store holds and of
//! each change. They are written without the functions they check.

use std::collections::BTreeMap;

use super::*;
use crate::mirror::hold::Holder;
use crate::mirror::key::Key;
use crate::simulation::store::Store;

/// A request that is really under way upstream.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Underway {
    pub(crate) name: usize,
    pub(crate) owner: OwnerHash,
    pub(crate) generation: Generation,
    pub(crate) connection: ConnectionId,
    /// The store lost it together with its lease.
    pub(crate) is_lost: bool,
}

impl Underway {
    pub(crate) fn holder(&self) -> Holder {
        Holder(self.name.to_string().into())
    }
}

/// What has to be remembered to judge the next change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Audit {
    /// The highest generation ever granted, whatever the store forgot since.
    highest: BTreeMap<OwnerHash, Generation>,
}

pub(crate) type Checked = Result<(), String>;

fn leases(store: &Store) -> BTreeMap<OwnerHash, Lease> {
    let lease = |record: Record| {
        let Key::Lease(hash) = &record.key else {
            return None;
        };
        Some((OwnerHash::parse(hash)?, record.decode().ok()?))
    };
    store.records().filter_map(lease).collect()
}

fn bounds(store: &Store) -> BTreeMap<ConnectionId, (Bound, Millis)> {
    let bound = |record: Record| {
        let Key::Bound(id) = &record.key else {
            return None;
        };
        Some((id.clone(), (record.decode().ok()?, record.written_at)))
    };
    store.records().filter_map(bound).collect()
}

fn lease_is_alive(lease: &Lease, now: Millis) -> bool {
    lease.end.is_none() && lease.expires_at > now
}

/// 1: at most one active lease of a connection and of an owner, and the two
/// records of a lease agree.
pub(crate) fn exclusive(store: &Store) -> Checked {
    let (leases, bounds) = (leases(store), bounds(store));
    let mut of = BTreeMap::new();
    for (owner, lease) in &leases {
        if !lease_is_alive(lease, store.now) {
            continue;
        }
        if let Some(other) = of.insert(&lease.connection, owner) {
            return Err(format!(
                "1: {owner:?} and {other:?} own {}",
                lease.connection
            ));
        }
        let bound = bounds.get(&lease.connection).map(|(bound, _)| bound);
        let agrees = bound.is_some_and(|bound| {
            bound.owner == *owner
                && bound.generation == lease.generation
                && bound.end.is_none()
                && bound.expires_at == lease.expires_at
        });
        if !agrees {
            return Err(format!("1: {lease:?} is not what {bound:?} says"));
        }
    }
    for (connection, (bound, _)) in &bounds {
        let is_alive = bound.end.is_none() && bound.expires_at > store.now;
        if is_alive && of.get(connection) != Some(&&bound.owner) {
            return Err(format!(
                "1: {connection} is bound by a lease that is not: {bound:?}"
            ));
        }
    }
    Ok(())
}

/// 2: what goes out has a live lease by the store's clock.
pub(crate) fn sent(store: &Store, underway: &Underway) -> Checked {
    let lease = leases(store).remove(&underway.owner);
    let is_under = lease.as_ref().is_some_and(|lease| {
        lease_is_alive(lease, store.now)
            && lease.generation == underway.generation
            && lease.connection == underway.connection
    });
    if is_under {
        Ok(())
    } else {
        Err(format!("2: {underway:?} went out under {lease:?}"))
    }
}

/// 3: a connection changes hands only with nothing of the others in flight, or
/// after the grace.
pub(crate) fn handed_over(
    before: &Store,
    after: &Store,
    underway: &[Underway],
    rules: &LeaseRules,
) -> Checked {
    let was = bounds(before);
    for (connection, (bound, _)) in bounds(after) {
        let last = was.get(&connection);
        if last.is_some_and(|(last, _)| last.owner == bound.owner) {
            continue;
        }
        let over = last.map(|(last, written_at)| match last.end {
            Some(end) if end.reason != EndReason::TtlExpired => *written_at,
            Some(_) | None => last.expires_at,
        });
        if over.is_some_and(|over| over > after.now) {
            return Err(format!("3: {connection} was taken from {last:?}"));
        }
        let is_late = over.is_some_and(|over| over.plus(rules.handover_grace_ms()) <= after.now);
        let mut others = underway
            .iter()
            .filter(|u| u.connection == connection && u.owner != bound.owner && !u.is_lost);
        if let Some(other) = others.next()
            && !is_late
        {
            return Err(format!(
                "3: {bound:?} has {connection} before {other:?} is done"
            ));
        }
    }
    Ok(())
}

impl Audit {
    /// 4: each lease that is granted has a higher generation than all its
    /// owner ever had. Returns how many were.
    pub(crate) fn granted(&mut self, before: &Store, after: &Store) -> Result<usize, String> {
        let was = leases(before);
        let mut granted = 0;
        for (owner, lease) in leases(after) {
            let last = was.get(&owner);
            let went_on = last.is_some_and(|last| {
                *last == lease
                    || lease_is_alive(last, after.now) && last.generation == lease.generation
            });
            if went_on || lease.end.is_some() {
                continue;
            }
            granted += 1;
            let highest = self.highest.insert(owner.clone(), lease.generation);
            if highest.is_some_and(|highest| lease.generation <= highest) {
                return Err(format!("4: {lease:?} after {highest:?}"));
            }
        }
        Ok(granted)
    }
}

/// Whether nothing is left to be wanted of the connection's former holders.
pub(crate) fn changed_hands(before: &Store, after: &Store) -> bool {
    let was = bounds(before);
    bounds(after).iter().any(|(connection, (bound, _))| {
        let last = was.get(connection);
        last.is_some_and(|(last, _)| last.owner != bound.owner)
    })
}
