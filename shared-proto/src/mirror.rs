//! The durable, ordered copy of shared state.
//!
//! The owner of a thing (the actor of a connection, of a provider's breaker)
//! holds its state in memory and *commits* each change here. A commit is a
//! compare-and-set on the record's [`Revision`]: the record and its entry in
//! the change log are written in one atomic step, or neither is. Other nodes
//! take a [`Snapshot`] and then read the log from the snapshot's position
//! ([`Mirror::tail`]), so that they see every change, in order, exactly once.
//!
//! | what | module |
//! |---|---|
//! | how keys are spelled | [`key`] |
//! | how records are stored | [`record`] |
//! | what a commit says, and what can come of it | [`commit`] |
//! | the change log | [`log`] |
//! | slots, requests under a lease, live nodes | [`hold`] |
//! | the backend inside one process, in memory or on disk | [`embedded`] |
//! | what every backend has to pass | `conformance` (a feature of that name) |
//!
//! # An event counts once
//!
//! On [`CommitError::Conflict`] the owner takes the newer record and applies
//! *its event* again, not its old result. The transition is pure, so this is a
//! loop:
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use shared_proto::clock::Millis;
//! use shared_proto::id::ConnectionId;
//! use shared_proto::mirror::commit::{Commit, CommitError, Expected};
//! use shared_proto::mirror::key::{self, Key};
//! use shared_proto::mirror::record::{Body, Record, Revision};
//! use shared_proto::mirror::Mirror;
//!
//! #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
//! struct Health {
//!     failures: u32,
//!     cooling_until: Millis,
//! }
//!
//! impl Body for Health {
//!     const KIND: &'static str = key::HEALTH;
//!     const VERSION: u16 = 1;
//! }
//!
//! /// The event: an attempt that began at `started` failed.
//! fn failed(state: &Health, started: Millis, now: Millis) -> Option<Health> {
//!     // Began before the cooldown it meets: another node counted this failure.
//!     (started >= state.cooling_until).then(|| Health {
//!         failures: state.failures + 1,
//!         cooling_until: now.plus(3_000),
//!     })
//! }
//!
//! type Error = Box<dyn std::error::Error>;
//!
//! /// What the owner knows: the state, and the revision it was read at.
//! async fn observe(
//!     mirror: &dyn Mirror,
//!     key: &Key,
//!     mut known: Option<(Revision, Health)>,
//!     started: Millis,
//! ) -> Result<Option<(Revision, Health)>, Error> {
//!     loop {
//!         let state = known.as_ref().map(|(_, s)| s.clone()).unwrap_or_default();
//!         let Some(next) = failed(&state, started, mirror.now()) else {
//!             return Ok(known); // no news, nothing to write
//!         };
//!         let expected = known.as_ref().map_or(Expected::Absent, |(r, _)| Expected::Revision(*r));
//!         match mirror.commit(Commit::put(key.clone(), expected, &next)?).await {
//!             Ok(done) => return Ok(Some((done.revision, next))),
//!             Err(CommitError::Conflict { newest }) => {
//!                 known = match newest {
//!                     // A body of a newer version stays as it is: this node can't judge it.
//!                     Some(record) => Some((record.revision, record.decode()?)),
//!                     None => None,
//!                 };
//!             }
//!             // Unreachable: keep the event and apply it again when the store is back.
//!             Err(other) => return Err(other.into()),
//!         }
//!     }
//! }
//!
//! # use std::sync::Arc;
//! # use shared_proto::clock::ManualClock;
//! # use shared_proto::mirror::embedded::Embedded;
//! # fn main() -> Result<(), Error> {
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let clock = Arc::new(ManualClock::at(Millis::from_epoch_ms(10_000)));
//! let mirror = Embedded::memory("omniroute", clock)?;
//! let key = Key::Health(ConnectionId::from("acme-1"));
//! let began = Millis::from_epoch_ms(9_000);
//!
//! // Two nodes that know nothing yet see attempts of the same moment fail.
//! let one = observe(&mirror, &key, None, began).await?;
//! let two = observe(&mirror, &key, None, began).await?;
//! assert_eq!(one, two, "the second took the first's record, and its event was not news");
//! assert_eq!(one.map(|(_, health)| health.failures), Some(1));
//! # Ok(()) })
//! # }
//! ```
//!
//! # Deadlines
//!
//! No call here has a deadline of its own; the caller sets one by dropping the
//! future. A dropped commit may or may not take effect. The same commit can be
//! sent again: if the first took effect, the answer is a conflict that carries
//! the record.
//!
//! # Time
//!
//! [`Mirror::now`] is the store's time. Records carry their expiry, and each
//! reader judges it with [`Record::is_expired`]. A store may drop a record some
//! time after it expired, never before; while it is stored it takes part in
//! compare-and-set like any other. The embedded store drops quiet records
//! ([`Key::is_logged`]) a minute after they expired, and no others. A [`Guard`]
//! is judged by the store's own clock.
//!
//! [`Guard`]: commit::Guard

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::clock::Millis;
use commit::{Commit, CommitError, Committed, TransactError, Transaction};
use hold::{Held, HoldError, Place, Pool, Take, Taken};
use key::Key;
use log::{Position, Tail, TailError};
use record::{Record, Unreadable};

