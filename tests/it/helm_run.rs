//! What the chart starts does start: each configuration passes `check`, each
//! container becomes ready against a real Redis, its probes answer, `helm
//! test`'s own pod succeeds, and the alerts' metrics exist.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use cluster_tests::chart::{Chart, VALUES, run, succeed};
use cluster_tests::client::Call;
use cluster_tests::pod::{Plan, Pod, World, text};
use cluster_tests::port::Port;
use cluster_tests::redis::{self, Redis};
use cluster_tests::redis_cluster::RedisCluster;
use cluster_tests::wait::eventually;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::process::{Child, Command};

/// A client's key in every Secret here.
const KEY: &str = "a-clients-key-0123456789";
/// Of the value file `evaluation`, which has its hash.
const EVALUATION_KEY: &str = "omr_evaluation";

/// The Secrets and hosts that the value files speak of, with `url` for the store.
fn world() -> World {
    let names = [
        "OMNIROUTE_CLIENT_KEY",
        "OMNIROUTE_ADMIN_TOKEN",
        "OPERATIONS_KEY",
        "GROQ_API_KEY",
        "ANTHROPIC_API_KEY",
        "openai-1",
        "openai-2",
        "team-a",
        "team-b",
    ];
    let named = names.into_iter().fold(World::default(), |world, name| {
        let value = format!("{name}-{KEY}");
        world.secret("omniroute", name, &value)
    });
    named
        .secret("omniroute", "OMNIROUTE_CLIENT_KEY", KEY)
        .secret("omniroute", "team-a", KEY)
        .secret("redis-auth", "redis-password", "p4ssw0rd")
        .secret("redis-ca", "ca.crt", "none yet")
        .secret("omniroute-redis-tls", "ca.crt", "none yet")
        .secret("omniroute-redis", "store-url", "redis+sentinel://none/yet")
}

/// Redis in whatever form the value file `name` wants it.
enum Store {
    One(Redis),
    Cluster(RedisCluster),
    /// The chart's own, by its own command.
    Own(Child, Port, Box<Plan>),
}

impl Store {
    async fn start(name: &str, chart: &Chart) -> (Self, World) {
        match name {
            "minimal" => {
                let redis = Redis::start().await;
                let world = world().host("redis.data.svc:6379", &redis.addr().to_string());
                (Self::One(redis), world)
            }
            "production" => {
                let redis = redis::Setup::memory().password("p4ssw0rd").start().await;
                let world = world().host("redis.data.svc:6379", &redis.addr().to_string());
                (Self::One(redis), world)
            }
            "sentinel-tls" => {
                let redis = redis::Setup::memory().tls().start().await;
                let ca = std::fs::read_to_string(redis.ca_file()).unwrap();
                let url = format!("{}?ca=/etc/omniroute/redis-tls/ca.crt", redis.url());
                let world = world().secret("omniroute-redis-tls", "ca.crt", &ca).secret(
                    "omniroute-redis",
                    "store-url",
                    &url,
                );
                (Self::One(redis), world)
            }
            "cluster" => {
                let cluster = RedisCluster::start().await;
                // Theirs speaks no TLS; that is the value file's before this one.
                let (written, _) = written_url(chart).split_once('?').unwrap();
                let world = world()
                    .host("?ca=/etc/omniroute/redis-tls/ca.crt", "")
                    .host(written, &cluster.url());
                (Self::Cluster(cluster), world)
            }
            _ => Self::own(chart).await,
        }
    }

    async fn own(chart: &Chart) -> (Self, World) {
        let set = chart.one("StatefulSet", "-redis");
        let port = Port::take();
        let to_port = World::default().host("6379", &port.number().to_string());
        let plan = Plan::of(chart, set, &to_port, "redis-0");
        assert_eq!(plan.container["command"], json!(["redis-server"]));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "redis-server"]);
        let child = plan
            .command_of(command)
            .env("PATH", "/usr/bin:/bin")
            .spawn()
            .unwrap();
        eventually("the chart's Redis answers", || async {
            tokio::net::TcpStream::connect(port.addr()).await.ok()
        })
        .await;
        let service = chart.one("Service", "-redis")["metadata"]["name"].clone();
        let written = format!("{}:6379", text(&service));
        let world = world().host(&written, &port.addr().to_string());
        (Self::Own(child, port, Box::new(plan)), world)
    }

    fn is_up(&self) -> bool {
        match self {
            Self::One(redis) => redis.pid().as_raw() > 0,
            Self::Cluster(cluster) => !cluster.servers().is_empty(),
            Self::Own(child, port, plan) => {
                let log = plan.place("/data/appendonlydir");
                child.id().is_some() && port.number() > 0 && log.exists()
            }
        }
    }
}

