//! One node can't reach Redis while the others can: it serves from what it
//! knows, says so, and the two halves agree afterwards.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::redis;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use serde_json::json;

const MODES: [Mode; 3] = [Mode::BlackHole, Mode::Refuse, Mode::Mute];

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let mut config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .no_waiting();
    for id in ["near", "far", "both", "well"] {
        config = config
            .connection(id, "acme")
            .combo(&format!("only-{id}"), &[&format!("acme/m@{id}")]);
    }
    config
}

async fn cluster() -> Cluster {
    let plan = Plan::of(3).redis(redis::Setup::durable());
    plan.start(config).await
}

async fn ask(node: &Node, id: &str) -> Answer {
    let body = Dialect::Chat.request(&format!("only-{id}"), false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
    answer
}

async fn degraded(node: &Node) -> bool {
    let ready = node.get("/readyz").send().await.expect_status(200).json();
    ready["degraded"] == json!(["store"])
}

async fn heal(cluster: &Cluster) {
    cluster.cuts[0].set(Mode::Pass).await;
    eventually("the partition heals", || async {
        (!degraded(&cluster.nodes[0]).await).then_some(())
    })
    .await;
}

#[tokio::test]
async fn both_halves_go_on_and_agree_afterwards() {
    for mode in MODES {
        let cluster = cluster().await;
        cluster.cuts[0].set(mode).await;
        eventually("the node says that it is alone", || async {
            ask(&cluster.nodes[0], "well").await.expect_status(200);
            degraded(&cluster.nodes[0]).await.then_some(())
        })
        .await;
        for id in ["near", "far"] {
            cluster.upstream.script(id, [Reply::limited(600)]);
        }
        assert!(ask(&cluster.nodes[0], "far").await.status >= 429);
        assert!(ask(&cluster.nodes[1], "near").await.status >= 429);
        cluster.nodes[2]
            .connection_becomes("near", "cooling_down")
            .await;
        for node in &cluster.nodes[1..] {
            assert!(!degraded(node).await, "{mode:?} reached another node");
            ask(node, "well").await.expect_status(200);
        }
        assert!(ask(&cluster.nodes[0], "far").await.status >= 429);
        assert_eq!(cluster.upstream.count("far"), 1, "it forgot at once");
        heal(&cluster).await;
        for id in ["near", "far"] {
            for node in &cluster.nodes {
                node.connection_becomes(id, "cooling_down").await;
                assert!(ask(node, id).await.status >= 429);
            }
            assert_eq!(cluster.upstream.count(id), 1, "{mode:?}");
        }
    }
}

/// The same outage seen by both halves is one outage, also when one half tells
/// of it later.
#[tokio::test]
async fn one_outage_seen_by_both_halves_counts_once() {
    let cluster = cluster().await;
    let gate = Gate::closed();
    let refused = Reply::error(429, "slow down").behind(&gate);
    cluster.upstream.script("both", [refused]);
    let body = Dialect::Chat.request("only-both", false);
    let herd: Vec<_> = (0..9)
        .map(|at| {
            let call = cluster.nodes[at % 3].post("/v1/chat/completions", &body);
            tokio::spawn(call.try_send())
        })
        .collect();
    cluster.upstream.request("both", 9).await;
    cluster.cuts[0].set(Mode::BlackHole).await;
    gate.open();
    for one in herd {
        assert!(one.await.unwrap().unwrap().status >= 429);
    }
    heal(&cluster).await;
    let_time_pass(Duration::from_secs(2), "what was late is told").await;
    for node in &cluster.nodes {
        let both = node.connection("both").await;
        assert_eq!(both["backoffLevel"], 1, "{both}");
    }
}

/// The answer to a commit is lost, so the node commits again: that must not
/// count twice.
#[tokio::test]
async fn a_commit_whose_answer_was_lost_counts_once() {
    let cluster = cluster().await;
    cluster
        .upstream
        .script("both", [Reply::error(429, "slow down")]);
    ask(&cluster.nodes[0], "well").await.expect_status(200);
    cluster.cuts[0].set(Mode::Mute).await;
    assert!(ask(&cluster.nodes[0], "both").await.status >= 429);
    cluster.nodes[1]
        .connection_becomes("both", "cooling_down")
        .await;
    cluster.cuts[0].set(Mode::Cut).await;
    heal(&cluster).await;
    let_time_pass(Duration::from_secs(2), "it is committed again").await;
    for node in &cluster.nodes {
        let both = node.connection("both").await;
        assert_eq!(both["backoffLevel"], 1, "{both}");
    }
}

#[tokio::test]
async fn what_happened_last_holds_after_the_partition() {
    let cluster = cluster().await;
    cluster.upstream.script("both", [Reply::limited(600)]);
    assert!(ask(&cluster.nodes[1], "both").await.status >= 429);
    for node in &cluster.nodes {
        node.connection_becomes("both", "cooling_down").await;
    }
    cluster.cuts[0].set(Mode::BlackHole).await;
    let reset = cluster.nodes[1].post("/api/connections/both/reset", &json!({}));
    reset.send().await.expect_status(200);
    cluster.nodes[2].connection_becomes("both", "healthy").await;
    let alone = cluster.nodes[0].connection("both").await;
    assert_eq!(alone["connectionStatus"], "cooling_down", "{alone}");
    heal(&cluster).await;
    for node in &cluster.nodes {
        node.connection_becomes("both", "healthy").await;
    }
    cluster.upstream.script("both", [Dialect::Chat.ok("pong")]);
    for node in &cluster.nodes {
        ask(node, "both").await.expect_status(200);
    }
}

#[tokio::test]
async fn a_line_that_breaks_again_and_again_loses_nothing() {
    let cluster = cluster().await;
    let ids = ["near", "far", "both"];
    for (at, id) in ids.into_iter().enumerate() {
        cluster.upstream.script(id, [Reply::limited(600)]);
        for _ in 0..3 {
            cluster.cuts[0].blink().await;
            cluster.cuts[1].blink().await;
        }
        assert!(ask(&cluster.nodes[at], id).await.status >= 429);
    }
    for id in ids {
        for node in &cluster.nodes {
            node.connection_becomes(id, "cooling_down").await;
        }
        assert_eq!(cluster.upstream.count(id), 1);
    }
}
