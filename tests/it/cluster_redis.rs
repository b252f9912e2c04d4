//! Redis goes away and comes back in every way: ordinary traffic goes on from
//! the last known state, and what was learned meanwhile is told afterwards.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::cut::Mode;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, field};
use cluster_tests::redis;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use serde_json::json;

/// Beyond the deadlines of a few store calls, for a busy machine.
const BOUNDED: Duration = Duration::from_secs(3);

/// Connections `a` to `d`, each behind a combo of its own.
fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let mut config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .no_waiting();
    for id in ["a", "b", "c", "d"] {
        config = config
            .connection(id, "acme")
            .combo(&format!("only-{id}"), &[&format!("acme/m@{id}")]);
    }
    config
}

async fn durable(nodes: usize) -> Cluster {
    let plan = Plan::of(nodes).redis(redis::Setup::durable());
    plan.start(config).await
}

async fn ask(node: &Node, id: &str) -> Answer {
    let body = Dialect::Chat.request(&format!("only-{id}"), false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    assert!(answer.took < BOUNDED, "{:?}", answer.took);
    answer
}

/// Makes `id` cool for ten minutes, as one node sees it.
async fn limit(cluster: &Cluster, node: usize, id: &str) {
    cluster.upstream.script(id, [Reply::limited(600)]);
    let answer = ask(&cluster.nodes[node], id).await;
    assert!(matches!(answer.status, 429 | 503), "{}", answer.text());
    cluster.nodes[node]
        .connection_becomes(id, "cooling_down")
        .await;
}

async fn degraded(node: &Node) -> bool {
    let ready = node.get("/readyz").send().await.expect_status(200).json();
    let degraded = ready["degraded"].as_array().unwrap();
    degraded.contains(&json!("store"))
}

async fn becomes_degraded(node: &Node, wanted: bool) {
    let what = if wanted { "degraded" } else { "not degraded" };
    eventually(&format!("the node is {what}"), || async {
        (degraded(node).await == wanted).then_some(())
    })
    .await;
}

async fn all_know(cluster: &Cluster, id: &str) {
    for node in &cluster.nodes {
        node.connection_becomes(id, "cooling_down").await;
    }
}

/// The whole life of an outage: known before, learned during, told after.
async fn survive(
    cluster: &mut Cluster,
    begin: impl AsyncFnOnce(&mut Cluster),
    end: impl AsyncFnOnce(&mut Cluster),
) {
    limit(cluster, 0, "a").await;
    all_know(cluster, "a").await;
    begin(cluster).await;
    for node in &cluster.nodes {
        for _ in 0..3 {
            ask(node, "b").await.expect_status(200);
            assert!(ask(node, "a").await.status >= 429, "it forgot");
        }
        becomes_degraded(node, true).await;
        node.get("/healthz").send().await.expect_status(200);
    }
    limit(cluster, 0, "c").await;
    limit(cluster, 1, "d").await;
    for (node, id) in [(0, "c"), (1, "d")] {
        let again = ask(&cluster.nodes[node], id).await;
        assert!(again.status >= 429, "{}", again.text());
        assert_eq!(cluster.upstream.count(id), 1);
    }
    end(cluster).await;
    for node in &cluster.nodes {
        becomes_degraded(node, false).await;
    }
    for id in ["a", "c", "d"] {
        all_know(cluster, id).await;
        for node in &cluster.nodes {
            assert!(ask(node, id).await.status >= 429);
        }
        assert_eq!(cluster.upstream.count(id), 1, "{id} was tried again");
    }
    let reset = cluster.nodes[0].post("/api/resilience/reset", &json!({"scope": "all"}));
    reset.send().await.expect_status(200);
    for node in &cluster.nodes {
        node.connection_becomes("a", "healthy").await;
    }
}

#[tokio::test]
async fn killed_and_restarted_with_its_data() {
    let mut cluster = durable(3).await;
    survive(
        &mut cluster,
        async |cluster| cluster.redis.kill().await,
        async |cluster| cluster.redis.restart().await,
    )
    .await;
}

#[tokio::test]
async fn killed_and_restarted_without_its_data() {
    let mut cluster = Cluster::start(3, config).await;
    survive(
        &mut cluster,
        async |cluster| cluster.redis.kill().await,
        async |cluster| cluster.redis.restart_empty().await,
    )
    .await;
}

#[tokio::test]
async fn frozen_and_thawed() {
    let mut cluster = durable(3).await;
    survive(
        &mut cluster,
        async |cluster| cluster.redis.stop(),
        async |cluster| cluster.redis.cont(),
    )
    .await;
}

#[tokio::test]
async fn refusing_every_connection() {
    let mut cluster = durable(2).await;
    let set = async |cluster: &mut Cluster, mode| {
        for cut in &cluster.cuts {
            cut.set(mode).await;
        }
    };
    survive(
        &mut cluster,
        async |cluster| set(cluster, Mode::Refuse).await,
        async |cluster| set(cluster, Mode::Pass).await,
    )
    .await;
}

#[tokio::test]
async fn swallowing_everything() {
    for mode in [Mode::BlackHole, Mode::Mute] {
        let mut cluster = durable(2).await;
        let set = async |cluster: &mut Cluster, mode| {
            for cut in &cluster.cuts {
                cut.set(mode).await;
            }
        };
        survive(
            &mut cluster,
            async |cluster| set(cluster, mode).await,
            async |cluster| set(cluster, Mode::Pass).await,
        )
        .await;
    }
}

async fn config_set(cluster: &Cluster, name: &str, value: &str) {
    let reply = cluster.redis.call(&["CONFIG", "SET", name, value]).await;
    assert_eq!(reply.text(), "OK");
}

#[tokio::test]
async fn out_of_memory() {
    let mut cluster = durable(2).await;
    survive(
        &mut cluster,
        async |cluster| config_set(cluster, "maxmemory", "1").await,
        async |cluster| config_set(cluster, "maxmemory", "0").await,
    )
    .await;
}

#[tokio::test]
async fn read_only() {
    let mut cluster = durable(2).await;
    survive(
        &mut cluster,
        async |cluster| {
            // A replica of nobody: it keeps its data and refuses writes.
            let nobody = cluster_tests::port::Port::take().number().to_string();
            let words = ["REPLICAOF", "127.0.0.1", &nobody];
            assert_eq!(cluster.redis.call(&words).await.text(), "OK");
        },
        async |cluster| {
            let words = ["REPLICAOF", "NO", "ONE"];
            assert_eq!(cluster.redis.call(&words).await.text(), "OK");
        },
    )
    .await;
}

#[tokio::test]
async fn asking_for_another_password() {
    let plan = Plan::of(2).redis(redis::Setup::durable().password("first"));
    let mut cluster = plan.start(config).await;
    survive(
        &mut cluster,
        async |cluster| {
            // A tester's connection has to be there before.
            let mut link = cluster.redis.link().await.unwrap();
            let set = ["CONFIG", "SET", "requirepass", "an0ther"];
            link.call(&set).await.unwrap();
            for cut in &cluster.cuts {
                cut.blink().await;
            }
        },
        async |cluster| {
            let link = cluster_tests::resp::Link::connect(cluster.redis.addr());
            let mut link = link.await.unwrap();
            link.call(&["AUTH", "an0ther"]).await.unwrap();
            let set = ["CONFIG", "SET", "requirepass", "first"];
            link.call(&set).await.unwrap();
        },
    )
    .await;
    for node in &cluster.nodes {
        for secret in ["first@", ":first", "an0ther"] {
            assert!(!node.log().text().contains(secret), "a password in the log");
        }
    }
}

#[tokio::test]
async fn slow_but_there_costs_requests_nothing() {
    let cluster = durable(2).await;
    for cut in &cluster.cuts {
        cut.set(Mode::Delay(Duration::from_millis(100))).await;
    }
    for node in &cluster.nodes {
        for _ in 0..5 {
            let answer = ask(node, "b").await.expect_status(200);
            let took = answer.took;
            assert!(took < Duration::from_millis(150), "{took:?} without need");
        }
    }
    limit(&cluster, 0, "a").await;
    all_know(&cluster, "a").await;
}

#[tokio::test]
async fn each_change_is_one_line_in_the_log() {
    let mut cluster = durable(1).await;
    let lines = |cluster: &Cluster| {
        let records = cluster.nodes[0].log().records();
        let told = records.iter().filter(|record| {
            let level = field(record, "level").unwrap_or("");
            let text = record.to_string().to_lowercase();
            matches!(level, "WARN" | "ERROR") && (text.contains("store") || text.contains("redis"))
        });
        told.count()
    };
    let before = lines(&cluster);
    cluster.redis.kill().await;
    becomes_degraded(&cluster.nodes[0], true).await;
    for _ in 0..20 {
        ask(&cluster.nodes[0], "b").await.expect_status(200);
    }
    let_time_pass(Duration::from_secs(3), "repeated lines would show").await;
    let told = lines(&cluster) - before;
    assert!((1..=2).contains(&told), "{told} lines");
    cluster.redis.restart().await;
    becomes_degraded(&cluster.nodes[0], false).await;
}

#[tokio::test]
async fn management_writes_are_refused_whole() {
    let mut cluster = durable(1).await;
    let node = &cluster.nodes[0];
    let before = node.admin_get("/api/resilience").await;
    cluster.redis.kill().await;
    becomes_degraded(node, true).await;
    let patch = node.admin_call("PATCH", "/api/resilience").json(&before);
    let answer = patch.send().await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert!(answer.took < BOUNDED, "{:?}", answer.took);
    assert_eq!(node.admin_get("/api/resilience").await, before);
    cluster.redis.restart().await;
    becomes_degraded(&cluster.nodes[0], false).await;
}
