//! Limits that a provider counts by address: who leaves by the same one rests
//! together. The echo endpoint that says which address that is, is a scripted
//! server; proxies lead to one of their own, so that each has its own address.

mod cluster;

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::proxy::{Kind, Proxy};
use cluster_tests::reply::{Gate, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{eventually, let_time_pass};
use serde_json::{Value, json};

pub(crate) const HERE: &str = "203.0.113.7";
const THERE: &str = "198.51.100.9";

/// An upstream, and the echo endpoint that the node reaches directly.
pub(crate) struct World {
    pub(crate) upstream: Upstream,
    pub(crate) echo: Upstream,
}

/// An echo endpoint that says this.
pub(crate) async fn echo(ip: &str) -> Upstream {
    let echo = Upstream::start().await;
    echo.script_all([Reply::json(200, &json!({"ip": ip}))]);
    echo
}

impl World {
    pub(crate) async fn new() -> Self {
        let upstream = Upstream::start().await;
        upstream.script_all([Dialect::Chat.ok("pong")]);
        Self {
            upstream,
            echo: echo(HERE).await,
        }
    }

    /// The family and the echo endpoint, without connections; ladders are long
    /// enough to be looked at.
    pub(crate) fn config(&self) -> Config {
        family(&self.upstream, &self.echo)
    }

    /// A proxy behind which the world sees `ip`, and its echo endpoint.
    async fn proxy(&self, ip: &str) -> (Proxy, Upstream) {
        let (proxy, face) = (Proxy::start(Kind::Http).await, echo(ip).await);
        proxy.lead(self.echo.addr(), face.addr());
        (proxy, face)
    }
}

/// The family's providers at `upstream`, and the echo endpoint.
pub(crate) fn family(upstream: &Upstream, echo: &Upstream) -> Config {
    let keyed = json!({"auth": "apiKey", "authHeader": "bearer"});
    let url = upstream.url();
    ["opencode", "opencode-go", "opencode-zen", "openai"]
        .into_iter()
        .fold(Config::new().no_waiting(), |config, id| {
            config.provider_with(id, "openai", &url, keyed.clone())
        })
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(60_000))
        .set(
            &["settings", "egress", "echoUrl"],
            json!(format!("http://{}/ip?format=json", echo.addr())),
        )
}

/// Connections of `opencode` in this order, each with a combo of its name.
pub(crate) fn members(config: Config, ids: &[&str]) -> Config {
    ids.iter().enumerate().fold(config, |config, (at, id)| {
        member(config, id, "opencode", json!({"priority": at + 1}))
    })
}

fn member(config: Config, id: &str, provider: &str, more: Value) -> Config {
    config
        .connection_with(id, provider, more)
        .combo(id, &[&format!("{provider}/m@{id}")])
}

pub(crate) async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

/// Uses a connection until its address is known to be `ip`.
pub(crate) async fn observed(node: &Node, id: &str, ip: &str) {
    eventually("the address is known", || async {
        ask(node, id).await.expect_status(200);
        (node.connection(id).await["egressIp"] == ip).then_some(())
    })
    .await;
}

fn limit() -> Reply {
    Reply::error(429, "rate limit reached")
}

async fn expect_state(node: &Node, id: &str, status: &str) -> Value {
    let one = node.connection(id).await;
    assert_eq!(one["connectionStatus"], status, "{one}");
    one
}

/// Everybody's address is known, then `a` is refused with `reply`.
async fn refused(world: &World, node: &Node, ids: &[&str], reply: Reply) {
    for id in ids {
        observed(node, id, HERE).await;
    }
    world.upstream.script("a", [reply]);
    ask(node, "a").await;
}

