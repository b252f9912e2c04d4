//! The usage limit of a Claude subscription: the low-priority lane that an
//! account may ride until its limit resets. Opt-in for each connection.

mod cluster;
mod reset;

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::{Seen, Upstream};
use serde_json::{Value, json};

/// What every header of a plan's limits begins with.
const UNIFIED: &str = "anthropic-ratelimit-unified-";
/// How a request asks for the lane.
const SLOW: &str = "anthropic-usage-limit";

/// Seconds since 1970, from now.
fn epoch(from_now: i64) -> String {
    (jiff::Timestamp::now().as_second() + from_now).to_string()
}

/// Adds headers of a plan's limits.
fn unified(reply: Reply, headers: &[(&str, &str)]) -> Reply {
    headers.iter().fold(reply, |reply, (name, value)| {
        reply.header(&format!("{UNIFIED}{name}"), value)
    })
}

/// A refusal in this protocol.
pub(crate) fn limit(headers: &[(&str, &str)]) -> Reply {
    let body = json!({"type": "error", "error": {"type": "rate_limit_error",
        "message": "This request would exceed your account's rate limit."}});
    unified(Reply::json(429, &body), headers)
}

/// The wall, with an offer of the lane, in an hour over.
pub(crate) fn wall() -> Reply {
    let reset = epoch(3600);
    limit(&[
        ("status", "rejected"),
        ("slow-offer", "treatment"),
        ("reset", &reset),
        ("representative-claim", "five_hour"),
    ])
}

pub(crate) fn ok() -> Reply {
    Dialect::Messages.ok("pong")
}

fn served(status: &str) -> Reply {
    unified(ok(), &[("slow-status", status)])
}

/// One account with these switches; the calls beside inference go to `api`.
pub(crate) fn config(upstream: &Upstream, api: &Upstream, data: &Value) -> Config {
    Config::new()
        .no_waiting()
        .provider_with("claude", "anthropic", &upstream.url(), json!({}))
        .connection_with("a", "claude", account("a", data))
        .set(
            &["settings", "usageWall", "apiBaseUrl"],
            json!(format!("http://{}", api.addr())),
        )
}

fn account(id: &str, data: &Value) -> Value {
    json!({"models": ["claude-x"], "oauth": {"accessToken": format!("key-{id}")},
        "providerSpecificData": data})
}

pub(crate) fn lane() -> Value {
    json!({"lowPriorityMode": true})
}

struct World {
    upstream: Upstream,
    node: Node,
}

async fn start(data: &Value) -> World {
    let (upstream, api) = (Upstream::start().await, Upstream::start().await);
    let node = Node::start(&config(&upstream, &api, data)).await;
    World { upstream, node }
}

pub(crate) async fn ask(node: &Node) -> Answer {
    let body = Dialect::Messages.request("claude/claude-x", false);
    node.post("/v1/messages", &body).send().await
}

/// Whether a request asked for the lane.
pub(crate) fn slow(seen: &Seen) -> bool {
    match seen.header(SLOW) {
        None => false,
        Some("slow") => true,
        Some(other) => panic!("{SLOW}: {other}"),
    }
}

/// For each request of `a`, whether it asked for the lane.
pub(crate) fn lanes(upstream: &Upstream) -> Vec<bool> {
    let seen = upstream.requests_of("a");
    seen.iter().map(|seen| slow(seen)).collect()
}

impl World {
    /// Gets onto the lane and returns its state.
    async fn accepted(&self) -> Value {
        self.upstream.script("a", [wall(), served("active")]);
        ask(&self.node).await.expect_status(200);
        self.lane("active").await
    }

    async fn lane(&self, state: &str) -> Value {
        let a = self.node.connection("a").await;
        let lane = a["lowPriorityLane"].clone();
        let now = lane["state"].as_str().unwrap_or("idle");
        assert_eq!(now, state, "{a}");
        lane
    }

