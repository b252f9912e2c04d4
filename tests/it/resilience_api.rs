//! `/api/resilience` and `/api/settings`: what holds is shown, what is saved
//! holds on every node at once, beats the file and survives; nothing is half
//! done.

mod bounds;
mod effects;

use cluster_tests::client::{Answer, Call};
use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::redis;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

const RESILIENCE: &str = "/api/resilience";
const SETTINGS: &str = "/api/settings";
const BOTH: [&str; 2] = [RESILIENCE, SETTINGS];

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url())
        .connection("a", "acme")
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

fn patch(node: &Node, path: &str, body: &Value) -> Call {
    node.admin_call("PATCH", path).json(body)
}

async fn save(node: &Node, path: &str, body: &Value) -> Value {
    let answer = patch(node, path, body).send().await.expect_status(200);
    let told = answer.json();
    assert_eq!(told["ok"], true, "{told}");
    told
}

/// What holds, and its revision.
async fn get(node: &Node, path: &str) -> (Value, String) {
    let answer = node.admin_call("GET", path).send().await.expect_status(200);
    let revision = answer.header("etag").expect("no ETag").to_owned();
    (answer.json(), revision)
}

fn base(settings: &Value) -> &Value {
    &settings["connectionCooldown"]["apikey"]["baseCooldownMs"]
}

fn base_of(ms: u64) -> Value {
    json!({"connectionCooldown": {"apikey": {"baseCooldownMs": ms}}})
}

