//! Which connection is free, and for whom.
//!
//! A connection goes to another owner only when its last lease is over and
//! either nothing is in flight under leases of it, or the grace since that end
//! has passed. Nothing new comes into flight under a lease that is over, since
//! its guard fails; so a count taken after the end only falls.

use super::MAX_ASKED;
use super::code::Capacity;
use super::record::Bound;
use super::rules::LeaseRules;
use super::seen::{Seen, Stored, Wanted};
use super::token::OwnerHash;
use crate::clock::Millis;
use crate::id::{ConnectionId, ProviderId};
use crate::mirror::key::Key;

/// Longest `Retry-After` of a capacity wait, seconds.
const MAX_RETRY_AFTER_S: u64 = 3600;

/// Records asked for at once while the table says that some are free.
const AHEAD: usize = 4;

/// A connection that ordinary routing would choose from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// The connection.
    pub connection: ConnectionId,
    /// Its provider.
    pub provider: ProviderId,
}

/// Whether a connection may be bound to an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freedom {
    /// It may.
    Free,
    /// Its last lease is over; it depends on what is still in flight.
    Uncounted,
    /// It may not, and when that may change if it is known: the end of the
    /// lease that stands, or of the grace.
    Held(Option<Millis>),
}

/// Whether `owner` may have a connection of which `bound` is the record and
/// `in_flight` the count taken after it was read.
pub fn freedom(
    bound: &Stored<Bound>,
    in_flight: Option<usize>,
    owner: &OwnerHash,
    rules: &LeaseRules,
    now: Millis,
) -> Freedom {
    let over = match bound {
        Stored::Unreadable => return Freedom::Held(None),
        // Over for long. What is counted nevertheless is older than a failover
        // that lost the record; it is cut, or lapses.
        Stored::Absent => None,
        Stored::Found(found) if found.body.owner == *owner => return Freedom::Free,
        Stored::Found(found) => match found.body.over_since(found.written_at, now) {
            None => return Freedom::Held(Some(found.body.expires_at)),
            Some(since) => Some(since.plus(rules.handover_grace_ms())),
        },
    };
    if over.is_some_and(|over| over <= now) {
        return Freedom::Free;
    }
    match in_flight {
        None => Freedom::Uncounted,
        Some(0) => Freedom::Free,
        Some(_) => Freedom::Held(over),
    }
}

/// A choice among candidates.
pub(super) enum Choice<'a> {
    /// This one is free.
    Free(&'a Candidate),
    /// Not to be told yet.
    Load(Wanted),
    /// Each is held by somebody else.
    Held(Capacity),
    /// None of their records can be read, so nothing is known of any.
    Unreadable,
}

/// The first of `candidates` that is free for `owner`: those that the table
/// takes for free first, then the others, at most [`MAX_ASKED`] in all.
pub(super) fn choose<'a>(
    seen: &Seen<'_>,
    owner: &OwnerHash,
    candidates: &'a [Candidate],
    rules: &LeaseRules,
    now: Millis,
) -> Choice<'a> {
    let seems_free = |candidate: &&Candidate| {
        let known = seen.table().bound(&candidate.connection);
        !matches!(freedom(known, None, owner, rules, now), Freedom::Held(_))
    };
    let (likely, others): (Vec<_>, Vec<_>) = candidates.iter().partition(seems_free);
    let mut asked: usize = 0;
    let mut unreadable: usize = 0;
    let mut earliest: Option<Millis> = None;
    for (group, at_once) in [(&likely, AHEAD), (&others, MAX_ASKED)] {
        for (index, candidate) in group.iter().copied().enumerate() {
            if asked >= MAX_ASKED {
                break;
            }
            asked = asked.saturating_add(1);
            let Some(bound) = seen.bound(&candidate.connection) else {
                let room = MAX_ASKED.saturating_sub(asked).saturating_add(1);
                let next = group.iter().skip(index).take(at_once.min(room)).copied();
                return Choice::Load(unread(seen, next));
            };
            if matches!(bound, Stored::Unreadable) {
                unreadable = unreadable.saturating_add(1);
            }
            let counted = seen.counted(&candidate.connection);
            match freedom(bound, counted, owner, rules, now) {
                Freedom::Free => return Choice::Free(candidate),
                Freedom::Uncounted => return Choice::Load(uncounted(candidate)),
                Freedom::Held(until) => earliest = sooner(earliest, until),
            }
        }
    }
    if unreadable > 0 && unreadable == asked {
        return Choice::Unreadable;
    }
    for candidate in others {
        let id = &candidate.connection;
        if seen.bound(id).is_none()
            && let Freedom::Held(until) = freedom(seen.table().bound(id), None, owner, rules, now)
        {
            earliest = sooner(earliest, until);
        }
    }
    Choice::Held(Capacity {
        eligible: candidates.len(),
        retry_after_s: retry_after_s(earliest, now),
    })
}

fn unread<'c>(seen: &Seen<'_>, candidates: impl Iterator<Item = &'c Candidate>) -> Wanted {
    let unread = candidates.filter(|candidate| seen.bound(&candidate.connection).is_none());
    Wanted {
        records: unread
            .map(|candidate| Key::Bound(candidate.connection.clone()))
            .collect(),
        in_flight: Vec::new(),
    }
}

fn uncounted(candidate: &Candidate) -> Wanted {
    Wanted {
        records: Vec::new(),
        in_flight: vec![candidate.connection.clone()],
    }
}

fn sooner(one: Option<Millis>, other: Option<Millis>) -> Option<Millis> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (known, None) | (None, known) => known,
    }
}

/// `ceil((earliest - now) / 1000)`, within 1 and 3600; 1 if nothing is known.
fn retry_after_s(earliest: Option<Millis>, now: Millis) -> u64 {
    let wait_ms = earliest.map_or(0, |earliest| earliest.since(now));
    wait_ms.div_ceil(1000).clamp(1, MAX_RETRY_AFTER_S)
}
