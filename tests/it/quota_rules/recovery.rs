//! An account that the preflight put to rest may come back early: when its
//! usage, asked for just now, shows that the window it rests for has begun
//! anew. Everything less than that leaves it at rest. Ids are of the table of
//! expected behaviour.
//!
//! Usage is asked for at most once a minute, so these tests take as long.

use std::time::Duration;

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::{Fate, Upstream};
use cluster_tests::wait::{eventually_within, let_time_pass};
use serde_json::{Value, json};

use super::{FIRST_S, Family, ask_for, now_ms, ok};

const FAMILY: Family = Family::Codex;
/// How long the first window lasts, s.
const WINDOW_S: u64 = 18_000;
/// Usage has been asked for by then, whenever the minute began.
const ASKED: Duration = Duration::from_secs(110);

/// Who serves, and who tells of usage.
struct World {
    upstream: Upstream,
    usage: Upstream,
}

impl World {
    async fn new() -> Self {
        let upstream = Upstream::start().await;
        upstream.script_all([Dialect::Responses.ok("pong")]);
        Self {
            upstream,
            usage: Upstream::start().await,
        }
    }

    /// These accounts, each with a combo of its name and one of its spark models.
    fn config(&self, accounts: &[&str]) -> Config {
        let url = format!("http://{}/backend/usage", self.usage.addr());
        let base = Config::new()
            .no_waiting()
            .resilience("quotaPreflight", json!({"enabled": true}))
            .provider_with(
                "codex",
                "responses",
                &self.upstream.url(),
                json!({"auth": "oauth", "usageUrl": url}),
            );
        accounts.iter().fold(base, |config, id| {
            let token = cluster_tests::config::upstream_key(id);
            let own = json!({"oauth": {"accessToken": token}});
            config
                .connection_with(id, "codex", own)
                .combo(id, &[&format!("codex/gpt-5@{id}")])
                .combo(
                    &format!("{id}-spark"),
                    &[&format!("codex/gpt-5.3-codex-spark@{id}")],
                )
        })
    }

    /// Has the preflight lock the account's scope: its first window is used up.
    async fn block(&self, node: &Node, id: &str) {
        let last = ok(FAMILY, [99, 10]);
        self.upstream
            .script(id, [last, Dialect::Responses.ok("pong")]);
        ask_for(node, FAMILY, id).await.expect_status(200);
        let before = self.upstream.count(id);
        let answer = ask_for(node, FAMILY, id).await;
        assert!(matches!(answer.status, 429 | 503), "{}", answer.text());
        assert_eq!(self.upstream.count(id), before, "{id}");
        assert!(locked(node, id).await, "{id}");
    }

    /// Waits until the usage of this account was asked for and told.
    async fn told(&self, id: &str) {
        let what = format!("the usage of {id} is told");
        eventually_within(ASKED, &what, || async {
            let first = self.usage.requests_of(id).into_iter().next()?;
            (first.fate() != Fate::Running).then_some(())
        })
        .await;
    }
}

async fn locked(node: &Node, id: &str) -> bool {
    let connection = node.connection(id).await;
    connection["lockouts"]
        .as_array()
        .is_some_and(|locks| !locks.is_empty())
}

async fn unlocks(node: &Node, id: &str) {
    let what = format!("{id} comes back early");
    eventually_within(ASKED, &what, || async {
        (!locked(node, id).await).then_some(())
    })
    .await;
}

/// A window as the usage tells of it.
fn window(used: f64, lasts_s: u64, after_s: u64) -> Value {
    json!({"used_percent": used, "limit_window_seconds": lasts_s,
        "reset_after_seconds": after_s, "reset_at": now_ms() / 1000 + after_s})
}

/// The first window has begun anew.
fn anew() -> Value {
    window(5.0, WINDOW_S, WINDOW_S)
}

fn week(used: f64) -> Value {
    window(used, 604_800, 500_000)
}

fn usage(first: &Value, second: &Value) -> Value {
    json!({"plan_type": "plus", "rate_limit": {"allowed": true, "limit_reached": false,
        "primary_window": first, "secondary_window": second}})
}

/// Usage that would do, but for one value.
fn but(pointer: &str, value: Value) -> Value {
    let mut told = usage(&anew(), &week(10.0));
    match pointer.rsplit_once('/') {
        Some((parent, key)) if value == json!("absent") => {
            let parent = told.pointer_mut(parent).unwrap();
            parent.as_object_mut().unwrap().remove(key).unwrap();
        }
        _ => *told.pointer_mut(pointer).unwrap() = value,
    }
    told
}

