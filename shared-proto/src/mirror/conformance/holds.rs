//! Checks of holds: limits, turns, lapsing, fences.

use std::cell::Cell;

use bytes::Bytes;
use futures_util::future::{join, join_all};

use super::{Backend, increment, key, put, until};
use crate::clock::Millis;
use crate::mirror::Mirror;
use crate::mirror::commit::{Commit, Expected, Guard};
use crate::mirror::hold::{
    Held, HoldError, Holder, MAX_HOLDER_BYTES, MAX_HOLDS_AT_ONCE, MAX_NOTE_BYTES, Place, Pool,
    Take, Taken,
};

/// Longer than any check takes, in ms.
const LONG: u64 = 600_000;
/// Waited for, in ms.
pub(super) const SHORT: u64 = 60;

fn slots() -> Pool {
    Pool::Slots("acme-1".into())
}

pub(super) fn take(holder: &str, limit: u32) -> Take {
    Take {
        pool: slots(),
        holder: Holder(holder.into()),
        limit: Some(limit),
        ttl_ms: LONG,
        patience_ms: None,
        guard: None,
        note: Bytes::new(),
    }
}

pub(super) fn patient(holder: &str, limit: u32) -> Take {
    Take {
        patience_ms: Some(LONG),
        ..take(holder, limit)
    }
}

pub(super) fn place(holder: &str) -> Place {
    Place {
        pool: slots(),
        holder: Holder(holder.into()),
    }
}

/// Takes a place that there is; when it lapses.
pub(super) async fn had(mirror: &dyn Mirror, take: Take) -> Millis {
    match mirror.take(take).await {
        Ok(Taken::Held { until }) => until,
        other => panic!("no place: {other:?}"),
    }
}

/// Asks for a place that there is not; how many wait before.
pub(super) async fn full(mirror: &dyn Mirror, take: Take) -> u32 {
    match mirror.take(take).await {
        Ok(Taken::Full { ahead }) => ahead,
        other => panic!("not full: {other:?}"),
    }
}

pub(super) async fn names(mirror: &dyn Mirror) -> Vec<String> {
    let held = mirror.holders(&slots()).await.unwrap();
    held.iter().map(|held| held.holder.0.to_string()).collect()
}

/// A hold that is not kept ends by itself, and not before its time.
pub async fn holds_lapse(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let short = Take {
        ttl_ms: SHORT,
        ..take("a", 1)
    };
    let end = had(&*mirror, short).await;
    let after = until(&*mirror, "the hold's end", async || {
        match mirror.take(take("b", 1)).await.unwrap() {
            Taken::Held { until } => Some(until),
            Taken::Full { .. } | Taken::Fenced { .. } => None,
        }
    })
    .await;
    let let_in = after.minus(LONG);
    assert!(let_in >= end, "{let_in:?} is before {end:?}");
    assert_eq!(names(&*mirror).await, ["b"]);
    let kept = mirror.keep(vec![place("a"), place("b")], LONG).await;
    assert_eq!(kept, Ok(vec![false, true]), "what has lapsed stays so");
    assert_eq!(names(&*mirror).await, ["b"]);
    assert_eq!(full(&*mirror, take("a", 1)).await, 0);
}

/// Keeping sets the end anew, for those that hold; it says which do.
pub async fn keeping_prolongs(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let first = had(&*mirror, take("a", 1)).await;
    assert_eq!(full(&*mirror, patient("w", 1)).await, 0);
    let asked = ["nobody", "a", "w", "a"].map(place).to_vec();
    let kept = mirror.keep(asked, 2 * LONG).await;
    assert_eq!(
        kept,
        Ok(vec![false, true, false, true]),
        "who waits does not hold"
    );
    let held = mirror.holders(&slots()).await.unwrap();
    assert!(held[0].until >= first.plus(LONG));
    assert_eq!(mirror.keep(vec![], LONG).await, Ok(vec![]));
    let elsewhere = Place {
        pool: Pool::Leased("acme-1".into()),
        ..place("a")
    };
    let kept = mirror.keep(vec![elsewhere], LONG).await;
    assert_eq!(kept, Ok(vec![false]), "another pool");
    let kept = mirror.keep(vec![place("a")], SHORT).await;
    assert_eq!(kept, Ok(vec![true]));
    until(&*mirror, "the hold's end", async || {
        names(&*mirror).await.is_empty().then_some(())
    })
    .await;
    had(&*mirror, take("w", 1)).await;
}

