//! Checks of transactions: all of one or nothing, fenced by guards.

use std::collections::BTreeMap;

use futures_util::future::{join, join_all};

use super::{Backend, count, count_in, increment, key, put, until};
use crate::clock::Millis;
use crate::mirror::Mirror;
use crate::mirror::commit::{
    Change, Commit, CommitError, Committed, Expected, Guard, MAX_TRANSACTION, Refusal,
    TransactError, Transaction,
};
use crate::mirror::key::{Key, MAX_KEY_BYTES};
use crate::mirror::log::Logged;
use crate::mirror::record::{MAX_RECORD_BYTES, Record, Revision};

/// Changes on conditions, without asking for replicas.
fn all(guards: Vec<Guard>, commits: Vec<Commit>) -> Transaction {
    Transaction {
        guards,
        commits,
        replicas: 0,
    }
}

fn guard(id: &str, revision: Revision) -> Guard {
    Guard {
        key: key(id),
        revision,
    }
}

async fn stored(mirror: &dyn Mirror, id: &str) -> Option<Record> {
    mirror.load(&key(id)).await.unwrap()
}

/// What a conflict says is stored, and when that was.
fn conflict(
    outcome: Result<Vec<Committed>, TransactError>,
) -> (Vec<(Key, Option<Record>)>, Millis) {
    match outcome {
        Err(TransactError::Conflict { newest, at }) => (newest, at),
        other => panic!("no conflict: {other:?}"),
    }
}

/// Puts, replacements and deletions take effect together, each with a revision
/// above that of its record before.
pub async fn a_transaction_is_made_whole(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let made = vec![put("a", Expected::Absent, 1), put("b", Expected::Absent, 2)];
    let made = mirror.transact(all(vec![], made)).await.unwrap();
    assert_eq!(made.len(), 2);
    assert!(made[0].position < made[1].position);
    let next = vec![
        put("c", Expected::Absent, 3),
        Commit::delete(key("a"), made[0].revision, 1),
        put("b", Expected::Revision(made[1].revision), 4),
    ];
    let next = mirror.transact(all(vec![], next)).await.unwrap();
    assert!(next[1].revision > made[0].revision && next[2].revision > made[1].revision);
    let now = [("a", None), ("b", Some(4)), ("c", Some(3))];
    for (id, expected) in now {
        assert_eq!(count(&*mirror, id).await, expected, "{id}");
    }
    for (id, done) in [("c", next[0]), ("b", next[2])] {
        let record = stored(&*mirror, id).await.unwrap();
        assert_eq!(record.revision, done.revision);
        let after = put(id, Expected::Revision(done.revision), 9);
        mirror.commit(after).await.unwrap();
    }
    let none = mirror.transact(all(vec![], vec![])).await;
    assert_eq!(none, Ok(vec![]), "nothing is done at once");
}

/// Whatever is wrong with one commit, none is made, wherever it stands.
pub async fn a_failed_transaction_changes_nothing(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let old = increment(&*mirror, "a").await.revision;
    let newer = Commit {
        version: 2,
        ..put("newer", Expected::Absent, 1)
    };
    let newer = mirror.commit(newer).await.unwrap().revision;
    increment(&*mirror, "a").await;
    let before = mirror.snapshot().await.unwrap();
    let giant = Commit {
        change: Change::Put {
            body: vec![0x80; MAX_RECORD_BYTES + 1].into(),
            expires_at: None,
        },
        ..put("giant", Expected::Absent, 1)
    };
    let nothing = Commit {
        expected: Expected::Absent,
        ..Commit::delete(key("nothing"), old, 1)
    };
    let bad = [
        put("a", Expected::Revision(old), 9),
        put("a", Expected::Absent, 9),
        put("missing", Expected::Revision(old), 9),
        put("newer", Expected::Revision(newer), 9),
        nothing,
        giant,
    ];
    for bad in bad {
        let other = |id: &str| put(id, Expected::Absent, 7);
        let orders = [
            vec![bad.clone(), other("x"), other("y")],
            vec![other("x"), bad.clone(), other("y")],
            vec![other("x"), other("y"), bad.clone()],
        ];
        for commits in orders {
            let outcome = mirror.transact(all(vec![], commits)).await;
            assert!(
                matches!(
                    outcome,
                    Err(TransactError::Conflict { .. }
                        | TransactError::Refused(_)
                        | TransactError::TooLarge { .. })
                ),
                "{outcome:?}"
            );
        }
    }
    assert_eq!(mirror.snapshot().await.unwrap(), before);
    let next = increment(&*mirror, "a").await;
    let mut tail = mirror.tail(before.position).await.unwrap();
    assert_eq!(tail.next().await.unwrap().position, next.position);
}

/// Moves one from an account to another, whatever others do meanwhile.
async fn transfer(mirror: &dyn Mirror, from: &str, to: &str) {
    let mut known = (stored(mirror, from).await, stored(mirror, to).await);
    loop {
        let (Some(source), Some(target)) = known else {
            panic!("an account is gone");
        };
        let commits = vec![
            put(
                from,
                Expected::Revision(source.revision),
                count_in(&source) - 1,
            ),
            put(
                to,
                Expected::Revision(target.revision),
                count_in(&target) + 1,
            ),
        ];
        let outcome = mirror.transact(all(vec![], commits)).await;
        if outcome.is_ok() {
            return;
        }
        let (newest, _) = conflict(outcome);
        let mut newest = newest.into_iter().map(|(_, record)| record);
        known = (newest.next().flatten(), newest.next().flatten());
    }
}