    /// The next request's answer, and whether its last attempt asked for the lane.
    async fn next(&self, reply: Reply) -> (Answer, bool) {
        self.upstream.script("a", [reply]);
        let answer = ask(&self.node).await;
        (answer, *lanes(&self.upstream).last().unwrap())
    }
}

fn near(time: &Value, from_now: i64) -> bool {
    let at = match time {
        Value::String(text) => text.parse::<jiff::Timestamp>().unwrap().as_millisecond(),
        Value::Number(ms) => ms.as_i64().unwrap(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            panic!("no time: {time}")
        }
    };
    let wanted = jiff::Timestamp::now().as_millisecond() + from_now * 1000;
    (at - wanted).abs() < 20_000
}

/// CL-01: streamed or not, the client notices nothing.
#[tokio::test]
async fn at_the_wall_the_offer_is_taken_and_the_same_account_serves() {
    for stream in [false, true] {
        let world = start(&lane()).await;
        let reply = if stream {
            Dialect::Messages.ok_stream("pong")
        } else {
            ok()
        };
        world.upstream.script("a", [wall(), reply]);
        let body = Dialect::Messages.request("claude/claude-x", stream);
        let answer = world.node.post("/v1/messages", &body).send().await;
        let answer = answer.expect_status(200);
        if stream {
            Dialect::Messages.expect_whole(&answer.text(), "pong");
        }
        assert_eq!(lanes(&world.upstream), [false, true]);
        let lane = world.lane("active").await;
        assert!(near(&lane["resetsAt"], 3600), "{lane}");
        assert!(near(&lane["acceptedAt"], 0), "{lane}");
        // Routing never heard of it.
        let a = world.node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{a}");
        assert_eq!(a["lastErrorType"], Value::Null, "{a}");
        assert_eq!(a["backoffLevel"], 0, "{a}");
        let (answer, slow) = world.next(served("active")).await;
        answer.expect_status(200);
        assert!(slow, "the next request is on the lane from the start");
    }
}

/// The body is sent again as it was.
#[tokio::test]
async fn the_repeated_request_is_the_same() {
    let world = start(&lane()).await;
    world.accepted().await;
    let seen = world.upstream.requests_of("a");
    assert_eq!(seen[0].body, seen[1].body);
    assert_eq!(seen[0].path, seen[1].path);
}

/// CL-02, CL-03, and each guard of the idle state.
#[tokio::test]
async fn otherwise_a_429_goes_the_ordinary_way() {
    let (soon, past, later) = (epoch(3600), epoch(-10), epoch(7200));
    let rejected = ("status", "rejected");
    let treatment = ("slow-offer", "treatment");
    let on = lane();
    let cases = [
        ("not opted in", json!({}), wall()),
        (
            "no unified headers",
            on.clone(),
            limit(&[]).header("retry-after", "300"),
        ),
        ("no offer", on.clone(), limit(&[rejected, ("reset", &soon)])),
        (
            "another offer",
            on.clone(),
            limit(&[rejected, ("slow-offer", "control"), ("reset", &soon)]),
        ),
        (
            "an unknown offer",
            on.clone(),
            limit(&[rejected, ("slow-offer", "maybe"), ("reset", &soon)]),
        ),
        (
            "a reset in the past",
            on.clone(),
            limit(&[rejected, treatment, ("reset", &past)]),
        ),
        ("no reset", on.clone(), limit(&[rejected, treatment])),
        (
            "a reset that is none",
            on.clone(),
            limit(&[rejected, treatment, ("reset", "-5")]),
        ),
        (
            "allowed",
            on,
            limit(&[("status", "allowed"), ("7d-reset", &later)]),
        ),
    ];
    for (what, data, reply) in cases {
        let world = start(&data).await;
        world.upstream.script("a", [reply, ok()]);
        let answer = ask(&world.node).await;
        assert_eq!(answer.status, 429, "{what}: {}", answer.text());
        assert_eq!(lanes(&world.upstream), [false], "{what}");
        world.lane("idle").await;
        let a = world.node.connection("a").await;
        assert_eq!(a["connectionStatus"], "cooling_down", "{what}: {a}");
    }
}

