//! Checks of the change log: every change, in order, once, or a gap.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::{join, join_all};

use super::{Backend, count_in, increment, key, put};
use crate::mirror::commit::{Commit, CommitError, Expected, TransactError};
use crate::mirror::hold::{HoldError, Holder, Place, Pool, Take};
use crate::mirror::key::Key;
use crate::mirror::log::{LogEntry, Logged, Position, TailError};
use crate::mirror::record::Revision;
use crate::mirror::{Health, LoadError, Mirror};

/// The next `n` entries after a position.
async fn entries(mirror: &dyn Mirror, from: Position, n: usize) -> Vec<LogEntry> {
    let mut tail = mirror.tail(from).await.unwrap();
    let mut read = Vec::new();
    for _ in 0..n {
        read.push(tail.next().await.unwrap());
    }
    read
}

fn subject(change: &Logged) -> (Key, Revision) {
    match change {
        Logged::Put(record) => (record.key.clone(), record.revision),
        Logged::Deleted { key, revision, .. } => (key.clone(), *revision),
        Logged::Unreadable(other) => panic!("{other}"),
    }
}

/// Positions order changes as they took effect, and the log tells all of them.
pub async fn log_order_is_commit_order(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let start = mirror.snapshot().await.unwrap().position;
    let ids = ["a", "b", "c", "d"];
    let each = async |n: usize| {
        let mut done = Vec::new();
        for step in 0..8 {
            let id = ids[(n + step) % ids.len()];
            let committed = increment(&*mirror, id).await;
            done.push((committed.position, (key(id), committed.revision)));
        }
        done
    };
    let mut committed = join_all((0..8).map(each)).await.concat();
    committed.sort();
    let told = entries(&*mirror, start, committed.len()).await;
    let told: Vec<_> = told
        .iter()
        .map(|e| (e.position, subject(&e.change)))
        .collect();
    assert_eq!(told, committed);
    assert!(told.is_sorted_by(|a, b| a.0 < b.0));
    for id in ids {
        let of_key: Vec<_> = told.iter().filter(|(_, (k, _))| *k == key(id)).collect();
        assert!(of_key.is_sorted_by(|a, b| a.1.1 < b.1.1), "{id}");
    }
    assert_eq!(
        mirror.snapshot().await.unwrap().position,
        told.last().unwrap().0
    );
}

/// From each place in the log, the rest follows.
pub async fn tail_reads_on_from_any_position(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let mut places = vec![mirror.snapshot().await.unwrap().position];
    for _ in 0..20 {
        places.push(increment(&*mirror, "a").await.position);
    }
    for (n, from) in places.iter().enumerate() {
        let rest = places.get(n + 1..).unwrap_or_default();
        let told = entries(&*mirror, *from, rest.len()).await;
        let told: Vec<_> = told.iter().map(|entry| entry.position).collect();
        assert_eq!(told, rest);
    }
}

/// A reader at the end is woken by the next change.
pub async fn tail_waits_for_news(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let start = mirror.snapshot().await.unwrap().position;
    let mut tail = mirror.tail(start).await.unwrap();
    for _ in 0..5 {
        // The reader is polled first, and so waits already.
        let (told, done) = join(tail.next(), increment(&*mirror, "a")).await;
        assert_eq!(told.unwrap().position, done.position);
    }
}

/// Who falls behind further than the log reaches is told so, and never
/// silently misses an entry.
pub async fn gap_after_trim(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let start = mirror.snapshot().await.unwrap().position;
    let mut slow = mirror.tail(start).await.unwrap();
    let mut last = start;
    for _ in 0..=backend.log_entries() {
        last = increment(&*mirror, "a").await.position;
    }
    assert_eq!(slow.next().await, Err(TailError::Gap));
    assert_eq!(slow.next().await, Err(TailError::Gap), "and it stays so");
    let late = mirror.tail(start).await;
    assert_eq!(late.err(), Some(TailError::Gap));
    let snapshot = mirror.snapshot().await.unwrap();
    assert_eq!(snapshot.position, last);
    assert_eq!(count_in(&snapshot.records[0]), backend.log_entries() + 1);
    let next = increment(&*mirror, "a").await;
    let told = entries(&*mirror, snapshot.position, 1).await;
    assert_eq!(told[0].position, next.position);
}

/// What a reader makes of a snapshot and the log after it.
#[derive(Debug, PartialEq)]
struct View {
    at: Position,
    counts: BTreeMap<Key, (Revision, u64)>,
}