/// Transactions over the same records, all at once: none is made by half, in
/// the store, in a snapshot, or in the log.
pub async fn concurrent_transfers_conserve_the_sum(backend: &dyn Backend) {
    const EACH: u64 = 1_000;
    let mirror = backend.open().await;
    let ids = ["a", "b", "c", "d"];
    for id in ids {
        mirror
            .commit(put(id, Expected::Absent, EACH))
            .await
            .unwrap();
    }
    let start = mirror.snapshot().await.unwrap();
    let whole = EACH * 4;
    let one = async |n: usize| {
        for step in 0..8 {
            let (from, to) = (n + step, n + 2 * step + 1);
            if from % 4 != to % 4 {
                transfer(&*mirror, ids[from % 4], ids[to % 4]).await;
            }
        }
    };
    let looks = async {
        for _ in 0..20 {
            let seen = mirror.snapshot().await.unwrap();
            assert_eq!(seen.records.iter().map(count_in).sum::<u64>(), whole);
        }
    };
    join(join_all((0..8).map(one)), looks).await;
    let end = mirror.snapshot().await.unwrap();
    assert_eq!(end.records.iter().map(count_in).sum::<u64>(), whole);

    let mut counts: BTreeMap<_, _> = ids.iter().map(|id| (key(id), EACH)).collect();
    let mut tail = mirror.tail(start.position).await.unwrap();
    let mut at = start.position;
    while at != end.position {
        for _ in 0..2 {
            let entry = tail.next().await.unwrap();
            at = entry.position;
            let Logged::Put(record) = entry.change else {
                panic!("{entry:?}");
            };
            counts.insert(record.key.clone(), count_in(&record));
        }
        assert_eq!(
            counts.values().sum::<u64>(),
            whole,
            "between two transactions"
        );
    }
}

/// The entries of a transaction stand side by side in the log, in the order of
/// its commits.
pub async fn the_log_tells_a_transaction_in_one_piece(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let start = mirror.snapshot().await.unwrap().position;
    let one = async |n: usize| {
        let mut made = Vec::new();
        for step in 0..6 {
            // Names whose order is not that of the commits.
            let ids = ["b", "c", "a"].map(|part| format!("{part}-{n}-{step}"));
            let commits = ids.iter().map(|id| put(id, Expected::Absent, 1));
            let done = mirror
                .transact(all(vec![], commits.collect()))
                .await
                .unwrap();
            let keys = ids.iter().map(|id| key(id));
            made.push(keys.zip(done).collect::<Vec<_>>());
        }
        made
    };
    let noise = async {
        for _ in 0..20 {
            increment(&*mirror, "noise").await;
        }
    };
    let (made, ()) = join(join_all((0..6).map(one)), noise).await;
    let made = made.concat();
    let mut tail = mirror.tail(start).await.unwrap();
    let mut told = Vec::new();
    for _ in 0..made.len() * 3 + 20 {
        let entry = tail.next().await.unwrap();
        let Logged::Put(record) = entry.change else {
            panic!("{entry:?}");
        };
        told.push((record.key, record.revision, entry.position));
    }
    for transaction in made {
        let first = transaction[0].1.position;
        let at = told
            .iter()
            .position(|(_, _, position)| *position == first)
            .unwrap();
        let piece = told.get(at..at + 3).unwrap();
        let expected = transaction.into_iter();
        let expected: Vec<_> = expected.map(|(k, c)| (k, c.revision, c.position)).collect();
        assert_eq!(piece, expected);
    }
}

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

/// What no store can make is refused, and nothing of it is made.
pub async fn malformed_transactions_are_refused(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let held = increment(&*mirror, "g").await.revision;
    let before = mirror.snapshot().await.unwrap();
    let puts = |n: usize| (0..n).map(|n| put(&format!("a{n}"), Expected::Absent, 1));
    let guards = |n| vec![guard("g", held); n];
    let too_many = [
        all(vec![], puts(MAX_TRANSACTION + 1).collect()),
        all(guards(MAX_TRANSACTION + 1), vec![]),
        all(guards(9), puts(MAX_TRANSACTION - 8).collect()),
    ];
    let twice = vec![
        put("a", Expected::Absent, 1),
        put("b", Expected::Absent, 1),
        put("a", Expected::Absent, 2),
    ];
    for malformed in too_many.into_iter().chain([all(vec![], twice)]) {
        let outcome = mirror.transact(malformed).await;
        assert!(
            matches!(outcome, Err(TransactError::Refused(Refusal::Malformed(_)))),
            "{outcome:?}"
        );
    }
    let long = "x".repeat(MAX_KEY_BYTES);
    let long = [
        all(vec![guard(&long, held)], puts(1).collect()),
        all(
            vec![],
            puts(1).chain([put(&long, Expected::Absent, 1)]).collect(),
        ),
    ];
    for long in long {
        let outcome = mirror.transact(long).await;
        assert!(
            matches!(
                outcome,
                Err(TransactError::Refused(Refusal::KeyTooLong { .. }))
            ),
            "{outcome:?}"
        );
    }
    assert_eq!(mirror.snapshot().await.unwrap(), before);
    let most = all(guards(4), puts(MAX_TRANSACTION - 4).collect());
    assert_eq!(
        mirror.transact(most).await.unwrap().len(),
        MAX_TRANSACTION - 4
    );
}

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
