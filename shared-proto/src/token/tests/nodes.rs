//! Several nodes, one account, a store and an endpoint that rotates strictly,
//! stepped in any order: reads, locks, calls and commits interleave, calls
//! dawdle past the lock, the store loses its newest writes.

#![expect(clippy::arithmetic_side_effects, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::at;
use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::mirror::commit::{Change, Commit, CommitError, Guard, Transaction};
use crate::mirror::key::Key;
use crate::mirror::record::{Record, Revision};
use crate::token::{
    Ask, Cause, End, Judgement, LOCK_MS, Line, Read, Sealed, Seen, Settle, Spent, Status,
    StoredTokens, judge, restore, settle, take,
};

const MARK: u64 = 7;

/// One record a key, the rules of the real stores, and their memory.
#[derive(Clone, Default)]
struct Store {
    records: BTreeMap<Key, Record>,
    revision: u64,
}

impl Store {
    fn transact(&mut self, transaction: &Transaction, now: Millis) -> bool {
        let stored = |key: &Key| self.records.get(key);
        let guarded = |guard: &Guard| guard.holds(stored(&guard.key), now);
        let expected = |commit: &Commit| {
            let decided: Result<(), CommitError> = commit.decide(stored(&commit.key).map(Ok));
            decided.is_ok()
        };
        if !transaction.guards.iter().all(guarded) || !transaction.commits.iter().all(expected) {
            return false;
        }
        for commit in &transaction.commits {
            self.revision += 1;
            match &commit.change {
                Change::Delete => drop(self.records.remove(&commit.key)),
                Change::Put { body, expires_at } => {
                    let record = Record {
                        key: commit.key.clone(),
                        version: commit.version,
                        revision: Revision::new(self.revision),
                        written_at: now,
                        expires_at: *expires_at,
                        body: body.clone(),
                    };
                    self.records.insert(commit.key.clone(), record);
                }
            }
        }
        true
    }

    fn revision_of(&self, key: &Key) -> Revision {
        self.records.get(key).unwrap().revision
    }
}

#[derive(Clone, Debug, Default)]
enum Stage {
    #[default]
    Idle,
    /// It has read both records.
    Read(Seen),
    /// It holds the lock and calls.
    Calls(Seen, Spent),
    /// The endpoint has answered.
    Settles(Seen, Spent, End),
}

#[derive(Clone, Default)]
struct Node {
    stage: Stage,
    /// The newest line it knows.
    known: Option<Line>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The node goes on by one step; whether the endpoint fails, if it calls.
    Go(usize, bool),
    /// Time passes.
    Pass(u64),
    /// The node forgets what it was doing and knew.
    Crash(usize),
    /// The store goes back to what it was when last saved.
    Rewind,
    Save,
}

struct World {
    now: Millis,
    store: Store,
    saved: Store,
    nodes: Vec<Node>,
    /// Grants so far: the refresh token of this generation is the good one.
    granted: u64,
    /// Refresh tokens that reached the endpoint when they were spent already.
    reused: u32,
    crashed_in_call: bool,
    rewound: bool,
    dawdled: bool,
}

fn acme() -> ConnectionId {
    super::acme()
}

fn fresh(generation: u64, now: Millis) -> Line {
    Line {
        mark: MARK,
        status: Status {
            generation,
            expires_at: Some(now),
            obtained_at: None,
            trouble: None,
        },
        sealed: Sealed {
            key: "k".into(),
            text: generation.to_string(),
        },
        written_at: now,
    }
}

impl World {
    fn new(nodes: usize) -> Self {
        Self {
            now: at(1_000_000),
            store: Store::default(),
            saved: Store::default(),
            nodes: vec![Node::default(); nodes],
            granted: 0,
            reused: 0,
            crashed_in_call: false,
            rewound: false,
            dawdled: false,
        }
    }

