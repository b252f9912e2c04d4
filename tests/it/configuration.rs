//! The configuration file: checking, its schema, keys, changes while running,
//! and what the environment overrides.

use std::path::Path;

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup, command};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

struct Run {
    ok: bool,
    code: Option<i32>,
    text: String,
    stdout: String,
}

async fn run(dir: &Path, args: &[&str]) -> Run {
    let output = command("router-node", dir)
        .args(args)
        .output()
        .await
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Run {
        ok: output.status.success(),
        code: output.status.code(),
        text: format!("{stdout}\n{stderr}"),
        stdout,
    }
}

async fn check(text: &str) -> Run {
    let setup = Setup::with_text(text);
    run(setup.dir(), &["check", "--config", "router.yaml"]).await
}

#[tokio::test]
async fn check_tells_every_problem_with_its_place_and_path() {
    let text = "\
server:
  listen: 127.0.0.1:0
  maxBodyByte: 5
providers:
  - id: acme
    protocol: openia
    baseUrl: not a url
connections:
  - id: one
    provider: acmee
    apiKey: {env: NOT_SET_ANYWHERE}
    priority: high
  - id: one
    provider: acme
    apiKey: k
combos:
  - name: fast
    strategy: priority
    targets:
      - {model: acme/m, connection: two}
";
    let run = check(text).await;
    assert_eq!(run.code, Some(1), "{}", run.text);
    let places = [
        (3, "server.maxBodyByte", "maxBodyBytes"),
        (6, "providers[0].protocol", "openai"),
        (7, "providers[0].baseUrl", ""),
        (10, "connections[0].provider", "acme"),
        (11, "connections[0].apiKey", "NOT_SET_ANYWHERE"),
        (12, "connections[0].priority", ""),
        (13, "connections[1].id", "one"),
        (20, "combos[0].targets[0].connection", "two"),
    ];
    for (line, path, hint) in places {
        let place = format!("router.yaml:{line}");
        let told = run
            .text
            .lines()
            .any(|told| told.contains(&place) && told.contains(path) && told.contains(hint));
        assert!(
            told,
            "{place} {path} {hint:?} is not told in one line:\n{}",
            run.text
        );
    }
}

#[tokio::test]
async fn check_is_content_with_a_good_file_and_points_into_a_broken_one() {
    let good = Config::new()
        .provider("acme", "openai", "https://llm.acme.example/v1")
        .connection("a", "acme")
        .combo("fast", &["acme/m", "acme/m@a"])
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(100));
    let run = check(&good.to_yaml()).await;
    assert!(run.ok, "{}", run.text);
    let run = check("server:\n  listen: [\n").await;
    assert_eq!(run.code, Some(1));
    assert!(run.text.contains("router.yaml:"), "{}", run.text);
    let run = check("").await;
    assert!(run.ok, "an empty file is a valid one: {}", run.text);
}

#[tokio::test]
async fn check_names_a_file_that_is_not_there() {
    let setup = Setup::with_text("");
    let run = run(setup.dir(), &["check", "--config", "missing.yaml"]).await;
    assert_eq!(run.code, Some(1));
    assert!(run.text.contains("missing.yaml"), "{}", run.text);
}

#[tokio::test]
async fn the_schema_is_a_json_schema_of_the_file() {
    let setup = Setup::with_text("");
    let run = run(setup.dir(), &["schema"]).await;
    assert!(run.ok, "{}", run.text);
    let schema: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!(schema["$schema"].is_string());
    for key in [
        "server",
        "store",
        "providers",
        "connections",
        "combos",
        "apiKeys",
        "settings",
    ] {
        assert!(schema["properties"].get(key).is_some(), "no {key}");
    }
    assert_eq!(schema["additionalProperties"], json!(false));
}

#[tokio::test]
async fn a_generated_key_fits_its_hash_and_works() {
    let setup = Setup::with_text("");
    let printed = run(setup.dir(), &["keygen"]).await;
    assert!(printed.ok, "{}", printed.text);
    let again = run(setup.dir(), &["keygen"]).await;
    assert_ne!(printed.stdout, again.stdout);
    let words: Vec<String> = printed
        .stdout
        .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '{' | '}'))
        .map(str::to_owned)
        .collect();
    let is_hash = |word: &&String| word.len() == 64 && word.bytes().all(|b| b.is_ascii_hexdigit());
    let hash = words.iter().find(is_hash).expect("no sha256").clone();
    let hashed = |word: &&String| hex(&Sha256::digest(word.as_bytes())) == hash;
    let key = words
        .iter()
        .find(hashed)
        .expect("no key of that hash")
        .clone();
    assert!(key.len() >= 32, "a short key: {key}");

    let config = Config::new().set(&["apiKeys"], json!([{"id": "team", "sha256": hash}]));
    let node = Node::start(&config).await;
    let body = Dialect::Chat.request("simulated/ok", false);
    let ask = || node.post("/v1/chat/completions", &body);
    ask().bearer(&key).send().await.expect_status(200);
    ask().send().await.expect_status(401);
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap();
    let pairs = bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
    pairs.collect()
}

