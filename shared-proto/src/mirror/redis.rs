//! The mirror in a Redis that all nodes share: one server, a master watched by
//! sentinels, or a cluster.
//!
//! | what | module |
//! |---|---|
//! | one script for each step that has to be atomic | `scripts`, `redis/scripts/*.lua` |
//! | the connection of all calls, time limits, failing fast | `link` |
//! | finding the master, checking it, coming back | `supervise`, `locate`, `dial` |
//! | what a failure means, in words | `fault` |
//! | the server's clock | `time` |
//! | calls | `transact`, `replicas`, `snapshot`, `tail`, `holds` |
//! | replies, and what is stored | `reply` |
//!
//! # What is stored
//!
//! Everything is under `{PREFIX}:` and so in one slot. A record is a hash whose
//! fields a script can compare; the log is a stream whose entries name their
//! predecessor; the names of logged records are in a sorted set. What a hash
//! under such a key should not have, or another type, is [`Unreadable`] and
//! stays as it is. The scripts' heads say the rest.
//!
//! # Time and revisions
//!
//! A revision is the server's time in microseconds or, if that is not more, one
//! above the last. It rises even over a failover that lost writes, and over a
//! store that was wiped. An entry's position in the log is its revision.
//!
//! # When it is away
//!
//! [`Redis::open`] needs no server. Every call ends within the deadline, and at
//! once while there is no connection; [`Mirror::health`] says what is wrong.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::commit::{Committed, Guard, TransactError, Transaction};
use super::hold::{Held, HoldError, Place, Pool, Take, Taken};
use super::key::{Key, Keyspace};
use super::log::{Position, Tail, TailError};
use super::record::Record;
use super::{Health, LoadError, Mirror, Snapshot, Unreachable};
use crate::clock::{Clock, Millis};
use crate::config::RedisUrl;
use dial::Dial;
use link::{MAX_CALLS, Phase, Shared, State, closed, connect_limit, degrade};
use locate::Locator;
use scripts::Scripts;
use time::StoreTime;

#[cfg(doc)]
use super::record::Unreadable;

mod dial;
mod fault;
mod holds;
mod link;
mod locate;
mod replicas;
mod reply;
mod scripts;
mod snapshot;
mod supervise;
mod tail;
mod time;
mod transact;

/// Time limits and sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a call may take; a snapshot and a list of holders are several.
    pub deadline: Duration,
    /// How long a transaction waits for replicas besides.
    pub replicas_within: Duration,
    /// Entries that the log keeps; at least 1.
    pub log_entries: u64,
    /// Bytes that the log keeps, roughly.
    pub log_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(250),
            replicas_within: Duration::from_millis(500),
            log_entries: 10_000,
            log_bytes: 32 << 20,
        }
    }
}

/// A Redis. Its connections live on a thread of its own and end with it.
pub struct Redis {
    shared: Arc<Shared>,
    closing: watch::Sender<bool>,
}