/// The store's URL as the chart wrote it.
fn written_url(chart: &Chart) -> &str {
    let router = chart.one("Deployment", "-router");
    let env = &router["spec"]["template"]["spec"]["containers"][0]["env"];
    let found = env
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "OMNIROUTE_STORE_URL");
    text(&found.unwrap()["value"])
}

fn start(chart: &Chart, component: &str, world: &World, name: &str) -> Pod {
    let owner = chart.one("Deployment", &format!("-{component}"));
    Plan::of(chart, owner, world, name).start()
}

fn key_of(name: &str) -> &'static str {
    if name == "evaluation" {
        EVALUATION_KEY
    } else {
        KEY
    }
}

async fn serves(router: &Pod, name: &str) {
    let body = json!({"model": "simulated/ok", "messages": [{"role": "user", "content": "ping"}]});
    let call = || {
        router
            .call(8080, "POST", "/v1/chat/completions")
            .json(&body)
    };
    call().bearer(key_of(name)).send().await.expect_status(200);
    call().send().await.expect_status(401);
    // Management is on the other listener only.
    let path = "/api/resilience/connections";
    router
        .call(8080, "GET", path)
        .send()
        .await
        .expect_status(404);
    let status = router.call(9090, "GET", path).send().await.status;
    assert_eq!(status, 401, "{name}");
    router
        .call(8080, "GET", "/metrics")
        .send()
        .await
        .expect_status(404);
    router
        .call(9090, "GET", "/metrics")
        .send()
        .await
        .expect_status(200);
}

async fn knows_the_store(pod: &Pod, port: u64) {
    eventually("the store is up", || async {
        let ready = pod
            .call(port, "GET", "/readyz")
            .try_send()
            .await
            .ok()?
            .json();
        (ready["store"] == "up").then_some(())
    })
    .await;
}

async fn everything_of(name: &str) {
    let chart = Chart::of(name).await;
    let (store, world) = Store::start(name, &chart).await;
    let mut router = start(&chart, "router", &world, "rel-router-abc");
    let mut coordinator = start(&chart, "coordinator", &world, "rel-coordinator-abc");
    tokio::join!(router.ready(), coordinator.ready());
    knows_the_store(&router, 9090).await;
    knows_the_store(&coordinator, 9091).await;
    let ready = router.call(9090, "GET", "/readyz").send().await.json();
    assert_eq!(ready["node"], "rel-router-abc", "{name}");
    eventually("it leads", || async {
        let ready = coordinator
            .call(9091, "GET", "/readyz")
            .try_send()
            .await
            .ok()?
            .json();
        (ready["role"] == "leader").then_some(())
    })
    .await;
    serves(&router, name).await;
    helm_test_succeeds(&chart, &world, &router).await;
    if !chart.all("PrometheusRule").is_empty() {
        metrics_of_alerts_exist(&chart, &[(&router, 9090), (&coordinator, 9091)]).await;
    }
    assert!(store.is_up());
    let quickly = nix::sys::signal::Signal::SIGTERM;
    for pod in [&mut router, &mut coordinator] {
        pod.process.signal(quickly);
        let status = pod.process.exit(pod.grace()).await;
        assert_eq!(status.code(), Some(0), "{name}: {status}");
    }
}

