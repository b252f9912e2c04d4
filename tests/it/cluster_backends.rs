//! The same small story on every kind of store: what one node learns the other
//! acts on, a lease is fenced on both, a cap holds over both.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{KEY, Owner, PLAIN, managed};
use cluster_tests::node::{Node, Setup, command};
use cluster_tests::redis::{self, Redis};
use cluster_tests::redis_cluster::RedisCluster;
use cluster_tests::reply::Reply;
use cluster_tests::sentinel::Sentinel;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use futures_util::future::join_all;
use serde_json::json;

const MODEL: &str = "chat/demo-model";

fn config(upstream: &Upstream, url: &str) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    managed(&upstream.url(), &[Dialect::Chat], &["a"])
        .provider("open", "openai", &upstream.url())
        .connection("open-a", "open")
        .provider("capped", "openai", &upstream.url())
        .connection_with("capped-a", "capped", json!({"maxConcurrent": 1}))
        .set(&["store", "url"], json!(url))
}

async fn pair(upstream: &Upstream, url: &str, env: &[(&str, &str)]) -> Vec<Node> {
    let starting = (0..2).map(|_| {
        let setup = Setup::with(&config(upstream, url));
        let setup = env
            .iter()
            .fold(setup, |setup, (name, value)| setup.env(name, value));
        async move { setup.start().await }
    });
    join_all(starting).await
}

async fn ask(node: &Node, model: &str) -> Answer {
    let body = Dialect::Chat.request(model, false);
    let call = node.post("/v1/chat/completions", &body).bearer(PLAIN);
    call.send().await
}

async fn tell_the_story(upstream: &Upstream, nodes: &[Node]) {
    upstream.script("open-a", [Reply::limited(600)]);
    ask(&nodes[0], "open/m").await.expect_status(429);
    nodes[1].connection_becomes("open-a", "cooling_down").await;
    ask(&nodes[1], "open/m").await.expect_status(429);
    assert_eq!(upstream.count("open-a"), 1);

    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&nodes[0], MODEL).await;
    for node in nodes {
        let call = owner.ask(node, Dialect::Chat, held, false);
        call.send().await.expect_status(200);
        let rival = Owner::new("bob", KEY).acquire(node, MODEL).await;
        assert_eq!(rival.status, 429, "{}", rival.text());
    }
    owner.release(&nodes[1], held).await.expect_status(200);
    let late = owner
        .ask(&nodes[0], Dialect::Chat, held, false)
        .send()
        .await;
    assert_eq!(late.code(), "LEASE_REQUIRED", "{}", late.text());

    upstream.script("capped-a", [Dialect::Chat.ok("pong").after_ms(20)]);
    let asking = (0..10).map(|at| ask(&nodes[at % 2], "capped/m"));
    for answer in join_all(asking).await {
        answer.expect_status(200);
    }
    assert_eq!(upstream.peak("capped-a"), 1);
}

#[tokio::test]
async fn a_server_with_a_password() {
    let upstream = Upstream::start().await;
    let redis = redis::Setup::memory().password("s3cret").start().await;
    let nodes = pair(&upstream, &redis.url(), &[]).await;
    tell_the_story(&upstream, &nodes).await;
    for node in &nodes {
        assert!(
            !node.log().text().contains("s3cret"),
            "a password in the log"
        );
        let ready = node.get("/readyz").send().await.text();
        assert!(!ready.contains("s3cret"), "{ready}");
    }
}

#[tokio::test]
async fn a_user_that_may_touch_its_own_keys_only() {
    let upstream = Upstream::start().await;
    let rules = "~*omniroute* &*omniroute* +@all -@dangerous +info";
    let setup = redis::Setup::memory().user("router", "s3cret", rules);
    let redis = setup.start().await;
    let nodes = pair(&upstream, &redis.url(), &[]).await;
    tell_the_story(&upstream, &nodes).await;
    let keys = redis.keys().await;
    assert!(keys.iter().all(|key| key.contains("omniroute")), "{keys:?}");
}

#[tokio::test]
async fn a_server_with_tls() {
    let upstream = Upstream::start().await;
    let redis = redis::Setup::memory().tls().start().await;
    let ca = redis.ca_file().display().to_string();
    let url = format!("{}?ca={ca}", redis.url());
    let nodes = pair(&upstream, &url, &[]).await;
    tell_the_story(&upstream, &nodes).await;
}

#[tokio::test]
async fn a_server_that_asks_clients_for_a_certificate() {
    let upstream = Upstream::start().await;
    let setup = redis::Setup::memory().tls().with_client_certificates();
    let redis = setup.start().await;
    let url = format!("{}{}", redis.url(), redis.tls_query());
    let nodes = pair(&upstream, &url, &[]).await;
    tell_the_story(&upstream, &nodes).await;
}