/// What is given back can be taken at once.
pub async fn giving_back_frees_at_once(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let leased = Place {
        pool: Pool::Leased("acme-1".into()),
        ..place("a")
    };
    for _ in 0..3 {
        had(&*mirror, take("a", 1)).await;
        let also = Take {
            pool: leased.pool.clone(),
            ..take("a", 1)
        };
        had(&*mirror, also).await;
        assert_eq!(full(&*mirror, patient("b", 1)).await, 0);
        assert_eq!(full(&*mirror, patient("c", 1)).await, 1);
        // A place in the queue, a hold, and what nobody has.
        let back = vec![place("b"), place("a"), leased.clone(), place("x")];
        mirror.give_back(back.clone()).await.unwrap();
        mirror.give_back(back).await.unwrap();
        assert_eq!(mirror.holders(&leased.pool).await, Ok(vec![]));
        had(&*mirror, patient("c", 1)).await;
        mirror.give_back(vec![place("c")]).await.unwrap();
    }
    mirror.give_back(vec![]).await.unwrap();
}

/// Who holds and asks again holds still, for longer and with its new note.
pub async fn taking_again_renews(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let first = had(&*mirror, take("a", 2)).await;
    had(&*mirror, take("b", 2)).await;
    assert_eq!(full(&*mirror, patient("w", 2)).await, 0);
    // Also while others wait, and when the limit has become lower.
    for limit in [Some(2), Some(1), Some(0), None] {
        let again = Take {
            limit,
            ttl_ms: 2 * LONG,
            note: Bytes::from(format!("{limit:?}")),
            ..take("a", 0)
        };
        let again = had(&*mirror, again).await;
        assert!(again >= first.plus(LONG));
        let held = mirror.holders(&slots()).await.unwrap();
        assert_eq!(held.len(), 2);
        let note = Bytes::from(format!("{limit:?}"));
        assert_eq!((held[0].until, &held[0].note), (again, &note));
    }
    had(&*mirror, take("a", 2)).await;
    let held = mirror.holders(&slots()).await.unwrap();
    assert_eq!(held[0].note, Bytes::new(), "each says its own");
}

fn fenced(taken: Result<Taken, HoldError>) -> (Option<crate::mirror::record::Record>, Millis) {
    match taken {
        Ok(Taken::Fenced { newest, at }) => (newest, at),
        other => panic!("not fenced: {other:?}"),
    }
}

/// A guard that does not hold keeps out, and leaves all as it was: no hold, no
/// place in the queue, and a hold that is had already as it is.
pub async fn a_fenced_take_changes_nothing(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let old = increment(&*mirror, "lease").await.revision;
    let under = |holder: &str, revision| Take {
        guard: Some(Guard {
            key: key("lease"),
            revision,
        }),
        note: Bytes::from_static(b"new"),
        ..patient(holder, 2)
    };
    had(&*mirror, under("a", old)).await;
    let before = mirror.holders(&slots()).await.unwrap();
    let current = increment(&*mirror, "lease").await.revision;
    let stored = mirror.load(&key("lease")).await.unwrap();
    for holder in ["a", "b"] {
        let from = mirror.now();
        let longer = Take {
            ttl_ms: 2 * LONG,
            note: Bytes::from_static(b"newer"),
            ..under(holder, old)
        };
        let (newest, at) = fenced(mirror.take(longer).await);
        assert_eq!(newest, stored);
        assert!(from <= at && at <= mirror.now());
    }
    assert_eq!(mirror.holders(&slots()).await.unwrap(), before);
    had(&*mirror, under("b", current)).await;
    fenced(mirror.take(under("w", old)).await);
    let ahead = full(&*mirror, take("x", 2)).await;
    assert_eq!(ahead, 0, "it does not even wait");

    let gone = Commit::delete(key("lease"), current, 1);
    mirror.commit(gone).await.unwrap();
    let (newest, _) = fenced(mirror.take(under("b", current)).await);
    assert_eq!(newest, None);
    let past = mirror.now();
    let expired = put("lease", Expected::Absent, 1).expiring(past);
    let expired = mirror.commit(expired).await.unwrap().revision;
    let (newest, at) = fenced(mirror.take(under("c", expired)).await);
    assert_eq!(newest.map(|record| record.revision), Some(expired));
    assert!(at >= past);
    assert_eq!(names(&*mirror).await, ["a", "b"]);
}

/// Once a change is acknowledged, nobody gets past a guard on what was before.
pub async fn a_fence_sees_every_change_before(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let ended = Cell::new(false);
    let revision = increment(&*mirror, "lease").await.revision;
    let one = async |n: usize| {
        let mut was_let_in = 0;
        loop {
            let late = ended.get();
            let take = Take {
                limit: None,
                guard: Some(Guard {
                    key: key("lease"),
                    revision,
                }),
                ..take(&format!("h{n}-{was_let_in}"), 0)
            };
            match mirror.take(take).await.unwrap() {
                Taken::Held { .. } => assert!(!late, "it was over when it asked"),
                Taken::Full { .. } => panic!("there is no limit"),
                Taken::Fenced { .. } => return was_let_in,
            }
            was_let_in += 1;
        }
    };
    let end = async {
        // Others are at work.
        for _ in 0..10 {
            increment(&*mirror, "noise").await;
        }
        increment(&*mirror, "lease").await;
        ended.set(true);
    };
    let (let_in, ()) = join(join_all((0..8).map(one)), end).await;
    let held = mirror.holders(&slots()).await.unwrap();
    assert_eq!(held.len(), let_in.iter().sum::<usize>());
}

