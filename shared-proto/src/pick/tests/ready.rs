//! The index against a sorted list, and under several threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use proptest::prelude::*;

use crate::pick::ReadyIndex;

/// The same rule, slowly.
struct Model {
    priorities: Vec<u32>,
    ready: Vec<bool>,
    used: Vec<u64>,
    uses: u64,
}

impl Model {
    fn new(priorities: &[u32]) -> Self {
        let n = priorities.len();
        Self {
            priorities: priorities.to_vec(),
            ready: vec![false; n],
            used: vec![0; n],
            uses: 0,
        }
    }

    fn touch(&mut self, i: usize) {
        if let Some(used) = self.used.get_mut(i) {
            self.uses += 1;
            *used = self.uses;
        }
    }

    fn set_ready(&mut self, i: usize, ready: bool) {
        if let Some(is_ready) = self.ready.get_mut(i) {
            *is_ready = ready;
        }
    }

    fn best(&self) -> Vec<usize> {
        let mut list: Vec<usize> = (0..self.ready.len()).filter(|i| self.ready[*i]).collect();
        list.sort_by_key(|i| (self.priorities[*i], self.used[*i], *i));
        list
    }
}

#[derive(Clone, Debug)]
enum Op {
    Touch(usize),
    Ready(usize, bool),
    UseBest,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        (0_usize..90).prop_map(Op::Touch),
        (0_usize..90, any::<bool>()).prop_map(|(i, ready)| Op::Ready(i, ready)),
        (0_usize..90).prop_map(|i| Op::Ready(i, true)),
        Just(Op::UseBest),
    ];
    prop::collection::vec(op, 0..120)
}

proptest! {
    #[test]
    fn it_is_the_sorted_list(priorities in prop::collection::vec(0_u32..4, 0..90), ops in ops()) {
        let index = ReadyIndex::new(&priorities);
        let mut model = Model::new(&priorities);
        for op in ops {
            match op {
                Op::Touch(i) => {
                    index.touch(i);
                    model.touch(i);
                }
                Op::Ready(i, ready) => {
                    index.set_ready(i, ready);
                    model.set_ready(i, ready);
                }
                Op::UseBest => {
                    let best = index.iter_best().next();
                    prop_assert_eq!(best, model.best().first().copied());
                    if let Some(best) = best {
                        index.touch(best);
                        model.touch(best);
                    }
                }
            }
            prop_assert_eq!(index.iter_best().collect::<Vec<_>>(), model.best());
        }
        for i in 0..100 {
            let ready = model.ready.get(i).copied().unwrap_or(false);
            prop_assert_eq!(index.is_ready(i), ready);
        }
    }
}

#[test]
fn every_size_around_the_group_borders() {
    for len in [0, 1, 7, 8, 9, 63, 64, 65, 511, 512, 513, 4_097] {
        let index = ReadyIndex::new(&vec![1; len]);
        assert_eq!((index.len(), index.is_empty()), (len, len == 0));
        assert_eq!(index.iter_best().count(), 0, "none is ready at first");
        for i in 0..len {
            index.set_ready(i, true);
        }
        let listed: Vec<usize> = (0..len).collect();
        assert_eq!(index.iter_best().collect::<Vec<_>>(), listed);
        index.touch(0);
        assert_eq!(index.iter_best().last(), listed.first().copied());
        index.set_ready(len, true);
        index.touch(len);
        assert_eq!(index.iter_best().count(), len);
    }
}

#[test]
fn any_priorities_are_told_apart() {
    let index = ReadyIndex::new(&[u32::MAX, 0, u32::MAX - 1, 1 << 20, 70_000]);
    for i in 0..5 {
        index.set_ready(i, true);
    }
    assert_eq!(index.iter_best().collect::<Vec<_>>(), [1, 4, 3, 2, 0]);
    let many: Vec<u32> = (0..40_000).rev().collect();
    let index = ReadyIndex::new(&many);
    index.set_ready(5, true);
    index.set_ready(39_999, true);
    assert_eq!(index.iter_best().collect::<Vec<_>>(), [39_999, 5]);
}

