//! Connections rest after a failure: how long, for whom, and until what.

use std::time::{Duration, Instant};

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, add_provider};
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually_within, let_time_pass};
use serde_json::{Value, json};

fn chat(upstream: &Upstream, shorts: &[&str]) -> Config {
    add_provider(
        Config::new(),
        Dialect::Chat,
        &upstream.url(),
        shorts,
        json!({}),
    )
}

async fn ask(node: &Node) -> Answer {
    ask_for(node, "chat/demo-model").await
}

async fn ask_for(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

fn remaining_ms(connection: &Value) -> u64 {
    connection["cooldownRemainingMs"]
        .as_u64()
        .unwrap_or_else(|| panic!("{connection}"))
}

#[tokio::test]
async fn a_cooling_single_connection_answers_429_with_the_true_time() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a"]).no_waiting()).await;
    upstream.script("chat-a", [Reply::limited(60)]);
    let first = ask(&node).await.expect_status(429);
    assert!(
        (59..=60).contains(&first.retry_after().unwrap()),
        "{:?}",
        first.retry_after()
    );
    let second = ask(&node).await.expect_status(429);
    let before = second.retry_after().unwrap();
    let_time_pass(Duration::from_millis(1100), "the remaining time falls").await;
    let third = ask(&node).await.expect_status(429);
    assert!(
        third.retry_after().unwrap() < before,
        "{before} did not fall"
    );
    assert_eq!(upstream.count("chat-a"), 1);
    let a = node.connection("chat-a").await;
    assert_eq!(a["connectionStatus"], "cooling_down");
    assert_eq!(a["testStatus"], "unavailable");
    assert_eq!(a["hintSource"], "header");
    assert!((55_000..=60_000).contains(&remaining_ms(&a)), "{a}");
}

#[tokio::test]
async fn when_all_of_several_cool_it_is_503_with_the_soonest_return() {
    let upstream = Upstream::start().await;
    let config = chat(&upstream, &["a", "b"])
        .no_waiting()
        .combo("one", &["chat/m@chat-a"])
        .combo("both", &["chat/m@chat-b", "chat/m@chat-a"]);
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Reply::limited(60)]);
    upstream.script("chat-b", [Reply::limited(40)]);
    let first = ask(&node).await;
    assert!(matches!(first.status, 429 | 503), "{}", first.text());
    assert!(
        (39..=40).contains(&first.retry_after().unwrap()),
        "{:?}",
        first.headers
    );
    for (model, soonest) in [("chat/demo-model", 40), ("both", 40), ("one", 60)] {
        let answer = ask_for(&node, model).await.expect_status(503);
        assert_eq!(answer.code(), "all_targets_cooling_down", "{model}");
        let told = answer.retry_after().unwrap();
        assert!((soonest - 8..=soonest).contains(&told), "{model}: {told}");
        let text = answer.text();
        assert!(text.contains("connection_cooldown"), "{text}");
    }
    assert_eq!(upstream.requests().len(), 2);
}

#[tokio::test]
async fn when_all_are_terminal_no_waiting_is_suggested() {
    let upstream = Upstream::start().await;
    let config = chat(&upstream, &["a", "b"])
        .no_waiting()
        .combo("both", &["chat/m@chat-a", "chat/m@chat-b"])
        .provider("single", "openai", &upstream.url())
        .connection("single-a", "single");
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Reply::error(401, "invalid api key")]);
    upstream.script("chat-b", [Reply::error(402, "payment required")]);
    upstream.script("single-a", [Reply::error(401, "invalid api key")]);
    let first = ask(&node).await;
    assert!(
        !matches!(first.status, 401..=403),
        "the client's key is fine: {}",
        first.text()
    );
    for model in ["both", "chat/demo-model"] {
        let answer = ask_for(&node, model).await.expect_status(404);
        assert_eq!(answer.retry_after(), None);
    }
    let first = ask_for(&node, "single/m").await;
    assert_eq!(
        first.status,
        503,
        "the client's key is fine: {}",
        first.text()
    );
    let second = ask_for(&node, "single/m").await.expect_status(404);
    assert_eq!(second.retry_after(), None);
    assert_eq!(upstream.count("single-a"), 1);
    let a = node.connection("chat-a").await;
    assert_eq!(
        (&a["connectionStatus"], &a["testStatus"]),
        (&json!("terminal"), &json!("expired"))
    );
    let b = node.connection("chat-b").await;
    assert_eq!(b["testStatus"], "credits_exhausted");
}

