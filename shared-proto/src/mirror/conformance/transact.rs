//! Checks of transactions: all of one or nothing.

use std::collections::BTreeMap;

use futures_util::future::{join, join_all};

use super::{Backend, count, count_in, increment, key, put};
use crate::clock::Millis;
use crate::mirror::Mirror;
use crate::mirror::commit::{
    Change, Commit, Committed, Expected, Guard, MAX_TRANSACTION, Refusal, TransactError,
    Transaction,
};
use crate::mirror::key::{Key, MAX_KEY_BYTES};
use crate::mirror::log::Logged;
use crate::mirror::record::{MAX_RECORD_BYTES, Record, Revision};

/// Changes on conditions, without asking for replicas.
pub(super) fn all(guards: Vec<Guard>, commits: Vec<Commit>) -> Transaction {
    Transaction {
        guards,
        commits,
        replicas: 0,
    }
}

pub(super) fn guard(id: &str, revision: Revision) -> Guard {
    Guard {
        key: key(id),
        revision,
    }
}

pub(super) async fn stored(mirror: &dyn Mirror, id: &str) -> Option<Record> {
    mirror.load(&key(id)).await.unwrap()
}

/// What a conflict says is stored, and when that was.
pub(super) fn conflict(
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
