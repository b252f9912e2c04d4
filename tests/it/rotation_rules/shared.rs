//! What was counted is counted for all nodes, and outlives them.

use std::time::Duration;

use cluster_tests::cluster::Plan;
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use serde_json::json;

use super::{WAYS, Way, moves_and_rests, overrides, pair, reset, start, stays, threshold};

fn slow() -> Reply {
    Reply::error(429, "slow down")
}

/// Longer than a change takes to every node.
async fn told() {
    let_time_pass(Duration::from_secs(1), "the other node hears of it").await;
}

#[tokio::test]
async fn two_nodes_count_together() {
    let variable = "OMNIROUTE_ROTATE_429_THRESHOLD";
    for way in WAYS {
        let own = match way {
            Way::Variable => json!({}),
            Way::Override => overrides(&[threshold("429", 4)]),
        };
        let mut plan = Plan::of(2);
        if matches!(way, Way::Variable) {
            plan = plan.env(0, variable, "4").env(1, variable, "4");
        }
        let mut cluster = plan.start(|upstream| pair(upstream, &own)).await;
        cluster.upstream.script("a", [slow()]);
        for n in 0..3 {
            let what = format!("{way:?}: failure {} of 4", n + 1);
            stays(&cluster.nodes[n % 2], &cluster.upstream, &what).await;
            told().await;
        }
        // A node that comes later knows what was before.
        cluster.nodes[1].kill_9().await;
        cluster.restart(1).await;
        let what = format!("{way:?}: the fourth");
        moves_and_rests(&cluster.nodes[1], &cluster.upstream, &what).await;
        cluster.nodes[0]
            .connection_becomes("a", "cooling_down")
            .await;
    }
}

#[tokio::test]
async fn what_ends_a_count_ends_it_for_all() {
    let cluster = Plan::of(2)
        .start(|upstream| pair(upstream, &overrides(&[threshold("429", 2)])))
        .await;
    let [one, two] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    let upstream = &cluster.upstream;
    upstream.script("a", [slow()]);
    stays(one, upstream, "the first").await;
    told().await;
    reset(two, "a").await;
    told().await;
    stays(one, upstream, "after a reset on the other node").await;
    told().await;
    upstream.script("a", [Dialect::Chat.ok("pong")]);
    super::ask(two).await.expect_status(200);
    told().await;
    upstream.script("a", [slow()]);
    stays(one, upstream, "after a success on the other node").await;
    told().await;
    moves_and_rests(two, upstream, "the second").await;
}

#[tokio::test]
async fn a_count_outlives_a_crash() {
    for class in ["429", "500", "502"] {
        let upstream = Upstream::start().await;
        let mut node = start(&upstream, Way::Override, &[threshold(class, 3)]).await;
        let status = class.parse().unwrap();
        upstream.script("a", [Reply::error(status, "boom")]);
        for n in 1..=2 {
            stays(&node, &upstream, &format!("{class}: failure {n} of 3")).await;
            node.kill_9().await;
            node = node.start_again().await;
        }
        moves_and_rests(&node, &upstream, class).await;
    }
}

/// While the store is away each node counts for itself, and what it counted is
/// there when it is back.
#[tokio::test]
async fn a_count_goes_on_while_the_store_is_away() {
    let cluster = Plan::of(2)
        .start(|upstream| pair(upstream, &overrides(&[threshold("429", 3)])))
        .await;
    let [one, two] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    let upstream = &cluster.upstream;
    upstream.script("a", [slow()]);
    cluster.cuts[0].set(Mode::Refuse).await;
    for n in 1..=2 {
        stays(one, upstream, &format!("failure {n} of 3")).await;
    }
    cluster.cuts[0].set(Mode::Pass).await;
    eventually("the store is back", || async {
        let ready = one.get("/readyz").send().await.json();
        (ready["degraded"] == json!([])).then_some(())
    })
    .await;
    told().await;
    moves_and_rests(two, upstream, "the third, on the other node").await;
}

/// Many requests that meet one outage raise the level once at most, and none of
/// them is lost between the two ways.
#[tokio::test]
async fn a_herd_meets_one_outage() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, Way::Variable, &[threshold("429", 2)]).await;
    let gate = Gate::closed();
    upstream.script("a", [slow().behind(&gate)]);
    let body = Dialect::Chat.request("acme/m", false);
    let herd: Vec<_> = (0..20)
        .map(|_| tokio::spawn(node.post("/v1/chat/completions", &body).try_send()))
        .collect();
    upstream.request("a", 20).await;
    gate.open();
    for one in herd {
        let answer = one.await.unwrap().unwrap();
        assert!(matches!(answer.status, 200 | 429), "{}", answer.text());
    }
    upstream.script("a", [slow()]);
    let a = eventually("it rests", || async {
        super::ask(&node).await;
        let a = node.connection("a").await;
        (a["connectionStatus"] == "cooling_down").then_some(a)
    })
    .await;
    assert_eq!(a["backoffLevel"], 1, "{a}");
    assert!(upstream.count("a") <= 22, "{}", upstream.count("a"));
}
