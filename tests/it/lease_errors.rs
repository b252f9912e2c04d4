//! Every refusal of the lease endpoint, and which comes first when there is
//! more than one reason.

use cluster_tests::client::{Answer, Call};
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::lease::{GENERATION, KEY, OWNER, Owner, PATH, PLAIN, managed};
use cluster_tests::node::{Node, Setup, field};
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::{SOON, eventually};
use serde_json::{Value, json};

const MODEL: &str = "chat/demo-model";
/// A managed key that may use one model only.
const NARROW: &str = "the-narrow-key";
/// A key without the scope that may use one model only.
const NARROW_PLAIN: &str = "the-narrow-plain-key";

async fn start(upstream: &Upstream) -> Node {
    let config = managed(&upstream.url(), &[Dialect::Chat], &["a"])
        .api_key(
            "narrow",
            NARROW,
            json!({"scopes": ["lease:exclusive"], "allowedConnections": ["chat-a"],
                "allowedModels": ["chat/other"]}),
        )
        .api_key(
            "narrow-plain",
            NARROW_PLAIN,
            json!({"allowedModels": ["chat/other"]}),
        )
        .set(&["store", "url"], json!("embedded:memory"));
    Node::start(&config).await
}

fn acquire() -> Value {
    json!({"action": "acquire", "model": MODEL})
}

fn expect(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.status, status, "for {code}: {}", answer.text());
    let body = answer.json();
    assert_eq!(body["error"]["code"], code, "{body}");
    assert_eq!(body["error"]["type"], "lease_error", "{body}");
    let message = body["error"]["message"].as_str().unwrap_or("");
    assert!(!message.is_empty(), "{body}");
    assert_eq!(body.get("state"), None, "{body}");
    assert!(answer.header("x-request-id").is_some());
    let waits = matches!(status, 503);
    assert_eq!(answer.header("retry-after").is_some(), waits, "{code}");
}

/// A request to which faults are added.
#[derive(Clone)]
struct Request {
    key: Option<String>,
    content_type: String,
    body: String,
    owner: Option<String>,
}

impl Request {
    fn sound() -> Self {
        Self {
            key: Some(KEY.into()),
            content_type: "application/json".into(),
            body: acquire().to_string(),
            owner: Some(Owner::new("alice", KEY).token),
        }
    }

    async fn send(&self, node: &Node) -> Answer {
        let mut call = Call::new(node.addr(), "POST", PATH);
        call = call.body(&self.content_type, self.body.clone());
        if let Some(key) = &self.key {
            call = call.bearer(key);
        }
        if let Some(owner) = &self.owner {
            call = call.header(OWNER, owner);
        }
        call.send().await
    }
}

