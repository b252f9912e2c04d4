//! Every recorded refusal through the real binary: whether somebody else is
//! tried, what is left alone and until when, and what the client is told.
//!
//! A refusal that speaks of times runs with the node's clock set to when it was
//! recorded, by `libfaketime`.

pub(crate) mod record;

use std::collections::BTreeMap;

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

use record::{Entry, entries};

/// A shared machine may take its time between two looks at a clock, ms.
const TOLERANCE_MS: u64 = 1_000;

/// What a refusal did that it should not have done.
type Misses = Vec<String>;

/// Runs a quarter of the entries, each on a node of its own.
async fn quarter(n: usize) {
    let mut misses: BTreeMap<String, Misses> = BTreeMap::new();
    let mut count = 0_usize;
    for entry in entries().into_iter().skip(n).step_by(4) {
        count += 1;
        let found = run(&entry).await;
        if !found.is_empty() {
            misses.insert(entry.id.clone(), found);
        }
    }
    assert!(count > 25, "{count}");
    assert!(
        misses.is_empty(),
        "{} of {count}: {misses:#?}",
        misses.len()
    );
}

#[tokio::test]
async fn first_quarter() {
    quarter(0).await;
}

#[tokio::test]
async fn second_quarter() {
    quarter(1).await;
}

#[tokio::test]
async fn third_quarter() {
    quarter(2).await;
}

#[tokio::test]
async fn fourth_quarter() {
    quarter(3).await;
}

pub(crate) fn config(entry: &Entry, upstream: &Upstream) -> Config {
    let protocol = match entry.dialect() {
        Dialect::Chat => "openai",
        Dialect::Messages => "anthropic",
        Dialect::Responses => "responses",
    };
    let mut more = json!({"authHeader": "bearer"});
    let mut connection = json!({"models": ["demo-model"]});
    if entry.is_oauth() {
        more["auth"] = json!("oauth");
        connection["oauth"] = json!({"accessToken": "key-a"});
    }
    if entry.is_relay() {
        more["perModelQuota"] = json!(true);
    }
    if entry.is_local() {
        more["profile"] = json!("local");
    }
    Config::new()
        .no_waiting()
        .server("earlyKeepAlive", json!(false))
        .provider_with(&entry.provider, protocol, &upstream.url(), more)
        .provider("backup", protocol, &upstream.url())
        .connection_with("a", &entry.provider, connection)
        .connection("b", "backup")
        .combo(
            "both",
            &[
                &format!("{}/demo-model@a", entry.provider),
                "backup/demo-model@b",
            ],
        )
}

async fn start(entry: &Entry, upstream: &Upstream) -> Node {
    let setup = Setup::with(&config(entry, upstream));
    let setup = match &entry.now {
        None => setup,
        Some(now) => setup
            .env("LD_PRELOAD", &record::faketime())
            .env("FAKETIME", &record::offset(now))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1"),
    };
    setup.start().await
}

async fn ask(node: &Node, entry: &Entry, model: &str) -> Answer {
    let dialect = entry.dialect();
    let mut body = dialect.ask(entry.stream);
    body["model"] = json!(model);
    node.post(dialect.path(), &body).send().await
}

async fn run(entry: &Entry) -> Misses {
    let upstream = Upstream::start().await;
    let good = if entry.stream {
        entry.dialect().ok_stream("pong")
    } else {
        entry.dialect().ok("pong")
    };
    upstream.script("a", [entry.reply()]);
    upstream.script("b", [good]);
    let began = std::time::Instant::now();
    let node = start(entry, &upstream).await;
    let mut misses = Vec::new();

    // With somebody else to go to.
    let answer = ask(&node, entry, "both").await;
    let trace = node.trace(&answer).await;
    let order = upstream.order();
    let expected = if entry.expected.fallback_allowed {
        vec!["a", "b"]
    } else {
        vec!["a"]
    };
    if order != expected {
        misses.push(format!("tried {order:?}, not {expected:?}"));
    }
    if entry.expected.fallback_allowed && answer.status != 200 {
        misses.push(format!("{} for a request that b served", answer.status));
    }
    let attempt = &trace["attempts"][0];
    state(entry, &node, attempt, &mut misses).await;

    // Alone.
    let reset = node
        .admin_call("POST", "/api/connections/a/reset")
        .send()
        .await;
    assert_eq!(reset.status, 200);
    let model = format!("{}/demo-model", entry.provider);
    let answer = ask(&node, entry, &model).await;
    let late = u64::try_from(began.elapsed().as_millis()).unwrap();
    told(entry, &answer, late, &mut misses);
    misses
}

