//! Two owners of the same things, as on two nodes, over one store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use actix::Addr;
use futures_util::future::BoxFuture;
use shared_proto::breaker::{
    BreakerEvent, BreakerOutcome, BreakerRules, FailureKind, ProviderBreaker,
};
use shared_proto::clock::ManualClock;
use shared_proto::config::Settings;
use shared_proto::failure::Profile;
use shared_proto::id::ProviderId;
use shared_proto::mirror::commit::{TransactError, Transaction};
use shared_proto::mirror::embedded::Embedded;
use shared_proto::mirror::hold::{Held, HoldError, Place, Pool, Take, Taken};
use shared_proto::mirror::log::{Logged, Position, Tail, TailError};
use shared_proto::mirror::record::Record;
use shared_proto::mirror::{Health, LoadError, Snapshot};
use tokio::sync::watch;

use super::*;

/// How long anything here may take on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A store that can be away, or take a commit and not say so.
struct Store {
    inner: Embedded,
    away: AtomicBool,
    mute: AtomicBool,
}

impl Mirror for Store {
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, CommitError>> {
        Box::pin(async move {
            let away = || CommitError::from(Unreachable("it is away".into()));
            if self.away.load(Ordering::SeqCst) {
                return Err(away());
            }
            let done = self.inner.commit(commit).await;
            if self.mute.swap(false, Ordering::SeqCst) {
                return Err(away());
            }
            done
        })
    }
    fn transact(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'_, Result<Vec<Committed>, TransactError>> {
        self.inner.transact(transaction)
    }
    fn load<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, LoadError>> {
        self.inner.load(key)
    }
    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Unreachable>> {
        self.inner.snapshot()
    }
    fn tail(&self, from: Position) -> BoxFuture<'_, Result<Tail, TailError>> {
        self.inner.tail(from)
    }
    fn take(&self, take: Take) -> BoxFuture<'_, Result<Taken, HoldError>> {
        self.inner.take(take)
    }
    fn keep(&self, places: Vec<Place>, ttl_ms: u64) -> BoxFuture<'_, Result<Vec<bool>, HoldError>> {
        self.inner.keep(places, ttl_ms)
    }
    fn give_back(&self, places: Vec<Place>) -> BoxFuture<'_, Result<(), HoldError>> {
        self.inner.give_back(places)
    }
    fn holders<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Vec<Held>, HoldError>> {
        self.inner.holders(pool)
    }
    fn now(&self) -> Millis {
        self.inner.now()
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
    fn close(&self) -> BoxFuture<'_, Result<(), Unreachable>> {
        self.inner.close()
    }
}

/// Publishes where a test can wait.
struct View(watch::Sender<ProviderBreaker>);

impl Publish<ProviderBreaker> for View {
    fn publish(&mut self, state: &ProviderBreaker, _: Millis) {
        self.0.send_replace(state.clone());
    }
}

/// The owner of a breaker on one node.
struct Node {
    owner: Addr<Owner<ProviderBreaker, View>>,
    view: watch::Receiver<ProviderBreaker>,
}

fn rules() -> BreakerRules {
    BreakerRules {
        failure_threshold: 3,
        degradation_threshold: 2,
        reset_timeout_ms: 1_000,
        ..BreakerRules::new(&Settings::default(), Profile::ApiKey)
    }
}

fn key() -> Key {
    Key::Breaker(ProviderId::from("acme"))
}

struct World {
    store: Arc<Store>,
    clock: ManualClock,
    from: Position,
}

impl World {
    async fn new() -> Self {
        let clock = ManualClock::at(Millis::from_epoch_ms(1_000_000));
        let inner = Embedded::memory("t", Arc::new(clock.clone())).unwrap();
        let from = inner.snapshot().await.unwrap().position;
        let store = Arc::new(Store {
            inner,
            away: AtomicBool::new(false),
            mute: AtomicBool::new(false),
        });
        Self { store, clock, from }
    }

    fn node(&self) -> Node {
        let (sender, view) = watch::channel(ProviderBreaker::default());
        let shared = Shared {
            mirror: Arc::clone(&self.store) as Arc<dyn Mirror>,
            commits: CommitCounters::default(),
            readings: Arc::new(AtomicU64::new(0)),
        };
        let held = Some((ProviderBreaker::default(), Expected::Absent));
        let owner = Owner::start(key(), held, rules(), View(sender), shared);
        Node { owner, view }
    }