/// EGR-01, EGR-12.
#[tokio::test]
async fn all_that_leave_by_one_address_rest_together() {
    let world = World::new().await;
    let node = Node::start(&members(world.config(), &["a", "b", "c"])).await;
    refused(&world, &node, &["a", "b", "c"], limit()).await;
    let all = node.admin_get("/api/resilience/connections").await;
    let mut rows = all["connections"].as_array().unwrap().clone();
    rows.retain(|one| one["provider"] == "opencode");
    assert_eq!(rows.len(), 3, "{all}");
    let until = rows[0]["rateLimitedUntil"].clone();
    for one in &rows {
        assert_eq!(one["connectionStatus"], "cooling_down", "{one}");
        assert_eq!(one["testStatus"], "unavailable", "{one}");
        assert_eq!(one["errorCode"], 429, "{one}");
        assert_eq!(one["egressIp"], HERE, "{one}");
        assert_eq!(one["lockouts"], json!([]), "{one}");
        let left = one["cooldownRemainingMs"].as_u64().unwrap();
        assert!((50_000..=60_000).contains(&left), "{one}");
        let apart = one["rateLimitedUntil"].as_u64().unwrap();
        let apart = apart.abs_diff(until.as_u64().unwrap());
        assert!(apart <= 1_000, "{all}");
        let level = u64::from(one["id"] == "a");
        assert_eq!(one["backoffLevel"], level, "{one}");
    }
}

/// The siblings rest before the next pick of the very request that was refused.
#[tokio::test]
async fn the_refused_request_asks_no_sibling() {
    let world = World::new().await;
    let config = members(world.config(), &["a", "b", "c"]).combo("any", &["opencode/m"]);
    let node = Node::start(&config).await;
    for id in ["a", "b", "c"] {
        observed(&node, id, HERE).await;
    }
    let before = world.upstream.requests().len();
    world.upstream.script("a", [limit()]);
    let answer = ask(&node, "opencode/m").await.expect_status(429);
    assert!((50..=60).contains(&answer.retry_after().unwrap()));
    assert_eq!(world.upstream.order()[before..], ["a"]);
    let trace = node.trace(&answer).await;
    let text = trace["excluded"].to_string();
    assert!(text.contains("\"b\"") && text.contains("\"c\""), "{trace}");
    ask(&node, "any").await.expect_status(503);
    assert_eq!(world.upstream.requests().len(), before + 1);
}

/// EGR-11: from a combo too, and it is the connection that rests.
#[tokio::test]
async fn a_combo_rests_the_connection_and_not_its_model() {
    let world = World::new().await;
    let config = members(world.config(), &["a", "b"])
        .connection("other", "openai")
        .combo("chain", &["opencode/m@a", "opencode/m@b", "openai/m@other"]);
    let node = Node::start(&config).await;
    for id in ["a", "b"] {
        observed(&node, id, HERE).await;
    }
    let before = world.upstream.requests().len();
    world.upstream.script("a", [limit()]);
    let answer = ask(&node, "chain").await.expect_status(200);
    assert_eq!(answer.header("x-omniroute-connection"), Some("other"));
    assert_eq!(world.upstream.order()[before..], ["a", "other"]);
    for id in ["a", "b"] {
        let one = expect_state(&node, id, "cooling_down").await;
        assert_eq!(one["lockouts"], json!([]), "{one}");
    }
}

/// EGR-03.
#[tokio::test]
async fn other_refusals_are_the_accounts_own() {
    for reply in [
        Reply::error(402, "quota exceeded"),
        Reply::error(403, "quota exceeded"),
        Reply::error(500, "quota exceeded"),
        Reply::error(401, "rate limit"),
    ] {
        let what = format!("{reply:?}");
        let world = World::new().await;
        let node = Node::start(&members(world.config(), &["a", "b"])).await;
        refused(&world, &node, &["a", "b"], reply).await;
        let b = node.connection("b").await;
        assert_eq!(b["connectionStatus"], "healthy", "{what}: {b}");
        assert_eq!(b["lastErrorType"], Value::Null, "{what}: {b}");
        ask(&node, "b").await.expect_status(200);
    }
}

/// EGR-04.
#[tokio::test]
async fn who_knows_no_address_rests_alone() {
    for reply in [
        Reply::error(500, "down"),
        Reply::text(200, "text/html", "<html>Sign in</html>"),
        Reply::json(200, &json!({"ip": "not an address"})),
        Reply::text(200, "text/plain", ""),
    ] {
        let what = format!("{reply:?}");
        let world = World::new().await;
        world.echo.script_all([reply]);
        let node = Node::start(&members(world.config(), &["a", "b"])).await;
        for id in ["a", "b"] {
            ask(&node, id).await.expect_status(200);
        }
        eventually("the address was asked for", || async {
            (!world.echo.requests().is_empty()).then_some(())
        })
        .await;
        world.upstream.script("a", [limit()]);
        ask(&node, "a").await.expect_status(429);
        expect_state(&node, "a", "cooling_down").await;
        let b = expect_state(&node, "b", "healthy").await;
        assert_eq!(b["egressIp"], Value::Null, "{what}: {b}");
    }
}

