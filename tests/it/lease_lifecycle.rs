//! The life of an exclusive lease: acquire, renew, release, status, expiry.
//! Every call may go to any node.

use std::time::Duration;

use cluster_tests::client::{Answer, Call};
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{
    KEY, OWNER, Owner, PATH, RIVAL, generation, managed, moment, now, setting, until,
};
use cluster_tests::node::Node;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use serde_json::{Value, json};

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream, shorts: &[&str]) -> Config {
    managed(&upstream.url(), &[Dialect::Chat], shorts)
}

async fn pair(shorts: &[&str]) -> Cluster {
    Cluster::start(2, |upstream| config(upstream, shorts)).await
}

fn fields(answer: &Answer) -> Vec<String> {
    let body = answer.json();
    let mut names: Vec<String> = body.as_object().unwrap().keys().cloned().collect();
    names.sort();
    names
}

fn expect_stale(answer: &Answer) {
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert_eq!(answer.code(), "LEASE_FENCE_STALE", "{}", answer.text());
    assert_eq!(answer.json()["error"]["type"], "lease_error");
}

#[tokio::test]
async fn each_success_tells_the_same_five_things() {
    let cluster = pair(&["a"]).await;
    let [first, second] = &cluster.nodes[..] else {
        panic!("not two nodes");
    };
    let owner = Owner::new("alice", KEY);
    let before = now();
    let acquired = owner.acquire(first, MODEL).await.expect_status(200);
    let after = now();
    let held = generation(&acquired);
    assert!((1..1 << 53).contains(&held));
    let renewed = owner.renew(second, held).await.expect_status(200);
    let released = owner.release(first, held).await.expect_status(200);
    for (answer, state) in [
        (&acquired, "ACTIVE"),
        (&renewed, "ACTIVE"),
        (&released, "RELEASED"),
    ] {
        let names = [
            "acquiredAt",
            "expiresAt",
            "generation",
            "renewedAt",
            "state",
        ];
        assert_eq!(fields(answer), names);
        assert_eq!(answer.json()["state"], state);
        assert_eq!(generation(answer), held);
        assert!(answer.header("x-request-id").is_some());
    }
    let at = moment(&acquired, "acquiredAt");
    assert!((before - 1000..=after + 1000).contains(&at), "{at}");
    assert_eq!(moment(&acquired, "renewedAt"), at);
    assert_eq!(moment(&acquired, "expiresAt"), at + 120_000);
    assert_eq!(moment(&renewed, "acquiredAt"), at);
    let renewed_at = moment(&renewed, "renewedAt");
    assert!(renewed_at >= at);
    assert_eq!(moment(&renewed, "expiresAt"), renewed_at + 120_000);
    assert!(cluster.upstream.requests().is_empty(), "an upstream call");
}

#[tokio::test]
async fn acquiring_again_gives_the_same_lease_and_only_renewing_extends_it() {
    let cluster = pair(&["a", "b"]).await;
    let owner = Owner::new("alice", KEY);
    let first = owner.acquire(&cluster.nodes[0], MODEL).await;
    let (held, end) = (generation(&first), moment(&first, "expiresAt"));
    let_time_pass(Duration::from_millis(50), "an extension would show").await;
    for node in &cluster.nodes {
        let again = owner.acquire(node, MODEL).await.expect_status(200);
        assert_eq!(generation(&again), held);
        assert_eq!(moment(&again, "expiresAt"), end);
    }
    let renewed = owner.renew(&cluster.nodes[1], held).await;
    let later = moment(&renewed, "expiresAt");
    assert!(later >= end + 50, "{later} after {end}");
    let again = owner.acquire(&cluster.nodes[0], MODEL).await;
    assert_eq!(moment(&again, "expiresAt"), later);
}

#[tokio::test]
async fn generations_rise_with_every_new_lease() {
    let cluster = pair(&["a"]).await;
    let mut last = 0;
    for turn in 0..6 {
        let (one, other) = (&cluster.nodes[turn % 2], &cluster.nodes[(turn + 1) % 2]);
        let owner = Owner::new("alice", KEY);
        let held = owner.hold(one, MODEL).await;
        assert!(held > last, "{held} after {last}");
        if last > 0 {
            expect_stale(&owner.renew(other, last).await);
            expect_stale(&owner.status(one, last).await);
        }
        owner.release(other, held).await.expect_status(200);
        last = held;
    }
}

