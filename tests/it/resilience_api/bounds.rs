//! What is refused, and that a refusal names every bad key and changes nothing.

use cluster_tests::config::Config;
use cluster_tests::node::Node;
use serde_json::{Value, json};

use super::{BOTH, RESILIENCE, SETTINGS, get, patch, save};

/// Everything that is refused: its body, and the paths that have to be named.
async fn expect_refused(node: &Node, path: &str, cases: &[(Value, &[&str])]) {
    let before = get(node, path).await;
    for (body, bad) in cases {
        let answer = patch(node, path, body).send().await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        assert_eq!(answer.code(), "invalid_settings", "{body}");
        let text = answer.text();
        for key in *bad {
            assert!(text.contains(key), "{key} is not named for {body}: {text}");
        }
    }
    assert_eq!(get(node, path).await, before, "a refusal changed something");
}

#[tokio::test]
async fn numbers_out_of_their_bounds() {
    let node = Node::start(&Config::new()).await;
    let cooldown = |profile: &str, key: &str, value: Value| json!({"connectionCooldown": {profile: {key: value}}});
    let breaker = |profile: &str, key: &str, value: Value| json!({"providerBreaker": {profile: {key: value}}});
    let mut cases: Vec<(Value, &[&str])> = Vec::new();
    for profile in ["oauth", "apikey", "local"] {
        for (key, value) in [
            ("baseCooldownMs", json!(-1)),
            ("baseCooldownMs", json!(86_400_001)),
            ("maxBackoffSteps", json!(-1)),
            ("maxBackoffSteps", json!(33)),
        ] {
            cases.push((cooldown(profile, key, value), &["connectionCooldown."]));
        }
        for (key, value) in [
            ("failureThreshold", json!(0)),
            ("failureThreshold", json!(1001)),
            ("degradationThreshold", json!(0)),
            ("degradationThreshold", json!(1001)),
            ("resetTimeoutMs", json!(999)),
            ("resetTimeoutMs", json!(86_400_001)),
        ] {
            cases.push((breaker(profile, key, value), &["providerBreaker."]));
        }
    }
    for (key, value) in [
        ("maxRetries", json!(-1)),
        ("maxRetries", json!(11)),
        ("maxRetryWaitSec", json!(-1)),
        ("maxRetryWaitSec", json!(301)),
    ] {
        let body = json!({"waitForCooldown": {key: value}});
        cases.push((body, &["waitForCooldown."]));
    }
    for (key, value) in [
        ("minRetryCooldownMs", json!(-1)),
        ("minRetryCooldownMs", json!(3_600_001)),
        ("maxRetryCooldownMs", json!(-1)),
        ("maxRetryCooldownMs", json!(86_400_001)),
    ] {
        let body = json!({"providerCooldown": {key: value}});
        cases.push((body, &["providerCooldown."]));
    }
    expect_refused(&node, RESILIENCE, &cases).await;
}

/// API-04, API-06: what does not fit together.
#[tokio::test]
async fn numbers_that_contradict_each_other() {
    let node = Node::start(&Config::new()).await;
    expect_refused(
        &node,
        RESILIENCE,
        &[
            (
                json!({"providerBreaker": {"apikey":
                    {"failureThreshold": 5, "degradationThreshold": 5}}}),
                &["providerBreaker.apikey"],
            ),
            (
                json!({"providerBreaker": {"oauth":
                    {"failureThreshold": 5, "degradationThreshold": 6}}}),
                &["providerBreaker.oauth"],
            ),
            (
                json!({"providerCooldown":
                    {"minRetryCooldownMs": 10_000, "maxRetryCooldownMs": 5_000}}),
                &["providerCooldown"],
            ),
        ],
    )
    .await;
    // With a threshold of one there is nothing below it.
    let one = json!({"providerBreaker": {"apikey":
        {"failureThreshold": 1, "degradationThreshold": 1}}});
    save(&node, RESILIENCE, &one).await;
}