/// EGR-05.
#[tokio::test]
async fn an_end_is_not_overwritten() {
    let world = World::new().await;
    let node = Node::start(&members(world.config(), &["a", "b", "c"])).await;
    for id in ["a", "b", "c"] {
        observed(&node, id, HERE).await;
    }
    let banned = Reply::error(403, "your account has been suspended");
    world.upstream.script("b", [banned]);
    ask(&node, "b").await;
    let before = expect_state(&node, "b", "terminal").await;
    world.upstream.script("a", [limit()]);
    ask(&node, "a").await;
    expect_state(&node, "c", "cooling_down").await;
    let after = expect_state(&node, "b", "terminal").await;
    for field in ["testStatus", "rateLimitedUntil", "lastErrorAt", "errorCode"] {
        assert_eq!(before[field], after[field], "{field}: {after}");
    }
}

/// EGR-07, EGR-08, and the one that only shares the rules.
#[tokio::test]
async fn the_family_is_data_and_others_are_left_alone() {
    let world = World::new().await;
    let none = || json!({});
    let config = members(world.config(), &["a"]);
    let config = member(config, "go", "opencode-go", none());
    let config = member(config, "zen", "opencode-zen", none());
    let config = member(config, "maker", "openai", none());
    let node = Node::start(&config).await;
    for id in ["a", "go"] {
        observed(&node, id, HERE).await;
    }
    for id in ["zen", "maker"] {
        ask(&node, id).await.expect_status(200);
    }
    world.upstream.script("a", [limit()]);
    ask(&node, "a").await;
    expect_state(&node, "go", "cooling_down").await;
    for id in ["zen", "maker"] {
        expect_state(&node, id, "healthy").await;
        ask(&node, id).await.expect_status(200);
    }
    // And a refusal of one that is not in it is that one's own.
    let world = World::new().await;
    let config = members(world.config(), &["a"]);
    let node = Node::start(&member(config, "zen", "opencode-zen", none())).await;
    observed(&node, "a", HERE).await;
    world.upstream.script("zen", [limit()]);
    ask(&node, "zen").await;
    expect_state(&node, "a", "healthy").await;
}

/// EGR-09. Nobody needs to know the address of one that never cools.
#[tokio::test]
async fn a_connection_that_never_cools_takes_nobody_along() {
    let never = |priority: u8| json!({"priority": priority, "disableCooling": true});
    let rests = |priority: u8| json!({"priority": priority});
    for (of_a, of_b, after) in [
        (never(1), rests(2), ["healthy", "healthy"]),
        // Nor is it taken along.
        (rests(1), never(2), ["cooling_down", "healthy"]),
    ] {
        let world = World::new().await;
        let config = member(world.config(), "a", "opencode", of_a);
        let node = Node::start(&member(config, "b", "opencode", of_b)).await;
        for id in ["a", "b"] {
            ask(&node, id).await.expect_status(200);
        }
        let known = if after[0] == "healthy" { "b" } else { "a" };
        observed(&node, known, HERE).await;
        world.upstream.script("a", [limit()]);
        ask(&node, "a").await.expect_status(429);
        for (id, status) in ["a", "b"].into_iter().zip(after) {
            expect_state(&node, id, status).await;
        }
    }
}

