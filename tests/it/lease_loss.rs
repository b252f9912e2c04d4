//! A lost lease ends what runs under it, on every node, within a second, and
//! is nobody's failure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_tests::client::{Answer, Streaming};
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{
    KEY, Owner, RIVAL, generation, listed_as, managed, moment, now, setting,
};
use cluster_tests::reply::Gate;
use cluster_tests::upstream::{Seen, Upstream};
use cluster_tests::wait::{SOON, eventually, within};
use tokio::task::JoinHandle;

const MODEL: &str = "chat/demo-model";
/// What is promised.
const PROMISED: Duration = Duration::from_secs(1);

fn config(upstream: &Upstream) -> Config {
    managed(&upstream.url(), &Dialect::ALL, &["a"])
}

struct Running {
    stream: Streaming,
    seen: Arc<Seen>,
}

/// A stream under the lease through each node, each begun.
async fn run_everywhere(
    cluster: &Cluster,
    owner: &Owner,
    dialect: Dialect,
    held: u64,
) -> Vec<Running> {
    let a = dialect.connection("a");
    cluster.upstream.script(&a, [dialect.endless_stream("hel")]);
    let before = cluster.upstream.count(&a);
    let mut all = Vec::new();
    for (at, node) in cluster.nodes.iter().enumerate() {
        let mut stream = owner.ask(node, dialect, held, true).open().await;
        assert_eq!(stream.status, 200);
        stream.read_until("hel").await;
        let seen = cluster.upstream.request(&a, before + at + 1).await;
        all.push(Running { stream, seen });
    }
    all
}

/// All of them end within the promised time after `lost`.
async fn expect_cut(all: Vec<Running>, dialect: Dialect, lost: Instant) {
    for mut one in all {
        let dropped = one.seen.dropped(SOON).await;
        let took = dropped.saturating_duration_since(lost);
        assert!(took <= PROMISED, "{dialect:?}: held for {took:?}");
        one.stream.read_to_end().await;
        let text = one.stream.text();
        dialect.expect_broken(&text, "hel");
        assert!(text.contains("LEASE_LOST"), "{dialect:?}: {text}");
    }
}