/// CCD-26, in every shape that it has.
#[tokio::test]
async fn usage_that_began_anew_ends_the_rest() {
    let world = World::new().await;
    let mut spark_is_full = usage(&anew(), &week(10.0));
    spark_is_full["additional_rate_limits"] = json!([{"limit_name": "GPT-5.3-Codex-Spark",
        "metered_feature": "codex_spark", "rate_limit": {"allowed": false,
            "limit_reached": true, "primary_window": window(100.0, WINDOW_S, 9_000),
            "secondary_window": null}}]);
    let cases = [
        ("one", usage(&anew(), &Value::Null)),
        ("two", usage(&anew(), &week(10.0))),
        // One percent more than the cutoff is headroom.
        (
            "tight",
            usage(&window(97.0, WINDOW_S, WINDOW_S), &week(97.0)),
        ),
        ("apart", spark_is_full),
    ];
    let ids = cases.each_ref().map(|(id, _)| *id);
    let node = Node::start(&world.config(&ids)).await;
    for (id, told) in &cases {
        world.usage.script(id, [Reply::json(200, told)]);
        // A lock of its spark models is none of this.
        let refused = Reply::limited(20_000);
        world.upstream.script(id, [refused]);
        ask_for(&node, FAMILY, &format!("{id}-spark")).await;
        let spark = node.connection(id).await["lockouts"].clone();
        assert_eq!(spark.as_array().unwrap().len(), 1, "{id}: {spark}");
        world.block(&node, id).await;
    }
    for id in ids {
        let what = format!("{id} comes back early");
        eventually_within(ASKED, &what, || async {
            let connection = node.connection(id).await;
            let locks = connection["lockouts"].as_array()?.len();
            assert!(locks > 0, "the spark lock went, too: {connection}");
            (locks == 1).then_some(())
        })
        .await;
        let seen = world.usage.request(id, 1).await;
        assert_eq!(seen.method, "GET");
        assert_eq!(seen.path, "/backend/usage");
        let before = world.upstream.count(id);
        ask_for(&node, FAMILY, id).await.expect_status(200);
        let spark = ask_for(&node, FAMILY, &format!("{id}-spark")).await;
        assert!(matches!(spark.status, 429 | 503), "{}", spark.text());
        assert_eq!(world.upstream.count(id), before + 1, "{id}");
    }
}

/// Usage that would do, but for what it says of itself.
fn flags(allowed: &Value, reached: &Value) -> Value {
    let mut told = usage(&anew(), &week(10.0));
    told["rate_limit"]["allowed"] = allowed.clone();
    told["rate_limit"]["limit_reached"] = reached.clone();
    told
}

/// Usage that shows something else, or not all of it.
fn less() -> Vec<(&'static str, Value)> {
    let first = "/rate_limit/primary_window";
    let at = |key: &str| format!("{first}/{key}");
    let absent = || json!("absent");
    let mut same = anew();
    same["reset_at"] = json!(now_ms() / 1000 + FIRST_S - 60);
    same["reset_after_seconds"] = json!(FIRST_S - 60);
    vec![
        ("earlier", usage(&same, &week(10.0))),
        (
            "longer",
            usage(&window(5.0, 604_800, WINDOW_S), &week(10.0)),
        ),
        (
            "full",
            usage(&window(99.0, WINDOW_S, WINDOW_S), &week(10.0)),
        ),
        (
            "cutoff",
            usage(&window(98.0, WINDOW_S, WINDOW_S), &week(10.0)),
        ),
        ("week", usage(&anew(), &week(99.0))),
        ("weekcut", usage(&anew(), &week(98.0))),
        ("reached", but("/rate_limit/limit_reached", json!(true))),
        ("disallowed", but("/rate_limit/allowed", json!(false))),
        ("flagless", flags(&Value::Null, &Value::Null)),
        ("flagword", flags(&json!("yes"), &json!("no"))),
        ("unused", but(&at("used_percent"), absent())),
        ("nullused", but(&at("used_percent"), Value::Null)),
        ("wordused", but(&at("used_percent"), json!("few"))),
        ("timeless", but(&at("reset_at"), absent())),
        ("nulltime", but(&at("reset_at"), Value::Null)),
        ("lastless", but(&at("limit_window_seconds"), absent())),
        ("gone", but(first, Value::Null)),
        ("nothing", json!({"plan_type": "plus"})),
        ("list", json!([])),
        (
            "weekless",
            but("/rate_limit/secondary_window/used_percent", Value::Null),
        ),
    ]
}

