//! Connections with a proxy: each kind carries whole answers and streams, and a
//! proxy that is in the way is its connection's trouble, told without its
//! password.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup};
use cluster_tests::proxy::{Asked, How, Kind, Manner, Proxy};
use cluster_tests::tls::Tls;
use cluster_tests::upstream::{Refused, Upstream};
use serde_json::{Value, json};

const PASSWORD: &str = "pa:ss-word";
/// The same in a URL.
const LOGIN: &str = "user:pa%3Ass-word";
/// The same as a header has it.
const BASIC: &str = "Basic dXNlcjpwYTpzcy13b3Jk";

fn proxied(url: &str) -> Value {
    json!({"proxyUrl": url, "priority": 1})
}

/// Connection `a` through the proxy, and `b` without one.
fn config(base_url: &str, proxy_url: &str) -> Config {
    Config::new()
        .no_waiting()
        .provider("acme", "openai", base_url)
        .connection_with("a", "acme", proxied(proxy_url))
        .connection_with("b", "acme", json!({"priority": 2}))
}

/// The same, which soon gives up on whoever does not answer.
fn hasty(base_url: &str, proxy_url: &str) -> Config {
    let provider = json!([{"id": "acme", "protocol": "openai", "baseUrl": base_url,
        "timeouts": {"connectMs": 1000}}]);
    config(base_url, proxy_url).set(&["providers"], provider)
}

fn before_the_host(login: Option<&str>) -> String {
    login.map_or_else(String::new, |login| format!("{login}@"))
}

async fn ask(node: &Node, stream: bool) -> String {
    let body = Dialect::Chat.request("acme/m", stream);
    let answer = node.post("/v1/chat/completions", &body).send().await;
    answer.expect_status(200).text()
}

/// A whole answer and a stream, both by `a`.
async fn carries(node: &Node, upstream: &Upstream) {
    let seen = upstream.requests().len();
    upstream.script(
        "a",
        [Dialect::Chat.ok("pong"), Dialect::Chat.ok_stream("pong")],
    );
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    assert!(ask(node, false).await.contains("pong"));
    let stream = ask(node, true).await;
    assert_eq!(Dialect::Chat.text_of(&stream), "pong");
    let requests = upstream.requests();
    assert_eq!(upstream.order()[seen..], ["a", "a"]);
    for request in &requests[seen..] {
        assert_eq!(request.header("proxy-authorization"), None);
        assert_eq!(request.path, "/v1/chat/completions");
    }
}

#[tokio::test]
async fn an_http_proxy_reads_plain_requests() {
    let upstream = Upstream::start().await;
    for login in [None, Some(LOGIN)] {
        let proxy = match login {
            None => Proxy::start(Kind::Http).await,
            Some(_) => Proxy::asking(Kind::Http, BASIC).await,
        };
        let url = proxy.url_as(&before_the_host(login));
        let node = Node::start(&config(&upstream.url(), &url)).await;
        carries(&node, &upstream).await;
        let asked = Asked {
            how: How::Whole,
            target: upstream.addr().to_string(),
            credentials: login.map(|_| BASIC.to_owned()),
        };
        assert!(proxy.asked().iter().all(|one| *one == asked));
        assert_ne!(proxy.asked(), []);
    }
}

#[tokio::test]
async fn a_socks_proxy_leads_anywhere() {
    let upstream = Upstream::start().await;
    let port = upstream.addr().port();
    for (scheme, login, resolved) in [
        ("socks5", None, true),
        ("socks5", Some(LOGIN), true),
        ("socks5h", None, false),
        ("socks5h", Some(LOGIN), false),
    ] {
        let shown = login.map(|_| format!("user:{PASSWORD}"));
        let proxy = match &shown {
            None => Proxy::start(Kind::Socks5).await,
            Some(login) => Proxy::asking(Kind::Socks5, login).await,
        };
        let url = proxy.url_by(scheme, &before_the_host(login));
        let by_name = format!("http://localhost:{port}/v1");
        let node = Node::start(&config(&by_name, &url)).await;
        carries(&node, &upstream).await;
        let asked = proxy.asked();
        let host = if resolved { "127.0.0.1" } else { "localhost" };
        assert!(!asked.is_empty());
        for asked in asked {
            assert_eq!((asked.how, &asked.credentials), (How::Socks, &shown));
            assert_eq!(asked.target, format!("{host}:{port}"), "{scheme}");
        }
    }
}

/// A node that trusts the authority of `tls`.
async fn trusting(tls: &Tls, config: &Config) -> Node {
    let ca = tls.ca_file();
    let setup = Setup::with(config).env("SSL_CERT_FILE", ca.to_str().unwrap());
    setup.start().await
}

#[tokio::test]
async fn tls_goes_through_a_tunnel() {
    let upstream = Upstream::start().await;
    let tls = Tls::before(upstream.addr()).await;
    let target = format!("localhost:{}", tls.port());
    for (kind, scheme, how) in [
        (Kind::Http, "http", How::Tunnel),
        (Kind::Socks5, "socks5h", How::Socks),
    ] {
        let proxy = Proxy::start(kind).await;
        let base_url = format!("https://{target}/v1");
        let node = trusting(&tls, &config(&base_url, &proxy.url_by(scheme, ""))).await;
        carries(&node, &upstream).await;
        for asked in proxy.asked() {
            assert_eq!((asked.how, asked.target), (how, target.clone()));
        }
        // The tunnel leads there, but nobody trusts who answers: that is not the proxy's doing.
        let stranger = Node::start(&config(&base_url, &proxy.url_by(scheme, ""))).await;
        let body = Dialect::Chat.request("acme/m", false);
        let answer = stranger.post("/v1/chat/completions", &body).send().await;
        assert_eq!(answer.status, 502);
        let error = stranger.connection("a").await;
        assert_eq!(error["lastErrorRule"], "upstream-connect-failed", "{error}");
    }
}

