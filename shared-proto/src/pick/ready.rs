//! Account choice by priority, then least recently used, in logarithmic time
//! and without locks.
//!
//! A tournament tree over the connections of a provider. Each leaf is one
//! `AtomicU64` that holds everything about its connection:
//!
//! ```text
//! bit 63       not ready
//! bits 62..48  rank of its priority, 0 is tried first
//! bits 47..0   stamp: when it was last used, in uses of the whole index
//! ```
//!
//! so the smallest word is the next account, and one that is not ready sorts
//! behind every one that is. Never used accounts carry their place in the list
//! as the stamp, and uses count on from there: no two words are equal.
//!
//! Words lie in groups of eight, one cache line. The word of a group in the
//! level above is the smallest of the eight. Ten thousand accounts are five
//! levels, ten are two.
//!
//! # Races
//!
//! A writer changes its leaf, then walks up and sets each word to its group's
//! smallest with compare-and-exchange, reading word and group again until they
//! agree. All accesses are sequentially consistent, so of the threads that
//! touch a word and its group, the one that made the last change also reads
//! after it and puts the word right: when all writers have returned, every
//! word agrees with its group and no leaf is lost. Meanwhile a reader may see a
//! word that is a moment old: it may offer an account that has just cooled, or
//! miss one that has just come back. So a caller checks what it is offered, and
//! a reader that meets a disagreement repairs it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::iter::FusedIterator;
use std::sync::atomic::{AtomicU64, Ordering};

const FANOUT: usize = 8;
const NOT_READY: u64 = 1 << 63;
const STAMP_BITS: u32 = 48;
const STAMP_MASK: u64 = (1 << STAMP_BITS) - 1;
const MAX_RANK: u64 = (1 << (63 - STAMP_BITS)) - 1;

/// Eight words in one cache line.
#[repr(align(64))]
#[derive(Debug)]
struct Group([AtomicU64; FANOUT]);

impl Group {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(u64::MAX)))
    }

    fn words(&self) -> [u64; FANOUT] {
        std::array::from_fn(|slot| self.0[slot].load(Ordering::SeqCst))
    }

    /// The smallest word and its slot, as a tournament without branches to mispredict.
    fn best(&self) -> (u64, usize) {
        let at = self.words();
        let pair = |slot: usize, next: usize| smaller((at[slot], slot), (at[next], next));
        let left = smaller(pair(0, 1), pair(2, 3));
        let right = smaller(pair(4, 5), pair(6, 7));
        smaller(left, right)
    }
}

const fn smaller(a: (u64, usize), b: (u64, usize)) -> (u64, usize) {
    if b.0 < a.0 { b } else { a }
}

/// The connections of a provider, ordered for choice. See the module's text.
#[derive(Debug)]
pub struct ReadyIndex {
    /// From the one group at the top down to the leaves.
    levels: Box<[Box<[Group]>]>,
    len: usize,
    uses: AtomicU64,
}

impl ReadyIndex {
    /// An index over connections with these priorities; lower is tried first.
    /// None is ready yet. Equal priorities are tried in list order until used.
    /// Past 32768 different priorities the last ones are taken as equal.
    pub fn new(priorities: &[u32]) -> Self {
        let mut distinct = priorities.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let levels = levels_for(priorities.len());
        let index = Self {
            levels,
            len: priorities.len(),
            uses: AtomicU64::new(as_u64(priorities.len())),
        };
        for (place, priority) in priorities.iter().enumerate() {
            let rank = as_u64(distinct.partition_point(|other| other < priority)).min(MAX_RANK);
            let word = NOT_READY | (rank << STAMP_BITS) | (as_u64(place) & STAMP_MASK);
            if let Some(leaf) = index.leaf(place) {
                leaf.store(word, Ordering::SeqCst);
            }
        }
        for place in (0..priorities.len()).step_by(FANOUT) {
            index.repair_above(place);
        }
        index
    }

    /// How many connections it holds, ready or not.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether connection `i` is ready; false beyond the end.
    pub fn is_ready(&self, i: usize) -> bool {
        self.leaf(i)
            .is_some_and(|leaf| leaf.load(Ordering::SeqCst) & NOT_READY == 0)
    }

    /// Says whether connection `i` may be chosen. Beyond the end nothing happens.
    pub fn set_ready(&self, i: usize, ready: bool) {
        let Some(leaf) = self.leaf(i) else { return };
        let before = if ready {
            leaf.fetch_and(!NOT_READY, Ordering::SeqCst)
        } else {
            leaf.fetch_or(NOT_READY, Ordering::SeqCst)
        };
        let was_ready = before & NOT_READY == 0;
        if was_ready != ready {
            self.repair_above(i);
        }
    }