/// The pod of `helm test` with the service's name for the router's address.
async fn helm_test_succeeds(chart: &Chart, world: &World, router: &Pod) {
    let service = chart.all("Service").into_iter().find(|one| {
        let selector = &one["spec"]["selector"]["app.kubernetes.io/component"];
        selector == "router"
            && one["spec"]["clusterIP"].is_null()
            && one["spec"]["ports"][0]["name"] == "http"
    });
    let service = service.unwrap();
    let port = &service["spec"]["ports"][0]["port"];
    let address = format!("{}:{port}", text(&service["metadata"]["name"]));
    let world = world.clone().host(&address, &router.addr(8080).to_string());
    let plan = Plan::of(chart, chart.one("Pod", "-test"), &world, "test");
    let told = succeed(&mut plan.command()).await;
    assert!(told.contains("/readyz: {\"status\":\"ready\""), "{told}");
    let asks = plan.args().contains(&"simulated/ok".to_owned());
    assert_eq!(told.contains("simulated/ok: {"), asks, "{told}");
    if asks {
        let mut wrong = plan.command();
        let output = run(wrong.env("OMNIROUTE_CLIENT_KEY", "not-a-key")).await;
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            told.contains("status 401") && !told.contains("not-a-key"),
            "{told}"
        );
    }
}

/// Every metric and label that an alert names is told by a process.
async fn metrics_of_alerts_exist(chart: &Chart, pods: &[(&Pod, u64)]) {
    let mut told = String::new();
    for (pod, port) in pods {
        told.push_str(&pod.call(*port, "GET", "/metrics").send().await.text());
    }
    let mut named = BTreeSet::new();
    let rule = chart.one("PrometheusRule", "");
    for rule in rule["spec"]["groups"][0]["rules"].as_array().unwrap() {
        let words = text(&rule["expr"]).split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        named.extend(
            words
                .filter(|word| word.starts_with("omniroute_"))
                .map(str::to_owned),
        );
    }
    assert!(named.len() >= 8, "{named:?}");
    for name in named {
        let base = name.trim_end_matches("_total").trim_end_matches("_bucket");
        assert!(
            told.contains(&format!("# TYPE {base} ")),
            "no {name} in {told}"
        );
    }
    for label in [
        "state=\"healthy\"",
        "state=\"cooling_down\"",
        "state=\"terminal\"",
        "state=\"OPEN\"",
        "outcome=\"success\"",
        "status=\"200\"",
        "result=\"refused\"",
    ] {
        assert!(told.contains(label), "no {label} in {told}");
    }
}

#[tokio::test]
async fn minimal_values_give_a_cluster_that_answers() {
    everything_of("minimal").await;
}

#[tokio::test]
async fn production_values_give_a_cluster_that_answers() {
    everything_of("production").await;
}

#[tokio::test]
async fn values_with_tls_give_a_cluster_that_answers() {
    everything_of("sentinel-tls").await;
}

#[tokio::test]
async fn values_with_a_redis_cluster_give_a_cluster_that_answers() {
    everything_of("cluster").await;
}

#[tokio::test]
async fn evaluation_values_give_a_cluster_that_answers_on_its_own_redis() {
    everything_of("evaluation").await;
}

#[tokio::test]
async fn every_switch_on_gives_a_cluster_that_answers() {
    everything_of("everything").await;
}

#[tokio::test]
async fn every_rendered_configuration_passes_check() {
    for name in VALUES {
        let chart = Chart::of(name).await;
        let owner = chart.one("Deployment", "-router");
        let plan = Plan::of(&chart, owner, &world(), "check");
        let file = plan.place("/etc/omniroute/config/omniroute.yaml");
        let mut command = Command::new(cluster_tests::node::binary("router-node"));
        command
            .env_clear()
            .envs(plan.env())
            .arg("check")
            .arg("--config")
            .arg(&file);
        if name == "cluster" {
            command.env("OMNIROUTE_STORE_URL", "redis+cluster://a,b");
        }
        let told = succeed(&mut command).await;
        assert!(told.contains(": ok ("), "{name}: {told}");
        // As it is in the ConfigMap, not as it is mapped here.
        assert!(chart.config().contains("listen: 0.0.0.0:8080"), "{name}");
        assert!(
            chart.config().contains("adminListen: 0.0.0.0:9090"),
            "{name}"
        );
    }
}