/// EGR-13, and the setting that says the same.
#[tokio::test]
async fn it_can_be_switched_off_or_given_another_family() {
    let variable = "OMNIROUTE_EGRESS_IP_LOCK_PROVIDERS";
    for (value, setting, b) in [
        (Some("none"), None, "healthy"),
        (Some("off"), None, "healthy"),
        (Some("false"), None, "healthy"),
        (Some("0"), None, "healthy"),
        (Some(""), None, "cooling_down"),
        (Some(" OpenCode , x"), None, "cooling_down"),
        (Some("openai"), None, "healthy"),
        (None, Some(json!([])), "healthy"),
        (None, Some(json!(["openai"])), "healthy"),
        (None, Some(json!(["opencode"])), "cooling_down"),
        (None, Some(Value::Null), "cooling_down"),
        // What the file says goes before the variable.
        (Some("none"), Some(json!(["opencode"])), "cooling_down"),
    ] {
        let what = format!("{value:?} {setting:?}");
        let world = World::new().await;
        let mut config = members(world.config(), &["a", "b"]);
        if let Some(list) = setting {
            config = config.set(&["settings", "egress", "lockProviders"], list);
        }
        let setup = Setup::with(&config);
        let setup = match value {
            Some(value) => setup.env(variable, value),
            None => setup,
        };
        let node = setup.start().await;
        for id in ["a", "b"] {
            ask(&node, id).await.expect_status(200);
        }
        if b == "cooling_down" {
            for id in ["a", "b"] {
                observed(&node, id, HERE).await;
            }
        } else {
            let_time_pass(Duration::from_millis(300), "an address would be known").await;
            for id in ["a", "b"] {
                ask(&node, id).await.expect_status(200);
            }
        }
        world.upstream.script("a", [limit()]);
        ask(&node, "a").await.expect_status(429);
        let one = node.connection("b").await;
        assert_eq!(one["connectionStatus"], b, "{what}: {one}");
    }
}

/// Of two waits the longer one holds, whoever was first.
#[tokio::test]
async fn the_longer_of_two_waits_holds() {
    for (of_b, of_a) in [(600_u64, 60), (60, 600)] {
        let world = World::new().await;
        // A refusal that takes nobody along, so that `a` can still be asked.
        let rule = json!({"status": 403, "match": "rest for a while", "scope": "connection",
            "reason": "quota_exhausted", "cooldownMs": of_b * 1000});
        let config = members(world.config(), &["a", "b"]).set(
            &["settings", "providerErrorRules", "opencode"],
            json!([rule]),
        );
        let node = Node::start(&config).await;
        for id in ["a", "b"] {
            observed(&node, id, HERE).await;
        }
        let own = Reply::error(403, "rest for a while");
        world.upstream.script("b", [own]);
        ask(&node, "b").await;
        expect_state(&node, "b", "cooling_down").await;
        expect_state(&node, "a", "healthy").await;
        world.upstream.script("a", [Reply::limited(of_a)]);
        ask(&node, "a").await.expect_status(429);
        let b = expect_state(&node, "b", "cooling_down").await;
        let left = b["cooldownRemainingMs"].as_u64().unwrap();
        assert!((550_000..=600_000).contains(&left), "{of_b} {of_a}: {b}");
    }
}

/// By other addresses others go on; by the same one they rest, however they
/// come to it.
#[tokio::test]
async fn proxies_decide_by_which_address_an_account_leaves() {
    let world = World::new().await;
    let (same, _same_face) = world.proxy(HERE).await;
    let (other, _other_face) = world.proxy(THERE).await;
    let via = |proxy: &Proxy| json!({"proxyUrl": proxy.url()});
    let config = member(world.config(), "a", "opencode", json!({}));
    let config = member(config, "same", "opencode", via(&same));
    let config = member(config, "other", "opencode", via(&other));
    let node = Node::start(&config).await;
    for (id, ip) in [("a", HERE), ("same", HERE), ("other", THERE)] {
        observed(&node, id, ip).await;
    }
    world.upstream.script("a", [limit()]);
    ask(&node, "a").await.expect_status(429);
    expect_state(&node, "same", "cooling_down").await;
    expect_state(&node, "other", "healthy").await;
    ask(&node, "other").await.expect_status(200);
}

/// EGR-15: the latest observation counts, not any of the last day.
#[tokio::test]
async fn who_has_moved_to_another_address_is_left_alone() {
    let world = World::new().await;
    let (proxy, face) = world.proxy(HERE).await;
    let config = member(world.config(), "a", "opencode", json!({}))
        .set(&["settings", "egress", "cacheMs"], json!(1_000));
    let via = json!({"proxyUrl": proxy.url()});
    let node = Node::start(&member(config, "b", "opencode", via)).await;
    observed(&node, "a", HERE).await;
    observed(&node, "b", HERE).await;
    face.script_all([Reply::json(200, &json!({"ip": THERE}))]);
    observed(&node, "b", THERE).await;
    world.upstream.script("a", [limit()]);
    ask(&node, "a").await.expect_status(429);
    expect_state(&node, "b", "healthy").await;
}

