//! Checks of records: what is stored, and when it may be replaced.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{Backend, Count, count, count_in, increment, key, newest, put};
use crate::mirror::commit::{Change, Commit, CommitError, Expected, Refusal};
use crate::mirror::key::{Key, MAX_KEY_BYTES};
use crate::mirror::record::{BodyError, MAX_RECORD_BYTES};

/// A record is absent, there, another, and absent again.
pub async fn create_read_update_delete(backend: &dyn Backend) {
    let mirror = backend.open().await;
    assert_eq!(mirror.load(&key("a")).await, Ok(None));
    let one = mirror.commit(put("a", Expected::Absent, 1)).await.unwrap();
    let record = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(
        (
            record.key.clone(),
            record.version,
            record.revision,
            record.expires_at
        ),
        (key("a"), 1, one.revision, None)
    );
    assert_eq!(count_in(&record), 1);
    let two = put("a", Expected::Revision(one.revision), 2);
    let two = mirror.commit(two).await.unwrap();
    assert!(two.revision > one.revision);
    assert!(two.position > one.position);
    assert_eq!(count(&*mirror, "a").await, Some(2));
    assert_eq!(
        count(&*mirror, "b").await,
        None,
        "another id is another record"
    );
    let gone = Commit::delete(key("a"), two.revision, 1);
    let gone = mirror.commit(gone).await.unwrap();
    assert!(gone.revision > two.revision);
    assert_eq!(mirror.load(&key("a")).await, Ok(None));
    assert_eq!(mirror.snapshot().await.unwrap().records, []);
}

/// A commit that expects anything but what is stored changes nothing, and
/// learns what is stored.
pub async fn conflict_returns_the_newest(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let one = mirror.commit(put("a", Expected::Absent, 1)).await.unwrap();
    let two = put("a", Expected::Revision(one.revision), 2);
    let two = mirror.commit(two).await.unwrap();
    let stored = mirror.load(&key("a")).await.unwrap();
    let stale = [
        put("a", Expected::Absent, 9),
        put("a", Expected::Revision(one.revision), 9),
        put("a", Expected::Corrupt, 9),
        Commit::delete(key("a"), one.revision, 1),
    ];
    for commit in stale {
        assert_eq!(newest(mirror.commit(commit).await), stored);
    }
    assert_eq!(mirror.load(&key("a")).await.unwrap(), stored);
    mirror
        .commit(Commit::delete(key("a"), two.revision, 1))
        .await
        .unwrap();
    let gone = [
        put("a", Expected::Revision(two.revision), 9),
        put("a", Expected::Corrupt, 9),
        Commit::delete(key("a"), two.revision, 1),
    ];
    for commit in gone {
        assert_eq!(newest(mirror.commit(commit).await), None);
    }
    let nothing = Commit {
        expected: Expected::Absent,
        ..Commit::delete(key("a"), two.revision, 1)
    };
    assert_eq!(
        mirror.commit(nothing).await,
        Err(Refusal::NothingToDelete.into())
    );
    assert_eq!(mirror.load(&key("a")).await, Ok(None));
}

/// Each of many events that meet on one record counts exactly once.
pub async fn concurrent_increments_all_count(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let each = async |_| {
        let mut revisions = Vec::new();
        for _ in 0..10 {
            revisions.push(increment(&*mirror, "a").await.revision);
        }
        revisions
    };
    let revisions = join_all((0..16).map(each)).await.concat();
    assert_eq!(count(&*mirror, "a").await, Some(160));
    let distinct: BTreeSet<_> = revisions.iter().collect();
    assert_eq!(distinct.len(), 160, "no revision is given twice");
}

/// Expiry is stored and told everywhere, and enforced nowhere.
pub async fn expiry_is_carried(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let start = mirror.snapshot().await.unwrap().position;
    // Long enough that no store has dropped it before the check has looked.
    let at = mirror.now().plus(60_000);
    let done = mirror
        .commit(put("a", Expected::Absent, 1).expiring(at))
        .await
        .unwrap();
    let record = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.expires_at, Some(at));
    assert!(!record.is_expired(at.minus(1)));
    assert!(record.is_expired(at));
    assert_eq!(mirror.snapshot().await.unwrap().records, [record.clone()]);
    let mut tail = mirror.tail(start).await.unwrap();
    let told = tail.next().await.unwrap().change;
    assert_eq!(told, crate::mirror::log::Logged::Put(record));
    let forever = put("a", Expected::Revision(done.revision), 2);
    mirror.commit(forever).await.unwrap();
    let record = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.expires_at, None, "each commit states its own");
}

