//! Follows the change log: what is committed anywhere reaches the owners here.
//!
//! A snapshot first, then the log from its position. After a gap, or when the
//! store has gone back, a snapshot again; when it does not answer, the same
//! position is tried again until it does. Each entry is told to the owner of
//! its record before the next is read, so the lag that is measured is the lag
//! that requests see.

mod directory;
mod following;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shared_proto::clock::Millis;
use shared_proto::lease::LeaseTable;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::key::{Key, Keyspace, Spelled};
use shared_proto::mirror::log::{LogEntry, Logged, Position, TailError};
use shared_proto::mirror::record::{Unreadable, Why};
use shared_proto::mirror::{Snapshot, Unreachable};
use tokio::time::timeout;

pub(super) use directory::Directory;
pub(crate) use following::Following;

use super::Node;
use super::settings::Told;
use crate::actor::owner::{Heard, Reading, Stored};
use crate::lease::desk;
use crate::timer::{Backoff, jittered};

/// A snapshot that takes longer is begun again.
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(30);
/// A tail that does not begin within this time is tried again.
const TAIL_DEADLINE: Duration = Duration::from_secs(2);
/// Waits between tries while the store is away.
const RETRY: Backoff = Backoff::between(Duration::from_millis(100), Duration::from_secs(2));

/// How a commit has to expect what can't be read.
pub(super) const fn expectation(why: &Why) -> Expected {
    match why {
        Why::Corrupt(_) => Expected::Corrupt,
        // Refused whatever it expects: only a newer version replaces it.
        Why::Newer { .. } => Expected::Absent,
    }
}

/// Why all is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The store was away at the start, or when a reload asked.
    Late,
    Gap,
    Rewound,
}

impl Cause {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Late => "late",
            Self::Gap => "gap",
            Self::Rewound => "rewound",
        }
    }
}

/// Why the reading stopped.
enum Ended {
    Failed(TailError),
    /// Somebody asked for a snapshot.
    Asked,
}

/// The one task of a node that reads the log.
pub(super) struct Follower {
    node: Arc<Node>,
    directory: Directory,
    keys: Keyspace,
    /// Where to read on; `Err` when all has to be read first.
    at: Result<Position, Cause>,
}

impl Follower {
    /// Follows from the snapshot that the owners began with, if they did.
    pub(super) fn new(
        node: Arc<Node>,
        directory: Directory,
        prefix: &str,
        from: Option<Position>,
    ) -> Self {
        Self {
            node,
            directory,
            keys: Keyspace::new(prefix),
            at: from.ok_or(Cause::Late),
        }
    }

