//! The wall of a subscription's five-hour limit: the low-priority lane, and the
//! weekly reset of the limit.

mod reset;

use std::time::{Duration, Instant};

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, now};
use cluster_tests::metrics::Exposition;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::{Seen, Upstream};
use cluster_tests::wait::eventually;
use futures_util::future::join_all;
use serde_json::{Value, json};

const SLOW: &str = "anthropic-usage-limit";
const ORGANIZATION: &str = "0b1c2d3e-0000-4000-8000-00000000000a";

/// A subscription account with these switches.
fn account(id: &str, specific: &Value) -> Value {
    json!({
        "oauth": {"accessToken": format!("key-{id}")},
        "providerSpecificData": specific,
    })
}

/// Accounts of one plan whose calls may take `total_ms`; usage is asked for at `api`.
fn config(url: &str, api: &str, total_ms: u64, accounts: &[(&str, Value)]) -> Config {
    let more = json!({"auth": "oauth", "timeouts": {"totalMs": total_ms}});
    let config = Config::new()
        .no_waiting()
        .set(
            &["settings", "usageWall", "apiBaseUrl"],
            json!(api.trim_end_matches("/v1")),
        )
        .provider_with("plan", "anthropic", url, more);
    accounts
        .iter()
        .enumerate()
        .fold(config, |config, (at, (id, specific))| {
            let mut entry = account(id, specific);
            entry["priority"] = json!(at + 1);
            config.connection_with(id, "plan", entry)
        })
}

fn lane() -> Value {
    json!({"lowPriorityMode": true})
}

fn unified(reply: Reply, headers: &[(&str, &str)]) -> Reply {
    headers.iter().fold(reply, |reply, (name, value)| {
        reply.header(&format!("anthropic-ratelimit-unified-{name}"), value)
    })
}

fn refusal(status: u16, headers: &[(&str, &str)]) -> Reply {
    unified(
        Reply::error(status, "You have reached your usage limit"),
        headers,
    )
}

/// The refusal at the wall; the lane is offered for an hour.
fn wall() -> Reply {
    let reset = (now() / 1000 + 3600).to_string();
    let offered = [
        ("status", "rejected"),
        ("slow-offer", "treatment"),
        ("reset", reset.as_str()),
        ("representative-claim", "five_hour"),
    ];
    refusal(429, &offered).header("retry-after", "3600")
}

fn served() -> Reply {
    unified(Dialect::Messages.ok("pong"), &[("slow-status", "active")])
}

fn busy() -> Reply {
    refusal(429, &[("status", "rejected"), ("slow-status", "slot_busy")])
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Messages.request("plan/claude-x", false);
    node.post("/v1/messages", &body).send().await
}

/// Whether each call of `id` was sent on the lane.
fn slow(upstream: &Upstream, id: &str) -> Vec<bool> {
    let rides = |seen: &std::sync::Arc<Seen>| seen.header(SLOW).map(|value| value == "slow");
    let requests = upstream.requests_of(id);
    requests
        .iter()
        .map(|seen| rides(seen).unwrap_or(false))
        .collect()
}

