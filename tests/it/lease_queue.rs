//! The fence is looked at when a request leaves the queue, not when it came.

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, generation, listed, moment, setting, until};
use cluster_tests::reply::Gate;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, let_time_pass, within};
use serde_json::json;
use std::time::Duration;
use tokio::task::JoinHandle;

const MODEL: &str = "chat/demo-model";
/// Long enough for a request to have come to the queue.
const QUEUED: Duration = Duration::from_millis(500);

/// One managed connection that takes one request at a time.
fn config(upstream: &Upstream) -> Config {
    let scopes = json!({"scopes": ["lease:exclusive"], "allowedConnections": ["chat-a"]});
    Config::new()
        .provider("chat", "openai", &upstream.url())
        .connection_with("chat-a", "chat", json!({"maxConcurrent": 1}))
        .api_key("team", KEY, scopes)
        .no_waiting()
}

struct Queue {
    cluster: Cluster,
    owner: Owner,
    held: u64,
    acquired: Answer,
    gate: Gate,
    first: JoinHandle<Result<Answer, String>>,
    second: JoinHandle<Result<Answer, String>>,
}

impl Queue {
    /// One request is at the upstream by the first node, another waits behind
    /// it on the second one.
    async fn start(ttl_ms: u64) -> Self {
        let cluster =
            Cluster::start(2, |upstream| setting(config(upstream), "ttlMs", ttl_ms)).await;
        let gate = Gate::closed();
        let slow = Dialect::Chat.ok("pong").behind(&gate);
        cluster
            .upstream
            .script("chat-a", [slow, Dialect::Chat.ok("next")]);
        let owner = Owner::new("alice", KEY);
        let acquired = owner.acquire(&cluster.nodes[0], MODEL).await;
        let held = generation(&acquired);
        let ask = |node: usize| {
            let call = owner.ask(&cluster.nodes[node], Dialect::Chat, held, false);
            tokio::spawn(call.try_send())
        };
        let first = ask(0);
        cluster.upstream.request("chat-a", 1).await;
        let second = ask(1);
        let_time_pass(QUEUED, "the second request comes to the queue").await;
        assert!(!second.is_finished(), "it did not wait");
        assert_eq!(cluster.upstream.count("chat-a"), 1);
        Self {
            cluster,
            owner,
            held,
            acquired,
            gate,
            first,
            second,
        }
    }
}

async fn answer_of(call: JoinHandle<Result<Answer, String>>) -> Answer {
    within(SOON, "a request is answered", call)
        .await
        .unwrap()
        .unwrap()
}

fn expect_refused(answer: &Answer, codes: &[&str]) {
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(codes.contains(&&*answer.code()), "{}", answer.text());
}

#[tokio::test]
async fn a_release_stops_what_waits() {
    let queue = Queue::start(60_000).await;
    let node = &queue.cluster.nodes[0];
    queue
        .owner
        .release(node, queue.held)
        .await
        .expect_status(200);
    // The one at the upstream is cut, which hands its slot on.
    let cut = answer_of(queue.first).await;
    assert_eq!(cut.code(), "LEASE_LOST", "{}", cut.text());
    expect_refused(
        &answer_of(queue.second).await,
        &["LEASE_REQUIRED", "LEASE_LOST"],
    );
    assert_eq!(queue.cluster.upstream.count("chat-a"), 1);
}

#[tokio::test]
async fn the_end_of_the_lease_stops_what_waits() {
    let queue = Queue::start(4000).await;
    let end = moment(&queue.acquired, "expiresAt");
    let cut = answer_of(queue.first).await;
    assert_eq!(cut.code(), "LEASE_LOST", "{}", cut.text());
    assert!(until(end).is_zero(), "cut before its end");
    expect_refused(
        &answer_of(queue.second).await,
        &["LEASE_REQUIRED", "LEASE_LOST"],
    );
    assert_eq!(queue.cluster.upstream.count("chat-a"), 1);
}

#[tokio::test]
async fn a_new_lease_does_not_help_requests_of_the_old_one() {
    let queue = Queue::start(60_000).await;
    let node = &queue.cluster.nodes[1];
    queue
        .owner
        .release(node, queue.held)
        .await
        .expect_status(200);
    let newer = cluster_tests::wait::eventually("alice has a new lease", || async {
        let answer = queue.owner.acquire(node, MODEL).await;
        (answer.status == 200).then(|| generation(&answer))
    })
    .await;
    assert!(newer > queue.held);
    expect_refused(
        &answer_of(queue.second).await,
        &["LEASE_REQUIRED", "LEASE_FENCE_STALE", "LEASE_LOST"],
    );
    assert_eq!(queue.cluster.upstream.count("chat-a"), 1);
    let call = queue.owner.ask(node, Dialect::Chat, newer, false);
    call.send().await.expect_status(200);
}

#[tokio::test]
async fn a_lease_that_holds_lets_the_next_one_go() {
    let queue = Queue::start(60_000).await;
    let node = &queue.cluster.nodes[1];
    queue.owner.renew(node, queue.held).await.expect_status(200);
    queue.gate.open();
    answer_of(queue.first).await.expect_status(200);
    let second = answer_of(queue.second).await.expect_status(200);
    assert_eq!(Dialect::Chat.text_of_answer(&second.json()), "next");
    assert_eq!(listed(node).await.len(), 1);
}

/// Waiting for a cooldown to end is a queue as well.
#[tokio::test]
async fn a_release_stops_what_waits_for_a_cooldown() {
    let cluster = Cluster::start(2, |upstream| {
        config(upstream).resilience("waitForCooldown.enabled", json!(true))
    })
    .await;
    let replies = [
        cluster_tests::reply::Reply::limited(3),
        Dialect::Chat.ok("pong"),
    ];
    cluster.upstream.script("chat-a", replies);
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let call = owner.ask(&cluster.nodes[0], Dialect::Chat, held, false);
    let call = tokio::spawn(call.try_send());
    cluster.nodes[1]
        .connection_becomes("chat-a", "cooling_down")
        .await;
    // Already over where the failure ended it.
    owner.release(&cluster.nodes[1], held).await;
    let answer = answer_of(call).await;
    assert!(answer.status >= 400, "{}", answer.text());
    cluster.nodes[0]
        .connection_becomes("chat-a", "healthy")
        .await;
    assert_eq!(cluster.upstream.count("chat-a"), 1);
}