/// A kind that this version has no word for is stored like any other.
pub async fn unknown_kinds_are_carried(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let start = mirror.snapshot().await.unwrap().position;
    let later = Key::other("later-kind", "acme 1/é").unwrap();
    let body = Bytes::from_static(b"\x81\xa1x\x93\x01\xc0\xc4\x02\x00\xff");
    let commit = Commit {
        key: later.clone(),
        expected: Expected::Absent,
        version: 7,
        change: Change::Put {
            body: body.clone(),
            expires_at: None,
        },
    };
    let done = mirror.commit(commit).await.unwrap();
    let record = mirror.load(&later).await.unwrap().unwrap();
    assert_eq!(
        (&record.key, record.version, &record.body),
        (&later, 7, &body)
    );
    assert!(matches!(
        record.decode::<Count>(),
        Err(BodyError::OtherKind(_))
    ));
    let snapshot = mirror.snapshot().await.unwrap();
    assert_eq!(
        (snapshot.records, snapshot.unreadable),
        (vec![record.clone()], vec![])
    );
    let told = mirror.tail(start).await.unwrap().next().await.unwrap();
    assert_eq!(told.position, done.position);
    assert_eq!(told.change, crate::mirror::log::Logged::Put(record));
}

/// What a newer version of the program wrote is neither replaced nor deleted
/// by an older one.
pub async fn newer_versions_are_kept(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let newer = Commit {
        version: 2,
        ..put("a", Expected::Absent, 1)
    };
    let done = mirror.commit(newer).await.unwrap();
    let stored = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(
        stored.decode::<Count>(),
        Err(BodyError::Newer { found: 2, known: 1 })
    );
    let refused = Err(Refusal::OlderVersion {
        stored: 2,
        offered: 1,
    }
    .into());
    let older = put("a", Expected::Revision(done.revision), 9);
    assert_eq!(mirror.commit(older).await, refused);
    let older = Commit::delete(key("a"), done.revision, 1);
    assert_eq!(mirror.commit(older).await, refused);
    assert_eq!(
        newest(mirror.commit(put("a", Expected::Absent, 9)).await),
        Some(stored.clone())
    );
    assert_eq!(mirror.load(&key("a")).await, Ok(Some(stored)));
    let newer = Commit {
        version: 3,
        ..put("a", Expected::Revision(done.revision), 2)
    };
    let done = mirror.commit(newer).await.unwrap();
    let newer = Commit::delete(key("a"), done.revision, 3);
    mirror.commit(newer).await.unwrap();
}

/// A record up to the limit is stored; one beyond is refused and leaves no trace.
pub async fn big_records_are_refused(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let sized = |bytes: usize| Commit {
        change: Change::Put {
            body: vec![0x80; bytes].into(),
            expires_at: None,
        },
        ..put("a", Expected::Absent, 1)
    };
    for bytes in [MAX_RECORD_BYTES, MAX_RECORD_BYTES + 1, 2 * MAX_RECORD_BYTES] {
        let outcome = mirror.commit(sized(bytes)).await;
        assert!(
            matches!(outcome, Err(CommitError::TooLarge { .. })),
            "{bytes}"
        );
    }
    assert_eq!(mirror.load(&key("a")).await, Ok(None));
    mirror.commit(sized(MAX_RECORD_BYTES - 512)).await.unwrap();
    let record = mirror.load(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.body.len(), MAX_RECORD_BYTES - 512);
}

/// A record that is made anew does not meet a revision of its former life.
pub async fn revisions_never_repeat(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let mut given = Vec::new();
    for _ in 0..5 {
        let made = mirror.commit(put("a", Expected::Absent, 1)).await.unwrap();
        for old in &given {
            let stale = mirror.commit(put("a", Expected::Revision(*old), 9)).await;
            assert!(newest(stale).is_some());
        }
        let gone = Commit::delete(key("a"), made.revision, 1);
        let gone = mirror.commit(gone).await.unwrap();
        given.extend([made.revision, gone.revision]);
    }
    assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
}

/// Any text is an id, up to a length.
pub async fn any_id_is_a_key(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let ids = [
        "", "a", "a:b", "a%3Ab", "{a}", "}", "*?[a]", "\0\r\n", "é😀", " ", "A", "%",
    ];
    for (id, n) in ids.iter().zip(1..) {
        mirror.commit(put(id, Expected::Absent, n)).await.unwrap();
    }
    for (id, n) in ids.iter().zip(1..) {
        assert_eq!(count(&*mirror, id).await, Some(n), "{id:?}");
    }
    let snapshot = mirror.snapshot().await.unwrap();
    let stored: BTreeSet<_> = snapshot.records.iter().map(|r| r.key.clone()).collect();
    assert_eq!(stored, ids.iter().map(|id| key(id)).collect());
    assert_eq!(snapshot.unreadable, []);
    let long = "x".repeat(MAX_KEY_BYTES);
    let outcome = mirror.commit(put(&long, Expected::Absent, 1)).await;
    assert!(matches!(
        outcome,
        Err(CommitError::Refused(Refusal::KeyTooLong { .. }))
    ));
    assert_eq!(count(&*mirror, &long).await, None);
}

/// The store's time rises, and is what records are stamped with.
pub async fn time_does_not_go_back(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let mut latest = mirror.now();
    for _ in 0..10 {
        increment(&*mirror, "a").await;
        let record = mirror.load(&key("a")).await.unwrap().unwrap();
        assert!(record.written_at >= latest);
        latest = mirror.now();
        assert!(record.written_at <= latest);
    }
}