#[tokio::test]
async fn a_valid_offer_is_a_wall_without_the_word_rejected() {
    let (soon, five) = (epoch(3600), epoch(1800));
    for (headers, resets) in [
        (vec![("slow-offer", "treatment"), ("reset", &*soon)], 3600),
        // Without `reset` that of the five hours.
        (
            vec![("slow-offer", "treatment"), ("5h-reset", &*five)],
            1800,
        ),
    ] {
        let world = start(&lane()).await;
        world
            .upstream
            .script("a", [limit(&headers), served("active")]);
        ask(&world.node).await.expect_status(200);
        let lane = world.lane("active").await;
        assert!(near(&lane["resetsAt"], resets), "{lane}");
    }
}

#[tokio::test]
async fn what_was_served_is_counted() {
    let world = start(&lane()).await;
    world.accepted().await;
    for status in ["active", "not_needed", "not_needed", "active", "active"] {
        let (answer, slow) = world.next(served(status)).await;
        answer.expect_status(200);
        assert!(slow, "still on the lane");
    }
    let lane = world.lane("active").await;
    // With the request that got onto the lane.
    assert_eq!(lane["served"], 4, "{lane}");
    assert_eq!(lane["servedStandard"], 2, "{lane}");
}

#[tokio::test]
async fn a_later_window_is_the_reset() {
    let world = start(&lane()).await;
    world.accepted().await;
    let next = epoch(3600 + 5 * 3600);
    let reply = unified(served("active"), &[("5h-reset", &next)]);
    world.next(reply).await.0.expect_status(200);
    world.lane("idle").await;
    let (answer, slow) = world.next(ok()).await;
    answer.expect_status(200);
    assert!(!slow, "full speed again");
    // The window that is known is no news.
    let world = start(&lane()).await;
    world.accepted().await;
    let same = epoch(3600);
    let reply = unified(served("active"), &[("5h-reset", &same)]);
    world.next(reply).await.0.expect_status(200);
    world.lane("active").await;
}

/// CL-05 to CL-07: 5 s is the least, and chance adds or takes up to 30 %.
#[tokio::test]
async fn a_busy_lane_is_waited_for_on_the_same_account() {
    let busy = |status: u16, verdict: &[(&str, &str)]| {
        let body = json!({"type": "error",
            "error": {"type": "overloaded_error", "message": "Overloaded"}});
        unified(Reply::json(status, &body), verdict)
    };
    let cases = [
        busy(
            429,
            &[("slow-status", "slot_busy"), ("slow-retry-after", "1")],
        ),
        busy(529, &[("slow-status", "active"), ("slow-retry-after", "1")]),
        busy(529, &[("slow-retry-after", "1")]),
    ];
    for reply in cases {
        let what = format!("{reply:?}");
        let (upstream, api) = (Upstream::start().await, Upstream::start().await);
        let config = config(&upstream, &api, &lane()).connection_with(
            "other",
            "claude",
            account("other", &json!({})),
        );
        let config = config.combo("both", &["claude/claude-x@a", "claude/claude-x@other"]);
        let node = Node::start(&config).await;
        let world = World { upstream, node };
        world
            .upstream
            .script("a", [wall(), reply, served("active")]);
        let body = Dialect::Messages.request("both", false);
        let answer = world.node.post("/v1/messages", &body).send().await;
        answer.expect_status(200);
        assert_eq!(lanes(&world.upstream), [false, true, true], "{what}");
        assert_eq!(world.upstream.count("other"), 0, "{what}");
        let seen = world.upstream.requests_of("a");
        let waited = seen[2].at.saturating_duration_since(seen[1].at);
        assert!(
            (3_400..=9_000).contains(&waited.as_millis()),
            "{what}: {waited:?}"
        );
        world.lane("active").await;
        let a = world.node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{what}: {a}");
    }
}

