//! Secrets in files: a new one is taken over as it comes, a lost one is not.

use std::fs;
use std::path::PathBuf;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::json;
use tempfile::TempDir;

/// Secrets in a directory of their own.
struct Secrets(TempDir);

impl Secrets {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the secret and returns how a configuration names it.
    fn put(&self, name: &str, secret: &str) -> serde_json::Value {
        fs::write(self.path(name), secret).unwrap();
        json!({"file": self.path(name)})
    }
}

fn acme(upstream: &Upstream, secrets: &Secrets) -> Config {
    let key = secrets.put("acme", "key-old\n");
    Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("acme-1", "acme", json!({"apiKey": key}))
        .no_waiting()
}

async fn ask(node: &Node) -> Answer {
    let body = Dialect::Chat.request("acme/m", false);
    node.post("/v1/chat/completions", &body).send().await
}

async fn degraded(node: &Node) -> serde_json::Value {
    node.get("/readyz").send().await.json()["degraded"].clone()
}

#[tokio::test]
async fn a_rotated_key_is_taken_over_and_revives_the_account() {
    let upstream = Upstream::start().await;
    upstream.script("old", [Reply::error(401, "invalid api key")]);
    upstream.script("new", [Dialect::Chat.ok("pong")]);
    let secrets = Secrets::new();
    let node = Node::start(&acme(&upstream, &secrets)).await;
    assert_eq!(ask(&node).await.status, 503);
    node.connection_becomes("acme-1", "terminal").await;

    secrets.put("acme", "key-new");
    node.connection_becomes("acme-1", "healthy").await;
    ask(&node).await.expect_status(200);
    assert_eq!(upstream.count("new"), 1);
}

#[tokio::test]
async fn a_swapped_link_is_a_rotation_too() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let secrets = Secrets::new();
    let config = acme(&upstream, &secrets);
    for version in ["old", "new"] {
        secrets.put(version, &format!("key-{version}"));
    }
    let link = |version: &str| {
        let fresh = secrets.path("fresh");
        std::os::unix::fs::symlink(secrets.path(version), &fresh).unwrap();
        fs::rename(fresh, secrets.path("acme")).unwrap();
    };
    link("old");
    let node = Node::start(&config).await;
    link("new");
    eventually("the new key is used", || async {
        ask(&node).await.expect_status(200);
        (upstream.count("new") > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lost_secret_is_refused_once_and_the_running_one_stays() {
    let upstream = Upstream::start().await;
    upstream.script("old", [Dialect::Chat.ok("pong")]);
    let secrets = Secrets::new();
    let token = secrets.put("token", "the-admin-token");
    let key = secrets.put("team", "the-teams-key");
    let config = acme(&upstream, &secrets).server("adminToken", token).set(
        &["apiKeys"],
        json!([{"id": "team", "key": key, "scopes": ["manage"]}]),
    );
    let node = Setup::with(&config).start().await;
    let refused = |line: &str| line.contains("the changed configuration is refused");
    for (n, name) in ["acme", "token", "team"].into_iter().enumerate() {
        let before = fs::read(secrets.path(name)).unwrap();
        fs::write(secrets.path(name), "\n").unwrap();
        eventually("an emptied secret is refused", || async {
            (degraded(&node).await == json!(["config"])).then_some(())
        })
        .await;
        fs::remove_file(secrets.path(name)).unwrap();
        let gone = |line: &str| line.contains("cannot read the file") && line.contains(name);
        node.log().line("a vanished secret is refused", gone).await;
        let body = Dialect::Chat.request("acme/m", false);
        let call = node.post("/v1/chat/completions", &body);
        call.bearer("the-teams-key").send().await.expect_status(200);
        let call = node.get("/api/resilience/connections");
        call.bearer("the-admin-token")
            .send()
            .await
            .expect_status(200);

        fs::write(secrets.path(name), before).unwrap();
        eventually("it is as before", || async {
            (degraded(&node).await == json!([])).then_some(())
        })
        .await;
        let told = node
            .log()
            .text()
            .lines()
            .filter(|line| refused(line))
            .count();
        // Once for the emptied file, once for the vanished one.
        assert_eq!(told, 2 * (n + 1), "{}", node.log().text());
    }
    assert_eq!(upstream.count("old"), 3);
}

#[tokio::test]
async fn a_reload_that_names_a_secret_to_come_is_taken_when_it_comes() {
    let upstream = Upstream::start().await;
    upstream.script("late", [Dialect::Chat.ok("pong")]);
    let secrets = Secrets::new();
    let setup = Setup::with(&Config::new());
    let node = setup.start().await;
    let config = acme(&upstream, &secrets);
    fs::remove_file(secrets.path("acme")).unwrap();
    fs::write(setup.file(), config.to_yaml()).unwrap();
    eventually("the reload is refused", || async {
        (degraded(&node).await == json!(["config"])).then_some(())
    })
    .await;
    secrets.put("acme", "key-late");
    eventually("the secret is found", || async {
        (degraded(&node).await == json!([])).then_some(())
    })
    .await;
    ask(&node).await.expect_status(200);
}
