//! What `router-node check` says of extra keys, without printing any.

use cluster_tests::config::Config;
use cluster_tests::node::{Setup, command};
use serde_json::{Value, json};

/// Checks the configuration: whether it is good, and what is said of it.
async fn check(config: &Config) -> (bool, String) {
    let setup = Setup::with(config);
    let output = command("router-node", setup.dir())
        .env("IS_SET", "key-from-a-variable")
        .args(["check", "--config", "router.yaml"])
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("key-"), "a secret: {text}");
    (output.status.success(), text)
}

fn base() -> Config {
    Config::new()
        .provider("acme", "openai", "https://llm.acme.example/v1")
        .provider_with(
            "plan",
            "anthropic",
            "https://plan.example/v1",
            json!({"auth": "oauth"}),
        )
        .provider_with(
            "local",
            "openai",
            "http://127.0.0.1:9/v1",
            json!({"auth": "none"}),
        )
}

fn with(config: Config, id: &str, extra: &Value) -> Config {
    let more = json!({"providerSpecificData": {"extraApiKeys": extra}});
    config.connection_with(id, "acme", more)
}

fn many(n: usize) -> Value {
    json!((0..n).map(|n| format!("key-x{n}")).collect::<Vec<_>>())
}

#[tokio::test]
async fn up_to_sixteen_of_every_kind_are_taken() {
    let config = with(base(), "sixteen", &many(16));
    let config = with(config, "none", &json!([]));
    let config = with(config, "kinds", &json!(["key-x", {"env": "IS_SET"}]));
    let (good, text) = check(&config).await;
    assert!(good, "{text}");
    // Nor is it something for a later version.
    assert!(!text.contains("extraApiKeys"), "{text}");
}

#[tokio::test]
async fn every_bad_one_is_told_with_its_path() {
    let cases = [
        (many(17), "extraApiKeys"),
        (json!("key-x"), "extraApiKeys"),
        (json!({"env": "IS_SET"}), "extraApiKeys"),
        (json!(7), "extraApiKeys"),
        (json!(["key-x", ""]), "extraApiKeys[1]"),
        (json!(["key-x", "key-y", 7]), "extraApiKeys[2]"),
        (json!([["key-x"]]), "extraApiKeys[0]"),
        (json!([{"env": "NOT_SET_ANYWHERE"}]), "extraApiKeys[0]"),
        (json!(["key-x", {"evn": "IS_SET"}]), "extraApiKeys[1]"),
        (json!([{"file": "no/such/file"}]), "extraApiKeys[0]"),
    ];
    let config = cases
        .iter()
        .enumerate()
        .fold(base(), |config, (n, (extra, _))| {
            with(config, &format!("c{n}"), extra)
        });
    let (good, text) = check(&config).await;
    assert!(!good, "{text}");
    for (n, (extra, at)) in cases.iter().enumerate() {
        let path = format!("connections[{n}].providerSpecificData.{at}");
        let told = text
            .lines()
            .any(|line| line.contains("router.yaml:") && line.contains(&path));
        assert!(told, "{path} is not told for {extra}:\n{text}");
    }
}

#[tokio::test]
async fn only_accounts_with_a_key_have_more_of_them() {
    let data = json!({"extraApiKeys": ["key-x"]});
    let plan = json!({"oauth": {"accessToken": "key-token"}, "providerSpecificData": data});
    let local = json!({"providerSpecificData": data});
    for config in [
        base().connection_with("a", "plan", plan),
        base().connection_with("a", "local", local),
    ] {
        let (good, text) = check(&config).await;
        assert!(!good, "{text}");
        let path = "connections[0].providerSpecificData.extraApiKeys";
        assert!(text.contains(path), "{text}");
    }
}