#[cfg(doc)]
use record::Revision;

pub mod commit;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod embedded;
pub mod hold;
pub mod key;
pub mod log;
pub mod record;
pub mod redis;

/// A store of shared state. See the [module](self) for the rules that every
/// backend keeps; the conformance suite checks them.
pub trait Mirror: Send + Sync + 'static {
    /// Writes the change if the record is as expected, together with its entry
    /// in the log, and answers when both are durable.
    ///
    /// For one key, revisions only rise, also across deletion and reopening.
    /// Commits queue in a bounded queue; a full one makes the caller wait.
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, CommitError>> {
        Box::pin(async move { commit::single(self.transact(commit.into()).await) })
    }

    /// Makes all changes of the transaction, each with its entry in the log,
    /// in one atomic step if every guard holds and every record is as
    /// expected; or else none. One answer for each commit, in their order.
    fn transact(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'_, Result<Vec<Committed>, TransactError>>;

    /// The record of `key` as last committed, expired or not, quiet or not.
    fn load<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, LoadError>>;

    /// All records but quiet ones, and the position in the log at which this was
    /// the state.
    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Unreachable>>;

    /// The changes after `from`, in the order of their commits.
    ///
    /// [`TailError::Gap`] when the log no longer reaches back to `from`, or is
    /// not the log that `from` belongs to: the reader takes a snapshot again.
    /// Nobody who writes waits for a reader.
    fn tail(&self, from: Position) -> BoxFuture<'_, Result<Tail, TailError>>;

    /// Takes a place in a pool, if there is room, everybody who waits before
    /// it has room too, and the guard holds.
    fn take(&self, take: Take) -> BoxFuture<'_, Result<Taken, HoldError>>;

    /// Keeps holds for `ttl_ms` from now; for each, whether it was still held.
    /// One that has lapsed stays so. At most [`hold::MAX_HOLDS_AT_ONCE`].
    fn keep(&self, places: Vec<Place>, ttl_ms: u64) -> BoxFuture<'_, Result<Vec<bool>, HoldError>>;

    /// Gives holds back, and places in the queue. What is not held is no
    /// error. At most [`hold::MAX_HOLDS_AT_ONCE`].
    fn give_back(&self, places: Vec<Place>) -> BoxFuture<'_, Result<(), HoldError>>;

    /// Who holds in `pool` now, those that have lapsed left out, by name.
    fn holders<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Vec<Held>, HoldError>>;

    /// The store's time; never goes back within one process, and is never
    /// ahead of the store's own clock.
    fn now(&self) -> Millis;

    /// Whether commits get through, as far as the last ones told.
    fn health(&self) -> Health;

    /// Finishes what was accepted, makes it durable and lets go of the store.
    /// Every later call answers [`Unreachable`].
    fn close(&self) -> BoxFuture<'_, Result<(), Unreachable>>;
}

/// The state at one position of the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Every record that can be read and is not quiet, in the order of their keys.
    pub records: Vec<Record>,
    /// Every one that can't; they stay stored as they are.
    pub unreadable: Vec<Unreadable>,
    /// Where to [`Mirror::tail`] from to miss nothing and repeat nothing.
    pub position: Position,
}

/// Whether a store takes commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does.
    Up,
    /// It did not when last tried; loads may still answer.
    Degraded {
        /// Since when, store time.
        since: Millis,
        /// What is wrong, for the operator.
        why: Arc<str>,
    },
}

/// The store could not be asked, or did not answer for certain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store is unreachable: {0}")]
pub struct Unreachable(
    /// What is wrong, for the operator.
    pub Arc<str>,
);

/// Why [`Mirror::load`] has no record to give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The store did not answer.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// There is something, but this version can't read it.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}
