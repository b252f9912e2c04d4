//! What is in Redis may be anybody's: foreign keys, damaged records, entries
//! of another version. Nodes refuse what they can't read, say so, and go on.

use std::time::Duration;

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;

const IDS: [&str; 4] = ["a", "b", "c", "d"];

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let mut config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .no_waiting();
    for id in IDS {
        config = config
            .connection(id, "acme")
            .combo(&format!("only-{id}"), &[&format!("acme/m@{id}")]);
    }
    config
}

async fn ask(node: &Node, id: &str) -> Answer {
    let body = Dialect::Chat.request(&format!("only-{id}"), false);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    assert!(answer.took < Duration::from_secs(3), "{:?}", answer.took);
    answer
}

/// One node learns that `id` is limited, the other acts on it.
async fn expect_sharing(cluster: &Cluster, from: usize, id: &str) {
    cluster.upstream.script(id, [Reply::limited(600)]);
    assert!(ask(&cluster.nodes[from], id).await.status >= 429);
    for node in &cluster.nodes {
        node.connection_becomes(id, "cooling_down").await;
        assert!(ask(node, id).await.status >= 429);
    }
    assert_eq!(cluster.upstream.count(id), 1);
}

/// A node that comes now starts and serves.
async fn expect_a_newcomer(cluster: &Cluster) -> Node {
    let node = Setup::with(&cluster.config_of(0))
        .env("OMNIROUTE_NODE_ID", "newcomer")
        .start()
        .await;
    ask(&node, "d").await.expect_status(200);
    node
}

async fn keys_of(cluster: &Cluster, kind: &str) -> Vec<String> {
    let mut found = Vec::new();
    for key in cluster.redis.keys().await {
        if cluster.redis.call(&["TYPE", &key]).await.text() == kind {
            found.push(key);
        }
    }
    found
}

#[tokio::test]
async fn foreign_keys_under_the_prefix_are_left_alone() {
    let cluster = Cluster::start(2, config).await;
    expect_sharing(&cluster, 0, "a").await;
    let known = cluster.redis.keys().await;
    let mut foreign = Vec::new();
    for (at, like) in known.iter().enumerate() {
        let key = format!("{like}:foreign");
        let words: [&[&str]; 3] = [
            &["SET", &key, "foreign"],
            &["HSET", &key, "foreign", "foreign"],
            &["RPUSH", &key, "foreign"],
        ];
        cluster.redis.call(words[at % 3]).await;
        foreign.push(key);
    }
    cluster.redis.call(&["SET", "omniroute", "foreign"]).await;
    expect_sharing(&cluster, 1, "b").await;
    expect_a_newcomer(&cluster).await;
    for key in foreign {
        let there = cluster.redis.call(&["EXISTS", &key]).await;
        assert_eq!(there.int(), 1, "{key} was deleted");
    }
}

#[tokio::test]
async fn log_entries_of_an_unknown_kind_are_passed_over() {
    let cluster = Cluster::start(2, config).await;
    expect_sharing(&cluster, 0, "a").await;
    let streams = keys_of(&cluster, "stream").await;
    assert!(!streams.is_empty(), "no log");
    for stream in &streams {
        for words in [
            ["XADD", stream, "*", "kind", "from-tomorrow"],
            ["XADD", stream, "*", "", ""],
            ["XADD", stream, "*", "p", "not-an-id"],
            ["XADD", stream, "*", "\u{0}\u{7}", "\u{1}\u{2}"],
        ] {
            cluster.redis.call(&words).await;
        }
    }
    expect_sharing(&cluster, 1, "b").await;
    expect_sharing(&cluster, 0, "c").await;
    expect_a_newcomer(&cluster).await;
}

/// Every stored record of every shape is damaged in the same way.
async fn damage(cluster: &Cluster, bytes: &str) {
    for key in keys_of(cluster, "string").await {
        cluster.redis.call(&["SET", &key, bytes]).await;
    }
    for key in keys_of(cluster, "hash").await {
        let fields = cluster.redis.call(&["HKEYS", &key]).await.array();
        for field in fields {
            let words = ["HSET", &key, &field.text(), bytes];
            cluster.redis.call(&words).await;
        }
    }
}

