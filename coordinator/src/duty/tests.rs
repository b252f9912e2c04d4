//! Duties on a store in memory, with and without an election.

use shared_proto::clock::ManualClock;
use shared_proto::egress::{Exit, Observation, Observations};
use shared_proto::failure::{Blame, Cooldown, Failure, Reason, Terminal};
use shared_proto::health::{ConnectionHealth, HealthEvent, HealthRules, TerminalState};
use shared_proto::leader::{Election, Leader, Step};
use shared_proto::lease::{EndReason, Generation, Lease};
use shared_proto::mirror::Mirror;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::embedded::Embedded;
use shared_proto::mirror::hold::{Holder, Pool, Take};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::Body;
use shared_proto::rotation::RotationRules;

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
    addresses: Rc<RefCell<Addresses>>,
}

impl World {
    fn new(authority: Authority, configured: &'static [&'static str]) -> Self {
        let clock = ManualClock::at(T0);
        let agenda = Rc::new(RefCell::new(Agenda::default()));
        let addresses = Rc::<RefCell<Addresses>>::default();
        let names = move || Some(configured.iter().map(|name| (*name).into()).collect());
        Self {
            store: Embedded::memory("p", Arc::new(clock.clone())).unwrap(),
            clock,
            metrics: Metrics::default(),
            authority,
            duties: Duties::new(Rc::clone(&agenda), Rc::clone(&addresses), Arc::new(names)),
            agenda,
            addresses,
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
        self.addresses.borrow_mut().replace(&snapshot);
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

fn observed(address: &str, at: Millis, ids: &[&str]) -> Observations {
    let observation = Observation {
        family: "opencode".into(),
        address: address.parse().unwrap(),
        at,
        proxied: false,
    };
    Observations {
        keep_ms: 86_400_000,
        seen: ids
            .iter()
            .map(|id| ((*id).into(), observation.clone()))
            .collect(),
    }
}

/// The health of `a`, which met a limit of its address for 60 s.
fn limited() -> ConnectionHealth {
    let failure = Failure {
        status: 429,
        reason: Reason::RateLimitExceeded,
        blame: Blame::Connection,
        error_type: None,
        fallback: true,
        terminal: None,
        cooldown: Cooldown::Fixed(60_000),
        hint: None,
        client_retry_after_ms: None,
        counts_for_breaker: false,
        rule: "status-429".into(),
        restated: None,
        upstream_code: None,
        message: String::new(),
    };
    let event = HealthEvent::LimitedAt {
        started_at: T0,
        failure,
        exit: Exit {
            family: "opencode".into(),
            address: "203.0.113.7".parse().unwrap(),
        },
        met_by: "a".into(),
    };
    let rules = HealthRules {
        base_ms: 3_000,
        max_steps: 5,
        cap_ms: 1_800_000,
        use_hints: true,
        disable_cooling: false,
        auto_disable_banned: false,
        credential: None,
        rotation: RotationRules::DEFAULT,
    };
    ConnectionHealth::default().step(&event, T0, &rules).state
}

impl World {
    async fn health(&self, id: &str) -> Option<ConnectionHealth> {
        let record = self.store.load(&Key::Health(id.into())).await.unwrap();
        record.map(|record| record.decode().unwrap())
    }
}

#[tokio::test]
async fn siblings_that_no_node_told_rest_too() {
    let mut world = World::new(Authority::Sole, &[]);
    world.clock.advance(5);
    let now = world.store.now();
    // `b` and `new` are in the configuration of another node only.
    let of_one = observed("203.0.113.7", now, &["a"]);
    let of_other = observed("203.0.113.7", now, &["b", "new", "ended"]);
    world.put(Key::Egress("one".into()), &of_one, None).await;
    world.put(Key::Egress("two".into()), &of_other, None).await;
    let moved = observed("203.0.113.8", now, &["moved"]);
    world.put(Key::Egress("three".into()), &moved, None).await;
    world.put(Key::Health("a".into()), &limited(), None).await;
    let b = ConnectionHealth {
        backoff_level: 2,
        cooldown_until: Some(now.minus(1)),
        last_cooldown_ms: 6_000,
        ..ConnectionHealth::default()
    };
    world.put(Key::Health("b".into()), &b, None).await;
    let ended = ConnectionHealth {
        terminal: Some(TerminalState {
            kind: Terminal::Banned,
            sub_reason: None,
            at: T0,
        }),
        ..ConnectionHealth::default()
    };
    world.put(Key::Health("ended".into()), &ended, None).await;
    world.turns().await.unwrap();
    for (id, level) in [("b", 2), ("new", 0)] {
        let health = world.health(id).await.unwrap();
        assert_eq!(health.cooldown_until, Some(T0.plus(60_000)), "{id}");
        assert_eq!(health.backoff_level, level, "{id}");
        assert_eq!(health.last_error.unwrap().status, 429, "{id}");
    }
    assert_eq!(world.health("ended").await, Some(ended));
    assert_eq!(world.health("moved").await, None);
    assert_eq!(world.metrics.rested.get(), 2);
    // Nothing is left to do, now or when its time is over.
    world.turns().await.unwrap();
    world.clock.advance(60_000);
    world.turns().await.unwrap();
    assert_eq!(world.metrics.rested.get(), 2);
}

#[tokio::test]
async fn a_sibling_that_was_reset_is_not_rested_again() {
    let mut world = World::new(Authority::Sole, &[]);
    let seen = observed("203.0.113.7", T0, &["a", "b"]);
    world.put(Key::Egress("one".into()), &seen, None).await;
    world.put(Key::Health("a".into()), &limited(), None).await;
    let reset = ConnectionHealth {
        renewed_at: Some(T0.plus(1)),
        settled_at: Some(T0.plus(1)),
        ..ConnectionHealth::default()
    };
    world.put(Key::Health("b".into()), &reset, None).await;
    world.clock.advance(5);
    world.turns().await.unwrap();
    assert_eq!(world.health("b").await, Some(reset));
}

#[tokio::test]
async fn what_a_node_saw_is_forgotten_after_its_time() {
    let mut world = World::new(Authority::Sole, &[]);
    let seen = observed("203.0.113.7", T0, &["a"]);
    let key = Key::Egress("gone".into());
    world.put(key.clone(), &seen, None).await;
    world.clock.advance(seen.keep_ms - 1);
    world.turns().await.unwrap();
    assert!(world.store.load(&key).await.unwrap().is_some());
    world.clock.advance(1);
    world.turns().await.unwrap();
    assert!(world.store.load(&key).await.unwrap().is_none());
}
