//! Checks of quiet records: stored like any other, told to nobody.

use super::transact::all;
use super::{Backend, increment, put};
use crate::mirror::commit::{Commit, CommitError, Expected, Guard};
use crate::mirror::key::Key;
use crate::mirror::record::Revision;

fn pin(id: &str, expected: Expected, n: u64) -> Commit {
    Commit {
        key: Key::Pin(id.into()),
        ..put("", expected, n)
    }
}

/// A quiet record is read by its key and by nobody else, and is compared and
/// set like any other.
pub async fn quiet_records_are_only_loaded(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let head = increment(&*mirror, "a").await.position;
    let before = mirror.snapshot().await.unwrap();
    let of = async |id: &str| mirror.load(&Key::Pin(id.into())).await.unwrap();
    let one = mirror.commit(pin("p", Expected::Absent, 1)).await.unwrap();
    assert_eq!(one.position, head, "the log has not moved");
    assert_eq!(of("p").await.unwrap().revision, one.revision);
    for stale in [Expected::Absent, Expected::Revision(Revision::new(0))] {
        let outcome = mirror.commit(pin("p", stale, 9)).await;
        assert_eq!(
            outcome,
            Err(CommitError::Conflict {
                newest: of("p").await
            })
        );
    }
    let two = pin("p", Expected::Revision(one.revision), 2);
    let two = mirror.commit(two).await.unwrap();
    assert!(two.revision > one.revision);
    assert_eq!(mirror.snapshot().await.unwrap(), before);

    let fence = Guard {
        key: Key::Pin("p".into()),
        revision: two.revision,
    };
    let commits = vec![
        pin("q", Expected::Absent, 1),
        put("b", Expected::Absent, 1),
        pin("r", Expected::Absent, 1),
    ];
    let mixed = mirror.transact(all(vec![fence], commits)).await.unwrap();
    let mut tail = mirror.tail(head).await.unwrap();
    let told = tail.next().await.unwrap();
    assert_eq!(told.position, mixed[1].position, "only this is news");
    assert_eq!(
        (mixed[0].position, mixed[2].position),
        (head, told.position)
    );

    let gone = Commit::delete(Key::Pin("p".into()), two.revision, 1);
    assert!(mirror.commit(gone).await.unwrap().revision > two.revision);
    assert_eq!(of("p").await, None);
    let snapshot = mirror.snapshot().await.unwrap();
    assert_eq!(snapshot.position, told.position);
    assert!(snapshot.records.iter().all(|record| record.key.is_logged()));
    assert_eq!(snapshot.records.len(), 2);
}

/// A quiet record that expired a moment ago still takes part in
/// compare-and-set.
pub async fn expired_quiet_records_conflict(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let past = mirror.now();
    let old = pin("p", Expected::Absent, 1).expiring(past);
    let old = mirror.commit(old).await.unwrap().revision;
    let stored = mirror.load(&Key::Pin("p".into())).await.unwrap();
    assert_eq!(stored.as_ref().and_then(|r| r.expires_at), Some(past));
    let outcome = mirror.commit(pin("p", Expected::Absent, 2)).await;
    assert_eq!(outcome, Err(CommitError::Conflict { newest: stored }));
    let next = pin("p", Expected::Revision(old), 2);
    let next = mirror.commit(next).await.unwrap().revision;
    let stored = mirror.load(&Key::Pin("p".into())).await.unwrap().unwrap();
    assert_eq!((stored.revision, stored.expires_at), (next, None));
}