async fn expect_no_mark(cluster: &Cluster, dialect: Dialect) {
    for node in &cluster.nodes {
        let a = node.connection(&dialect.connection("a")).await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
        assert_eq!(a["backoffLevel"], 0, "{a}");
        assert_eq!(a["breaker"]["failureCount"], 0, "{a}");
    }
    eventually("nothing is in flight", || async {
        for node in &cluster.nodes {
            let a = node.connection(&dialect.connection("a")).await;
            if a["inFlight"] != 0 {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test]
async fn by_release() {
    let cluster = Cluster::start(3, config).await;
    for (at, dialect) in Dialect::ALL.into_iter().enumerate() {
        let owner = Owner::new(dialect.name(), KEY);
        let held = owner.hold(&cluster.nodes[0], &dialect.model()).await;
        let running = run_everywhere(&cluster, &owner, dialect, held).await;
        owner
            .release(&cluster.nodes[at], held)
            .await
            .expect_status(200);
        expect_cut(running, dialect, Instant::now()).await;
        expect_no_mark(&cluster, dialect).await;
    }
}

#[tokio::test]
async fn by_expiry() {
    let cluster = Cluster::start(2, |upstream| setting(config(upstream), "ttlMs", 5000)).await;
    let owner = Owner::new("alice", KEY);
    let acquired = owner.acquire(&cluster.nodes[0], MODEL).await;
    let running = run_everywhere(&cluster, &owner, Dialect::Chat, generation(&acquired)).await;
    let left = moment(&acquired, "expiresAt") - now();
    let end = Instant::now() + Duration::from_millis(u64::try_from(left).unwrap_or(0));
    for one in &running {
        let dropped = one.seen.dropped(SOON).await;
        let early = end.saturating_duration_since(dropped);
        assert!(early < Duration::from_millis(50), "cut {early:?} too early");
    }
    expect_cut(running, Dialect::Chat, end).await;
    expect_no_mark(&cluster, Dialect::Chat).await;
}

#[tokio::test]
async fn renewing_in_time_cuts_nothing() {
    let cluster = Cluster::start(2, |upstream| setting(config(upstream), "ttlMs", 3000)).await;
    let gate = Gate::closed();
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let slow = Dialect::Chat.held_stream("hello", &gate);
    cluster.upstream.script("chat-a", [slow]);
    let mut streams = Vec::new();
    for node in &cluster.nodes {
        streams.push(owner.ask(node, Dialect::Chat, held, true).open().await);
    }
    let begun = Instant::now();
    let mut turn = 0;
    while begun.elapsed() < Duration::from_secs(7) {
        let node = &cluster.nodes[turn % 2];
        owner.renew(node, held).await.expect_status(200);
        let pause = Duration::from_millis(700);
        cluster_tests::wait::let_time_pass(pause, "several times to live pass").await;
        turn += 1;
    }
    gate.open();
    for stream in streams {
        Dialect::Chat.expect_whole(&stream.finish().await, "hello");
    }
}

#[tokio::test]
async fn by_transition() {
    let cluster = Cluster::start(2, config).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let running = run_everywhere(&cluster, &owner, Dialect::Chat, held).await;
    let answers = [Dialect::Messages.ok("pong")];
    cluster.upstream.script("messages-a", answers);
    let moving = owner.ask(&cluster.nodes[1], Dialect::Messages, held, false);
    moving.send().await.expect_status(200);
    expect_cut(running, Dialect::Chat, Instant::now()).await;
    let status = owner.status(&cluster.nodes[0], held).await;
    status.expect_status(200);
    expect_no_mark(&cluster, Dialect::Chat).await;
}

#[tokio::test]
async fn by_revocation() {
    let cluster = Cluster::start(2, config).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let running = run_everywhere(&cluster, &owner, Dialect::Chat, held).await;
    let leases = listed_as(&cluster.nodes[1], 1).await;
    let path = format!("/api/leases/{}", leases[0]["id"].as_str().unwrap());
    let revoked = cluster.nodes[1].admin_call("DELETE", &path).send().await;
    assert!(matches!(revoked.status, 200 | 204), "{}", revoked.text());
    expect_cut(running, Dialect::Chat, Instant::now()).await;
    expect_no_mark(&cluster, Dialect::Chat).await;
}

fn send(
    owner: &Owner,
    cluster: &Cluster,
    node: usize,
    held: u64,
) -> JoinHandle<Result<Answer, String>> {
    let call = owner.ask(&cluster.nodes[node], Dialect::Chat, held, false);
    tokio::spawn(call.try_send())
}

#[tokio::test]
async fn before_the_first_byte_it_is_told_as_an_error() {
    let cluster = Cluster::start(2, config).await;
    let never = Gate::closed();
    let late = Dialect::Chat.ok("late").behind(&never);
    cluster.upstream.script("chat-a", [late]);
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let calls = [
        send(&owner, &cluster, 0, held),
        send(&owner, &cluster, 1, held),
    ];
    cluster.upstream.request("chat-a", 2).await;
    owner
        .release(&cluster.nodes[1], held)
        .await
        .expect_status(200);
    let lost = Instant::now();
    for call in calls {
        let answer = within(SOON, "it is told", call).await.unwrap().unwrap();
        assert!(lost.elapsed() <= PROMISED, "{:?}", lost.elapsed());
        assert_eq!(answer.status, 409, "{}", answer.text());
        assert_eq!(answer.code(), "LEASE_LOST", "{}", answer.text());
    }
    assert_eq!(cluster.upstream.count("chat-a"), 2, "tried again");
    expect_no_mark(&cluster, Dialect::Chat).await;
}

#[tokio::test]
async fn the_work_of_others_goes_on() {
    let cluster = Cluster::start(2, config).await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let bobs = bob.hold(&cluster.nodes[0], "messages/demo-model").await;
    let gate = Gate::closed();
    let slow = Dialect::Messages.held_stream("mine", &gate);
    cluster.upstream.script("messages-a", [slow]);
    let mut bobs_streams = Vec::new();
    for node in &cluster.nodes {
        bobs_streams.push(tokio::spawn(
            bob.ask(node, Dialect::Messages, bobs, true).try_open(),
        ));
    }
    cluster.upstream.request("messages-a", 2).await;
    let running = run_everywhere(&cluster, &alice, Dialect::Chat, held).await;
    alice
        .release(&cluster.nodes[0], held)
        .await
        .expect_status(200);
    expect_cut(running, Dialect::Chat, Instant::now()).await;
    gate.open();
    for stream in bobs_streams {
        let stream = stream.await.unwrap().unwrap();
        Dialect::Messages.expect_whole(&stream.finish().await, "mine");
    }
}

#[tokio::test]
async fn a_client_that_left_is_not_waited_for() {
    let cluster = Cluster::start(2, config).await;
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let running = run_everywhere(&cluster, &alice, Dialect::Chat, held).await;
    let seen: Vec<Arc<Seen>> = running.iter().map(|one| Arc::clone(&one.seen)).collect();
    drop(running);
    for one in seen {
        one.dropped(SOON).await;
    }
    alice
        .release(&cluster.nodes[1], held)
        .await
        .expect_status(200);
    let begun = Instant::now();
    eventually("bob has the connection", || async {
        let answer = bob.acquire(&cluster.nodes[0], MODEL).await;
        (answer.status == 200).then_some(())
    })
    .await;
    assert!(
        begun.elapsed() < Duration::from_millis(1500),
        "{:?}",
        begun.elapsed()
    );
}
