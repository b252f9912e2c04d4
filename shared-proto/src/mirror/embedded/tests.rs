//! The embedded store: the conformance suite on both backends, and what is its
//! own: limits, failures of the disk, what a reader sees of them.

mod trouble;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use redb::{Database, TableDefinition};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};

use super::disk::{Contents, Disk};
use super::holds::HoldJob;
use super::ring::Ring;
use super::table::{KEPT_EXPIRED_MS, Table};
use super::writer::{RETRY_MS, StoreClock, Writer};
use super::{Embedded, Limits};
use crate::clock::{Clock, ManualClock, Millis, SystemClock};
use crate::mirror::commit::{Change, Commit, CommitError, Expected, Guard, Refusal, Transaction};
use crate::mirror::conformance::Backend;
use crate::mirror::hold::board::Board;
use crate::mirror::hold::{Holder, Place, Pool, Take, Taken};
use crate::mirror::key::{BREAKER, Key, Keyspace};
use crate::mirror::log::TailError;
use crate::mirror::record::{Body, Revision, Why};
use crate::mirror::{Health, LoadError, Mirror};

const LIMITS: Limits = Limits {
    log_entries: 300,
    log_bytes: 8 << 20,
    stored_bytes: 8 << 20,
};

struct Memory;

impl Backend for Memory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Mirror>> {
        let store = Embedded::memory_within("test", Arc::new(SystemClock), LIMITS).unwrap();
        async move { Arc::new(store) as Arc<dyn Mirror> }.boxed()
    }

    fn log_entries(&self) -> u64 {
        300
    }
}

struct OnDisk(TempDir);

impl OnDisk {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }
}

impl Backend for OnDisk {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Mirror>> {
        let dir = self.0.path().join("not/yet/there");
        let store = Embedded::disk_within(&dir, "test", Arc::new(SystemClock), LIMITS).unwrap();
        async move { Arc::new(store) as Arc<dyn Mirror> }.boxed()
    }

    fn log_entries(&self) -> u64 {
        300
    }
}

mod memory {
    crate::mirror_conformance!(super::Memory);
}