type Fault = (u16, &'static str, fn(&mut Request));

/// The faults in the order in which they are looked for. Two that can't be had
/// at once (no owner, a bad owner) are kept apart by the test.
const FAULTS: [Fault; 8] = [
    (401, "LEASE_AUTHENTICATION_REQUIRED", |request| {
        request.key = None;
    }),
    (401, "LEASE_API_KEY_INVALID", |request| {
        request.key = Some("nobodys-key".into());
    }),
    (415, "LEASE_CONTENT_TYPE_REQUIRED", |request| {
        request.content_type = "text/plain".into();
    }),
    (400, "LEASE_ACTION_INVALID", |request| {
        request.body = json!({"action": "steal"}).to_string();
    }),
    (403, "LEASE_SCOPE_REQUIRED", |request| {
        request.key = Some(PLAIN.into());
    }),
    (400, "LEASE_CONTEXT_REQUIRED", |request| {
        request.owner = None;
    }),
    (400, "LEASE_CONTEXT_INVALID", |request| {
        request.owner = Some("vlo_short".into());
    }),
    (400, "LEASE_MODEL_INVALID", |request| {
        request.body = json!({"action": "acquire", "model": "nobody/serves-this"}).to_string();
    }),
];

#[tokio::test]
async fn the_first_fault_in_order_is_told() {
    let upstream = Upstream::start().await;
    let node = start(&upstream).await;
    for (at, (status, code, fault)) in FAULTS.iter().enumerate() {
        let mut request = Request::sound();
        fault(&mut request);
        expect(&request.send(&node).await, *status, code);
        for (_, _, later) in &FAULTS[at + 1..] {
            let mut both = Request::sound();
            later(&mut both);
            // The earlier fault last, since both may be of the same field.
            fault(&mut both);
            expect(&both.send(&node).await, *status, code);
        }
    }
    let mut all = Request::sound();
    for (_, _, fault) in FAULTS.iter().rev() {
        fault(&mut all);
    }
    expect(&all.send(&node).await, FAULTS[0].0, FAULTS[0].1);
    Request::sound().send(&node).await.expect_status(200);
    assert!(upstream.requests().is_empty());
}

#[tokio::test]
async fn the_keys_own_policy_comes_after_the_body_and_before_the_scope() {
    let upstream = Upstream::start().await;
    let node = start(&upstream).await;
    for key in [NARROW, NARROW_PLAIN] {
        let mut request = Request::sound();
        request.key = Some(key.into());
        let refused = request.send(&node).await;
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(!refused.code().starts_with("LEASE_"), "{}", refused.text());
        request.owner = None;
        let without_owner = request.send(&node).await;
        assert_eq!(without_owner.code(), refused.code());
        request.body = "{".into();
        expect(&request.send(&node).await, 400, "LEASE_ACTION_INVALID");
    }
    let mut allowed = Request::sound();
    allowed.key = Some(NARROW_PLAIN.into());
    allowed.body = json!({"action": "acquire", "model": "chat/other"}).to_string();
    expect(&allowed.send(&node).await, 403, "LEASE_SCOPE_REQUIRED");
    allowed.key = Some(NARROW.into());
    allowed.send(&node).await.expect_status(200);
}

#[tokio::test]
async fn only_json_is_taken() {
    let upstream = Upstream::start().await;
    let node = start(&upstream).await;
    for content_type in [
        "text/plain",
        "application/jsonp",
        "application/x-www-form-urlencoded",
        "text/json",
        "json",
    ] {
        let mut request = Request::sound();
        request.content_type = content_type.into();
        let answer = request.send(&node).await;
        expect(&answer, 415, "LEASE_CONTENT_TYPE_REQUIRED");
    }
    let none = Call::new(node.addr(), "POST", PATH)
        .bearer(KEY)
        .header(OWNER, &Owner::new("alice", KEY).token);
    expect(&none.send().await, 415, "LEASE_CONTENT_TYPE_REQUIRED");
    let mut request = Request::sound();
    for content_type in ["Application/JSON", "application/json;charset=utf-8"] {
        request.content_type = content_type.into();
        request.send(&node).await.expect_status(200);
    }
}

#[tokio::test]
async fn a_body_that_is_no_action_is_refused() {
    let upstream = Upstream::start().await;
    let node = start(&upstream).await;
    let mut bodies: Vec<String> = ["", "{", "null", "[]", "\"acquire\"", "{}", "\u{0}"]
        .into_iter()
        .map(str::to_owned)
        .collect();
    let long = "m".repeat(513);
    for body in [
        json!({"action": "ACQUIRE", "model": MODEL}),
        json!({"action": 1, "model": MODEL}),
        json!({"action": "acquire"}),
        json!({"action": "acquire", "model": ""}),
        json!({"action": "acquire", "model": "  \t "}),
        json!({"action": "acquire", "model": 7}),
        json!({"action": "acquire", "model": long}),
        json!({"action": "renew"}),
        json!({"action": "renew", "generation": 0}),
        json!({"action": "renew", "generation": -1}),
        json!({"action": "renew", "generation": 1.5}),
        json!({"action": "renew", "generation": "1"}),
        json!({"action": "renew", "generation": null}),
        json!({"action": "renew", "generation": 9_007_199_254_740_992_u64}),
        json!({"action": "release"}),
        json!({"action": "release", "generation": 1, "reason": "TTL_EXPIRED"}),
        json!({"action": "release", "generation": 1, "reason": 4}),
        json!({"action": "status", "generation": {}}),
    ] {
        bodies.push(body.to_string());
    }
    for body in bodies {
        let mut request = Request::sound();
        request.body = body;
        expect(&request.send(&node).await, 400, "LEASE_ACTION_INVALID");
    }
}

#[tokio::test]
async fn owner_tokens_have_one_shape() {
    let upstream = Upstream::start().await;
    let node = start(&upstream).await;
    let good = Owner::new("alice", KEY).token;
    for owner in ["", "   "] {
        let mut request = Request::sound();
        request.owner = Some(owner.into());
        expect(&request.send(&node).await, 400, "LEASE_CONTEXT_REQUIRED");
    }
    for owner in [
        good[..46].to_owned(),
        format!("{good}A"),
        good.replace("vlo_", "vlo-"),
        good.replace("vlo_", "VLO_"),
        good.replacen("alice", "al+ce", 1),
        good.replacen("alice", "al=ce", 1),
        good.replacen("alice", "al ce", 1),
        "vlo_".to_owned(),
        "x".repeat(8000),
    ] {
        let mut request = Request::sound();
        request.owner = Some(owner);
        expect(&request.send(&node).await, 400, "LEASE_CONTEXT_INVALID");
    }
    let edge = format!("vlo_{}", "-_09azAZ".repeat(6));
    let mut request = Request::sound();
    request.owner = Some(edge[..47].into());
    request.send(&node).await.expect_status(200);
}

#[tokio::test]
async fn a_model_that_nobody_serves_is_refused() {
    let upstream = Upstream::start().await;
    let node = start(&upstream).await;
    for model in ["nobody/m", "no-such-bare-model", "/", "chat/"] {
        let mut request = Request::sound();
        request.body = json!({"action": "acquire", "model": model}).to_string();
        expect(&request.send(&node).await, 400, "LEASE_MODEL_INVALID");
    }
}

#[tokio::test]
async fn a_model_of_a_provider_without_managed_connections_has_no_eligible_one() {
    let upstream = Upstream::start().await;
    let config = managed(&upstream.url(), &[Dialect::Chat], &["a"])
        .provider("open", "openai", &upstream.url())
        .connection("open-a", "open")
        .connection_with("off-a", "off", json!({"enabled": false}))
        .provider("off", "openai", &upstream.url())
        .api_key(
            "off",
            "the-off-key",
            json!({"scopes": ["lease:exclusive"], "allowedConnections": ["off-a"]}),
        )
        .set(&["store", "url"], json!("embedded:memory"));
    let node = Node::start(&config).await;
    for (key, model) in [(KEY, "open/m"), ("the-off-key", "off/m")] {
        let answer = Owner::new("alice", key).acquire(&node, model).await;
        expect(&answer, 409, "LEASE_NO_ELIGIBLE_CONNECTION");
    }
}

/// The scope without connections is refused by the configuration or, where a
/// key came to lose its connections later, by every request.
#[tokio::test]
async fn the_scope_needs_connections() {
    let upstream = Upstream::start().await;
    for allowed in [json!([]), Value::Null] {
        let mut more = json!({"scopes": ["lease:exclusive"]});
        if !allowed.is_null() {
            more["allowedConnections"] = allowed;
        }
        let config = managed(&upstream.url(), &[Dialect::Chat], &["a"])
            .api_key("bare", "the-bare-key", more)
            .set(&["store", "url"], json!("embedded:memory"));
        expect_refused_somewhere(&config).await;
    }
}

async fn expect_refused_somewhere(config: &Config) {
    let setup = Setup::with(config);
    let mut process = setup.spawn();
    let ended = eventually("the node starts or refuses to", || async {
        let (addr, _) = process.log().addresses();
        let refused = process.log().text().contains("allowedConnections");
        (addr.is_some() || refused).then_some(addr.is_none())
    })
    .await;
    if ended {
        assert!(!process.exit(SOON).await.success());
        return;
    }
    drop(process);
    let node = setup.start().await;
    let owner = Owner::new("alice", "the-bare-key");
    let answer = owner.acquire(&node, MODEL).await;
    expect(&answer, 403, "LEASE_KEY_CONFIGURATION_INVALID");
    let answer = owner.ask(&node, Dialect::Chat, 1, false).send().await;
    expect(&answer, 403, "LEASE_KEY_CONFIGURATION_INVALID");
}

#[tokio::test]
async fn other_methods_are_not_taken() {
    let upstream = Upstream::start().await;
    let node = start(&upstream).await;
    for method in ["GET", "PUT", "DELETE"] {
        let answer = Call::new(node.addr(), method, PATH)
            .bearer(KEY)
            .send()
            .await;
        assert!(
            matches!(answer.status, 404 | 405),
            "{method}: {}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn a_header_that_comes_twice_is_none() {
    let upstream = Upstream::start().await;
    upstream.script("chat-a", [Dialect::Chat.ok("pong")]);
    let node = start(&upstream).await;
    let alice = Owner::new("alice", KEY);
    let bob = Owner::new("bob", KEY);
    let twice = alice.call(&node, &acquire()).header(OWNER, &bob.token);
    expect(&twice.send().await, 400, "LEASE_CONTEXT_INVALID");
    let held = alice.hold(&node, MODEL).await;
    let ask = || alice.ask(&node, Dialect::Chat, held, false);
    let later = (held + 1).to_string();
    for (name, value) in [(OWNER, &bob.token), (GENERATION, &later)] {
        let answer = ask().header(name, value).send().await;
        assert_eq!(answer.status, 400, "{name}: {}", answer.text());
        assert_eq!(answer.code(), "LEASE_CONTEXT_INVALID");
    }
    assert_eq!(upstream.count("chat-a"), 0);
    ask().send().await.expect_status(200);
}

/// Each operation has a line of the log, by which a refusal is found again.
#[tokio::test]
async fn operations_are_logged_without_their_owner() {
    let upstream = Upstream::start().await;
    let node = start(&upstream).await;
    let alice = Owner::new("alice", KEY);
    let held = alice.hold(&node, MODEL).await;
    let stale = alice.renew(&node, held + 1).await;
    expect(&stale, 409, "LEASE_FENCE_STALE");
    let id = stale.header("x-request-id").unwrap();
    let line = eventually("the refusal is logged", || async {
        let mut records = node.log().records();
        records.retain(|record| field(record, "request_id") == Some(id));
        records.pop()
    })
    .await;
    assert_eq!(field(&line, "action"), Some("renew"), "{line}");
    assert_eq!(field(&line, "code"), Some("LEASE_FENCE_STALE"), "{line}");
    let acquired = node.log().records().into_iter().find(|record| {
        field(record, "message") == Some("lease") && field(record, "action") == Some("acquire")
    });
    let acquired = acquired.expect("no line of the acquisition");
    assert_eq!(field(&acquired, "connection"), Some("chat-a"), "{acquired}");
    assert_eq!(field(&acquired, "code"), Some("ok"), "{acquired}");
    assert!(!node.log().text().contains("alice"), "an owner in the log");
}