/// A certificate that nobody vouches for is not accepted.
#[tokio::test]
async fn a_server_with_a_foreign_certificate_is_not_trusted() {
    let upstream = Upstream::start().await;
    let redis = redis::Setup::memory().tls().start().await;
    let setup = Setup::with(&config(&upstream, &redis.url()));
    let process = setup.spawn();
    eventually("the node refuses to start or is degraded", || async {
        let text = process.log().text().to_lowercase();
        text.contains("certificate").then_some(())
    })
    .await;
    assert_eq!(redis.keys().await, Vec::<String>::new());
}

#[tokio::test]
async fn sentinels() {
    over_sentinels(Sentinel::start().await).await;
}

#[tokio::test]
async fn sentinels_with_tls() {
    over_sentinels(Sentinel::start_with_tls().await).await;
}

async fn over_sentinels(mut sentinel: Sentinel) {
    let upstream = Upstream::start().await;
    let nodes = pair(&upstream, &sentinel.url(), &[]).await;
    tell_the_story(&upstream, &nodes).await;
    sentinel.kill_master().await;
    // Whatever the failover took, both have the store again and agree.
    let owner = Owner::new("carol", KEY);
    let held = eventually("a lease can be had again", || async {
        let answer = owner.acquire(&nodes[0], MODEL).await;
        (answer.status == 200).then(|| cluster_tests::lease::generation(&answer))
    })
    .await;
    eventually("the other node has the store again", || async {
        let answer = owner.status(&nodes[1], held).await;
        (answer.status == 200).then_some(())
    })
    .await;
    for node in &nodes {
        assert!(ask(node, "open/m").await.status >= 429);
    }
}

#[tokio::test]
async fn a_redis_cluster() {
    over_cluster(RedisCluster::start().await).await;
}

#[tokio::test]
async fn a_redis_cluster_with_tls() {
    over_cluster(RedisCluster::start_with_tls().await).await;
}

async fn over_cluster(mut servers: RedisCluster) {
    let upstream = Upstream::start().await;
    let nodes = pair(&upstream, &servers.url(), &[]).await;
    tell_the_story(&upstream, &nodes).await;
    let key = servers.any_key("").await;
    let holder = servers.holder_of(&key).await;
    for (at, server) in servers.servers().iter().enumerate().take(3) {
        let keys = server.keys().await;
        assert!(
            at == holder || keys.is_empty(),
            "more than one slot: {keys:?}"
        );
    }
    servers.servers_mut()[holder].kill().await;
    let owner = Owner::new("carol", KEY);
    eventually("a lease can be had again", || async {
        let answer = owner.acquire(&nodes[0], MODEL).await;
        (answer.status == 200).then_some(())
    })
    .await;
    for node in &nodes {
        assert!(ask(node, "open/m").await.status >= 429);
    }
}

#[tokio::test]
async fn deployments_with_different_prefixes_do_not_meet() {
    let upstream = Upstream::start().await;
    let redis = Redis::start().await;
    let mut nodes = Vec::new();
    for prefix in ["blue", "green"] {
        let config = config(&upstream, &redis.url()).set(&["store", "prefix"], json!(prefix));
        nodes.push(Node::start(&config).await);
    }
    let owner = Owner::new("alice", KEY);
    let held = owner.hold(&nodes[0], MODEL).await;
    let other = owner
        .ask(&nodes[1], Dialect::Chat, held, false)
        .send()
        .await;
    assert_eq!(other.code(), "LEASE_REQUIRED", "{}", other.text());
    owner.hold(&nodes[1], MODEL).await;
    upstream.script("open-a", [Reply::limited(600)]);
    ask(&nodes[0], "open/m").await.expect_status(429);
    upstream.script("open-a", [Dialect::Chat.ok("pong")]);
    ask(&nodes[1], "open/m").await.expect_status(200);
    for key in redis.keys().await {
        assert!(key.contains("blue") || key.contains("green"), "{key}");
    }
}

#[tokio::test]
async fn a_url_that_is_none_is_a_problem_of_the_configuration() {
    let upstream = Upstream::start().await;
    for url in [
        "redis://",
        "redis:///0",
        "redis://h:99999/0",
        "redis://h/zero",
        "redis+sentinel://h1,h2",
        "redis+cluster://",
        "http://h",
    ] {
        let setup = Setup::with(&config(&upstream, url));
        let output = command("router-node", setup.dir())
            .args(["check", "--config", "router.yaml"])
            .output()
            .await
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{url}: {text}");
        assert!(text.contains("store.url"), "{url}: {text}");
    }
}