#[tokio::test]
async fn a_proxy_may_speak_tls_itself() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::asking(Kind::Http, BASIC).await;
    let tls = Tls::before(proxy.addr()).await;
    let url = format!("https://{LOGIN}@localhost:{}", tls.port());
    let node = trusting(&tls, &config(&upstream.url(), &url)).await;
    carries(&node, &upstream).await;
    let asked = proxy.asked();
    assert!(asked.iter().all(|one| one.how == How::Whole));
    assert_ne!(asked, []);
}

#[tokio::test]
async fn each_proxy_has_its_own_connections() {
    let upstream = Upstream::start().await;
    upstream.script_all([Dialect::Chat.ok("pong")]);
    let (one, two) = (
        Proxy::start(Kind::Socks5).await,
        Proxy::start(Kind::Socks5).await,
    );
    let config = Config::new()
        .provider("acme", "openai", &upstream.url())
        .connection_with("a", "acme", json!({"proxyUrl": one.url()}))
        .connection_with("b", "acme", json!({"proxyUrl": two.url()}))
        .connection("c", "acme")
        .combo("a", &["acme/m@a"])
        .combo("b", &["acme/m@b"])
        .combo("c", &["acme/m@c"]);
    let node = Node::start(&config).await;
    for (model, ways) in [("a", (1, 0)), ("c", (1, 0)), ("b", (1, 1))] {
        let body = Dialect::Chat.request(model, false);
        let answer = node.post("/v1/chat/completions", &body).send().await;
        answer.expect_status(200);
        assert_eq!((one.asked().len(), two.asked().len()), ways, "{model}");
    }
}

/// Asks once; `a` is in trouble and `b` serves. What is told of `a`.
async fn trouble(upstream: &Upstream, proxy_url: &str) -> Value {
    upstream.script("b", [Dialect::Chat.ok("pong")]);
    let node = Node::start(&hasty(&upstream.url(), proxy_url)).await;
    assert!(ask(&node, false).await.contains("pong"));
    assert_eq!(upstream.count("a"), 0);
    let error = node.connection("a").await;
    assert_eq!(error["connectionStatus"], "cooling_down", "{error}");
    let told = format!(
        "{}{error}{}",
        node.log().text(),
        node.admin_get("/api/requests").await
    );
    for secret in [PASSWORD, LOGIN, BASIC, "ss-word"] {
        assert!(!told.contains(secret), "{secret} in {told}");
    }
    let message = error["lastErrorMessage"].as_str().unwrap();
    assert!(message.contains("proxyUrl"), "{message}");
    error["lastErrorRule"].clone()
}

#[tokio::test]
async fn a_proxy_in_the_way_is_the_connection_s_trouble() {
    let upstream = Upstream::start().await;
    let refused = Refused::new();
    let gone = refused.url();
    let gone = gone.trim_start_matches("http://").trim_end_matches("/v1");
    for scheme in ["http", "socks5"] {
        let url = format!("{scheme}://{LOGIN}@{gone}");
        assert_eq!(trouble(&upstream, &url).await, "upstream-proxy-unreachable");
    }
    for (manner, kind, rule) in [
        (Manner::Silent, Kind::Socks5, "upstream-proxy-unreachable"),
        (Manner::Refuse, Kind::Socks5, "upstream-proxy-refused"),
        (Manner::Garbage, Kind::Socks5, "upstream-proxy-garbage"),
        (Manner::Close, Kind::Socks5, "upstream-proxy-garbage"),
        (Manner::Garbage, Kind::Http, "upstream-proxy-garbage"),
    ] {
        let proxy = Proxy::start(kind).await;
        proxy.set(manner);
        assert_eq!(
            trouble(&upstream, &proxy.url()).await,
            rule,
            "{manner:?} {kind:?}"
        );
    }
    let http = Proxy::asking(Kind::Http, "somebody:else").await;
    let socks = Proxy::asking(Kind::Socks5, "somebody:else").await;
    for url in [
        http.url(),
        http.url_as(&before_the_host(Some(LOGIN))),
        socks.url(),
        socks.url_by("socks5h", &before_the_host(Some(LOGIN))),
    ] {
        assert_eq!(
            trouble(&upstream, &url).await,
            "upstream-proxy-login",
            "{url}"
        );
    }
}

#[tokio::test]
async fn a_tunnel_that_is_refused_is_not_the_upstream_s_doing() {
    let upstream = Upstream::start().await;
    let tls = Tls::before(upstream.addr()).await;
    let base_url = format!("https://localhost:{}/v1", tls.port());
    let proxy = Proxy::start(Kind::Http).await;
    for (manner, rule) in [
        (Manner::Refuse, "upstream-proxy-refused"),
        (Manner::Close, "upstream-proxy-garbage"),
        (Manner::Silent, "upstream-proxy-unreachable"),
    ] {
        proxy.set(manner);
        let node = trusting(&tls, &hasty(&base_url, &proxy.url())).await;
        upstream.script("b", [Dialect::Chat.ok("pong")]);
        assert!(ask(&node, false).await.contains("pong"));
        let error = node.connection("a").await;
        assert_eq!(error["lastErrorRule"], rule, "{manner:?}");
        assert_eq!(error["breaker"]["state"], "CLOSED", "{error}");
    }
}