#[tokio::test]
async fn values_of_another_kind() {
    let node = Node::start(&Config::new()).await;
    let cases: [(Value, &[&str]); 9] = [
        (json!({"connectionCooldown": 5}), &["connectionCooldown"]),
        (
            json!({"connectionCooldown": {"apikey": []}}),
            &["connectionCooldown.apikey"],
        ),
        (
            json!({"connectionCooldown": {"apikey": {"baseCooldownMs": "many"}}}),
            &["connectionCooldown.apikey.baseCooldownMs"],
        ),
        (
            json!({"connectionCooldown": {"apikey": {"useUpstreamRetryHints": "true"}}}),
            &["connectionCooldown.apikey.useUpstreamRetryHints"],
        ),
        (
            json!({"connectionCooldown": {"apikey": {"useUpstreamRetryHints": 1}}}),
            &["connectionCooldown.apikey.useUpstreamRetryHints"],
        ),
        (
            json!({"waitForCooldown": {"enabled": "no"}}),
            &["waitForCooldown.enabled"],
        ),
        (
            json!({"providerCooldown": {"enabled": "off"}}),
            &["providerCooldown.enabled"],
        ),
        (
            json!({"quotaShareConcurrencyLimit": {"enabled": 0}}),
            &["quotaShareConcurrencyLimit.enabled"],
        ),
        (json!({"providerBreaker": "off"}), &["providerBreaker"]),
    ];
    expect_refused(&node, RESILIENCE, &cases).await;
}

/// API-02, API-03.
#[tokio::test]
async fn nothing_at_all_and_unknown_keys() {
    let node = Node::start(&Config::new()).await;
    for path in BOTH {
        let cases: [(Value, &[&str]); 5] = [
            (json!({}), &[]),
            (json!([]), &[]),
            (json!(null), &[]),
            (json!("connectionCooldown"), &[]),
            (json!({"noSuchThing": {}}), &["noSuchThing"]),
        ];
        expect_refused(&node, path, &cases).await;
    }
    let cases: [(Value, &[&str]); 4] = [
        (
            json!({"connectionCooldown": {"apiKeys": {}}}),
            &["connectionCooldown.apiKeys"],
        ),
        (
            json!({"connectionCooldown": {"apikey": {"baseCooldown": 5}}}),
            &["connectionCooldown.apikey.baseCooldown"],
        ),
        (
            json!({"providerCooldown": {"min": 5}}),
            &["providerCooldown.min"],
        ),
        // It belongs to the other route.
        (
            json!({"modelLockout": {"enabled": true}}),
            &["modelLockout"],
        ),
    ];
    expect_refused(&node, RESILIENCE, &cases).await;
    let cases: [(Value, &[&str]); 3] = [
        (
            json!({"modelLockout": {"enable": true}}),
            &["modelLockout.enable"],
        ),
        (json!({"leases": {"ttl": 5}}), &["leases.ttl"]),
        (json!({"egress": {"echo": "x"}}), &["egress.echo"]),
    ];
    expect_refused(&node, SETTINGS, &cases).await;
}

#[tokio::test]
async fn every_bad_key_is_named_and_the_good_ones_are_not_taken() {
    let node = Node::start(&Config::new()).await;
    let body = json!({
        "connectionCooldown": {"apikey": {"baseCooldownMs": -1, "maxBackoffSteps": 4}},
        "providerBreaker": {"oauth": {"resetTimeoutMs": 1, "typo": 1}},
        "providerCooldown": {"enabled": true},
        "unheardOf": 1,
    });
    let bad: &[&str] = &[
        "connectionCooldown.apikey.baseCooldownMs",
        "providerBreaker.oauth.resetTimeoutMs",
        "providerBreaker.oauth.typo",
        "unheardOf",
    ];
    expect_refused(&node, RESILIENCE, &[(body, bad)]).await;
    let body = json!({
        "modelLockout": {"baseCooldownMs": 1, "maxBackoffSteps": 21},
        "sessionAffinityTtlMs": -1,
        "customBannedSignals": ["fine"],
    });
    let bad: &[&str] = &[
        "modelLockout.baseCooldownMs",
        "modelLockout.maxBackoffSteps",
        "sessionAffinityTtlMs",
    ];
    expect_refused(&node, SETTINGS, &[(body, bad)]).await;
}

