//! The gate together with what else decides: leases, locks of models, live
//! tests, connections that never rest, a changed file, and each other's
//! settings.

use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, connection_of, listed, managed};
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

use super::{
    Way, ask_for, expect_untouched, moves, moves_and_rests, on, overrides, pair, start, stays,
    threshold, window, with_variables,
};

fn slow() -> Reply {
    Reply::error(429, "slow down")
}

async fn test(node: &Node) -> Value {
    let call = node.admin_call("POST", "/api/connections/a/test");
    let answer = call.json(&json!({"model": "m"})).send().await;
    answer.expect_status(200).json()
}

/// A live test counts for nothing that adds up.
#[tokio::test]
async fn live_tests_are_not_counted() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, Way::Variable, &[threshold("429", 2)]).await;
    upstream.script("a", [slow()]);
    for n in 0..3 {
        assert_eq!(test(&node).await["ok"], false, "{n}");
    }
    stays(&node, &upstream, "after three tests").await;
    assert_eq!(test(&node).await["ok"], false);
    moves_and_rests(&node, &upstream, "the second request").await;
}

/// What one connection does not say holds as the environment says.
#[tokio::test]
async fn overrides_are_taken_one_by_one() {
    let upstream = Upstream::start().await;
    let own = overrides(&[window("429", 600), on("502", false)]);
    let knobs = [threshold("429", 2), window("429", 1), on("500", false)];
    let setup = with_variables(Setup::with(&pair(&upstream, &own)), &knobs);
    let node = setup.start().await;
    for (status, what) in [(500, "of the environment"), (502, "of its own")] {
        upstream.script("a", [Reply::error(status, "boom")]);
        stays(&node, &upstream, what).await;
    }
    upstream.script("a", [slow()]);
    stays(&node, &upstream, "the first").await;
    let passes = std::time::Duration::from_millis(1_500);
    let reason = "the environment's window passes, its own does not";
    cluster_tests::wait::let_time_pass(passes, reason).await;
    moves_and_rests(&node, &upstream, "the second").await;
}

#[tokio::test]
async fn a_changed_file_changes_the_gate() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&pair(&upstream, &json!({})));
    let node = setup.start().await;
    upstream.script("a", [slow()]);
    moves_and_rests(&node, &upstream, "as it began").await;
    let changed = pair(&upstream, &overrides(&[on("429", false)]));
    let changed = changed.combo("new", &["acme/m"]);
    std::fs::write(setup.file(), changed.to_yaml()).unwrap();
    eventually("the change is taken over", || async {
        let models = node.get("/v1/models").send().await.text();
        models.contains("new").then_some(())
    })
    .await;
    // What rests goes on to rest.
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    super::reset(&node, "a").await;
    stays(&node, &upstream, "as it is now").await;
}

/// Where a failure locks a model, the last of them does, and nothing before.
#[tokio::test]
async fn locks_of_models_are_counted_for_too() {
    let upstream = Upstream::start().await;
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let quota = json!({"perModelQuota": true});
    let config = Config::new()
        .no_waiting()
        .provider_with("acme", "openai", &upstream.url(), quota)
        .provider("backup", "openai", &upstream.url())
        .connection_with(
            "a",
            "acme",
            json!({"models": ["one", "two"], "providerSpecificData":
                overrides(&[threshold("429", 3)])}),
        )
        .connection("b", "backup")
        .combo("one", &["acme/one", "backup/m"])
        .combo("two", &["acme/two", "backup/m"]);
    let node = Node::start(&config).await;
    upstream.script("a", [Reply::limited(600)]);
    // The count is the connection's, whatever the model.
    for model in ["one", "two"] {
        ask_for(&node, model).await.expect_status(429);
        expect_untouched(&node.connection("a").await, model);
    }
    ask_for(&node, "two").await.expect_status(200);
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
    let locks = a["lockouts"].as_array().unwrap();
    assert_eq!(locks.len(), 1, "{a}");
    assert_eq!(locks[0]["model"], "two", "{a}");
}

/// A connection that never rests still moves on, or does not.
#[tokio::test]
async fn connections_that_never_rest_are_counted_too() {
    let upstream = Upstream::start().await;
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let gate = overrides(&[threshold("429", 2), on("400", true)]);
    let own = json!({"priority": 1, "disableCooling": true, "providerSpecificData": gate});
    let config = Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", own)
        .connection_with("b", "acme", json!({"priority": 2}));
    let node = Node::start(&config).await;
    upstream.script("a", [slow()]);
    stays(&node, &upstream, "the first").await;
    let a = moves(&node, &upstream, "the second").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
    super::reset(&node, "a").await;
    upstream.script("a", [Reply::error(400, "the colour must be green")]);
    let a = moves(&node, &upstream, "a refused request").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
}

/// A lease stays where it is while the gate holds its request back.
#[tokio::test]
async fn a_lease_does_not_move_for_what_is_held_back() {
    let cluster = Cluster::start(2, |upstream| {
        upstream.script_all([Dialect::Chat.ok("pong")]);
        let config = managed(&upstream.url(), &[Dialect::Chat], &["a", "b"]);
        let own = ["chat-a", "chat-b"].map(|id| {
            json!({"id": id, "provider": "chat", "apiKey": format!("key-{id}"),
                "providerSpecificData": overrides(&[threshold("429", 3)])})
        });
        config.set(&["connections"], json!(own))
    })
    .await;
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&cluster.nodes[0], "chat/demo-model").await;
    let leases = listed(&cluster.nodes[0]).await;
    let first = connection_of(&leases[0]).to_owned();
    let second = if first == "chat-a" {
        "chat-b"
    } else {
        "chat-a"
    };
    cluster.upstream.script(&first, [slow()]);
    let ask = || async {
        let call = alice.ask(&cluster.nodes[0], Dialect::Chat, held, false);
        call.send().await
    };
    for n in 1..=2 {
        let answer = ask().await;
        assert_eq!(answer.status, 429, "{n}: {}", answer.text());
        assert_eq!(cluster.upstream.count(second), 0, "{n}");
        let leases = listed(&cluster.nodes[1]).await;
        assert_eq!(connection_of(&leases[0]), first, "{n}");
    }
    // The third moves it, at once or for the next request.
    ask().await;
    let answer = ask().await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some(second));
    assert_eq!(cluster.upstream.count(&first), 3);
}

/// The spare keys of a connection are none of the gate's business.
#[tokio::test]
async fn refused_keys_go_on_whatever_the_gate_says() {
    let upstream = Upstream::start().await;
    let own = json!({"extraApiKeys": ["key-a2"], "rotationOverrides": {"rotateOn429": false}});
    let setup = Setup::with(&pair(&upstream, &own)).env(super::MASTER, "false");
    let node = setup.start().await;
    upstream.script("a", [Reply::error(401, "invalid api key")]);
    upstream.script("a2", [slow(), Dialect::Chat.ok("pong")]);
    ask_for(&node, "acme/m").await.expect_status(429);
    assert_eq!(upstream.order(), ["a", "a2"]);
    expect_untouched(&node.connection("a").await, "held back");
    ask_for(&node, "acme/m").await.expect_status(200);
    assert_eq!(upstream.order(), ["a", "a2", "a2"]);
}
