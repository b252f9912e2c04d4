//! Nodes that share a Redis act as one on what any of them saw.

use std::sync::Arc;
use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::events::events;
use cluster_tests::metrics::Exposition;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, within};
use serde_json::{Value, json};

/// One provider, with these connections; the first is preferred.
pub(crate) fn acme(upstream: &Upstream, ids: &[&str]) -> Config {
    let start = Config::new()
        .provider("acme", "openai", &upstream.url())
        .no_waiting();
    ids.iter().enumerate().fold(start, |config, (at, id)| {
        config.connection_with(id, "acme", json!({"priority": at + 1}))
    })
}

pub(crate) async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

#[tokio::test]
async fn what_one_node_is_refused_the_others_do_not_ask_for() {
    let cluster = Cluster::start(3, |upstream| acme(upstream, &["a", "b"])).await;
    cluster.upstream.script("a", [Reply::limited(60)]);
    cluster.upstream.script("b", [Dialect::Chat.ok("pong")]);
    let answer = ask(&cluster.nodes[0]).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    for node in &cluster.nodes[1..] {
        let a = node.connection_becomes("a", "cooling_down").await;
        assert!(a["cooldownRemainingMs"].as_u64().unwrap() > 50_000, "{a}");
        assert_eq!(a["hintSource"], "header");
        let answer = ask(node).await.expect_status(200);
        assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    }
    assert_eq!(cluster.upstream.count("a"), 1);
    let metrics = cluster.nodes[1].get("/metrics").send().await.text();
    let metrics = Exposition::parse(&metrics);
    assert_eq!(metrics.complaints(), Vec::<String>::new());
    assert!(metrics.sum("omniroute_change_lag_seconds_count") >= 1.0);
    assert!((metrics.sum("omniroute_store_up") - 1.0).abs() < f64::EPSILON);
}

#[tokio::test]
async fn a_reset_on_one_node_is_a_reset_on_all() {
    let cluster = Cluster::start(2, |upstream| acme(upstream, &["a"])).await;
    cluster.upstream.script(
        "a",
        [Reply::error(401, "who are you"), Dialect::Chat.ok("pong")],
    );
    ask(&cluster.nodes[0]).await;
    let [one, two] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    two.connection_becomes("a", "terminal").await;
    let reset = one.post("/api/connections/a/reset", &json!({}));
    reset.send().await.expect_status(200);
    two.connection_becomes("a", "healthy").await;
    ask(two).await.expect_status(200);
}

