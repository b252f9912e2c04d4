//! Whether what is in flight under a lease may go on.

use super::fence::Presented;
use super::record::Lease;
use super::rules::LeaseRules;
use super::seen::{Found, Stored};
use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::mirror::record::Revision;

/// A request in flight, and what it went out under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flight {
    /// What it presented.
    pub presented: Presented,
    /// Where it went.
    pub connection: ConnectionId,
    /// The state of the owner's record that it passed the fence with.
    pub revision: Revision,
    /// When the lease was to expire, by that record.
    pub granted_until: Millis,
    /// When it asked the fence; taken before the question was sent.
    pub passed_at: Millis,
}

/// What becomes of a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on; judge again at this time, or when the table changes.
    GoesOn {
        /// The first moment at which it would be cut if nothing is heard.
        until: Millis,
    },
    /// Its lease is over, or can no longer be confirmed: it is cut, with
    /// [`LeaseCode::Lost`](super::LeaseCode::Lost).
    Cut,
}

/// Judges a request in flight by the owner's record as the table has it.
///
/// `confirmed_at` is the time, taken before the question was sent, of the last
/// question to the store whose answer left the table up to date. Without one
/// for longer than the grace, the next owner may have the connection.
pub fn watch(
    known: &Stored<Lease>,
    flight: &Flight,
    confirmed_at: Millis,
    rules: &LeaseRules,
    now: Millis,
) -> Verdict {
    // Until the table has caught up with the fence, the fence knew better.
    let behind = confirmed_at <= flight.passed_at;
    let older = |found: &Found<Lease>| found.revision < flight.revision;
    let stands_until = match known {
        Stored::Absent if behind => flight.granted_until,
        Stored::Found(found) if behind && older(found) => flight.granted_until,
        Stored::Found(found) if is_under(&found.body, flight) => found.body.expires_at,
        Stored::Found(_) | Stored::Absent | Stored::Unreadable => return Verdict::Cut,
    };
    let confirmed_at = confirmed_at.max(flight.passed_at);
    let until = stands_until.min(confirmed_at.plus(rules.handover_grace_ms()));
    if now < until {
        Verdict::GoesOn { until }
    } else {
        Verdict::Cut
    }
}

fn is_under(lease: &Lease, flight: &Flight) -> bool {
    lease.end.is_none() && flight.presented.is_of(lease) && lease.connection == flight.connection
}
