//! Slots of the dead are freed, those of the living are not, and nobody waits
//! for ever.

use std::time::{Duration, Instant};

use cluster_tests::client::{Answer, Streaming};
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass, within};
use futures_util::future::join_all;
use serde_json::json;
use tokio::task::JoinHandle;

/// How long a slot lives without being renewed.
const LIFETIME: Duration = Duration::from_secs(15);

fn config(upstream: &Upstream, cap: u64) -> Config {
    Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"maxConcurrent": cap}))
        .set(
            &["combos"],
            json!([{"name": "all", "strategy": "priority",
                "targets": [{"model": "acme/m"}],
                "config": {"queueTimeoutMs": 120_000, "queueDepth": 100}}]),
        )
        .no_waiting()
}

type Sent = JoinHandle<Result<Answer, String>>;

fn send(cluster: &Cluster, node: usize) -> Sent {
    let body = Dialect::Chat.request("all", false);
    let call = cluster.nodes[node].post("/v1/chat/completions", &body);
    tokio::spawn(call.try_send())
}

async fn served(call: Sent) -> Answer {
    let answer = within(Duration::from_mins(1), "a request is served", call).await;
    answer.unwrap().unwrap().expect_status(200)
}

/// Streams that never end by themselves, through one node.
async fn run(cluster: &Cluster, node: usize, count: usize) -> Vec<Streaming> {
    cluster
        .upstream
        .script("a", [Dialect::Chat.endless_stream("hello")]);
    let mut streams = Vec::new();
    for _ in 0..count {
        let body = Dialect::Chat.request("all", true);
        let call = cluster.nodes[node].post("/v1/chat/completions", &body);
        let mut stream = call.open().await;
        stream.read_until("hello").await;
        streams.push(stream);
    }
    cluster.upstream.script("a", [Dialect::Chat.ok("pong")]);
    streams
}

#[tokio::test]
async fn a_killed_node_frees_its_slots_and_not_those_of_others() {
    let mut cluster = Cluster::start(2, |upstream| config(upstream, 4)).await;
    let dead = run(&cluster, 0, 2).await;
    let living = run(&cluster, 1, 2).await;
    let waiting = send(&cluster, 1);
    let pause = Duration::from_millis(500);
    let_time_pass(pause, "a request comes to the queue").await;
    assert!(!waiting.is_finished(), "a fifth one went");
    cluster.nodes[0].kill_9().await;
    let killed = Instant::now();
    drop(dead);
    served(waiting).await;
    let took = killed.elapsed();
    assert!(took <= LIFETIME + Duration::from_secs(2), "{took:?}");
    // The living node's two streams still count, long after the lifetime of
    // what they took at first.
    let left = (LIFETIME * 2).saturating_sub(took);
    let_time_pass(left, "two lifetimes pass").await;
    let more = run(&cluster, 1, 2).await;
    let waiting = send(&cluster, 1);
    let_time_pass(pause, "a request comes to the queue").await;
    assert!(!waiting.is_finished(), "slots of a living node were freed");
    assert_eq!(cluster.upstream.running("a"), 4);
    drop(living);
    served(waiting).await;
    drop(more);
}

#[tokio::test]
async fn a_node_that_stops_gives_its_slots_back_at_once() {
    let mut cluster = Cluster::start(2, |upstream| {
        config(upstream, 1).server("drainTimeoutMs", json!(500))
    })
    .await;
    let stream = run(&cluster, 0, 1).await;
    let waiting = send(&cluster, 1);
    assert!(cluster.nodes[0].stop().await.success());
    let stopped = Instant::now();
    served(waiting).await;
    let took = stopped.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    drop(stream);
}