    fn now(&self) -> Millis {
        self.store.now()
    }

    fn failed(&self, connection: &str) -> BreakerEvent {
        BreakerEvent::Failed {
            started_at: self.now(),
            connection: connection.into(),
            kind: FailureKind::Transient,
            probe_generation: None,
        }
    }

    async fn stored(&self) -> Option<ProviderBreaker> {
        let record = self.store.load(&key()).await.unwrap();
        record.map(|record| record.decode().unwrap())
    }

    /// Tells `node` everything that the log has.
    async fn follow(&self, node: &Node) {
        let mut tail = self.store.tail(self.from).await.unwrap();
        let idle = Duration::from_millis(50);
        while let Ok(entry) = tokio::time::timeout(idle, tail.next()).await {
            let Logged::Put(record) = entry.unwrap().change else {
                continue;
            };
            node.hear(Stored::Record(record), None).await;
        }
    }
}

impl Node {
    async fn tell(&self, event: BreakerEvent) -> Reported<ProviderBreaker> {
        self.owner.send(Report(event)).await.unwrap()
    }

    /// Tells it and waits until the store has it.
    async fn settle(&self, event: BreakerEvent) -> BreakerOutcome {
        let reported = self.tell(event).await;
        match reported.durable {
            Some(durable) => tokio::time::timeout(SOON, durable).await.unwrap().unwrap(),
            None => reported.outcome,
        }
    }

    async fn hear(&self, stored: Stored, reading: Option<Reading>) {
        self.owner.send(Heard { stored, reading }).await.unwrap();
    }

    async fn sees(&mut self, failures: u32) {
        let seen = self.view.wait_for(|state| state.failure_count == failures);
        tokio::time::timeout(SOON, seen).await.unwrap().unwrap();
    }
}