#[tokio::test]
async fn a_release_may_be_repeated_and_ends_everything_else() {
    let cluster = pair(&["a"]).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let body = json!({"action": "release", "generation": held, "reason": "CLIENT_CANCELLED"});
    for node in &cluster.nodes {
        let answer = owner.call(node, &body).send().await.expect_status(200);
        assert_eq!(answer.json()["state"], "RELEASED");
        owner.release(node, held).await.expect_status(200);
        expect_stale(&owner.renew(node, held).await);
        expect_stale(&owner.status(node, held).await);
    }
    let stranger = Owner {
        key: RIVAL.into(),
        ..owner.clone()
    };
    expect_stale(&stranger.release(&cluster.nodes[0], held).await);
    let newer = owner.hold(&cluster.nodes[1], MODEL).await;
    assert!(newer > held);
    expect_stale(&owner.release(&cluster.nodes[0], held).await);
    owner
        .renew(&cluster.nodes[0], newer)
        .await
        .expect_status(200);
}

#[tokio::test]
async fn whatever_does_not_fit_the_lease_is_stale() {
    let cluster = pair(&["a", "b"]).await;
    let node = &cluster.nodes[1];
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let thief = Owner {
        key: RIVAL.into(),
        ..owner.clone()
    };
    let nobody = Owner::new("nobody", KEY);
    for (who, generation) in [
        (&owner, held + 1),
        (&owner, held - 1),
        (&thief, held),
        (&nobody, held),
        (&owner, (1 << 53) - 1),
    ] {
        expect_stale(&who.renew(node, generation).await);
        expect_stale(&who.release(node, generation).await);
        expect_stale(&who.status(node, generation).await);
    }
    expect_stale(&thief.acquire(node, MODEL).await);
    let state = owner.status(node, held).await.expect_status(200);
    assert_eq!(state.json()["state"], "ACTIVE");
}

#[tokio::test]
async fn all_stale_answers_are_alike() {
    let cluster = pair(&["a"]).await;
    let node = &cluster.nodes[0];
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(node, MODEL).await;
    let mut told = vec![
        owner.renew(node, held + 1).await,
        Owner::new("nobody", KEY).renew(node, held).await,
    ];
    owner.release(node, held).await.expect_status(200);
    told.push(owner.renew(node, held).await);
    for answer in &told {
        expect_stale(answer);
        assert_eq!(answer.json()["error"], told[0].json()["error"]);
    }
}

#[tokio::test]
async fn an_expired_lease_is_gone_without_a_coordinator() {
    let cluster = Cluster::start(2, |upstream| {
        setting(config(upstream, &["a"]), "ttlMs", 1500)
    })
    .await;
    let owner = Owner::new("alice", KEY);
    let acquired = owner.acquire(&cluster.nodes[0], MODEL).await;
    let (held, end) = (generation(&acquired), moment(&acquired, "expiresAt"));
    assert_eq!(end, moment(&acquired, "acquiredAt") + 1500);
    let status = owner.status(&cluster.nodes[1], held).await;
    assert!(status.status == 200 || now() >= end, "{}", status.text());
    let_time_pass(until(end) + Duration::from_millis(50), "the lease expires").await;
    for node in &cluster.nodes {
        expect_stale(&owner.renew(node, held).await);
        expect_stale(&owner.release(node, held).await);
        expect_stale(&owner.status(node, held).await);
    }
    let rival = Owner::new("bob", RIVAL);
    let next = rival.hold(&cluster.nodes[1], MODEL).await;
    assert!(next > 0);
    let again = eventually("alice has a lease again", || async {
        let answer = owner.acquire(&cluster.nodes[0], MODEL).await;
        (answer.status == 200).then(|| generation(&answer))
    })
    .await;
    assert!(again > held, "{again} after {held}");
}

#[tokio::test]
async fn the_time_to_live_is_clamped() {
    for (set, ttl) in [(0, 1000), (500, 1000), (9_999_999, 1_800_000)] {
        let upstream = Upstream::start().await;
        let config = setting(config(&upstream, &["a"]), "ttlMs", set)
            .set(&["store", "url"], json!("embedded:memory"));
        let node = Node::start(&config).await;
        let answer = Owner::new("alice", KEY).acquire(&node, MODEL).await;
        let answer = answer.expect_status(200);
        let lives = moment(&answer, "expiresAt") - moment(&answer, "acquiredAt");
        assert_eq!(lives, ttl, "for {set}");
    }
}

