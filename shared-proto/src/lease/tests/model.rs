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
use super::*;
use crate::mirror::hold::Taken;
use crate::simulation::store::Store;

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

/// What there is at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Nothing,
    /// The first owner has a lease on the first connection, which runs out
    /// with the next tick, and a request under way on it.
    Underway,
}

struct Sizes {
    from: From,
    owners: Vec<OwnerHash>,
    nodes: usize,
    budget: Budget,
    /// Whether the store forgets what has expired as soon as it may, or never.
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
    fn new(from: From, budget: Budget, forgets: bool) -> Self {
        Self {
            from,
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
        let mut asks = vec![Ask::Acquire(candidates(&["c1", "c2"]))];
        if owner > 0 {
            asks.push(Ask::Acquire(candidates(&["c1"])));
        }
        let lease: Option<Lease> = world.store.decoded(&self.owners[owner].key());
        if lease.is_some_and(|lease| lease.end.is_none() && !lease.is_active(world.store.now)) {
            asks.push(Ask::Expire);
        }
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
        match ended {
            Some(ended) => end(world, at, ended),
            // What is read first is read at the start: a later start is
            // another run.
            None => self.deliver(world, at),
        }
    }

    /// An operation of the first owner that nothing comes between.
    fn run(&self, world: &mut World, ask: Ask) {
        self.start(world, (0, 0), ask);
        while world.ops.contains_key(&(0, 0)) {
            self.deliver(world, (0, 0));
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
        // It keeps what has expired for longer than any operation takes.
        if self.forgets && world.ops.is_empty() {
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
    // What was sent to the old store is not sent again; an operation goes on
    // with what it has read there.
    for op in world.ops.values_mut() {
        op.asks_at(world.store.now);
    }
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
        let mut world = World {
            replica: None,
            store: Store::at(T0),
            ops: BTreeMap::new(),
            underway: BTreeMap::new(),
            told: BTreeMap::new(),
            budget: Budget {
                operations: self.budget.operations + 2,
                ticks: self.budget.ticks + 1,
                ..self.budget.clone()
            },
            audit: Audit::default(),
            broken: None,
            met: Met::default(),
        };
        if self.from == From::Underway {
            self.run(&mut world, Ask::Acquire(candidates(&["c1"])));
            let generation = world.told[&0];
            self.run(&mut world, Ask::Dispatch(generation, candidates(&["c1"])));
            self.tick(&mut world);
        }
        world.budget = self.budget.clone();
        world.replica = (self.budget.failovers > 0).then(|| world.store.clone());
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        let budget = &world.budget;
        // With nothing there, the owners differ by name only.
        let is_first = self.from == From::Nothing && *budget == self.budget;
        let owners = if is_first { 1 } else { self.owners.len() };
        for owner in 0..owners {
            let is_idle = |node: &usize| {
                let at = (owner, *node);
                !world.ops.contains_key(&at) && !world.underway.contains_key(&at)
            };
            if let Some(node) = (0..self.nodes).find(is_idle)
                && budget.operations > 0
            {
                let asks = self.asks(world, owner).into_iter();
                actions.extend(asks.map(|ask| Action::Start(owner, node, ask)));
            }
        }
        for (owner, node) in world.ops.keys().copied() {
            actions.push(Action::Deliver(owner, node));
            if budget.losses > 0 {
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
            Property::always(HOLD, |_, world: &World| world.broken.is_none()),
            Property::sometimes(HANDED, |_, world: &World| world.met.changed_hands),
            Property::sometimes(FENCED, |_, world: &World| world.met.fenced),
            Property::sometimes(WAITED, |_, world: &World| world.met.waited),
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

/// Explores, and expects to come across what is named.
fn explore(from: From, mut budget: Budget, forgets: bool, meets: &[&'static str]) {
    budget.operations += more_operations();
    let checker = Sizes::new(from, budget, forgets).checker().threads(2);
    let checker = checker.spawn_bfs().join();
    if let Some(path) = checker.discovery(HOLD) {
        let last = path.last_state().broken.clone();
        let actions = path.into_actions();
        panic!("{last:?} after {actions:#?}");
    }
    for meets in meets {
        assert!(checker.discovery(meets).is_some(), "never: {meets}");
    }
}

const HOLD: &str = "the invariants hold";
const HANDED: &str = "a connection changes hands";
const FENCED: &str = "a dead generation is fenced";
const WAITED: &str = "somebody waits for capacity";

const NONE: Budget = Budget {
    ticks: 0,
    operations: 3,
    losses: 0,
    crashes: 0,
    failovers: 0,
};

#[test]
fn from_nothing() {
    let budget = Budget { ticks: 2, ..NONE };
    explore(From::Nothing, budget, false, &[HANDED, WAITED]);
}

#[test]
fn with_a_request_under_way() {
    let budget = Budget { ticks: 2, ..NONE };
    explore(From::Underway, budget, false, &[HANDED, WAITED, FENCED]);
}

#[test]
fn records_are_forgotten() {
    let budget = Budget {
        ticks: 3,
        operations: 2,
        ..NONE
    };
    explore(From::Underway, budget, true, &[HANDED, WAITED, FENCED]);
}

#[test]
fn answers_are_lost_and_nodes_die() {
    let budget = Budget {
        ticks: 2,
        losses: 1,
        crashes: 1,
        operations: 2,
        ..NONE
    };
    explore(From::Underway, budget, false, &[HANDED, WAITED, FENCED]);
}

#[test]
fn the_store_loses_its_last_writes() {
    let budget = Budget {
        ticks: 1,
        operations: 2,
        failovers: 1,
        ..NONE
    };
    explore(From::Underway, budget, false, &[HANDED, WAITED, FENCED]);
}

#[test]
fn the_store_loses_the_first_lease() {
    let budget = Budget {
        failovers: 1,
        ..NONE
    };
    explore(From::Nothing, budget, false, &[WAITED]);
}
