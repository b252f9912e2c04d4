//! A class may want several failures within a window before a request moves on:
//! those before the last one are counted and end their requests.

use std::time::Duration;

use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::{Finish, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::let_time_pass;
use serde_json::json;

use super::{
    WAYS, Way, ask_for, expect_untouched, moves, moves_and_rests, on, pair, reset, start, stays,
    threshold, window, with_variables,
};

fn slow() -> Reply {
    Reply::error(429, "slow down")
}

#[tokio::test]
async fn the_last_of_them_moves_on() {
    let boom = |status| Reply::error(status, "boom");
    let classes = [
        ("429", [slow(), Reply::limited(600), slow()]),
        ("500", [boom(500), boom(503), boom(504)]),
        ("502", [boom(502), Reply::nothing(Finish::Close), boom(502)]),
    ];
    for way in WAYS {
        for (class, replies) in &classes {
            let upstream = Upstream::start().await;
            let node = start(&upstream, way, &[threshold(class, 3)]).await;
            for (n, reply) in replies.iter().enumerate() {
                let what = format!("{way:?}: failure {} of 3 of class {class}", n + 1);
                upstream.script("a", [reply.clone()]);
                if n < 2 {
                    stays(&node, &upstream, &what).await;
                } else {
                    moves_and_rests(&node, &upstream, &what).await;
                }
            }
        }
    }
}

/// Also for a class that is off unless told.
#[tokio::test]
async fn refused_requests_are_counted_where_they_are_to_move_on() {
    for way in WAYS {
        let upstream = Upstream::start().await;
        let knobs = [on("400", true), threshold("400", 2)];
        let node = start(&upstream, way, &knobs).await;
        upstream.script("a", [Reply::error(400, "the colour must be green")]);
        let what = format!("{way:?}");
        let answer = stays(&node, &upstream, &what).await;
        assert_eq!(answer.status, 400, "{what}: {}", answer.text());
        moves_and_rests(&node, &upstream, &what).await;
    }
}

#[tokio::test]
async fn each_class_has_a_count_of_its_own() {
    let upstream = Upstream::start().await;
    let knobs = ["429", "500", "502"].map(|class| threshold(class, 2));
    let node = start(&upstream, Way::Variable, &knobs).await;
    for status in [429, 500, 502] {
        upstream.script("a", [Reply::error(status, "boom")]);
        stays(&node, &upstream, &format!("the first {status}")).await;
    }
    upstream.script("a", [Reply::error(503, "boom")]);
    moves_and_rests(&node, &upstream, "the second of class 500").await;
}

#[tokio::test]
async fn each_connection_has_a_count_of_its_own() {
    let upstream = Upstream::start().await;
    let config = pair(&upstream, &json!({}))
        .combo("only-a", &["acme/m@a"])
        .combo("only-b", &["acme/m@b"]);
    let setup = with_variables(Setup::with(&config), &[threshold("429", 2)]);
    let node = setup.start().await;
    upstream.script_all([slow()]);
    for id in ["a", "b"] {
        upstream.script(id, [slow()]);
    }
    for id in ["a", "b"] {
        assert_eq!(ask_for(&node, &format!("only-{id}")).await.status, 429);
        expect_untouched(&node.connection(id).await, id);
    }
    ask_for(&node, "only-b").await;
    let b = node.connection("b").await;
    assert_eq!(b["connectionStatus"], "cooling_down", "{b}");
    expect_untouched(&node.connection("a").await, "a");
}

/// Once reached, the threshold stays reached while its window lasts.
#[tokio::test]
async fn what_comes_after_the_last_of_them_moves_on_too() {
    let upstream = Upstream::start().await;
    let config = pair(&upstream, &json!({}))
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(100));
    let setup = with_variables(Setup::with(&config), &[threshold("429", 2)]);
    let node = setup.start().await;
    upstream.script("a", [slow()]);
    stays(&node, &upstream, "the first").await;
    for n in 2..=4 {
        moves(&node, &upstream, &format!("failure {n}")).await;
        node.connection_becomes("a", "healthy").await;
    }
}

#[tokio::test]
async fn what_left_the_window_does_not_count() {
    for way in WAYS {
        let upstream = Upstream::start().await;
        let node = start(&upstream, way, &[threshold("429", 2), window("429", 3)]).await;
        upstream.script("a", [slow()]);
        let what = format!("{way:?}");
        stays(&node, &upstream, &what).await;
        let_time_pass(
            Duration::from_millis(3_200),
            "the failure leaves the window",
        )
        .await;
        stays(&node, &upstream, &what).await;
        moves_and_rests(&node, &upstream, &what).await;
    }
}

async fn tested(node: &Node) {
    let call = node.admin_call("POST", "/api/connections/a/test");
    let answer = call.json(&json!({"model": "m"})).send().await;
    assert_eq!(answer.expect_status(200).json()["ok"], true);
}

async fn reset_all(node: &Node) {
    let call = node.post("/api/resilience/reset", &json!({"scope": "all"}));
    call.send().await.expect_status(200);
}

/// A success, a reset, a live test that succeeds: each begins anew.
#[tokio::test]
async fn what_ends_a_count() {
    for how in ["a success", "a reset", "a reset of all", "a live test"] {
        let upstream = Upstream::start().await;
        let node = start(&upstream, Way::Variable, &[threshold("429", 2)]).await;
        for round in 1..=2 {
            let what = format!("round {round} after {how}");
            upstream.script("a", [slow()]);
            stays(&node, &upstream, &what).await;
            upstream.script("a", [Dialect::Chat.ok("pong")]);
            match how {
                "a success" => drop(super::ask(&node).await.expect_status(200)),
                "a reset" => reset(&node, "a").await,
                "a reset of all" => reset_all(&node).await,
                _ => tested(&node).await,
            }
        }
        upstream.script("a", [slow()]);
        stays(&node, &upstream, how).await;
        moves_and_rests(&node, &upstream, how).await;
    }
}
