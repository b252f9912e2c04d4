//! The gate in front of rotation: an operator decides which classes of plain
//! failures make a request move on to the next connection at all, and after how
//! many. Where it says no, the request ends with its upstream's failure and
//! nothing rests.

mod checked;
mod counts;
mod rests;
mod shared;
mod streams;
mod together;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::{Finish, Gate, Reply};
use cluster_tests::upstream::{Refused, Upstream};
use serde_json::{Map, Value, json};

/// The switch of all of it.
const MASTER: &str = "OMNIROUTE_ROTATION_ENABLED";

/// The first step of the ladder, ms: longer than a look at a state may take.
const LADDER_MS: u64 = 30_000;

/// Where an operator says it.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// In the environment, for all connections.
    Variable,
    /// In one connection's own overrides.
    Override,
}

const WAYS: [Way; 2] = [Way::Variable, Way::Override];

/// One setting of the gate by both of its names.
#[derive(Clone, Debug)]
struct Knob {
    variable: String,
    key: String,
    value: Value,
}

/// Whether a class rotates.
fn on(class: &str, value: bool) -> Knob {
    Knob {
        variable: format!("OMNIROUTE_ROTATE_ON_{class}"),
        key: format!("rotateOn{class}"),
        value: json!(value),
    }
}

/// After how many failures of a class.
fn threshold(class: &str, value: u64) -> Knob {
    Knob {
        variable: format!("OMNIROUTE_ROTATE_{class}_THRESHOLD"),
        key: format!("error{class}Threshold"),
        value: json!(value),
    }
}

/// Within how many seconds.
fn window(class: &str, value: u64) -> Knob {
    Knob {
        variable: format!("OMNIROUTE_ROTATE_{class}_WINDOW_SECONDS"),
        key: format!("error{class}WindowSeconds"),
        value: json!(value),
    }
}

/// How many seconds a limit without an announcement rests.
fn reset_seconds(value: u64) -> Knob {
    Knob {
        variable: "OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS".into(),
        key: "rateLimitResetSeconds".into(),
        value: json!(value),
    }
}

fn overrides(knobs: &[Knob]) -> Value {
    let pairs = knobs
        .iter()
        .map(|knob| (knob.key.clone(), knob.value.clone()));
    json!({"rotationOverrides": Value::Object(pairs.collect::<Map<_, _>>())})
}

fn with_variables(setup: Setup, knobs: &[Knob]) -> Setup {
    knobs.iter().fold(setup, |setup, knob| {
        setup.env(&knob.variable, &knob.value.to_string())
    })
}

/// `a`, then `b`, which always serves; `own` goes into the data of `a`.
fn pair(upstream: &Upstream, own: &Value) -> Config {
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    Config::new()
        .no_waiting()
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(LADDER_MS))
        .provider("acme", "openai", &upstream.url())
        .connection_with(
            "a",
            "acme",
            json!({"priority": 1, "providerSpecificData": own}),
        )
        .connection_with("b", "acme", json!({"priority": 2}))
}

async fn start(upstream: &Upstream, way: Way, knobs: &[Knob]) -> Node {
    match way {
        Way::Variable => {
            let setup = Setup::with(&pair(upstream, &json!({})));
            with_variables(setup, knobs).start().await
        }
        Way::Override => Node::start(&pair(upstream, &overrides(knobs))).await,
    }
}

async fn ask(node: &Node) -> Answer {
    ask_for(node, "acme/m").await
}

