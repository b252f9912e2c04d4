//! Saved settings are the cluster's: every node acts on them, and no change
//! undoes another.

use std::sync::Arc;

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::redis;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use shared_proto::clock::SystemClock;
use shared_proto::config::StoreUrl;
use shared_proto::mirror::Mirror;
use shared_proto::mirror::commit::{Commit, Expected};
use shared_proto::mirror::key::{self, Key};
use shared_proto::mirror::record::Body;
use shared_proto::mirror::redis::{Options, Redis};

const RESILIENCE: &str = "/api/resilience";
const GENERAL: &str = "/api/settings";

fn config(upstream: &Upstream) -> Config {
    let mut config = Config::new()
        .no_waiting()
        .provider("acme", "openai", &upstream.url());
    for id in ["a", "b"] {
        config = config
            .connection(id, "acme")
            .combo(&format!("only-{id}"), &[&format!("acme/m@{id}")]);
    }
    config
}

async fn change(node: &Node, path: &str, body: &Value) -> Value {
    let call = node.admin_call("PATCH", path).json(body);
    call.send().await.expect_status(200).json()
}

async fn all_show(cluster: &Cluster, path: &str, pointer: &str, wanted: &Value) {
    for node in &cluster.nodes {
        eventually(&format!("{pointer} is {wanted}"), || async {
            let shown = node.admin_get(path).await;
            (shown.pointer(pointer) == Some(wanted)).then_some(())
        })
        .await;
    }
}

const BASE: &str = "/connectionCooldown/apikey/baseCooldownMs";

fn cooldown(base_ms: u64) -> Value {
    json!({"connectionCooldown": {"apikey": {"baseCooldownMs": base_ms}}})
}

#[tokio::test]
async fn a_change_on_one_node_acts_on_all() {
    let mut cluster = Cluster::start(2, config).await;
    change(&cluster.nodes[0], RESILIENCE, &cooldown(400_000)).await;
    all_show(&cluster, RESILIENCE, BASE, &json!(400_000)).await;
    cluster
        .upstream
        .script("a", [Reply::error(429, "slow down")]);
    let body = Dialect::Chat.request("only-a", false);
    let call = cluster.nodes[1].post("/v1/chat/completions", &body);
    assert!(call.send().await.status >= 429);
    let a = cluster.nodes[1].connection("a").await;
    let left = a["cooldownRemainingMs"].as_u64().unwrap();
    assert!((300_000..=400_000).contains(&left), "{a}");
    // Whoever starts later has them from the start.
    cluster.nodes[1].kill_9().await;
    cluster.restart(1).await;
    let shown = cluster.nodes[1].admin_get(RESILIENCE).await;
    assert_eq!(shown.pointer(BASE), Some(&json!(400_000)));
    let tag = async |node: &Node| {
        let answer = node.get(RESILIENCE).send().await;
        answer.header("etag").unwrap().to_owned()
    };
    assert_eq!(tag(&cluster.nodes[0]).await, tag(&cluster.nodes[1]).await);
}

#[tokio::test]
async fn changes_at_once_on_two_nodes_lose_nothing() {
    let cluster = Cluster::start(2, config).await;
    let changes = [
        (RESILIENCE, cooldown(11_000)),
        (GENERAL, json!({"maxAttempts": 7})),
        (
            RESILIENCE,
            json!({"providerBreaker": {"oauth": {"resetTimeoutMs": 12_000}}}),
        ),
        (GENERAL, json!({"sessionAffinityTtlMs": 13_000})),
        (
            RESILIENCE,
            json!({"providerBreaker": {"oauth": {"failureThreshold": 14}}}),
        ),
        (GENERAL, json!({"modelLockout": {"baseCooldownMs": 15_000}})),
        (RESILIENCE, json!({"hintBounds": {"quotaMs": 16_000}})),
        (GENERAL, json!({"customBannedSignals": ["seventeen"]})),
    ];
    let all = changes.iter().enumerate().map(|(at, (path, body))| {
        let node = &cluster.nodes[at % 2];
        change(node, path, body)
    });
    join_all(all).await;
    for (path, body) in &changes {
        let (pointer, wanted) = leaf(body, String::new());
        all_show(&cluster, path, &pointer, &wanted).await;
    }
}

/// The one value of a tree that has only one.
fn leaf(value: &Value, path: String) -> (String, Value) {
    match value.as_object() {
        Some(map) => {
            let (key, value) = map.iter().next().unwrap();
            leaf(value, format!("{path}/{key}"))
        }
        None => (path, value.clone()),
    }
}

#[tokio::test]
async fn a_node_that_was_cut_off_catches_up() {
    let cluster = Cluster::start(2, config).await;
    cluster.cuts[1].set(cluster_tests::cut::Mode::Refuse).await;
    change(&cluster.nodes[0], RESILIENCE, &cooldown(50_000)).await;
    let refused = cluster.nodes[1]
        .admin_call("PATCH", RESILIENCE)
        .json(&cooldown(60_000));
    let refused = refused.send().await.expect_status(503);
    assert_eq!(refused.code(), "store_unavailable");
    assert!(refused.retry_after().is_some());
    let shown = cluster.nodes[1].admin_get(RESILIENCE).await;
    assert_eq!(shown.pointer(BASE), Some(&json!(3000)));
    cluster.cuts[1].set(cluster_tests::cut::Mode::Pass).await;
    all_show(&cluster, RESILIENCE, BASE, &json!(50_000)).await;
}

