//! The protocol, explored exhaustively for small sizes: every order of
//! operations of two owners through two nodes over two connections, with time
//! passing, messages lost, nodes dying and a store that loses its last writes.
//!
//! Every judgement is the real function's. A question to the store is judged
//! when it is asked and executed later, so that a node's time may be behind.

use std::collections::BTreeMap;

use stateright::{Checker as _, Model, Property};

use super::audit::{Audit, Checked, Underway, changed_hands, exclusive, handed_over, sent};
use super::driver::{Around, Ask, Ended, Op, Question, Reply};
use super::store::Store;
use super::*;
use crate::mirror::hold::Taken;

/// A tick of the model's clock, ms.
const TICK_MS: u64 = 1_000;

/// What may happen at most.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Budget {
    ticks: u8,
    operations: u8,
    losses: u8,
    crashes: u8,
    failovers: u8,
}

struct Sizes {
    owners: Vec<OwnerHash>,
    nodes: usize,
    budget: Budget,
    /// Whether the store forgets what has expired at once, or never.
    forgets: bool,
    rules: LeaseRules,
    table: LeaseTable,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    store: Store,
    /// What survives a failover.
    replica: Option<Store>,
    /// By owner and node.
    ops: BTreeMap<(usize, usize), Op>,
    underway: BTreeMap<(usize, usize), Underway>,
    /// The generation each client was told last.
    told: BTreeMap<usize, Generation>,
    budget: Budget,
    audit: Audit,
    broken: Option<String>,
    met: Met,
}

/// What came about, to know that the model is not empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Met {
    changed_hands: bool,
    fenced: bool,
    waited: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Start(usize, usize, Ask),
    /// The question reaches the store and the answer the node.
    Deliver(usize, usize),
    /// The question is lost, or its node gave up waiting.
    Lose(usize, usize),
    /// The question reaches the store; the answer is lost.
    LoseReply(usize, usize),
    /// A request upstream is done or cut.
    Finish(usize, usize),
    Crash(usize),
    Tick,
    Replicate,
    Failover,
}

impl Sizes {
    fn new(budget: Budget, forgets: bool) -> Self {
        Self {
            owners: vec![owner('A'), owner('B')],
            nodes: 2,
            budget,
            forgets,
            rules: LeaseRules::new(2 * TICK_MS, TICK_MS, 0),
            table: LeaseTable::new(),
        }
    }

    fn around(&self) -> Around<'_> {
        Around {
            table: &self.table,
            rules: self.rules,
        }
    }

    fn asks(&self, world: &World, owner: usize) -> Vec<Ask> {
        let mut asks = vec![
            Ask::Acquire(candidates(&["c1", "c2"])),
            Ask::Acquire(candidates(&["c1"])),
            Ask::Expire,
        ];
        if let Some(generation) = world.told.get(&owner) {
            asks.push(Ask::Renew(*generation));
            asks.push(Ask::Release(*generation));
            asks.push(Ask::Dispatch(*generation, candidates(&["c1", "c2"])));
            asks.push(Ask::Dispatch(*generation, candidates(&["c2"])));
            asks.push(Ask::Dispatch(*generation, Vec::new()));
        }
        asks
    }

    /// Executes what an operation asks, checks what it did to the store, and
    /// gives the answer.
    fn execute(&self, world: &mut World, at: (usize, usize)) -> Option<Reply> {
        let op = world.ops.get_mut(&at)?;
        let question = op.question(self.around()).ok()?;
        let took = match &question {
            Question::Take(_, binding) => Some(Underway {
                name: op.name,
                owner: op.owner.clone(),
                generation: binding.lease.generation,
                connection: binding.lease.connection.clone(),
                is_lost: false,
            }),
            Question::Load(_) | Question::Commit(_) => None,
        };
        let before = world.store.clone();
        let reply = question.execute(&mut world.store);
        let checked = self.check(world, &before, &reply, took.as_ref());
        world.broken = checked.err();
        Some(reply)
    }

    fn check(
        &self,
        world: &mut World,
        before: &Store,
        reply: &Reply,
        took: Option<&Underway>,
    ) -> Checked {
        let after = &world.store;
        match (reply, took) {
            (Reply::Taken(Taken::Held { .. }), Some(took)) => sent(after, took)?,
            (Reply::Taken(_), _) => world.met.fenced = true,
            (Reply::Made(_), _) => {
                exclusive(after)?;
                let underway: Vec<_> = world.underway.values().cloned().collect();
                handed_over(before, after, &underway, &self.rules)?;
                world.audit.granted(before, after)?;
                world.met.changed_hands |= changed_hands(before, after);
            }
            (Reply::Loaded(..) | Reply::Unmade(_), _) => {}
        }
        Ok(())
    }

    fn deliver(&self, world: &mut World, at: (usize, usize)) {
        let Some(reply) = self.execute(world, at) else {
            return;
        };
        let now = world.store.now;
        let Some(op) = world.ops.get_mut(&at) else {
            return;
        };
        // What is done is done at once: only questions are left standing.
        let ended = op
            .answered(reply, now)
            .or_else(|| op.question(self.around()).err());
        if let Some(ended) = ended {
            end(world, at, ended);
        }
    }

    fn start(&self, world: &mut World, at: (usize, usize), ask: Ask) {
        world.budget.operations -= 1;
        let name = at.0 * self.nodes + at.1;
        let mut op = Op::new(&self.owners[at.0], ask, world.store.now).named(name);
        let ended = op.question(self.around()).err();
        world.ops.insert(at, op);
        if let Some(ended) = ended {
            end(world, at, ended);
        }
    }

    fn tick(&self, world: &mut World) {
        world.budget.ticks -= 1;
        let Store { now, .. } = &mut world.store;
        *now = now.plus(TICK_MS);
        for underway in world.underway.values() {
            let holder = underway.holder();
            world.store.keep(&underway.connection, &holder, HOLD_MS);
        }
        world.store.forget_lapsed();
        if self.forgets {
            world.store.drop_expired();
        }
    }
}

