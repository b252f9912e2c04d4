//! Which keys are set aside is known to all nodes, outlives them, and ends
//! with the key itself.

use std::fs;

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{KEYS, accept, ask, asked, config, expect_healthy, keys, refuse, reset, serves};

async fn usable_becomes(node: &Node, usable: u64) {
    eventually(&format!("{usable} keys are usable"), || async {
        (keys(node).await.1 == usable).then_some(())
    })
    .await;
}

#[tokio::test]
async fn other_nodes_leave_it_out() {
    let cluster = Cluster::start(2, config).await;
    let [one, two] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    let upstream = &cluster.upstream;
    refuse(upstream, &["a"]);
    serves(one, upstream, &["a", "a2"], "on the first node").await;
    usable_becomes(two, 2).await;
    serves(two, upstream, &["a2"], "on the second node").await;
    refuse(upstream, &["a2"]);
    serves(two, upstream, &["a2", "a3"], "on the second node").await;
    usable_becomes(one, 1).await;
    serves(one, upstream, &["a3"], "on the first node").await;
    expect_healthy(one, "one key is left").await;
    expect_healthy(two, "one key is left").await;

    accept(upstream, &KEYS);
    reset(two).await;
    usable_becomes(one, 3).await;
    serves(one, upstream, &["a"], "after a reset on the second node").await;
}

#[tokio::test]
async fn each_node_sets_another_one_aside() {
    let cluster = Cluster::start(2, config).await;
    let upstream = &cluster.upstream;
    refuse(upstream, &KEYS);
    let both = cluster.nodes.iter().map(ask);
    for answer in futures_util::future::join_all(both).await {
        let answer = answer.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    }
    for node in &cluster.nodes {
        let a = node.connection_becomes("a", "terminal").await;
        assert_eq!(a["testStatus"], "expired", "{a}");
        usable_becomes(node, 0).await;
    }
    for key in KEYS {
        assert!(upstream.count(key) <= 2, "{key}");
    }
}

#[tokio::test]
async fn a_node_that_comes_later_leaves_it_out() {
    let mut cluster = Plan::of(2).start(config).await;
    refuse(&cluster.upstream, &["a"]);
    ask(&cluster.nodes[0]).await.expect_status(200);
    for at in [1, 0] {
        cluster.nodes[at].kill_9().await;
        cluster.restart(at).await;
        // Without a wait: a node that is ready has read the snapshot.
        let node = &cluster.nodes[at];
        assert_eq!(keys(node).await, (3, 2), "node {at}");
        serves(node, &cluster.upstream, &["a2"], "after a start").await;
    }
}

/// While the store is away the node that saw it knows, and tells when it is back.
#[tokio::test]
async fn it_is_set_aside_while_the_store_is_away() {
    let cluster = Cluster::start(2, config).await;
    let [one, two] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    let upstream = &cluster.upstream;
    cluster.cuts[0].set(Mode::Refuse).await;
    refuse(upstream, &["a"]);
    serves(one, upstream, &["a", "a2"], "without the store").await;
    serves(one, upstream, &["a2"], "without the store").await;
    assert_eq!(keys(two).await, (3, 3));
    cluster.cuts[0].set(Mode::Pass).await;
    usable_becomes(two, 2).await;
    serves(two, upstream, &["a2"], "the other node was told").await;
}

#[tokio::test]
async fn it_outlives_a_crash() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&config(&upstream)).await;
    refuse(&upstream, &["a"]);
    serves(&node, &upstream, &["a", "a2"], "before").await;
    node.kill_9().await;
    let mut node = node.start_again().await;
    assert_eq!(keys(&node).await, (3, 2));
    serves(&node, &upstream, &["a2"], "after a crash").await;
    assert!(node.stop().await.success());
    let node = node.start_again().await;
    serves(&node, &upstream, &["a2"], "after a stop").await;
    expect_healthy(&node, "after a stop").await;
}

/// Keys in files of their own.
struct Files(TempDir);