/// Answers that tell of no usage.
fn failures() -> Vec<(&'static str, Reply)> {
    let good = usage(&anew(), &week(10.0)).to_string();
    vec![
        ("down", Reply::error(503, "down")),
        ("limited", Reply::text(429, "application/json", &good)),
        ("refused", Reply::error(401, "invalid token")),
        ("html", Reply::text(200, "text/html", "<html>login</html>")),
        ("cut", Reply::text(200, "application/json", &good[..40])),
        (
            "huge",
            Reply::text(
                200,
                "application/json",
                &format!("{}{good}", " ".repeat(9_000_000)),
            ),
        ),
        // Older than half a minute when it comes.
        (
            "late",
            Reply::text(200, "application/json", &good).after_ms(31_000),
        ),
    ]
}

/// CCD-27: each of them leaves the rest as it is; and one for which there is no
/// origin, since its upstream refused it.
#[tokio::test]
async fn anything_less_leaves_it_at_rest() {
    let world = World::new().await;
    let told = less().into_iter();
    let mut cases: Vec<(&str, Reply)> = told
        .map(|(id, told)| (id, Reply::json(200, &told)))
        .collect();
    cases.extend(failures());
    let ids: Vec<&str> = cases.iter().map(|(id, _)| *id).collect();
    let all: Vec<&str> = ids.iter().copied().chain(["ordinary", "good"]).collect();
    let node = Node::start(&world.config(&all)).await;
    for (id, reply) in &cases {
        world.usage.script(id, [reply.clone()]);
    }
    for id in ["ordinary", "good"] {
        let good = usage(&anew(), &week(10.0));
        world.usage.script(id, [Reply::json(200, &good)]);
    }
    world.upstream.script("ordinary", [Reply::limited(9_000)]);
    ask_for(&node, FAMILY, "ordinary").await;
    assert!(locked(&node, "ordinary").await);
    for id in ids.iter().copied().chain(["good"]) {
        world.block(&node, id).await;
    }
    // Proves that what was told is acted on here.
    unlocks(&node, "good").await;
    for id in &ids {
        world.told(id).await;
    }
    let_time_pass(Duration::from_secs(1), "a recovery would show").await;
    let mut back = Vec::new();
    for id in &all {
        if *id != "good" && !locked(&node, id).await {
            back.push(*id);
        }
    }
    assert!(back.is_empty(), "came back early: {back:?}");
    // Nor does it say anything of the account.
    for id in &ids {
        let connection = node.connection(id).await;
        assert_eq!(
            connection["connectionStatus"], "healthy",
            "{id}: {connection}"
        );
    }
}

/// CCD-27: the policy is another one than when usage was asked for.
#[tokio::test]
async fn a_policy_that_changed_meanwhile_leaves_it_at_rest() {
    let world = World::new().await;
    let node = Node::start(&world.config(&["a", "unchanged"])).await;
    let gate = Gate::closed();
    let good = Reply::json(200, &usage(&anew(), &week(10.0)));
    world.usage.script("a", [good.clone().behind(&gate)]);
    world.usage.script("unchanged", [good]);
    for id in ["a", "unchanged"] {
        world.block(&node, id).await;
    }
    unlocks(&node, "unchanged").await;
    eventually_within(ASKED, "usage is asked for", || async {
        (world.usage.count("a") > 0).then_some(())
    })
    .await;
    let other = json!({"quotaPreflight": {"defaultThresholdPercent": 3}});
    let call = node.admin_call("PATCH", "/api/resilience").json(&other);
    call.send().await.expect_status(200);
    gate.open();
    let_time_pass(Duration::from_secs(2), "a recovery would show").await;
    assert!(locked(&node, "a").await);
}

/// Nobody's usage is asked for that does not rest for it, and an account at
/// rest is asked about at most once a minute.
#[tokio::test]
async fn usage_is_asked_for_seldom() {
    let world = World::new().await;
    let node = Node::start(&world.config(&["well", "refused", "blocked"])).await;
    world.usage.script_all([Reply::error(503, "down")]);
    world.upstream.script("refused", [Reply::limited(9_000)]);
    for id in ["well", "refused"] {
        ask_for(&node, FAMILY, id).await;
    }
    world.block(&node, "blocked").await;
    world.told("blocked").await;
    for _ in 0..20 {
        let answer = ask_for(&node, FAMILY, "blocked").await;
        assert!(matches!(answer.status, 429 | 503), "{}", answer.text());
    }
    let_time_pass(Duration::from_secs(20), "a second look would show").await;
    assert_eq!(world.usage.order(), ["blocked"]);
    let healthy = node.connection("well").await;
    assert_eq!(healthy["connectionStatus"], "healthy", "{healthy}");
}