fn end(world: &mut World, at: (usize, usize), ended: Ended) {
    let Some(op) = world.ops.remove(&at) else {
        return;
    };
    match ended {
        Ended::With(Ok(binding)) => {
            world.told.insert(at.0, binding.lease.generation);
        }
        Ended::With(Err(refusal)) => {
            world.met.waited |= matches!(refusal, Refusal::Capacity(_));
        }
        Ended::Sent(binding) => {
            let underway = Underway {
                name: op.name,
                owner: op.owner,
                generation: binding.lease.generation,
                connection: binding.lease.connection,
                is_lost: false,
            };
            world.underway.insert(at, underway);
        }
    }
}

fn failover(world: &mut World) {
    world.budget.failovers -= 1;
    let Some(mut store) = world.replica.take() else {
        return;
    };
    // A failover takes time, by any clock.
    store.now = world.store.now.plus(TICK_MS);
    world.store = store;
    for underway in world.underway.values_mut() {
        let holder = underway.holder();
        underway.is_lost = !world.store.is_held(&underway.connection, &holder);
    }
    if world.budget.failovers > 0 {
        world.replica = Some(world.store.clone());
    }
}

impl Model for Sizes {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let store = Store::at(T0);
        vec![World {
            replica: (self.budget.failovers > 0).then(|| store.clone()),
            store,
            ops: BTreeMap::new(),
            underway: BTreeMap::new(),
            told: BTreeMap::new(),
            budget: self.budget.clone(),
            audit: Audit::default(),
            broken: None,
            met: Met::default(),
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        let budget = &world.budget;
        for owner in 0..self.owners.len() {
            for node in 0..self.nodes {
                let at = (owner, node);
                let is_idle = !world.ops.contains_key(&at) && !world.underway.contains_key(&at);
                if is_idle && budget.operations > 0 {
                    let asks = self.asks(world, owner).into_iter();
                    actions.extend(asks.map(|ask| Action::Start(owner, node, ask)));
                }
            }
        }
        for (owner, node) in world.ops.keys().copied() {
            actions.push(Action::Deliver(owner, node));
            if budget.losses > 0 {
                actions.push(Action::Lose(owner, node));
                actions.push(Action::LoseReply(owner, node));
            }
        }
        let underway = world.underway.keys().copied();
        actions.extend(underway.map(|(owner, node)| Action::Finish(owner, node)));
        if budget.crashes > 0 {
            actions.extend((0..self.nodes).map(Action::Crash));
        }
        if budget.ticks > 0 {
            actions.push(Action::Tick);
        }
        if world
            .replica
            .as_ref()
            .is_some_and(|replica| *replica != world.store)
        {
            actions.push(Action::Replicate);
            actions.push(Action::Failover);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        match action {
            Action::Start(owner, node, ask) => self.start(&mut world, (owner, node), ask),
            Action::Deliver(owner, node) => self.deliver(&mut world, (owner, node)),
            Action::Lose(owner, node) => {
                world.budget.losses -= 1;
                world.ops.remove(&(owner, node));
            }
            Action::LoseReply(owner, node) => {
                world.budget.losses -= 1;
                self.execute(&mut world, (owner, node));
                world.ops.remove(&(owner, node));
            }
            Action::Finish(owner, node) => {
                if let Some(done) = world.underway.remove(&(owner, node)) {
                    world.store.give_back(&done.connection, &done.holder());
                }
            }
            Action::Crash(node) => {
                world.budget.crashes -= 1;
                world.ops.retain(|at, _| at.1 != node);
                world.underway.retain(|at, _| at.1 != node);
            }
            Action::Tick => self.tick(&mut world),
            Action::Replicate => {
                world.replica = world.replica.as_ref().map(|_| world.store.clone());
            }
            Action::Failover => failover(&mut world),
        }
        if world.broken.is_none() {
            world.broken = exclusive(&world.store).err();
        }
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("the invariants hold", |_, world: &World| {
                world.broken.is_none()
            }),
            Property::sometimes("a connection changes hands", |_, world: &World| {
                world.met.changed_hands
            }),
            Property::sometimes("a dead generation is fenced", |_, world: &World| {
                world.met.fenced
            }),
            Property::sometimes("somebody waits for capacity", |_, world: &World| {
                world.met.waited
            }),
        ]
    }
}

/// `LEASE_MODEL_OPERATIONS` makes the exploration larger, for runs of minutes
/// or hours; each further operation takes some twenty times as long.
fn more_operations() -> u8 {
    #[expect(
        clippy::disallowed_methods,
        reason = "how far to explore is asked of whoever runs the test"
    )]
    let asked = std::env::var("LEASE_MODEL_OPERATIONS");
    asked.ok().and_then(|more| more.parse().ok()).unwrap_or(0)
}

fn explore(mut budget: Budget, forgets: bool) {
    budget.operations += more_operations();
    let checker = Sizes::new(budget, forgets).checker().threads(2);
    let checker = checker.spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    if let Some(path) = checker.discovery("the invariants hold") {
        let last = path.last_state().broken.clone();
        let actions = path.into_actions();
        panic!("{last:?} after {actions:#?}");
    }
    checker.assert_properties();
}

const NONE: Budget = Budget {
    ticks: 0,
    operations: 3,
    losses: 0,
    crashes: 0,
    failovers: 0,
};

#[test]
fn time_passes() {
    explore(
        Budget {
            ticks: 3,
            operations: 4,
            ..NONE
        },
        false,
    );
}
