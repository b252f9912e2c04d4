//! Whoever has to find out why a request failed finds the same story in four
//! places: what the node remembers of it, the log, its spans and the metrics.
//! A failure's reason, whom it was charged to, by which rule, what was
//! announced and where that was read, what rests until when, and what the
//! client was told.
//!
//! The names of fields are looked up only where they are promised; otherwise
//! one line (span, series) has to hold all the values.

use cluster_tests::client::Answer;
use cluster_tests::config::Config;
use cluster_tests::dialect::{Dialect, all_providers};
use cluster_tests::metrics::Exposition;
use cluster_tests::node::{Node, Setup, field};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

use crate::refusals::record::{self, Entry, entries};
use crate::telemetry::spans::{Span, collected};

/// Most that two readings of the same wait may differ by, ms.
const NEAR_MS: u64 = 1_500;

/// What each place has to say of a failed attempt.
#[derive(Clone, Debug)]
struct Story {
    reason: String,
    /// Whom it was charged to.
    scope: String,
    rule: String,
    /// Where an announcement was read, and the wait that it announced, ms.
    hint: Option<(String, u64)>,
    /// Until when what it was charged to rests.
    until: Option<String>,
}

impl Story {
    /// What the node remembers of an attempt.
    fn of(attempt: &Value) -> Self {
        let failure = &attempt["failure"];
        let text = |value: &Value| {
            let text = value.as_str();
            text.unwrap_or_else(|| panic!("not told: {attempt}"))
                .to_owned()
        };
        let hint = failure["hint"].as_object().map(|hint| {
            assert!(hint["field"].is_string(), "{attempt}");
            (text(&hint["source"]), hint["waitMs"].as_u64().unwrap())
        });
        Self {
            reason: text(&attempt["reason"]),
            scope: text(&failure["scope"]),
            rule: text(&failure["rule"]),
            hint,
            until: attempt["cooledUntil"].as_str().map(str::to_owned),
        }
    }

    /// What of it is in none of these values.
    fn misses(&self, values: &[Value]) -> Vec<String> {
        let mut misses = Vec::new();
        let mut want = |what: &str, found: bool| {
            if !found {
                misses.push(what.to_owned());
            }
        };
        let has = |text: &str| values.iter().any(|value| value == text);
        want("reason", has(&self.reason));
        want("scope", has(&self.scope));
        want("rule", has(&self.rule));
        if let Some((source, wait)) = &self.hint {
            want("hint's source", has(source));
            let as_ms = |value: &Value| value.as_u64() == Some(*wait);
            want("hint", values.iter().any(as_ms));
        }
        if let Some(until) = &self.until {
            want("end of the rest", has(until));
        }
        misses
    }
}

/// The values of a log record, without what every line has.
fn values(record: &Value) -> Vec<Value> {
    let nested = record["fields"].as_object().into_iter().flatten();
    let top = record.as_object().into_iter().flatten();
    let own = ["message", "target", "level", "timestamp"];
    top.chain(nested)
        .filter(|(name, _)| !own.contains(&name.as_str()))
        .map(|(_, value)| value.clone())
        .collect()
}

/// The values of a span's own attributes.
fn attributes(span: &Span) -> Vec<Value> {
    let all = span.0["attributes"].as_array().cloned().unwrap_or_default();
    let names = all.iter().filter_map(|one| one["key"].as_str());
    names.filter_map(|name| span.attribute(name)).collect()
}

/// The log's lines about the request of this answer, the last one included.
async fn lines(node: &Node, answer: &Answer) -> Vec<Value> {
    let id = answer.header("x-request-id").unwrap();
    eventually("the request is logged", || async {
        let mut records = node.log().records();
        records.retain(|record| field(record, "request_id") == Some(id));
        let whole = records
            .iter()
            .any(|record| field(record, "message") == Some("request"));
        whole.then_some(records)
    })
    .await
}

/// The spans of the request of this answer, once its server span is there.
async fn spans(collector: &Upstream, answer: &Answer) -> Vec<Span> {
    let id = json!(answer.header("x-request-id").unwrap());
    eventually("the spans are collected", || async {
        let all = collected(collector);
        let server = all
            .iter()
            .find(|span| span.attribute("omniroute.request_id").as_ref() == Some(&id))?;
        let trace = server.0["traceId"].clone();
        let mine: Vec<Span> = all
            .iter()
            .filter(|span| span.0["traceId"] == trace)
            .cloned()
            .collect();
        let calls = server.attribute("omniroute.attempts")?.as_u64()?;
        (mine.len() as u64 > calls).then_some(mine)
    })
    .await
}