#[tokio::test]
async fn the_ladder_climbs_and_a_success_clears_it() {
    let upstream = Upstream::start().await;
    let config = chat(&upstream, &["a"])
        .no_waiting()
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(100))
        .resilience("connectionCooldown.apikey.maxBackoffSteps", json!(3));
    let node = Node::start(&config).await;
    upstream.script(
        "chat-a",
        [
            Reply::error(429, "slow down"),
            Reply::error(429, "slow down"),
            Reply::error(429, "slow down"),
            Dialect::Chat.ok("pong"),
        ],
    );
    for level in 1..=3_u64 {
        let status = ask(&node).await.status;
        assert_eq!(status, 429);
        let a = node.connection("chat-a").await;
        assert_eq!(a["backoffLevel"], level, "{a}");
        assert!(remaining_ms(&a) <= 100 << (level - 1), "{a}");
        node.connection_becomes("chat-a", "healthy").await;
    }
    ask(&node).await.expect_status(200);
    let a = node.connection("chat-a").await;
    assert_eq!(a["backoffLevel"], 0, "{a}");
    assert_eq!(a["testStatus"], "active");
    assert_eq!(a["lastErrorType"], Value::Null);
    assert_eq!(a["rateLimitedUntil"], Value::Null);
}

#[tokio::test]
async fn a_herd_of_failures_counts_once() {
    let upstream = Upstream::start().await;
    let gate = Gate::closed();
    let node = Node::start(&chat(&upstream, &["a"]).no_waiting()).await;
    upstream.script("chat-a", [Reply::error(429, "slow down").behind(&gate)]);
    let body = Dialect::Chat.ask(false);
    let herd: Vec<_> = (0..20)
        .map(|_| tokio::spawn(node.post("/v1/chat/completions", &body).try_send()))
        .collect();
    upstream.request("chat-a", 20).await;
    gate.open();
    for one in herd {
        one.await.unwrap().unwrap().expect_status(429);
    }
    let a = node.connection("chat-a").await;
    assert_eq!(a["backoffLevel"], 1, "{a}");
    assert!(remaining_ms(&a) <= 3000, "{a}");
}

#[tokio::test]
async fn a_plain_model_waits_for_its_connection() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a"])).await;
    upstream.script(
        "chat-a",
        [
            Reply::limited(1),
            Reply::limited(2),
            Dialect::Chat.ok("pong"),
        ],
    );
    let answer = ask(&node).await.expect_status(200);
    let at: Vec<Instant> = upstream
        .requests_of("chat-a")
        .iter()
        .map(|seen| seen.at)
        .collect();
    assert_eq!(at.len(), 3);
    assert!(
        at[1] - at[0] >= Duration::from_millis(990),
        "{:?}",
        at[1] - at[0]
    );
    assert!(
        at[2] - at[1] >= Duration::from_millis(1990),
        "{:?}",
        at[2] - at[1]
    );
    assert!(at[2] - at[0] < Duration::from_secs(10));
    assert_eq!(answer.header("x-omniroute-attempts"), Some("3"));
}

#[tokio::test]
async fn waiting_has_limits() {
    let upstream = Upstream::start().await;
    let config = chat(&upstream, &["a"])
        .resilience("waitForCooldown.maxRetryWaitSec", json!(1))
        .resilience("waitForCooldown.maxRetries", json!(1));
    let node = Node::start(&config).await;
    upstream.script(
        "chat-a",
        [Reply::limited(1), Reply::limited(1), Reply::limited(30)],
    );
    let answer = ask(&node).await.expect_status(429);
    assert_eq!(upstream.count("chat-a"), 2, "one wait, two attempts");
    assert!(answer.took < Duration::from_secs(5), "{:?}", answer.took);
    node.connection_becomes("chat-a", "healthy").await;
    let answer = ask(&node).await.expect_status(429);
    assert!(
        answer.took < Duration::from_millis(900),
        "waited for 30 s: {:?}",
        answer.took
    );
    assert!(answer.retry_after().unwrap() >= 29);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_waiting() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a"])).await;
    upstream.script("chat-a", [Reply::limited(1), Dialect::Chat.ok("pong")]);
    let body = Dialect::Chat.ask(false);
    let call = tokio::spawn(node.post("/v1/chat/completions", &body).try_send());
    upstream.request("chat-a", 1).await;
    node.connection_becomes("chat-a", "cooling_down").await;
    call.abort();
    node.connection_becomes("chat-a", "healthy").await;
    let_time_pass(
        Duration::from_millis(500),
        "a forgotten wait would send now",
    )
    .await;
    assert_eq!(upstream.count("chat-a"), 1);
}

#[tokio::test]
async fn disable_cooling_keeps_a_connection_in_use() {
    let upstream = Upstream::start().await;
    let config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"disableCooling": true}))
        .no_waiting();
    let node = Node::start(&config).await;
    upstream.script(
        "a",
        [Reply::limited(60), Reply::error(401, "invalid api key")],
    );
    ask_for(&node, "acme/m").await.expect_status(429);
    assert_eq!(node.connection("a").await["connectionStatus"], "healthy");
    ask_for(&node, "acme/m").await.expect_status(503);
    assert_eq!(node.connection("a").await["connectionStatus"], "terminal");
    assert_eq!(upstream.count("a"), 2);
}

