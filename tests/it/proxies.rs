//! A connection's proxy: every byte of that account goes through it and nobody
//! else's, over HTTP and SOCKS5, streams too; one that is gone is a failure
//! like any other.

use std::collections::BTreeSet;
use std::time::Duration;

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::proxy::{Kind, Manner, Proxy};
use cluster_tests::reply::Gate;
use cluster_tests::upstream::{BlackHole, Refused, Upstream};
use cluster_tests::wait::{SOON, eventually, within};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

const KINDS: [Kind; 2] = [Kind::Http, Kind::Socks5];

/// `a` goes through `proxy`, `b` goes directly; a is preferred.
fn pair(upstream: &Upstream, proxy: &str) -> Config {
    upstream.script_all([Dialect::Chat.ok("pong")]);
    Config::new()
        .no_waiting()
        .provider_with(
            "acme",
            "openai",
            &upstream.url(),
            json!({"timeouts": {"connectMs": 1000, "totalMs": 5000}}),
        )
        .connection_with("a", "acme", json!({"priority": 1, "proxyUrl": proxy}))
        .connection_with("b", "acme", json!({"priority": 2}))
        .combo("only-a", &["acme/m@a"])
        .combo("only-b", &["acme/m@b"])
}

async fn ask(node: &Node, model: &str) -> cluster_tests::client::Answer {
    let body = Dialect::Chat.request(model, false);
    node.post("/v1/chat/completions", &body).send().await
}

#[tokio::test]
async fn one_account_goes_through_its_proxy_and_the_other_does_not() {
    for kind in KINDS {
        let (upstream, proxy) = (Upstream::start().await, Proxy::start(kind).await);
        let node = Node::start(&pair(&upstream, &proxy.url())).await;
        ask(&node, "only-b").await.expect_status(200);
        assert_eq!(proxy.asked().len(), 0, "{kind:?}: not its account");
        let answer = ask(&node, "only-a").await.expect_status(200);
        assert_eq!(Dialect::Chat.text_of_answer(&answer.json()), "pong");
        let asked = proxy.asked();
        assert_eq!(asked[0].target, upstream.addr().to_string(), "{kind:?}");
        assert_eq!(asked[0].credentials, None, "{kind:?}");
        for seen in upstream.requests() {
            for name in ["proxy-authorization", "proxy-connection", "via"] {
                assert_eq!(seen.header(name), None, "{kind:?}: {name}");
            }
        }
    }
}

#[tokio::test]
async fn its_login_is_presented_to_it_and_to_nobody_else() {
    for kind in KINDS {
        let (upstream, proxy) = (Upstream::start().await, Proxy::start(kind).await);
        let url = proxy.url_as("me:s%40y%3A%2F@");
        let setup = Setup::with(&pair(&upstream, &url)).env("RUST_LOG", "trace");
        let mut node = setup.start().await;
        let answer = ask(&node, "only-a").await.expect_status(200);
        let presented = match kind {
            // me:s@y:/
            Kind::Http => "Basic bWU6c0B5Oi8=",
            Kind::Socks5 => "me:s@y:/",
        };
        let asked = proxy.asked();
        assert_eq!(asked[0].credentials.as_deref(), Some(presented), "{kind:?}");
        assert_eq!(upstream.requests()[0].header("proxy-authorization"), None);
        let told = node.trace(&answer).await.to_string();
        node.stop().await;
        for text in [told, node.log().text()] {
            for secret in ["s%40y", "s@y:/", "bWU6c0B5Oi8="] {
                assert!(!text.contains(secret), "{kind:?}: {secret} in {text}");
            }
        }
    }
}

#[tokio::test]
async fn a_login_comes_from_a_variable_or_a_file_too() {
    let (upstream, proxy) = (Upstream::start().await, Proxy::start(Kind::Http).await);
    let config = pair(&upstream, "").set(
        &["connections"],
        json!([{"id": "a", "provider": "acme",
        "apiKey": "key-a", "proxyUrl": {"env": "THE_PROXY"}}]),
    );
    let config = config.set(&["combos"], json!([]));
    let setup = Setup::with(&config).env("THE_PROXY", &proxy.url_as("me:secret@"));
    let node = setup.start().await;
    ask(&node, "acme/m").await.expect_status(200);
    let asked = proxy.asked();
    assert_eq!(
        asked[0].credentials.as_deref(),
        Some("Basic bWU6c2VjcmV0"),
        "{asked:?}"
    );
}

