//! Session pins on this node: a bounded memory of those in use, and the steps
//! against the store that make, move and learn of one. What a pin is is said by
//! [`shared_proto::pin`]; which connection a request takes, by
//! [`crate::request::pinned`].
//!
//! A pin that is known here costs no question. It may be moved by another node
//! only when its connection rests, which every node hears of: then it is asked
//! about again ([`Known::is_current`]). Uses are told to the store by one actor
//! ([`teller`]), at most three times in a time to live.

mod teller;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use actix::{Actor as _, Addr};
use quick_cache::sync::Cache;
use shared_proto::clock::Millis;
use shared_proto::id::{ConnectionId, ProviderId};
use shared_proto::mirror::commit::{CommitError, Expected};
use shared_proto::mirror::hold::{Holder, Pool, Take};
use shared_proto::mirror::record::Revision;
use shared_proto::mirror::{Health, Mirror};
use shared_proto::pin::{Pin, Stored};
use tokio::time::timeout;

use crate::observe::PinMetrics;
use crate::routing::ConnectionCell;
use teller::{Due, Teller};

/// Pins in memory; past it those least used are forgotten, and asked for again.
const MAX_KNOWN: usize = 65_536;
/// A use of a connection by sessions is of interest for this long, ms.
const USE_TTL_MS: u64 = 86_400_000;
/// The store is asked again after a conflict at most this often.
const MAX_ROUNDS: usize = 8;

/// A node's way to pins.
pub(crate) struct Pins {
    mirror: Arc<dyn Mirror>,
    known: Arc<Cache<Arc<str>, Arc<Known>>>,
    teller: Addr<Teller>,
    /// Whether other nodes may use the store.
    shared: bool,
    pub(crate) metrics: PinMetrics,
}

/// A pin that this node knows.
pub(crate) struct Known {
    pub(crate) connection: ConnectionId,
    created_at: Millis,
    ttl_ms: u64,
    /// How often its connection had rested when the pin was last confirmed.
    rests: u64,
    /// The revision of its record; 0 is none that is known.
    revision: AtomicU64,
    /// Its last use on this node, ms.
    used_at: AtomicU64,
    /// Its last use that the store knows of, ms; 0 is none.
    told_at: AtomicU64,
    /// The teller will look at it.
    due: AtomicBool,
}

impl Known {
    /// A pin as the store has it, whose connection had rested so often.
    fn stored(pin: &Pin, revision: Revision, ttl_ms: u64, rests: u64) -> Self {
        let used_at = pin.used_at.as_epoch_ms();
        Self {
            connection: pin.connection.clone(),
            created_at: pin.created_at,
            ttl_ms,
            rests,
            revision: AtomicU64::new(revision.number()),
            used_at: AtomicU64::new(used_at),
            told_at: AtomicU64::new(used_at),
            due: AtomicBool::new(false),
        }
    }

    /// Whether nobody can have moved it since it was confirmed.
    pub(crate) fn is_current(&self, cell: &ConnectionCell) -> bool {
        self.rests == cell.rests()
    }

    /// What a commit in its place has to expect.
    pub(crate) fn expected(&self) -> Expected {
        match self.revision.load(Ordering::Relaxed) {
            0 => Expected::Absent,
            number => Expected::Revision(Revision::new(number)),
        }
    }

    fn lives(&self, now: Millis) -> bool {
        let used_at = Millis::from_epoch_ms(self.used_at.load(Ordering::Relaxed));
        used_at.plus(self.ttl_ms) > now
    }
}

/// What came of proposing a pin.
pub(crate) enum Proposed {
    /// It is the session's pin now.
    Made(Revision),
    /// Another one is.
    Other(Pin, Revision),
    /// The store can't say.
    Away,
}

impl Pins {
    pub(crate) fn start(mirror: &Arc<dyn Mirror>, shared: bool, metrics: PinMetrics) -> Self {
        let known = Arc::new(Cache::new(MAX_KNOWN));
        let teller = Teller::new(Arc::clone(mirror), Arc::clone(&known));
        Self {
            mirror: Arc::clone(mirror),
            known,
            teller: teller.start(),
            shared,
            metrics,
        }
    }

    /// The pin of that name, if this node knows one that lives.
    pub(crate) fn known(&self, name: &Arc<str>, now: Millis) -> Option<Arc<Known>> {
        self.known.get(name).filter(|known| known.lives(now))
    }

