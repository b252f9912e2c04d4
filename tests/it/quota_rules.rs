//! What answers say of an account's quota: its windows are known from the
//! headers of successes, so that a bare refusal rests until the fullest window
//! resets, and, where an operator wants it, nobody has to be refused at all.

mod preflight;
mod recovery;
mod rests;
mod scope;
mod settings;
mod together;

use cluster_tests::client::Answer;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::{Value, json};

use crate::refusals::record::epoch_ms;

/// The first window of a family resets after so long, s.
const FIRST_S: u64 = 9_000;
/// The second one.
const SECOND_S: u64 = 500_000;
/// Most that two readings of the same moment may differ by, ms.
const NEAR_MS: u64 = 1_000;
const HOUR_MS: u64 = 3_600_000;

fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap()
}

/// Headers that tell of quota as one kind of provider does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// A Codex plan: two windows, percents and seconds.
    Codex,
    /// A Claude plan: two windows, fractions and epoch seconds.
    Unified,
    /// An Anthropic key: requests and input tokens, RFC 3339.
    Anthropic,
    /// A server like OpenAI's: requests and tokens, durations.
    Plain,
}

impl Family {
    const ALL: [Self; 4] = [Self::Codex, Self::Unified, Self::Anthropic, Self::Plain];

    const fn provider(self) -> &'static str {
        match self {
            Self::Codex => "codex",
            Self::Unified => "claude",
            Self::Anthropic => "anthropic",
            Self::Plain => "acme",
        }
    }

    const fn dialect(self) -> Dialect {
        match self {
            Self::Codex => Dialect::Responses,
            Self::Unified | Self::Anthropic => Dialect::Messages,
            Self::Plain => Dialect::Chat,
        }
    }

    const fn is_plan(self) -> bool {
        matches!(self, Self::Codex | Self::Unified)
    }

    /// Words in the names of its two windows, and how long each lasts, ms,
    /// where that is known.
    const fn windows(self) -> [(&'static str, Option<u64>); 2] {
        match self {
            Self::Codex => [
                ("primary", Some(5 * HOUR_MS)),
                ("secondary", Some(168 * HOUR_MS)),
            ],
            Self::Unified => [("5h", Some(5 * HOUR_MS)), ("7d", Some(168 * HOUR_MS))],
            Self::Anthropic => [("requests", None), ("input", None)],
            Self::Plain => [("requests", None), ("tokens", None)],
        }
    }

    /// The headers of two windows of which these percents are used, which
    /// reset after [`FIRST_S`] and [`SECOND_S`].
    fn headers(self, used: [u64; 2]) -> Vec<(String, String)> {
        self.headers_until(used, [FIRST_S, SECOND_S])
    }

    fn headers_until(self, used: [u64; 2], after: [u64; 2]) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for n in 0..2 {
            all.extend(self.window_headers(n, used[n], after[n]));
        }
        if self == Self::Unified {
            let status = ("anthropic-ratelimit-unified-status", "allowed".to_owned());
            all.push(status);
        }
        let named = all.into_iter();
        named
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    fn window_headers(self, n: usize, used: u64, after: u64) -> Vec<(&'static str, String)> {
        let epoch_s = now_ms() / 1000 + after;
        let fraction = format!("{}.{:02}", used / 100, used % 100);
        let rfc = jiff::Timestamp::from_second(i64::try_from(epoch_s).unwrap()).unwrap();
        let (left, rfc) = ((1000 - 10 * used).to_string(), rfc.to_string());
        let duration = format!("{}h{}m{}s", after / 3600, after / 60 % 60, after % 60);
        let thousand = "1000".to_owned();
        match (self, n) {
            (Self::Codex, 0) => vec![
                ("x-codex-primary-used-percent", used.to_string()),
                ("x-codex-primary-reset-after-seconds", after.to_string()),
                ("x-codex-primary-reset-at", epoch_s.to_string()),
                ("x-codex-primary-window-minutes", "300".to_owned()),
            ],
            (Self::Codex, _) => vec![
                ("x-codex-secondary-used-percent", used.to_string()),
                ("x-codex-secondary-reset-after-seconds", after.to_string()),
                ("x-codex-secondary-reset-at", epoch_s.to_string()),
                ("x-codex-secondary-window-minutes", "10080".to_owned()),
            ],
            (Self::Unified, 0) => vec![
                ("anthropic-ratelimit-unified-5h-utilization", fraction),
                ("anthropic-ratelimit-unified-5h-reset", epoch_s.to_string()),
                (
                    "anthropic-ratelimit-unified-5h-status",
                    "allowed".to_owned(),
                ),
            ],
            (Self::Unified, _) => vec![
                ("anthropic-ratelimit-unified-7d-utilization", fraction),
                ("anthropic-ratelimit-unified-7d-reset", epoch_s.to_string()),
                (
                    "anthropic-ratelimit-unified-7d-status",
                    "allowed".to_owned(),
                ),
            ],
            (Self::Anthropic, 0) => vec![
                ("anthropic-ratelimit-requests-limit", thousand),
                ("anthropic-ratelimit-requests-remaining", left),
                ("anthropic-ratelimit-requests-reset", rfc),
            ],
            (Self::Anthropic, _) => vec![
                ("anthropic-ratelimit-input-tokens-limit", thousand),
                ("anthropic-ratelimit-input-tokens-remaining", left),
                ("anthropic-ratelimit-input-tokens-reset", rfc),
            ],
            (Self::Plain, 0) => vec![
                ("x-ratelimit-limit-requests", thousand),
                ("x-ratelimit-remaining-requests", left),
                ("x-ratelimit-reset-requests", duration),
            ],
            (Self::Plain, _) => vec![
                ("x-ratelimit-limit-tokens", thousand),
                ("x-ratelimit-remaining-tokens", left),
                ("x-ratelimit-reset-tokens", duration),
            ],
        }
    }

    /// A refusal for want of quota that announces nothing.
    fn exhausted(self) -> Reply {
        let words = match self {
            Self::Codex => "The usage limit has been reached",
            Self::Unified => "You have reached your usage limit",
            Self::Anthropic | Self::Plain => "Your quota has been exceeded",
        };
        let error = json!({"type": "error", "error": {"type": "rate_limit_error",
            "message": words}});
        Reply::json(429, &error)
    }
}

