//! The weekly reset of the limit.

use std::time::Duration;

use cluster_tests::cluster::Cluster;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::let_time_pass;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{ORGANIZATION, ask, config, refusal, served, slow, wall};

fn resets(named: bool, lane: bool) -> Value {
    let mut specific = json!({"autoLimitReset": true, "lowPriorityMode": lane});
    if named {
        specific["organizationUUID"] = json!(ORGANIZATION);
    }
    specific
}

fn offered() -> Reply {
    Reply::json(
        200,
        &json!({"juniper_tide": {"eligible": true, "arm": "reset", "available": true}}),
    )
}

fn result(word: &str) -> Reply {
    Reply::json(200, &json!({"result": word}))
}

fn paths(api: &Upstream) -> Vec<String> {
    let requests = api.requests();
    requests
        .iter()
        .map(|seen| format!("{} {}", seen.method, seen.path))
        .collect()
}

const USAGE: &str = "GET /api/oauth/usage?at_wall=1&skip_spend=1";

fn claim() -> String {
    format!("POST /api/organizations/{ORGANIZATION}/reset_rate_limits")
}

#[tokio::test]
async fn the_limit_is_reset_and_the_request_goes_on_at_full_speed() {
    let (upstream, api) = (Upstream::start().await, Upstream::start().await);
    let accounts = [("a", resets(true, true))];
    let node = Node::start(&config(&upstream.url(), &api.url(), 60_000, &accounts)).await;
    upstream.script("a", [wall(), Dialect::Messages.ok("pong")]);
    api.script("a", [offered(), result("reset")]);
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(slow(&upstream, "a"), [false, false], "LR-01");
    assert_eq!(paths(&api), [USAGE.to_owned(), claim()]);
    let requests = api.requests();
    assert_eq!(requests[1].json(), json!({"program": "juniper_tide"}));
    assert_eq!(requests[0].header("authorization"), Some("Bearer key-a"));
    assert_eq!(
        requests[0].header("anthropic-beta"),
        Some("oauth-2025-04-20")
    );
    let trace = node.trace(&answer).await;
    assert_eq!(trace["usageWall"][0]["step"], "limit-reset", "{trace}");
    let a = node.connection("a").await;
    assert_eq!(a["limitReset"]["outcome"], "reset", "{a}");
    assert_eq!(a["lowPriorityLane"]["state"], "idle", "{a}");
    assert_eq!(a["connectionStatus"], "healthy", "{a}");

    // A moment later the stale wall is answered from memory, and only once.
    upstream.script("a", [wall(), Dialect::Messages.ok("pong")]);
    ask(&node).await.expect_status(200);
    upstream.script("a", [wall(), wall(), served()]);
    ask(&node).await.expect_status(200);
    assert_eq!(api.requests().len(), 2, "LR-07");
    assert_eq!(
        slow(&upstream, "a")[2..],
        [false, false, false, false, true]
    );
}

#[tokio::test]
async fn without_a_reset_there_is_the_lane() {
    let away = Reply::error(503, "not now");
    let control = json!({"juniper_tide": {"eligible": true, "arm": "control", "available": true}});
    for (script, outcome) in [
        (vec![offered(), result("already_used")], "already_used"),
        (vec![offered(), Reply::error(401, "no")], "auth_error"),
        (vec![offered(), Reply::error(429, "slowly")], "rate_limited"),
        (vec![Reply::json(200, &control)], "not_offered"),
        (vec![away], "status_unreadable"),
    ] {
        let (upstream, api) = (Upstream::start().await, Upstream::start().await);
        let accounts = [("a", resets(true, true))];
        let node = Node::start(&config(&upstream.url(), &api.url(), 60_000, &accounts)).await;
        upstream.script("a", [wall(), served()]);
        let calls = script.len();
        api.script("a", script);
        ask(&node).await.expect_status(200);
        assert_eq!(slow(&upstream, "a"), [false, true], "LR-10: {outcome}");
        let a = node.connection("a").await;
        assert_eq!(a["limitReset"]["outcome"], outcome, "{a}");
        assert!(a["limitReset"]["notBefore"].is_string(), "{a}");
        // Not asked again so soon, also at the next wall.
        node.admin_call("POST", "/api/resilience/reset")
            .json(&json!({"scope": "all"}))
            .send()
            .await
            .expect_status(200);
        upstream.script(
            "a",
            [refusal(429, &[("slow-status", "off")]), wall(), served()],
        );
        assert_eq!(ask(&node).await.status, 429);
        node.admin_call("POST", "/api/resilience/reset")
            .json(&json!({"scope": "all"}))
            .send()
            .await
            .expect_status(200);
        ask(&node).await.expect_status(200);
        assert_eq!(slow(&upstream, "a"), [false, true, true, false, true]);
        assert_eq!(api.requests().len(), calls, "{outcome}");
    }
}