#[tokio::test]
async fn the_offer_is_accepted_and_ridden() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane()), ("b", lane())];
    let node = Node::start(&config(&upstream.url(), &upstream.url(), 60_000, &accounts)).await;
    upstream.script(
        "a",
        [
            wall(),
            served(),
            served(),
            unified(served(), &[("slow-status", "not_needed")]),
        ],
    );
    assert_eq!(
        node.connection("a").await["lowPriorityLane"]["state"],
        "idle"
    );
    let first = ask(&node).await.expect_status(200);
    assert_eq!(first.header("x-omniroute-attempts"), Some("1"));
    for _ in 0..2 {
        ask(&node).await.expect_status(200);
    }
    assert_eq!(slow(&upstream, "a"), [false, true, true, true]);
    assert_eq!(upstream.count("b"), 0, "nobody else is asked");
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
    assert_eq!(a["backoffLevel"], 0, "{a}");
    let riding = &a["lowPriorityLane"];
    assert_eq!(riding["state"], "active", "{a}");
    assert_eq!(
        (&riding["served"], &riding["servedStandard"]),
        (&json!(2), &json!(1)),
        "{a}"
    );
    assert!(
        riding["resetsAt"].is_string() && riding["acceptedAt"].is_string(),
        "{a}"
    );
    assert_eq!(riding["coolingOffUntil"], Value::Null);

    let trace = node.trace(&first).await;
    assert_eq!(trace["attempts"].as_array().unwrap().len(), 1, "{trace}");
    assert_eq!(trace["attempts"][0]["lowPriority"], true, "{trace}");
    let steps = &trace["usageWall"];
    assert_eq!(steps[0]["step"], "low-priority-accepted", "{trace}");
    assert_eq!(steps[0]["times"], 1, "{trace}");
    let metrics = node.get("/metrics").send().await.text();
    let metrics = Exposition::parse(&metrics);
    let events = metrics.sum("omniroute_usage_wall_total");
    assert!((events - 4.0).abs() < 0.5, "{events}");
}

#[tokio::test]
async fn streams_ride_it_too_and_the_client_can_not_ask_for_it() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane())];
    let node = Node::start(&config(&upstream.url(), &upstream.url(), 60_000, &accounts)).await;
    let stream = unified(
        Dialect::Messages.ok_stream("pong"),
        &[("slow-status", "active")],
    );
    upstream.script("a", [wall(), stream]);
    let body = Dialect::Messages.request("plan/claude-x", true);
    let call = node.post("/v1/messages", &body).header(SLOW, "slow");
    let text = call.send().await.expect_status(200).text();
    assert_eq!(Dialect::Messages.text_of(&text), "pong");
    assert_eq!(slow(&upstream, "a"), [false, true]);
    eventually("it is counted", || async {
        let a = node.connection("a").await;
        (a["lowPriorityLane"]["served"] == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn only_who_opted_in_and_has_an_account_rides_it() {
    let upstream = Upstream::start().await;
    for specific in [json!({}), json!({"lowPriorityMode": false})] {
        let accounts = [("a", specific)];
        let node = Node::start(&config(&upstream.url(), &upstream.url(), 60_000, &accounts)).await;
        upstream.script("a", [wall(), served()]);
        let before = upstream.count("a");
        assert_eq!(ask(&node).await.status, 429);
        assert_eq!(upstream.count("a"), before + 1);
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
        assert_eq!(a["lowPriorityLane"], Value::Null);
    }
    let config = Config::new()
        .no_waiting()
        .provider("keys", "anthropic", &upstream.url())
        .connection_with("k", "keys", json!({"providerSpecificData": lane()}));
    let node = Node::start(&config).await;
    upstream.script("k", [wall(), served()]);
    let body = Dialect::Messages.request("keys/claude-x", false);
    assert_eq!(node.post("/v1/messages", &body).send().await.status, 429);
    assert_eq!(slow(&upstream, "k"), [false]);
}

#[tokio::test]
async fn a_plain_limit_is_none_of_its_business() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane()), ("b", lane())];
    let node = Node::start(&config(&upstream.url(), &upstream.url(), 60_000, &accounts)).await;
    upstream.script("a", [Reply::limited(3)]);
    upstream.script("b", [Dialect::Messages.ok("pong")]);
    ask(&node).await.expect_status(200);
    assert_eq!(
        (slow(&upstream, "a"), slow(&upstream, "b")),
        (vec![false], vec![false])
    );
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
}

