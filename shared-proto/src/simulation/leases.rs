//! Leases over three nodes: each has a table that follows the log, runs
//! operations, and cuts what is in flight; each may freeze, die, or lose the
//! store, and the store may lose its last writes.

mod clients;
mod faults;
mod flights;
mod storing;

use std::collections::BTreeMap;

use super::store::Store;
use super::{Agenda, Dice, named, seeds};
use crate::clock::Millis;
use crate::lease::tests::T0;
use crate::lease::tests::audit::{Audit, Underway, exclusive};
use crate::lease::tests::driver::{Op, Question, Reply};
use crate::lease::{Flight, Generation, LeaseRules, LeaseTable};
use crate::mirror::hold::Holder;
use crate::mirror::record::Record;

const NODES: usize = 3;
const OWNERS: [char; 4] = ['A', 'B', 'C', 'D'];
const CONNECTIONS: [&str; 3] = ["c1", "c2", "c3"];
/// How long one run lasts, virtual ms.
const RUN_MS: u64 = 60_000;
/// The most that a node's clock is behind the store's, ms.
const LAG_MS: u64 = 100;
/// How long an operation waits for the store altogether, ms.
const DEADLINE_MS: u64 = 1_000;
const KEEP_EVERY_MS: u64 = 5_000;

#[derive(Clone, Debug)]
enum Event {
    /// Somebody asks something of some node.
    Client,
    ToStore {
        from: Link,
        call: u64,
        question: Question,
        asked_at: Millis,
    },
    FromStore {
        from: Link,
        call: u64,
        reply: Reply,
        asked_at: Millis,
    },
    Deadline {
        node: usize,
        call: u64,
    },
    Poll(usize),
    Polled {
        from: Link,
        asked_at: Millis,
        news: News,
    },
    /// The watch of that number; one planned since has taken its place.
    Watch(usize, u64),
    Keep {
        node: usize,
        name: usize,
    },
    Done {
        node: usize,
        name: usize,
    },
    Fault,
    Heal(usize, Fault),
    Replicate,
    /// The replica takes the store's place.
    Promote,
}

/// A connection from one life of a node to one life of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    node: usize,
    life: u64,
    store: u64,
}

#[derive(Clone, Debug)]
enum News {
    Entries(Vec<Record>, usize),
    Snapshot(Vec<Record>, usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Frozen,
    Cut,
}

struct Node {
    lag_ms: u64,
    life: u64,
    frozen: bool,
    cut_off: bool,
    table: LeaseTable,
    /// The life of the store and the entry of its log that it has read up to.
    read: (u64, usize),
    confirmed_at: Millis,
    ops: BTreeMap<u64, Op>,
    flights: BTreeMap<usize, Flight>,
    watches: u64,
    /// What came while it was frozen.
    waiting: Vec<Event>,
}

struct Cluster {
    dice: Dice,
    agenda: Agenda<Event>,
    store: Store,
    log: Vec<Record>,
    /// Rises when the store is replaced.
    life: u64,
    /// Between two stores.
    down: bool,
    replica: (Store, usize),
    nodes: Vec<Node>,
    underway: Vec<Underway>,
    /// When the leases of what is under way ended, as far as that is past.
    over_since: BTreeMap<usize, Millis>,
    told: BTreeMap<usize, Generation>,
    rules: LeaseRules,
    audit: Audit,
    calls: u64,
    met: Met,
}

/// What came about over all runs, to know that they are not empty.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    sent: u64,
    cut: u64,
    handed_over: u64,
    fenced: u64,
    failovers: u64,
    steps: u64,
}

