//! Every history of two coordinators over two leases, in steps of a third of
//! a lease: each may act or be frozen, one answer may get lost or write come
//! late, and the store may once lose its last write.

use std::collections::{BTreeSet, HashSet};

use super::store::each_epoch;
use super::*;
use crate::mirror::commit::Change;

const STEPS: u64 = 6;
const FAULTS: u8 = 1;

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    store: Store,
    nodes: [Election; 2],
    late: [Option<Late>; 2],
    highest: u64,
    rewound: bool,
    /// How many more writes may come late or unheard.
    faults: u8,
}

/// A transaction in a form that can be hashed: what it expects and writes.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Late {
    fenced: bool,
    expected: Option<u64>,
    leader: Leader,
}

impl Late {
    fn of(write: &Transaction) -> Self {
        let commit = &write.commits[0];
        let Change::Put { body, .. } = &commit.change else {
            panic!("{write:?}");
        };
        Self {
            fenced: !write.guards.is_empty(),
            expected: match commit.expected {
                Expected::Absent => None,
                Expected::Revision(revision) => Some(revision.number()),
                Expected::Corrupt => panic!("{write:?}"),
            },
            leader: rmp_serde::from_slice(body).unwrap(),
        }
    }

    fn write(&self) -> Transaction {
        let revision = self.expected.map(Revision::new);
        let guards = revision.filter(|_| self.fenced).map(guard);
        let expected = revision.map_or(Expected::Absent, Expected::Revision);
        written(write(&self.leader, expected, guards.into_iter().collect()))
    }
}

impl World {
    fn apply(&mut self, write: &Transaction) -> Result<Vec<Committed>, TransactError> {
        let before = self.store.leader().map(|leader| leader.epoch);
        let outcome = self.store.apply(write);
        let after = self.store.leader().map(|leader| leader.epoch);
        if outcome.is_ok() && after != before {
            assert!(
                after > Some(self.highest),
                "{after:?} after {}",
                self.highest
            );
            self.highest = after.unwrap();
        }
        outcome
    }

    fn away() -> Result<Vec<Committed>, TransactError> {
        Err(TransactError::Unreachable(Unreachable("lost".into())))
    }

    /// The same world with small numbers: of revisions and epochs only the
    /// order matters, so worlds that differ in no more are one.
    fn canonical(mut self) -> Self {
        let mut numbers = BTreeSet::new();
        self.each_number(&mut |number| {
            numbers.insert(*number);
        });
        let numbers: Vec<u64> = numbers.into_iter().collect();
        self.each_number(&mut |number| {
            let rank = numbers.binary_search(number).unwrap();
            *number = u64::try_from(rank).unwrap() + 1;
        });
        self
    }

    /// Every revision and epoch; what a node only says of others is dropped.
    fn each_number(&mut self, visit: &mut dyn FnMut(&mut u64)) {
        visit(&mut self.highest);
        self.store.each_number(visit);
        for late in self.late.iter_mut().flatten() {
            late.expected.iter_mut().for_each(&mut *visit);
            each_epoch(&mut late.leader, visit);
        }
        for node in &mut self.nodes {
            (node.highest, node.heard) = (0, None);
            match &mut node.state {
                State::Blank | State::Standby { .. } => (),
                State::Claiming { expected, .. } => {
                    if let Known::Revision(revision) = expected {
                        let mut number = revision.number();
                        visit(&mut number);
                        *revision = Revision::new(number);
                    }
                }
                State::Leading(turn) => {
                    let mut number = turn.revision.number();
                    visit(&mut number);
                    turn.revision = Revision::new(number);
                    each_epoch(&mut turn.leader, visit);
                }
            }
        }
    }

    /// Every world that can follow.
    fn successors(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut passed = self.clone();
        passed.store.now = self.store.now.plus(LEASE / 3 + 1);
        all.push(passed);
        if !self.rewound {
            let mut back = self.clone();
            back.store.rewind();
            back.store.now = self.store.now.plus(1);
            back.rewound = true;
            all.push(back);
        }
        for at in 0..2 {
            all.extend(self.acted(at));
            if let Some(late) = &self.late[at] {
                let mut arrived = self.clone();
                arrived.apply(&late.write()).ok();
                arrived.late[at] = None;
                all.push(arrived);
            }
        }
        all
    }

    fn acted(&self, at: usize) -> Vec<Self> {
        let now = self.store.now;
        match self.nodes[at].next(now) {
            Step::Wait(_) => Vec::new(),
            Step::Look => {
                let mut looked = self.clone();
                let found = self.store.load();
                looked.nodes[at].found(found.as_ref(), now);
                vec![looked]
            }
            Step::Write(write) => {
                let mut answered = self.clone();
                let outcome = answered.apply(&write);
                answered.nodes[at].answered(outcome, now, now);
                let Some(faults) = self.faults.checked_sub(1) else {
                    return vec![answered];
                };
                let mut unheard = self.clone();
                unheard.faults = faults;
                unheard.apply(&write).ok();
                unheard.nodes[at].answered(Self::away(), now, now);
                let mut late = self.clone();
                late.faults = faults;
                late.late[at] = Some(Late::of(&write));
                late.nodes[at].answered(Self::away(), now, now);
                vec![answered, unheard, late]
            }
        }
    }

    fn check(&self) {
        let now = self.store.now;
        let leaders = self.nodes.iter().filter(|node| node.leads(now)).count();
        assert!(leaders < 2 || self.rewound, "two believe that they lead");
        let mut fenced = 0;
        for node in &self.nodes {
            if node
                .fence(now)
                .is_some_and(|fence| self.store.holds(&fence))
            {
                fenced += 1;
                let leader = self.store.leader().unwrap();
                assert!(leader.holder == *node.holder && leader.expires > now);
            }
        }
        assert!(fenced < 2, "two can write");
    }
}

#[test]
fn every_history_of_two_has_one_writer_and_rising_epochs() {
    let first = World {
        store: Store::new(T0),
        nodes: ["a", "b"].map(candidate),
        late: [None, None],
        highest: 0,
        rewound: false,
        faults: FAULTS,
    };
    let end = T0.plus(STEPS * (LEASE / 3 + 1));
    let (mut seen, mut open) = (HashSet::from([first.clone()]), vec![first]);
    let mut led = HashSet::new();
    while let Some(world) = open.pop() {
        world.check();
        for at in 0..2 {
            if world.nodes[at].leads(world.store.now) {
                led.insert((at, world.rewound));
            }
        }
        for next in world.successors() {
            let next = next.canonical();
            if next.store.now < end && seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    assert_eq!(led.len(), 4, "either may lead, before and after");
    assert!(seen.len() > 1_000, "{} worlds", seen.len());
}