    /// Follows for ever.
    pub(super) async fn run(mut self) {
        let mut failures = 0;
        loop {
            match self.follow(&mut failures).await {
                Ended::Asked => self.at = Err(Cause::Late),
                Ended::Failed(TailError::Gap) => self.at = Err(Cause::Gap),
                Ended::Failed(TailError::Rewound) => self.at = Err(Cause::Rewound),
                Ended::Failed(TailError::Unreachable(error)) => {
                    self.node.following.follows.store(false, Ordering::Relaxed);
                    tracing::debug!(%error, "the change log can't be read; it is tried again");
                    tokio::time::sleep(jittered(RETRY.after(failures))).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Reads on until something is the matter.
    async fn follow(&mut self, failures: &mut u32) -> Ended {
        let from = match self.at {
            Ok(position) => position,
            Err(cause) => match self.read_all(cause).await {
                Ok(position) => position,
                Err(error) => return Ended::Failed(error.into()),
            },
        };
        self.at = Ok(from);
        let tail = timeout(TAIL_DEADLINE, self.node.mirror.tail(from)).await;
        let mut tail = match tail.unwrap_or_else(|_| Err(late().into())) {
            Ok(tail) => tail,
            Err(error) => return Ended::Failed(error),
        };
        *failures = 0;
        if !self.node.following.follows.swap(true, Ordering::Relaxed) {
            self.directory.store_is_back();
            self.node.egress.store_is_back();
        }
        let node = Arc::clone(&self.node);
        loop {
            let next = tokio::select! {
                next = tail.next() => next,
                () = node.following.asked.notified() => return Ended::Asked,
            };
            match next {
                Ok(entry) => {
                    self.at = Ok(entry.position);
                    self.entry(entry).await;
                }
                Err(error) => return Ended::Failed(error),
            }
        }
    }

    async fn entry(&self, entry: LogEntry) {
        let is_news = match &entry.change {
            Logged::Put(record) if record.key == Key::Leader => {
                self.node.following.led(Some(record))
            }
            Logged::Deleted { key, .. } if *key == Key::Leader => self.node.following.led(None),
            // Told again and again, and mostly the same.
            Logged::Put(record) if matches!(record.key, Key::Egress(_)) => false,
            Logged::Put(_) | Logged::Deleted { .. } | Logged::Unreadable(_) => true,
        };
        let (key, stored, at) = match &entry.change {
            Logged::Put(record) => (
                Some(record.key.clone()),
                Stored::Record(record.clone()),
                Some(record.written_at),
            ),
            Logged::Deleted { key, revision, at } => (
                Some(key.clone()),
                Stored::Nothing(Some(*revision)),
                Some(*at),
            ),
            Logged::Unreadable(unreadable) => {
                tracing::warn!(%unreadable, "a stored record is left alone");
                let stored = Stored::Unreadable(expectation(&unreadable.why));
                (self.named(unreadable), stored, None)
            }
        };
        match key {
            Some(Key::Lease(_) | Key::Bound(_)) => {
                let heard = desk::Heard(entry.clone());
                // The desk ends with the node.
                self.node.leases.desk.send(heard).await.ok();
            }
            Some(Key::Settings) => {
                if let Stored::Record(record) = stored {
                    self.node.settings.tell(Told::Changed(record)).await;
                }
            }
            Some(Key::Egress(name)) => {
                let reading = None;
                self.node
                    .egress
                    .tell(&name, Heard { stored, reading })
                    .await;
            }
            Some(key) => {
                let reading = None;
                self.directory.tell(&key, Heard { stored, reading }).await;
            }
            None => {}
        }
        if let Some(at) = at {
            self.applied(at);
        }
        if is_news {
            self.node.changes.tell(entry);
        }
    }

    /// Measures from the commit to now, when requests see it.
    fn applied(&self, written_at: Millis) {
        let lag_ms = self.node.now().since(written_at);
        self.node.following.lag_ms.store(lag_ms, Ordering::Relaxed);
        let lag = Duration::from_millis(lag_ms).as_secs_f64();
        self.node.observer.metrics.cluster.lag.observe(lag);
    }

    /// Tells every owner what the store holds.
    async fn read_all(&self, cause: Cause) -> Result<Position, Unreachable> {
        let metrics = &self.node.observer.metrics.cluster;
        let reading = Reading {
            number: self
                .node
                .readings
                .fetch_add(1, Ordering::SeqCst)
                .saturating_add(1),
            rewound: cause == Cause::Rewound,
        };
        let asked_at = self.node.now();
        let snapshot = timeout(SNAPSHOT_DEADLINE, self.node.mirror.snapshot()).await;
        let snapshot = snapshot.unwrap_or_else(|_| Err(late()))?;
        let records = snapshot.records.len();
        tracing::info!(
            cause = cause.as_str(),
            records,
            "the shared state was read again"
        );
        metrics.read_again(cause.as_str());
        if cause == Cause::Rewound {
            self.node.slots.tell_again();
        }
        let position = snapshot.position;
        let leader = snapshot
            .records
            .iter()
            .find(|record| record.key == Key::Leader);
        self.node.following.led(leader);
        let table = LeaseTable::from_snapshot(&snapshot, &self.keys);
        let all = desk::HeardAll { table, asked_at };
        self.node.leases.desk.send(all).await.ok();
        let mut held = self.by_key(snapshot);
        let saved = match held.remove(&Key::Settings) {
            Some(Stored::Record(record)) => Told::Found(Some(record)),
            Some(Stored::Unreadable(_)) => Told::Unreadable,
            Some(Stored::Nothing(_)) | None => Told::Found(None),
        };
        self.node.settings.tell(saved).await;
        let seen = addresses(&mut held);
        self.node.egress.tell_all(seen, Some(reading)).await;
        let keys = self.directory.0.borrow().keys();
        for key in keys {
            let stored = held.remove(&key).unwrap_or(Stored::Nothing(None));
            let heard = Heard {
                stored,
                reading: Some(reading),
            };
            self.directory.tell(&key, heard).await;
        }
        Ok(position)
    }

    fn by_key(&self, snapshot: Snapshot) -> HashMap<Key, Stored> {
        let records = snapshot.records.into_iter();
        let mut held: HashMap<Key, Stored> = records
            .map(|record| (record.key.clone(), Stored::Record(record)))
            .collect();
        for unreadable in snapshot.unreadable {
            tracing::warn!(%unreadable, "a stored record is left alone");
            if let Some(key) = self.named(&unreadable) {
                held.insert(key, Stored::Unreadable(expectation(&unreadable.why)));
            }
        }
        held
    }

    fn named(&self, unreadable: &Unreadable) -> Option<Key> {
        match self.keys.parse(&unreadable.key) {
            Spelled::Key(key) => Some(key),
            Spelled::Malformed | Spelled::Elsewhere => None,
        }
    }
}

/// Takes out what nodes saw of addresses.
fn addresses(held: &mut HashMap<Key, Stored>) -> Vec<(Arc<str>, Stored)> {
    let taken = held.extract_if(|key, _| matches!(key, Key::Egress(_)));
    let named = taken.map(|(key, stored)| {
        if let Key::Egress(node) = key {
            Some((node, stored))
        } else {
            None
        }
    });
    named.flatten().collect()
}

fn late() -> Unreachable {
    Unreachable("no answer in time".into())
}