#[tokio::test]
async fn streams_pass_and_end_with_their_client() {
    for kind in KINDS {
        let (upstream, proxy) = (Upstream::start().await, Proxy::start(kind).await);
        let node = Node::start(&pair(&upstream, &proxy.url())).await;
        let gate = Gate::closed();
        let held = Dialect::Chat.held_stream("pong", &gate);
        upstream.script("a", [held]);
        let body = Dialect::Chat.request("only-a", true);
        let mut stream = node.post("/v1/chat/completions", &body).open().await;
        stream.read_until("pong").await;
        gate.open();
        Dialect::Chat.expect_whole(&stream.finish().await, "pong");
        upstream.script("a", [Dialect::Chat.endless_stream("hel")]);
        let body = Dialect::Chat.request("only-a", true);
        let mut stream = node.post("/v1/chat/completions", &body).open().await;
        stream.read_until("hel").await;
        drop(stream);
        upstream.request("a", 2).await.dropped(SOON).await;
        let a = node.connection("a").await;
        assert_eq!(a["connectionStatus"], "healthy", "{kind:?}: {a}");
        assert_eq!(a["inFlight"], 0, "{kind:?}: {a}");
    }
}

#[tokio::test]
async fn a_stream_that_its_proxy_cuts_is_told_in_band() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(Kind::Socks5).await;
    let node = Node::start(&pair(&upstream, &proxy.url())).await;
    upstream.script("a", [Dialect::Chat.endless_stream("hel")]);
    let body = Dialect::Chat.request("only-a", true);
    let mut stream = node.post("/v1/chat/completions", &body).open().await;
    stream.read_until("hel").await;
    drop(proxy);
    Dialect::Chat.expect_broken(&stream.finish().await, "hel");
}

/// Two accounts of one server never share a wire, and each keeps its own.
#[tokio::test]
async fn each_proxy_has_a_pool_of_its_own() {
    let upstream = Upstream::start().await;
    let (one, two) = (
        Proxy::start(Kind::Http).await,
        Proxy::start(Kind::Socks5).await,
    );
    let config = pair(&upstream, &one.url())
        .server("workers", json!(1))
        .connection_with("c", "acme", json!({"priority": 3, "proxyUrl": two.url()}))
        .combo("only-c", &["acme/m@c"]);
    let node = Node::start(&config).await;
    for _ in 0..6 {
        for model in ["only-a", "only-b", "only-c"] {
            ask(&node, model).await.expect_status(200);
        }
    }
    let wires = |id: &str| -> BTreeSet<u64> {
        let seen = upstream.requests_of(id);
        seen.iter().map(|seen| seen.tcp).collect()
    };
    let (a, b, c) = (wires("a"), wires("b"), wires("c"));
    assert!(
        a.is_disjoint(&b) && b.is_disjoint(&c) && c.is_disjoint(&a),
        "{a:?} {b:?} {c:?}"
    );
    for (proxy, wires) in [(&one, &a), (&two, &c)] {
        assert_eq!(proxy.count(upstream.addr()), wires.len());
        // A wire may be replaced once; six in turn are not six wires.
        assert!(wires.len() <= 3, "{wires:?}");
    }
}