#[tokio::test]
async fn hints_can_be_switched_off_for_a_profile() {
    let upstream = Upstream::start().await;
    let config = chat(&upstream, &["a"])
        .no_waiting()
        .resilience(
            "connectionCooldown.apikey.useUpstreamRetryHints",
            json!(false),
        )
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(5000));
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Reply::limited(600)]);
    ask(&node).await.expect_status(429);
    let a = node.connection("chat-a").await;
    assert!(remaining_ms(&a) <= 5000, "{a}");
}

#[tokio::test]
async fn an_operators_reset_brings_connections_back() {
    let upstream = Upstream::start().await;
    let config = chat(&upstream, &["a", "b"]).no_waiting();
    let node = Node::start(&config).await;
    upstream.script("chat-a", [Reply::limited(600), Dialect::Chat.ok("a")]);
    upstream.script(
        "chat-b",
        [Reply::error(401, "invalid api key"), Dialect::Chat.ok("b")],
    );
    ask(&node).await;
    assert_eq!(upstream.requests().len(), 2);

    let unknown = node.post("/api/connections/nobody/reset", &json!({}));
    unknown.send().await.expect_status(404);
    let reset = node.post(
        "/api/resilience/reset",
        &json!({"scope": "cooldowns", "connection": "chat-a"}),
    );
    reset.send().await.expect_status(200);
    node.connection_becomes("chat-a", "healthy").await;
    assert_eq!(
        node.connection("chat-b").await["connectionStatus"],
        "terminal"
    );
    let reset = node.post("/api/connections/chat-b/reset", &json!({}));
    reset.send().await.expect_status(200);
    node.connection_becomes("chat-b", "healthy").await;
    for _ in 0..2 {
        ask(&node).await.expect_status(200);
    }
}

#[tokio::test]
async fn a_reset_of_all_needs_no_body_and_a_bad_one_is_refused() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a"]).no_waiting()).await;
    upstream.script(
        "chat-a",
        [
            Reply::limited(600),
            Reply::limited(600),
            Dialect::Chat.ok("a"),
        ],
    );
    ask(&node).await.expect_status(429);
    for bad in [
        json!({"scope": "everything"}),
        json!({"scop": "all"}),
        json!({"connection": "x"}),
        json!([]),
    ] {
        let answer = node.post("/api/resilience/reset", &bad).send().await;
        assert!(
            matches!(answer.status, 400 | 404),
            "{bad}: {}",
            answer.text()
        );
    }
    assert_eq!(
        node.connection("chat-a").await["connectionStatus"],
        "cooling_down"
    );
    // Without a body it is about breakers and lockouts.
    node.admin_call("POST", "/api/resilience/reset")
        .send()
        .await
        .expect_status(200);
    assert_eq!(
        node.connection("chat-a").await["connectionStatus"],
        "cooling_down"
    );
    let cooldowns = node.post("/api/resilience/reset", &json!({"scope": "cooldowns"}));
    cooldowns.send().await.expect_status(200);
    node.connection_becomes("chat-a", "healthy").await;
    ask(&node).await.expect_status(429);
    let all = node.post(
        "/api/resilience/reset",
        &json!({"scope": "all", "provider": "chat"}),
    );
    all.send().await.expect_status(200);
    node.connection_becomes("chat-a", "healthy").await;
    ask(&node).await.expect_status(200);
}

#[tokio::test]
async fn cooldowns_hold_after_a_kill_under_load() {
    let upstream = Upstream::start().await;
    let mut config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .no_waiting();
    for n in 0..12 {
        config = config
            .connection(&format!("c{n}"), "acme")
            .combo(&format!("m{n}"), &[&format!("acme/m@c{n}")]);
    }
    for n in 0..12 {
        let reply = if n % 2 == 0 {
            Reply::limited(600)
        } else {
            Dialect::Chat.ok("pong")
        };
        upstream.script(&format!("c{n}"), [reply]);
    }
    upstream.script("c4", [Reply::error(401, "invalid api key")]);
    let mut node = Node::start(&config).await;
    let mut load: Vec<_> = (0..300)
        .map(|n| {
            let body = Dialect::Chat.request(&format!("m{}", n % 12), false);
            tokio::spawn(node.post("/v1/chat/completions", &body).try_send())
        })
        .collect();
    // Who has been told of a failure can rely on it.
    for told in load.drain(..12) {
        told.await.unwrap().unwrap();
    }
    let statuses = ["c0", "c2", "c4", "c6", "c8", "c10"];
    for id in statuses {
        let wanted = if id == "c4" {
            "terminal"
        } else {
            "cooling_down"
        };
        node.connection_becomes(id, wanted).await;
    }
    node.kill_9().await;
    for one in load {
        // Those in flight at the kill have no answer.
        drop(one.await.unwrap());
    }
    let sent = upstream.requests().len();
    let node = node.start_again().await;
    for id in statuses {
        let connection = node.connection(id).await;
        let wanted = if id == "c4" {
            "terminal"
        } else {
            "cooling_down"
        };
        assert_eq!(connection["connectionStatus"], wanted, "{connection}");
    }
    let a = node.connection("c0").await;
    assert!((500_000..600_000).contains(&remaining_ms(&a)), "{a}");
    assert_eq!(node.connection("c1").await["connectionStatus"], "healthy");
    let answer = ask_for(&node, "m0").await.expect_status(503);
    assert!((500..=600).contains(&answer.retry_after().unwrap()));
    assert_eq!(upstream.requests().len(), sent);
}

