//! An operator takes leases back: one by one, or with the key they belong to.

use std::time::{Duration, Instant};

use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{
    GENERATION, KEY, Owner, PLAIN, RIVAL, connection_of, listed, listed_as, managed,
};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually};
use serde_json::{Value, json};

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream) -> Config {
    managed(&upstream.url(), &[Dialect::Chat], &["a", "b"])
}

fn id_of(lease: &Value) -> String {
    lease["id"]
        .as_str()
        .unwrap_or_else(|| panic!("{lease}"))
        .to_owned()
}

async fn revoke(cluster: &Cluster, node: usize, id: &str) -> u16 {
    let path = format!("/api/leases/{id}");
    let call = cluster.nodes[node].admin_call("DELETE", &path);
    call.send().await.status
}

#[tokio::test]
async fn leases_are_listed_on_every_node_without_their_owners() {
    let cluster = Cluster::start(2, config).await;
    let owners = [Owner::new("alice", KEY), Owner::new("bob", RIVAL)];
    let mut generations = Vec::new();
    for owner in &owners {
        generations.push(owner.hold(&cluster.nodes[0], MODEL).await);
    }
    let mut lists = Vec::new();
    for node in &cluster.nodes {
        let mut leases = listed_as(node, owners.len()).await;
        leases.sort_by_key(|one| connection_of(one).to_owned());
        let connections: Vec<&str> = leases.iter().map(connection_of).collect();
        assert_eq!(connections, ["chat-a", "chat-b"]);
        let mut ids: Vec<String> = leases.iter().map(id_of).collect();
        let mut told: Vec<u64> = leases
            .iter()
            .map(|one| one["generation"].as_u64().unwrap())
            .collect();
        told.sort_unstable();
        generations.sort_unstable();
        assert_eq!(told, generations);
        let text = json!(leases).to_string();
        for owner in &owners {
            assert!(!text.contains(&owner.token), "{text}");
            assert!(!text.contains(&owner.token[4..20]), "{text}");
        }
        ids.sort();
        lists.push(ids);
    }
    assert_eq!(lists[0], lists[1], "one lease, one id");
    assert_ne!(lists[0][0], lists[0][1]);
}

#[tokio::test]
async fn a_revoked_lease_is_over_on_every_node() {
    let cluster = Cluster::start(2, config).await;
    cluster.upstream.script_all([Dialect::Chat.ok("pong")]);
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", KEY));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let first = listed_as(&cluster.nodes[0], 1).await.remove(0);
    let bobs = bob.hold(&cluster.nodes[0], MODEL).await;
    for wrong in ["no-such-lease", "%00", "../keys"] {
        assert_eq!(revoke(&cluster, 0, wrong).await, 404, "{wrong}");
    }
    let status = revoke(&cluster, 1, &id_of(&first)).await;
    assert!(matches!(status, 200 | 204), "{status}");
    for node in &cluster.nodes {
        let answer = alice.ask(node, Dialect::Chat, held, false).send().await;
        assert_eq!(answer.status, 409, "{}", answer.text());
        assert_eq!(answer.code(), "LEASE_REQUIRED");
        for stale in [
            alice.renew(node, held).await,
            alice.release(node, held).await,
            alice.status(node, held).await,
        ] {
            assert_eq!(stale.code(), "LEASE_FENCE_STALE");
        }
        let answer = bob.ask(node, Dialect::Chat, bobs, false).send().await;
        answer.expect_status(200);
        listed_as(node, 1).await;
    }
    assert_eq!(revoke(&cluster, 0, &id_of(&first)).await, 404);
    let newer = alice.hold(&cluster.nodes[1], MODEL).await;
    assert!(newer > held);
}

