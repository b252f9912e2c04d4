//! The lane and the resets are the account's, whichever node serves it, and
//! outlive each of them.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::node::Node;
use cluster_tests::reply::Gate;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

use super::reset::{Api, both, limited};
use super::{ask, config, lane, lanes, ok, wall};

async fn lane_becomes(node: &Node, state: &str) -> Value {
    eventually("the lane is known", || async {
        let a = node.connection("a").await;
        let lane = &a["lowPriorityLane"];
        (lane["state"].as_str().unwrap_or("idle") == state).then_some(lane.clone())
    })
    .await
}

#[tokio::test]
async fn every_node_rides_the_lane_that_one_took() {
    let api = Upstream::start().await;
    let cluster = Cluster::start(2, |upstream| config(upstream, &api, &lane())).await;
    cluster.upstream.script("a", [wall(), ok()]);
    ask(&cluster.nodes[0]).await.expect_status(200);
    lane_becomes(&cluster.nodes[1], "active").await;
    ask(&cluster.nodes[1]).await.expect_status(200);
    assert_eq!(lanes(&cluster.upstream), [false, true, true]);
}

#[tokio::test]
async fn the_lane_outlives_a_crash() {
    let (upstream, api) = (Upstream::start().await, Upstream::start().await);
    let mut node = Node::start(&config(&upstream, &api, &lane())).await;
    upstream.script("a", [wall(), ok()]);
    ask(&node).await.expect_status(200);
    let before = lane_becomes(&node, "active").await;
    node.kill_9().await;
    let node = node.start_again().await;
    let after = lane_becomes(&node, "active").await;
    assert_eq!(before["resetsAt"], after["resetsAt"]);
    ask(&node).await.expect_status(200);
    assert_eq!(lanes(&upstream), [false, true, true]);
}

/// One reset for all nodes, however many of their requests met the wall.
#[tokio::test]
async fn a_limit_is_reset_once_for_all_nodes() {
    let api = Api::offering("reset").await;
    let data = json!({"autoLimitReset": true, "organizationUUID": "org-1"});
    let plan = Plan::of(2);
    let cluster = plan
        .start(|upstream| config(upstream, api.upstream(), &data))
        .await;
    let gate = Gate::closed();
    let held = || limited().behind(&gate);
    let replies = [held(), held(), held(), held(), ok()];
    cluster.upstream.script("a", replies);
    let asking = (0..4).map(|at| ask(&cluster.nodes[at % 2]));
    let asking = futures_util::future::join_all(asking);
    let opening = async {
        cluster.upstream.request("a", 4).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(asking, opening);
    for answer in answers {
        answer.expect_status(200);
    }
    assert_eq!(api.claims(), 1, "{:?}", api.calls());
    // And a stale wall that the other node meets later is no reason for another.
    for node in &cluster.nodes {
        cluster.upstream.script("a", [limited(), ok()]);
        ask(node).await.expect_status(200);
    }
    assert_eq!(api.claims(), 1, "{:?}", api.calls());
}

/// That there is none for now is known to all nodes, and after a restart.
#[tokio::test]
async fn that_there_is_no_reset_is_known_to_all_nodes() {
    let api = Api::offering("already_used").await;
    let mut cluster = Cluster::start(2, |upstream| config(upstream, api.upstream(), &both())).await;
    cluster.upstream.script("a", [wall(), ok()]);
    ask(&cluster.nodes[0]).await.expect_status(200);
    assert_eq!(api.claims(), 1);
    lane_becomes(&cluster.nodes[1], "active").await;
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    cluster.upstream.script("a", [wall(), ok()]);
    ask(&cluster.nodes[1]).await;
    assert_eq!(api.claims(), 1, "{:?}", api.calls());
}