async fn base_becomes(node: &Node, ms: u64) {
    eventually("the setting has arrived", || async {
        let (settings, _) = get(node, RESILIENCE).await;
        (*base(&settings) == ms).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_defaults_are_shown() {
    let node = Node::start(&Config::new()).await;
    let (shown, _) = get(&node, RESILIENCE).await;
    for (path, value) in [
        ("/connectionCooldown/oauth/baseCooldownMs", json!(5_000)),
        ("/connectionCooldown/apikey/baseCooldownMs", json!(3_000)),
        ("/connectionCooldown/local/baseCooldownMs", json!(2_000)),
        (
            "/connectionCooldown/oauth/useUpstreamRetryHints",
            json!(true),
        ),
        (
            "/connectionCooldown/apikey/useUpstreamRetryHints",
            json!(true),
        ),
        ("/connectionCooldown/oauth/maxBackoffSteps", json!(8)),
        ("/connectionCooldown/apikey/maxBackoffSteps", json!(5)),
        ("/providerBreaker/oauth/failureThreshold", json!(8)),
        ("/providerBreaker/oauth/degradationThreshold", json!(5)),
        ("/providerBreaker/oauth/resetTimeoutMs", json!(60_000)),
        ("/providerBreaker/apikey/failureThreshold", json!(12)),
        ("/providerBreaker/apikey/degradationThreshold", json!(7)),
        ("/providerBreaker/apikey/resetTimeoutMs", json!(30_000)),
        ("/providerBreaker/local/failureThreshold", json!(2)),
        ("/waitForCooldown/enabled", json!(true)),
        ("/waitForCooldown/maxRetries", json!(5)),
        ("/waitForCooldown/maxRetryWaitSec", json!(90)),
        ("/quotaShareConcurrencyLimit/enabled", json!(true)),
        ("/providerCooldown/enabled", json!(false)),
        ("/providerCooldown/minRetryCooldownMs", json!(5_000)),
        ("/providerCooldown/maxRetryCooldownMs", json!(300_000)),
    ] {
        assert_eq!(shown.pointer(path), Some(&value), "{path} of {shown}");
    }
    let (shown, _) = get(&node, SETTINGS).await;
    for (path, value) in [
        ("/modelLockout/enabled", json!(false)),
        (
            "/modelLockout/errorCodes",
            json!([403, 404, 429, 502, 503, 504]),
        ),
        ("/modelLockout/baseCooldownMs", json!(120_000)),
        ("/modelLockout/maxCooldownMs", json!(1_800_000)),
        ("/modelLockout/maxBackoffSteps", json!(10)),
        ("/modelLockout/useExponentialBackoff", json!(true)),
        ("/providerErrorRules", json!({})),
        ("/customBannedSignals", json!([])),
        ("/autoDisableBannedAccounts", json!(false)),
        ("/sessionAffinityTtlMs", json!(0)),
        ("/leases/ttlMs", json!(120_000)),
        ("/leases/handoverGraceMs", json!(2_000)),
        ("/expiredRetry/enabled", json!(true)),
        ("/expiredRetry/sweepMs", json!(60_000)),
        ("/expiredRetry/baseMs", json!(300_000)),
        ("/expiredRetry/maxRetries", json!(3)),
        ("/egress/cacheMs", json!(300_000)),
        ("/egress/timeoutMs", json!(6_000)),
        ("/egress/observationMaxAgeMs", json!(86_400_000)),
        ("/egress/lockProviders", Value::Null),
    ] {
        assert_eq!(shown.pointer(path), Some(&value), "{path} of {shown}");
    }
}

#[tokio::test]
async fn what_was_given_is_taken_back_whole() {
    let rule = json!([{"status": 404, "match": "withdrawn", "scope": "model"}]);
    let other = Config::new()
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(0))
        .resilience("connectionCooldown.oauth.maxBackoffSteps", json!(32))
        .resilience("providerBreaker.apikey.failureThreshold", json!(1))
        .resilience("waitForCooldown.maxRetries", json!(0))
        .resilience("waitForCooldown.maxRetryWaitSec", json!(300))
        .resilience(
            "providerCooldown",
            json!({"enabled": true, "minRetryCooldownMs": 3_600_000,
                "maxRetryCooldownMs": 86_400_000}),
        )
        .set(&["settings", "providerErrorRules", "acme"], rule)
        .set(
            &["settings", "customBannedSignals"],
            json!(["it was closed"]),
        )
        .set(&["settings", "sessionAffinityTtlMs"], json!(1_000))
        .set(&["settings", "modelLockout", "enabled"], json!(true));
    for config in [Config::new(), other] {
        let node = Node::start(&config).await;
        for path in BOTH {
            let (given, _) = get(&node, path).await;
            let taken = save(&node, path, &given).await;
            let (now, _) = get(&node, path).await;
            assert_eq!(now, given, "{path}");
            // The answer is what holds, besides the word.
            for (name, value) in given.as_object().unwrap() {
                assert_eq!(taken[name], *value, "{path}: {name}");
            }
        }
    }
}

#[tokio::test]
async fn a_part_changes_that_part_only() {
    let node = Node::start(&Config::new()).await;
    let (before, revision) = get(&node, RESILIENCE).await;
    let told = save(&node, RESILIENCE, &base_of(7_000)).await;
    assert_eq!(*base(&told), 7_000, "{told}");
    let (after, next) = get(&node, RESILIENCE).await;
    assert_ne!(revision, next, "the revision is the same");
    let mut wanted = before;
    wanted["connectionCooldown"]["apikey"]["baseCooldownMs"] = json!(7_000);
    assert_eq!(after, wanted);

    // And another part does not undo the first.
    let breaker = json!({"providerBreaker": {"oauth": {"failureThreshold": 20}}});
    save(&node, RESILIENCE, &breaker).await;
    wanted["providerBreaker"]["oauth"]["failureThreshold"] = json!(20);
    assert_eq!(get(&node, RESILIENCE).await.0, wanted);
}

#[tokio::test]
async fn what_was_saved_survives_a_crash_and_beats_the_file() {
    let config = |ms: u64, steps: u64| {
        Config::new()
            .resilience("connectionCooldown.apikey.baseCooldownMs", json!(ms))
            .resilience("connectionCooldown.apikey.maxBackoffSteps", json!(steps))
    };
    let mut node = Node::start(&config(4_000, 4)).await;
    let (shown, _) = get(&node, RESILIENCE).await;
    assert_eq!(*base(&shown), 4_000);
    save(&node, RESILIENCE, &base_of(7_000)).await;
    node.kill_9().await;
    let node = node.start_again().await;
    let (shown, _) = get(&node, RESILIENCE).await;
    assert_eq!(*base(&shown), 7_000, "forgotten");
    // The file goes on saying what nobody saved.
    let text = config(9_000, 2).to_yaml();
    std::fs::write(node.setup().file(), text).unwrap();
    let shown = eventually("the file is taken over", || async {
        let (shown, _) = get(&node, RESILIENCE).await;
        (shown["connectionCooldown"]["apikey"]["maxBackoffSteps"] == 2).then_some(shown)
    })
    .await;
    assert_eq!(*base(&shown), 7_000, "the file beat what was saved");
}

#[tokio::test]
async fn saved_beats_file_beats_variable_beats_default() {
    let threshold = |shown: &Value| shown["providerBreaker"]["apikey"]["failureThreshold"].clone();
    let variable = "OMNIROUTE_CIRCUIT_BREAKER_API_KEY_THRESHOLD";
    let node = Setup::with(&Config::new())
        .env(variable, "20")
        .start()
        .await;
    assert_eq!(threshold(&get(&node, RESILIENCE).await.0), 20);
    let config = Config::new().resilience("providerBreaker.apikey.failureThreshold", json!(30));
    let node = Setup::with(&config).env(variable, "20").start().await;
    assert_eq!(threshold(&get(&node, RESILIENCE).await.0), 30);
    let saved = json!({"providerBreaker": {"apikey": {"failureThreshold": 40}}});
    save(&node, RESILIENCE, &saved).await;
    assert_eq!(threshold(&get(&node, RESILIENCE).await.0), 40);
}

#[tokio::test]
async fn a_stale_edit_is_refused() {
    let node = Node::start(&Config::new()).await;
    for (path, body) in [
        (RESILIENCE, base_of(7_000)),
        (SETTINGS, json!({"sessionAffinityTtlMs": 7_000})),
    ] {
        let (_, revision) = get(&node, path).await;
        let call = || patch(&node, path, &body);
        let answer = call().header("if-match", &revision).send().await;
        let answer = answer.expect_status(200);
        let (saved, next) = get(&node, path).await;
        assert_eq!(answer.header("etag"), Some(next.as_str()), "{path}");
        assert_ne!(revision, next, "{path}");
        let stale = call().header("if-match", &revision).send().await;
        assert_eq!(stale.status, 412, "{path}: {}", stale.text());
        let nonsense = call().header("if-match", "\"nonsense\"").send().await;
        assert_eq!(nonsense.status, 412, "{path}: {}", nonsense.text());
        assert_eq!(get(&node, path).await, (saved, next), "{path}");
    }
}

#[tokio::test]
async fn of_two_edits_of_one_revision_one_is_taken() {
    let cluster = Cluster::start(2, config).await;
    let [one, two] = &cluster.nodes[..] else {
        panic!("two nodes");
    };
    for round in 0..5_u64 {
        let (_, revision) = eventually("both know the same", || async {
            let (of_one, of_two) = (get(one, RESILIENCE).await, get(two, RESILIENCE).await);
            (of_one == of_two).then_some(of_one)
        })
        .await;
        let edits = [(one, 10_000 + round), (two, 20_000 + round)];
        let [first, second] = edits.map(|(node, ms)| {
            let call = patch(node, RESILIENCE, &base_of(ms));
            call.header("if-match", &revision).send()
        });
        let (first, second) = tokio::join!(first, second);
        let mut statuses = [first.status, second.status];
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 412], "{} {}", first.text(), second.text());
        let won = if first.status == 200 {
            10_000 + round
        } else {
            20_000 + round
        };
        for node in &cluster.nodes {
            base_becomes(node, won).await;
        }
    }
}