    /// Notes a use, and sees to it that the store hears of it in time.
    pub(crate) fn used(&self, name: &Arc<str>, known: &Known, now: Millis) {
        known
            .used_at
            .fetch_max(now.as_epoch_ms(), Ordering::Relaxed);
        if known.due.swap(true, Ordering::Relaxed) {
            return;
        }
        let told_at = Millis::from_epoch_ms(known.told_at.load(Ordering::Relaxed));
        let third = known.ttl_ms.checked_div(3).unwrap_or(0);
        self.teller.do_send(Due {
            name: Arc::clone(name),
            at: told_at.plus(third).max(now),
        });
    }

    /// Remembers what the store says of a session's pin, whose connection is
    /// that of `cell`.
    pub(crate) fn learn(
        &self,
        name: &Arc<str>,
        (pin, revision): (&Pin, Revision),
        ttl_ms: u64,
        cell: &ConnectionCell,
    ) -> Arc<Known> {
        let known = Known::stored(pin, revision, ttl_ms, cell.rests());
        self.remember(name, known)
    }

    /// Remembers a pin that only this node knows of; it is told where the store
    /// is still as `expected`.
    pub(crate) fn learn_own(
        &self,
        name: &Arc<str>,
        (pin, expected): (&Pin, Expected),
        ttl_ms: u64,
        cell: &ConnectionCell,
    ) -> Arc<Known> {
        let revision = match expected {
            Expected::Revision(revision) => revision,
            Expected::Absent | Expected::Corrupt => Revision::new(0),
        };
        let known = Known {
            told_at: AtomicU64::new(0),
            ..Known::stored(pin, revision, ttl_ms, cell.rests())
        };
        self.remember(name, known)
    }

    fn remember(&self, name: &Arc<str>, known: Known) -> Arc<Known> {
        let known = Arc::new(known);
        self.known.insert(Arc::clone(name), Arc::clone(&known));
        known
    }

    /// Whether the store is worth a question.
    pub(crate) fn store_answers(&self) -> bool {
        self.mirror.health() == Health::Up
    }

    /// When sessions last took connections of `provider`, as the store has it.
    pub(crate) async fn uses(&self, provider: &ProviderId) -> HashMap<ConnectionId, Millis> {
        if !self.shared {
            // All uses are of this node.
            return HashMap::new();
        }
        let pool = Pool::Uses(provider.clone());
        let held = self.mirror.holders(&pool).await.unwrap_or_default();
        let used = held.into_iter().map(|held| {
            let until = held.until.as_epoch_ms();
            let used_at = Millis::from_epoch_ms(until.saturating_sub(USE_TTL_MS));
            (ConnectionId::from(&*held.holder.0), used_at)
        });
        used.collect()
    }

    /// Proposes a pin where the store is as `expected`, and tells that its
    /// connection is used.
    pub(crate) async fn propose(
        &self,
        name: &Arc<str>,
        pin: &Pin,
        (expected, ttl_ms): (Expected, u64),
        provider: &ProviderId,
    ) -> Proposed {
        let proposing = propose(&*self.mirror, name, pin, expected, ttl_ms);
        let telling = async {
            if self.shared {
                told_use(&*self.mirror, provider, &pin.connection).await;
            }
        };
        let (proposed, ()) = futures_util::future::join(proposing, telling).await;
        proposed
    }
}

/// Stores `pin`, unless another one lives.
async fn propose(
    mirror: &dyn Mirror,
    name: &Arc<str>,
    pin: &Pin,
    mut expected: Expected,
    ttl_ms: u64,
) -> Proposed {
    for _ in 0..MAX_ROUNDS {
        let Ok(commit) = pin.commit(name, expected, ttl_ms) else {
            break;
        };
        let newest = match mirror.commit(commit).await {
            Ok(committed) => return Proposed::Made(committed.revision),
            Err(CommitError::Conflict { newest }) => newest,
            Err(_) => break,
        };
        match Stored::of(newest.as_ref(), mirror.now()) {
            Stored::Live(pin, revision) => return Proposed::Other(pin, revision),
            Stored::Over(now_expected) => expected = now_expected,
            Stored::Newer => break,
        }
    }
    Proposed::Away
}

/// Tells that a session took `connection`.
async fn told_use(mirror: &dyn Mirror, provider: &ProviderId, connection: &ConnectionId) {
    let take = Take {
        pool: Pool::Uses(provider.clone()),
        holder: Holder(connection.as_str().into()),
        limit: None,
        ttl_ms: USE_TTL_MS,
        patience_ms: None,
        guard: None,
        note: bytes::Bytes::new(),
    };
    // It is a hint: without it a session goes to another connection.
    timeout(Duration::from_millis(250), mirror.take(take))
        .await
        .ok();
}

#[cfg(test)]
mod tests;
