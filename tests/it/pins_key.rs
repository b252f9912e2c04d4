//! What a session is known by: the first of an ordered list of places.

use cluster_tests::client::Call;
use cluster_tests::cluster::Cluster;
use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::Node;
use cluster_tests::upstream::Upstream;
use cluster_tests::wait::eventually;
use serde_json::{Value, json};

/// Connections enough that every session has one of its own.
const CONNECTIONS: usize = 20;

fn config(upstream: &Upstream) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let mut config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .set(&["store", "url"], json!("embedded:memory"))
        .set(&["settings", "sessionAffinityTtlMs"], json!(600_000));
    for n in 0..CONNECTIONS {
        let priority = json!({"priority": n + 1});
        config = config.connection_with(&format!("c{n:02}"), "acme", priority);
    }
    config
}

/// A place where a session's name may be, in order of precedence.
#[derive(Clone, Copy, Debug)]
enum Place {
    Header(&'static str),
    Metadata(&'static str),
    Body(&'static str),
    Text,
}

const PLACES: [Place; 9] = [
    Place::Header("x-codex-session-id"),
    Place::Header("x-session-id"),
    Place::Header("x-omniroute-session"),
    Place::Metadata("session_id"),
    Place::Metadata("sessionId"),
    Place::Body("conversation_id"),
    Place::Body("session_id"),
    Place::Body("prompt_cache_key"),
    Place::Text,
];

fn request(text: &str) -> Value {
    json!({"model": "acme/m", "messages": [
        {"role": "system", "content": "you are kind"},
        {"role": "user", "content": text}]})
}

/// A request that names these sessions in these places.
fn call(node: &Node, sessions: &[(Place, &str)]) -> Call {
    let mut body = request("the same for all");
    let mut headers = Vec::new();
    for (place, name) in sessions {
        match place {
            Place::Header(header) => headers.push((*header, *name)),
            Place::Metadata(field) => body["metadata"][*field] = json!(name),
            Place::Body(field) => body[*field] = json!(name),
            Place::Text => body["messages"][1]["content"] = json!(name),
        }
    }
    let call = node.post("/v1/chat/completions", &body);
    headers
        .into_iter()
        .fold(call, |call, (header, name)| call.header(header, name))
}

async fn used(call: Call) -> String {
    let answer = call.send().await.expect_status(200);
    answer.header("x-omniroute-connection").unwrap().to_owned()
}

#[tokio::test]
async fn the_first_place_that_names_a_session_counts() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let mut pinned = Vec::new();
    for (at, place) in PLACES.iter().enumerate() {
        let name = format!("session-{at}");
        let first = used(call(&node, &[(*place, &name)])).await;
        let again = used(call(&node, &[(*place, &name)])).await;
        assert_eq!(first, again, "{place:?} pins nothing");
        assert!(
            !pinned.contains(&first),
            "{place:?}: not least recently used"
        );
        pinned.push(first);
    }
    for (at, place) in PLACES.iter().enumerate() {
        for (later_at, later) in PLACES.iter().enumerate().skip(at + 1) {
            let (name, other) = (format!("session-{at}"), format!("session-{later_at}"));
            let both = used(call(&node, &[(*place, &name), (*later, &other)])).await;
            assert_eq!(both, pinned[at], "{place:?} before {later:?}");
        }
        let blank = used(call(&node, &[(*place, ""), (PLACES[8], "session-8")])).await;
        if at < 8 {
            assert_eq!(blank, pinned[8], "an empty {place:?} names nothing");
        }
    }
}

#[tokio::test]
async fn without_a_name_the_first_users_text_counts() {
    let upstream = Upstream::start().await;
    let node = Node::start(&config(&upstream)).await;
    let long = "x".repeat(4096);
    let ask = |body: Value| used(node.post("/v1/chat/completions", &body));
    let first = ask(request("hello")).await;
    let mut talk = request("hello");
    let messages = talk["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "hi"}));
    messages.push(json!({"role": "user", "content": "and now?"}));
    assert_eq!(ask(talk).await, first, "a later turn of the same talk");
    let parts = json!({"model": "acme/m", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]}]});
    assert_eq!(ask(parts).await, first, "the same text in parts");
    assert_ne!(ask(request("hello!")).await, first);
    let capped = ask(request(&format!("{long}a"))).await;
    assert_eq!(ask(request(&format!("{long}b"))).await, capped);
    assert_ne!(ask(request(&long[1..])).await, capped);
    let no_user = json!({"model": "acme/m",
        "messages": [{"role": "system", "content": "only this"}]});
    let pinned = ask(no_user.clone()).await;
    assert_eq!(ask(no_user).await, pinned, "message 0 stands in");
}