#[tokio::test]
async fn status_adds_what_the_owner_may_know_of_its_connection() {
    let cluster = pair(&["a"]).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&cluster.nodes[0], MODEL).await;
    let answer = owner.status(&cluster.nodes[1], held).await;
    let answer = answer.expect_status(200);
    let names = [
        "acquiredAt",
        "connection",
        "expiresAt",
        "generation",
        "renewedAt",
        "state",
    ];
    assert_eq!(fields(&answer), names);
    let connection = answer.json()["connection"].clone();
    let mut known: Vec<&String> = connection.as_object().unwrap().keys().collect();
    known.sort();
    assert_eq!(known, ["displayName", "provider"]);
    assert!(connection["provider"].is_string(), "{connection}");
    let name = &connection["displayName"];
    assert!(name.is_null() || name.is_string(), "{connection}");
}

#[tokio::test]
async fn both_paths_and_a_blank_around_the_token_work() {
    let cluster = pair(&["a"]).await;
    let owner = Owner::new("alice", KEY);
    let body = json!({"action": "acquire", "model": format!("  {MODEL} ")});
    let held = owner.call(&cluster.nodes[0], &body).send().await;
    let held = generation(&held.expect_status(200));
    for path in [PATH, "/v1/session-leases"] {
        let body = json!({"action": "renew", "generation": held});
        let answer = Call::new(cluster.nodes[1].addr(), "POST", path)
            .header("x-api-key", KEY)
            .header(OWNER, &format!("  {} ", owner.token))
            .body("application/json; charset=utf-8", body.to_string())
            .send()
            .await
            .expect_status(200);
        assert_eq!(generation(&answer), held);
    }
}

#[tokio::test]
async fn a_model_may_be_a_combo_or_a_bare_name() {
    let upstream = Upstream::start().await;
    let config = config(&upstream, &["a"])
        .combo("quick", &[MODEL])
        .set(&["store", "url"], json!("embedded:memory"));
    let node = Node::start(&config).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&node, "quick").await;
    owner.release(&node, held).await.expect_status(200);
}

#[tokio::test]
async fn an_owner_and_a_connection_have_one_lease_each() {
    let cluster = pair(&["a", "b"]).await;
    let owners: Vec<Owner> = ["alice", "bob"]
        .into_iter()
        .zip([KEY, RIVAL])
        .map(|(name, key)| Owner::new(name, key))
        .collect();
    for (owner, node) in owners.iter().zip(&cluster.nodes) {
        owner.hold(node, MODEL).await;
        owner.hold(node, MODEL).await;
    }
    let leases = cluster_tests::lease::listed(&cluster.nodes[0]).await;
    let mut connections: Vec<&str> = leases
        .iter()
        .map(cluster_tests::lease::connection_of)
        .collect();
    connections.sort_unstable();
    assert_eq!(connections, ["chat-a", "chat-b"], "{leases:?}");
    let third = Owner::new("carol", KEY);
    let answer = third.acquire(&cluster.nodes[0], MODEL).await;
    assert_eq!(answer.status, 429, "{}", answer.text());
}

#[tokio::test]
async fn preflight_allows_both_headers() {
    let cluster = Cluster::start(1, |upstream| config(upstream, &["a"])).await;
    for path in [PATH, "/v1/chat/completions"] {
        let answer = Call::new(cluster.nodes[0].addr(), "OPTIONS", path)
            .header("origin", "https://app.example")
            .header("access-control-request-method", "POST")
            .send()
            .await
            .expect_status(204);
        let allowed = answer.header("access-control-allow-headers").unwrap_or("");
        let allowed = allowed.to_ascii_lowercase();
        for header in [OWNER, cluster_tests::lease::GENERATION] {
            assert!(allowed.contains(header), "{path}: {allowed}");
        }
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}

#[tokio::test]
async fn a_lease_lives_in_the_embedded_store_too_and_survives_a_restart() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&config(&upstream, &["a"])).await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let owner = Owner::new("alice", KEY);
    let acquired = owner.acquire(&node, MODEL).await.expect_status(200);
    let held = generation(&acquired);
    node.kill_9().await;
    let mut node = node.start_again().await;
    let again = owner.status(&node, held).await.expect_status(200);
    let same: [&Value; 2] = [&acquired.json()["expiresAt"], &again.json()["expiresAt"]];
    assert_eq!(same[0], same[1]);
    owner
        .ask(&node, Dialect::Chat, held, false)
        .send()
        .await
        .expect_status(200);
    assert!(node.stop().await.success());
    let node = node.start_again().await;
    owner.renew(&node, held).await.expect_status(200);
}