impl Redis {
    /// Begins to look for the server, and does not wait for it. Until it is
    /// found, [`Mirror::now`] tells `guess`, the best there is then; the first
    /// contact sets it right, be it back.
    pub fn open(
        url: &RedisUrl,
        prefix: &str,
        guess: Arc<dyn Clock>,
        options: Options,
    ) -> Result<Self, OpenError> {
        let dial = Arc::new(Dial::new(url, connect_limit(options.deadline))?);
        let thread = |why: std::io::Error| OpenError::Thread(why.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(thread)?;
        let keys = Keyspace::new(prefix);
        let locator = Locator::new(
            Arc::clone(&dial),
            url.servers.clone(),
            keys.log(),
            options.deadline,
        );
        let (confirmed, jobs) = mpsc::channel(replicas::MAX_QUEUED);
        let shared = Arc::new(Shared {
            options,
            meta: keys.meta(),
            log: keys.log(),
            index: keys.index(),
            keys,
            scripts: Scripts::new(),
            time: StoreTime::new(guess),
            state: watch::Sender::new(State {
                phase: Phase::Starting,
                health: Health::Up,
            }),
            places: Semaphore::new(usize::try_from(MAX_CALLS).unwrap_or(usize::MAX)),
            doubt: Notify::new(),
            runtime: runtime.handle().clone(),
            dial,
            confirmed,
            read_under: watch::Sender::new(0),
        });
        let since = shared.time.now();
        shared.state.send_modify(|state| {
            degrade(&mut state.health, since, &"there was no contact yet".into());
        });
        let (closing, told) = watch::channel(false);
        runtime.spawn(replicas::confirm(Arc::clone(&shared), jobs));
        let supervisor = supervise::supervise(Arc::clone(&shared), locator, told);
        std::thread::Builder::new()
            .name("mirror-redis".into())
            .spawn(move || runtime.block_on(supervisor))
            .map_err(thread)?;
        Ok(Self { shared, closing })
    }

    /// Waits until the first attempt to reach the server has ended: well, or
    /// for the reason given. Some seconds at most.
    pub async fn contact(&self) -> Result<(), Unreachable> {
        let mut state = self.shared.state.subscribe();
        let begun = |state: &State| !matches!(state.phase, Phase::Starting);
        let begun = state.wait_for(begun).await.map_err(|_| closed())?;
        match (&begun.phase, &begun.health) {
            (Phase::Up(_), _) | (_, Health::Up) => Ok(()),
            (_, Health::Degraded { why, .. }) => Err(Unreachable(Arc::clone(why))),
        }
    }

    async fn finish(&self) -> Result<(), Unreachable> {
        let now = self.shared.time.now();
        let open = self.shared.state.send_if_modified(|state| {
            let open = !matches!(state.phase, Phase::Closed);
            if open {
                state.phase = Phase::Closed;
                degrade(&mut state.health, now, &closed().0);
            }
            open
        });
        if !open {
            return Err(closed());
        }
        // What is under way has its connection and ends within the deadline.
        let end = self.shared.end(Instant::now());
        let idle = timeout_at(end, self.shared.places.acquire_many(MAX_CALLS)).await;
        self.shared.places.close();
        self.closing.send_replace(true);
        match idle {
            Ok(_) => Ok(()),
            Err(_) => Err(self.shared.late().into()),
        }
    }
}

impl Mirror for Redis {
    fn transact(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'_, Result<Vec<Committed>, TransactError>> {
        transact::transact(&self.shared, transaction).boxed()
    }

    fn load<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, LoadError>> {
        snapshot::load(&self.shared, key).boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Unreachable>> {
        snapshot::snapshot(&self.shared).boxed()
    }

    fn tail(&self, from: Position) -> BoxFuture<'_, Result<Tail, TailError>> {
        tail::tail(Arc::clone(&self.shared), from).boxed()
    }

    fn trim(&self, age_ms: u64, guard: Option<Guard>) -> BoxFuture<'_, Result<u64, TransactError>> {
        transact::trim(&self.shared, age_ms, guard).boxed()
    }

    fn take(&self, take: Take) -> BoxFuture<'_, Result<Taken, HoldError>> {
        holds::take(&self.shared, take).boxed()
    }

    fn keep(&self, places: Vec<Place>, ttl_ms: u64) -> BoxFuture<'_, Result<Vec<bool>, HoldError>> {
        holds::keep(&self.shared, places, ttl_ms).boxed()
    }

    fn give_back(&self, places: Vec<Place>) -> BoxFuture<'_, Result<(), HoldError>> {
        holds::give_back(&self.shared, places).boxed()
    }

    fn holders<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Vec<Held>, HoldError>> {
        holds::holders(&self.shared, pool).boxed()
    }

    fn now(&self) -> Millis {
        self.shared.time.now()
    }

    fn health(&self) -> Health {
        self.shared.state.borrow().health.clone()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), Unreachable>> {
        self.finish().boxed()
    }
}

/// Why a Redis is not even looked for. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A file that the URL names can't be read.
    #[error("cannot read {}, which `store.url` names: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        why: String,
    },
    /// A file that the URL names is not what it should be.
    #[error("{}, which `store.url` names, holds no {what} in PEM form", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The thread for its connections does not start.
    #[error("cannot start the store's thread: {0}; check the limits on processes and memory")]
    Thread(
        /// The system's words.
        String,
    ),
}

impl OpenError {
    fn not_pem(path: &Path, what: &'static str) -> Self {
        Self::NotPem {
            path: path.to_owned(),
            what,
        }
    }
}

#[cfg(test)]
mod tests;