#[tokio::test]
async fn an_acknowledged_failure_survives_a_kill_at_once() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&chat(&upstream, &["a"]).no_waiting()).await;
    upstream.script("chat-a", [Reply::limited(600)]);
    ask(&node).await.expect_status(429);
    node.kill_9().await;
    let mut node = node.start_again().await;
    ask(&node).await.expect_status(429);
    assert_eq!(upstream.count("chat-a"), 1);
    assert!(node.stop().await.success());
    let node = node.start_again().await;
    ask(&node).await.expect_status(429);
    assert_eq!(upstream.count("chat-a"), 1);
}

#[tokio::test]
async fn a_damaged_store_is_refused_and_left_as_it_is() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&chat(&upstream, &["a"]).no_waiting()).await;
    upstream.script("chat-a", [Reply::limited(600)]);
    ask(&node).await.expect_status(429);
    assert!(node.stop().await.success());
    let dir = node.setup().dir().join("omniroute-data");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort_by_key(|path| std::fs::metadata(path).unwrap().len());
    let largest = files.pop().unwrap();
    let whole = std::fs::read(&largest).unwrap();
    std::fs::write(&largest, &whole[..whole.len() / 3]).unwrap();
    let mut process = node.setup().spawn();
    let status = process.exit(Duration::from_secs(20)).await;
    process.log().closed().await;
    assert!(!status.success(), "{}", process.log().text());
    assert!(
        process.log().text().contains("omniroute-data"),
        "{}",
        process.log().text()
    );
    assert_eq!(
        std::fs::read(&largest).unwrap(),
        &whole[..whole.len() / 3],
        "the file was changed"
    );
    std::fs::write(&largest, &whole).unwrap();
    let node = node.start_again().await;
    assert_eq!(
        node.connection("chat-a").await["connectionStatus"],
        "cooling_down"
    );
}

#[tokio::test]
async fn the_end_of_a_cooldown_needs_no_probe_and_no_restart() {
    let upstream = Upstream::start().await;
    let node = Node::start(&chat(&upstream, &["a", "b"]).no_waiting()).await;
    upstream.script("chat-a", [Reply::limited(1), Dialect::Chat.ok("a")]);
    upstream.script("chat-b", [Dialect::Chat.ok("b")]);
    ask(&node).await.expect_status(200);
    eventually_within(Duration::from_secs(10), "a serves again", || async {
        let answer = ask(&node).await;
        (answer.header("x-omniroute-connection") == Some("chat-a")).then_some(())
    })
    .await;
}

/// Of two ends that are announced the later one holds, whichever call began first.
#[tokio::test]
async fn a_later_end_extends_a_rest_that_runs() {
    for (first, second) in [(3600_u64, 5_u64), (5, 3600)] {
        let upstream = Upstream::start().await;
        let node = Node::start(&chat(&upstream, &["a"]).no_waiting()).await;
        let gates = [Gate::closed(), Gate::closed()];
        let replies = [(first, &gates[0]), (second, &gates[1])];
        upstream.script(
            "chat-a",
            replies.map(|(wait, gate)| Reply::limited(wait).behind(gate)),
        );
        let story = async {
            upstream.request("chat-a", 2).await;
            // The short one is told first.
            for wait in [5, 3600] {
                let (_, gate) = replies.iter().find(|(of, _)| *of == wait).unwrap();
                gate.open();
                eventually_within(Duration::from_secs(5), "it rests as long", || async {
                    let left = remaining_ms(&node.connection("chat-a").await);
                    (left > wait * 1000 - 4_000).then_some(())
                })
                .await;
            }
        };
        let later = async {
            upstream.request("chat-a", 1).await;
            ask(&node).await
        };
        let (one, two, ()) = tokio::join!(ask(&node), later, story);
        assert_eq!((one.status, two.status), (429, 429));
        let a = node.connection("chat-a").await;
        assert!(remaining_ms(&a) > 3_500_000, "{a}");
        assert_eq!(a["backoffLevel"], 0, "{a}");
    }
}