#[tokio::test]
async fn a_busy_lane_is_waited_for_within_the_requests_time() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane()), ("b", json!({}))];
    // 5 s of margin: what is left for waiting is about half a second.
    let node = Node::start(&config(&upstream.url(), &upstream.url(), 5500, &accounts)).await;
    upstream.script("a", [wall(), busy(), served()]);
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(slow(&upstream, "a"), [false, true, true]);
    let seen = upstream.requests_of("a");
    let waited = seen[2].at - seen[1].at;
    assert!(
        waited > Duration::from_millis(100) && waited < Duration::from_secs(2),
        "{waited:?}"
    );
    let trace = node.trace(&answer).await;
    assert_eq!(trace["usageWall"][1]["step"], "slot-busy", "{trace}");
    assert!(
        trace["usageWall"][1]["waitedMs"].as_u64().unwrap() > 100,
        "{trace}"
    );

    // In vain: the lane is over, and no offer is taken for ten minutes.
    upstream.script("a", [busy()]);
    upstream.script("b", [Dialect::Messages.ok("from b")]);
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    let a = node.connection("a").await;
    let riding = &a["lowPriorityLane"];
    assert_eq!(
        (&riding["state"], &riding["endReason"]),
        (&json!("idle"), &json!("max_wait")),
        "{a}"
    );
    assert!(riding["coolingOffUntil"].is_string(), "{a}");
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_wait() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane())];
    let config = config(&upstream.url(), &upstream.url(), 600_000, &accounts);
    let config = config.server("drainTimeoutMs", json!(300));
    let mut node = Node::start(&config).await;
    upstream.script("a", [wall(), busy(), served()]);
    let body = Dialect::Messages.request("plan/claude-x", false);
    let call = node.post("/v1/messages", &body);
    let gone = tokio::time::timeout(Duration::from_millis(1500), call.send()).await;
    assert!(gone.is_err(), "it waits for seconds");
    eventually("nothing is in flight", || async {
        (node.connection("a").await["inFlight"] == 0).then_some(())
    })
    .await;
    assert_eq!(upstream.count("a"), 2);
    // Nor does a wait hold up a stop.
    let call = node.post("/v1/messages", &body);
    upstream.script("a", [busy()]);
    let (answer, stopped) = tokio::join!(call.try_send(), async {
        upstream.request("a", 3).await;
        let begun = Instant::now();
        node.stop().await;
        begun.elapsed()
    });
    drop(answer);
    assert!(stopped < Duration::from_secs(10), "{stopped:?}");
}

#[tokio::test]
async fn what_ends_the_lane_takes_the_ordinary_way() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane()), ("b", json!({}))];
    let node = Node::start(&config(&upstream.url(), &upstream.url(), 60_000, &accounts)).await;
    let spent = (now() / 1000 + 864_000).to_string();
    let over = [
        ("slow-status", "budget_exhausted"),
        ("slow-budget-reset", spent.as_str()),
    ];
    upstream.script("a", [wall(), refusal(429, &over), wall(), served()]);
    upstream.script("b", [Dialect::Messages.ok("pong")]);
    let answer = ask(&node).await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
    assert_eq!(answer.header("x-omniroute-attempts"), Some("2"));
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    assert_eq!(a["lowPriorityLane"]["endReason"], "budget", "{a}");
    assert!(a["lowPriorityLane"]["budgetSpentUntil"].is_string(), "{a}");
    let trace = node.trace(&answer).await;
    assert_eq!(trace["usageWall"][1]["reason"], "budget", "{trace}");

    // The offer is not taken while the budget is spent, but after a reset.
    node.admin_call("POST", "/api/resilience/reset")
        .json(&json!({"scope": "cooldowns"}))
        .send()
        .await
        .expect_status(200);
    ask(&node).await.expect_status(200);
    assert_eq!(slow(&upstream, "a"), [false, true, false]);
    node.admin_call("POST", "/api/connections/a/reset")
        .send()
        .await
        .expect_status(200);
    upstream.script("a", [wall(), served()]);
    ask(&node).await.expect_status(200);
    assert_eq!(slow(&upstream, "a")[3..], [false, true]);
}

