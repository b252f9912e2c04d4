//! The simulated provider: for first steps, tests and load.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use serde_json::{Value, json};

async fn ask(node: &Node, dialect: Dialect, model: &str, stream: bool) -> Answer {
    node.post(dialect.path(), &dialect.request(model, stream))
        .send()
        .await
}

fn with(data: &Value) -> Config {
    Config::new()
        .set(
            &["connections"],
            json!([{"id": "sim", "provider": "simulated", "providerSpecificData": data}]),
        )
        .no_waiting()
}

#[tokio::test]
async fn it_serves_every_protocol_whole_and_streamed() {
    let node = Node::start(&Config::new()).await;
    for dialect in Dialect::ALL {
        let answer = ask(&node, dialect, "simulated/ok", false)
            .await
            .expect_status(200);
        assert!(
            !dialect.text_of_answer(&answer.json()).is_empty(),
            "{}",
            answer.text()
        );
        assert_eq!(answer.header("x-omniroute-provider"), Some("simulated"));
        let answer = ask(&node, dialect, "simulated/ok", true)
            .await
            .expect_status(200);
        let text = dialect.text_of(&answer.text());
        assert!(!text.is_empty());
        dialect.expect_whole(&answer.text(), &text);

        let answer = ask(&node, dialect, "simulated/echo", false)
            .await
            .expect_status(200);
        assert!(
            dialect.text_of_answer(&answer.json()).contains("ping"),
            "{}",
            answer.text()
        );
        let answer = ask(&node, dialect, "simulated/echo", true)
            .await
            .expect_status(200);
        assert!(
            dialect.text_of(&answer.text()).contains("ping"),
            "{}",
            answer.text()
        );
    }
    let body = json!({"model": "simulated/ok", "input": "ping"});
    let answer = node
        .post("/v1/embeddings", &body)
        .send()
        .await
        .expect_status(200);
    assert!(
        answer.json()["data"][0]["embedding"].is_array(),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn it_fails_to_order() {
    for dialect in Dialect::ALL {
        let node = Node::start(&with(&json!({"retryAfterMs": 30_000}))).await;
        let answer = ask(&node, dialect, "simulated/status-429", true)
            .await
            .expect_status(429);
        assert!((29..=30).contains(&answer.retry_after().unwrap()));
        assert_eq!(
            node.connection("sim").await["connectionStatus"],
            "cooling_down"
        );
    }
    let node = Node::start(&with(&json!({}))).await;
    let answer = ask(&node, Dialect::Chat, "simulated/status-503", false).await;
    assert!(answer.status >= 500, "{}", answer.text());
}

#[tokio::test]
async fn it_drops_and_drips() {
    for dialect in Dialect::ALL {
        let node = Node::start(&with(&json!({"tokens": 5}))).await;
        let answer = ask(&node, dialect, "simulated/drip", true)
            .await
            .expect_status(200);
        let text = dialect.text_of(&answer.text());
        dialect.expect_whole(&answer.text(), &text);
        let answer = ask(&node, dialect, "simulated/drop", true).await;
        if answer.status == 200 {
            let text = dialect.text_of(&answer.text());
            dialect.expect_broken(&answer.text(), &text);
        } else {
            assert!(answer.status >= 500, "{}", answer.text());
        }
    }
}

#[tokio::test]
async fn it_takes_its_time_to_order() {
    let node = Node::start(&with(&json!({"latencyMs": 400, "tokens": 3}))).await;
    let answer = ask(&node, Dialect::Chat, "simulated/ok", false)
        .await
        .expect_status(200);
    assert!(
        answer.took >= Duration::from_millis(400),
        "{:?}",
        answer.took
    );
    let node = Node::start(&with(&json!({"tokens": 10, "tokensPerSecond": 20}))).await;
    let answer = ask(&node, Dialect::Chat, "simulated/ok", true)
        .await
        .expect_status(200);
    assert!(
        answer.took >= Duration::from_millis(400),
        "{:?}",
        answer.took
    );
}

#[tokio::test]
async fn it_can_fail_now_and_then_and_another_takes_over() {
    let config = Config::new()
        .set(
            &["connections"],
            json!([
                {"id": "shaky", "provider": "simulated", "priority": 1, "disableCooling": true,
                    "providerSpecificData": {"failEvery": 2}},
                {"id": "solid", "provider": "simulated", "priority": 2},
            ]),
        )
        .no_waiting();
    let node = Node::start(&config).await;
    let mut attempts = Vec::new();
    for _ in 0..6 {
        let answer = ask(&node, Dialect::Chat, "simulated/ok", false)
            .await
            .expect_status(200);
        attempts.push(answer.header("x-omniroute-attempts").unwrap().to_owned());
    }
    assert!(
        attempts.contains(&"1".to_owned()) && attempts.contains(&"2".to_owned()),
        "{attempts:?}"
    );
}

#[tokio::test]
async fn it_is_never_chosen_unasked() {
    let node = Node::start(&Config::new()).await;
    for model in ["ok", "echo", "gpt-4o", "claude-3"] {
        let answer = ask(&node, Dialect::Chat, model, false).await;
        assert!(answer.status >= 400, "{model}: {}", answer.text());
    }
}
