//! One coordinator leads, by a lease of 5 s with an epoch that only rises.

use std::time::{Duration, Instant};

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::redis;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually, eventually_within, let_time_pass};

/// How long a leader leads without renewing.
const LEASE: Duration = Duration::from_secs(5);
/// Within what a standby has taken over; the second is for a busy machine.
const TAKEN_OVER: Duration = Duration::from_secs(2 * 5 + 1);

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection("a", "acme")
}

async fn cluster(coordinators: usize) -> Cluster {
    let plan = Plan::of(1)
        .coordinators(coordinators)
        .redis(redis::Setup::durable());
    plan.start(config).await
}

/// Waits until `at` leads; when, and its epoch.
async fn leads(cluster: &Cluster, at: usize) -> (Instant, u64) {
    let one = &cluster.coordinators[at];
    eventually_within(SOON, "the standby leads", || async {
        (one.role().await.as_deref() == Some("leader")).then_some(())
    })
    .await;
    (Instant::now(), one.epoch().await)
}

async fn stands_by(cluster: &Cluster, at: usize) {
    let one = &cluster.coordinators[at];
    eventually("the former leader stands by", || async {
        (one.role().await.as_deref() == Some("standby")).then_some(())
    })
    .await;
}

/// Not at any moment of `time` do two say that they lead.
async fn never_two(cluster: &Cluster, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        let mut leaders = Vec::new();
        for one in &cluster.coordinators {
            if one.role().await.as_deref() == Some("leader") {
                leaders.push(one.epoch().await);
            }
        }
        assert!(leaders.len() <= 1, "two leaders: {leaders:?}");
        let_time_pass(Duration::from_millis(50), "they may change").await;
    }
}

#[tokio::test]
async fn one_of_three_leads_and_stays() {
    let cluster = cluster(3).await;
    let (leader, _) = cluster.roles().await;
    let epoch = cluster.coordinators[leader].epoch().await;
    assert!(epoch > 0);
    never_two(&cluster, LEASE * 2).await;
    assert_eq!(cluster.roles().await.0, leader, "it changed without need");
    assert_eq!(cluster.coordinators[leader].epoch().await, epoch);
    for one in &cluster.coordinators {
        one.get("/healthz").send().await.expect_status(200);
        let metrics = one.get("/metrics").send().await.expect_status(200);
        assert!(metrics.text().contains("# TYPE"), "{}", metrics.text());
    }
}

#[tokio::test]
async fn a_killed_leader_is_followed_in_time() {
    let mut cluster = cluster(2).await;
    let mut last = 0;
    for _ in 0..2 {
        let (leader, standby) = cluster.roles().await;
        let epoch = cluster.coordinators[leader].epoch().await;
        assert!(epoch > last, "{epoch} after {last}");
        cluster.coordinators[leader].kill_9().await;
        let killed = Instant::now();
        let (at, newer) = leads(&cluster, standby).await;
        assert!(at - killed <= TAKEN_OVER, "{:?}", at - killed);
        assert!(newer > epoch, "{newer} after {epoch}");
        last = epoch;
        let again = cluster.coordinators[leader].start_again().await;
        cluster.coordinators[leader] = again;
        stands_by(&cluster, leader).await;
        assert_eq!(cluster.coordinators[standby].epoch().await, newer);
    }
}

#[tokio::test]
async fn a_leader_that_stops_hands_over_at_once() {
    let mut cluster = cluster(2).await;
    let (leader, standby) = cluster.roles().await;
    let epoch = cluster.coordinators[leader].epoch().await;
    assert!(cluster.coordinators[leader].stop().await.success());
    let stopped = Instant::now();
    let (at, newer) = leads(&cluster, standby).await;
    assert!(at - stopped < LEASE, "{:?}", at - stopped);
    assert!(newer > epoch);
}

#[tokio::test]
async fn a_frozen_leader_is_followed_and_leads_no_more_when_it_thaws() {
    let cluster = cluster(2).await;
    let (leader, standby) = cluster.roles().await;
    let epoch = cluster.coordinators[leader].epoch().await;
    cluster.coordinators[leader].freeze();
    let frozen = Instant::now();
    let (at, newer) = leads(&cluster, standby).await;
    assert!(at - frozen <= TAKEN_OVER, "{:?}", at - frozen);
    assert!(newer > epoch, "{newer} after {epoch}");
    let before = cluster.redis.contents().await;
    assert!(!before.is_empty());
    cluster.coordinators[leader].thaw();
    stands_by(&cluster, leader).await;
    never_two(&cluster, LEASE * 2).await;
    assert_eq!(cluster.coordinators[standby].epoch().await, newer);
    assert_eq!(cluster.coordinators[leader].epoch().await, newer);
}

#[tokio::test]
async fn a_leader_cut_off_steps_down_before_another_leads() {
    for mode in [Mode::BlackHole, Mode::Refuse] {
        let cluster = cluster(2).await;
        let (leader, standby) = cluster.roles().await;
        let epoch = cluster.coordinators[leader].epoch().await;
        cluster.coordinator_cuts[leader].set(mode).await;
        let cut = Instant::now();
        never_two(&cluster, TAKEN_OVER).await;
        let (at, newer) = leads(&cluster, standby).await;
        assert!(at - cut <= TAKEN_OVER + LEASE, "{:?}", at - cut);
        assert!(newer > epoch);
        cluster.coordinator_cuts[leader].set(Mode::Pass).await;
        stands_by(&cluster, leader).await;
        never_two(&cluster, LEASE).await;
        assert_eq!(cluster.coordinators[standby].epoch().await, newer);
    }
}

#[tokio::test]
async fn epochs_rise_over_a_wiped_redis() {
    let mut cluster = cluster(2).await;
    let (leader, _) = cluster.roles().await;
    let epoch = cluster.coordinators[leader].epoch().await;
    cluster.redis.kill().await;
    cluster.redis.restart_empty().await;
    let newer = eventually("one leads with a later epoch", || async {
        for one in &cluster.coordinators {
            let epoch_now = one.epoch().await;
            if one.role().await.as_deref() == Some("leader") && epoch_now > epoch {
                return Some(epoch_now);
            }
        }
        None
    })
    .await;
    assert!(newer > epoch);
    never_two(&cluster, LEASE).await;
}

#[tokio::test]
async fn routers_know_whether_one_leads_and_do_without() {
    let mut cluster = cluster(2).await;
    let (leader, standby) = cluster.roles().await;
    let ready = cluster.nodes[0].get("/readyz").send().await;
    let ready = ready.expect_status(200).json();
    assert!(!ready["coordinator"].is_null(), "{ready}");
    for at in [leader, standby] {
        cluster.coordinators[at].kill_9().await;
    }
    let_time_pass(LEASE * 2, "the leader's lease ends").await;
    let body = Dialect::Chat.request("acme/m", false);
    let call = cluster.nodes[0].post("/v1/chat/completions", &body);
    call.send().await.expect_status(200);
    let ready = cluster.nodes[0].get("/readyz").send().await;
    ready.expect_status(200);
}
