//! Duties on a store in memory, with and without an election.

use shared_proto::clock::ManualClock;
use shared_proto::health::ConnectionHealth;
use shared_proto::leader::{Election, Leader, Step};
use shared_proto::lease::{EndReason, Generation, Lease};
use shared_proto::mirror::Mirror;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::embedded::Embedded;
use shared_proto::mirror::hold::{Holder, Pool, Take};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::Body;

use super::*;
use crate::agenda::KEEP_WELL_MS;
use crate::metrics::Metrics;
use crate::pen::Authority;

const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);
const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

struct World {
    clock: ManualClock,
    store: Embedded,
    metrics: Metrics,
    authority: Authority,
    duties: Duties,
    agenda: Rc<RefCell<Agenda>>,
}

impl World {
    fn new(authority: Authority, configured: &'static [&'static str]) -> Self {
        let clock = ManualClock::at(T0);
        let agenda = Rc::new(RefCell::new(Agenda::default()));
        let names = move || Some(configured.iter().map(|name| (*name).into()).collect());
        Self {
            store: Embedded::memory("p", Arc::new(clock.clone())).unwrap(),
            clock,
            metrics: Metrics::default(),
            authority,
            duties: Duties::new(Rc::clone(&agenda), Arc::new(names)),
            agenda,
        }
    }

    async fn put<B: Body>(&self, key: Key, body: &B, expires_at: Option<Millis>) {
        let mut put = Commit::put(key, Expected::Absent, body).unwrap();
        if let Some(at) = expires_at {
            put = put.expiring(at);
        }
        self.store.commit(put).await.unwrap();
    }

    /// Reads everything, as the follower would, and does what is due.
    async fn turns(&mut self) -> Result<(), Stop> {
        let snapshot = self.store.snapshot().await.unwrap();
        self.agenda.borrow_mut().replace(&snapshot);
        self.duties.reset();
        let mut pen = Pen {
            mirror: &self.store,
            metrics: &self.metrics,
            authority: &mut self.authority,
            until: self.store.now().plus(500),
        };
        self.duties.turns(&mut pen).await
    }

    async fn lease(&self) -> Option<Lease> {
        let record = self.store.load(&Key::Lease(HASH.into())).await.unwrap();
        record.map(|record| record.decode().unwrap())
    }

    /// Lets the election go on until it waits.
    async fn elect(&self, one: &mut Election) {
        loop {
            let now = self.store.now();
            match one.next(now) {
                Step::Look => {
                    let found = self.store.load(&Key::Leader).await.unwrap();
                    one.found(found.as_ref(), now);
                }
                Step::Write(write) => {
                    let made = self.store.transact(write).await;
                    one.answered(made, now, self.store.now());
                }
                Step::Wait(_) => return,
            }
        }
    }
}

fn lease() -> Lease {
    Lease {
        generation: Generation::new(7).unwrap(),
        api_key: "team".into(),
        provider: "glm".into(),
        connection: "a".into(),
        acquired_at: T0,
        renewed_at: T0,
        expires_at: T0.plus(1_000),
        end: None,
    }
}

#[tokio::test]
async fn a_lease_that_ran_out_is_written_down_then_forgotten_after_its_time() {
    let mut world = World::new(Authority::Sole, &[]);
    let key = Key::Lease(HASH.into());
    world.put(key, &lease(), Some(T0.plus(1_000))).await;
    world.clock.advance(999);
    world.turns().await.unwrap();
    assert_eq!(world.lease().await.unwrap().end, None);
    world.clock.advance(1);
    world.turns().await.unwrap();
    let end = world.lease().await.unwrap().end.unwrap();
    assert_eq!(
        (end.reason, end.at),
        (EndReason::TtlExpired, T0.plus(1_000))
    );
    world
        .clock
        .advance(shared_proto::lease::record::KEEP_ENDED_MS);
    world.turns().await.unwrap();
    assert_eq!(world.lease().await, None);
    assert_eq!(world.metrics.expired.get(), 1);
    assert_eq!(world.metrics.forgotten.get(), 1);
}

