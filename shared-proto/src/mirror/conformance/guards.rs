//! Checks of guards: what fences a transaction, and what it is told.

use super::transact::{all, conflict, guard, stored};
use super::{Backend, count, increment, key, put, until};
use crate::mirror::commit::{Commit, Expected};

/// A guard holds for its record's revision and no other.
pub async fn guards_fence(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let first = increment(&*mirror, "lease").await.revision;
    let second = increment(&*mirror, "lease").await.revision;
    let other = increment(&*mirror, "other").await.revision;
    let right = guard("lease", second);
    let outcome = mirror.transact(all(vec![right.clone()], vec![])).await;
    assert_eq!(outcome, Ok(vec![]), "to ask only is fine");
    let both = vec![right.clone(), guard("other", other)];
    let write = |n| vec![put("a", Expected::Absent, n)];
    mirror.transact(all(both, write(1))).await.unwrap();
    assert_eq!(count(&*mirror, "a").await, Some(1));
    let a = stored(&*mirror, "a").await.unwrap().revision;
    let before = mirror.snapshot().await.unwrap();
    let wrong = [
        vec![guard("lease", first)],
        vec![guard("absent", second)],
        vec![right.clone(), guard("other", second)],
        vec![guard("other", second), right.clone()],
    ];
    for guards in wrong {
        let write = vec![put("a", Expected::Revision(a), 9)];
        conflict(mirror.transact(all(guards.clone(), write)).await);
        conflict(mirror.transact(all(guards, vec![])).await);
    }
    assert_eq!(mirror.snapshot().await.unwrap(), before);

    // A record may be guarded and changed: renewed only while it has not expired.
    let renew = vec![put("lease", Expected::Revision(second), 3)];
    let third = mirror
        .transact(all(vec![right.clone()], renew))
        .await
        .unwrap();
    conflict(mirror.transact(all(vec![right], vec![])).await);
    let gone = Commit::delete(key("lease"), third[0].revision, 1);
    mirror.commit(gone).await.unwrap();
    let late = vec![guard("lease", third[0].revision)];
    conflict(mirror.transact(all(late, vec![])).await);
}

/// A guard on an expired record does not hold, by the store's clock, whatever
/// the caller thinks.
pub async fn expired_guards_do_not_hold(backend: &dyn Backend) {
    let mirror = backend.open().await;
    // The store's clock is at least there already.
    let past = mirror.now();
    let brief = put("brief", Expected::Absent, 1).expiring(past);
    let brief = mirror.commit(brief).await.unwrap().revision;
    let write = || vec![put("a", Expected::Absent, 1)];
    let outcome = mirror
        .transact(all(vec![guard("brief", brief)], write()))
        .await;
    let (newest, at) = conflict(outcome);
    assert!(at >= past);
    assert_eq!(
        newest,
        [
            (key("brief"), stored(&*mirror, "brief").await),
            (key("a"), None)
        ],
        "it is stored all the same"
    );
    let long = put("brief", Expected::Revision(brief), 2).expiring(mirror.now().plus(600_000));
    let long = mirror.commit(long).await.unwrap().revision;
    let outcome = mirror
        .transact(all(vec![guard("brief", long)], write()))
        .await;
    assert_eq!(outcome.map(|done| done.len()), Ok(1));

    // One that holds at first, perhaps, ends by itself, and not before its time.
    let end = mirror.now().plus(80);
    let short = put("brief", Expected::Revision(long), 3).expiring(end);
    let short = mirror.commit(short).await.unwrap().revision;
    let (newest, at) = until(&*mirror, "the guard's end", async || {
        let asked = all(vec![guard("brief", short)], vec![]);
        let outcome = mirror.transact(asked).await;
        outcome.is_err().then(|| conflict(outcome))
    })
    .await;
    assert!(at >= end, "{at:?} is before {end:?}");
    assert_eq!(newest.len(), 1);
}

/// A conflict tells of all that the transaction names, in order, expired or
/// not, also of what is as expected.
pub async fn a_conflict_lists_all_that_is_named(backend: &dyn Backend) {
    let mirror = backend.open().await;
    for id in ["g", "x", "a", "b"] {
        increment(&*mirror, id).await;
    }
    let old = put("old", Expected::Absent, 1).expiring(mirror.now());
    mirror.commit(old).await.unwrap();
    let of = async |id| stored(&*mirror, id).await.unwrap();
    let guards = vec![
        guard("x", of("x").await.revision),
        guard("none", of("x").await.revision),
        guard("g", of("g").await.revision),
    ];
    let commits = vec![
        put("b", Expected::Revision(of("b").await.revision), 9),
        put("new", Expected::Absent, 9),
        put("old", Expected::Absent, 9),
        put("a", Expected::Absent, 9),
    ];
    let before = mirror.now();
    let (newest, at) = conflict(mirror.transact(all(guards, commits)).await);
    assert!(before <= at && at <= mirror.now());
    let mut expected = Vec::new();
    for id in ["x", "none", "g", "b", "new", "old", "a"] {
        expected.push((key(id), stored(&*mirror, id).await));
    }
    assert_eq!(newest, expected);
}
