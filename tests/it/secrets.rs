//! Secrets never leave: not in logs, metrics, errors or answers.

use cluster_tests::config::Config;
use cluster_tests::dialect::Dialect;
use cluster_tests::node::{Node, Setup, command};
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::json;

const SECRETS: [&str; 7] = [
    "key-leaky",
    "key-steady",
    "the-teams-key",
    "the-admin-token",
    "proxy-password",
    "oauth-access-secret",
    "oauth-refresh-secret",
];

fn expect_none(place: &str, text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret} in {place}: {text}");
    }
}

fn config(upstream: &Upstream) -> Config {
    let oauth = json!({"oauth": {"accessToken": "oauth-access-secret",
        "refreshToken": "oauth-refresh-secret", "expiresAt": "2099-01-01T00:00:00Z"}});
    let proxied = json!({"proxyUrl": "http://user:proxy-password@127.0.0.1:9", "priority": 1});
    Config::new()
        .server("adminToken", json!("the-admin-token"))
        .api_key("team", "the-teams-key", json!({}))
        .provider("acme", "openai", &upstream.url())
        .connection("leaky", "acme")
        .connection_with("steady", "acme", json!({"priority": 2}))
        .provider_with(
            "plan",
            "anthropic",
            &upstream.url(),
            json!({"auth": "oauth"}),
        )
        .connection_with("subscription", "plan", oauth)
        .provider("far", "openai", &upstream.url())
        .connection_with("proxied", "far", proxied)
        .no_waiting()
}

/// Every kind of failure, each with the key in the upstream's words.
fn leaks() -> Vec<Reply> {
    let words = "Incorrect API key provided: key-leaky. Sent was: Bearer key-leaky";
    let in_band = json!({"error": {"message": words, "code": "key-leaky"}});
    let mut replies: Vec<Reply> = [400, 401, 403, 404, 422, 429, 500, 503]
        .into_iter()
        .map(|status| Reply::error(status, words))
        .collect();
    replies.push(Reply::text(500, "text/html", words));
    replies.push(Reply::json(200, &in_band));
    replies.push(Reply::sse().send(&format!("data: {in_band}\n\n")));
    let after = Reply::sse().send(&Dialect::Chat.content("hel"));
    replies.push(after.send(&format!("data: {in_band}\n\n")));
    replies.push(Reply::wire(b"HTTP/1.1 200 OK\r\nkey-leaky\r\n\r\n"));
    replies
}

async fn provoke(node: &Node, upstream: &Upstream) -> String {
    let mut told = String::new();
    for reply in leaks() {
        upstream.script("leaky", [reply]);
        upstream.script("steady", [Reply::error(500, "boom")]);
        for stream in [false, true] {
            let reset = node.post("/api/resilience/reset", &json!({"scope": "all"}));
            reset
                .bearer("the-admin-token")
                .send()
                .await
                .expect_status(200);
            let body = Dialect::Chat.request("acme/m", stream);
            let call = node
                .post("/v1/chat/completions", &body)
                .bearer("the-teams-key");
            let answer = call.send().await;
            told.extend([
                format!(
                    "{:?}
",
                    answer.headers
                ),
                answer.text(),
            ]);
        }
    }
    let body = Dialect::Chat.request("far/m", false);
    let call = node
        .post("/v1/chat/completions", &body)
        .bearer("the-teams-key");
    told += &call.send().await.text();
    let body = Dialect::Messages.request("plan/m", false);
    let call = node.post("/v1/messages", &body).bearer("the-teams-key");
    told + &call.send().await.text()
}

#[tokio::test]
async fn they_are_nowhere_even_when_upstreams_repeat_them() {
    let upstream = Upstream::start().await;
    let setup = Setup::with(&config(&upstream)).env("RUST_LOG", "trace");
    let mut node = setup.start().await;
    let told = provoke(&node, &upstream).await;
    expect_none("an answer", &told);
    assert!(upstream.count("leaky") >= 13);
    let seen = upstream.requests();
    let oauth = seen.iter().find(|one| one.key == "oauth-access-secret");
    assert!(oauth.is_some(), "the token was not used");

    for path in [
        "/api/resilience/connections",
        "/api/requests",
        "/api/monitoring/health",
        "/metrics",
        "/readyz",
        "/healthz",
        "/v1/models",
    ] {
        let call = node.get(path);
        let key = if path == "/v1/models" {
            "the-teams-key"
        } else {
            "the-admin-token"
        };
        expect_none(path, &call.bearer(key).send().await.text());
    }
    let list = node
        .get("/api/requests")
        .bearer("the-admin-token")
        .send()
        .await
        .json();
    for request in list["requests"].as_array().unwrap() {
        let path = format!("/api/requests/{}", request["id"].as_str().unwrap());
        let answer = node.get(&path).bearer("the-admin-token").send().await;
        expect_none(&path, &answer.text());
    }
    node.stop().await;
    let log = node.log().text();
    assert!(log.len() > 1000, "nothing was logged");
    expect_none("the log", &log);
}

#[tokio::test]
async fn the_store_holds_no_plain_tokens_or_keys() {
    let upstream = Upstream::start().await;
    let mut node = Node::start(&config(&upstream)).await;
    provoke(&node, &upstream).await;
    node.stop().await;
    let dir = node.setup().dir().join("omniroute-data");
    for entry in std::fs::read_dir(dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for secret in SECRETS {
            let found = bytes
                .windows(secret.len())
                .any(|at| at == secret.as_bytes());
            assert!(!found, "{secret} in the store");
        }
    }
}

#[tokio::test]
async fn checking_a_broken_file_does_not_print_them() {
    let text = "\
server: {adminToken: the-admin-token, nonsense: 1}
apiKeys:
  - {id: team, key: the-teams-key, sha256: key-leaky}
connections:
  - {id: a, provider: openai, apiKey: key-leaky, priority: the-teams-key}
  - {id: b, provider: openai, apiKey: [key-steady]}
  - {id: c, provider: openai, apiKey: {evn: key-steady}, proxyUrl: 'ftp://user:proxy-password@x'}
";
    let setup = Setup::with_text(text);
    let mut check = command("router-node", setup.dir());
    let output = check
        .args(["check", "--config", "router.yaml"])
        .output()
        .await
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    for secret in [
        "key-leaky",
        "key-steady",
        "the-admin-token",
        "proxy-password",
    ] {
        assert!(!printed.contains(secret), "{secret} in {printed}");
    }
}