#[tokio::test]
async fn health_goes_only_where_no_configuration_names_the_connection() {
    let mut world = World::new(Authority::Sole, &["kept"]);
    for id in ["kept", "gone"] {
        let health = ConnectionHealth::default();
        world.put(Key::Health(id.into()), &health, None).await;
    }
    world.clock.advance(KEEP_WELL_MS);
    world.turns().await.unwrap();
    let left = world.store.snapshot().await.unwrap().records;
    let left: Vec<_> = left.iter().map(|record| record.key.clone()).collect();
    assert_eq!(left, [Key::Health("kept".into())]);
}

#[tokio::test]
async fn a_leader_that_was_replaced_changes_nothing_and_hears_of_it() {
    let mut world = World::new(Authority::Sole, &[]);
    let key = Key::Lease(HASH.into());
    world.put(key, &lease(), Some(T0.plus(1_000))).await;
    let mut former = Election::new("a", 1, 60_000);
    world.elect(&mut former).await;
    let epoch = former.epoch();
    // It is frozen here, with everything it believes.
    let frozen = former.clone();
    let resignation = former.resign(T0).unwrap();
    world.store.transact(resignation).await.unwrap();
    let mut next = Election::new("b", 2, 60_000);
    world.elect(&mut next).await;
    assert!(next.epoch() > epoch);
    world.clock.advance(1_000);
    assert!(frozen.leads(world.store.now()), "so it believes");
    world.authority = Authority::Elected(Box::new(frozen));
    let before = world.store.snapshot().await.unwrap();
    assert_eq!(world.turns().await, Err(Stop::Fenced));
    assert_eq!(world.store.snapshot().await.unwrap(), before);
    assert_eq!(world.metrics.fenced.get(), 1);
    let Authority::Elected(former) = &world.authority else {
        panic!("no election");
    };
    assert!(!former.leads(world.store.now()));
    assert_eq!(former.epoch(), next.epoch());
    world.authority = Authority::Elected(Box::new(next));
    world.turns().await.unwrap();
    assert!(world.lease().await.unwrap().end.is_some());
}

#[tokio::test]
async fn a_standby_does_nothing() {
    let mut world = World::new(
        Authority::Elected(Box::new(Election::new("a", 1, 5_000))),
        &[],
    );
    let other = Leader {
        holder: "b".into(),
        instance: 2,
        epoch: 1,
        expires: T0.plus(5_000),
    };
    world.put(Key::Leader, &other, Some(T0.plus(5_000))).await;
    world
        .put(Key::Lease(HASH.into()), &lease(), Some(T0.plus(1_000)))
        .await;
    world.clock.advance(2_000);
    assert_eq!(world.turns().await, Err(Stop::Fenced));
    assert_eq!(world.metrics.writes.get(), 0);
}

#[tokio::test]
async fn a_node_that_lapses_is_noticed_and_one_that_leaves_is_not() {
    let mut world = World::new(Authority::Sole, &[]);
    for (name, ttl_ms) in [("lapses", 1_000), ("leaves", 9_000), ("stays", 9_000)] {
        let take = Take {
            pool: Pool::Nodes,
            holder: Holder(name.into()),
            limit: None,
            ttl_ms,
            patience_ms: None,
            guard: None,
            note: shared_proto::roster::Note::default().to_bytes(),
        };
        world.store.take(take).await.unwrap();
    }
    look(&mut world).await;
    world.clock.advance(2_000);
    let leaving = shared_proto::mirror::hold::Place {
        pool: Pool::Nodes,
        holder: Holder("leaves".into()),
    };
    world.store.give_back(vec![leaving]).await.unwrap();
    look(&mut world).await;
    look(&mut world).await;
    assert_eq!(world.metrics.lapsed.get(), 1);
}

async fn look(world: &mut World) {
    let mut pen = Pen {
        mirror: &world.store,
        metrics: &world.metrics,
        authority: &mut world.authority,
        until: world.store.now().plus(500),
    };
    world.duties.watch.look(&mut pen).await.unwrap();
}

#[tokio::test]
async fn no_write_begins_after_the_end_of_a_turn() {
    let mut world = World::new(Authority::Sole, &[]);
    world
        .put(Key::Lease(HASH.into()), &lease(), Some(T0.plus(1_000)))
        .await;
    world.clock.advance(2_000);
    let mut pen = Pen {
        mirror: &world.store,
        metrics: &world.metrics,
        authority: &mut world.authority,
        until: world.store.now(),
    };
    assert_eq!(world.duties.turns(&mut pen).await, Err(Stop::Over));
    assert_eq!(world.lease().await.unwrap().end, None);
}
