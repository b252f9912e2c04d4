//! Session leases on this node. What a lease is and when it may change is
//! decided by [`shared_proto::lease`]; here it is driven against the store.
//!
//! | file | what |
//! |---|---|
//! | this one | lifecycle operations, with their one deadline |
//! | [`passage`] | the fence before each attempt, and the place it gives |
//! | [`desk`] | the actor that owns this node's table of all leases |
//! | [`keeper`] | one actor for each lease that requests are under way with here |
//! | [`flights`] | the pure part of a keeper: what is cut, and when |
//! | [`revoke`] | ends the leases of keys that are gone |

pub(crate) mod desk;
mod flights;
mod keeper;
pub(crate) mod passage;
pub(crate) mod revoke;

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor as _, Addr};
use arc_swap::ArcSwap;
use futures_util::future::join_all;
use sha2::{Digest as _, Sha256};
use shared_proto::clock::Millis;
use shared_proto::id::ConnectionId;
use shared_proto::lease::{
    self, Decision, LeaseCode, LeaseId, LeaseRules, LeaseTable, MAX_ROUNDS, Outcome, Planned, Seen,
    Wanted,
};
use shared_proto::mirror::commit::{Change, Commit, Committed, TransactError};
use shared_proto::mirror::hold::Pool;
use shared_proto::mirror::key::{Key, Keyspace};
use shared_proto::mirror::record::Record;
use shared_proto::mirror::{Health, LoadError, Mirror, Snapshot};
use tokio::time::timeout;

use crate::observe::{LeaseMetrics, Seldom};
use desk::{Desk, Own};

/// A whole operation, all its rounds together, takes no longer.
const DEADLINE: Duration = Duration::from_secs(1);

/// Between a failed question to the store and the next.
const PAUSE: Duration = Duration::from_millis(100);
/// A store that is away for less than this may be back in time, ms.
const JUST_AWAY_MS: u64 = 1_000;

/// A node's way to leases.
pub(crate) struct Leases {
    mirror: Arc<dyn Mirror>,
    table: Arc<ArcSwap<LeaseTable>>,
    pub(crate) desk: Addr<Desk>,
    metrics: LeaseMetrics,
    unreadable: Seldom,
    unconfirmed: Seldom,
}

/// Which operation; a label.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Acquire,
    Renew,
    Release,
    Status,
    /// The check of a request at selection.
    Select,
    Transition,
    Revoke,
}

impl Operation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Status => "status",
            Self::Select => "select",
            Self::Transition => "transition",
            Self::Revoke => "revoke",
        }
    }
}

impl Leases {
    /// Begins with what the store held at the start, if it answered.
    pub(crate) fn start(
        mirror: &Arc<dyn Mirror>,
        prefix: &str,
        snapshot: Option<&Snapshot>,
        rules: LeaseRules,
        metrics: LeaseMetrics,
    ) -> Self {
        let keys = Keyspace::new(prefix);
        let known = snapshot.map_or_else(LeaseTable::new, |snapshot| {
            LeaseTable::from_snapshot(snapshot, &keys)
        });
        let table = Arc::new(ArcSwap::from_pointee(known));
        let desk = Desk::new(
            Arc::clone(mirror),
            keys,
            Arc::clone(&table),
            rules,
            metrics.clone(),
        );
        Self {
            mirror: Arc::clone(mirror),
            table,
            desk: desk.start(),
            metrics,
            unreadable: Seldom::default(),
            unconfirmed: Seldom::default(),
        }
    }

    /// Every lease, as far as this node has heard.
    pub(crate) fn table(&self) -> Arc<LeaseTable> {
        self.table.load_full()
    }

    /// Whether a connection is bound by a lease, or may be.
    pub(crate) fn is_leased(&self, connection: &ConnectionId, now: Millis) -> bool {
        self.table.load().is_leased(connection, now)
    }