/// Many clients of one node keep the connection busy; the only client of the
/// other node has its turn all the same.
#[tokio::test]
async fn nobody_starves() {
    const CROWD: usize = 8;
    let cluster = Cluster::start(2, |upstream| config(upstream, 1)).await;
    cluster
        .upstream
        .script("a", [Dialect::Chat.ok("pong").after_ms(10)]);
    let crowd = async {
        let busy = (0..CROWD).map(|_| async {
            for _ in 0..25 {
                served(send(&cluster, 0)).await;
            }
        });
        join_all(busy).await;
    };
    let lone = async {
        cluster.upstream.request("a", CROWD).await;
        let mut passed = Vec::new();
        for _ in 0..5 {
            let before = cluster.upstream.count("a");
            served(send(&cluster, 1)).await;
            passed.push(cluster.upstream.count("a") - before);
        }
        passed
    };
    let ((), passed) = futures_util::future::join(crowd, lone).await;
    // Those who were there before it go first, and each of them may just
    // have asked again.
    assert!(passed.iter().all(|many| *many <= 3 * CROWD), "{passed:?}");
    assert_eq!(cluster.upstream.peak("a"), 1);
}

#[tokio::test]
async fn without_redis_each_node_keeps_to_its_share_and_refuses_nobody() {
    let mut cluster = Cluster::start(2, |upstream| config(upstream, 4)).await;
    cluster
        .upstream
        .script("a", [Dialect::Chat.ok("pong").after_ms(50)]);
    for node in [0, 1] {
        served(send(&cluster, node)).await;
    }
    cluster.redis.kill().await;
    let calls: Vec<Sent> = (0..24).map(|at| send(&cluster, at % 2)).collect();
    join_all(calls.into_iter().map(served)).await;
    let peak = cluster.upstream.peak("a");
    assert!((2..=4).contains(&peak), "{peak} at a time");
    cluster.redis.restart().await;
    eventually("the store is back", || async {
        for node in &cluster.nodes {
            let ready = node.get("/readyz").send().await.json();
            if ready["degraded"] != json!([]) {
                return None;
            }
        }
        Some(())
    })
    .await;
    let calls: Vec<Sent> = (0..24).map(|at| send(&cluster, at % 2)).collect();
    join_all(calls.into_iter().map(served)).await;
    assert!(cluster.upstream.peak("a") <= 4);
}

#[tokio::test]
async fn a_node_cut_off_keeps_to_its_share_of_the_last_known_nodes() {
    let cluster = Cluster::start(2, |upstream| config(upstream, 2)).await;
    for mode in [Mode::BlackHole, Mode::Refuse] {
        cluster
            .upstream
            .script("a", [Dialect::Chat.ok("pong").after_ms(50)]);
        cluster.cuts[0].set(mode).await;
        let before = cluster.upstream.requests().len();
        let calls: Vec<Sent> = (0..8).map(|_| send(&cluster, 0)).collect();
        join_all(calls.into_iter().map(served)).await;
        let requests = cluster.upstream.requests();
        let mine = &requests[before..];
        let most = mine
            .iter()
            // Those that were there when it came, and it.
            .map(|one| {
                let before = mine.iter().filter(|other| other.at <= one.at);
                before.filter(|other| one.overlaps(other)).count()
            })
            .max();
        assert!(most <= Some(2), "{mode:?}: {most:?} at a time");
        cluster.cuts[0].set(Mode::Cut).await;
        cluster.cuts[0].set(Mode::Pass).await;
    }
}

#[tokio::test]
async fn a_wiped_redis_frees_no_slot_that_is_in_use() {
    let mut cluster = Cluster::start(2, |upstream| config(upstream, 2)).await;
    let streams = run(&cluster, 0, 2).await;
    cluster.redis.kill().await;
    cluster.redis.restart_empty().await;
    // A third of a slot's lifetime later they are kept again.
    let_time_pass(LIFETIME / 2, "the node renews what it holds").await;
    let waiting = send(&cluster, 1);
    let pause = Duration::from_millis(800);
    let_time_pass(pause, "a request comes to the queue").await;
    assert!(!waiting.is_finished(), "a third one went");
    drop(streams);
    served(waiting).await;
}