mod disk {
    crate::mirror_conformance!(super::OnDisk::new());
    crate::mirror_reopening!(super::OnDisk::new());
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct State {
    n: u64,
}

impl Body for State {
    const KIND: &'static str = BREAKER;
    const VERSION: u16 = 1;
}

fn key(id: &str) -> Key {
    Key::Breaker(id.into())
}

fn put(id: &str, expected: Expected, n: u64) -> Commit {
    Commit::put(key(id), expected, &State { n }).unwrap()
}

fn clock() -> ManualClock {
    ManualClock::at(Millis::from_epoch_ms(1_000_000))
}

/// Stores bytes behind the store's back.
fn plant(dir: &TempDir, rows: &[(&str, &[u8])]) {
    let database = Database::open(dir.path().join("mirror.redb")).unwrap();
    let records: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("records");
    let transaction = database.begin_write().unwrap();
    for (key, stored) in rows {
        transaction
            .open_table(records)
            .unwrap()
            .insert(key, stored)
            .unwrap();
    }
    transaction.commit().unwrap();
}

#[tokio::test]
async fn one_unreadable_record_hides_no_other() {
    let dir = TempDir::new().unwrap();
    let store = Embedded::disk(dir.path(), "p", Arc::new(clock())).unwrap();
    store
        .commit(put("good", Expected::Absent, 1))
        .await
        .unwrap();
    store.close().await.unwrap();
    let newer = b"\x81\xa6format\x02".as_slice();
    plant(
        &dir,
        &[
            ("{p}:breaker:bad", b"\xdf\xff\xff\xff\xff"),
            ("{p}:breaker:new", newer),
            ("{p}:breaker:%41", b"\x80"),
            ("{q}:breaker:good", b"not ours"),
        ],
    );
    let store = Embedded::disk(dir.path(), "p", Arc::new(clock())).unwrap();
    let snapshot = store.snapshot().await.unwrap();
    let readable: Vec<_> = snapshot.records.iter().map(|r| r.key.clone()).collect();
    assert_eq!(readable, [key("good")]);
    let unreadable: Vec<_> = snapshot.unreadable.iter().map(|u| &*u.key).collect();
    assert_eq!(
        unreadable,
        ["{p}:breaker:%41", "{p}:breaker:bad", "{p}:breaker:new"]
    );
    assert_eq!(snapshot.unreadable[2].why, Why::Newer { found: 2 });

    for (id, replaceable) in [("bad", true), ("new", false)] {
        let loaded = store.load(&key(id)).await;
        let Err(LoadError::Unreadable(what)) = loaded else {
            panic!("{loaded:?}");
        };
        assert_eq!(&*what.key, format!("{{p}}:breaker:{id}"));
        for blind in [Expected::Absent, Expected::Revision(Revision::new(1))] {
            let outcome = store.commit(put(id, blind, 9)).await;
            assert_eq!(outcome, Err(Refusal::Unreadable(what.clone()).into()));
        }
        let outcome = store.commit(put(id, Expected::Corrupt, 2)).await;
        assert_eq!(outcome.is_ok(), replaceable, "{id}: {outcome:?}");
    }
    store.close().await.unwrap();

    let elsewhere = Embedded::disk(dir.path(), "q", Arc::new(clock())).unwrap();
    let snapshot = elsewhere.snapshot().await.unwrap();
    assert_eq!(snapshot.records, []);
    assert_eq!(&*snapshot.unreadable[0].key, "{q}:breaker:good");
    elsewhere.close().await.unwrap();
    let store = Embedded::disk(dir.path(), "p", Arc::new(clock())).unwrap();
    let snapshot = store.snapshot().await.unwrap();
    assert_eq!(snapshot.records.len(), 2, "good, and bad replaced");
    assert_eq!(snapshot.unreadable.len(), 2, "the newer one is kept");
}

#[tokio::test]
async fn time_stands_still_while_the_clock_goes_back() {
    struct Wayward(std::sync::atomic::AtomicU64);
    impl Clock for Wayward {
        fn now(&self) -> Millis {
            let n = self.0.fetch_sub(10, std::sync::atomic::Ordering::SeqCst);
            Millis::from_epoch_ms(n)
        }
    }
    let store = Embedded::memory("p", Arc::new(Wayward(500.into()))).unwrap();
    assert_eq!(store.now(), Millis::from_epoch_ms(500));
    assert_eq!(store.now(), Millis::from_epoch_ms(500));
    store.commit(put("a", Expected::Absent, 1)).await.unwrap();
    let record = store.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.written_at, Millis::from_epoch_ms(500));
}

#[tokio::test]
async fn a_full_store_refuses_more_and_takes_less() {
    let limits = Limits {
        stored_bytes: 2_000,
        ..LIMITS
    };
    let store = Embedded::memory_within("p", Arc::new(clock()), limits).unwrap();
    let sized = |id: &str, expected, bytes: usize| Commit {
        change: Change::Put {
            body: vec![0x80; bytes].into(),
            expires_at: None,
        },
        ..put(id, expected, 0)
    };
    let one = store
        .commit(sized("a", Expected::Absent, 1_200))
        .await
        .unwrap();
    let full = Err(CommitError::Refused(Refusal::Full { limit: 2_000 }));
    assert_eq!(
        store.commit(sized("b", Expected::Absent, 1_200)).await,
        full
    );
    let smaller = sized("a", Expected::Revision(one.revision), 100);
    let smaller = store.commit(smaller).await.unwrap();
    let two = store
        .commit(sized("b", Expected::Absent, 1_200))
        .await
        .unwrap();
    let larger = sized("a", Expected::Revision(smaller.revision), 1_200);
    assert_eq!(store.commit(larger.clone()).await, full);
    store
        .commit(Commit::delete(key("b"), two.revision, 1))
        .await
        .unwrap();
    store.commit(larger).await.unwrap();
}