#[tokio::test]
async fn every_protocol_has_sessions() {
    let upstream = Upstream::start().await;
    let mut config = Config::new()
        .set(&["store", "url"], json!("embedded:memory"))
        .set(&["settings", "sessionAffinityTtlMs"], json!(600_000));
    for dialect in Dialect::ALL {
        let shorts = ["a", "b", "c", "d"];
        config = cluster_tests::dialect::add_provider(
            config,
            dialect,
            &upstream.url(),
            &shorts,
            json!({}),
        );
        for short in shorts {
            upstream.script(&dialect.connection(short), [dialect.ok("pong")]);
        }
    }
    let node = Node::start(&config).await;
    for dialect in Dialect::ALL {
        let say = |text: &str| {
            let mut body = dialect.ask(false);
            match dialect {
                Dialect::Responses => body["input"] = json!(text),
                Dialect::Chat | Dialect::Messages => {
                    body["messages"][0]["content"] = json!(text);
                }
            }
            node.post(dialect.path(), &body)
        };
        let first = used(say("one")).await;
        let second = used(say("two")).await;
        assert_ne!(first, second, "{dialect:?}");
        assert_eq!(used(say("one")).await, first, "{dialect:?}");
        assert_eq!(used(say("two")).await, second, "{dialect:?}");
        let named = used(say("one").header("x-session-id", "s")).await;
        assert_ne!(named, first, "{dialect:?}");
        assert_eq!(used(say("x").header("x-session-id", "s")).await, named);
    }
    let items = json!({"model": "responses/demo-model", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "one"}]}]});
    let by_items = used(node.post("/v1/responses", &items)).await;
    let body = json!({"model": "responses/demo-model", "input": "one"});
    assert_eq!(used(node.post("/v1/responses", &body)).await, by_items);
}

#[tokio::test]
async fn names_of_sessions_are_not_sent_on_and_not_stored() {
    let cluster = Cluster::start(1, config).await;
    let monitor = cluster.redis.monitor().await;
    for place in &PLACES[..3] {
        let name = "s3cret-session";
        used(call(&cluster.nodes[0], &[(*place, name)])).await;
    }
    eventually("the pins are stored", || async {
        (!monitor.lines().is_empty()).then_some(())
    })
    .await;
    for seen in cluster.upstream.requests() {
        for (name, value) in &seen.headers {
            assert!(!name.contains("session"), "{name}: {value}");
            assert!(!value.contains("s3cret"), "{name}: {value}");
        }
    }
    for text in [cluster.redis.contents().await, monitor.lines().join("\n")] {
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[tokio::test]
async fn unset_it_is_off() {
    for ttl in [json!(0), json!(-5), Value::Null] {
        let upstream = Upstream::start().await;
        let mut config = config(&upstream);
        if ttl.is_null() {
            config = config.set(&["settings"], json!({}));
        } else {
            config = config.set(&["settings", "sessionAffinityTtlMs"], ttl);
        }
        let node = Node::start(&config).await;
        for name in ["one", "two", "three"] {
            let place = Place::Header("x-session-id");
            // Sessions would spread over the connections.
            assert_eq!(used(call(&node, &[(place, name)])).await, "c00");
        }
    }
}
