//! One connection's health, owned on three nodes: each applies what its own
//! requests met, commits with compare-and-set, and on a conflict applies again
//! what the newer record lacks. Messages are late and lost, and the store may
//! lose its last writes; then the nodes tell it again what they told lately.

mod fate;
mod owner;

use std::collections::BTreeMap;

use fate::{Fate, Met, failure};
use owner::Owner;

use super::store::{Kept, Store};
use super::{Agenda, Dice, named, seeds};
use crate::clock::Millis;
use crate::health::{ConnectionHealth, HealthEvent, HealthRules, Outcome};
use crate::lease::tests::T0;
use crate::mirror::commit::{Commit, Expected, TransactError};
use crate::mirror::key::Key;
use crate::mirror::record::{Record, Revision};
use crate::rotation::RotationRules;

const NODES: usize = 3;
/// How long a commit is waited for, ms.
const COMMIT_MS: u64 = 250;
/// How long what was acknowledged is kept to be told again, ms.
const TELL_AGAIN_MS: u64 = 30_000;
/// How long the store takes to be replaced at most, ms.
const FAILOVER_MS: u64 = 500;

const RULES: HealthRules = HealthRules {
    base_ms: 3_000,
    max_steps: 5,
    cap_ms: 1_800_000,
    use_hints: true,
    disable_cooling: false,
    auto_disable_banned: false,
    credential: None,
    rotation: RotationRules::DEFAULT,
};

#[derive(Clone, Debug)]
enum Event {
    Meets {
        node: usize,
        met: Met,
    },
    ToStore {
        node: usize,
        try_: u64,
        life: u64,
        commit: Commit,
        lineage: Lineage,
    },
    FromStore {
        node: usize,
        try_: u64,
        result: Result<Revision, Option<Record>>,
    },
    Timeout {
        node: usize,
        try_: u64,
    },
    Poll(usize),
    Polled {
        node: usize,
        life: u64,
        newest: Option<Record>,
    },
    Failover,
    Replicate,
}

/// The fates that were counted in a state, and how.
type Lineage = Vec<(usize, Outcome)>;

struct Cluster {
    dice: Dice,
    agenda: Agenda<Event>,
    store: Store,
    life: u64,
    replica: Store,
    owners: Vec<Owner>,
    /// What each stored state is made of: the fates that were counted in it.
    lineage: BTreeMap<u64, Lineage>,
    fates: Vec<Fate>,
    tries: u64,
    conflicts: u64,
    lost: u64,
}

fn lineage_of(known: &BTreeMap<u64, Lineage>, revision: Option<Revision>) -> Lineage {
    revision
        .map(|revision| known[&revision.number()].clone())
        .unwrap_or_default()
}