fn with(reply: Reply, headers: &[(String, String)]) -> Reply {
    let all = headers.iter();
    all.fold(reply, |reply, (name, value)| reply.header(name, value))
}

/// A good answer with the headers of windows used so far.
fn ok(family: Family, used: [u64; 2]) -> Reply {
    with(family.dialect().ok("pong"), &family.headers(used))
}

/// `a` at the family's provider, and `b` behind it in the combo `both`.
fn config(family: Family, upstream: &Upstream) -> Config {
    let (provider, protocol) = (family.provider(), family.dialect().protocol());
    upstream.script("b", [family.dialect().ok("pong")]);
    let (mut more, mut own) = (json!({"authHeader": "bearer"}), json!({}));
    if family.is_plan() {
        more["auth"] = json!("oauth");
        own["oauth"] = json!({"accessToken": "key-a"});
    }
    Config::new()
        .no_waiting()
        .resilience("connectionCooldown.apikey.baseCooldownMs", json!(30_000))
        .provider_with(provider, protocol, &upstream.url(), more)
        .provider("backup", protocol, &upstream.url())
        .connection_with("a", provider, own)
        .connection("b", "backup")
        .combo(
            "both",
            &[&format!("{provider}/demo-model@a"), "backup/demo-model@b"],
        )
        .combo("alone", &[&format!("{provider}/demo-model@a")])
}

async fn ask_for(node: &Node, family: Family, model: &str) -> Answer {
    let dialect = family.dialect();
    let body = dialect.request(model, false);
    node.post(dialect.path(), &body).send().await
}

async fn ask(node: &Node, family: Family) -> Answer {
    ask_for(node, family, "both").await
}

/// What is known of the windows of `a`.
async fn known(node: &Node) -> Vec<Value> {
    let a = node.connection("a").await;
    a["quotaWindows"].as_array().cloned().unwrap_or_default()
}

/// The one window with this word in its name.
fn window<'a>(known: &'a [Value], word: &str) -> &'a Value {
    let named = |window: &&Value| window["window"].as_str().unwrap().contains(word);
    let found: Vec<&Value> = known.iter().filter(named).collect();
    assert_eq!(found.len(), 1, "{word}: {known:?}");
    found[0]
}

/// How long `a`, or its model, rests, ms.
async fn rest(node: &Node) -> u64 {
    let a = node.connection("a").await;
    let lock = a["lockouts"][0]["remainingMs"].as_u64();
    lock.or_else(|| a["cooldownRemainingMs"].as_u64())
        .unwrap_or(0)
}