/// CL-14, CL-09: waiting ends with what the call may take, and then the lane
/// rests for ten minutes.
#[tokio::test]
async fn who_waited_long_enough_leaves_the_lane() {
    let (upstream, api) = (Upstream::start().await, Upstream::start().await);
    let config = config(&upstream, &api, &lane()).set(
        &["providers"],
        json!([{"id": "claude", "protocol": "anthropic", "baseUrl": upstream.url(),
            "timeouts": {"responseHeadersMs": 12_000, "totalMs": 12_000}}]),
    );
    let node = Node::start(&config).await;
    let world = World { upstream, node };
    world.accepted().await;
    let busy = limit(&[("slow-status", "slot_busy"), ("slow-retry-after", "5")])
        .header("retry-after", "1");
    world.upstream.script("a", [busy]);
    let answer = ask(&world.node).await.expect_status(429);
    assert!(answer.took < Duration::from_secs(20), "{:?}", answer.took);
    assert!(answer.took > Duration::from_secs(3), "{:?}", answer.took);
    let a = world.node.connection("a").await;
    let lane = &a["lowPriorityLane"];
    assert_eq!(lane["state"], "idle", "{a}");
    assert!(near(&lane["coolingOffUntil"], 600), "{a}");
    world.node.connection_becomes("a", "healthy").await;
    // The next offer is not taken.
    let before = world.upstream.count("a");
    world.upstream.script("a", [wall(), ok()]);
    ask(&world.node).await.expect_status(429);
    assert_eq!(lanes(&world.upstream)[before..], [false]);
}

/// Verdicts that end the lane; the refusal goes on to the ordinary cooldown.
#[tokio::test]
async fn a_verdict_ends_the_lane() {
    for verdict in ["weekly_limit", "budget_exhausted", "off", "ineligible"] {
        let world = start(&lane()).await;
        world.accepted().await;
        let reply = limit(&[("slow-status", verdict)]).header("retry-after", "300");
        let (answer, slow) = world.next(reply).await;
        assert_eq!(answer.status, 429, "{verdict}: {}", answer.text());
        assert!(slow, "{verdict}");
        world.lane("idle").await;
        let a = world.node.connection("a").await;
        assert_eq!(a["connectionStatus"], "cooling_down", "{verdict}: {a}");
        let left = a["cooldownRemainingMs"].as_u64().unwrap();
        assert!((250_000..=300_000).contains(&left), "{verdict}: {a}");
    }
}

/// CL-10: a spent budget is not asked for again before it resets.
#[tokio::test]
async fn a_spent_budget_keeps_the_lane_closed() {
    for name in ["slow-budget-reset", "7d-reset"] {
        let world = start(&lane()).await;
        world.accepted().await;
        let later = epoch(10 * 86_400);
        let reply = limit(&[("slow-status", "budget_exhausted"), (name, &later)]);
        world.next(reply.header("retry-after", "1")).await;
        world.lane("idle").await;
        world.node.connection_becomes("a", "healthy").await;
        let before = world.upstream.count("a");
        world.upstream.script("a", [wall(), served("active")]);
        let answer = ask(&world.node).await;
        assert_eq!(lanes(&world.upstream)[before..], [false], "{name}");
        assert_eq!(answer.status, 429, "{name}");
    }
}

/// CL-11: paid usage beats the lane, whatever the status.
#[tokio::test]
async fn extra_usage_ends_the_lane() {
    let verdict = [("slow-status", "ineligible"), ("overage-in-use", "true")];
    let world = start(&lane()).await;
    world.accepted().await;
    let (answer, slow) = world.next(unified(ok(), &verdict)).await;
    answer.expect_status(200);
    assert!(slow);
    world.lane("idle").await;
    let (answer, slow) = world.next(ok()).await;
    answer.expect_status(200);
    assert!(!slow, "full speed again");
}