async fn ask_for(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

async fn reset(node: &Node, id: &str) {
    let call = node.admin_call("POST", &format!("/api/connections/{id}/reset"));
    call.send().await.expect_status(200);
}

/// Nothing is held against it.
fn expect_untouched(a: &Value, what: &str) {
    assert_eq!(a["connectionStatus"], "healthy", "{what}: {a}");
    assert_eq!(a["rateLimitedUntil"], Value::Null, "{what}: {a}");
    assert_eq!(a["backoffLevel"], 0, "{what}: {a}");
    let locks = a["lockouts"].as_array().map_or(0, Vec::len);
    assert_eq!(locks, 0, "{what}: {a}");
}

/// The request ends with the failure of `a`, of which nothing remains.
async fn stays(node: &Node, upstream: &Upstream, what: &str) -> Answer {
    let before = (upstream.count("a"), upstream.count("b"));
    let answer = ask(node).await;
    assert!(answer.status >= 400, "{what}: {}", answer.text());
    assert!(upstream.count("a") > before.0, "{what}: not asked");
    assert_eq!(upstream.count("b"), before.1, "{what}: it moved on");
    expect_untouched(&node.connection("a").await, what);
    answer
}

/// The request goes on from `a` to `b`.
async fn moves(node: &Node, upstream: &Upstream, what: &str) -> Value {
    let before = (upstream.count("a"), upstream.count("b"));
    let answer = ask(node).await;
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert!(upstream.count("a") > before.0, "{what}: not asked");
    assert_eq!(upstream.count("b"), before.1 + 1, "{what}");
    node.connection("a").await
}

/// Like [`moves`], and `a` rests after it.
async fn moves_and_rests(node: &Node, upstream: &Upstream, what: &str) -> Value {
    let a = moves(node, upstream, what).await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{what}: {a}");
    a
}

/// Plain failures of each class.
fn failures(class: &str) -> Vec<Reply> {
    match class {
        "429" => vec![Reply::error(429, "slow down"), Reply::limited(600)],
        "502" => vec![
            Reply::error(502, "boom"),
            Reply::text(502, "text/html", "<html>bad gateway</html>"),
            // No answer at all.
            Reply::nothing(Finish::Reset),
            Reply::nothing(Finish::Close),
        ],
        "500" => [500, 503, 504, 529]
            .map(|status| Reply::error(status, "boom"))
            .to_vec(),
        "400" => vec![Reply::error(400, "the colour must be green")],
        other => panic!("no class {other}"),
    }
}

const CLASSES: [&str; 3] = ["429", "500", "502"];

#[tokio::test]
async fn without_a_word_from_the_operator_all_move_on_but_400() {
    let upstream = Upstream::start().await;
    let node = start(&upstream, Way::Variable, &[]).await;
    for class in CLASSES {
        for reply in failures(class) {
            let what = format!("{reply:?}");
            upstream.script("a", [reply]);
            moves(&node, &upstream, &what).await;
            reset(&node, "a").await;
        }
    }
    upstream.script("a", failures("400"));
    let answer = stays(&node, &upstream, "400").await;
    assert_eq!(answer.status, 400, "{}", answer.text());
}

/// A class that is off ends the request; the others go on as they did.
async fn one_class_off(way: Way) {
    for off in CLASSES {
        let upstream = Upstream::start().await;
        let node = start(&upstream, way, &[on(off, false)]).await;
        for class in CLASSES {
            for reply in failures(class) {
                let what = format!("{way:?}, {off} is off: {reply:?}");
                upstream.script("a", [reply]);
                if class != off {
                    moves(&node, &upstream, &what).await;
                    reset(&node, "a").await;
                    continue;
                }
                let answer = stays(&node, &upstream, &what).await;
                let told = answer.status;
                let fits = if off == "429" {
                    told == 429
                } else {
                    told >= 500
                };
                assert!(fits, "{what}: {}", answer.text());
                // And it is asked again at once.
                stays(&node, &upstream, &what).await;
            }
        }
    }
}

#[tokio::test]
async fn a_class_that_a_variable_switched_off_ends_the_request() {
    one_class_off(Way::Variable).await;
}

#[tokio::test]
async fn a_class_that_a_connection_switched_off_ends_the_request() {
    one_class_off(Way::Override).await;
}

#[tokio::test]
async fn the_master_switch_is_for_all_of_them() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&pair(&upstream, &json!({}))).env(MASTER, "false");
    let node = setup.start().await;
    for class in CLASSES {
        for reply in failures(class) {
            let what = format!("{reply:?}");
            upstream.script("a", [reply]);
            stays(&node, &upstream, &what).await;
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_or_too_slow_is_of_class_502() {
    let never = Gate::closed();
    for (class, goes_on) in [("502", false), ("500", true)] {
        let (upstream, refused) = (Upstream::start().await, Refused::new());
        let slow = json!({"timeouts": {"connectMs": 100, "totalMs": 400}});
        let config = pair(&upstream, &json!({}))
            .provider("gone", "openai", &refused.url())
            .provider_with("late", "openai", &upstream.url(), slow)
            .connection("gone-a", "gone")
            .connection("late-a", "late")
            .combo("gone-first", &["gone/m", "acme/m@b"])
            .combo("late-first", &["late/m", "acme/m@b"]);
        upstream.script("late-a", [Dialect::Chat.ok("late").behind(&never)]);
        let setup = with_variables(Setup::with(&config), &[on(class, false)]);
        let node = setup.start().await;
        for (combo, id) in [("gone-first", "gone-a"), ("late-first", "late-a")] {
            let what = format!("{combo}, {class} is off");
            let answer = ask_for(&node, combo).await;
            let connection = node.connection(id).await;
            if goes_on {
                assert_eq!(answer.status, 200, "{what}: {}", answer.text());
                continue;
            }
            assert!(answer.status >= 500, "{what}: {}", answer.text());
            assert_eq!(upstream.count("b"), 0, "{what}: it moved on");
            expect_untouched(&connection, &what);
        }
    }
}

/// What one connection says goes before what the environment says.
#[tokio::test]
async fn an_override_beats_the_variable() {
    let upstream = Upstream::start().await;
    let config = pair(&upstream, &overrides(&[on("429", true)]));
    let setup = with_variables(Setup::with(&config), &[on("429", false)]);
    let node = setup.start().await;
    upstream.script("a", failures("429"));
    upstream.script("b", failures("429"));
    // From a to b, and no further.
    let answer = ask(&node).await;
    assert_eq!(answer.status, 429, "{}", answer.text());
    assert_eq!(upstream.order(), ["a", "b"]);
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{a}");
    expect_untouched(&node.connection("b").await, "b");
}

/// A combo ends there, too, and nobody waits for what does not rest.
#[tokio::test]
async fn no_next_target_no_lock_and_no_wait() {
    let upstream = Upstream::start().await;
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    upstream.script("a", [Reply::limited(600)]);
    let quota = json!({"perModelQuota": true});
    let config = Config::new()
        .provider_with("acme", "openai", &upstream.url(), quota)
        .provider("backup", "openai", &upstream.url())
        .connection("a", "acme")
        .connection("b", "backup")
        .combo("both", &["acme/m", "backup/m"]);
    let setup = with_variables(Setup::with(&config), &[on("429", false)]);
    let node = setup.start().await;
    for model in ["both", "acme/m"] {
        let answer = ask_for(&node, model).await.expect_status(429);
        assert!(answer.took.as_secs() < 20, "{model}: {:?}", answer.took);
        expect_untouched(&node.connection("a").await, model);
    }
    assert_eq!(upstream.order(), ["a", "a"]);
}

/// The provider's breaker counts what it counts, whoever may rotate.
#[tokio::test]
async fn the_breaker_still_counts() {
    let upstream = Upstream::start().await;
    let config = pair(&upstream, &json!({}))
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("providerBreaker.apikey.resetTimeoutMs", json!(600_000));
    let setup = Setup::with(&config).env(MASTER, "false");
    let node = setup.start().await;
    upstream.script("a", [Reply::error(429, "slow down")]);
    ask(&node).await.expect_status(429);
    let a = node.connection("a").await;
    assert_eq!(a["breaker"]["state"], "CLOSED", "{a}");
    upstream.script("a", [Reply::error(503, "down")]);
    assert!(ask(&node).await.status >= 500);
    let a = node.connection("a").await;
    assert_eq!(a["breaker"]["state"], "OPEN", "{a}");
    assert_eq!(a["rateLimitedUntil"], Value::Null, "{a}");
    assert_eq!(a["backoffLevel"], 0, "{a}");
    let sent = upstream.requests().len();
    ask(&node).await.expect_status(503);
    assert_eq!(upstream.requests().len(), sent);
}