/// Holders are told by name, with their notes, each pool its own; whatever
/// text the names are.
pub async fn holders_are_listed(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let pools = [
        Pool::Slots("a".into()),
        Pool::Slots("a:b".into()),
        Pool::Slots("{}%".into()),
        Pool::Leased("a".into()),
        Pool::Nodes,
        Pool::Uses("a".into()),
    ];
    let holders = ["", " ", "%41", "A", "a", "a\0b", "node-1:7", "{x}", "é😀"];
    let mut expected = vec![Vec::new(); pools.len()];
    for (n, pool) in pools.iter().enumerate() {
        assert_eq!(mirror.holders(pool).await, Ok(vec![]));
        for holder in holders.iter().rev() {
            let note = Bytes::from(
                [
                    &[0, 0xff, b'\n'],
                    holder.as_bytes(),
                    &[u8::try_from(n).unwrap()],
                ]
                .concat(),
            );
            let take = Take {
                pool: pool.clone(),
                limit: None,
                note: note.clone(),
                ..take(holder, 0)
            };
            expected[n].push(Held {
                holder: take.holder.clone(),
                note,
                until: had(&*mirror, take).await,
            });
        }
        expected[n].reverse();
    }
    for (pool, expected) in pools.iter().zip(expected) {
        assert_eq!(mirror.holders(pool).await, Ok(expected), "{pool:?}");
    }
}

/// Many holders are all listed, once each.
pub async fn many_holders_are_listed(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let each = (0..1_500).map(|n| {
        let take = Take {
            limit: None,
            note: Bytes::from(n.to_string()),
            ..take(&format!("h{n:04}"), 0)
        };
        had(&*mirror, take)
    });
    join_all(each).await;
    let held = mirror.holders(&slots()).await.unwrap();
    let told = held.iter().map(|held| held.note.clone());
    assert!(told.eq((0..1_500).map(|n| Bytes::from(n.to_string()))));
}

/// Holds are in no snapshot and no log.
pub async fn holds_are_no_records(backend: &dyn Backend) {
    let mirror = backend.open().await;
    increment(&*mirror, "a").await;
    let before = mirror.snapshot().await.unwrap();
    had(&*mirror, take("a", 1)).await;
    assert_eq!(full(&*mirror, patient("b", 1)).await, 0);
    mirror.keep(vec![place("a")], LONG).await.unwrap();
    mirror.give_back(vec![place("a")]).await.unwrap();
    assert_eq!(mirror.snapshot().await.unwrap(), before);
    let next = increment(&*mirror, "a").await;
    let mut tail = mirror.tail(before.position).await.unwrap();
    assert_eq!(tail.next().await.unwrap().position, next.position);
}

/// What is beyond its bound is refused, and what is at its bound is not.
pub async fn holds_have_bounds(backend: &dyn Backend) {
    let mirror = backend.open().await;
    let longest = "x".repeat(MAX_HOLDER_BYTES);
    let most = Take {
        note: vec![7; MAX_NOTE_BYTES].into(),
        ..take(&longest, 1)
    };
    had(&*mirror, most).await;
    let refused = [
        take(&"x".repeat(MAX_HOLDER_BYTES + 1), 9),
        Take {
            note: vec![7; MAX_NOTE_BYTES + 1].into(),
            ..take("a", 9)
        },
    ];
    for take in refused {
        let outcome = mirror.take(take).await;
        assert!(matches!(outcome, Err(HoldError::Refused(_))), "{outcome:?}");
    }
    assert_eq!(full(&*mirror, take("a", 0)).await, 0, "a limit of none");
    let places = |n| vec![place(&longest); n];
    let kept = mirror.keep(places(MAX_HOLDS_AT_ONCE), LONG).await;
    assert_eq!(kept, Ok(vec![true; MAX_HOLDS_AT_ONCE]));
    let kept = mirror.keep(places(MAX_HOLDS_AT_ONCE + 1), LONG).await;
    assert!(matches!(kept, Err(HoldError::Refused(_))), "{kept:?}");
    let given = mirror.give_back(places(MAX_HOLDS_AT_ONCE + 1)).await;
    assert!(matches!(given, Err(HoldError::Refused(_))), "{given:?}");
    assert_eq!(names(&*mirror).await.len(), 1, "nothing was given back");
    mirror.give_back(places(MAX_HOLDS_AT_ONCE)).await.unwrap();
    assert_eq!(names(&*mirror).await, [""; 0]);
}
