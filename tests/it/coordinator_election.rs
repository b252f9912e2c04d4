//! One coordinator leads, as the store tells it, whatever becomes of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::cut::Mode;
use cluster_tests::metrics::Exposition;
use cluster_tests::redis::Setup;
use cluster_tests::wait::{eventually, let_time_pass};
use serde_json::json;
use shared_proto::clock::SystemClock;
use shared_proto::config::StoreUrl;
use shared_proto::leader::Leader;
use shared_proto::mirror::Mirror;
use shared_proto::mirror::key::Key;
use shared_proto::mirror::log::{Logged, Position, TailError};
use shared_proto::mirror::record::Record;
use shared_proto::mirror::redis::{Options, Redis};

const LEASE_MS: u64 = 3_000;

fn config() -> Config {
    Config::new().set(&["coordinator", "leaseMs"], json!(LEASE_MS))
}

/// The store as a bystander sees it.
async fn store(cluster: &Cluster) -> Redis {
    let StoreUrl::Redis(url) = cluster.redis.url().parse().unwrap() else {
        panic!("not a Redis");
    };
    let options = Options {
        deadline: Duration::from_secs(5),
        ..Options::default()
    };
    let redis = Redis::open(&url, "omniroute", Arc::new(SystemClock), options).unwrap();
    redis.contact().await.unwrap();
    redis
}

async fn leader(store: &Redis) -> Option<Record> {
    store.load(&Key::Leader).await.unwrap()
}

/// Every state of the leader's record since `from`, up to now.
async fn history(store: &Redis, from: Position) -> Vec<Record> {
    let end = store.snapshot().await.unwrap().position;
    let mut tail = store.tail(from).await.unwrap();
    let mut all = Vec::new();
    let mut at = from;
    while at < end {
        let entry = tail.next().await.unwrap();
        at = entry.position;
        if let Logged::Put(record) = entry.change
            && record.key == Key::Leader
        {
            all.push(record);
        }
    }
    all
}

/// Nobody led while another did, and epochs rose. How many there were.
fn check(history: &[Record]) -> usize {
    let mut holders = BTreeMap::new();
    let mut before: Option<(Record, Leader)> = None;
    for record in history {
        let now = Leader::of(record).unwrap();
        let of_epoch = holders
            .entry(now.epoch)
            .or_insert_with(|| now.holder.clone());
        assert_eq!(*of_epoch, now.holder, "an epoch has two holders");
        if let Some((last, was)) = before {
            assert!(now.epoch >= was.epoch, "{} after {}", now.epoch, was.epoch);
            if now.epoch > was.epoch {
                let free_at = last.expires_at.unwrap();
                assert!(record.written_at >= free_at, "{now:?} while {was:?}");
            } else {
                assert!(
                    record.written_at < last.expires_at.unwrap(),
                    "renewed too late"
                );
            }
        }
        before = Some((record.clone(), now));
    }
    holders.len()
}

async fn started() -> (Cluster, Redis, Position) {
    let cluster = Plan::of(0).coordinators(2).start(|_| config()).await;
    let store = store(&cluster).await;
    let from = store.snapshot().await.unwrap().position;
    (cluster, store, from)
}

#[tokio::test]
async fn one_leads_the_other_stands_by_and_both_say_so() {
    let (cluster, store, _) = started().await;
    let (leads, stands_by) = cluster.roles().await;
    let of = |at: usize| cluster.coordinators[at].ready();
    let (one, other) = (of(leads).await.unwrap(), of(stands_by).await.unwrap());
    let record = Leader::of(&leader(&store).await.unwrap()).unwrap();
    assert_eq!(record.holder, format!("coordinator-{leads}"));
    assert_eq!(one["node"], json!(record.holder));
    assert_eq!(
        (&one["epoch"], &other["epoch"]),
        (&json!(record.epoch), &json!(record.epoch))
    );
    for ready in [&one, &other] {
        assert_eq!(
            (&ready["status"], &ready["store"]),
            (&json!("ready"), &json!("up"))
        );
    }
    let health = cluster.coordinators[leads].get("/healthz").send().await;
    health.expect_status(200);
    for (at, expected) in [(leads, 1.0), (stands_by, 0.0)] {
        let text = cluster.coordinators[at].get("/metrics").send().await.text();
        let metrics = Exposition::parse(&text);
        assert_eq!(metrics.complaints(), Vec::<String>::new());
        assert_eq!(
            metrics.sum("omniroute_coordinator_leader").to_bits(),
            f64::to_bits(expected)
        );
        assert!(metrics.sum("omniroute_coordinator_epoch") > 0.0);
    }
}