#[tokio::test]
async fn failures_that_two_nodes_met_at_once_count_once() {
    let cluster = Cluster::start(2, |upstream| acme(upstream, &["a"])).await;
    let gate = Gate::closed();
    let refused = Reply::error(429, "slow down").behind(&gate);
    cluster.upstream.script("a", [refused]);
    let asking = cluster
        .nodes
        .iter()
        .flat_map(|node| [ask(node), ask(node), ask(node)]);
    let asking = futures_util::future::join_all(asking);
    let opening = async {
        cluster.upstream.request("a", 6).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(asking, opening);
    assert!(answers.iter().all(|answer| answer.status == 429));
    let mut until = Vec::new();
    for node in &cluster.nodes {
        let a = node.connection_becomes("a", "cooling_down").await;
        assert_eq!(a["backoffLevel"], 1, "{a}");
        until.push(a["rateLimitedUntil"].clone());
    }
    eventually("both nodes say the same", || async {
        let [one, two] = &cluster.nodes[..] else {
            return None;
        };
        let (one, two) = (one.connection("a").await, two.connection("a").await);
        assert_eq!(
            (&one["backoffLevel"], &two["backoffLevel"]),
            (&json!(1), &json!(1))
        );
        (one["rateLimitedUntil"] == two["rateLimitedUntil"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_request_in_the_cluster_probes() {
    let breaker = |key: &str| format!("providerBreaker.apikey.{key}");
    let cluster = Cluster::start(2, |upstream| {
        Config::new()
            .provider("acme", "openai", &upstream.url())
            .connection_with("a", "acme", json!({"disableCooling": true}))
            .no_waiting()
            .resilience(&breaker("failureThreshold"), json!(1))
            .resilience(&breaker("resetTimeoutMs"), json!(1_000))
    })
    .await;
    let gate = Gate::closed();
    let pong = Dialect::Chat.ok("pong");
    let script = [Reply::error(503, "down"), pong.clone().behind(&gate), pong];
    cluster.upstream.script("a", script);
    ask(&cluster.nodes[0]).await;
    for node in &cluster.nodes {
        eventually("the breaker is half-open", || async {
            let a = node.connection("a").await;
            (a["breaker"]["state"] == "HALF_OPEN").then_some(())
        })
        .await;
    }
    let asking = (0..20).map(|n| ask(&cluster.nodes[n % 2]));
    let mut asking: futures_util::stream::FuturesUnordered<_> = asking.collect();
    let refused = async {
        for _ in 0..19 {
            let answer = futures_util::StreamExt::next(&mut asking).await.unwrap();
            assert_eq!(answer.status, 503, "{}", answer.text());
        }
    };
    within(Duration::from_secs(20), "all but one are refused", refused).await;
    // It may still be on its way; nobody else can be.
    cluster.upstream.request("a", 2).await;
    assert_eq!(cluster.upstream.count("a"), 2, "the failure and one probe");
    gate.open();
    let probe = futures_util::StreamExt::next(&mut asking).await.unwrap();
    assert_eq!(probe.status, 200, "{}", probe.text());
    for node in &cluster.nodes {
        eventually("the breaker is closed", || async {
            let a = node.connection("a").await;
            (a["breaker"]["state"] == "CLOSED").then_some(())
        })
        .await;
        ask(node).await.expect_status(200);
    }
}

#[tokio::test]
async fn a_probe_whose_client_leaves_is_free_for_the_other_node() {
    let cluster = Cluster::start(2, |upstream| {
        Config::new()
            .provider("acme", "openai", &upstream.url())
            .connection_with("a", "acme", json!({"disableCooling": true}))
            .no_waiting()
            .resilience("providerBreaker.apikey.failureThreshold", json!(1))
            .resilience("providerBreaker.apikey.resetTimeoutMs", json!(1_000))
    })
    .await;
    let never = Gate::closed();
    let pong = Dialect::Chat.ok("pong");
    let script = [Reply::error(503, "down"), pong.clone().behind(&never), pong];
    cluster.upstream.script("a", script);
    ask(&cluster.nodes[0]).await;
    let body = Dialect::Chat.request("acme/m", false);
    let probing = eventually("a probe is under way", || async {
        let call = cluster.nodes[0].post("/v1/chat/completions", &body);
        let probing = tokio::spawn(call.try_send());
        eventually("it is refused or sent", || async {
            (probing.is_finished() || cluster.upstream.count("a") == 2).then_some(())
        })
        .await;
        (cluster.upstream.count("a") == 2).then_some(probing)
    })
    .await;
    assert_eq!(ask(&cluster.nodes[1]).await.status, 503);
    probing.abort();
    eventually("the other node probes", || async {
        (ask(&cluster.nodes[1]).await.status == 200).then_some(())
    })
    .await;
}

fn ids(nodes: &Value) -> Vec<String> {
    let rows = nodes["nodes"].as_array().unwrap().iter();
    rows.map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn every_node_knows_who_lives() {
    let mut cluster = Cluster::start(3, |upstream| acme(upstream, &["a"])).await;
    for node in &cluster.nodes {
        let nodes = eventually("all three are listed", || async {
            let nodes = node.admin_get("/api/nodes").await;
            // An address is known once the node listens.
            let rows = nodes["nodes"].as_array().unwrap();
            let listen = rows.iter().all(|row| row["address"].is_string());
            (listen && ids(&nodes) == ["node-0", "node-1", "node-2"]).then_some(nodes)
        })
        .await;
        assert_eq!(
            (&nodes["stale"], &nodes["liveRouters"]),
            (&json!(false), &json!(3))
        );
        for (row, other) in nodes["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .zip(&cluster.nodes)
        {
            assert_eq!(row["role"], "router");
            assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
            assert_eq!(row["address"], other.addr().to_string());
            assert_eq!(row["inFlight"], 0);
            assert!(
                row["lagMs"].is_u64() && row["heartbeat"].is_string(),
                "{row}"
            );
        }
        let ready = node.get("/readyz").send().await.expect_status(200).json();
        assert_eq!(ready["coordinator"], "absent");
        assert_eq!(ready["store"], "up");
    }
    cluster.nodes[1].stop().await;
    let listed = |left: &'static [&'static str]| {
        let node = &cluster.nodes[0];
        eventually("those that are gone are not listed", move || async move {
            let nodes = node.admin_get("/api/nodes").await;
            (ids(&nodes) == left && nodes["liveRouters"] == left.len()).then_some(())
        })
    };
    listed(&["node-0", "node-2"]).await;
    cluster.nodes[2].kill_9().await;
    let node = &cluster.nodes[0];
    eventually("a killed node lapses", || async {
        let nodes = node.admin_get("/api/nodes").await;
        (ids(&nodes) == ["node-0"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn changes_are_told_wherever_they_were_made() {
    let mut cluster = Cluster::start(2, |upstream| acme(upstream, &["a", "b"])).await;
    let mut stream = cluster.nodes[1].get("/api/events").open().await;
    assert_eq!(stream.status, 200);
    assert_eq!(stream.header("content-type"), Some("text/event-stream"));
    stream.read_until("listening").await;
    cluster.upstream.script("a", [Reply::limited(60)]);
    cluster.upstream.script("b", [Dialect::Chat.ok("pong")]);
    ask(&cluster.nodes[0]).await.expect_status(200);
    stream.read_until("cooling_down").await;
    stream.read_until("\n\n").await;
    let heard = events(&stream.text());
    let change = heard
        .iter()
        .find(|event| event.data.contains("cooling_down"))
        .unwrap();
    assert_eq!(change.name.as_deref(), Some("change"));
    let data: Value = serde_json::from_str(&change.data).unwrap();
    assert_eq!(
        (&data["kind"], &data["id"]),
        (&json!("connection"), &json!("a"))
    );
    assert_eq!(data["change"]["hintSource"], "header");
    assert!(
        stream
            .text()
            .contains(&format!("id: {}\n", data["position"].as_str().unwrap()))
    );
    assert!(!stream.text().contains("key-"), "{}", stream.text());
    // It ends when its node stops, and says why.
    let stopping = async {
        stream.read_until("event: end").await;
        stream.finish().await
    };
    let (status, text) = tokio::join!(cluster.nodes[1].stop(), stopping);
    assert!(status.success());
    assert!(text.contains("stopping"), "{text}");
}

#[tokio::test]
async fn only_managers_listen() {
    let upstream = Upstream::start().await;
    let config = acme(&upstream, &["a"])
        .server("adminToken", json!("the-admin-token"))
        .api_key("team", "clients-key", json!({}));
    let node = Node::start(&config).await;
    let call = || node.get("/api/events");
    assert_eq!(call().send().await.status, 401);
    assert_eq!(call().bearer("clients-key").send().await.status, 403);
    let mut stream = call().bearer("the-admin-token").open().await;
    stream.read_until("listening").await;
}

#[tokio::test]
async fn there_are_only_so_many_listeners() {
    let upstream = Upstream::start().await;
    let node = Node::start(&acme(&upstream, &["a"])).await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        let mut stream = node.get("/api/events").open().await;
        stream.read_until("listening").await;
        streams.push(stream);
    }
    let refused = node.get("/api/events").send().await.expect_status(503);
    assert_eq!(refused.code(), "too_many_listeners");
    assert!(refused.retry_after().is_some());
    streams.clear();
    eventually("there is room again", || async {
        let mut stream = node.get("/api/events").open().await;
        if stream.status != 200 {
            return None;
        }
        stream.read_until("listening").await;
        Some(())
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_a_reload_adds_is_as_the_store_has_it() {
    let mut cluster = Cluster::start(2, |upstream| acme(upstream, &["a"])).await;
    let both = Arc::new(acme(&cluster.upstream, &["a", "b"]));
    cluster
        .upstream
        .script("a", [Reply::error(500, "no"), Dialect::Chat.ok("pong")]);
    // Only the first node knows `b`, and learns that it is refused.
    let file = cluster.nodes[0].setup().file();
    let url = json!(cluster.redis.url_via(cluster.cuts[0].addr()));
    let text = both.as_ref().clone().set(&["store", "url"], url).to_yaml();
    std::fs::write(file, text).unwrap();
    cluster
        .upstream
        .script("b", [Reply::error(401, "who are you")]);
    eventually("the first node has tried it", || async {
        ask(&cluster.nodes[0]).await;
        (cluster.upstream.count("b") == 1).then_some(())
    })
    .await;
    cluster.nodes[0].connection_becomes("b", "terminal").await;
    cluster.reconfigure(both.as_ref().clone());
    let b = eventually("the second node knows it", || async {
        let all = cluster.nodes[1]
            .admin_get("/api/resilience/connections")
            .await;
        let rows = all["connections"].as_array().unwrap();
        rows.iter().find(|row| row["id"] == "b").cloned()
    })
    .await;
    assert_eq!(b["connectionStatus"], "terminal", "{b}");
}