#[tokio::test]
async fn clients_neither_see_nor_revoke_leases() {
    let cluster = Cluster::start(1, |upstream| {
        config(upstream).server("adminToken", json!("the-admin-token"))
    })
    .await;
    let node = &cluster.nodes[0];
    Owner::new("alice", KEY).hold(node, MODEL).await;
    let list = || node.admin_call("GET", "/api/leases");
    let all = list().bearer("the-admin-token").send().await;
    let id = id_of(&all.expect_status(200).json()["leases"][0]);
    let path = format!("/api/leases/{id}");
    let delete = || node.admin_call("DELETE", &path);
    for key in [KEY, RIVAL, PLAIN] {
        list().bearer(key).send().await.expect_status(403);
        delete().bearer(key).send().await.expect_status(403);
    }
    list().send().await.expect_status(401);
    delete().send().await.expect_status(401);
    let all = list().bearer("the-admin-token").send().await;
    assert_eq!(all.json()["leases"].as_array().unwrap().len(), 1);
    let gone = delete().bearer("the-admin-token").send().await;
    assert!(matches!(gone.status, 200 | 204), "{}", gone.text());
}

/// The configuration without team `team`, or with it changed.
fn without_team(base: &Config, instead: Option<Value>) -> Config {
    let yaml = base.to_yaml();
    let whole: Value = serde_yaml_ng::from_str(&yaml).unwrap();
    let mut keys = whole["apiKeys"].as_array().unwrap().clone();
    keys.retain(|key| key["id"] != "team");
    keys.extend(instead);
    base.clone().set(&["apiKeys"], json!(keys))
}

async fn expect_gone_with_its_key(instead: Option<Value>) {
    let removed = instead.is_none();
    let mut cluster = Cluster::start(2, config).await;
    let begun = Dialect::Chat.endless_stream("hel");
    cluster.upstream.script_all([begun]);
    let (alice, bob) = (Owner::new("alice", KEY), Owner::new("bob", RIVAL));
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let bobs = bob.hold(&cluster.nodes[0], MODEL).await;
    let mut streams = Vec::new();
    for node in &cluster.nodes {
        let mut stream = alice.ask(node, Dialect::Chat, held, true).open().await;
        stream.read_until("hel").await;
        streams.push(stream);
    }
    let config = without_team(cluster.base(), instead);
    cluster.reconfigure(config);
    let changed = Instant::now();
    for mut stream in streams {
        stream.read_to_end().await;
        assert!(stream.text().contains("LEASE_LOST"), "{}", stream.text());
    }
    let took = changed.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    eventually("only bob's lease is left", || async {
        for node in &cluster.nodes {
            if listed(node).await.len() != 1 {
                return None;
            }
        }
        Some(())
    })
    .await;
    for node in &cluster.nodes {
        let call = alice.ask(node, Dialect::Chat, held, false);
        let answer = call.send().await;
        assert!(answer.status >= 400, "{}", answer.text());
        assert!(!removed || answer.status == 401, "{}", answer.text());
        bob.renew(node, bobs).await.expect_status(200);
    }
    // What was alice's can be had long before her lease would have ended.
    let carol = Owner::new("carol", RIVAL);
    carol.hold(&cluster.nodes[1], MODEL).await;
    for seen in cluster.upstream.requests() {
        seen.dropped(SOON).await;
    }
}

#[tokio::test]
async fn removing_a_key_takes_its_leases_back() {
    expect_gone_with_its_key(None).await;
}

#[tokio::test]
async fn a_key_without_the_scope_has_no_leases() {
    let plain = json!({"id": "team", "key": KEY, "scopes": [],
        "allowedConnections": ["chat-a", "chat-b"]});
    expect_gone_with_its_key(Some(plain)).await;
}

#[tokio::test]
async fn a_reload_that_keeps_the_key_keeps_its_leases() {
    let mut cluster = Cluster::start(2, config).await;
    cluster.upstream.script_all([Dialect::Chat.ok("pong")]);
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], MODEL).await;
    let config = cluster.base().clone().combo("quick", &[MODEL]);
    cluster.reconfigure(config);
    for node in &cluster.nodes {
        eventually("the new configuration is in use", || async {
            let body = Dialect::Chat.request("quick", false);
            let answer = alice.ask_for(node, Dialect::Chat, held, &body).send().await;
            (answer.status == 200).then_some(())
        })
        .await;
        let answer = alice.status(node, held).await.expect_status(200);
        assert_eq!(answer.json()["state"], "ACTIVE");
        assert_eq!(answer.header(GENERATION), None);
    }
}
