//! Metrics: in the format and style that Prometheus expects, and bounded.

use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::metrics::Exposition;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::json;

async fn scrape(node: &Node) -> Exposition {
    let answer = node
        .admin_call("GET", "/metrics")
        .send()
        .await
        .expect_status(200);
    let kind = answer.header("content-type").unwrap().to_owned();
    assert!(
        kind.starts_with("text/plain") || kind.starts_with("application/openmetrics-text"),
        "{kind}"
    );
    Exposition::parse(&answer.text())
}

#[tokio::test]
async fn a_linter_has_no_complaints() {
    let upstream = Upstream::start().await;
    let config = all_providers(&upstream.url(), &["a", "b"], &json!({})).no_waiting();
    let node = Node::start(&config).await;
    for dialect in Dialect::ALL {
        upstream.script(&dialect.connection("a"), [Reply::limited(60)]);
        upstream.script(
            &dialect.connection("b"),
            [dialect.ok("pong"), dialect.ok_stream("pong")],
        );
        for stream in [false, true] {
            let answer = node.post(dialect.path(), &dialect.ask(stream)).send().await;
            answer.expect_status(200);
        }
    }
    let metrics = scrape(&node).await;
    assert_eq!(metrics.complaints(), Vec::<String>::new());
    assert!(metrics.samples.len() > 10);
    let named = |word: &str| metrics.samples.iter().any(|one| one.name.contains(word));
    for word in [
        "requests_total",
        "attempts",
        "seconds_bucket",
        "process_resident_memory_bytes",
    ] {
        assert!(named(word), "no {word}");
    }
}

#[tokio::test]
async fn requests_are_counted() {
    let node = Node::start(&Config::new()).await;
    let count = || async {
        let metrics = scrape(&node).await;
        let of = |one: &&cluster_tests::metrics::Sample| one.name.ends_with("_requests_total");
        metrics
            .samples
            .iter()
            .filter(of)
            .map(|one| one.value)
            .sum::<f64>()
    };
    let before = count().await;
    for _ in 0..7 {
        let body = Dialect::Chat.request("simulated/ok", false);
        node.post("/v1/chat/completions", &body)
            .send()
            .await
            .expect_status(200);
    }
    let after = count().await;
    assert!(after >= before + 7.0, "{before} -> {after}");
}

#[tokio::test]
async fn clients_cannot_make_series() {
    let node = Node::start(&Config::new()).await;
    let ask = |n: usize| {
        let body = Dialect::Chat.request(&format!("invented-model-{n}"), false);
        let call = node.post("/v1/chat/completions", &body);
        call.header("x-request-id", &format!("invented-id-{n}"))
            .header("user-agent", &format!("invented-agent-{n}"))
    };
    ask(0).send().await.expect_status(404);
    node.get("/v1/invented-path-0")
        .send()
        .await
        .expect_status(404);
    let before = scrape(&node).await.samples.len();
    for n in 1..60 {
        ask(n).send().await.expect_status(404);
        node.get(&format!("/v1/invented-path-{n}"))
            .send()
            .await
            .expect_status(404);
        node.get(&format!("/api/requests/invented-id-{n}?x={n}"))
            .send()
            .await;
    }
    let after = scrape(&node).await;
    assert!(
        after.samples.len() <= before + 40,
        "{before} -> {}",
        after.samples.len()
    );
    for sample in &after.samples {
        for value in sample.labels.values() {
            assert!(!value.contains("invented"), "{sample:?}");
        }
    }
}

#[tokio::test]
async fn a_thousand_connections_do_not_flood_the_scrape() {
    let mut config = Config::new().provider("acme", "openai", "http://127.0.0.1:1/v1");
    for n in 0..1000 {
        config = config.connection(&format!("account-{n}"), "acme");
    }
    let node = Node::start(&config.no_waiting()).await;
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await;
    let metrics = scrape(&node).await;
    assert!(metrics.samples.len() < 5000, "{}", metrics.samples.len());
    // Who reads the metrics learns no account's name.
    for sample in &metrics.samples {
        for value in sample.labels.values() {
            assert!(!value.contains("account-"), "{sample:?}");
        }
    }
    assert_eq!(metrics.complaints(), Vec::<String>::new());
}