#[tokio::test]
async fn a_store_that_lost_its_data_gets_them_again() {
    let mut cluster = Plan::of(2)
        .redis(redis::Setup::memory())
        .start(config)
        .await;
    change(&cluster.nodes[0], RESILIENCE, &cooldown(50_000)).await;
    all_show(&cluster, RESILIENCE, BASE, &json!(50_000)).await;
    cluster.redis.kill().await;
    cluster.redis.restart_empty().await;
    eventually("the store has them again", || async {
        let keys = cluster.redis.keys().await;
        keys.iter()
            .any(|key| key.ends_with(":settings:saved"))
            .then_some(())
    })
    .await;
    all_show(&cluster, RESILIENCE, BASE, &json!(50_000)).await;
    // A change goes on from there.
    let wanted = json!({"hintBounds": {"quotaMs": 60_000}});
    eventually("the store takes changes", || async {
        let call = cluster.nodes[1]
            .admin_call("PATCH", RESILIENCE)
            .json(&wanted);
        (call.send().await.status == 200).then_some(())
    })
    .await;
    all_show(&cluster, RESILIENCE, "/hintBounds/quotaMs", &json!(60_000)).await;
    all_show(&cluster, RESILIENCE, BASE, &json!(50_000)).await;
}

/// What another version of the program might have written.
#[derive(Serialize, Deserialize)]
struct Foreign<const VERSION: u16> {
    settings: Value,
}

impl<const VERSION: u16> Body for Foreign<VERSION> {
    const KIND: &'static str = key::SETTINGS;
    const VERSION: u16 = VERSION;
}

async fn write<const VERSION: u16>(store: &Redis, settings: Value) {
    let stored = store.load(&Key::Settings).await.unwrap();
    let expected = stored.map_or(Expected::Absent, |record| {
        Expected::Revision(record.revision)
    });
    let body = Foreign::<VERSION> { settings };
    let commit = Commit::put(Key::Settings, expected, &body).unwrap();
    store.commit(commit).await.unwrap();
}

async fn warned(node: &Node, what: &str) -> usize {
    eventually(what, || async {
        let text = node.log().text();
        let count = text.lines().filter(|line| line.contains(what)).count();
        (count > 0).then_some(count)
    })
    .await
}

#[tokio::test]
async fn a_record_that_can_not_be_used_changes_nothing() {
    let cluster = Cluster::start(1, config).await;
    let node = &cluster.nodes[0];
    change(node, RESILIENCE, &cooldown(50_000)).await;
    let StoreUrl::Redis(url) = cluster.redis.url().parse().unwrap() else {
        panic!("not a Redis");
    };
    let store = Redis::open(&url, "omniroute", Arc::new(SystemClock), Options::default()).unwrap();
    store.contact().await.unwrap();

    // What it does not know is kept, and ignored.
    let known = json!({"laterSection": {"x": 1}, "maxAttempts": 5,
        "resilience": {"connectionCooldown": {"apikey": {"baseCooldownMs": 50_000}}}});
    write::<1>(&store, known).await;
    all_show(&cluster, GENERAL, "/maxAttempts", &json!(5)).await;
    change(node, GENERAL, &json!({"maxAttempts": 6})).await;
    let record = store.load(&Key::Settings).await.unwrap().unwrap();
    let kept: Foreign<1> = record.decode().unwrap();
    assert_eq!(kept.settings["laterSection"], json!({"x": 1}));
    assert_eq!(kept.settings["maxAttempts"], 6);

    // What makes no sense is not used; a change puts it right.
    write::<1>(&store, json!({"maxAttempts": []})).await;
    assert_eq!(warned(node, "saved settings can't be used").await, 1);
    all_show(&cluster, RESILIENCE, BASE, &json!(50_000)).await;
    all_show(&cluster, GENERAL, "/maxAttempts", &json!(6)).await;
    let half = node.admin_call("PATCH", RESILIENCE).json(&cooldown(60_000));
    half.send().await.expect_status(400);
    change(node, GENERAL, &json!({"maxAttempts": 8})).await;
    change(node, RESILIENCE, &cooldown(60_000)).await;

    // What a newer version wrote is neither used nor replaced.
    write::<2>(&store, json!({"maxAttempts": 9})).await;
    assert_eq!(warned(node, "saved settings can't be read").await, 1);
    all_show(&cluster, GENERAL, "/maxAttempts", &json!(8)).await;
    let newer = node
        .admin_call("PATCH", GENERAL)
        .json(&json!({"maxAttempts": 3}));
    assert_eq!(
        newer.send().await.expect_status(409).code(),
        "settings_newer"
    );
    let record = store.load(&Key::Settings).await.unwrap().unwrap();
    assert_eq!(record.version, 2);
}