#[tokio::test]
async fn damaged_records_are_refused_and_nobody_falls() {
    for bytes in [
        "",
        "x",
        "-1",
        "99999999999999999999999999",
        // MessagePack: an array that says it has 4 G of elements, deep nesting,
        // a text that is cut.
        "\u{dd}\u{ff}\u{ff}\u{ff}\u{ff}",
        &"\u{91}".repeat(3000),
        "\u{d9}",
    ] {
        let cluster = Cluster::start(2, config).await;
        expect_sharing(&cluster, 0, "a").await;
        damage(&cluster, bytes).await;
        for node in &cluster.nodes {
            ask(node, "d").await.expect_status(200);
            assert!(ask(node, "a").await.status >= 429, "it forgot");
            node.get("/healthz").send().await.expect_status(200);
        }
        let newcomer = expect_a_newcomer(&cluster).await;
        drop(newcomer);
        // An operator who throws the damage away has a whole cluster again.
        cluster.redis.call(&["FLUSHALL"]).await;
        eventually("the nodes share again", || async {
            cluster.upstream.script("b", [Reply::limited(600)]);
            ask(&cluster.nodes[1], "b").await;
            let b = cluster.nodes[0].connection("b").await;
            (b["connectionStatus"] == "cooling_down").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn keys_of_another_shape_are_an_outage_and_not_a_fall() {
    let cluster = Cluster::start(2, config).await;
    expect_sharing(&cluster, 0, "a").await;
    for key in cluster.redis.keys().await {
        cluster.redis.call(&["DEL", &key]).await;
        cluster.redis.call(&["LPUSH", &key, "x"]).await;
    }
    for node in &cluster.nodes {
        for _ in 0..5 {
            ask(node, "d").await.expect_status(200);
        }
        assert!(ask(node, "a").await.status >= 429, "it forgot");
        let ready = node.get("/readyz").send().await;
        assert_eq!(ready.status, 200, "{}", ready.text());
    }
    cluster.redis.call(&["FLUSHALL"]).await;
    expect_sharing(&cluster, 1, "c").await;
}

#[tokio::test]
async fn a_trimmed_log_is_noticed() {
    let cluster = Cluster::start(2, config).await;
    cluster.cuts[1]
        .set(cluster_tests::cut::Mode::BlackHole)
        .await;
    cluster.upstream.script_all([Reply::limited(600)]);
    for id in ["a", "b", "c"] {
        assert!(ask(&cluster.nodes[0], id).await.status >= 429);
        cluster.nodes[0]
            .connection_becomes(id, "cooling_down")
            .await;
    }
    for stream in keys_of(&cluster, "stream").await {
        cluster.redis.call(&["XTRIM", &stream, "MAXLEN", "0"]).await;
    }
    cluster.cuts[1].set(cluster_tests::cut::Mode::Cut).await;
    cluster.cuts[1].set(cluster_tests::cut::Mode::Pass).await;
    for id in ["a", "b", "c"] {
        cluster.nodes[1]
            .connection_becomes(id, "cooling_down")
            .await;
    }
    cluster.upstream.script_all([Dialect::Chat.ok("pong")]);
    expect_sharing(&cluster, 1, "d").await;
}

#[tokio::test]
async fn a_flushed_store_takes_nothing_from_living_nodes() {
    let cluster = Cluster::start(2, config).await;
    expect_sharing(&cluster, 0, "a").await;
    cluster.redis.call(&["FLUSHALL"]).await;
    expect_sharing(&cluster, 1, "b").await;
    for node in &cluster.nodes {
        assert!(ask(node, "a").await.status >= 429, "it forgot");
    }
    assert_eq!(cluster.upstream.count("a"), 1);
    let newcomer = expect_a_newcomer(&cluster).await;
    newcomer.connection_becomes("a", "cooling_down").await;
}
