//! Clusters in virtual time: the real machines over a store whose messages are
//! late, lost or from before a failover. One seed is one run, the same each
//! time; the numbered invariants are checked after every step.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "small numbers chosen by the tests"
)]

mod health;
mod leases;
pub(crate) mod store;

use std::collections::BTreeMap;

use crate::clock::Millis;

/// A sequence of numbers that its seed decides (splitmix64).
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` to `high`, both included.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low + 1)
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.within(0, len as u64 - 1)).unwrap()
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.within(1, 100) <= percent
    }
}

/// What is to happen, and when. Of two things at one moment the one that was
/// planned first comes first.
#[derive(Debug)]
struct Agenda<E> {
    planned: BTreeMap<(Millis, u64), E>,
    number: u64,
}

impl<E> Agenda<E> {
    const fn new() -> Self {
        Self {
            planned: BTreeMap::new(),
            number: 0,
        }
    }

    fn plan(&mut self, at: Millis, event: E) {
        self.number += 1;
        self.planned.insert((at, self.number), event);
    }

    fn next(&mut self) -> Option<(Millis, E)> {
        let ((at, _), event) = self.planned.pop_first()?;
        Some((at, event))
    }
}

/// The seeds to run: a few, or as many as `SIMULATION_SEEDS` says, from
/// `SIMULATION_FIRST` on.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let asked = |name: &str| {
        #[expect(
            clippy::disallowed_methods,
            reason = "how long to run is asked of whoever runs the test"
        )]
        let asked = std::env::var(name);
        asked.ok().and_then(|number| number.parse::<u64>().ok())
    };
    let first = asked("SIMULATION_FIRST").unwrap_or(1);
    first..first + asked("SIMULATION_SEEDS").unwrap_or(few)
}

/// Runs one seed, and names it if it fails.
fn named<T>(seed: u64, run: impl FnOnce() -> T + std::panic::UnwindSafe) -> T {
    std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("with SIMULATION_FIRST={seed}"))
}