impl View {
    async fn of(mirror: &dyn Mirror) -> Self {
        let snapshot = mirror.snapshot().await.unwrap();
        let counts = snapshot.records.iter();
        Self {
            at: snapshot.position,
            counts: counts
                .map(|r| (r.key.clone(), (r.revision, count_in(r))))
                .collect(),
        }
    }

    /// Takes in an entry that has to be news.
    fn apply(&mut self, entry: &LogEntry) {
        assert!(entry.position > self.at, "told twice or out of order");
        self.at = entry.position;
        let (key, revision) = subject(&entry.change);
        if let Some((known, _)) = self.counts.get(&key) {
            assert!(revision > *known, "the snapshot had it already");
        }
        match &entry.change {
            Logged::Put(record) => {
                let before = self.counts.get(&key).map_or(0, |(_, count)| *count);
                assert_eq!(count_in(record), before + 1, "a change between is missing");
                self.counts.insert(key, (revision, count_in(record)));
            }
            Logged::Deleted { .. } => {
                assert!(self.counts.remove(&key).is_some());
            }
            Logged::Unreadable(other) => panic!("{other}"),
        }
    }
}

/// Adds one to several records in turn, now and then deletes one, and at last
/// makes `end`.
async fn churn(mirror: &dyn Mirror) {
    for n in 0..120 {
        let id = ["a", "b", "c", "d", "e"][n % 5];
        let done = increment(mirror, id).await;
        if n % 13 == 0 {
            let gone = Commit::delete(key(id), done.revision, 1);
            mirror.commit(gone).await.unwrap();
        }
    }
    mirror
        .commit(put("end", Expected::Absent, 1))
        .await
        .unwrap();
}

/// Readers that join at any moment end with the same state as the store, and
/// each change reaches them once.
pub async fn snapshot_and_tail_see_every_change_once(backend: &dyn Backend) {
    let mirror = backend.open().await;
    // Each joins after having seen so many changes.
    let reader = async |after: u32| {
        let start = mirror.snapshot().await.unwrap().position;
        let mut tail = mirror.tail(start).await.unwrap();
        for _ in 0..after {
            tail.next().await.unwrap();
        }
        let mut view = View::of(&*mirror).await;
        let mut tail = mirror.tail(view.at).await.unwrap();
        while !view.counts.contains_key(&key("end")) {
            view.apply(&tail.next().await.unwrap());
        }
        view
    };
    let readers = join_all([0, 1, 7, 30, 77].map(reader));
    let (views, ()) = join(readers, churn(&*mirror)).await;
    let stored = View::of(&*mirror).await;
    for view in views {
        assert_eq!(view, stored);
    }
}

/// After closing, every call says that the store is unreachable.
pub async fn a_closed_store_is_unreachable(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let done = increment(&*mirror, "a").await;
    assert_eq!(mirror.health(), Health::Up);
    let mut tail = mirror.tail(done.position).await.unwrap();
    let (ended, closed) = join(tail.next(), mirror.close()).await;
    assert!(matches!(ended, Err(TailError::Unreachable(_))), "{ended:?}");
    assert_eq!(closed, Ok(()));
    let commit = mirror.commit(put("a", Expected::Absent, 1)).await;
    assert!(matches!(commit, Err(CommitError::Unreachable(_))));
    let load = mirror.load(&key("a")).await;
    assert!(matches!(load, Err(LoadError::Unreachable(_))));
    assert!(mirror.snapshot().await.is_err());
    let transacted = mirror.transact(put("b", Expected::Absent, 1).into()).await;
    assert!(matches!(transacted, Err(TransactError::Unreachable(_))));
    let take = Take {
        pool: Pool::Nodes,
        holder: Holder("n".into()),
        limit: None,
        ttl_ms: 60_000,
        patience_ms: None,
        guard: None,
        note: Bytes::new(),
    };
    let place = Place {
        pool: Pool::Nodes,
        holder: Holder("n".into()),
    };
    let held = [
        mirror.take(take).await.map(drop),
        mirror.keep(vec![place.clone()], 1).await.map(drop),
        mirror.give_back(vec![place]).await,
        mirror.holders(&Pool::Nodes).await.map(drop),
    ];
    for outcome in held {
        assert!(matches!(outcome, Err(HoldError::Unreachable(_))));
    }
    assert!(matches!(
        mirror.tail(done.position).await,
        Err(TailError::Unreachable(_))
    ));
    assert!(matches!(mirror.health(), Health::Degraded { .. }));
    assert!(mirror.close().await.is_err());
}