impl Cluster {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let rules = LeaseRules::new(dice.within(1_000, 6_000), dice.within(500, 2_500), 0);
        let store = Store::at(T0);
        let node = |dice: &mut Dice| Node {
            lag_ms: dice.within(0, LAG_MS),
            life: 0,
            frozen: false,
            cut_off: false,
            table: LeaseTable::new(),
            read: (0, 0),
            confirmed_at: Millis::default(),
            ops: BTreeMap::new(),
            flights: BTreeMap::new(),
            watches: 0,
            waiting: Vec::new(),
        };
        let mut cluster = Self {
            nodes: (0..NODES).map(|_| node(&mut dice)).collect(),
            dice,
            agenda: Agenda::new(),
            replica: (store.clone(), 0),
            store,
            log: Vec::new(),
            life: 0,
            down: false,
            underway: Vec::new(),
            over_since: BTreeMap::new(),
            told: BTreeMap::new(),
            rules,
            audit: Audit::default(),
            calls: 0,
            met: Met::default(),
        };
        cluster.agenda.plan(T0, Event::Client);
        cluster.agenda.plan(T0.plus(2_000), Event::Fault);
        cluster.agenda.plan(T0, Event::Replicate);
        for node in 0..NODES {
            cluster.agenda.plan(T0, Event::Poll(node));
        }
        cluster
    }

    fn run(mut self) -> Met {
        while let Some((at, event)) = self.agenda.next() {
            if at > T0.plus(RUN_MS) {
                break;
            }
            self.store.now = self.store.now.max(at);
            self.met.steps += 1;
            self.happens(event);
            exclusive(&self.store).unwrap();
            self.nothing_outlives_its_lease();
        }
        self.met
    }

    fn now(&self, node: usize) -> Millis {
        self.store.now.minus(self.nodes[node].lag_ms)
    }

    fn plan(&mut self, after_ms: u64, event: Event) {
        self.agenda.plan(self.store.now.plus(after_ms), event);
    }

    fn reaches(&self, node: usize) -> bool {
        let Node {
            frozen, cut_off, ..
        } = &self.nodes[node];
        !frozen && !cut_off && !self.down
    }

    fn link(&self, node: usize) -> Link {
        Link {
            node,
            life: self.nodes[node].life,
            store: self.life,
        }
    }

    /// A message takes a while; sometimes a long while, sometimes for ever.
    fn send(&mut self, event: Event) {
        if self.dice.percent(3) {
            return;
        }
        let long = self.dice.percent(2);
        let ms = self.dice.within(1, if long { 900 } else { 30 });
        self.plan(ms, event);
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Client => self.client(),
            Event::ToStore {
                from,
                call,
                question,
                asked_at,
            } => {
                self.at_store(from, call, question, asked_at);
            }
            Event::FromStore { from, .. } | Event::Polled { from, .. }
                if self.nodes[from.node].life != from.life => {}
            Event::FromStore { from, .. } | Event::Polled { from, .. }
                if self.nodes[from.node].frozen =>
            {
                self.nodes[from.node].waiting.push(event);
            }
            Event::FromStore {
                from,
                call,
                reply,
                asked_at,
            } => {
                self.answered(from.node, call, reply, asked_at);
            }
            Event::Deadline { node, call } => {
                self.nodes[node].ops.remove(&call);
            }
            Event::Poll(node) => self.poll(node),
            Event::Polled {
                from,
                asked_at,
                news,
            } => self.polled(from, asked_at, news),
            Event::Watch(node, number) if number == self.nodes[node].watches => self.watch(node),
            Event::Watch(..) => {}
            Event::Keep { node, name } => self.keep(node, name),
            Event::Done { node, name } => self.done(node, name),
            Event::Fault => self.fault(),
            Event::Heal(node, fault) => self.heal(node, fault),
            Event::Replicate => {
                let lags = self.dice.percent(40);
                if !lags && !self.down {
                    self.replica = (self.store.clone(), self.log.len());
                }
                let ms = self.dice.within(5, 300);
                self.plan(ms, Event::Replicate);
            }
            Event::Promote => self.promote(),
        }
    }
}

fn holder(name: usize) -> Holder {
    Holder(name.to_string().into())
}

#[test]
fn leases_hold_over_a_bad_network() {
    let mut all = Met::default();
    for seed in seeds(25) {
        let met = named(seed, || Cluster::new(seed).run());
        all.sent += met.sent;
        all.cut += met.cut;
        all.handed_over += met.handed_over;
        all.fenced += met.fenced;
        all.failovers += met.failovers;
        all.steps += met.steps;
    }
    let Met {
        sent,
        cut,
        handed_over,
        fenced,
        failovers,
        ..
    } = all;
    let counts = [sent, cut, handed_over, fenced, failovers];
    assert!(counts.iter().all(|count| *count > 0), "{all:?}");
}

#[test]
fn one_seed_is_one_run() {
    let steps = |seed| format!("{:?}", Cluster::new(seed).run());
    assert_eq!(steps(7), steps(7));
}