#[tokio::test]
async fn settings_outside_resilience_have_bounds_too() {
    let node = Node::start(&Config::new()).await;
    let many_codes: Vec<u16> = (400..421).collect();
    let lockout = |key: &str, value: Value| json!({"modelLockout": {key: value}});
    let expired = |key: &str, value: Value| json!({"expiredRetry": {key: value}});
    let cases: Vec<(Value, &[&str])> = vec![
        (lockout("baseCooldownMs", json!(4_999)), &["modelLockout."]),
        (
            lockout("baseCooldownMs", json!(600_001)),
            &["modelLockout."],
        ),
        (lockout("maxCooldownMs", json!(4_999)), &["modelLockout."]),
        (
            lockout("maxCooldownMs", json!(3_600_001)),
            &["modelLockout."],
        ),
        (lockout("maxBackoffSteps", json!(21)), &["modelLockout."]),
        (lockout("maxBackoffSteps", json!(-1)), &["modelLockout."]),
        (lockout("errorCodes", json!([99])), &["modelLockout."]),
        (lockout("errorCodes", json!([600])), &["modelLockout."]),
        (lockout("errorCodes", json!([404.5])), &["modelLockout."]),
        (lockout("errorCodes", json!(many_codes)), &["modelLockout."]),
        (expired("sweepMs", json!(999)), &["expiredRetry.sweepMs"]),
        (
            expired("sweepMs", json!(3_600_001)),
            &["expiredRetry.sweepMs"],
        ),
        (expired("baseMs", json!(999)), &["expiredRetry.baseMs"]),
        (
            expired("baseMs", json!(86_400_001)),
            &["expiredRetry.baseMs"],
        ),
        (
            expired("maxRetries", json!(11)),
            &["expiredRetry.maxRetries"],
        ),
        (
            json!({"customBannedSignals": ["x".repeat(201)]}),
            &["customBannedSignals"],
        ),
        (
            json!({"customBannedSignals": "one"}),
            &["customBannedSignals"],
        ),
        (
            json!({"autoDisableBannedAccounts": "yes"}),
            &["autoDisableBannedAccounts"],
        ),
        (
            json!({"egress": {"echoUrl": "not a url"}}),
            &["egress.echoUrl"],
        ),
        (json!({"leases": {"ttlMs": 0}}), &["leases.ttlMs"]),
    ];
    expect_refused(&node, SETTINGS, &cases).await;
}

/// PER-14, PER-15.
#[tokio::test]
async fn error_rules_are_taken_or_refused_as_a_whole() {
    let node = Node::start(&Config::new()).await;
    let rule = |more: Value| {
        let mut rule = json!({"status": 404, "match": "gone", "scope": "model"});
        let more = more.as_object().unwrap().clone();
        rule.as_object_mut().unwrap().extend(more);
        json!({"providerErrorRules": {"acme": [rule]}})
    };
    let good = json!({"status": 404, "match": "gone", "scope": "model"});
    let many = vec![good.clone(); 51];
    let long = "k".repeat(101);
    let named: &[&str] = &["providerErrorRules"];
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({"providerErrorRules": {"acme": many}}), named),
        (rule(json!({"match": ""})), named),
        (rule(json!({"match": "x".repeat(201)})), named),
        (rule(json!({"status": 99})), named),
        (rule(json!({"status": 600})), named),
        (rule(json!({"status": 404.5})), named),
        (rule(json!({"cooldownMs": -1})), named),
        (rule(json!({"cooldownMs": 86_400_001})), named),
        (rule(json!({"scope": "global"})), named),
        (rule(json!({"reason": "custom"})), named),
        (rule(json!({"extra": 1})), named),
        (
            json!({"providerErrorRules": {"   ": [good.clone()]}}),
            named,
        ),
        (json!({"providerErrorRules": {long: [good.clone()]}}), named),
    ];
    expect_refused(&node, SETTINGS, &cases).await;
    let fifty = json!({"providerErrorRules": {"acme": vec![good.clone(); 50]}});
    save(&node, SETTINGS, &fifty).await;
    let (shown, _) = get(&node, SETTINGS).await;
    let rules = shown["providerErrorRules"]["acme"].as_array().unwrap();
    assert_eq!(rules.len(), 50);
    save(&node, SETTINGS, &json!({"providerErrorRules": {}})).await;
    let (shown, _) = get(&node, SETTINGS).await;
    assert_eq!(shown["providerErrorRules"], json!({}), "{{}} clears");
}

