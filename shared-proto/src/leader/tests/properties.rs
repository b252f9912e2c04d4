//! Random histories: several coordinators whose clocks are behind, whose
//! answers get lost or come late, that freeze, over a store that now and then
//! loses its last write.

use proptest::prelude::*;

use super::*;

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Pass(u64),
    /// One of them does what it has to do, and this becomes of it.
    Act(usize, Fate),
    /// A write that was on its way arrives.
    Arrive(usize),
    Resign(usize),
    Write(usize),
    Rewind,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    /// Done, but the answer is lost.
    Unheard,
    /// Not done.
    Lost,
    /// Not done yet.
    Late,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let fate = prop_oneof![
        6 => Just(Fate::Answered),
        1 => Just(Fate::Unheard),
        1 => Just(Fate::Lost),
        1 => Just(Fate::Late),
    ];
    let next = prop_oneof![
        4 => (1..LEASE / 2).prop_map(Move::Pass),
        9 => (0..3_usize, fate).prop_map(|(at, fate)| Move::Act(at, fate)),
        1 => (0..3_usize).prop_map(Move::Arrive),
        1 => (0..3_usize).prop_map(Move::Resign),
        3 => (0..3_usize).prop_map(Move::Write),
        1 => Just(Move::Rewind),
    ];
    proptest::collection::vec(next, 1..120)
}

struct World {
    store: Store,
    nodes: [Election; 3],
    behind: [u64; 3],
    late: [Option<Transaction>; 3],
    /// The highest epoch that was ever written, lost or not.
    highest: u64,
    rewound: Option<Millis>,
}

impl World {
    fn new(behind: [u64; 3]) -> Self {
        Self {
            store: Store::new(T0),
            nodes: ["a", "b", "c"].map(candidate),
            behind,
            late: [None, None, None],
            highest: 0,
            rewound: None,
        }
    }

    fn now(&self, at: usize) -> Millis {
        self.store.now.minus(self.behind[at])
    }

    fn apply(&mut self, write: &Transaction) -> Result<Vec<Committed>, TransactError> {
        let before = self.store.leader().map(|leader| leader.epoch);
        let outcome = self.store.apply(write);
        let after = self.store.leader().map(|leader| leader.epoch);
        if outcome.is_ok() && after != before {
            let epoch = after.unwrap();
            assert!(epoch > self.highest, "epoch {epoch} after {}", self.highest);
            self.highest = epoch;
        }
        outcome
    }

    fn act(&mut self, at: usize, fate: Fate) {
        let now = self.now(at);
        let away = || Err(TransactError::Unreachable(Unreachable("lost".into())));
        match self.nodes[at].next(now) {
            Step::Wait(until) => assert!(until > now, "it waits for what is past"),
            Step::Look => {
                if matches!(fate, Fate::Answered) {
                    let found = self.store.load();
                    self.nodes[at].found(found.as_ref(), now);
                }
            }
            Step::Write(write) => {
                let outcome = match fate {
                    Fate::Answered => self.apply(&write),
                    Fate::Unheard => self.apply(&write).and_then(|_| away()),
                    Fate::Lost => away(),
                    Fate::Late => {
                        self.late[at] = Some(write);
                        away()
                    }
                };
                self.nodes[at].answered(outcome, now, now);
            }
        }
    }

    fn step(&mut self, next: Move) {
        match next {
            Move::Pass(ms) => self.store.now = self.store.now.plus(ms),
            Move::Act(at, fate) => self.act(at, fate),
            Move::Arrive(at) => {
                if let Some(write) = self.late[at].take() {
                    self.apply(&write).ok();
                }
            }
            Move::Resign(at) => {
                if let Some(write) = self.nodes[at].resign(self.now(at)) {
                    self.apply(&write).ok();
                    self.nodes[at] = Election::new(["a", "b", "c"][at], self.highest, LEASE);
                }
            }
            Move::Write(at) => self.write(at),
            Move::Rewind => {
                self.store.rewind();
                self.store.now = self.store.now.plus(1 + SLACK_MS);
                self.rewound = Some(self.store.now);
            }
        }
    }

    /// A fence that holds is that of the one leader that the store knows.
    fn write(&self, at: usize) {
        let Some(fence) = self.nodes[at].fence(self.now(at)) else {
            return;
        };
        if self.store.holds(&fence) {
            let leader = self.store.leader().unwrap();
            assert_eq!(leader.holder, *self.nodes[at].holder);
            assert_eq!(leader.instance, self.nodes[at].instance);
            assert_eq!(leader.epoch, self.nodes[at].leader().unwrap().epoch);
        }
    }

    fn check(&self) {
        for at in 0..3 {
            self.write(at);
        }
        let sound = |at: Millis| self.store.now.since(at) > 2 * LEASE;
        if self.rewound.is_none_or(sound) {
            let leads = |at: &usize| self.nodes[*at].leads(self.now(*at));
            let leaders: Vec<usize> = (0..3).filter(leads).collect();
            assert!(leaders.len() < 2, "{leaders:?} believe that they lead");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn there_is_one_leader_and_epochs_rise(
        behind in proptest::array::uniform3(0..SLACK_MS),
        moves in moves(),
    ) {
        let mut world = World::new(behind);
        for next in moves {
            world.step(next);
            world.check();
        }
    }

    /// Left alone with a store that answers, one leads within two leases.
    #[test]
    fn one_comes_to_lead(behind in proptest::array::uniform3(0..SLACK_MS), moves in moves()) {
        let mut world = World::new(behind);
        for next in moves {
            world.step(next);
        }
        world.late = [None, None, None];
        let end = world.store.now.plus(2 * LEASE);
        while world.store.now < end {
            for at in 0..3 {
                for _ in 0..4 {
                    world.act(at, Fate::Answered);
                }
            }
            world.store.now = world.store.now.plus(LEASE / 10);
        }
        let leaders = (0..3).filter(|at| world.nodes[*at].leads(world.now(*at)));
        prop_assert_eq!(leaders.count(), 1);
    }
}
