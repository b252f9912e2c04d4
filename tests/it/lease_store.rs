//! Exclusivity can't be promised without the store: managed requests fail
//! closed, at once, and go on as before when it is back.

use std::time::{Duration, Instant};

use cluster_tests::client::Answer;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, RIVAL, generation, listed, managed, setting};
use cluster_tests::node::Node;
use cluster_tests::redis;
use cluster_tests::reply::Gate;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually, let_time_pass};

const MODEL: &str = "chat/demo-model";
/// A lease's call to the store has 1 s; the rest is for a busy machine.
const BOUNDED: Duration = Duration::from_secs(3);

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    managed(&upstream.url(), &[Dialect::Chat], &["a"])
}

async fn durable(nodes: usize) -> Cluster {
    let plan = Plan::of(nodes).redis(redis::Setup::durable());
    plan.start(config).await
}

fn expect_unavailable(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.code(), "LEASE_SERVICE_UNAVAILABLE");
    assert_eq!(answer.retry_after(), Some(1));
    assert!(answer.took < BOUNDED, "{:?}", answer.took);
}

/// Every managed call on `node` says that the service is not available.
async fn expect_closed(node: &Node, owner: &Owner, held: u64) {
    expect_unavailable(&owner.acquire(node, MODEL).await);
    expect_unavailable(&owner.renew(node, held).await);
    expect_unavailable(&owner.status(node, held).await);
    expect_unavailable(&owner.release(node, held).await);
    for stream in [false, true] {
        let call = owner.ask(node, Dialect::Chat, held, stream);
        expect_unavailable(&call.send().await);
    }
    Owner::new("nobody", RIVAL)
        .acquire(node, MODEL)
        .await
        .expect_status(503);
}

async fn expect_open(node: &Node, owner: &Owner, held: u64) {
    eventually("the lease is served again", || async {
        let answer = owner.ask(node, Dialect::Chat, held, false).send().await;
        assert!(matches!(answer.status, 200 | 503), "{}", answer.text());
        (answer.status == 200).then_some(())
    })
    .await;
    owner.renew(node, held).await.expect_status(200);
}

#[tokio::test]
async fn a_killed_redis_closes_and_a_restart_with_its_data_opens() {
    let mut cluster = durable(2).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    cluster.redis.kill().await;
    for node in &cluster.nodes {
        expect_closed(node, &owner, held).await;
        node.get("/readyz").send().await.expect_status(200);
    }
    assert!(cluster.upstream.requests().is_empty());
    cluster.redis.restart().await;
    for node in &cluster.nodes {
        expect_open(node, &owner, held).await;
    }
}

#[tokio::test]
async fn a_restart_without_data_forgets_leases_but_not_that_generations_rise() {
    let mut cluster = Cluster::start(2, config).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    cluster.redis.kill().await;
    cluster.redis.restart_empty().await;
    let newer = eventually("alice has a new lease", || async {
        let answer = owner.acquire(&cluster.nodes[1], MODEL).await;
        (answer.status == 200).then(|| generation(&answer))
    })
    .await;
    assert!(newer > held, "{newer} after {held}");
    for node in &cluster.nodes {
        let stale = eventually("the old generation is refused", || async {
            let answer = owner.ask(node, Dialect::Chat, held, false).send().await;
            (answer.status != 503).then_some(answer)
        })
        .await;
        assert_eq!(stale.code(), "LEASE_FENCE_STALE", "{}", stale.text());
        expect_open(node, &owner, newer).await;
    }
}