/// API-07, and what is not even a body of this API; 512 KiB are the most.
#[tokio::test]
async fn bodies_that_are_no_json() {
    let node = Node::start(&Config::new()).await;
    for path in BOTH {
        let before = get(&node, path).await;
        let deep = "{\"a\":".repeat(20_000) + &"}".repeat(20_000);
        let call = |body: &str| {
            let call = node.admin_call("PATCH", path);
            call.body("application/json", body.to_owned())
        };
        for body in ["", "{", "nonsense", "{\"a\": 1,}", "\u{0}"] {
            let answer = call(body).send().await;
            assert_eq!(answer.status, 400, "{path} {body:?}: {}", answer.text());
            assert!(!answer.code().is_empty());
        }
        let answer = call(&deep).send().await;
        assert!(matches!(answer.status, 400 | 413), "{}", answer.text());
        let answer = call(&" ".repeat(600_000)).send().await;
        assert_eq!(answer.status, 413, "{}", answer.text());
        for method in ["PUT", "POST", "DELETE"] {
            let answer = node.admin_call(method, path).json(&json!({})).send().await;
            assert_eq!(answer.status, 405, "{method} {path}");
        }
        assert_eq!(get(&node, path).await, before);
    }
}

/// API-15, API-16, BRK-16: the file is clamped, and what is shown is what holds.
#[tokio::test]
async fn the_file_is_clamped_and_shown_as_it_holds() {
    let config = Config::new()
        .resilience("providerBreaker.apikey.resetTimeoutMs", json!(10))
        .resilience("providerBreaker.apikey.failureThreshold", json!(0))
        .resilience("providerBreaker.oauth.failureThreshold", json!(3))
        .resilience("providerBreaker.oauth.degradationThreshold", json!(9))
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(-5))
        .resilience("connectionCooldown.apikey.maxBackoffSteps", json!(99))
        .resilience("waitForCooldown.maxRetries", json!(0))
        .set(
            &["settings", "modelLockout"],
            json!({"baseCooldownMs": 1, "maxCooldownMs": 1_000, "maxBackoffSteps": 99,
                "errorCodes": [99, 600, 429]}),
        );
    let node = Node::start(&config).await;
    let (shown, _) = get(&node, RESILIENCE).await;
    for (path, value) in [
        ("/providerBreaker/apikey/resetTimeoutMs", json!(1_000)),
        ("/providerBreaker/apikey/failureThreshold", json!(1)),
        ("/providerBreaker/oauth/degradationThreshold", json!(2)),
        ("/connectionCooldown/apikey/baseCooldownMs", json!(0)),
        ("/connectionCooldown/apikey/maxBackoffSteps", json!(32)),
        ("/waitForCooldown/enabled", json!(false)),
    ] {
        assert_eq!(shown.pointer(path), Some(&value), "{path} of {shown}");
    }
    let (shown, _) = get(&node, SETTINGS).await;
    let lockout = &shown["modelLockout"];
    assert_eq!(lockout["baseCooldownMs"], 5_000, "{lockout}");
    assert_eq!(lockout["maxCooldownMs"], 5_000, "{lockout}");
    assert_eq!(lockout["maxBackoffSteps"], 20, "{lockout}");
    assert_eq!(lockout["errorCodes"], json!([429]), "{lockout}");
}
