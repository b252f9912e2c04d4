//! The board against a plain list, and its bounds.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::Board;
use crate::clock::Millis;
use crate::mirror::hold::{
    Held, HoldError, Holder, MAX_HOLDERS, MAX_HOLDS_AT_ONCE, Place, Pool, Take, Taken,
};

fn pool(n: u8) -> Pool {
    match n % 3 {
        0 => Pool::Nodes,
        1 => Pool::Slots("a".into()),
        _ => Pool::Leased("a".into()),
    }
}

fn place((of, holder): (u8, u8)) -> Place {
    Place {
        pool: pool(of),
        holder: Holder(format!("h{holder}").into()),
    }
}

fn take(place: Place, limit: Option<u32>) -> Take {
    Take {
        pool: place.pool,
        holder: place.holder,
        limit,
        ttl_ms: 100,
        patience_ms: Some(100),
        guard: None,
        note: Bytes::new(),
    }
}

const fn at(ms: u64) -> Millis {
    Millis::from_epoch_ms(ms)
}

/// Something asked of a board.
#[derive(Clone, Debug)]
enum Op {
    Take(Take),
    Keep(Vec<Place>, u64),
    GiveBack(Vec<Place>),
    Advance(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let places = || (0_u8..3, 0_u8..6).prop_map(place);
    let taken = (
        places(),
        option::of(0_u32..4),
        0_u64..40,
        option::of(0_u64..40),
        0_u8..9,
    );
    let taken = taken.prop_map(|(place, limit, ttl_ms, patience_ms, note)| {
        Op::Take(Take {
            ttl_ms,
            patience_ms,
            note: vec![note].into(),
            ..take(place, limit)
        })
    });
    let keep = (vec(places(), 0..4), 0_u64..40).prop_map(|(places, ttl)| Op::Keep(places, ttl));
    let op = prop_oneof![
        6 => taken,
        1 => keep,
        1 => vec(places(), 0..3).prop_map(Op::GiveBack),
        2 => (0_u64..25).prop_map(Op::Advance),
    ];
    vec(op, 0..80)
}

/// The same by plain search through one list, in the order of coming.
#[derive(Default)]
struct List(Vec<(Place, Millis, Option<Bytes>)>);

impl List {
    fn live(&mut self, now: Millis) {
        self.0.retain(|(_, until, _)| *until > now);
    }

    fn find(&mut self, place: &Place) -> Option<&mut (Place, Millis, Option<Bytes>)> {
        self.0.iter_mut().find(|entry| entry.0 == *place)
    }

    fn take(&mut self, take: &Take, now: Millis) -> Taken {
        self.live(now);
        let place = Place {
            pool: take.pool.clone(),
            holder: take.holder.clone(),
        };
        let until = now.plus(take.ttl_ms);
        let known = self.find(&place).map(|entry| entry.2.is_some());
        let before = self.0.iter().take_while(|entry| entry.0 != place);
        let before = before.filter(|entry| entry.0.pool == take.pool && entry.2.is_none());
        let ahead = before.count();
        let held = self
            .0
            .iter()
            .filter(|entry| entry.0.pool == take.pool && entry.2.is_some());
        let taken = held.count().saturating_add(ahead);
        let room = take
            .limit
            .is_none_or(|limit| taken < usize::try_from(limit).unwrap());
        let entry = |until, note| (place.clone(), until, note);
        if known == Some(true) || room {
            self.0.retain(|entry| entry.0 != place);
            self.0.push(entry(until, Some(take.note.clone())));
            return Taken::Held { until };
        }
        let patience = take.patience_ms.map(|ms| now.plus(ms));
        match (patience, self.find(&place)) {
            (Some(until), Some(waits)) => waits.1 = until,
            (Some(until), None) => self.0.push(entry(until, None)),
            (None, _) => self.0.retain(|entry| entry.0 != place),
        }
        Taken::Full {
            ahead: u32::try_from(ahead).unwrap(),
        }
    }

    fn keep(&mut self, places: &[Place], ttl_ms: u64, now: Millis) -> Vec<bool> {
        // Once: what lapses at once was still held when the call came.
        self.live(now);
        let keep = |place| {
            let entry = self.find(place).filter(|entry| entry.2.is_some());
            entry.map(|entry| entry.1 = now.plus(ttl_ms)).is_some()
        };
        places.iter().map(keep).collect()
    }

