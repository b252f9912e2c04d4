//! Who is in the cluster: the registry of nodes and coordinators.

use std::time::Duration;

use cluster_tests::cluster::{Cluster, Plan, name};
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, eventually_within};
use serde_json::Value;

/// As long as the dead may be listed.
const FORGOTTEN: Duration = Duration::from_mins(1);

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection("a", "acme")
}

async fn registered(node: &Node) -> Vec<Value> {
    let all = node.admin_get("/api/nodes").await;
    let nodes = all["nodes"].as_array();
    nodes.unwrap_or_else(|| panic!("{all}")).clone()
}

async fn ids(node: &Node) -> Vec<String> {
    let all = registered(node).await;
    let mut ids: Vec<String> = all
        .iter()
        .map(|one| one["id"].as_str().unwrap_or_else(|| panic!("{one}")).into())
        .collect();
    ids.sort();
    ids
}

async fn become_known(cluster: &Cluster, nodes: &[usize], wanted: &[String]) {
    for at in nodes {
        eventually_within(FORGOTTEN, "the registry is right", || async {
            (ids(&cluster.nodes[*at]).await == wanted).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn every_node_lists_all_of_them() {
    let plan = Plan::of(3).coordinators(2);
    let cluster = plan.start(config).await;
    let wanted: Vec<String> = [
        "coordinator-0",
        "coordinator-1",
        "node-0",
        "node-1",
        "node-2",
    ]
    .map(str::to_owned)
    .into();
    become_known(&cluster, &[0, 1, 2], &wanted).await;
    for one in registered(&cluster.nodes[0]).await {
        assert!(one["version"].is_string(), "{one}");
        let role = one["role"].as_str().unwrap_or_else(|| panic!("{one}"));
        assert!(!role.is_empty(), "{one}");
    }
    eventually("one of the coordinators leads", || async {
        let all = registered(&cluster.nodes[1]).await;
        let coordinators = all.iter().filter(|one| one["role"] == "coordinator");
        let leads: Vec<bool> = coordinators.map(|one| one["leads"] == true).collect();
        (leads == [true, false] || leads == [false, true]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_killed_node_is_forgotten_and_a_stopped_one_at_once() {
    let mut cluster = Cluster::start(3, config).await;
    let all: Vec<String> = (0..3).map(name).collect();
    become_known(&cluster, &[0, 1, 2], &all).await;
    assert!(cluster.nodes[1].stop().await.success());
    eventually("the stopped node has left", || async {
        let left = ids(&cluster.nodes[0]).await;
        (left == [name(0), name(2)]).then_some(())
    })
    .await;
    cluster.nodes[2].kill_9().await;
    become_known(&cluster, &[0], &[name(0)]).await;
    cluster.restart(2).await;
    become_known(&cluster, &[0, 2], &[name(0), name(2)]).await;
}

#[tokio::test]
async fn a_frozen_node_comes_back() {
    let cluster = Cluster::start(2, config).await;
    let all: Vec<String> = (0..2).map(name).collect();
    become_known(&cluster, &[0, 1], &all).await;
    cluster.nodes[1].freeze();
    become_known(&cluster, &[0], &[name(0)]).await;
    cluster.nodes[1].thaw();
    become_known(&cluster, &[0, 1], &all).await;
}

#[tokio::test]
async fn lag_is_a_metric() {
    let cluster = Cluster::start(2, config).await;
    let text = cluster.nodes[0].get("/metrics").send().await.text();
    let lag = text
        .lines()
        .find(|line| line.contains("lag") && !line.starts_with('#'));
    assert!(lag.is_some(), "{text}");
}

#[tokio::test]
async fn a_node_has_a_name_without_being_given_one() {
    let cluster = Cluster::start(1, config).await;
    let other = Node::start(&cluster.config_of(0)).await;
    eventually("both are known", || async {
        let ids = ids(&other).await;
        (ids.len() == 2 && ids.iter().all(|id| !id.is_empty())).then_some(())
    })
    .await;
}