    fn read(&self) -> Seen {
        let of = |key: Key| self.store.records.get(&key).cloned();
        Seen {
            tokens: Read::new(Ok(of(Key::Token(acme())))).unwrap(),
            lock: Read::new(Ok(of(Key::Refresh(acme())))).unwrap(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Pass(ms) => self.now = self.now.plus(ms),
            Step::Save => self.saved = self.store.clone(),
            Step::Rewind => {
                self.rewound = true;
                let revision = self.store.revision;
                self.store = self.saved.clone();
                // Revisions rise also over a failover.
                self.store.revision = revision;
            }
            Step::Crash(at) => {
                let node = std::mem::take(&mut self.nodes[at]);
                let in_call = matches!(node.stage, Stage::Calls(..) | Stage::Settles(..));
                // What it alone knew, or might have come to know, is gone.
                self.crashed_in_call |= in_call || node.known.is_some();
            }
            Step::Go(at, fails) => self.go(at, fails),
        }
    }

    fn go(&mut self, at: usize, fails: bool) {
        let holder = format!("node-{at}");
        let mut node = std::mem::take(&mut self.nodes[at]);
        node.stage = match node.stage {
            Stage::Idle => Stage::Read(self.read()),
            Stage::Read(seen) => self.take(&mut node.known, seen, &holder),
            Stage::Calls(seen, spent) => self.call(seen, spent, fails),
            Stage::Settles(seen, spent, end) => {
                // Others may have the lock by now, and have spent the same.
                self.dawdled |= seen.lock().is_none_or(|(lock, _)| {
                    lock.holder != holder || self.now.since(lock.since) >= LOCK_MS
                });
                self.settle(&mut node.known, &seen, spent, end)
            }
        };
        self.nodes[at] = node;
    }

    fn take(&mut self, known: &mut Option<Line>, mut seen: Seen, holder: &str) -> Stage {
        if let Some(line) = &*known
            && let Some(again) = restore(&acme(), &seen, line, self.now).unwrap()
        {
            self.store.transact(&again, self.now);
            return Stage::Idle;
        }
        let stored = seen.line(MARK).cloned();
        *known = stored.clone().or_else(|| known.take());
        let line = stored.unwrap_or_else(|| fresh(0, self.now));
        let ask = Ask {
            cause: Cause::Expired,
            generation: line.status.generation,
            holder,
            forgiven_at: None,
        };
        if judge(&line.status, seen.lock(), &ask, self.now) != Judgement::Spend {
            return Stage::Idle;
        }
        let taking = take(&acme(), &seen, &line, holder, self.now).unwrap();
        if !self.store.transact(&taking, self.now) {
            return Stage::Idle;
        }
        seen = self.read();
        let lock = self.store.revision_of(&Key::Refresh(acme()));
        Stage::Calls(seen, Spent { line, lock })
    }

    fn call(&mut self, seen: Seen, spent: Spent, fails: bool) -> Stage {
        let (lock, _) = seen.lock().unwrap();
        self.dawdled |= self.now.since(lock.since) >= LOCK_MS;
        let end = if fails {
            End::Failed {
                code: "connect".into(),
                wait_ms: None,
            }
        } else if spent.line.status.generation == self.granted {
            self.granted += 1;
            End::Granted(fresh(self.granted, self.now))
        } else {
            self.reused += 1;
            End::Refused {
                code: "invalid_grant".into(),
            }
        };
        Stage::Settles(seen, spent, end)
    }

    fn settle(&mut self, known: &mut Option<Line>, seen: &Seen, spent: Spent, end: End) -> Stage {
        match settle(&acme(), seen, &spent, &end, self.now).unwrap() {
            Settle::Superseded => Stage::Idle,
            Settle::Commit(commit, tokens) => {
                if self.store.transact(&commit, self.now) {
                    *known = tokens.line(MARK).cloned();
                    return Stage::Idle;
                }
                Stage::Settles(self.read(), spent, end)
            }
        }
    }

    fn stored(&self) -> Option<StoredTokens> {
        self.read().tokens.state
    }

    /// Lets every node finish what it does, by itself.
    fn finish(&mut self) {
        for at in 0..self.nodes.len() {
            for _ in 0..8 {
                match self.nodes[at].stage {
                    Stage::Idle => break,
                    Stage::Read(_) => self.nodes[at].stage = Stage::Idle,
                    Stage::Calls(..) | Stage::Settles(..) => self.go(at, false),
                }
            }
        }
    }
}

fn steps(harsh: bool) -> impl Strategy<Value = Vec<Step>> {
    let go = (0_usize..3, prop::bool::weighted(0.2)).prop_map(|(at, fails)| Step::Go(at, fails));
    let pass = prop_oneof![8 => 0_u64..500, 2 => 2_000_u64..10_000].prop_map(Step::Pass);
    let long = (LOCK_MS..LOCK_MS * 2).prop_map(Step::Pass);
    let rare = prop_oneof![
        3 => long,
        2 => (0_usize..3).prop_map(Step::Crash),
        1 => Just(Step::Rewind),
        2 => Just(Step::Save),
    ];
    let rarity = u32::from(harsh);
    prop::collection::vec(prop_oneof![16 => go, 4 => pass, rarity => rare], 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// Without crashes, and with calls that end within the lock: each refresh
    /// token is spent once, and the newest tokens are stored.
    #[test]
    fn each_refresh_token_is_spent_once(steps in steps(false)) {
        let mut world = World::new(3);
        for step in steps {
            world.step(step);
        }
        world.finish();
        if !world.dawdled {
            prop_assert_eq!(world.reused, 0);
        }
        if let Some(stored) = world.stored() {
            let line = stored.line(MARK).unwrap();
            prop_assert_eq!(line.status.generation, world.granted);
            prop_assert_eq!(&line.sealed.text, &world.granted.to_string());
            prop_assert!(!line.status.is_refused(None));
        } else {
            prop_assert_eq!(world.granted, 0);
        }
    }

    /// Whatever happens: nobody writes over newer tokens, and as long as no node
    /// died with an answer, the newest are stored once all that know have told.
    #[test]
    fn no_grant_is_lost_but_with_its_node(steps in steps(true)) {
        let mut world = World::new(3);
        let mut newest = 0;
        for step in steps {
            let rewinds = matches!(step, Step::Rewind);
            world.step(step);
            let generation = world
                .stored()
                .and_then(|stored| stored.line(MARK).map(|line| line.status.generation));
            let generation = generation.unwrap_or(0);
            prop_assert!(rewinds || generation >= newest);
            newest = generation;
        }
        if world.crashed_in_call {
            return Ok(());
        }
        world.finish();
        // Once more, so that whoever knows more than the store tells it.
        for at in 0..3 {
            world.go(at, true);
            world.go(at, true);
            world.nodes[at].stage = Stage::Idle;
        }
        if world.granted > 0 {
            let stored = world.stored().unwrap();
            let line = stored.line(MARK).unwrap();
            prop_assert_eq!(line.status.generation, world.granted);
        }
        if !world.rewound && !world.dawdled {
            prop_assert_eq!(world.reused, 0);
        }
    }
}