impl Files {
    fn put(&self, name: &str, key: &str) -> Value {
        let path = self.0.path().join(name);
        fs::write(&path, format!("key-{key}\n")).unwrap();
        json!({"file": path})
    }
}

fn filed(upstream: &Upstream, files: &Files) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let extra = json!([files.put("second", "a2"), {"env": "THE_THIRD"}]);
    let own = json!({"priority": 1, "apiKey": files.put("first", "a"),
        "providerSpecificData": {"extraApiKeys": extra}});
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", own)
        .connection_with("b", "acme", json!({"priority": 2}))
}

/// Waits until a request takes these keys.
async fn comes_to(node: &Node, upstream: &Upstream, keys: &[&str]) {
    eventually(&format!("{keys:?} are asked"), || async {
        let (answer, order) = asked(node, upstream).await;
        answer.expect_status(200);
        (order == keys).then_some(())
    })
    .await;
}

#[tokio::test]
async fn keys_come_from_files_and_variables_and_a_new_one_is_not_aside() {
    let upstream = Upstream::start().await;
    let files = Files(TempDir::new().unwrap());
    let setup = Setup::with(&filed(&upstream, &files)).env("THE_THIRD", "key-a3");
    let node = setup.start().await;
    refuse(&upstream, &["a", "a2"]);
    serves(&node, &upstream, &KEYS, "two are refused").await;
    assert_eq!(keys(&node).await, (3, 1));

    // A new second key; the first one stays aside, since it is the same.
    files.put("second", "new2");
    usable_becomes(&node, 2).await;
    comes_to(&node, &upstream, &["new2"]).await;
    // A new first key goes before it.
    files.put("first", "new1");
    usable_becomes(&node, 3).await;
    comes_to(&node, &upstream, &["new1"]).await;
    expect_healthy(&node, "new keys").await;
}

/// A connection whose keys had all gone is revived by a new one.
#[tokio::test]
async fn a_new_key_revives_the_connection() {
    for name in ["first", "second"] {
        let upstream = Upstream::start().await;
        let files = Files(TempDir::new().unwrap());
        let setup = Setup::with(&filed(&upstream, &files)).env("THE_THIRD", "key-a3");
        let node = setup.start().await;
        refuse(&upstream, &KEYS);
        serves(&node, &upstream, &["a", "a2", "a3", "b"], "none is good").await;
        node.connection_becomes("a", "terminal").await;
        files.put(name, "new");
        node.connection_becomes("a", "healthy").await;
        let (answer, order) = asked(&node, &upstream).await;
        answer.expect_status(200);
        assert_eq!(
            order.last().map(String::as_str),
            Some("new"),
            "{name}: {order:?}"
        );
    }
}

/// Another order, one more or one less key: what is aside goes with the key.
#[tokio::test]
async fn what_is_aside_goes_with_the_key_not_with_its_place() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&config(&upstream));
    let node = setup.start().await;
    refuse(&upstream, &["a2"]);
    refuse(&upstream, &["a"]);
    serves(&node, &upstream, &KEYS, "two are refused").await;
    let own = |keys: &[&str]| {
        let extra = super::extra(&keys[1..]);
        json!({"id": "a", "provider": "acme", "apiKey": format!("key-{}", keys[0]),
            "priority": 1, "models": ["m"], "providerSpecificData": extra})
    };
    let b = json!({"id": "b", "provider": "acme", "apiKey": "key-b", "priority": 2});
    let turned = ["a3", "a2", "a4", "a"];
    let connections = json!([own(&turned), b]);
    let config = config(&upstream).set(&["connections"], connections);
    refuse(&upstream, &["a3", "a", "a2"]);
    fs::write(setup.file(), config.to_yaml()).unwrap();
    eventually("the change is taken over", || async {
        (keys(&node).await.0 == 4).then_some(())
    })
    .await;
    // Of the old ones only a3 was not aside; a4 is new.
    serves(&node, &upstream, &["a3", "a4"], "in another order").await;
}