#[tokio::test]
async fn commits_that_queue_see_each_other() {
    let store = Embedded::memory("p", Arc::new(clock())).unwrap();
    // All are asked for before the first is answered, and more than the queue holds.
    let all = (0..1_000).map(|n| store.commit(put("a", Expected::Absent, n)));
    let outcomes = join_all(all).await;
    assert_eq!(outcomes.iter().filter(|o| o.is_ok()).count(), 1);
    let stored = store.load(&key("a")).await.unwrap();
    for outcome in outcomes.into_iter().filter_map(Result::err) {
        assert_eq!(
            outcome,
            CommitError::Conflict {
                newest: stored.clone()
            }
        );
    }
}

#[tokio::test]
async fn a_dropped_handle_still_finishes_what_it_accepted() {
    let dir = TempDir::new().unwrap();
    let store = Embedded::disk(dir.path(), "p", Arc::new(clock())).unwrap();
    let start = store.snapshot().await.unwrap().position;
    let mut tail = store.tail(start).await.unwrap();
    store.commit(put("a", Expected::Absent, 1)).await.unwrap();
    drop(store);
    assert_eq!(
        tail.next()
            .await
            .map_err(|why| matches!(why, TailError::Unreachable(_)))
            .err(),
        Some(true),
        "a reader does not keep the store open"
    );
}

#[tokio::test]
async fn replicas_are_refused_up_front() {
    let store = Embedded::memory("p", Arc::new(clock())).unwrap();
    let transaction = Transaction {
        replicas: 2,
        ..put("a", Expected::Absent, 1).into()
    };
    let refused = Err(Refusal::NoReplicas { wanted: 2 }.into());
    assert_eq!(store.transact(transaction).await, refused);
    assert_eq!(store.load(&key("a")).await, Ok(None));
}

fn pin(id: &str, ends: Millis) -> Commit {
    Commit {
        key: Key::Pin(id.into()),
        ..put("", Expected::Absent, 1)
    }
    .expiring(ends)
}

/// The rows of the closed store, by spelled key.
fn rows(dir: &TempDir) -> Vec<String> {
    let (disk, contents) = Disk::open(dir.path()).unwrap();
    disk.close().unwrap();
    contents.rows.into_iter().map(|(key, _)| key).collect()
}

#[tokio::test]
async fn expired_quiet_records_do_not_pile_up() {
    let dir = TempDir::new().unwrap();
    let clock = clock();
    let store = Embedded::disk(dir.path(), "p", Arc::new(clock.clone())).unwrap();
    // Each lives for a moment, and a minute longer in the store.
    for n in 0..200_u32 {
        let ends = clock.now().plus(1);
        store.commit(pin(&n.to_string(), ends)).await.unwrap();
        clock.advance(KEPT_EXPIRED_MS / 20);
    }
    let gone = store.load(&Key::Pin("100".into())).await;
    assert_eq!(gone, Ok(None));
    assert!(store.load(&Key::Pin("199".into())).await.unwrap().is_some());
    store.close().await.unwrap();
    let left = rows(&dir).len();
    assert!((20..=22).contains(&left), "{left}");

    clock.advance(2 * KEPT_EXPIRED_MS);
    let store = Embedded::disk(dir.path(), "p", Arc::new(clock)).unwrap();
    assert_eq!(store.load(&Key::Pin("199".into())).await, Ok(None));
    store.close().await.unwrap();
    assert_eq!(rows(&dir), [""; 0], "swept at the start");
}

#[tokio::test]
async fn expired_quiet_records_make_room_in_a_full_store() {
    let clock = clock();
    let limits = Limits {
        stored_bytes: 2_000,
        ..LIMITS
    };
    let store = Embedded::memory_within("p", Arc::new(clock.clone()), limits).unwrap();
    let ends = clock.now().plus(1);
    let mut n = 0_u32;
    let full = loop {
        if let Err(why) = store.commit(pin(&n.to_string(), ends)).await {
            break why;
        }
        n += 1;
    };
    assert_eq!(full, Refusal::Full { limit: 2_000 }.into());
    clock.advance(KEPT_EXPIRED_MS + 1);
    let late = pin(&n.to_string(), Millis::MAX);
    store.commit(late).await.unwrap();
}