async fn collector() -> Upstream {
    let collector = Upstream::start().await;
    collector.script_all([Reply::json(200, &json!({}))]);
    collector
}

async fn start(config: &Config, collector: &Upstream) -> Node {
    let setup = Setup::with(config)
        .env(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            &format!("http://{}", collector.addr()),
        )
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
        .env("OTEL_BSP_SCHEDULE_DELAY", "20");
    setup.start().await
}

async fn scrape(node: &Node) -> Exposition {
    let answer = node.admin_call("GET", "/metrics").send().await;
    Exposition::parse(&answer.expect_status(200).text())
}

/// A third of the refusals that need no clock of their own, each on a node of
/// its own; `n` of 2 halves of them.
fn sample(n: usize) -> Vec<Entry> {
    let plain = entries().into_iter().filter(|entry| entry.now.is_none());
    let sample: Vec<Entry> = plain.skip(n).step_by(6).collect();
    assert!(sample.len() >= 10, "{}", sample.len());
    sample
}

async fn ask(node: &Node, entry: &Entry, model: &str) -> Answer {
    let mut body = entry.dialect().ask(entry.stream);
    body["model"] = json!(model);
    node.post(entry.dialect().path(), &body).send().await
}

struct Told {
    upstream: Upstream,
    collector: Upstream,
    node: Node,
    /// Of a request that somebody else could serve.
    answer: Answer,
    story: Story,
}

async fn run(entry: &Entry) -> Told {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let good = if entry.stream {
        entry.dialect().ok_stream("pong")
    } else {
        entry.dialect().ok("pong")
    };
    upstream.script("a", [entry.reply()]);
    upstream.script("b", [good]);
    let node = start(&crate::refusals::config(entry, &upstream), &collector).await;
    let answer = ask(&node, entry, "both").await;
    let trace = node.trace(&answer).await;
    let story = Story::of(&trace["attempts"][0]);
    Told {
        upstream,
        collector,
        node,
        answer,
        story,
    }
}

/// What the four places miss of this refusal.
async fn misses(entry: &Entry) -> Vec<String> {
    let told = run(entry).await;
    let story = &told.story;
    let mut misses = Vec::new();
    let mut note = |place: &str, missed: Vec<String>| {
        misses.extend(missed.into_iter().map(|what| format!("{place}: no {what}")));
    };
    let lines = lines(&told.node, &told.answer).await;
    let best = lines.iter().map(|line| story.misses(&values(line)));
    note("log", best.min_by_key(Vec::len).unwrap());
    let spans = spans(&told.collector, &told.answer).await;
    let calls = spans.iter().filter(|span| span.0["kind"] == 3);
    let best = calls.map(|span| story.misses(&attributes(span)));
    note("trace", best.min_by_key(Vec::len).unwrap());
    note("metrics", counted(&told, &entry.provider).await);
    misses.extend(rests(&told).await);
    misses.extend(alone(entry, &told).await);
    misses
}

/// A series of the provider's failures with all that is bounded of the story.
async fn counted(told: &Told, provider: &str) -> Vec<String> {
    let story = Story {
        hint: None,
        until: None,
        ..told.story.clone()
    };
    let metrics = scrape(&told.node).await;
    let counted = metrics.samples.iter().filter(|sample| {
        sample.name.ends_with("_total")
            && sample.value >= 1.0
            && sample
                .labels
                .get("provider")
                .is_some_and(|it| it == provider)
    });
    let best = counted.map(|sample| {
        let values: Vec<Value> = sample.labels.values().map(|value| json!(value)).collect();
        let mut missed = story.misses(&values);
        let source = told.story.hint.as_ref().map(|(source, _)| json!(source));
        if source.is_some_and(|source| !values.contains(&source)) {
            missed.push("hint's source".to_owned());
        }
        missed
    });
    let best = best.min_by_key(Vec::len);
    best.unwrap_or_else(|| vec!["failure of the provider".to_owned()])
}

/// What the story says of the rest is what is so.
async fn rests(told: &Told) -> Vec<String> {
    let connection = told.node.connection("a").await;
    let left = match told.story.scope.as_str() {
        "model" => connection["lockouts"][0]["remainingMs"].as_u64(),
        _ => connection["cooldownRemainingMs"].as_u64(),
    };
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap();
    let until = told.story.until.as_deref().map(record::epoch_ms);
    let said = until.map_or(0, |until| until.saturating_sub(now));
    let left = left.unwrap_or(0);
    if said.abs_diff(left) > NEAR_MS {
        return vec![format!(
            "it rests {left} ms, told were {said}: {connection}"
        )];
    }
    Vec::new()
}

