//! Addresses in a cluster: each node has its own, a proxy's is the same for all,
//! and the coordinator finds the siblings that a node does not know of.

use std::time::Duration;

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, eventually_within};
use serde_json::json;

const ECHO: [&str; 3] = ["settings", "egress", "echoUrl"];

async fn echo(address: &str) -> Upstream {
    let echo = Upstream::start().await;
    echo.script_all([Reply::text(200, "text/plain", address)]);
    echo
}

fn base(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    Config::new()
        .no_waiting()
        .provider("opencode-go", "openai", &upstream.url())
        .connection_with("a", "opencode-go", json!({"priority": 1}))
        .connection_with("b", "opencode-go", json!({"priority": 2}))
}

/// Gives a node a configuration of its own.
fn reconfigure(cluster: &Cluster, node: usize, config: Config) {
    let url = cluster.redis.url_via(cluster.cuts[node].addr());
    let text = config.set(&["store", "url"], json!(url)).to_yaml();
    std::fs::write(cluster.nodes[node].setup().file(), text).unwrap();
}

async fn ask(node: &Node) -> u16 {
    let body = Dialect::Chat.request("opencode-go/m", false);
    node.post("/v1/chat/completions", &body).send().await.status
}

async fn address_is_known(node: &Node, id: &str, address: &str) {
    eventually("its address is known", || async {
        let connection = node.connection(id).await;
        (connection["egressIp"] == address).then_some(())
    })
    .await;
}

#[tokio::test]
async fn each_node_takes_its_own_address_and_all_respect_the_limit() {
    let (one, two) = (echo("203.0.113.7").await, echo("203.0.113.9").await);
    let url = |echo: &Upstream| json!(format!("http://{}/", echo.addr()));
    let plan = Plan::of(2);
    let cluster = plan
        .start(|upstream| base(upstream).set(&ECHO, url(&one)))
        .await;
    reconfigure(&cluster, 1, cluster.base().clone().set(&ECHO, url(&two)));
    address_is_known(&cluster.nodes[0], "b", "203.0.113.7").await;
    // Its own answer counts until it is over; a new start asks the other one.
    let mut cluster = cluster;
    cluster.nodes[1].stop().await;
    cluster.restart(1).await;
    address_is_known(&cluster.nodes[1], "b", "203.0.113.9").await;
    address_is_known(&cluster.nodes[0], "b", "203.0.113.7").await;

    cluster.upstream.script("a", [Reply::limited(60)]);
    assert_eq!(ask(&cluster.nodes[0]).await, 429, "b was not tried");
    assert_eq!(cluster.upstream.order(), ["a"]);
    for node in &cluster.nodes {
        for id in ["a", "b"] {
            let rests = node.connection_becomes(id, "cooling_down").await;
            assert_eq!(rests["errorCode"], 429, "{rests}");
        }
    }
    assert_eq!(ask(&cluster.nodes[1]).await, 503, "all rest");
    assert_eq!(cluster.upstream.order(), ["a"]);
}

#[tokio::test]
async fn the_coordinator_finds_who_a_node_does_not_know_of() {
    let echo = echo("203.0.113.7").await;
    let url = json!(format!("http://{}/", echo.addr()));
    let plan = Plan::of(2).coordinators(1);
    let cluster = plan.start(|upstream| base(upstream).set(&ECHO, url)).await;
    let more = cluster.base().clone();
    reconfigure(&cluster, 1, more.connection("only-here", "opencode-go"));
    eventually("it has the new configuration", || async {
        let all = cluster.nodes[1]
            .admin_get("/api/resilience/connections")
            .await;
        all.to_string().contains("only-here").then_some(())
    })
    .await;
    address_is_known(&cluster.nodes[1], "only-here", "203.0.113.7").await;
    address_is_known(&cluster.nodes[0], "a", "203.0.113.7").await;
    cluster.upstream.script("a", [Reply::limited(60)]);
    assert_eq!(ask(&cluster.nodes[0]).await, 429);
    let limit = Duration::from_secs(20);
    let rests = eventually_within(limit, "the coordinator's sweep", || async {
        let connection = cluster.nodes[1].connection("only-here").await;
        (connection["connectionStatus"] == "cooling_down").then_some(connection)
    })
    .await;
    assert_eq!(rests["lastErrorRule"], "egress-sibling");
    assert_eq!(rests["backoffLevel"], 0);
    // Whom an operator frees stays free, although the limit is not over.
    let reset = cluster.nodes[1].post("/api/connections/only-here/reset", &json!({}));
    reset.send().await.expect_status(200);
    cluster.nodes[1]
        .connection_becomes("only-here", "healthy")
        .await;
    assert_eq!(ask(&cluster.nodes[1]).await, 200);
}

/// EGR-17: what can't be told now is told when the store is back.
#[tokio::test]
async fn without_the_store_a_limit_is_respected_on_its_node() {
    let echo = echo("203.0.113.7").await;
    let url = json!(format!("http://{}/", echo.addr()));
    let cluster = Plan::of(2)
        .start(|upstream| base(upstream).set(&ECHO, url))
        .await;
    for node in &cluster.nodes {
        address_is_known(node, "b", "203.0.113.7").await;
    }
    cluster.cuts[0].set(cluster_tests::cut::Mode::Refuse).await;
    cluster.upstream.script("a", [Reply::limited(60)]);
    assert_eq!(ask(&cluster.nodes[0]).await, 429);
    assert_eq!(cluster.upstream.order(), ["a"]);
    cluster.cuts[0].set(cluster_tests::cut::Mode::Pass).await;
    let rests = cluster.nodes[1]
        .connection_becomes("b", "cooling_down")
        .await;
    assert_eq!(rests["lastErrorType"], "rate_limit_exceeded");
}
