//! `deploy/compose.yaml`: its configuration passes `check`, and what it starts,
//! started as it says, is a cluster that answers through its balancer.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;

use cluster_tests::balancer::Balancer;
use cluster_tests::chart::{repository, succeed, text_of};
use cluster_tests::client::Call;
use cluster_tests::node::{Process, binary};
use cluster_tests::port::Port;
use cluster_tests::redis::Redis;
use cluster_tests::wait::{SOON, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

const ROUTERS: [&str; 3] = ["router-1", "router-2", "router-3"];
const COORDINATORS: [&str; 2] = ["coordinator-1", "coordinator-2"];

fn compose() -> Value {
    let mut file: serde_yaml_ng::Value =
        serde_yaml_ng::from_str(&text_of("deploy/compose.yaml")).unwrap();
    // What is merged in may itself merge; each turn resolves one depth.
    for _ in 0..3 {
        file.apply_merge().unwrap();
    }
    serde_json::to_value(file).unwrap()
}

/// A value with its variables as they are when nobody sets them.
fn with_defaults(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (variable, tail) = after.split_once('}').unwrap();
        out.push_str(before);
        out.push_str(
            variable
                .split_once(":-")
                .expect("a variable without a default")
                .1,
        );
        rest = tail;
    }
    out + rest
}

fn words(list: &Value) -> Vec<String> {
    let list = list
        .as_array()
        .unwrap_or_else(|| panic!("{list} is no list"));
    list.iter()
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

fn variables(service: &Value) -> BTreeMap<String, String> {
    let all = service["environment"].as_object().unwrap();
    all.iter()
        .map(|(name, value)| (name.clone(), with_defaults(value.as_str().unwrap())))
        .collect()
}

#[tokio::test]
async fn its_configuration_passes_check() {
    let mut command = Command::new(binary("router-node"));
    command
        .env_clear()
        .envs(variables(&compose()["services"]["router-1"]))
        .args(["check", "--config"])
        .arg(repository("deploy/compose/omniroute.yaml"));
    let told = succeed(&mut command).await;
    assert!(
        told.contains(": ok (3 connections, 0 combos, 1 API keys)"),
        "{told}"
    );
}

#[test]
fn its_services_are_those_of_a_cluster_and_have_no_privileges() {
    let compose = compose();
    let services = compose["services"].as_object().unwrap();
    let names: Vec<&String> = services.keys().collect();
    assert_eq!(names.len(), 7, "{names:?}");
    for name in ROUTERS.iter().chain(&COORDINATORS) {
        let service = &services[*name];
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], json!(["ALL"]), "{name}");
        assert_eq!(
            service["security_opt"],
            json!(["no-new-privileges:true"]),
            "{name}"
        );
        assert_eq!(
            service["volumes"],
            json!(["./compose/omniroute.yaml:/etc/omniroute/omniroute.yaml:ro"])
        );
        assert_eq!(
            service["depends_on"]["redis"]["condition"], "service_healthy",
            "{name}"
        );
    }
    assert!(services["router-1"]["build"]["dockerfile"] == "deploy/Dockerfile");
    // The drain, and what a stop itself takes.
    let config: Value = serde_yaml_ng::from_str(&text_of("deploy/compose/omniroute.yaml")).unwrap();
    let drain = config["server"]["drainTimeoutMs"].as_u64().unwrap() / 1000;
    assert_eq!(
        services["router-1"]["stop_grace_period"],
        format!("{}s", drain + 15)
    );
    // Nothing is published beyond this machine.
    for (name, service) in services {
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(
                port.as_str().unwrap().starts_with("127.0.0.1:"),
                "{name}: {port}"
            );
        }
    }
    let redis = words(&services["redis"]["command"]);
    for pair in [
        ["--appendonly", "yes"],
        ["--appendfsync", "everysec"],
        ["--maxmemory-policy", "noeviction"],
        ["--dir", "/data"],
    ] {
        assert!(redis.windows(2).any(|two| two == pair), "{redis:?}");
    }
    assert_eq!(services["redis"]["volumes"], json!(["redis:/data"]));
    assert!(
        compose["volumes"]
            .as_object()
            .unwrap()
            .contains_key("redis")
    );
    assert_eq!(services["balancer"]["stop_signal"], "SIGQUIT");
    assert_eq!(
        services["balancer"]["volumes"],
        json!(["./compose/nginx.conf:/etc/nginx/nginx.conf:ro"])
    );
    let nginx = text_of("deploy/compose/nginx.conf");
    for router in ROUTERS {
        assert!(
            nginx.contains(&format!("server {router}:8080 resolve ")),
            "{router}"
        );
        assert_eq!(
            services["balancer"]["depends_on"][router]["condition"],
            "service_healthy"
        );
    }
}

