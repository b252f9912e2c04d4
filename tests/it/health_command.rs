//! `router-node health` and `coordinator health`: the health checks of an image
//! without a shell.

use std::process::Output;

use cluster_tests::chart::run;
use cluster_tests::config::Config;
use cluster_tests::coordinator::Coordinator;
use cluster_tests::node::{Node, Setup, command};
use cluster_tests::port::Port;
use cluster_tests::redis::Redis;
use nix::sys::signal::Signal;
use serde_json::json;

async fn health(program: &str, args: &[&str], env: &[(&str, &str)]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = command(program, dir.path());
    run(command.arg("health").args(args).envs(env.iter().copied())).await
}

fn told(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(both).unwrap()
}

#[tokio::test]
async fn a_router_that_lives_is_well_and_one_that_is_gone_is_not() {
    let mut node = Node::start(&Config::new()).await;
    let address = node.addr().to_string();
    let asked = ["--address", &address, "--ready", "--model", "simulated/ok"];
    let output = health("router-node", &asked, &[]).await;
    let text = told(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("/healthz: {\"status\":\"ok\"}"),
        "{text}"
    );
    assert!(
        lines[1].starts_with("/readyz: {\"status\":\"ready\""),
        "{text}"
    );
    assert!(
        lines[2].starts_with("simulated/ok: {") && lines[2].contains("choices"),
        "{text}"
    );
    node.stop().await;
    let output = health("router-node", &asked, &[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(
        told(&output).contains(&format!("/healthz at {address}: ")),
        "{output:?}"
    );
}

#[tokio::test]
async fn without_an_address_the_configuration_says_where_it_is() {
    let port = Port::take();
    let config = Config::new()
        .server("listen", json!(format!("0.0.0.0:{}", port.number())))
        .api_key("a", "a-long-enough-key", json!({}));
    let node = Setup::with(&config).start().await;
    let file = node.setup().file();
    let file = file.to_str().unwrap();
    let output = health("router-node", &["--config", file, "--ready"], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // A model wants a key here, and is told a bad one.
    let ask = ["--config", file, "--model", "simulated/ok"];
    for (key, code) in [("a-long-enough-key", 0), ("another", 1)] {
        let output = health("router-node", &ask, &[("OMNIROUTE_CLIENT_KEY", key)]).await;
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(!told(&output).contains(key), "{output:?}");
    }
    let output = health("router-node", &ask, &[]).await;
    assert!(told(&output).contains("status 401"), "{output:?}");
    // One that can't be read is no answer.
    std::fs::write(file, "server: {listn: 1}").unwrap();
    let output = health("router-node", &["--config", file], &[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("listn"), "{output:?}");
}

#[tokio::test]
async fn a_frozen_router_is_not_well_and_is_not_waited_for_long() {
    let node = Node::start(&Config::new()).await;
    let address = node.addr().to_string();
    node.freeze();
    let started = std::time::Instant::now();
    let output = health("router-node", &["--address", &address], &[]).await;
    assert!(started.elapsed().as_secs() < 10);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("no answer within 4 s"), "{output:?}");
    node.thaw();
}

#[tokio::test]
async fn a_coordinator_is_asked_alike() {
    let redis = Redis::start().await;
    let config = Config::new().set(&["store", "url"], json!(redis.url()));
    let mut coordinator = Coordinator::start(&config, "c").await;
    let address = coordinator.addr().to_string();
    let output = health("coordinator", &["--address", &address], &[]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(told(&output).contains("\"role\":"), "{output:?}");
    coordinator.stop().await;
    let output = health("coordinator", &["--address", &address], &[]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[tokio::test]
async fn help_names_it_and_what_is_no_server_is_told() {
    for program in ["router-node", "coordinator"] {
        let dir = tempfile::tempdir().unwrap();
        let output = run(command(program, dir.path()).arg("--help")).await;
        assert!(
            told(&output).contains("Ask a running"),
            "{program}: {}",
            told(&output)
        );
        let output = health(program, &["--address", "no port"], &[]).await;
        assert_eq!(output.status.code(), Some(1), "{program}: {output:?}");
    }
    let mut node = Node::start(&Config::new()).await;
    let address = node.addr().to_string();
    node.process().signal(Signal::SIGTERM);
    node.process().exit(cluster_tests::wait::SOON).await;
    let output = health("router-node", &["--address", &address], &[]).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
