//! Checks of stores that survive being closed.

use super::{Backend, count, increment, key, newest, put};
use crate::mirror::commit::{Commit, Expected};
use crate::mirror::key::Key;
use crate::mirror::log::TailError;

/// Everything that was acknowledged is there again, as it was.
pub async fn reopening_keeps_everything_acknowledged(backend: &dyn Backend) {
    let mirror = backend.open().await;
    for n in 0..40 {
        increment(&*mirror, ["a", "b", "c"][n % 3]).await;
    }
    let at = mirror.now().plus(60_000);
    mirror
        .commit(put("brief", Expected::Absent, 5).expiring(at))
        .await
        .unwrap();
    let later = Commit {
        key: Key::other("later-kind", "x").unwrap(),
        version: 9,
        ..put("a", Expected::Absent, 1)
    };
    mirror.commit(later).await.unwrap();
    let gone = increment(&*mirror, "gone").await;
    let gone = Commit::delete(key("gone"), gone.revision, 1);
    mirror.commit(gone).await.unwrap();
    let before = mirror.snapshot().await.unwrap();
    assert_eq!(before.records.len(), 5);
    mirror.close().await.unwrap();
    for _ in 0..2 {
        let mirror = backend.open().await;
        let after = mirror.snapshot().await.unwrap();
        assert_eq!(
            (&after.records, &after.unreadable),
            (&before.records, &before.unreadable)
        );
        mirror.close().await.unwrap();
    }
}

/// A quiet record is as durable as any other.
pub async fn reopening_keeps_quiet_records(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let quiet = Key::Pin("p".into());
    let commit = Commit {
        key: quiet.clone(),
        ..put("", Expected::Absent, 1)
    };
    let at = mirror.now().plus(60_000);
    mirror.commit(commit.expiring(at)).await.unwrap();
    let before = mirror.load(&quiet).await;
    assert!(matches!(before, Ok(Some(_))));
    mirror.close().await.unwrap();
    let mirror = backend.open().await;
    assert_eq!(mirror.load(&quiet).await, before);
    assert_eq!(mirror.snapshot().await.unwrap().records, []);
    mirror.close().await.unwrap();
}

/// A revision that was given, to a record or to its deletion, is not given
/// again by the store's next life.
pub async fn revisions_rise_over_reopening(backend: &dyn Backend) {
    let mut given = Vec::new();
    for _ in 0..3 {
        let mirror = backend.open().await;
        let made = mirror.commit(put("a", Expected::Absent, 1)).await.unwrap();
        for old in &given {
            let stale = mirror.commit(put("a", Expected::Revision(*old), 9)).await;
            assert!(newest(stale).is_some());
        }
        let gone = Commit::delete(key("a"), made.revision, 1);
        let gone = mirror.commit(gone).await.unwrap();
        given.extend([made.revision, gone.revision]);
        mirror.close().await.unwrap();
    }
    assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
}

/// A reader with a position of before either reads on or gets a gap; it is
/// never told that nothing happened.
pub async fn reopening_hides_no_change(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let start = mirror.snapshot().await.unwrap().position;
    let seen = increment(&*mirror, "a").await;
    mirror.close().await.unwrap();
    let mirror = backend.open().await;
    let next = increment(&*mirror, "a").await;
    assert_eq!(count(&*mirror, "a").await, Some(2));
    assert!(next.position > seen.position && seen.position > start);
    for (from, first) in [(start, seen.position), (seen.position, next.position)] {
        match mirror.tail(from).await {
            Ok(mut tail) => assert_eq!(tail.next().await.unwrap().position, first),
            Err(error) => assert_eq!(error, TailError::Gap),
        }
    }
    mirror.close().await.unwrap();
}