/// A service's process, with places of this machine.
struct Service {
    process: Process,
    ports: BTreeMap<u16, Port>,
    check: Vec<String>,
}

impl Service {
    fn start(service: &Value, redis: &Redis, dir: &Arc<TempDir>) -> Self {
        let ports: BTreeMap<u16, Port> = [8080, 9090, 9091]
            .into_iter()
            .map(|port| (port, Port::take()))
            .collect();
        let map = |text: &str| {
            let all = text.replace("redis:6379", &redis.addr().to_string());
            ports.iter().fold(all, |all, (port, here)| {
                let here = here.number();
                all.replace(&format!("0.0.0.0:{port}"), &format!("0.0.0.0:{here}"))
                    .replace(&format!("127.0.0.1:{port}"), &format!("127.0.0.1:{here}"))
            })
        };
        let file = dir.path().join(format!("{}.yaml", ports[&8080].number()));
        std::fs::write(&file, map(&text_of("deploy/compose/omniroute.yaml"))).unwrap();
        let entry = service["entrypoint"][0]
            .as_str()
            .unwrap_or("/usr/local/bin/router-node");
        let place = |word: &String| {
            map(word).replace("/etc/omniroute/omniroute.yaml", file.to_str().unwrap())
        };
        let variables = variables(service).into_iter();
        let mut command = Command::new(binary(entry.strip_prefix("/usr/local/bin/").unwrap()));
        command
            .args(words(&service["command"]).iter().map(place))
            .env_clear()
            .envs(variables.map(|(name, value)| (name, map(&value))))
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let process = Process::begin(&mut command, dir);
        let check = words(&service["healthcheck"]["test"])
            .iter()
            .map(place)
            .collect();
        Self {
            process,
            ports,
            check,
        }
    }

    /// Waits until its own health check says that it is well.
    async fn healthy(&self) {
        assert_eq!(self.check[0], "CMD");
        let program = binary(self.check[1].strip_prefix("/usr/local/bin/").unwrap());
        eventually("the health check passes", || async {
            let mut command = Command::new(&program);
            let output = command
                .args(&self.check[2..])
                .env_clear()
                .output()
                .await
                .ok()?;
            output.status.success().then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn what_it_starts_answers_through_its_balancer() {
    let compose = compose();
    let services = &compose["services"];
    let redis = Redis::start().await;
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let start = |name: &&str| Service::start(&services[*name], &redis, &dir);
    let mut routers: Vec<Service> = ROUTERS.iter().map(start).collect();
    let mut coordinators: Vec<Service> = COORDINATORS.iter().map(start).collect();
    for service in routers.iter().chain(&coordinators) {
        service.healthy().await;
    }
    let addresses: Vec<_> = routers
        .iter()
        .map(|router| router.ports[&8080].addr())
        .collect();
    let mut balancer = Balancer::start(&addresses).await;
    let key = variables(&services["router-1"])["OMNIROUTE_CLIENT_KEY"].clone();
    let line = format!("-H 'authorization: Bearer {key}'");
    assert!(
        text_of("deploy/compose.yaml").contains(&line),
        "the line to try has another key"
    );
    let mut connections = std::collections::BTreeSet::new();
    for stream in [false, true, false, true, false, true] {
        let body = json!({"model": "simulated/ok", "stream": stream,
            "messages": [{"role": "user", "content": "ping"}]});
        let call = Call::new(balancer.addr(), "POST", "/v1/chat/completions").json(&body);
        let answer = call.bearer(&key).send().await.expect_status(200);
        connections.insert(answer.header("x-omniroute-connection").unwrap().to_owned());
    }
    assert!(
        connections
            .iter()
            .all(|name| name.starts_with("simulated-")),
        "{connections:?}"
    );
    let token = variables(&services["router-1"])["OMNIROUTE_ADMIN_TOKEN"].clone();
    let admin = routers[0].ports[&9090].addr();
    eventually("all five live, and one coordinator leads", || async {
        let call = Call::new(admin, "GET", "/api/nodes").bearer(&token);
        let nodes = call.try_send().await.ok()?.json();
        (nodes["nodes"].as_array()?.len() == 5).then_some(())
    })
    .await;
    balancer.stop().await;
    for service in routers.iter_mut().chain(&mut coordinators) {
        service.process.signal(Signal::SIGTERM);
        assert_eq!(service.process.exit(SOON).await.code(), Some(0));
    }
}