    /// Says that connection `i` is being used: it goes behind its equals.
    /// Beyond the end nothing happens.
    pub fn touch(&self, i: usize) {
        let Some(leaf) = self.leaf(i) else { return };
        let stamp = self.uses.fetch_add(1, Ordering::SeqCst).min(STAMP_MASK);
        // Of two uses at once the later stamp stays.
        let newer = |word: u64| (word & STAMP_MASK < stamp).then_some(word & !STAMP_MASK | stamp);
        if leaf
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, newer)
            .is_ok()
        {
            self.repair_above(i);
        }
    }

    /// The ready connections, next one first. Lazy: the k-th costs O(k log n),
    /// and the first allocates nothing. Each connection comes at most once.
    pub fn iter_best(&self) -> IterBest<'_> {
        IterBest {
            index: self,
            first: None,
            heap: BinaryHeap::new(),
            stage: Stage::Fresh,
        }
    }

    fn leaf(&self, i: usize) -> Option<&AtomicU64> {
        if i >= self.len {
            return None;
        }
        self.word(self.levels.len().checked_sub(1)?, i)
    }

    fn group(&self, level: usize, group: usize) -> Option<&Group> {
        self.levels.get(level)?.get(group)
    }

    fn word(&self, level: usize, place: usize) -> Option<&AtomicU64> {
        self.group(level, place / FANOUT)?.0.get(place % FANOUT)
    }

    /// Puts right every word above leaf `i`, from the bottom up. It never stops
    /// early: when it returns, the change of leaf `i` has reached the top.
    fn repair_above(&self, i: usize) {
        self.repair_up(self.levels.len().saturating_sub(1), i / FANOUT);
    }

    /// Puts right the word of group `group` of `level`, and every word above it.
    /// Whoever changes a word has to go on to the top: another thread may have
    /// taken what stood there for a moment up with it.
    fn repair_up(&self, level: usize, group: usize) {
        let mut place = group;
        for level in (0..level).rev() {
            self.repair(level, place);
            place /= FANOUT;
        }
    }

    /// Sets the word at `place` of `level` to the smallest of its group below.
    fn repair(&self, level: usize, place: usize) {
        let below = self.group(level.saturating_add(1), place);
        let (Some(word), Some(below)) = (self.word(level, place), below) else {
            return;
        };
        loop {
            let seen = word.load(Ordering::SeqCst);
            let (best, _) = below.best();
            if seen == best {
                return;
            }
            // Whether it succeeds or not, what counts is that both agree afterwards.
            let _lost_race = word
                .compare_exchange(seen, best, Ordering::SeqCst, Ordering::SeqCst)
                .is_err();
        }
    }

    /// The next connection by plain descent. `None` also when a writer was
    /// faster on the way down; the search that follows it then decides.
    fn descend(&self) -> Option<usize> {
        let mut place = 0;
        for level in &self.levels {
            let (word, slot) = level.get(place)?.best();
            if word & NOT_READY != 0 {
                return None;
            }
            place = place.saturating_mul(FANOUT).saturating_add(slot);
        }
        Some(place).filter(|place| *place < self.len)
    }
}

fn levels_for(len: usize) -> Box<[Box<[Group]>]> {
    let mut counts = vec![len.div_ceil(FANOUT)];
    while let Some(below) = counts.last().copied().filter(|below| *below > 1) {
        counts.push(below.div_ceil(FANOUT));
    }
    let level = |count: &usize| (0..*count).map(|_| Group::new()).collect();
    counts.iter().rev().map(level).collect()
}

fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[derive(Debug, PartialEq)]
enum Stage {
    Fresh,
    FirstGiven,
    Searching,
}

/// A word met on the way: smallest first, then where it was.
type Met = Reverse<(u64, usize, usize)>;

/// See [`ReadyIndex::iter_best`].
#[derive(Debug)]
pub struct IterBest<'a> {
    index: &'a ReadyIndex,
    first: Option<usize>,
    heap: BinaryHeap<Met>,
    stage: Stage,
}

impl IterBest<'_> {
    /// Takes in the ready words of a group, and repairs the word above if it disagrees.
    fn open(&mut self, level: usize, group: usize, expected: Option<u64>) {
        let Some(words) = self.index.group(level, group).map(Group::words) else {
            return;
        };
        let mut best = u64::MAX;
        for (slot, word) in words.into_iter().enumerate() {
            best = best.min(word);
            if word & NOT_READY == 0 {
                let place = group.saturating_mul(FANOUT).saturating_add(slot);
                self.heap.push(Reverse((word, level, place)));
            }
        }
        if expected.is_some_and(|word| word != best) {
            self.index.repair_up(level, group);
        }
    }

    /// Best first over what is left: a word above the leaves is opened into its group.
    fn search(&mut self) -> Option<usize> {
        while let Some(Reverse((word, level, place))) = self.heap.pop() {
            let below = level.saturating_add(1);
            if below < self.index.levels.len() {
                self.open(below, place, Some(word));
            } else if self.first != Some(place) {
                return Some(place);
            }
        }
        None
    }
}

impl Iterator for IterBest<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.stage == Stage::Fresh {
            self.stage = Stage::FirstGiven;
            self.first = self.index.descend();
            if self.first.is_some() {
                return self.first;
            }
        }
        if self.stage == Stage::FirstGiven {
            self.stage = Stage::Searching;
            self.open(0, 0, None);
        }
        self.search()
    }
}

impl FusedIterator for IterBest<'_> {}

#[cfg(test)]
impl ReadyIndex {
    /// Whether every word above the leaves is the smallest of its group.
    pub(super) fn is_consistent(&self) -> bool {
        (1..self.levels.len()).all(|level| {
            let mut groups = self.levels[level].iter().enumerate();
            groups.all(|(place, group)| {
                let above = self.word(level.saturating_sub(1), place);
                above.is_some_and(|word| word.load(Ordering::SeqCst) == group.best().0)
            })
        })
    }
}
