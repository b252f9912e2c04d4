//! Siblings of a connection that met the limit of its address, over all nodes.
//!
//! The node that met it rests those that it knows of, at once. What is left is
//! found here: connections that the node has not in its configuration, or that
//! were seen to leave by the address only later. Routers ask by which address
//! they leave, each as often as it has to; nothing is asked for here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use shared_proto::clock::Millis;
use shared_proto::egress::{Board, Limit, Observations};
use shared_proto::health::{ConnectionHealth, HealthEvent, HealthRules};
use shared_proto::id::ConnectionId;
use shared_proto::mirror::Snapshot;
use shared_proto::mirror::commit::{Commit, Expected, Transaction};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::Record;
use shared_proto::rotation::RotationRules;

use crate::pen::{Pen, Stop, Wrote};

/// What the store holds of addresses and their limits.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    board: Board,
    healths: HashMap<ConnectionId, (Expected, ConnectionHealth)>,
    /// Who met a limit, until when it holds at most.
    limited: BTreeMap<ConnectionId, Millis>,
}

impl Addresses {
    /// Begins anew with everything that the store holds.
    pub(crate) fn replace(&mut self, snapshot: &Snapshot) {
        *self = Self::default();
        for record in &snapshot.records {
            self.stored(record);
        }
    }

    /// The record is now this.
    pub(crate) fn stored(&mut self, record: &Record) {
        match Subject::of(&record.key) {
            Some(Subject::Node(node)) => match record.decode::<Observations>() {
                Ok(told) => self.board.set(node, told),
                Err(_) => self.board.remove(node),
            },
            Some(Subject::Connection(id)) => match record.decode::<ConnectionHealth>() {
                Ok(health) => self.heard(id, Expected::Revision(record.revision), health),
                Err(_) => self.remove(&record.key),
            },
            None => {}
        }
    }

    fn heard(&mut self, id: &ConnectionId, expected: Expected, health: ConnectionHealth) {
        let own = health.egress.as_ref().filter(|mark| mark.met_by == *id);
        match own.and(health.cooldown_until) {
            Some(until) => self.limited.insert(id.clone(), until),
            None => self.limited.remove(id),
        };
        self.healths.insert(id.clone(), (expected, health));
    }

    /// There is no such record any more, or nothing can be said about it.
    pub(crate) fn remove(&mut self, key: &Key) {
        match Subject::of(key) {
            Some(Subject::Node(node)) => self.board.remove(node),
            Some(Subject::Connection(id)) => {
                self.limited.remove(id);
                self.healths.remove(id);
            }
            None => {}
        }
    }

    /// Health as it ought to be, of `most` siblings at most, and what is stored.
    fn due(&mut self, now: Millis, most: usize) -> Vec<Due> {
        self.limited.retain(|_, until| *until > now);
        let limits = self.limited.keys().filter_map(|id| {
            let (_, health) = self.healths.get(id)?;
            Limit::of(health, now)
        });
        let mut due: BTreeMap<ConnectionId, Due> = BTreeMap::new();
        for limit in limits {
            for id in self.board.siblings(None, &limit, now) {
                if due.len() >= most {
                    break;
                }
                let known = match due.get(&id) {
                    Some(due) => Some((due.expected, due.health.clone())),
                    None => self.healths.get(&id).cloned(),
                };
                let new = || (Expected::Absent, ConnectionHealth::default());
                let (expected, health) = known.unwrap_or_else(new);
                let event = HealthEvent::SiblingLimited(limit.clone());
                let step = health.step(&event, now, &RULES);
                if step.changed {
                    let health = step.state;
                    due.insert(
                        id.clone(),
                        Due {
                            id,
                            expected,
                            health,
                        },
                    );
                }
            }
        }
        due.into_values().collect()
    }
}

struct Due {
    id: ConnectionId,
    expected: Expected,
    health: ConnectionHealth,
}

/// Of these numbers only that a sibling may cool is asked for, and a node tells
/// of no other's address.
const RULES: HealthRules = HealthRules {
    base_ms: 0,
    max_steps: 0,
    cap_ms: 0,
    use_hints: true,
    disable_cooling: false,
    auto_disable_banned: false,
    credential: None,
    rotation: RotationRules::DEFAULT,
};

/// Rests the siblings that still don't, `most` at most.
pub(super) async fn sweep(
    addresses: &std::cell::RefCell<Addresses>,
    pen: &mut Pen<'_>,
    most: usize,
) -> Result<(), Stop> {
    let due = addresses.borrow_mut().due(pen.now()?, most);
    for Due {
        id,
        expected,
        health,
    } in due
    {
        let put = match Commit::put(Key::Health(id.clone()), expected, &health) {
            Ok(put) => put,
            Err(error) => {
                tracing::error!(connection = id.as_str(), %error, "health can't be written");
                continue;
            }
        };
        match pen.write(Transaction::from(put)).await? {
            Wrote::Made => {
                pen.metrics.rested.inc();
                tracing::info!(
                    connection = id.as_str(),
                    "the limit of an address rests one more that leaves by it"
                );
            }
            // It is another by now, of which the log tells.
            Wrote::Conflict(..) => {}
            Wrote::Refused(why) => tracing::debug!(why, "a sibling is left as it is"),
        }
    }
    Ok(())
}

/// What a record tells of addresses; the other kinds tell nothing of them.
enum Subject<'k> {
    /// By which address connections leave a node.
    Node(&'k Arc<str>),
    /// Whether a connection rests for the limit of one.
    Connection(&'k ConnectionId),
}

impl<'k> Subject<'k> {
    const fn of(key: &'k Key) -> Option<Self> {
        match key {
            Key::Egress(node) => Some(Self::Node(node)),
            Key::Health(id) => Some(Self::Connection(id)),
            Key::Lockout(_)
            | Key::Breaker(_)
            | Key::Lease(_)
            | Key::Bound(_)
            | Key::Pin(_)
            | Key::Token(_)
            | Key::Refresh(_)
            | Key::Lane(_)
            | Key::Gate(_)
            | Key::Tools(_)
            | Key::Leader
            | Key::Settings
            | Key::Other(_) => None,
        }
    }
}
