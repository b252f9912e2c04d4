//! Runs one case: its upstream, its node, its requests at their times.

use std::time::{Duration, Instant, SystemTime};

use cluster_tests::client::Call;
use cluster_tests::config::Config;
use cluster_tests::node::Node;
use cluster_tests::reply::{Finish, Reply};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::let_time_pass;
use serde_json::{Value, json};

/// What came of a case.
pub(crate) struct Ran {
    pub(crate) upstream: Upstream,
    pub(crate) node: Node,
    /// In the order of the requests; those that were abandoned are not there.
    pub(crate) answers: Vec<Outcome>,
    pub(crate) started: Instant,
}

/// One answer.
pub(crate) struct Outcome {
    pub(crate) status: u16,
    pub(crate) text: String,
    pub(crate) retry_after: Option<u64>,
    pub(crate) took: Duration,
    pub(crate) at: At,
}

/// When an answer was complete.
pub(crate) struct At(Instant);

impl At {
    pub(crate) fn elapsed_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier)
    }
}

fn file() -> Value {
    let text = include_str!("../../data/cases.yaml");
    let mut yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(text).unwrap();
    yaml.apply_merge().unwrap();
    serde_json::to_value(yaml).unwrap()
}

fn entries(value: &Value) -> Vec<(String, Value)> {
    let map = value.as_object().into_iter().flatten();
    map.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// The ids of all cases.
pub(crate) fn ids() -> Vec<String> {
    let cases = file()["cases"].as_array().unwrap().clone();
    cases
        .iter()
        .map(|case| case["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Runs the case `id` to its end.
pub(crate) async fn run(id: &str) -> Ran {
    let cases = file()["cases"].as_array().unwrap().clone();
    let case = cases
        .into_iter()
        .find(|case| case["id"] == id)
        .expect("no such case");
    let upstream = Upstream::start().await;
    let requests = requests(&case["client_request"]);
    let node = Node::start(&config(&case["config"], &upstream, &requests[0].path)).await;
    for (connection, steps) in entries(&case["upstream_script"]) {
        let steps: Vec<Value> = steps.as_array().unwrap().clone();
        upstream.script(&connection, steps.iter().map(reply));
    }
    let started = Instant::now();
    let calls: Vec<_> = requests
        .into_iter()
        .map(|request| tokio::spawn(perform(request, started, node.addr())))
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.extend(call.await.unwrap());
    }
    Ran {
        upstream,
        node,
        answers,
        started,
    }
}

struct Request {
    at: Duration,
    leaves_at: Option<Duration>,
    path: String,
    body: Value,
}

fn millis(value: &Value) -> Option<Duration> {
    value.as_u64().map(Duration::from_millis)
}

fn requests(value: &Value) -> Vec<Request> {
    let list = match value {
        Value::Array(list) => list.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            vec![value.clone()]
        }
    };
    let mut all = Vec::new();
    for one in list {
        let first = millis(&one["at_ms"]).unwrap_or_default();
        let every = millis(&one["every_ms"]).unwrap_or_default();
        for n in 0..one["repeat"].as_u64().unwrap_or(1) {
            all.push(Request {
                at: first + every * u32::try_from(n).unwrap(),
                leaves_at: millis(&one["disconnect_at_ms"]),
                path: one["path"].as_str().unwrap().to_owned(),
                body: one["body"].clone(),
            });
        }
    }
    all
}

fn config(case: &Value, upstream: &Upstream, path: &str) -> Config {
    let protocol = if path == "/v1/messages" {
        "anthropic"
    } else {
        "openai"
    };
    let mut provider = json!({});
    if let Some(profile) = case.get("profile") {
        provider["profile"] = profile.clone();
    }
    if let Some(idle) = case.get("progress_idle_ms") {
        provider["timeouts"] = json!({"progressIdleMs": idle});
    }
    let mut config = Config::new();
    for (id, connection) in entries(&case["connections"]) {
        let mut more = json!({"models": ["demo-model"]});
        if let Some(priority) = connection.get("priority") {
            more["priority"] = priority.clone();
        }
        if let Some(slots) = connection.get("slots") {
            more["maxConcurrent"] = slots.clone();
        }
        if connection["auth"] == "oauth" {
            provider["auth"] = json!("oauth");
            more["oauth"] = json!({"accessToken": format!("key-{id}")});
        }
        config = config.connection_with(&id, "acme", more);
    }
    config = config.provider_with("acme", protocol, &upstream.url(), provider);
    if let Some(base) = case.get("base_cooldown_ms") {
        for profile in ["apikey", "local"] {
            let key = format!("connectionCooldown.{profile}.baseCooldownMs");
            config = config.resilience(&key, base.clone());
        }
    }
    match case.get("wait") {
        Some(wait) => config
            .resilience("waitForCooldown.maxRetries", wait["retries"].clone())
            .resilience("waitForCooldown.maxRetryWaitSec", wait["longest_s"].clone()),
        None => config.no_waiting(),
    }
}

async fn perform(
    request: Request,
    started: Instant,
    addr: std::net::SocketAddr,
) -> Option<Outcome> {
    let wait = (started + request.at).saturating_duration_since(Instant::now());
    let_time_pass(wait, "the case says when").await;
    let call = Call::new(addr, "POST", &request.path).json(&request.body);
    if let Some(leaves_at) = request.leaves_at {
        let left = (started + leaves_at).saturating_duration_since(Instant::now());
        drop(tokio::time::timeout(left, call.try_open()).await);
        return None;
    }
    let answer = call.send().await;
    Some(Outcome {
        status: answer.status,
        text: answer.text(),
        retry_after: answer.retry_after(),
        took: answer.took,
        at: At(Instant::now()),
    })
}

fn reply(step: &Value) -> Reply {
    let status = u16::try_from(step["status"].as_u64().unwrap()).unwrap();
    let mut reply = if step["stream"].is_array() {
        stream(step)
    } else {
        Reply::json(status, &step["body"])
    };
    for (name, value) in entries(&step["headers"]) {
        reply = reply.header(&name, &filled(value.as_str().unwrap()));
    }
    match step["delay_ms"].as_u64() {
        Some(ms) => reply.after_ms(ms),
        None => reply,
    }
}

fn stream(step: &Value) -> Reply {
    let mut reply = Reply::sse();
    for frame in step["stream"].as_array().unwrap() {
        let mut text = String::new();
        if let Some(event) = frame["event"].as_str() {
            text.extend(["event: ", event, "\n"]);
        }
        let data = match frame["data"].as_str() {
            Some(word) => word.to_owned(),
            None => frame["data"].to_string(),
        };
        text.extend(["data: ", &data, "\n\n"]);
        for _ in 0..frame["repeat"].as_u64().unwrap_or(1) {
            reply = reply
                .wait_ms(frame["after_ms"].as_u64().unwrap_or(0))
                .send(&text);
        }
    }
    match step["end"].as_str() {
        Some("hang") => reply.end(Finish::Hang),
        Some("reset") => reply.end(Finish::Reset),
        Some("eof") => reply,
        other => panic!("an unknown end: {other:?}"),
    }
}

/// Fills `{{now+90s|http_date}}` and the like.
fn filled(text: &str) -> String {
    let Some(inner) = text
        .strip_prefix("{{now")
        .and_then(|rest| rest.strip_suffix("}}"))
    else {
        return text.to_owned();
    };
    let (offset, format) = inner.split_once('|').expect("no format");
    let seconds: i64 = offset.strip_suffix('s').expect("no unit").parse().unwrap();
    let now = SystemTime::now();
    let shift = Duration::from_secs(seconds.unsigned_abs());
    let at = if seconds < 0 {
        now - shift
    } else {
        now + shift
    };
    match format {
        "http_date" => httpdate::fmt_http_date(at),
        "epoch_s" => at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs()
            .to_string(),
        other => panic!("an unknown format: {other}"),
    }
}