/// What is left alone, and until when.
async fn state(entry: &Entry, node: &Node, attempt: &Value, misses: &mut Misses) {
    let failure = &attempt["failure"];
    let blame = failure["scope"].as_str().unwrap_or("nobody");
    let scope = match blame {
        "egress_ip" => "provider",
        "protocol_quirk" | "router" | "client" => "request",
        other => other,
    };
    if scope != entry.expected.scope {
        let rule = &failure["rule"];
        misses.push(format!(
            "charged to {scope} by {rule}, not {}",
            entry.expected.scope
        ));
    }
    let connection = node.connection("a").await;
    let status = connection["connectionStatus"].as_str().unwrap_or("");
    let terminal = entry.expected.terminal && entry.expected.scope == "connection";
    if terminal != (status == "terminal") {
        misses.push(format!("{status}, terminal: {terminal}"));
    }
    // A failure of the provider rests the connection that met it, and those beside it.
    if scope == "provider" && attempt["cooledUntil"].is_null() {
        misses.push("nobody rests for the provider".to_owned());
    }
    let may_rest = matches!(scope, "connection" | "provider");
    if !may_rest && status != "healthy" {
        misses.push(format!("{status} although charged to {scope}"));
    }
    let locks = connection["lockouts"].as_array().map_or(0, Vec::len);
    if scope != "model" && locks > 0 {
        misses.push(format!("{locks} locks although charged to {scope}"));
    }
    let Some(expected) = entry.expected.retry_after_ms else {
        if !failure["hint"].is_null() {
            misses.push(format!("an announcement was read: {}", failure["hint"]));
        }
        return;
    };
    let left = match scope {
        "model" => connection["lockouts"][0]["remainingMs"].as_u64(),
        _ => connection["cooldownRemainingMs"].as_u64(),
    };
    let left = left.unwrap_or(0);
    let until = attempt["cooledUntil"].as_str().map(record::epoch_ms);
    let since = attempt["startedAt"].as_str().map(record::epoch_ms);
    let took = attempt["durationMs"].as_u64().unwrap_or(0);
    let wait = until
        .zip(since)
        .map(|(until, since)| until.saturating_sub(since));
    // A short one may be over by now; the trace keeps when it ended.
    let near = |wait: u64| wait.abs_diff(expected) <= TOLERANCE_MS + took;
    // Times of day count from when it was recorded, and the node took its time to start.
    let recorded = entry.now.as_deref().map(record::epoch_ms);
    let absolute = until
        .zip(recorded)
        .map(|(until, now)| until.saturating_sub(now));
    if !(wait.is_some_and(near) || absolute.is_some_and(near)) || left > expected + TOLERANCE_MS {
        misses.push(format!("rests {wait:?} ({left} left), not {expected}"));
    }
}

/// What the client is told when nobody else can serve.
fn told(entry: &Entry, answer: &Answer, late: u64, misses: &mut Misses) {
    if entry.broke_after_content() {
        if answer.status != 200 {
            misses.push(format!("{} after output", answer.status));
        }
        return;
    }
    let fitting = entry.fitting_statuses();
    if !fitting.contains(&answer.status) {
        misses.push(format!(
            "the client got {}, not one of {fitting:?}: {}",
            answer.status,
            answer.text()
        ));
    }
    if answer.text().contains("<html") || answer.text().contains("<!DOCTYPE") {
        misses.push("the client got a web page".to_owned());
    }
    let retry_after = answer.retry_after();
    match entry.expected.retry_after_ms {
        Some(expected) => {
            let told = retry_after.unwrap_or(0).saturating_mul(1000);
            // Rounded up to seconds.
            let near = told.abs_diff(expected) <= 2 * TOLERANCE_MS + late;
            if !near {
                misses.push(format!("Retry-After {retry_after:?}, not {expected} ms"));
            }
        }
        None if entry.expected.terminal && retry_after.is_some() => {
            misses.push(format!(
                "Retry-After {retry_after:?} for what time does not heal"
            ));
        }
        None => {}
    }
}