    fn holders(&mut self, of: &Pool, now: Millis) -> Vec<Held> {
        self.live(now);
        let of_pool = self.0.iter().filter(|entry| entry.0.pool == *of);
        let mut held: Vec<_> = of_pool
            .filter_map(|(place, until, note)| {
                Some(Held {
                    holder: place.holder.clone(),
                    until: *until,
                    note: note.clone()?,
                })
            })
            .collect();
        held.sort_by(|a, b| a.holder.cmp(&b.holder));
        held
    }
}

impl Board {
    /// Its parts tell the same, and nothing empty is kept.
    fn check(&self) {
        let mut ends = Vec::new();
        for (pool, room) in &self.rooms {
            assert!(!room.entries.is_empty(), "{pool:?} is empty and kept");
            let turns = room.entries.values().filter_map(|entry| match &entry.what {
                super::What::Waits { turn } => Some(*turn),
                super::What::Holds { .. } => None,
            });
            assert_eq!(turns.collect::<std::collections::BTreeSet<_>>(), room.queue);
            let of_room = room.entries.iter();
            ends.extend(of_room.map(|(holder, entry)| (entry.until, pool.clone(), holder.clone())));
        }
        ends.sort();
        assert!(self.ends.iter().eq(&ends));
    }
}

proptest! {
    #[test]
    fn it_is_what_a_plain_list_is(ops in ops()) {
        let mut board = Board::default();
        let mut list = List::default();
        let mut now = at(1_000);
        for op in ops {
            match op {
                Op::Take(take) => {
                    let expected = list.take(&take, now);
                    prop_assert_eq!(board.take(take, now), Ok(expected));
                }
                Op::Keep(places, ttl_ms) => {
                    let expected = list.keep(&places, ttl_ms, now);
                    prop_assert_eq!(board.keep(places, ttl_ms, now), Ok(expected));
                }
                Op::GiveBack(places) => {
                    list.live(now);
                    list.0.retain(|entry| !places.contains(&entry.0));
                    prop_assert_eq!(board.give_back(&places, now), Ok(()));
                }
                Op::Advance(ms) => now = now.plus(ms),
            }
            board.check();
            for n in 0..3 {
                prop_assert_eq!(board.holders(&pool(n), now), list.holders(&pool(n), now));
            }
        }
        board.holders(&Pool::Nodes, now.plus(1_000));
        prop_assert!(board.rooms.is_empty() && board.ends.is_empty(), "all has lapsed");
    }
}

#[test]
fn a_hold_lapses_at_its_end_and_not_before() {
    let mut board = Board::default();
    let one = || take(place((0, 1)), Some(1));
    let two = || take(place((0, 2)), Some(1));
    assert_eq!(board.take(one(), at(5)), Ok(Taken::Held { until: at(105) }));
    assert_eq!(board.take(two(), at(104)), Ok(Taken::Full { ahead: 0 }));
    assert_eq!(
        board.take(two(), at(105)),
        Ok(Taken::Held { until: at(205) })
    );
    let forever = Take {
        ttl_ms: u64::MAX,
        ..two()
    };
    let until = Millis::MAX;
    assert_eq!(board.take(forever, at(106)), Ok(Taken::Held { until }));
}

#[test]
fn a_full_pool_refuses_newcomers_only() {
    let mut board = Board::default();
    let nth = |n: usize, limit| {
        let holder = Holder(format!("h{n}").into());
        let pool = Pool::Nodes;
        take(Place { pool, holder }, limit)
    };
    for n in 0..MAX_HOLDERS {
        // One in two holds, the others wait: both count.
        let limit = (n % 2 == 1).then_some(0);
        board.take(nth(n, limit), at(0)).unwrap();
    }
    let refused = Err(HoldError::Refused("the pool has too many holders"));
    assert_eq!(board.take(nth(MAX_HOLDERS, None), at(1)), refused);
    assert_eq!(board.take(nth(MAX_HOLDERS, Some(0)), at(1)), refused);
    let until = at(101);
    assert_eq!(board.take(nth(0, None), at(1)), Ok(Taken::Held { until }));
    assert_eq!(board.take(nth(1, None), at(1)), Ok(Taken::Held { until }));
    let elsewhere = take(place((1, 1)), None);
    assert_eq!(board.take(elsewhere, at(1)), Ok(Taken::Held { until }));
    let until = at(200);
    let late = board.take(nth(MAX_HOLDERS, None), at(100));
    assert_eq!(late, Ok(Taken::Held { until }), "the others have lapsed");
    board.check();
}

#[test]
fn a_full_board_refuses_newcomers_in_every_pool() {
    let mut board = Board {
        most: 2,
        ..Board::default()
    };
    for n in 0..2 {
        board.take(take(place((n, 1)), None), at(0)).unwrap();
    }
    let third = || take(place((2, 1)), None);
    let refused = Err(HoldError::Refused("the store has too many holders"));
    assert_eq!(board.take(third(), at(1)), refused);
    board.give_back(&[place((0, 1))], at(1)).unwrap();
    let until = at(101);
    assert_eq!(board.take(third(), at(1)), Ok(Taken::Held { until }));
}

#[test]
fn too_many_at_once_are_refused_whole() {
    let mut board = Board::default();
    board.take(take(place((0, 1)), None), at(0)).unwrap();
    let places = vec![place((0, 1)); MAX_HOLDS_AT_ONCE + 1];
    let kept = board.keep(places.clone(), 1_000, at(1));
    assert!(matches!(kept, Err(HoldError::Refused(_))));
    assert!(board.give_back(&places, at(1)).is_err());
    assert_eq!(board.holders(&Pool::Nodes, at(1))[0].until, at(100));
}