/// Without anybody else: what the client was told is told everywhere.
async fn alone(entry: &Entry, told: &Told) -> Vec<String> {
    let mut misses = Vec::new();
    let reset = told.node.admin_call("POST", "/api/connections/a/reset");
    reset.send().await.expect_status(200);
    told.upstream.script("a", [entry.reply()]);
    let answer = ask(&told.node, entry, &format!("{}/demo-model", entry.provider)).await;
    let trace = told.node.trace(&answer).await;
    if trace["status"] != answer.status {
        misses.push(format!("told {}, remembered: {trace}", answer.status));
    }
    let lines = lines(&told.node, &answer).await;
    let line = lines
        .iter()
        .find(|line| field(line, "message") == Some("request"))
        .unwrap();
    if !values(line).contains(&json!(answer.status)) {
        misses.push(format!("log: no status in {line}"));
    }
    let spans = spans(&told.collector, &answer).await;
    let server = spans.iter().find(|span| span.0["kind"] == 2).unwrap();
    if server.attribute("http.response.status_code") != Some(json!(answer.status)) {
        misses.push(format!("trace: no status in {server:?}"));
    }
    let Some(seconds) = answer.retry_after() else {
        return misses;
    };
    let near = |value: &Value| {
        let as_ms = value
            .as_u64()
            .map(|ms| ms.abs_diff(seconds * 1000) <= NEAR_MS);
        value.as_u64() == Some(seconds) || as_ms == Some(true)
    };
    if !near(&trace["error"]["retryAfterMs"]) {
        misses.push(format!("Retry-After {seconds}, remembered: {trace}"));
    }
    if !values(line).iter().any(near) {
        misses.push(format!("log: no Retry-After {seconds} in {line}"));
    }
    if !attributes(server).iter().any(near) {
        misses.push(format!("trace: no Retry-After {seconds} in {server:?}"));
    }
    misses
}

async fn half(n: usize) {
    let mut all = Vec::new();
    for entry in sample(n) {
        let found = misses(&entry).await;
        if !found.is_empty() {
            all.push((entry.id.clone(), found));
        }
    }
    assert!(all.is_empty(), "{}: {all:#?}", all.len());
}

#[tokio::test]
async fn every_refusal_is_explained_in_all_places() {
    half(0).await;
}

#[tokio::test]
async fn every_other_refusal_is_explained_in_all_places() {
    half(3).await;
}

fn pair(upstream: &Upstream) -> Config {
    all_providers(&upstream.url(), &["a", "b"], &json!({})).no_waiting()
}

async fn chat(node: &Node, stream: bool) -> Answer {
    let body = Dialect::Chat.ask(stream);
    node.post("/v1/chat/completions", &body).send().await
}

/// Each failed attempt has its own story; none is told by the next one's.
#[tokio::test]
async fn each_attempt_has_its_own_story() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let node = start(&pair(&upstream), &collector).await;
    upstream.script("chat-a", [Reply::limited(600)]);
    upstream.script("chat-b", [Reply::error(401, "invalid api key")]);
    let answer = chat(&node, false).await;
    let trace = node.trace(&answer).await;
    let stories: Vec<Story> = trace["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(Story::of)
        .collect();
    assert_eq!(stories.len(), 2, "{trace}");
    assert_eq!(stories[0].reason, "rate_limit_exceeded");
    assert_eq!(stories[1].reason, "auth_error");
    assert_ne!(stories[0].rule, stories[1].rule);
    assert!(stories[0].until.is_some() && stories[1].until.is_none());
    let lines = lines(&node, &answer).await;
    let spans = spans(&collector, &answer).await;
    for (story, id) in stories.iter().zip(["chat-a", "chat-b"]) {
        // The line (span) that tells the story names its connection too.
        let about = |values: Vec<Value>| {
            let named = values.contains(&json!(id));
            named && story.misses(&values).is_empty()
        };
        assert!(
            lines.iter().any(|line| about(values(line))),
            "{story:?}: {lines:#?}"
        );
        assert!(
            spans.iter().any(|span| about(attributes(span))),
            "{story:?}: {spans:#?}"
        );
    }
}

/// A terminal state has no end, and is told as what it is.
#[tokio::test]
async fn an_end_is_told_as_one() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let node = start(&pair(&upstream), &collector).await;
    upstream.script("chat-a", [Reply::error(402, "payment required")]);
    upstream.script("chat-b", [Dialect::Chat.ok("pong")]);
    let answer = chat(&node, false).await.expect_status(200);
    let trace = node.trace(&answer).await;
    let attempt = &trace["attempts"][0];
    assert_eq!(
        attempt["failure"]["terminal"], "credits_exhausted",
        "{trace}"
    );
    assert!(attempt["cooledUntil"].is_null(), "{trace}");
    let word = json!("credits_exhausted");
    let lines = lines(&node, &answer).await;
    let told = lines.iter().any(|line| values(line).contains(&word));
    assert!(told, "{lines:#?}");
    let spans = spans(&collector, &answer).await;
    let told = spans.iter().any(|span| attributes(span).contains(&word));
    assert!(told, "{spans:#?}");
}