#[tokio::test]
async fn after_kill_9_the_standby_takes_over_within_two_leases() {
    let (mut cluster, store, from) = started().await;
    let (leads, stands_by) = cluster.roles().await;
    let before = cluster.coordinators[leads].epoch().await;
    cluster.coordinators[leads].kill_9().await;
    let killed_at = store.now();
    eventually("the other leads", || async {
        (cluster.coordinators[stands_by].role().await? == "leader").then_some(())
    })
    .await;
    let record = leader(&store).await.unwrap();
    assert!(cluster.coordinators[stands_by].epoch().await > before);
    let history = history(&store, from).await;
    let taken = history
        .iter()
        .find(|record| Leader::of(record).unwrap().holder == format!("coordinator-{stands_by}"));
    let took_ms = taken.unwrap().written_at.since(killed_at);
    assert!(took_ms <= 2 * LEASE_MS, "it took {took_ms} ms: {record:?}");
    check(&history);
}

#[tokio::test]
async fn a_leader_told_to_stop_gives_its_turn_back_at_once() {
    let (mut cluster, store, from) = started().await;
    let (leads, stands_by) = cluster.roles().await;
    let status = cluster.coordinators[leads].stop().await;
    assert_eq!(status.code(), Some(0));
    let stopped_at = store.now();
    eventually("the other leads", || async {
        (cluster.coordinators[stands_by].role().await? == "leader").then_some(())
    })
    .await;
    let history = history(&store, from).await;
    let last = history.last().unwrap();
    assert!(
        last.written_at.since(stopped_at) < LEASE_MS,
        "it waited for the lease"
    );
    check(&history);
}

#[tokio::test]
async fn a_frozen_leader_that_goes_on_has_lost_its_epoch_and_writes_nothing() {
    let (cluster, store, from) = started().await;
    let (leads, stands_by) = cluster.roles().await;
    let before = cluster.coordinators[leads].epoch().await;
    cluster.coordinators[leads].freeze();
    eventually("the other leads", || async {
        (cluster.coordinators[stands_by].role().await? == "leader").then_some(())
    })
    .await;
    let epoch = cluster.coordinators[stands_by].epoch().await;
    assert!(epoch > before);
    cluster.coordinators[leads].thaw();
    eventually("the former leader knows", || async {
        let former = &cluster.coordinators[leads];
        let knows = former.role().await? == "standby" && former.epoch().await == epoch;
        knows.then_some(())
    })
    .await;
    let time = Duration::from_millis(LEASE_MS);
    let_time_pass(time, "whatever it would write, it writes meanwhile").await;
    let history = history(&store, from).await;
    check(&history);
    let now = Leader::of(history.last().unwrap()).unwrap();
    assert_eq!(
        (now.epoch, now.holder),
        (epoch, format!("coordinator-{stands_by}"))
    );
}

#[tokio::test]
async fn without_the_store_nobody_leads_and_afterwards_one_does() {
    let redis = Setup::durable();
    let plan = Plan::of(0).coordinators(2).redis(redis);
    let mut cluster = plan.start(|_| config()).await;
    let (leads, _) = cluster.roles().await;
    let before = cluster.coordinators[leads].epoch().await;
    cluster.redis.kill().await;
    eventually("nobody leads", || async {
        for one in &cluster.coordinators {
            let ready = one.ready().await?;
            if ready["role"] != "standby" || ready["store"] != "down" {
                return None;
            }
        }
        Some(())
    })
    .await;
    cluster.redis.restart().await;
    let (leads, _) = cluster.roles().await;
    assert!(cluster.coordinators[leads].epoch().await > before);
    cluster.redis.kill().await;
    let known = cluster.coordinators[leads].epoch().await;
    cluster.redis.restart_empty().await;
    eventually("one leads in an epoch above all before", || async {
        let (leads, _) = cluster.roles().await;
        let epoch = cluster.coordinators[leads].epoch().await;
        (epoch >= known && leader(&store(&cluster).await).await.is_some()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_leader_cut_off_from_the_store_stands_down_before_its_lease_is_over() {
    let (cluster, store, from) = started().await;
    let (leads, stands_by) = cluster.roles().await;
    cluster.coordinator_cuts[leads].set(Mode::BlackHole).await;
    eventually("the other leads, and only it", || async {
        let other = cluster.coordinators[stands_by].role().await?;
        if other == "leader" {
            let former = cluster.coordinators[leads].role().await?;
            assert_eq!(former, "standby", "two say that they lead");
            return Some(());
        }
        None
    })
    .await;
    cluster.coordinator_cuts[leads].set(Mode::Pass).await;
    cluster.roles().await;
    check(&history(&store, from).await);
}

#[tokio::test]
async fn over_many_changes_the_store_never_knows_two() {
    let (mut cluster, store, from) = started().await;
    for _ in 0..4 {
        let (leads, _) = cluster.roles().await;
        cluster.coordinators[leads].stop().await;
        cluster.coordinators[leads] = cluster.coordinators[leads].start_again().await;
    }
    cluster.roles().await;
    match store.tail(from).await {
        Ok(_) => assert!(check(&history(&store, from).await) >= 5),
        Err(error @ (TailError::Gap | TailError::Rewound | TailError::Unreachable(_))) => {
            panic!("{error}")
        }
    }
}