/// Edits of different parts at the same time are both kept.
#[tokio::test]
async fn edits_without_a_revision_lose_nothing() {
    let cluster = Cluster::start(2, config).await;
    let breaker = |n: u64| json!({"providerBreaker": {"apikey": {"failureThreshold": n}}});
    for round in 0..5_u64 {
        let (first, second) = (base_of(10_000 + round), breaker(100 + round));
        let one = patch(&cluster.nodes[0], RESILIENCE, &first).send();
        let two = patch(&cluster.nodes[1], RESILIENCE, &second).send();
        let (one, two) = tokio::join!(one, two);
        one.expect_status(200);
        two.expect_status(200);
        for node in &cluster.nodes {
            eventually("both edits have arrived", || async {
                let (shown, _) = get(node, RESILIENCE).await;
                let threshold = &shown["providerBreaker"]["apikey"]["failureThreshold"];
                (*base(&shown) == 10_000 + round && *threshold == 100 + round).then_some(())
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_node_that_starts_later_knows_what_was_saved() {
    let mut cluster = Cluster::start(2, config).await;
    save(&cluster.nodes[0], RESILIENCE, &base_of(7_000)).await;
    save(
        &cluster.nodes[0],
        SETTINGS,
        &json!({"sessionAffinityTtlMs": 5_000}),
    )
    .await;
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    // Without a wait: who is ready has read it.
    let (shown, _) = get(&cluster.nodes[1], RESILIENCE).await;
    assert_eq!(*base(&shown), 7_000);
    let (shown, _) = get(&cluster.nodes[1], SETTINGS).await;
    assert_eq!(shown["sessionAffinityTtlMs"], 5_000);
}

#[tokio::test]
async fn without_the_store_nothing_is_saved_and_what_was_saved_holds() {
    let plan = Plan::of(2).redis(redis::Setup::durable());
    let mut cluster = plan.start(config).await;
    save(&cluster.nodes[0], RESILIENCE, &base_of(7_000)).await;
    base_becomes(&cluster.nodes[1], 7_000).await;
    cluster.redis.kill().await;
    for node in &cluster.nodes {
        for (path, body) in [
            (RESILIENCE, base_of(9_000)),
            (SETTINGS, json!({"sessionAffinityTtlMs": 9_000})),
        ] {
            let answer = patch(node, path, &body).send().await;
            assert_eq!(answer.status, 503, "{}", answer.text());
            assert_eq!(answer.code(), "store_unavailable");
            assert!(answer.retry_after().is_some_and(|wait| wait >= 1));
        }
        let (shown, _) = get(node, RESILIENCE).await;
        assert_eq!(*base(&shown), 7_000, "half done");
        let (shown, _) = get(node, SETTINGS).await;
        assert_eq!(shown["sessionAffinityTtlMs"], 0, "half done");
    }
    cluster.redis.restart().await;
    for node in &cluster.nodes {
        eventually("it can be saved again", || async {
            let answer = patch(node, SETTINGS, &json!({"sessionAffinityTtlMs": 60_000}));
            (answer.send().await.status == 200).then_some(())
        })
        .await;
        base_becomes(node, 7_000).await;
    }
}

#[tokio::test]
async fn a_store_that_lost_everything_is_told_again() {
    let mut cluster = Cluster::start(2, config).await;
    save(&cluster.nodes[0], RESILIENCE, &base_of(7_000)).await;
    base_becomes(&cluster.nodes[1], 7_000).await;
    cluster.redis.kill().await;
    cluster.redis.restart_empty().await;
    eventually("the nodes told it again", || async {
        let contents = cluster.redis.contents().await;
        contents.contains("setting").then_some(())
    })
    .await;
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    for node in &cluster.nodes {
        base_becomes(node, 7_000).await;
    }
}

#[tokio::test]
async fn only_those_who_manage_may_see_or_change_them() {
    let config = Config::new()
        .server("adminToken", json!("the-admin-token"))
        .api_key("client", "clients-key", json!({}))
        .api_key("operator", "operators-key", json!({"scopes": ["manage"]}));
    let node = Node::start(&config).await;
    for path in BOTH {
        for method in ["GET", "PATCH"] {
            let call = || node.admin_call(method, path).json(&json!({}));
            assert_eq!(call().send().await.status, 401, "{method} {path}");
            for key in ["clients-key", "nobodys-key"] {
                let refused = call().bearer(key).send().await;
                assert_eq!(refused.status, 403, "{method} {path} {key}");
            }
        }
        for key in ["the-admin-token", "operators-key"] {
            let shown = node.admin_call("GET", path).bearer(key).send().await;
            let text = shown.expect_status(200).text();
            for secret in ["the-admin-token", "clients-key", "operators-key"] {
                assert!(!text.contains(secret), "{secret} in {text}");
            }
        }
    }
}