#[tokio::test]
async fn a_proxy_that_fails_is_a_failure_of_its_account_alone() {
    let (refused, hole) = (Refused::new(), BlackHole::start().await);
    let host = |url: String| url.trim_end_matches("/v1").to_owned();
    let socks = |url: String| host(url).replace("http://", "socks5://");
    for url in [
        host(refused.url()),
        socks(refused.url()),
        host(hole.url()),
        socks(hole.url()),
    ] {
        let upstream = Upstream::start().await;
        let node = Node::start(&pair(&upstream, &url)).await;
        expect_b_serves(&node, &upstream, &url).await;
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_or_says_nothing_is_a_failure_of_its_account_alone() {
    for kind in KINDS {
        for manner in [Manner::Refuse, Manner::Unauthorized, Manner::Silent] {
            let (upstream, proxy) = (Upstream::start().await, Proxy::start(kind).await);
            proxy.set(manner);
            let node = Node::start(&pair(&upstream, &proxy.url())).await;
            expect_b_serves(&node, &upstream, &format!("{kind:?} {manner:?}")).await;
            // It comes back like any other.
            proxy.set(Manner::Serve);
            let reset = node.admin_call("POST", "/api/connections/a/reset");
            reset.send().await.expect_status(200);
            ask(&node, "only-a").await.expect_status(200);
        }
    }
}

/// `b` serves what `a` could not, and `a` rests: it is no refusal of its
/// upstream, so its key is not to blame.
async fn expect_b_serves(node: &Node, upstream: &Upstream, what: &str) {
    let answer = ask(node, "acme/m").await;
    assert_eq!(answer.status, 200, "{what}: {}", answer.text());
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"), "{what}");
    assert!(answer.took < Duration::from_secs(10), "{what}");
    assert_eq!(upstream.count("a"), 0, "{what}");
    let a = node.connection("a").await;
    assert_eq!(a["connectionStatus"], "cooling_down", "{what}: {a}");
    assert_eq!(a["lastErrorType"], "server_error", "{what}: {a}");
    let trace = node.trace(&answer).await;
    let attempt = &trace["attempts"][0];
    assert_eq!(attempt["connection"], "a", "{what}: {trace}");
    assert_eq!(attempt["failure"]["scope"], "connection", "{what}: {trace}");
    let b = node.connection("b").await;
    assert_eq!(b["connectionStatus"], "healthy", "{what}: {b}");
}

/// An `https` proxy is spoken to in TLS from the first byte.
#[tokio::test]
async fn a_proxy_over_tls_is_greeted_in_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://me:secret@{}", listener.local_addr().unwrap());
    let upstream = Upstream::start().await;
    let node = Node::start(&pair(&upstream, &url)).await;
    let greeted = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut first = [0; 3];
        stream.read_exact(&mut first).await.unwrap();
        first
    };
    let body = Dialect::Chat.request("acme/m", false);
    let asking = node.post("/v1/chat/completions", &body).send();
    let (first, answer) = tokio::join!(within(SOON, "the proxy is greeted", greeted), asking);
    // A handshake record of TLS 1.x.
    assert_eq!(first[..2], [0x16, 0x03], "{first:?}");
    assert_eq!(answer.header("x-omniroute-connection"), Some("b"));
}

#[tokio::test]
async fn another_proxy_is_taken_over_while_the_node_runs() {
    let upstream = Upstream::start().await;
    let (old, new) = (
        Proxy::start(Kind::Http).await,
        Proxy::start(Kind::Http).await,
    );
    let node = Node::start(&pair(&upstream, &old.url())).await;
    ask(&node, "only-a").await.expect_status(200);
    let config = pair(&upstream, &new.url());
    std::fs::write(node.setup().file(), config.to_yaml()).unwrap();
    eventually("the new proxy is used", || async {
        ask(&node, "only-a").await.expect_status(200);
        (new.count(upstream.addr()) > 0).then_some(())
    })
    .await;
    let before = old.asked().len();
    for _ in 0..4 {
        ask(&node, "only-a").await.expect_status(200);
    }
    assert_eq!(old.asked().len(), before);
}

#[tokio::test]
async fn a_proxy_of_no_known_kind_is_a_problem_of_the_file() {
    let upstream = Upstream::start().await;
    for url in [
        "ftp://127.0.0.1:1",
        "127.0.0.1:3128",
        "socks5://",
        "http://",
    ] {
        let setup = Setup::with(&pair(&upstream, url));
        let mut check = cluster_tests::node::command("router-node", setup.dir());
        let output = check.args(["check", "--config", "router.yaml"]).output();
        let output = output.await.unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{url}: {printed}");
        assert!(printed.contains("proxyUrl"), "{url}: {printed}");
    }
}
