//! The settings of the preflight: what holds unless told, what is taken, and
//! what is refused.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::node::{Node, Setup, command};
use serde_json::{Value, json};

const PATH: &str = "/api/resilience";

async fn patch(node: &Node, preflight: &Value) -> Answer {
    let body = json!({"quotaPreflight": preflight});
    node.admin_call("PATCH", PATH).json(&body).send().await
}

async fn shown(node: &Node) -> Value {
    node.admin_get(PATH).await["quotaPreflight"].clone()
}

#[tokio::test]
async fn the_defaults_are_shown_and_may_be_sent_back() {
    let node = Node::start(&Config::new()).await;
    let defaults = json!({"enabled": false, "defaultThresholdPercent": 2,
        "warnThresholdPercent": 20, "providerWindowDefaults": {}});
    assert_eq!(shown(&node).await, defaults);
    patch(&node, &defaults).await.expect_status(200);
    let changed = json!({"enabled": true, "defaultThresholdPercent": 0,
        "warnThresholdPercent": 100, "providerWindowDefaults": {"codex": {"primary": 0, "x": 100}}});
    patch(&node, &changed).await.expect_status(200);
    assert_eq!(shown(&node).await, changed);
}

#[tokio::test]
async fn what_can_not_be_used_is_refused_and_changes_nothing() {
    let node = Node::start(&Config::new()).await;
    let before = shown(&node).await;
    for (bad, key) in [
        (json!({"enabled": "yes"}), "enabled"),
        (json!({"enabled": 1}), "enabled"),
        (
            json!({"defaultThresholdPercent": -1}),
            "defaultThresholdPercent",
        ),
        (
            json!({"defaultThresholdPercent": 100, "warnThresholdPercent": 100}),
            "defaultThresholdPercent",
        ),
        (json!({"warnThresholdPercent": 101}), "warnThresholdPercent"),
        (
            json!({"providerWindowDefaults": {"codex": {"primary": 101}}}),
            "providerWindowDefaults",
        ),
        (
            json!({"providerWindowDefaults": {"codex": {"primary": -1}}}),
            "providerWindowDefaults",
        ),
        (
            json!({"providerWindowDefaults": {"codex": 5}}),
            "providerWindowDefaults",
        ),
        (
            json!({"providerWindowDefaults": []}),
            "providerWindowDefaults",
        ),
        (json!({"enabeld": true}), "enabled"),
    ] {
        let answer = patch(&node, &bad).await;
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text());
        assert_eq!(answer.code(), "invalid_settings", "{bad}");
        assert!(answer.text().contains(key), "{bad}: {}", answer.text());
        assert_eq!(shown(&node).await, before, "{bad}");
    }
}

/// A warning comes before the cutoff, or there is no use in it.
#[tokio::test]
async fn a_warning_is_never_at_the_cutoff() {
    let node = Node::start(&Config::new()).await;
    for (cutoff, warn) in [(20, 20), (40, 10), (99, 99)] {
        let both = json!({"defaultThresholdPercent": cutoff, "warnThresholdPercent": warn});
        let status = patch(&node, &both).await.status;
        assert!(matches!(status, 200 | 400), "{both}: {status}");
        let shown = shown(&node).await;
        let percent = |name: &str| shown[name].as_u64().unwrap();
        let least = percent("defaultThresholdPercent") + 1;
        assert!(percent("warnThresholdPercent") >= least, "{both}: {shown}");
    }
}

/// `check` has nothing to say of what is acted on.
#[tokio::test]
async fn a_good_file_is_taken_without_a_word() {
    let config = Config::new()
        .provider_with(
            "codex",
            "responses",
            "https://plan.example/v1",
            json!({"auth": "oauth", "usageUrl": "https://plan.example/usage"}),
        )
        .resilience(
            "quotaPreflight",
            json!({"enabled": true, "defaultThresholdPercent": 5, "warnThresholdPercent": 30,
                "providerWindowDefaults": {"codex": {"primary": 10}}}),
        );
    let setup = Setup::with(&config);
    let output = command("router-node", setup.dir())
        .args(["check", "--config", "router.yaml"])
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    for word in ["quotaPreflight", "usageUrl"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}