#[test]
fn a_full_turn_uses_each_once() {
    let len = 1_000;
    let index = ReadyIndex::new(&vec![3; len]);
    (0..len).for_each(|i| index.set_ready(i, true));
    for _ in 0..3 {
        let mut seen = vec![false; len];
        for _ in 0..len {
            let best = index.iter_best().next().unwrap();
            index.touch(best);
            assert!(!std::mem::replace(&mut seen[best], true));
        }
    }
}

/// A small generator, so that each thread does something else.
fn next(seed: &mut u64) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    usize::try_from(*seed >> 33).unwrap()
}

/// One thread's part: a burst of everything that can happen.
fn burst(index: &ReadyIndex, seed: &mut u64, len: usize, moves: usize) {
    for _ in 0..moves {
        let i = next(seed) % len;
        match next(seed) % 4 {
            0 => index.touch(i),
            1 => index.set_ready(i, false),
            2 => index.set_ready(i, true),
            _ => index.iter_best().take(2).for_each(|best| index.touch(best)),
        }
    }
}

/// Once the writers rest: words agree, and what is ready is offered, in order.
fn is_sound(index: &ReadyIndex, priorities: &[u32]) -> bool {
    let agrees = index.is_consistent();
    let mut offered: Vec<usize> = index.iter_best().collect();
    let in_order = |w: &[usize]| priorities[w[0]] <= priorities[w[1]];
    let is_ordered = offered.windows(2).all(in_order);
    offered.sort_unstable();
    let ready = (0..index.len()).filter(|i| index.is_ready(*i));
    agrees && is_ordered && offered == ready.collect::<Vec<_>>()
}

/// A barrier that lets both go within nanoseconds, so that they really meet.
#[derive(Default)]
struct Line(AtomicUsize);

impl Line {
    /// Waits until both have crossed as often as `crossings` says.
    fn cross(&self, crossings: usize) {
        self.0.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0_u32;
        while self.0.load(Ordering::SeqCst) < 2 * crossings {
            spins = spins.wrapping_add(1);
            if spins.is_multiple_of(1_000) {
                thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// Many short episodes, so that many different last moves are seen at rest.
/// Gives the number of those after which something was wrong. Nothing panics
/// in here: the other thread would wait for ever.
fn unsound_episodes(len: usize, count: usize) -> usize {
    let priorities: Vec<u32> = (0_u32..).take(len).map(|i| i % 3).collect();
    let index = ReadyIndex::new(&priorities);
    let line = Line::default();
    let unsound = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (index, line, priorities, unsound) = (&index, &line, &priorities, &unsound);
            let mut seed = 88_172_645_463_325_252 + thread;
            scope.spawn(move || {
                for episode in 0..count {
                    line.cross(2 * episode + 1);
                    burst(index, &mut seed, len, 3);
                    line.cross(2 * episode + 2);
                    if thread == 0 && !is_sound(index, priorities) {
                        unsound.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    unsound.into_inner()
}

#[test]
fn no_leaf_is_lost_under_threads() {
    assert_eq!(unsound_episodes(9, 40_000), 0);
    assert_eq!(unsound_episodes(70, 10_000), 0);
    assert_eq!(unsound_episodes(600, 1_000), 0);
}

#[test]
fn a_reader_among_writers_is_never_offered_one_twice() {
    const LEN: usize = 100;
    let index = ReadyIndex::new(&[1; LEN]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut seed = 5;
            (0..4_000).for_each(|_| burst(&index, &mut seed, LEN, 12));
            stop.store(true, Ordering::SeqCst);
        });
        while !stop.load(Ordering::SeqCst) && !writer.is_finished() {
            let mut seen = [false; LEN];
            for i in index.iter_best() {
                assert!(!std::mem::replace(&mut seen[i], true));
            }
        }
    });
}
