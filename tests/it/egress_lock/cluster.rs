//! Several nodes: what one is refused rests the siblings for all, and a store
//! that is away is no reason not to rest.

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::json;

use super::{HERE, ask, echo, family, members, observed};

const IDS: [&str; 3] = ["a", "b", "c"];

struct World {
    cluster: Cluster,
    echo: Upstream,
}

async fn start(plan: Plan) -> World {
    let echo = echo(HERE).await;
    let cluster = plan
        .start(|upstream| {
            upstream.script_all([Dialect::Chat.ok("pong")]);
            let config = members(family(upstream, &echo), &IDS);
            config.set(&["coordinator", "leaseMs"], json!(1_000))
        })
        .await;
    World { cluster, echo }
}

async fn all_rest(node: &Node, ids: &[&str]) {
    for id in ids {
        node.connection_becomes(id, "cooling_down").await;
    }
}

#[tokio::test]
async fn what_one_node_is_refused_rests_the_siblings_on_all() {
    let world = start(Plan::of(2)).await;
    let [one, two] = &world.cluster.nodes[..] else {
        panic!("two nodes");
    };
    for id in IDS {
        observed(one, id, HERE).await;
    }
    let before = world.cluster.upstream.requests().len();
    world.cluster.upstream.script("a", [Reply::limited(600)]);
    ask(one, "opencode/m").await.expect_status(429);
    all_rest(two, &IDS).await;
    ask(two, "opencode/m").await.expect_status(503);
    assert_eq!(world.cluster.upstream.requests().len(), before + 1);
    assert!(!world.echo.requests().is_empty());
}

/// The sibling's address was seen by another node than the one that was refused.
#[tokio::test]
async fn an_observation_of_another_node_counts_too() {
    let world = start(Plan::of(2).coordinators(1)).await;
    let [one, two] = &world.cluster.nodes[..] else {
        panic!("two nodes");
    };
    observed(one, "a", HERE).await;
    observed(two, "b", HERE).await;
    eventually("both observations are known to the first", || async {
        (one.connection("b").await["egressIp"] == HERE).then_some(())
    })
    .await;
    world.cluster.upstream.script("a", [Reply::limited(600)]);
    ask(one, "a").await.expect_status(429);
    for node in &world.cluster.nodes {
        all_rest(node, &["a", "b"]).await;
    }
}

/// The node that was refused dies before it could tell the siblings.
#[tokio::test]
async fn the_leader_rests_siblings_that_a_node_could_not() {
    let mut world = start(Plan::of(2).coordinators(1)).await;
    for id in IDS {
        observed(&world.cluster.nodes[0], id, HERE).await;
    }
    world.cluster.upstream.script("a", [Reply::limited(600)]);
    ask(&world.cluster.nodes[0], "a").await.expect_status(429);
    world.cluster.nodes[0].kill_9().await;
    all_rest(&world.cluster.nodes[1], &IDS).await;
}

/// EGR-17.
#[tokio::test]
async fn without_the_store_the_refused_connection_rests_all_the_same() {
    let world = start(Plan::of(1)).await;
    let node = &world.cluster.nodes[0];
    for id in IDS {
        observed(node, id, HERE).await;
    }
    world.cluster.redis.stop();
    world.cluster.upstream.script("a", [Reply::limited(600)]);
    ask(node, "a").await.expect_status(429);
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    world.cluster.redis.cont();
    all_rest(node, &["a"]).await;
}