#[tokio::test]
async fn a_changed_file_is_taken_up_and_a_broken_one_refused() {
    let upstream = Upstream::start().await;
    for id in ["a", "b"] {
        upstream.script(id, [Dialect::Chat.ok(id)]);
    }
    let base = Config::new().provider("acme", "openai", &upstream.url());
    let setup = Setup::with(&base.clone().connection("a", "acme"));
    let node = setup.start().await;
    let body = Dialect::Chat.request("acme/m", false);
    let served = || async {
        let answer = node.post("/v1/chat/completions", &body).send().await;
        answer.header("x-omniroute-connection").map(str::to_owned)
    };
    assert_eq!(served().await.as_deref(), Some("a"));

    std::fs::write(setup.file(), base.connection("b", "acme").to_yaml()).unwrap();
    eventually("the new connection serves", || async {
        (served().await.as_deref() == Some("b")).then_some(())
    })
    .await;

    std::fs::write(
        setup.file(),
        "connections:\n  - id: c\n    provider: nobody\n",
    )
    .unwrap();
    let told = |line: &str| line.contains("nobody") && line.contains("router.yaml:3");
    node.log().line("the broken file is reported", told).await;
    assert_eq!(served().await.as_deref(), Some("b"));
    let ready = node.get("/readyz").send().await.expect_status(200);
    assert_eq!(
        ready.json()["node"].as_str().map(str::is_empty),
        Some(false)
    );
}

#[tokio::test]
async fn a_reload_keeps_cooldowns_and_requests_in_flight() {
    let upstream = Upstream::start().await;
    let gate = cluster_tests::reply::Gate::closed();
    upstream.script("a", [Reply::limited(600)]);
    upstream.script("b", [Dialect::Chat.ok("late").behind(&gate)]);
    let config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"priority": 1}))
        .connection_with("b", "acme", json!({"priority": 2}));
    let setup = Setup::with(&config);
    let node = setup.start().await;
    let body = Dialect::Chat.request("acme/m", false);
    let flying = tokio::spawn(node.post("/v1/chat/completions", &body).try_send());
    upstream.request("b", 1).await;
    std::fs::write(setup.file(), config.combo("quick", &["acme/m"]).to_yaml()).unwrap();
    eventually("the combo is there", || async {
        let models = node.get("/v1/models").send().await.text();
        models.contains("quick").then_some(())
    })
    .await;
    assert_eq!(
        node.connection("a").await["connectionStatus"],
        "cooling_down"
    );
    gate.open();
    flying.await.unwrap().unwrap().expect_status(200);
}

#[tokio::test]
async fn variables_override_the_file() {
    let text = "server:\n  listen: 127.0.0.1:1\n  adminToken: from-the-file\n";
    let setup = Setup::with_text(text)
        .env("OMNIROUTE_LISTEN", "127.0.0.1:0")
        .env("OMNIROUTE_ADMIN_TOKEN", "from-the-environment")
        .env("OMNIROUTE_STORE_URL", "embedded:./elsewhere")
        .env("OMNIROUTE_NODE_ID", "node-seven");
    let node = setup.start().await;
    assert!(setup.dir().join("elsewhere").is_dir());
    let ready = node.get("/readyz").send().await.json();
    assert_eq!(ready["node"], "node-seven");
    let ask = |token: &str| node.get("/api/resilience/connections").bearer(token);
    ask("from-the-environment").send().await.expect_status(200);
    let refused = ask("from-the-file").send().await.status;
    assert!(matches!(refused, 401 | 403), "{refused}");
}

#[tokio::test]
async fn the_file_is_found_by_variable_and_by_its_usual_name() {
    let found = |file: &'static str, env: Option<&'static str>| async move {
        let mut setup = Setup::bare();
        let text = Config::new()
            .combo("the-combo", &["simulated/ok"])
            .to_yaml();
        std::fs::write(setup.dir().join(file), text).unwrap();
        if let Some(path) = env {
            setup = setup.env("OMNIROUTE_CONFIG", path);
        }
        let node = setup.start().await;
        node.get("/v1/models").send().await.text()
    };
    assert!(found("omniroute.yaml", None).await.contains("the-combo"));
    assert!(
        found("other.yaml", Some("other.yaml"))
            .await
            .contains("the-combo")
    );
}

#[tokio::test]
async fn arguments_override_the_file_and_secrets_come_from_files() {
    let text = "\
server:
  listen: 127.0.0.1:1
  adminToken: {file: token.txt}
";
    let setup = Setup::with_text(text)
        .arg("--listen")
        .arg("127.0.0.1:0")
        .arg("--store")
        .arg("embedded:memory");
    std::fs::write(setup.dir().join("token.txt"), "secret-in-a-file\n").unwrap();
    let node = setup.start().await;
    let ask = node.get("/api/resilience/connections");
    ask.bearer("secret-in-a-file")
        .send()
        .await
        .expect_status(200);
    assert!(!setup.dir().join("omniroute-data").exists());
}

#[tokio::test]
async fn an_admin_listener_takes_administration_away_from_clients() {
    let config = Config::new().server("adminListen", json!("127.0.0.1:0"));
    let node = Node::start(&config).await;
    assert_ne!(node.addr(), node.admin_addr());
    for path in ["/api/resilience/connections", "/metrics", "/api/requests"] {
        node.get(path).send().await.expect_status(404);
        node.admin_call("GET", path).send().await.expect_status(200);
    }
    let body = Dialect::Chat.request("simulated/ok", false);
    node.post("/v1/chat/completions", &body)
        .send()
        .await
        .expect_status(200);
}

#[tokio::test]
async fn a_start_with_a_broken_file_tells_all_and_ends() {
    let text = "server:\n  listen: nowhere\nconnections:\n  - {id: x, provider: nobody}\n";
    let mut process = Setup::with_text(text).spawn();
    let status = process.exit(SOON).await;
    process.log().closed().await;
    assert!(!status.success());
    let printed = process.log().text();
    for word in ["server.listen", "router.yaml:2", "nobody", "router.yaml:4"] {
        assert!(printed.contains(word), "{word} not in {printed}");
    }
}
