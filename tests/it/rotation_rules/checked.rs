//! What `router-node check` says of overrides, and what becomes of variables
//! that can't be used.

use cluster_tests::config::Config;
use cluster_tests::node::{Node, Setup, command};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

use super::{CLASSES, LADDER_MS, MASTER, moves_and_rests, pair};

/// Checks the configuration: whether it is good, and what is said of it.
async fn check(config: &Config) -> (bool, String) {
    let setup = Setup::with(config);
    let output = command("router-node", setup.dir())
        .args(["check", "--config", "router.yaml"])
        .output()
        .await
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// A connection for each of these overrides.
fn connections(all: &[Value]) -> Config {
    let base = Config::new().provider("acme", "openai", "https://llm.acme.example/v1");
    all.iter().enumerate().fold(base, |config, (n, own)| {
        let more = json!({"providerSpecificData": {"rotationOverrides": own}});
        config.connection_with(&format!("c{n}"), "acme", more)
    })
}

#[tokio::test]
async fn every_key_is_taken_up_to_its_bounds() {
    let mut all = vec![json!({})];
    for class in ["400", "429", "500", "502"] {
        for (threshold, window) in [(1, 1), (100, 86_400)] {
            all.push(json!({
                format!("rotateOn{class}"): threshold == 1,
                format!("error{class}Threshold"): threshold,
                format!("error{class}WindowSeconds"): window,
            }));
        }
    }
    all.push(json!({"rateLimitResetSeconds": 0}));
    all.push(json!({"rateLimitResetSeconds": 86_400}));
    let (good, text) = check(&connections(&all)).await;
    assert!(good, "{text}");
    assert!(!text.contains("rotationOverrides"), "{text}");
}

#[tokio::test]
async fn every_bad_one_is_told_with_its_path() {
    let mut bad: Vec<(String, Value)> = Vec::new();
    for class in ["400", "429", "500", "502"] {
        for value in [json!("yes"), json!(1), json!([true])] {
            bad.push((format!("rotateOn{class}"), value));
        }
        for value in [json!(0), json!(101), json!(-1), json!(1.5), json!("many")] {
            bad.push((format!("error{class}Threshold"), value));
        }
        for value in [json!(0), json!(86_401), json!(-1), json!("long")] {
            bad.push((format!("error{class}WindowSeconds"), value));
        }
    }
    for value in [json!(-1), json!(86_401), json!("never"), json!(true)] {
        bad.push(("rateLimitResetSeconds".into(), value));
    }
    let all: Vec<Value> = bad.iter().map(|(key, value)| json!({key: value})).collect();
    let (good, text) = check(&connections(&all)).await;
    assert!(!good, "{text}");
    for (n, (key, value)) in bad.iter().enumerate() {
        let path = format!("connections[{n}].providerSpecificData.rotationOverrides.{key}");
        let told = text
            .lines()
            .any(|line| line.contains("router.yaml:") && line.contains(&path));
        assert!(told, "{path}: {value} is not told:\n{text}");
    }
}

#[tokio::test]
async fn an_unknown_key_is_told_with_the_nearest_name() {
    let unknown = [
        ("rotateOn428", "rotateOn429"),
        ("rotateon429", "rotateOn429"),
        ("error429Treshold", "error429Threshold"),
        ("error502WindowSecond", "error502WindowSeconds"),
        ("rateLimitResetSecs", "rateLimitResetSeconds"),
    ];
    let all: Vec<Value> = unknown.iter().map(|(key, _)| json!({*key: 1})).collect();
    let (good, text) = check(&connections(&all)).await;
    assert!(!good, "{text}");
    for (n, (key, near)) in unknown.iter().enumerate() {
        let path = format!("connections[{n}].providerSpecificData.rotationOverrides.{key}");
        let line = text.lines().find(|line| line.contains(&path));
        let line = line.unwrap_or_else(|| panic!("{path} is not told:\n{text}"));
        assert!(line.contains(near), "{near} is not suggested: {line}");
        assert!(line.contains("router.yaml:"), "no place: {line}");
    }
    let (good, text) = check(&connections(&[json!({"enabled": false})])).await;
    assert!(!good, "no connection has a master switch:\n{text}");
}

#[tokio::test]
async fn overrides_of_another_kind() {
    for own in [json!([]), json!("rotateOn429"), json!(true), json!(429)] {
        let (good, text) = check(&connections(std::slice::from_ref(&own))).await;
        assert!(!good, "{own}:\n{text}");
        let path = "connections[0].providerSpecificData.rotationOverrides";
        assert!(text.contains(path), "{own}:\n{text}");
    }
}

/// Neither is taken for something else.
#[tokio::test]
async fn variables_that_can_not_be_used_change_nothing() {
    let upstream = Upstream::start().await;
    let mut setup = Setup::with(&pair(&upstream, &json!({}))).env(MASTER, "");
    for class in CLASSES {
        for (name, value) in [
            (format!("OMNIROUTE_ROTATE_ON_{class}"), "perhaps"),
            (format!("OMNIROUTE_ROTATE_{class}_THRESHOLD"), "many"),
            (format!("OMNIROUTE_ROTATE_{class}_WINDOW_SECONDS"), "-1"),
        ] {
            setup = setup.env(&name, value);
        }
    }
    let setup = setup
        .env("OMNIROUTE_ROTATE_ON_400", "")
        .env("OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS", "soon");
    let node = setup.start().await;
    for status in [429, 500, 502] {
        upstream.script("a", [Reply::error(status, "boom")]);
        let a = moves_and_rests(&node, &upstream, &status.to_string()).await;
        let left = a["cooldownRemainingMs"].as_u64().unwrap();
        assert!(left <= LADDER_MS, "{status}: {a}");
        super::reset(&node, "a").await;
    }
    upstream.script("a", [Reply::error(400, "the colour must be green")]);
    super::stays(&node, &upstream, "400").await;
}

/// With a good configuration nothing is said of what is acted on.
#[tokio::test]
async fn a_start_says_nothing_of_overrides_that_work() {
    let upstream = Upstream::start().await;
    let own = json!({"rotationOverrides": {"rotateOn429": false}});
    let mut node = Node::start(&pair(&upstream, &own)).await;
    node.stop().await;
    let text = node.log().text();
    assert!(!text.contains("rotationOverrides"), "{text}");
}