#[tokio::test]
async fn a_herd_at_the_wall_rides_one_lane() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane())];
    let node = Node::start(&config(&upstream.url(), &upstream.url(), 60_000, &accounts)).await;
    let gate = Gate::closed();
    let mut script: Vec<Reply> = (0..20).map(|_| wall().behind(&gate)).collect();
    script.push(served());
    upstream.script("a", script);
    let opening = async {
        upstream.request("a", 20).await;
        gate.open();
    };
    let herd = join_all((0..20).map(|_| ask(&node)));
    let (answers, ()) = tokio::join!(herd, opening);
    for answer in answers {
        answer.expect_status(200);
    }
    let calls = slow(&upstream, "a");
    assert_eq!(calls.len(), 40);
    assert!(calls[20..].iter().all(|slow| *slow));
    let a = node.connection("a").await;
    assert_eq!(a["lowPriorityLane"]["served"], 20, "{a}");
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
}

#[tokio::test]
async fn a_lane_outlives_a_restart() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane())];
    let mut node = Node::start(&config(&upstream.url(), &upstream.url(), 60_000, &accounts)).await;
    upstream.script("a", [wall(), served()]);
    ask(&node).await.expect_status(200);
    eventually("it is stored", || async {
        (node.connection("a").await["lowPriorityLane"]["served"] == 1).then_some(())
    })
    .await;
    node.stop().await;
    let node = node.start_again().await;
    ask(&node).await.expect_status(200);
    assert_eq!(slow(&upstream, "a"), [false, true, true]);
}

#[tokio::test]
async fn a_lane_accepted_on_one_node_is_ridden_by_the_other() {
    let cluster = Cluster::start(2, |upstream| {
        upstream.script("a", [wall(), served()]);
        config(&upstream.url(), &upstream.url(), 60_000, &[("a", lane())])
    })
    .await;
    ask(&cluster.nodes[0]).await.expect_status(200);
    eventually("the other has heard of it", || async {
        let a = cluster.nodes[1].connection("a").await;
        (a["lowPriorityLane"]["state"] == "active").then_some(())
    })
    .await;
    ask(&cluster.nodes[1]).await.expect_status(200);
    assert_eq!(slow(&cluster.upstream, "a"), [false, true, true]);
    let off = refusal(429, &[("slow-status", "off")]);
    cluster.upstream.script("a", [off]);
    assert_eq!(ask(&cluster.nodes[1]).await.status, 429);
    eventually("the first has heard of its end", || async {
        let a = cluster.nodes[0].connection("a").await;
        (a["lowPriorityLane"]["endReason"] == "off").then_some(())
    })
    .await;
}

/// A lease that is lost ends the wait, and nothing more is sent under it.
#[tokio::test]
async fn a_lost_lease_ends_the_wait() {
    let upstream = Upstream::start().await;
    let accounts = [("a", lane())];
    let config = config(&upstream.url(), &upstream.url(), 600_000, &accounts).api_key(
        "team",
        KEY,
        json!({"scopes": ["lease:exclusive"], "allowedConnections": ["a"]}),
    );
    let node = Node::start(&config).await;
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&node, "plan/claude-x").await;
    upstream.script("a", [wall(), busy(), served()]);
    let body = Dialect::Messages.request("plan/claude-x", false);
    let call = owner.ask_for(&node, Dialect::Messages, held, &body);
    let (answer, ()) = tokio::join!(call.send(), async {
        upstream.request("a", 2).await;
        owner.release(&node, held).await.expect_status(200);
    });
    assert_eq!(answer.code(), "LEASE_LOST", "{}", answer.text());
    assert_eq!(upstream.count("a"), 2);
    let a = node.connection("a").await;
    assert_eq!(
        (&a["inFlight"], &a["connectionStatus"]),
        (&json!(0), &json!("healthy")),
        "{a}"
    );
}