#[tokio::test]
async fn readiness_does_not_depend_on_redis() {
    let chart = Chart::of("minimal").await;
    let nobody = Port::take();
    let world = world().host("redis.data.svc:6379", &nobody.addr().to_string());
    let router = start(&chart, "router", &world, "r");
    let coordinator = start(&chart, "coordinator", &world, "c");
    tokio::join!(router.ready(), coordinator.ready());
    let ready = router.call(9090, "GET", "/readyz").send().await.json();
    assert_eq!(ready["degraded"], json!(["store"]));
    serves(&router, "minimal").await;
}

#[tokio::test]
async fn probes_are_answered_while_every_request_thread_is_busy_elsewhere() {
    let chart = Chart::with("minimal", &["config.server.workers=1"]).await;
    let redis = Redis::start().await;
    let world = world().host("redis.data.svc:6379", &redis.addr().to_string());
    let router = start(&chart, "router", &world, "r");
    router.ready().await;
    let body = json!({"model": "simulated/drip", "stream": true,
        "messages": [{"role": "user", "content": "ping"}]});
    let calls = (0..64).map(|_| {
        let call = router.call(8080, "POST", "/v1/chat/completions");
        call.bearer(KEY).json(&body).open()
    });
    let open = futures_util::future::join_all(calls).await;
    for probe in ["livenessProbe", "readinessProbe"] {
        assert_eq!(router.probe(probe).await, Some(200));
    }
    drop(open);
}

/// The status of a call with a key.
async fn models(router: &Pod, key: &str) -> u16 {
    let call = Call::new(router.addr(8080), "GET", "/v1/models");
    call.bearer(key).send().await.status
}

const OTHER_KEY: &str = "another-key-0123456789";

#[tokio::test]
async fn a_secret_that_changes_in_its_volume_is_taken_over_without_a_restart() {
    let chart = Chart::of("production").await;
    let (_store, world) = Store::start("production", &chart).await;
    let router = start(&chart, "router", &world, "r");
    router.ready().await;
    assert_eq!(models(&router, KEY).await, 200);
    let changed = world.secret("omniroute", "team-a", OTHER_KEY);
    let files: Vec<_> = changed.secrets["omniroute"].clone().into_iter().collect();
    router.plan.publish("/etc/omniroute/secrets", &files);
    eventually("the new key is known", || async {
        (models(&router, OTHER_KEY).await == 200).then_some(())
    })
    .await;
    assert_eq!(models(&router, KEY).await, 401);
}

#[tokio::test]
async fn a_changed_config_map_is_taken_over_where_no_rollout_is_wanted() {
    let sets = ["router.rolloutOnConfigChange=false"];
    let chart = Chart::with("minimal", &sets).await;
    let (_store, world) = Store::start("minimal", &chart).await;
    let router = start(&chart, "router", &world, "r");
    router.ready().await;
    let publish = |text: String| {
        let files = [("omniroute.yaml".to_owned(), router.plan.mapped(&text))];
        router.plan.publish("/etc/omniroute/config", &files);
    };
    let digest = Sha256::digest(OTHER_KEY);
    let hex = digest.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    });
    let key = format!("config.apiKeys[0].sha256={hex}");
    let sets = ["config.apiKeys[0].id=other", &key];
    let next = Chart::with("minimal", &sets).await;
    // A broken one changes nothing and is told.
    publish(next.config().replace("apiKeys", "apiKees"));
    eventually("it is degraded", || async {
        let ready = router.call(9090, "GET", "/readyz").try_send().await.ok()?;
        (ready.status == 200 && ready.json()["degraded"] == json!(["config"])).then_some(())
    })
    .await;
    let told = router.call(9090, "GET", "/metrics").send().await.text();
    assert!(
        told.contains("omniroute_config_reloads_total{result=\"refused\"} 1"),
        "{told}"
    );
    assert_eq!(models(&router, KEY).await, 200);
    publish(next.config().to_owned());
    eventually("the new key is known", || async {
        (models(&router, OTHER_KEY).await == 200).then_some(())
    })
    .await;
    assert_eq!(models(&router, KEY).await, 401);
}
