//! Starting: without any configuration, with a provider's variable set, and
//! what the start tells a newcomer.

use std::process::Stdio;

use cluster_tests::node::{Node, Setup, command};
use cluster_tests::wait::{SOON, within};
use serde_json::{Value, json};

/// The line with a `curl` command in what the node printed, plain or in JSON.
fn curl_line(node: &Node) -> String {
    for line in node.log().lines() {
        let parsed: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
        let mut texts = vec![line.clone()];
        if parsed.is_object() {
            texts = strings(&parsed);
        }
        for text in texts {
            if let Some(at) = text.find("curl ") {
                return text[at..].to_owned();
            }
        }
    }
    panic!("no curl line in {}", node.log().text());
}

fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Object(fields) => fields.values().flat_map(strings).collect(),
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

#[tokio::test]
async fn without_configuration_the_printed_curl_line_works_as_it_stands() {
    let node = Setup::bare().start().await;
    let port = node.addr().port().to_string();
    let line = curl_line(&node);
    assert!(line.contains(&port), "{line} does not go to port {port}");

    let mut shell = tokio::process::Command::new("sh");
    shell.args(["-c", &line]).stdin(Stdio::null());
    let output = within(SOON, "curl ends", shell.output()).await.unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}: {output:?}");
    assert!(!stdout.contains("\"error\""), "{line}: {stdout}");
    assert!(
        stdout.contains("\"choices\"") || stdout.contains("\"content\""),
        "{line}: {stdout}"
    );
}

#[tokio::test]
async fn the_port_and_the_store_have_defaults() {
    let setup = Setup::bare();
    let node = setup.start().await;
    assert!(setup.dir().join("omniroute-data").is_dir());
    let ready = node.get("/readyz").send().await.expect_status(200).json();
    for field in [
        "status",
        "degraded",
        "store",
        "coordinator",
        "node",
        "version",
    ] {
        assert!(ready.get(field).is_some(), "no {field} in {ready}");
    }
    assert_eq!(ready["degraded"], json!([]));
    node.get("/healthz").send().await.expect_status(200);

    let help = command("router-node", setup.dir()).arg("--help").output();
    let help = String::from_utf8(help.await.unwrap().stdout).unwrap();
    for word in [
        "--config", "--listen", "--store", "check", "keygen", "schema",
    ] {
        assert!(help.contains(word), "no {word} in {help}");
    }
    let version = command("router-node", setup.dir())
        .arg("--version")
        .output();
    let version = String::from_utf8(version.await.unwrap().stdout).unwrap();
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}

#[tokio::test]
async fn a_provider_with_its_usual_variable_becomes_a_connection() {
    let setup = Setup::bare()
        .env("OPENAI_API_KEY", "sk-found-in-the-environment-1")
        .env("ANTHROPIC_API_KEY", "sk-found-in-the-environment-2")
        .env("XAI_API_KEY", "");
    let node = setup.start().await;
    let all = node.admin_get("/api/resilience/connections").await;
    let all = all["connections"].as_array().unwrap().clone();
    let providers: Vec<&str> = all
        .iter()
        .filter_map(|one| one["provider"].as_str())
        .collect();
    assert!(providers.contains(&"openai"), "{providers:?}");
    let anthropic = ["anthropic", "claude"]
        .iter()
        .any(|name| providers.contains(name));
    assert!(anthropic, "{providers:?}");
    assert!(
        !providers.contains(&"xai"),
        "an empty variable: {providers:?}"
    );

    let printed = node.log().text();
    assert!(printed.contains("openai"), "{printed}");
    assert!(!printed.contains("sk-found"), "{printed}");
    let line = curl_line(&node);
    assert!(line.contains(&node.addr().port().to_string()), "{line}");
}

#[tokio::test]
async fn another_address_than_loopback_needs_keys() {
    let mut process = Setup::bare().env("OMNIROUTE_LISTEN", "0.0.0.0:0").spawn();
    let status = process.exit(SOON).await;
    process.log().closed().await;
    assert!(!status.success());
    let printed = process.log().text();
    assert!(printed.contains("apiKeys"), "{printed}");
}

#[tokio::test]
async fn a_taken_port_is_said_and_ends_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let mut process = Setup::bare().env("OMNIROUTE_LISTEN", &addr).spawn();
    let status = process.exit(SOON).await;
    process.log().closed().await;
    assert!(!status.success());
    assert!(
        process.log().text().contains(&addr),
        "{}",
        process.log().text()
    );
}

#[tokio::test]
async fn two_nodes_do_not_share_an_embedded_store() {
    let setup = Setup::bare();
    let first = setup.start().await;
    let mut second = setup.spawn();
    let status = second.exit(SOON).await;
    second.log().closed().await;
    assert!(!status.success());
    assert!(
        second.log().text().contains("omniroute-data"),
        "{}",
        second.log().text()
    );
    first.get("/readyz").send().await.expect_status(200);
}

#[tokio::test]
async fn the_log_is_one_json_object_a_line_when_nobody_watches() {
    let mut node = Setup::bare().start().await;
    let body = json!({"model": "simulated/ok", "messages": [{"role": "user", "content": "hi"}]});
    let answer = node.post("/v1/chat/completions", &body).send().await;
    let id = answer.header("x-request-id").unwrap().to_owned();
    node.log()
        .line("the request is logged", |line| line.contains(&id))
        .await;
    node.stop().await;
    let records = node.log().records();
    let mut of_request = records.iter().filter(|one| one.to_string().contains(&id));
    let line = of_request.next().expect("the line is not JSON").to_string();
    assert_eq!(of_request.next(), None, "more than one line a request");
    for word in ["level", "timestamp", "200", "simulated"] {
        assert!(line.contains(word), "no {word} in {line}");
    }
}
