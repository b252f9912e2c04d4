//! Stored tokens: they outlive the process, what the operator writes goes
//! before them, keys can be changed, and nobody sees them in the clear.

use std::path::Path;
use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::tokens::{OTHER_SECRET, SECRET, TokenEndpoint, Turn, in_ms, tokens};
use cluster_tests::wait::{eventually, let_time_pass};
use serde_json::json;

use crate::tokens_refresh::{LONG, World, ask, start, with_key};

async fn node_refreshed(world: &World, config: &Config, keys: &str) -> Node {
    let node = with_key(config, keys).start().await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.upstream.count("a.1"), 1);
    node
}

/// Ended when the node starts for the first time; so is what the file says later.
fn ended(world: &World) -> Config {
    world.config(&["a"], in_ms(-1000))
}

#[tokio::test]
async fn they_outlive_a_kill() {
    let world = World::new().await;
    let mut node = node_refreshed(&world, &ended(&world), SECRET).await;
    node.kill_9().await;
    let node = node.start_again().await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.upstream.count("a.1"), 2);
    assert_eq!(world.endpoint.grants().len(), 1);
}

#[tokio::test]
async fn what_the_operator_writes_goes_before_what_is_stored() {
    let world = World::new().await;
    let node = node_refreshed(&world, &ended(&world), SECRET).await;
    let entry = tokens("new", 0, in_ms(LONG));
    let mut one = json!({"id": "a", "provider": "plan"});
    one["oauth"] = entry["oauth"].clone();
    let changed = ended(&world).set(&["connections"], json!([one]));
    std::fs::write(node.setup().file(), changed.to_yaml()).unwrap();
    eventually("the new credential is used", || async {
        ask(&node).await.expect_status(200);
        (world.upstream.count("new.0") > 0).then_some(())
    })
    .await;
    // The former one comes back, and what had become of it is still known.
    let before = world.upstream.count("a.1");
    std::fs::write(node.setup().file(), ended(&world).to_yaml()).unwrap();
    eventually("the former credential is used", || async {
        ask(&node).await;
        (world.upstream.count("a.1") > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_key_is_replaced_step_by_step() {
    let world = World::new().await;
    let config = ended(&world);
    let mut node = node_refreshed(&world, &config, SECRET).await;
    node.kill_9().await;
    let at = |node: &Node, keys: &str| node.setup().clone().env("OMNIROUTE_SECRET_KEY", keys);
    // Both are listed: what the old one sealed is read, and sealed anew by the
    // next write.
    let mut node = at(&node, &format!("{OTHER_SECRET}, {SECRET}"))
        .start()
        .await;
    world.refuse("a.1");
    // The token is young, so that the refusal would not be believed.
    let_time_pass(Duration::from_secs(10), "the token is no longer fresh").await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.upstream.count("a.2"), 1);
    node.kill_9().await;
    let mut node = at(&node, OTHER_SECRET).start().await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.upstream.count("a.2"), 2);
    node.kill_9().await;
    // The old one alone opens nothing any more: what is configured has ended,
    // and its refresh token, which was spent long ago, is left alone.
    let node = at(&node, SECRET).start().await;
    node.log()
        .line("it is told", |line| {
            line.contains("OMNIROUTE_SECRET_KEY does not list")
        })
        .await;
    assert_eq!(ask(&node).await.status, 503);
    assert_eq!(world.endpoint.grants().len(), 2);
}

/// The one window that nobody can close: the endpoint has answered, and the node
/// dies before that is stored.
#[tokio::test]
async fn an_answer_that_died_with_its_node_is_asked_for_again() {
    for reusable in [true, false] {
        let world = World::new().await;
        let gate = Gate::closed();
        world.endpoint.script([Turn::Withheld(gate.clone())]);
        world.endpoint.reusable(reusable);
        let mut node = start(&ended(&world)).await;
        world.endpoint.grant(1).await;
        node.kill_9().await;
        gate.open();
        let node = node.start_again().await;
        let again = world.endpoint.grant(2).await;
        assert_eq!(again.field("refresh_token"), "refresh-a.0");
        if reusable {
            ask(&node).await.expect_status(200);
        } else {
            let a = node.connection_becomes("a", "terminal").await;
            assert_eq!(a["testStatus"], "expired", "{a}");
        }
    }
}

/// A stop waits for a refresh under way.
#[tokio::test]
async fn a_stop_loses_no_answer() {
    let world = World::new().await;
    let gate = Gate::closed();
    world.endpoint.script([Turn::Withheld(gate.clone())]);
    let mut node = start(&ended(&world)).await;
    world.endpoint.grant(1).await;
    let opening = async {
        let_time_pass(Duration::from_millis(500), "the node is stopping by then").await;
        gate.open();
    };
    tokio::join!(node.stop(), opening);
    let node = node.start_again().await;
    ask(&node).await.expect_status(200);
    assert_eq!(world.upstream.count("a.1"), 1);
    assert_eq!(world.endpoint.grants().len(), 1);
}

fn everything_below(dir: &Path) -> Vec<u8> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(everything_below(&path));
        } else if path.extension().is_none_or(|kind| kind != "yaml") {
            all.extend(std::fs::read(path).unwrap());
        }
    }
    all
}

fn expect_no_token(place: &str, text: &[u8]) {
    for secret in ["key-a.", "refresh-a.", "AAECAwQF"] {
        let found = memchr::memmem::find(text, secret.as_bytes());
        assert!(found.is_none(), "{secret} in {place}");
    }
}

#[tokio::test]
async fn nobody_sees_them_in_the_clear() {
    let world = World::new().await;
    let words = "the token key-a.1 and refresh-a.1 are bad, said key-a.0";
    let echo = Reply::error(400, words);
    let leak = Turn::Answer(
        400,
        json!({"error": words, "error_description": words}),
        vec![],
    );
    world.endpoint.script([leak]);
    let config = ended(&world);
    let mut node = with_key(&config, SECRET)
        .env("RUST_LOG", "trace")
        .start()
        .await;
    world.endpoint.grant(2).await;
    let told: Answer = ask(&node).await.expect_status(200);
    world.upstream.script("a.1", [echo]);
    let refused = ask(&node).await;
    expect_no_token("the answer", refused.text().as_bytes());
    for path in [
        "/metrics",
        "/api/requests",
        "/api/resilience/connections",
        "/api/nodes",
    ] {
        let answer = node.get(path).send().await.expect_status(200);
        expect_no_token(path, answer.text().as_bytes());
    }
    let traces = [node.trace(&told).await, node.trace(&refused).await];
    for trace in traces {
        expect_no_token("a trace", trace.to_string().as_bytes());
    }
    expect_no_token("the log", node.log().text().as_bytes());
    node.stop().await;
    let stored = everything_below(node.setup().dir());
    assert!(stored.len() > 1000);
    expect_no_token("the store", &stored);
}

#[tokio::test]
async fn an_answer_that_is_lost_on_the_way_is_asked_for_again() {
    let world = World::new().await;
    let endpoint: &TokenEndpoint = &world.endpoint;
    endpoint.script([Turn::Lost]);
    endpoint.reusable(true);
    let node = start(&ended(&world)).await;
    endpoint.grant(2).await;
    eventually("it serves", || async {
        (ask(&node).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(world.upstream.count("a.2"), 1);
}