/// EGR-16: one question for each way out, as long as its answer is fresh.
#[tokio::test]
async fn the_address_is_asked_for_once_for_each_way_out() {
    let world = World::new().await;
    let (proxy, face) = world.proxy(THERE).await;
    let config = members(world.config(), &["a", "b"]);
    let via = json!({"proxyUrl": proxy.url()});
    let node = Node::start(&member(config, "far", "opencode", via)).await;
    let herd = (0..30).map(|n| ask(&node, ["a", "b", "far"][n % 3]));
    for answer in futures_util::future::join_all(herd).await {
        answer.expect_status(200);
    }
    for (id, ip) in [("a", HERE), ("b", HERE), ("far", THERE)] {
        observed(&node, id, ip).await;
    }
    assert_eq!(world.echo.requests().len(), 1, "directly");
    assert_eq!(face.requests().len(), 1, "by the proxy");
    // Who is asked learns nothing of the accounts.
    let seen = world.echo.requests();
    assert_eq!(
        (seen[0].method.as_str(), seen[0].path.as_str()),
        ("GET", "/ip?format=json")
    );
    for name in ["authorization", "x-api-key", "cookie"] {
        assert_eq!(seen[0].header(name), None, "{name}");
    }
}

#[tokio::test]
async fn an_answer_that_is_old_is_asked_for_again() {
    let world = World::new().await;
    let config =
        members(world.config(), &["a"]).set(&["settings", "egress", "cacheMs"], json!(1_000));
    let node = Node::start(&config).await;
    observed(&node, "a", HERE).await;
    world
        .echo
        .script_all([Reply::text(200, "text/plain", &format!("{THERE}\n"))]);
    // As plain text, which is an answer too.
    observed(&node, "a", THERE).await;
    let six = "2001:db8::7";
    world
        .echo
        .script_all([Reply::json(200, &json!({"ip": six}))]);
    observed(&node, "a", six).await;
}

/// Nobody waits for an echo endpoint.
#[tokio::test]
async fn a_silent_echo_endpoint_holds_nobody_up() {
    let world = World::new().await;
    let never = Gate::closed();
    let late = Reply::json(200, &json!({"ip": HERE})).behind(&never);
    world.echo.script_all([late]);
    let node = Node::start(&members(world.config(), &["a", "b"])).await;
    for _ in 0..5 {
        for id in ["a", "b"] {
            let answer = ask(&node, id).await.expect_status(200);
            assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
        }
    }
    world.upstream.script("a", [limit()]);
    let answer = ask(&node, "a").await.expect_status(429);
    assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
    expect_state(&node, "b", "healthy").await;
}

#[tokio::test]
async fn addresses_outlive_a_restart() {
    let world = World::new().await;
    let mut node = Node::start(&members(world.config(), &["a", "b"])).await;
    for id in ["a", "b"] {
        observed(&node, id, HERE).await;
    }
    assert!(node.stop().await.success());
    let never = Gate::closed();
    let late = Reply::json(200, &json!({"ip": HERE})).behind(&never);
    world.echo.script_all([late]);
    let node = node.start_again().await;
    world.upstream.script("a", [limit()]);
    ask(&node, "a").await.expect_status(429);
    node.connection_becomes("b", "cooling_down").await;
}

/// A reset is a reset, and a limit that is over is over.
#[tokio::test]
async fn a_sibling_comes_back_by_a_reset_or_by_its_time() {
    let world = World::new().await;
    let node = Node::start(&members(world.config(), &["a", "b", "c"])).await;
    refused(&world, &node, &["a", "b", "c"], Reply::limited(3)).await;
    expect_state(&node, "b", "cooling_down").await;
    let reset = node.admin_call("POST", "/api/connections/b/reset");
    reset.send().await.expect_status(200);
    ask(&node, "b").await.expect_status(200);
    node.connection_becomes("c", "healthy").await;
    ask(&node, "c").await.expect_status(200);
    let c = node.connection("c").await;
    assert_eq!(c["backoffLevel"], 0, "{c}");
    // What was over stays over: nobody cools it again for the same refusal.
    let_time_pass(Duration::from_millis(500), "a late sweep would show").await;
    expect_state(&node, "c", "healthy").await;
}