/// CL-15, and a refusal that says nothing of the lane.
#[tokio::test]
async fn another_limit_ends_the_lane_and_an_unclear_one_does_not() {
    for (headers, state) in [
        (vec![("representative-claim", "seven_day")], "idle"),
        (vec![("overage-status", "rejected")], "idle"),
        (vec![], "active"),
    ] {
        let world = start(&lane()).await;
        world.accepted().await;
        let reply = limit(&headers).header("retry-after", "1");
        let (answer, slow) = world.next(reply).await;
        assert_eq!(answer.status, 429, "{headers:?}: {}", answer.text());
        assert!(slow);
        world.lane(state).await;
        world.node.connection_becomes("a", "healthy").await;
        let (answer, slow) = world.next(ok()).await;
        answer.expect_status(200);
        assert_eq!(slow, state == "active", "{headers:?}");
    }
}

/// CL-13: requests that were on their way when the lane was taken ride it too,
/// and what else becomes of them says nothing of it.
#[tokio::test]
async fn requests_on_their_way_ride_the_lane_too() {
    let world = start(&lane()).await;
    let gate = Gate::closed();
    let held = || wall().behind(&gate);
    world
        .upstream
        .script("a", [held(), held(), held(), served("active")]);
    let asking = futures_util::future::join_all((0..3).map(|_| ask(&world.node)));
    let opening = async {
        world.upstream.request("a", 3).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(asking, opening);
    for answer in answers {
        answer.expect_status(200);
    }
    let mut asked = lanes(&world.upstream);
    asked.sort_unstable();
    assert_eq!(asked, [false, false, false, true, true, true]);
    let lane = world.lane("active").await;
    assert_eq!(lane["served"], 3, "{lane}");
}

#[tokio::test]
async fn numbers_that_are_none_are_ignored() {
    let world = start(&lane()).await;
    let odd = [
        ("slow-retry-after", "-3"),
        ("slow-max-wait", "soon"),
        ("slow-budget-reset", "-1"),
        ("5h-utilization", "17.5"),
        ("7d-reset", "99999999999999999999"),
    ];
    let reply = unified(wall(), &odd);
    let fine = unified(served("active"), &odd);
    world.upstream.script("a", [reply, fine]);
    ask(&world.node).await.expect_status(200);
    world.lane("active").await;
    let (answer, slow) = world.next(unified(served("active"), &odd)).await;
    answer.expect_status(200);
    assert!(slow);
}

/// A client must not take one account's limits for those of all.
#[tokio::test]
async fn the_plans_headers_are_not_the_clients() {
    let world = start(&lane()).await;
    let headers = [("status", "allowed_warning"), ("5h-utilization", "0.9")];
    world.upstream.script("a", [unified(ok(), &headers)]);
    let answer = ask(&world.node).await.expect_status(200);
    for name in answer.headers.keys() {
        assert!(!name.as_str().starts_with(UNIFIED), "{name}");
    }
}

/// A client that leaves while its request waits for the lane ends it.
#[tokio::test]
async fn a_client_that_leaves_waits_no_longer() {
    let world = start(&lane()).await;
    world.accepted().await;
    let busy = limit(&[("slow-status", "slot_busy"), ("slow-retry-after", "5")]);
    world.upstream.script("a", [busy]);
    let body = Dialect::Messages.request("claude/claude-x", false);
    let waiting = tokio::spawn(world.node.post("/v1/messages", &body).try_send());
    world.upstream.request("a", 3).await;
    waiting.abort();
    cluster_tests::wait::let_time_pass(
        Duration::from_millis(7_500),
        "the longest wait for the lane",
    )
    .await;
    assert_eq!(world.upstream.count("a"), 3);
    let a = world.node.connection("a").await;
    assert_eq!(a["connectionStatus"], "healthy", "{a}");
    assert_eq!(a["inFlight"], 0, "{a}");
}