    /// Runs one operation to its end, within the deadline. What it changed is
    /// in this node's table before the answer.
    pub(crate) async fn drive(
        &self,
        operation: Operation,
        judge: impl Fn(&Seen<'_>, Millis) -> Decision,
    ) -> Outcome {
        let running = timeout(DEADLINE, self.rounds(judge));
        let late = |_| Err(LeaseCode::ServiceUnavailable.into());
        let outcome = running.await.unwrap_or_else(late);
        let result = match &outcome {
            Ok(_) => "ok",
            Err(refusal) => refusal.code().map_or("routing", LeaseCode::as_str),
        };
        self.metrics.operation(operation.as_str(), result);
        outcome
    }

    async fn rounds(&self, judge: impl Fn(&Seen<'_>, Millis) -> Decision) -> Outcome {
        let table = self.table();
        let mut seen = Seen::new(&table);
        for _ in 0..MAX_ROUNDS {
            match judge(&seen, self.mirror.now()) {
                Decision::Done(outcome) => return outcome,
                Decision::Load(wanted) => {
                    while let Err(code) = self.load(&wanted, &mut seen).await {
                        if !self.is_back_soon() {
                            return Err(code.into());
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Decision::Commit(planned) => {
                    let transaction = planned.transaction.clone();
                    match self.mirror.transact(transaction).await {
                        Ok(committed) => return self.made(planned, &committed).await,
                        Err(TransactError::Conflict { newest, at }) => seen.conflict(&newest, at),
                        Err(error) => {
                            self.uncertain(&error);
                            return Err(LeaseCode::ServiceUnavailable.into());
                        }
                    }
                }
            }
        }
        Err(LeaseCode::ServiceUnavailable.into())
    }

    /// Whether a failed question is worth another within the deadline: where the
    /// store is away for longer, operations fail at once.
    fn is_back_soon(&self) -> bool {
        match self.mirror.health() {
            Health::Up => true,
            Health::Degraded { since, .. } => self.mirror.now().since(since) < JUST_AWAY_MS,
        }
    }

    /// Reads what is wanted; counts are taken after the records are here.
    async fn load(&self, wanted: &Wanted, seen: &mut Seen<'_>) -> Result<(), LeaseCode> {
        let loading = wanted.records.iter().map(|key| self.mirror.load(key));
        for (key, loaded) in wanted.records.iter().zip(join_all(loading).await) {
            match loaded {
                Ok(record) => seen.record(key, record.as_ref()),
                Err(LoadError::Unreadable(unreadable)) => {
                    if self.unreadable.due(self.mirror.now()) {
                        // The key of a lease is made from its owner's token.
                        let named = matches!(key, Key::Bound(_)).then_some(&unreadable.key);
                        let (kind, why) = (key.kind(), &unreadable.why);
                        tracing::warn!(kind, key = ?named, %why, "a stored record of leases can't be read");
                    }
                    seen.unreadable(key);
                }
                Err(LoadError::Unreachable(_)) => return Err(LeaseCode::ServiceUnavailable),
            }
        }
        for connection in &wanted.in_flight {
            let pool = Pool::Leased(connection.clone());
            let holders = self.mirror.holders(&pool).await;
            let holders = holders.map_err(|_| LeaseCode::ServiceUnavailable)?;
            seen.in_flight(connection, holders.len());
        }
        Ok(())
    }

    /// A change that may have been made, or was without enough replicas.
    fn uncertain(&self, error: &TransactError) {
        if self.unconfirmed.due(self.mirror.now()) {
            let why = match error {
                TransactError::Replicas { .. } => "`settings.leases.minReplicas` is not met",
                TransactError::Conflict { .. }
                | TransactError::Unreachable(_)
                | TransactError::Refused(_)
                | TransactError::TooLarge { .. } => "the store gave no certain answer",
            };
            tracing::warn!(%error, "a lease operation is refused: {why}");
        }
    }

    async fn made(&self, planned: Planned, committed: &[Committed]) -> Outcome {
        let at = self.mirror.now();
        let commits = planned.transaction.commits.iter().zip(committed);
        let records = commits.filter_map(|(commit, done)| written(commit, *done, at));
        // An error means that the node ends.
        self.desk.send(Own(records.collect())).await.ok();
        planned.made(committed)
    }
}

/// The record that a commit left.
fn written(commit: &Commit, done: Committed, at: Millis) -> Option<Record> {
    let Change::Put { body, expires_at } = &commit.change else {
        return None;
    };
    Some(Record {
        key: commit.key.clone(),
        version: commit.version,
        revision: done.revision,
        written_at: at,
        expires_at: *expires_at,
        body: body.clone(),
    })
}

/// How operators name a lease: the same on every node, and it tells nothing of
/// the owner, not even the hash that it is stored by.
pub(crate) fn public_id(id: &LeaseId) -> String {
    use std::fmt::Write as _;
    let digest = Sha256::digest(format!("lease {id}"));
    let mut public = String::from("lease_");
    for byte in digest.iter().take(16) {
        // Writing to a String does not fail.
        write!(public, "{byte:02x}").ok();
    }
    public
}

/// What is told of a refusal in numbers and words alike.
pub(crate) const KIND: &str = lease::code::ERROR_TYPE;