#[tokio::test]
async fn the_organization_is_looked_up_where_nobody_named_it() {
    let (upstream, api) = (Upstream::start().await, Upstream::start().await);
    let accounts = [("a", resets(false, false)), ("b", resets(false, false))];
    let node = Node::start(&config(&upstream.url(), &api.url(), 60_000, &accounts)).await;
    let told = json!({"oauth_account": {"organization_uuid": ORGANIZATION}});
    upstream.script("a", [wall(), Dialect::Messages.ok("pong")]);
    api.script(
        "a",
        [offered(), Reply::json(200, &told), result("not_limited")],
    );
    ask(&node).await.expect_status(200);
    assert_eq!(
        paths(&api),
        [
            USAGE.to_owned(),
            "GET /api/claude_cli/bootstrap".to_owned(),
            claim()
        ]
    );
    // LR-11: nobody knows it. Without the lane the refusal is an ordinary one.
    upstream.script("a", [Reply::error(500, "down")]);
    upstream.script("b", [wall()]);
    api.script("b", [offered(), Reply::json(200, &json!({}))]);
    assert_ne!(ask(&node).await.status, 200);
    let b = node.connection("b").await;
    assert_eq!(b["limitReset"]["outcome"], "no_organization", "{b}");
    assert_eq!(
        (&b["lowPriorityLane"], &b["connectionStatus"]),
        (&Value::Null, &json!("cooling_down"))
    );
}

#[tokio::test]
async fn a_weekly_limit_is_not_reset() {
    let (upstream, api) = (Upstream::start().await, Upstream::start().await);
    let accounts = [("a", resets(true, false))];
    let node = Node::start(&config(&upstream.url(), &api.url(), 60_000, &accounts)).await;
    let weekly = [
        ("status", "rejected"),
        ("representative-claim", "seven_day"),
    ];
    upstream.script("a", [refusal(429, &weekly)]);
    assert_eq!(ask(&node).await.status, 429);
    assert_eq!(api.requests().len(), 0, "LR-09");
}

#[tokio::test]
async fn one_node_asks_for_the_reset_and_all_go_on() {
    let api = Upstream::start().await;
    let walls = Gate::closed();
    let asked = Gate::closed();
    let cluster = Cluster::start(2, |upstream| {
        let mut script: Vec<Reply> = (0..10).map(|_| wall().behind(&walls)).collect();
        script.push(Dialect::Messages.ok("pong"));
        upstream.script("a", script);
        config(
            &upstream.url(),
            &api.url(),
            60_000,
            &[("a", resets(true, true))],
        )
    })
    .await;
    api.script("a", [offered().behind(&asked), result("reset")]);
    let opening = async {
        cluster.upstream.request("a", 10).await;
        walls.open();
        api.request("a", 1).await;
        let_time_pass(
            Duration::from_millis(300),
            "all of them stand at the wall by then",
        )
        .await;
        asked.open();
    };
    let herd = join_all((0..10).map(|at| ask(&cluster.nodes[at % 2])));
    let (answers, ()) = tokio::join!(herd, opening);
    for answer in answers {
        answer.expect_status(200);
    }
    assert_eq!(paths(&api), [USAGE.to_owned(), claim()]);
    assert!(slow(&cluster.upstream, "a").iter().all(|slow| !slow));
}

#[tokio::test]
async fn secrets_stay_where_they_are() {
    let (upstream, api) = (Upstream::start().await, Upstream::start().await);
    let accounts = [("a", resets(true, true))];
    let mut node = Node::start(&config(&upstream.url(), &api.url(), 60_000, &accounts)).await;
    upstream.script("a", [wall(), served()]);
    api.script("a", [offered(), Reply::error(403, "key-a is not welcome")]);
    let answer = ask(&node).await.expect_status(200);
    let trace = node.trace(&answer).await.to_string();
    let a = node.connection("a").await.to_string();
    node.stop().await;
    for text in [trace, a, node.log().text()] {
        assert!(!text.contains("key-a"), "{text}");
    }
}