/// A failure after output is told in-band: the status is 200, the story is not.
#[tokio::test]
async fn a_failure_after_output_is_explained_too() {
    for dialect in Dialect::ALL {
        let (upstream, collector) = (Upstream::start().await, collector().await);
        let node = start(&pair(&upstream), &collector).await;
        let mut frames = dialect.opening();
        frames.push(dialect.content("hel"));
        frames.push(dialect.error_event("rate_limit_error", "Rate limit reached"));
        upstream.script(&dialect.connection("a"), [Reply::frames(&frames)]);
        let answer = node.post(dialect.path(), &dialect.ask(true)).send().await;
        let answer = answer.expect_status(200);
        dialect.expect_broken(&answer.text(), "hel");
        let lines = lines(&node, &answer).await;
        let trace = node.trace(&answer).await;
        let story = Story::of(&trace["attempts"][0]);
        assert!(!trace["error"]["code"].is_null(), "what was told: {trace}");
        assert!(story.until.is_some(), "what rests until when: {trace}");
        let best = lines.iter().map(|line| story.misses(&values(line)));
        assert_eq!(
            best.min_by_key(Vec::len).unwrap(),
            Vec::<String>::new(),
            "{dialect:?}: {lines:#?}"
        );
        let spans = spans(&collector, &answer).await;
        let best = spans.iter().map(|span| story.misses(&attributes(span)));
        assert_eq!(
            best.min_by_key(Vec::len).unwrap(),
            Vec::<String>::new(),
            "{dialect:?}: {spans:#?}"
        );
    }
}

/// A refusal without any attempt: everybody who was left out, why, until when.
#[tokio::test]
async fn a_refusal_without_an_attempt_is_explained() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let node = start(&pair(&upstream), &collector).await;
    for id in ["chat-a", "chat-b"] {
        upstream.script(id, [Reply::limited(600)]);
    }
    chat(&node, false).await.expect_status(429);
    let answer = chat(&node, false).await.expect_status(503);
    let trace = node.trace(&answer).await;
    let excluded = trace["excluded"].as_array().unwrap();
    assert_eq!(excluded.len(), 2, "{trace}");
    for entry in excluded {
        assert_eq!(entry["reason"], "connection_cooldown", "{entry}");
        let until = record::epoch_ms(entry["until"].as_str().unwrap());
        let id = entry["connection"].as_str().unwrap();
        let connection = node.connection(id).await;
        let so = connection["rateLimitedUntil"].as_u64().unwrap();
        assert!(until.abs_diff(so) <= 1, "{entry} {connection}");
    }
    let seconds = answer.retry_after().unwrap();
    let told = trace["error"]["retryAfterMs"].as_u64().unwrap();
    assert!(told.abs_diff(seconds * 1000) <= NEAR_MS, "{trace}");
    assert_eq!(trace["error"]["code"], answer.code(), "{trace}");
    let lines = lines(&node, &answer).await;
    assert!(
        lines
            .iter()
            .any(|line| values(line).contains(&json!(answer.code()))),
        "{lines:#?}"
    );
    let spans = spans(&collector, &answer).await;
    assert_eq!(spans[0].attribute("error.type"), Some(json!(answer.code())));
}

/// An operator's rule is told by a name of its own, apart from the built-in ones.
#[tokio::test]
async fn an_operators_rule_is_told_apart() {
    let (upstream, collector) = (Upstream::start().await, collector().await);
    let rules = json!([
        {"status": 404, "match": "withdrawn", "scope": "connection", "cooldownMs": 600_000},
        {"status": 404, "match": "gone away", "scope": "model", "cooldownMs": 600_000},
    ]);
    let config = pair(&upstream).set(&["settings", "providerErrorRules", "chat"], rules);
    let node = start(&config, &collector).await;
    upstream.script("chat-b", [Dialect::Chat.ok("pong")]);
    let mut names = Vec::new();
    for words in ["model withdrawn", "model gone away", "no such model"] {
        let all = json!({"scope": "all"});
        let reset = node.post("/api/resilience/reset", &all);
        reset.send().await.expect_status(200);
        upstream.script("chat-a", [Reply::error(404, words)]);
        let answer = chat(&node, false).await;
        let trace = node.trace(&answer).await;
        names.push(Story::of(&trace["attempts"][0]).rule);
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3, "{names:?}");
}
