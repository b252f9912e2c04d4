//! Leases over three nodes: each has a table that follows the log, runs
//! operations, and cuts what is in flight; each may freeze, die, or lose the
//! store, and the store may lose its last writes.

use std::collections::BTreeMap;

use super::store::Store;
use super::{Agenda, Dice, named, seeds};
use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::lease::tests::audit::{Audit, Underway, changed_hands, exclusive, handed_over, sent};
use crate::lease::tests::driver::{Around, Ask, Ended, Op, Question, Reply};
use crate::lease::tests::{HOLD_MS, T0, candidates, owner};
use crate::lease::{
    Candidate, Flight, Generation, LeaseRules, LeaseTable, Presented, Verdict, watch,
};
use crate::mirror::hold::{Holder, Taken};
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

    // === clients ===

    fn some_candidates(&mut self) -> Vec<Candidate> {
        let names: Vec<_> = CONNECTIONS
            .into_iter()
            .filter(|_| self.dice.percent(60))
            .collect();
        candidates(&names)
    }

    fn client(&mut self) {
        let ms = self.dice.within(1, 120);
        self.plan(ms, Event::Client);
        let (node, who) = (self.dice.index(NODES), self.dice.index(OWNERS.len()));
        if self.nodes[node].frozen {
            return;
        }
        let told = self.told.get(&who).copied();
        let ask = match (self.dice.within(0, 12), told) {
            (0..=2, _) | (_, None) => Ask::Acquire(self.some_candidates()),
            (3..=5, Some(generation)) => Ask::Renew(generation),
            (6, Some(generation)) => Ask::Release(generation),
            (7, Some(generation)) => Ask::Status(generation),
            (8, Some(generation)) if self.dice.percent(10) => Ask::Revoke(generation),
            (9, Some(_)) => Ask::Expire,
            (_, Some(generation)) => Ask::Dispatch(generation, self.some_candidates()),
        };
        self.calls += 1;
        let call = self.calls;
        let name = usize::try_from(call).unwrap();
        let mut op = Op::new(&owner(OWNERS[who]), ask, self.now(node)).named(name);
        if self.dice.percent(2) {
            op = op.with_key("K2");
        }
        self.nodes[node].ops.insert(call, op);
        self.plan(DEADLINE_MS, Event::Deadline { node, call });
        self.ask(node, call);
    }

    /// Sends what an operation wants of the store, or ends it.
    fn ask(&mut self, node: usize, call: u64) {
        let asked_at = self.now(node);
        let rules = self.rules;
        let Node { table, ops, .. } = &mut self.nodes[node];
        let Some(op) = ops.get_mut(&call) else {
            return;
        };
        match op.question(Around { table, rules }) {
            Ok(question) => {
                let from = self.link(node);
                self.send(Event::ToStore {
                    from,
                    call,
                    question,
                    asked_at,
                });
            }
            Err(ended) => self.ended(node, call, ended, asked_at),
        }
    }

    fn answered(&mut self, node: usize, call: u64, reply: Reply, asked_at: Millis) {
        let now = self.now(node);
        let Some(op) = self.nodes[node].ops.get_mut(&call) else {
            // Nobody waits for it any more; a place that was taken lapses.
            return;
        };
        match op.answered(reply, now) {
            Some(ended) => self.ended(node, call, ended, asked_at),
            None => self.ask(node, call),
        }
    }

    fn ended(&mut self, node: usize, call: u64, ended: Ended, asked_at: Millis) {
        let Some(op) = self.nodes[node].ops.remove(&call) else {
            return;
        };
        let who = OWNERS.iter().position(|letter| owner(*letter) == op.owner);
        match (ended, who) {
            (Ended::With(Ok(binding)), Some(who)) if op.api_key.as_str() == "K1" => {
                self.told.insert(who, binding.lease.generation);
            }
            (Ended::With(_), _) => {}
            (Ended::Sent(binding), _) => {
                let flight = Flight {
                    presented: Presented {
                        owner: op.owner.clone(),
                        generation: binding.lease.generation,
                        api_key: op.api_key.clone(),
                    },
                    connection: binding.lease.connection.clone(),
                    revision: binding.revision,
                    granted_until: binding.lease.expires_at,
                    passed_at: asked_at,
                };
                self.goes_out(node, op.name, flight);
            }
        }
    }

    // === what is in flight ===

    fn goes_out(&mut self, node: usize, name: usize, flight: Flight) {
        // The answer may have been long on its way.
        if self.judge(node, &flight) == Verdict::Cut {
            self.give_back(node, name, &flight.connection);
            return;
        }
        let underway = Underway {
            name,
            owner: flight.presented.owner.clone(),
            generation: flight.presented.generation,
            connection: flight.connection.clone(),
            is_lost: !self.store.is_held(&flight.connection, &holder(name)),
        };
        self.alone(&underway);
        self.underway.push(underway);
        self.met.sent += 1;
        self.nodes[node].flights.insert(name, flight);
        self.watch(node);
        self.plan(KEEP_EVERY_MS, Event::Keep { node, name });
        let long = self.dice.percent(20);
        let ms = self.dice.within(10, if long { 20_000 } else { 1_500 });
        self.plan(ms, Event::Done { node, name });
    }

    /// 5: nothing goes out on a connection on which another owner's request
    /// is, except beside a frozen node's, which does not count for ever.
    fn alone(&self, underway: &Underway) {
        for other in &self.underway {
            let beside = other.connection == underway.connection
                && other.owner != underway.owner
                && !other.is_lost
                && !underway.is_lost;
            if beside {
                let node = self
                    .nodes
                    .iter()
                    .find(|n| n.flights.contains_key(&other.name));
                let frozen = node.is_none_or(|node| node.frozen);
                assert!(frozen, "5: {underway:?} goes out beside {other:?}");
            }
        }
    }

    fn judge(&self, node: usize, flight: &Flight) -> Verdict {
        let Node {
            table,
            confirmed_at,
            ..
        } = &self.nodes[node];
        let known = table.lease(&flight.presented.owner);
        watch(known, flight, *confirmed_at, &self.rules, self.now(node))
    }

    /// Cuts what is to be cut, and plans the next look at the rest. A frozen
    /// node looks when it goes on.
    fn watch(&mut self, node: usize) {
        if self.nodes[node].frozen {
            return;
        }
        let mut next: Option<Millis> = None;
        for (name, flight) in self.nodes[node].flights.clone() {
            match self.judge(node, &flight) {
                Verdict::GoesOn { until } => {
                    next = Some(next.map_or(until, |next| next.min(until)));
                }
                Verdict::Cut => {
                    self.met.cut += 1;
                    self.land(node, name, &flight.connection);
                }
            }
        }
        self.nodes[node].watches += 1;
        if let Some(next) = next {
            let number = self.nodes[node].watches;
            let ms = next.since(self.now(node));
            self.plan(ms, Event::Watch(node, number));
        }
    }

    fn done(&mut self, node: usize, name: usize) {
        if self.nodes[node].frozen {
            self.nodes[node].waiting.push(Event::Done { node, name });
        } else if let Some(flight) = self.nodes[node].flights.get(&name).cloned() {
            self.land(node, name, &flight.connection);
        }
    }

    fn land(&mut self, node: usize, name: usize, connection: &ConnectionId) {
        self.nodes[node].flights.remove(&name);
        self.underway.retain(|underway| underway.name != name);
        self.give_back(node, name, connection);
    }

    fn give_back(&mut self, node: usize, name: usize, connection: &ConnectionId) {
        // One message, which may be lost like any other.
        if self.reaches(node) && !self.dice.percent(3) {
            self.store.give_back(connection, &holder(name));
        }
    }

    fn keep(&mut self, node: usize, name: usize) {
        let Some(flight) = self.nodes[node].flights.get(&name).cloned() else {
            return;
        };
        if self.reaches(node) && !self.store.keep(&flight.connection, &holder(name), HOLD_MS) {
            self.met.cut += 1;
            self.land(node, name, &flight.connection);
        }
        self.plan(KEEP_EVERY_MS, Event::Keep { node, name });
    }

    /// 6: what is in flight on a node that runs is cut at the latest a grace
    /// after its lease is over.
    fn nothing_outlives_its_lease(&mut self) {
        let store = &self.store;
        let mut over = BTreeMap::new();
        for underway in &self.underway {
            if sent(store, underway).is_err() {
                let since = self.over_since.get(&underway.name).copied();
                over.insert(underway.name, since.unwrap_or(store.now));
            }
        }
        self.over_since = over;
        for node in self.nodes.iter().filter(|node| !node.frozen) {
            for name in node.flights.keys() {
                let Some(since) = self.over_since.get(name) else {
                    continue;
                };
                let late_ms = self.store.now.since(*since);
                let bound_ms = self.rules.handover_grace_ms() + LAG_MS;
                assert!(late_ms <= bound_ms, "6: {name} is over for {late_ms} ms");
            }
        }
    }

    // === the store ===

    fn at_store(&mut self, from: Link, call: u64, question: Question, asked_at: Millis) {
        let node = &self.nodes[from.node];
        // What was sent to a store that is gone is not sent again.
        if node.cut_off || self.down || from.store != self.life {
            return;
        }
        let took = match (&question, node.ops.get(&call)) {
            (Question::Take(_, binding), Some(op)) => Some(Underway {
                name: op.name,
                owner: op.owner.clone(),
                generation: binding.lease.generation,
                connection: binding.lease.connection.clone(),
                is_lost: false,
            }),
            (Question::Load(_) | Question::Commit(_) | Question::Take(..), _) => None,
        };
        let before = self.store.clone();
        let keys: Vec<_> = match &question {
            Question::Commit(planned) => {
                let commits = planned.transaction.commits.iter();
                commits.map(|commit| commit.key.clone()).collect()
            }
            Question::Load(_) | Question::Take(..) => Vec::new(),
        };
        let reply = question.execute(&mut self.store);
        match (&reply, &took) {
            (Reply::Made(_), _) => {
                handed_over(&before, &self.store, &self.underway, &self.rules).unwrap();
                self.audit.granted(&before, &self.store).unwrap();
                self.log
                    .extend(keys.iter().filter_map(|key| self.store.load(key)));
                self.met.handed_over += u64::from(changed_hands(&before, &self.store));
            }
            (Reply::Taken(Taken::Held { .. }), Some(took)) => sent(&self.store, took).unwrap(),
            (Reply::Taken(Taken::Fenced { .. }), _) => self.met.fenced += 1,
            (Reply::Taken(_) | Reply::Loaded(..) | Reply::Unmade(_), _) => {}
        }
        self.send(Event::FromStore {
            from,
            call,
            reply,
            asked_at,
        });
    }

    fn poll(&mut self, node: usize) {
        let ms = self.dice.within(5, 60);
        self.plan(ms, Event::Poll(node));
        let asked_at = self.now(node);
        if !self.reaches(node) {
            return;
        }
        let (life, read) = self.nodes[node].read;
        let end = self.log.len();
        let news = if life == self.life {
            News::Entries(self.log[read..].to_vec(), end)
        } else {
            News::Snapshot(self.store.records().collect(), end)
        };
        let from = self.link(node);
        self.send(Event::Polled {
            from,
            asked_at,
            news,
        });
    }

    fn polled(&mut self, from: Link, asked_at: Millis, news: News) {
        let known = &mut self.nodes[from.node];
        match news {
            // An answer that was overtaken by a later one tells nothing.
            _ if asked_at < known.confirmed_at => return,
            News::Entries(..) if known.read.0 != from.store => return,
            News::Entries(records, end) => {
                for record in &records {
                    known.table.put(record);
                }
                known.read.1 = end;
            }
            News::Snapshot(records, end) => {
                known.table = LeaseTable::new();
                for record in &records {
                    known.table.put(record);
                }
                known.read = (from.store, end);
            }
        }
        known.confirmed_at = asked_at;
        self.watch(from.node);
    }

    // === faults ===

    fn fault(&mut self) {
        let ms = self.dice.within(200, 4_000);
        self.plan(ms, Event::Fault);
        let node = self.dice.index(NODES);
        let ms = self.dice.within(100, 9_000);
        match self.dice.within(0, 3) {
            0 if !self.nodes[node].frozen => {
                self.nodes[node].frozen = true;
                self.plan(ms, Event::Heal(node, Fault::Frozen));
            }
            1 if !self.nodes[node].cut_off => {
                self.nodes[node].cut_off = true;
                self.plan(ms, Event::Heal(node, Fault::Cut));
            }
            2 => self.crash(node),
            3 => self.failover(),
            _ => {}
        }
    }

    fn crash(&mut self, node: usize) {
        let lag_ms = self.dice.within(0, LAG_MS);
        let node = &mut self.nodes[node];
        let flights = std::mem::take(&mut node.flights);
        self.underway
            .retain(|underway| !flights.contains_key(&underway.name));
        node.lag_ms = lag_ms;
        node.life += 1;
        node.ops.clear();
        node.waiting.clear();
        node.table = LeaseTable::new();
        node.read = (u64::MAX, 0);
        node.confirmed_at = Millis::default();
    }

    fn failover(&mut self) {
        if self.down {
            return;
        }
        self.down = true;
        let ms = self.dice.within(LAG_MS + 1, 3_000);
        self.plan(ms, Event::Promote);
    }

    fn promote(&mut self) {
        self.met.failovers += 1;
        self.down = false;
        self.life += 1;
        let now = self.store.now;
        self.store = self.replica.0.clone();
        self.store.now = now;
        self.log.truncate(self.replica.1);
        for underway in &mut self.underway {
            let is_held = self
                .store
                .is_held(&underway.connection, &holder(underway.name));
            underway.is_lost |= !is_held;
        }
    }

    fn heal(&mut self, node: usize, fault: Fault) {
        match fault {
            Fault::Cut => self.nodes[node].cut_off = false,
            Fault::Frozen => {
                self.nodes[node].frozen = false;
                // The first thing it does is to look at its clock.
                self.watch(node);
                for event in std::mem::take(&mut self.nodes[node].waiting) {
                    self.plan(0, event);
                }
            }
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