#[tokio::test]
async fn a_frozen_redis_closes_without_hanging() {
    let cluster = durable(2).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    cluster.redis.stop();
    for node in &cluster.nodes {
        expect_closed(node, &owner, held).await;
    }
    assert!(cluster.upstream.requests().is_empty());
    cluster.redis.cont();
    // What was sent to the frozen server may be carried out now: alice's own
    // release among it. Whatever it is, the nodes agree about it.
    let outcome = eventually("the nodes agree", || async {
        let mut told = Vec::new();
        for node in &cluster.nodes {
            let answer = owner.ask(node, Dialect::Chat, held, false).send().await;
            told.push((answer.status, (answer.status != 200).then(|| answer.code())));
        }
        (told[0] == told[1] && told[0].0 != 503).then(|| told.remove(0))
    })
    .await;
    match outcome {
        (200, _) => {}
        (409, Some(code)) => assert_eq!(code, "LEASE_REQUIRED"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn slow_answers_of_redis_are_bounded_too() {
    let cluster = durable(1).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    for mode in [
        Mode::Delay(Duration::from_secs(5)),
        Mode::Drip(Duration::from_secs(1)),
        Mode::BlackHole,
        Mode::Mute,
        Mode::Cut,
        Mode::Refuse,
    ] {
        cluster.cuts[0].set(mode).await;
        for _ in 0..3 {
            let call = owner.ask(&cluster.nodes[0], Dialect::Chat, held, false);
            expect_unavailable(&call.send().await);
        }
        assert!(cluster.upstream.requests().is_empty(), "{mode:?}");
    }
    cluster.cuts[0].set(Mode::Pass).await;
    cluster.cuts[0].blink().await;
    expect_open(&cluster.nodes[0], &owner, held).await;
}

#[tokio::test]
async fn one_node_cut_off_closes_alone() {
    let cluster = durable(3).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    for mode in [Mode::BlackHole, Mode::Refuse] {
        cluster.cuts[0].set(mode).await;
        let sent = cluster.upstream.requests().len();
        expect_closed(&cluster.nodes[0], &owner, held).await;
        assert_eq!(cluster.upstream.requests().len(), sent);
        for node in &cluster.nodes[1..] {
            let call = owner.ask(node, Dialect::Chat, held, false);
            call.send().await.expect_status(200);
            owner.renew(node, held).await.expect_status(200);
        }
        // Reset, so that nothing is delivered late.
        cluster.cuts[0].set(Mode::Cut).await;
        cluster.cuts[0].set(Mode::Pass).await;
        expect_open(&cluster.nodes[0], &owner, held).await;
    }
}

/// The node can't know whether the lease still holds, and behind the cut it
/// may be another's already.
#[tokio::test]
async fn a_node_cut_off_ends_what_runs_before_another_owner_comes() {
    let cluster = Cluster::start(2, |upstream| {
        setting(config(upstream), "handoverGraceMs", 3000)
    })
    .await;
    let begun = Dialect::Chat.endless_stream("hel");
    cluster.upstream.script("chat-a", [begun]);
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[1], MODEL).await;
    let call = alice.ask(&cluster.nodes[0], Dialect::Chat, held, true);
    let mut stream = call.open().await;
    stream.read_until("hel").await;
    let seen = cluster.upstream.request("chat-a", 1).await;
    cluster.cuts[0].set(Mode::BlackHole).await;
    alice
        .release(&cluster.nodes[1], held)
        .await
        .expect_status(200);
    let taken = eventually("bob has the connection", || async {
        let answer = bob.acquire(&cluster.nodes[1], MODEL).await;
        (answer.status == 200).then(Instant::now)
    })
    .await;
    let dropped = seen.dropped(SOON).await;
    let overlap = dropped.saturating_duration_since(taken);
    assert!(
        overlap < Duration::from_secs(2),
        "used by both for {overlap:?}"
    );
    stream.read_to_end().await;
    assert!(stream.text().contains("LEASE_LOST"), "{}", stream.text());
}

#[tokio::test]
async fn a_short_outage_cuts_nothing() {
    let cluster = durable(1).await;
    let gate = Gate::closed();
    let slow = Dialect::Chat.held_stream("hello", &gate);
    cluster.upstream.script("chat-a", [slow]);
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let call = owner.ask(&cluster.nodes[0], Dialect::Chat, held, true);
    let mut stream = call.open().await;
    stream.read_until("hello").await;
    cluster.cuts[0].blink().await;
    let_time_pass(Duration::from_secs(3), "more than the grace passes").await;
    gate.open();
    Dialect::Chat.expect_whole(&stream.finish().await, "hello");
    assert_eq!(listed(&cluster.nodes[0]).await.len(), 1);
}

#[tokio::test]
async fn a_killed_node_leaves_leases_to_their_owners() {
    let mut cluster = durable(2).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    cluster.nodes[0].kill_9().await;
    expect_open(&cluster.nodes[1], &owner, held).await;
    cluster.restart(0).await;
    expect_open(&cluster.nodes[0], &owner, held).await;
    assert!(cluster.nodes[1].stop().await.success());
    expect_open(&cluster.nodes[0], &owner, held).await;
}