fn expect_window(known: &[Value], expected: (&str, Option<u64>), used: u64, resets_ms: u64) {
    let (word, lasts) = expected;
    let window = window(known, word);
    let number = |name: &str| {
        let number = window[name].as_f64();
        number.unwrap_or_else(|| panic!("{name}: {window}"))
    };
    let used = f64::from(u32::try_from(used).unwrap());
    assert!((number("usedPercent") - used).abs() < 0.01, "{window}");
    let left = 100.0 - used;
    assert!((number("remainingPercent") - left).abs() < 0.01, "{window}");
    let resets = epoch_ms(window["resetsAt"].as_str().unwrap());
    // Some servers tell whole seconds.
    assert!(resets.abs_diff(resets_ms) <= 2 * NEAR_MS, "{window}");
    if let Some(lasts) = lasts {
        assert_eq!(window["windowMs"], lasts, "{window}");
    }
    let observed = epoch_ms(window["observedAt"].as_str().unwrap());
    assert!(observed.abs_diff(now_ms()) <= 30_000, "{window}");
}

#[tokio::test]
async fn a_success_tells_of_windows() {
    for family in Family::ALL {
        let upstream = Upstream::start().await;
        let node = Node::start(&config(family, &upstream)).await;
        assert!(known(&node).await.is_empty(), "{family:?}");
        for used in [[42, 7], [43, 0]] {
            upstream.script("a", [ok(family, used)]);
            let asked_ms = now_ms();
            let answer = ask(&node, family).await.expect_status(200);
            let took = u64::try_from(answer.took.as_millis()).unwrap();
            assert!(took < 10_000, "{took}");
            let known = known(&node).await;
            for (n, after) in [(0, FIRST_S), (1, SECOND_S)] {
                let resets_ms = asked_ms + took / 2 + after * 1000;
                expect_window(&known, family.windows()[n], used[n], resets_ms);
            }
            assert_eq!(known.len(), 2, "{family:?}: {known:?}");
        }
        let b = node.connection("b").await;
        let none = b["quotaWindows"].as_array().is_none_or(Vec::is_empty);
        assert!(none, "{b}");
    }
}

#[tokio::test]
async fn every_answer_tells_of_windows() {
    let family = Family::Plain;
    let headers = family.headers([42, 7]);
    let frames = Reply::frames(&Dialect::Chat.stream("pong"));
    for (stream, reply) in [
        (true, frames),
        (false, Reply::error(400, "the colour must be green")),
        (false, Reply::error(429, "slow down")),
        (false, Reply::error(503, "down")),
        (false, Reply::error(401, "invalid api key")),
    ] {
        let what = format!("{reply:?}");
        let upstream = Upstream::start().await;
        let node = Node::start(&config(family, &upstream)).await;
        upstream.script("a", [with(reply, &headers)]);
        let body = Dialect::Chat.request("alone", stream);
        node.post("/v1/chat/completions", &body).send().await;
        let known = known(&node).await;
        assert_eq!(known.len(), 2, "{what}: {known:?}");
        assert!((window(&known, "requests")["usedPercent"].as_f64().unwrap() - 42.0).abs() < 0.01);
    }
}

/// A success of a healthy connection writes nothing, whatever it tells of.
#[tokio::test]
async fn what_successes_tell_is_not_stored() {
    let family = Family::Plain;
    let cluster = Cluster::start(1, |upstream| config(family, upstream)).await;
    let node = &cluster.nodes[0];
    cluster.upstream.script("a", [ok(family, [1, 1])]);
    ask(node, family).await.expect_status(200);
    let monitor = cluster.redis.monitor().await;
    for used in 2..60 {
        cluster.upstream.script("a", [ok(family, [used, used])]);
        ask(node, family).await.expect_status(200);
    }
    let known = known(node).await;
    assert!((window(&known, "tokens")["usedPercent"].as_f64().unwrap() - 59.0).abs() < 0.01);
    // What a node does at rest.
    let at_rest = ["+held:nodes", "log", "meta", "index"];
    for line in monitor.lines() {
        for key in line.split('"').filter(|word| word.starts_with('{')) {
            let name = key.split_once("}:").map_or(key, |(_, name)| name);
            assert!(at_rest.contains(&name), "{name}: {line}");
        }
        assert!(!line.to_lowercase().contains("xadd"), "{line}");
    }
}