async fn stored_becomes(world: &World, failures: u32) {
    let reading = async {
        while world.stored().await.map_or(0, |state| state.failure_count) != failures {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, reading).await.unwrap();
}

#[actix::test]
async fn failures_that_both_nodes_met_count_once_whatever_their_clocks_say() {
    // Attempts are timed by the store, the only clock that both know.
    let world = World::new().await;
    let (mut one, mut two) = (world.node(), world.node());
    let (a, b) = futures_util::future::join(
        one.settle(world.failed("acme-1")),
        two.settle(world.failed("acme-1")),
    )
    .await;
    let counted = [a, b].map(|outcome| outcome == BreakerOutcome::Counted);
    assert_eq!(
        counted.iter().filter(|counted| **counted).count(),
        1,
        "{a:?} {b:?}"
    );
    world.follow(&one).await;
    world.follow(&two).await;
    one.sees(1).await;
    two.sees(1).await;
    assert_eq!(world.stored().await.unwrap().failure_count, 1);
}

#[actix::test]
async fn what_was_told_counts_although_the_caller_went_away() {
    let world = World::new().await;
    let mut one = world.node();
    {
        let telling = report(&one.owner, world.failed("a"));
        futures_util::pin_mut!(telling);
        assert!(futures_util::poll!(&mut telling).is_pending());
    }
    one.sees(1).await;
}

#[actix::test]
async fn one_node_probes() {
    let world = World::new().await;
    let (one, two) = (world.node(), world.node());
    for connection in ["a", "b", "c"] {
        one.settle(world.failed(connection)).await;
    }
    world.follow(&two).await;
    world.clock.advance(2_000);
    // The same millisecond, so that both claims bear the same generation.
    let (a, b) = futures_util::future::join(
        one.settle(BreakerEvent::ClaimProbe),
        two.settle(BreakerEvent::ClaimProbe),
    )
    .await;
    let claims: Vec<u64> = [a, b]
        .into_iter()
        .filter_map(|outcome| {
            if let BreakerOutcome::Claimed { generation, .. } = outcome {
                return Some(generation);
            }
            let refused = matches!(outcome, BreakerOutcome::Refused { .. });
            assert!(refused, "{outcome:?}");
            None
        })
        .collect();
    let probe = world.stored().await.unwrap().probe.unwrap();
    assert_eq!(claims, [probe.generation]);
}

#[actix::test]
async fn while_the_store_is_away_events_gather_and_are_merged_when_it_is_back() {
    let world = World::new().await;
    let (mut one, mut two) = (world.node(), world.node());
    world.store.away.store(true, Ordering::SeqCst);
    assert!(one.tell(world.failed("a")).await.durable.is_some());
    one.sees(1).await;
    // Once that failed, nobody waits for what can't come.
    let reading = async {
        while one.tell(world.failed("a")).await.durable.is_some() {}
        one.tell(world.failed("b")).await
    };
    let reported = tokio::time::timeout(SOON, reading).await.unwrap();
    assert_eq!(reported.outcome, BreakerOutcome::Counted);
    let mut second = two.tell(world.failed("b")).await;
    while second.durable.is_some() && second.outcome != BreakerOutcome::IgnoredDuplicate {
        second = two.tell(world.failed("b")).await;
    }
    assert!(world.stored().await.is_none());
    world.store.away.store(false, Ordering::SeqCst);
    one.owner.do_send(StoreIsBack);
    two.owner.do_send(StoreIsBack);
    stored_becomes(&world, 2).await;
    world.follow(&one).await;
    world.follow(&two).await;
    one.sees(2).await;
    two.sees(2).await;
}

#[actix::test]
async fn a_commit_whose_answer_was_lost_counts_once() {
    let world = World::new().await;
    let mut one = world.node();
    one.settle(world.failed("a")).await;
    one.settle(world.failed("b")).await;
    let eased = BreakerEvent::Succeeded {
        started_at: world.now(),
        probe_generation: None,
    };
    world.store.mute.store(true, Ordering::SeqCst);
    let reported = one.tell(eased).await;
    stored_becomes(&world, 1).await;
    one.owner.do_send(StoreIsBack);
    let settled = tokio::time::timeout(SOON, reported.durable.unwrap()).await;
    assert_eq!(settled.unwrap().unwrap(), BreakerOutcome::Eased);
    one.sees(1).await;
    assert_eq!(world.stored().await.unwrap().failure_count, 1);
}

#[actix::test]
async fn what_the_store_lost_is_put_again() {
    let world = World::new().await;
    let mut one = world.node();
    one.settle(world.failed("a")).await;
    let record = world.store.load(&key()).await.unwrap().unwrap();
    let delete = Commit::delete(key(), record.revision, record.version);
    world.store.commit(delete).await.unwrap();
    let reading = Reading {
        number: 1,
        rewound: true,
    };
    one.hear(Stored::Nothing(None), Some(reading)).await;
    stored_becomes(&world, 1).await;
    one.sees(1).await;
}

#[actix::test]
async fn what_an_owner_begins_with_is_seen_at_once() {
    let world = World::new().await;
    let (sender, view) = watch::channel(ProviderBreaker::default());
    let shared = Shared {
        mirror: Arc::clone(&world.store) as Arc<dyn Mirror>,
        commits: CommitCounters::default(),
        readings: Arc::new(AtomicU64::new(0)),
    };
    let held = ProviderBreaker {
        failure_count: 2,
        ..ProviderBreaker::default()
    };
    let expected = Expected::Revision(shared_proto::mirror::record::Revision::new(1));
    let owner = Owner::start(key(), Some((held, expected)), rules(), View(sender), shared);
    // The owner itself has had no turn yet.
    assert_eq!(view.borrow().failure_count, 2);
    drop(owner);
}

#[actix::test]
async fn an_owner_that_began_without_the_store_takes_what_it_holds() {
    let world = World::new().await;
    let first = world.node();
    first.settle(world.failed("a")).await;
    let (sender, view) = watch::channel(ProviderBreaker::default());
    let shared = Shared {
        mirror: Arc::clone(&world.store) as Arc<dyn Mirror>,
        commits: CommitCounters::default(),
        readings: Arc::new(AtomicU64::new(1)),
    };
    let mut late = Node {
        owner: Owner::start(key(), None, rules(), View(sender), shared),
        view,
    };
    let record = world.store.load(&key()).await.unwrap().unwrap();
    let reading = Reading {
        number: 1,
        rewound: false,
    };
    late.hear(Stored::Record(record), Some(reading)).await;
    late.sees(1).await;
}