fn key() -> Key {
    Key::Health("c1".into())
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let mut cluster = Self {
            agenda: Agenda::new(),
            store: Store::at(T0),
            replica: Store::at(T0),
            life: 0,
            owners: (0..NODES).map(|_| Owner::default()).collect(),
            lineage: BTreeMap::new(),
            fates: Vec::new(),
            tries: 0,
            conflicts: 0,
            lost: 0,
            dice: Dice(dice.roll()),
        };
        cluster.plan_fates();
        for node in 0..NODES {
            cluster.agenda.plan(T0, Event::Poll(node));
        }
        cluster.agenda.plan(T0, Event::Replicate);
        cluster
    }

    /// Fates far enough apart for all nodes to have heard of one before the
    /// next, and each met within the cooldown that it brings.
    fn plan_fates(&mut self) {
        let mut at = T0.plus(3_000);
        let mut reference = ConnectionHealth::default();
        for fate in 0..self.dice.index(8) + 2 {
            let what = match self.dice.within(0, 9) {
                0 => Fate::Refused,
                1 | 2 => Fate::Reset,
                3 => Fate::Recovered,
                _ => Fate::Outage,
            };
            self.fates.push(what);
            let requests = match what {
                Fate::Reset | Fate::Recovered => 1,
                Fate::Outage | Fate::Refused => self.dice.within(1, 8),
            };
            for request in 0..requests {
                let started_at = at.minus(self.dice.within(0, 400));
                let met_at = at.plus(if request == 0 {
                    0
                } else {
                    self.dice.within(0, 2_500)
                });
                let event = match what {
                    Fate::Outage | Fate::Refused => HealthEvent::Failed {
                        started_at,
                        failure: failure(what),
                    },
                    Fate::Reset => HealthEvent::Reset,
                    Fate::Recovered => HealthEvent::Succeeded { started_at: at },
                };
                let met = Met {
                    fate,
                    event,
                    at: met_at,
                    outcome: None,
                };
                if request == 0 {
                    reference = reference.step(&met.event, met.at, &RULES).state;
                }
                let node = self.dice.index(NODES);
                self.agenda.plan(met_at, Event::Meets { node, met });
            }
            if self.dice.percent(40) {
                let late_ms = self.dice.within(0, 2_000);
                self.agenda.plan(at.plus(late_ms), Event::Failover);
            }
            at = at.plus(reference.remaining_ms(at) + 8_000);
        }
    }

    fn run(mut self) -> (u64, u64) {
        let end = loop {
            let Some((at, event)) = self.agenda.next() else {
                panic!("the polls have ended")
            };
            self.store.now = self.store.now.max(at);
            let is_over = matches!(event, Event::Poll(_)) && at > self.quiet();
            if is_over {
                break self.store.now;
            }
            self.happens(event);
        };
        self.settled(end);
        (self.conflicts, self.lost)
    }

    /// Well after the last fate.
    fn quiet(&self) -> Millis {
        T0.plus(self.fates.len() as u64 * 110_000)
    }

    fn plan(&mut self, after_ms: u64, event: Event) {
        self.agenda.plan(self.store.now.plus(after_ms), event);
    }

    fn send(&mut self, event: Event) {
        if self.dice.percent(15) {
            return;
        }
        let ms = self.dice.within(1, 120);
        self.plan(ms, event);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Meets { node, mut met } => {
                met.at = self.store.now;
                if self.owners[node].apply(met) {
                    self.commit(node);
                }
            }
            Event::ToStore {
                node,
                try_,
                life,
                commit,
                lineage,
            } => {
                if life == self.life {
                    let result = self.store(&commit, lineage);
                    self.send(Event::FromStore { node, try_, result });
                }
            }
            Event::FromStore { node, try_, result } => self.answered(node, try_, result),
            Event::Timeout { node, try_ } => {
                if self.owners[node]
                    .in_flight
                    .is_some_and(|(at, _)| at == try_)
                {
                    self.owners[node].in_flight = None;
                    self.commit(node);
                }
            }
            Event::Poll(node) => {
                let newest = self.store.load(&key());
                self.send(Event::Polled {
                    node,
                    life: self.life,
                    newest,
                });
                let ms = self.dice.within(20, 80);
                self.plan(ms, Event::Poll(node));
            }
            Event::Polled { node, life, newest } => self.polled(node, life, newest.as_ref()),
            Event::Failover => self.failover(),
            Event::Replicate => {
                if self.dice.percent(50) {
                    self.replica = self.store.clone();
                }
                self.plan(100, Event::Replicate);
            }
        }
    }

    fn commit(&mut self, node: usize) {
        let owner = &mut self.owners[node];
        if owner.in_flight.is_some() || owner.pending.is_empty() && !owner.lost {
            return;
        }
        self.tries += 1;
        let try_ = self.tries;
        owner.in_flight = Some((try_, owner.pending.len()));
        let expected = owner.stored.map_or(Expected::Absent, Expected::Revision);
        let commit = Commit::put(key(), expected, &owner.state).unwrap();
        let mut lineage = owner.lineage.clone();
        let pending = owner.pending.iter();
        lineage.extend(pending.filter_map(|met| Some((met.fate, met.outcome?))));
        let life = owner.life;
        self.send(Event::ToStore {
            node,
            try_,
            life,
            commit,
            lineage,
        });
        self.plan(COMMIT_MS, Event::Timeout { node, try_ });
    }

    fn store(&mut self, commit: &Commit, lineage: Lineage) -> Result<Revision, Option<Record>> {
        match self.store.transact(&commit.clone().into()) {
            Ok(committed) => {
                self.counted_once(&lineage);
                self.lineage.insert(committed[0].revision.number(), lineage);
                Ok(committed[0].revision)
            }
            Err(TransactError::Conflict { newest, .. }) => {
                self.conflicts += 1;
                Err(newest.into_iter().find_map(|(_, record)| record))
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// 7: in what is stored, no outage was counted twice, nor anything else.
    fn counted_once(&self, lineage: &[(usize, Outcome)]) {
        let counts =
            |outcome: &Outcome| matches!(outcome, Outcome::Cooled { .. } | Outcome::Terminal(_));
        let mut counted: Vec<_> = lineage.iter().filter(|(_, o)| counts(o)).collect();
        counted.sort_by_key(|(fate, _)| *fate);
        for pair in counted.windows(2) {
            assert_ne!(
                pair[0].0, pair[1].0,
                "7: twice in {lineage:?} of {:?}",
                self.fates
            );
        }
    }

    fn answered(&mut self, node: usize, try_: u64, result: Result<Revision, Option<Record>>) {
        let now = self.store.now;
        let owner = &mut self.owners[node];
        if owner.in_flight.is_none_or(|(at, _)| at != try_) {
            return;
        }
        match result {
            Ok(revision) => {
                let lineage = lineage_of(&self.lineage, Some(revision));
                owner.committed(revision, lineage, now);
            }
            Err(newest) => {
                let revision = newest.as_ref().map(|record| record.revision);
                owner.rebase(newest.as_ref(), lineage_of(&self.lineage, revision));
            }
        }
        self.commit(node);
    }

    fn polled(&mut self, node: usize, life: u64, newest: Option<&Record>) {
        if life != self.life {
            return;
        }
        let owner = &mut self.owners[node];
        let revision = newest.map(|record| record.revision);
        if owner.life != life {
            owner.life = life;
            owner.rewound(newest, lineage_of(&self.lineage, revision));
        } else if owner.in_flight.is_none() && revision > owner.stored {
            owner.rebase(newest, lineage_of(&self.lineage, revision));
        }
        self.commit(node);
    }

    fn failover(&mut self) {
        let was = self.store.load(&key()).as_ref().map(Kept::of);
        let is = self.replica.load(&key()).as_ref().map(Kept::of);
        self.lost += u64::from(was != is);
        let ms = self.dice.within(1, FAILOVER_MS);
        let now = self.store.now.plus(ms);
        self.store = self.replica.clone();
        self.store.now = now;
        self.life += 1;
    }

    /// 8: when all is told, the store says what one node would have known that
    /// had met everything by itself: every outage counted, no terminal state
    /// lost, none left that was reset.
    fn settled(&self, now: Millis) {
        let record = self.store.load(&key());
        let state: ConnectionHealth = record.map(|r| r.decode().unwrap()).unwrap_or_default();
        let mut level = 0;
        let mut is_terminal = false;
        for fate in &self.fates {
            match fate {
                Fate::Outage if is_terminal => {}
                Fate::Outage => level = (level + 1).min(RULES.max_steps),
                Fate::Refused => (is_terminal, level) = (true, 0),
                Fate::Reset | Fate::Recovered => (is_terminal, level) = (false, 0),
            }
        }
        assert_eq!(state.terminal.is_some(), is_terminal, "8: {:?}", self.fates);
        assert_eq!(state.backoff_level, level, "8: {:?}", self.fates);
        for owner in &self.owners {
            assert_eq!(
                owner.state, state,
                "8: a node knows something else at {now:?}"
            );
        }
    }
}

#[test]
fn nothing_is_counted_twice_or_lost() {
    let (mut conflicts, mut lost) = (0, 0);
    for seed in seeds(150) {
        let met = named(seed, || Cluster::new(seed).run());
        conflicts += met.0;
        lost += met.1;
    }
    assert!(conflicts > 0 && lost > 0);
}
