//! A pod goes as its chart says: it serves on while balancers forget it, then
//! finishes what is under way; and a Deployment that replaces its pods one by
//! one, by its own strategy, cuts no stream and fails no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cluster_tests::balancer::Balancer;
use cluster_tests::chart::{Chart, VALUES};
use cluster_tests::client::{Call, End};
use cluster_tests::events::events;
use cluster_tests::pod::{Plan, Pod, World};
use cluster_tests::redis::Redis;
use cluster_tests::wait::{SOON, eventually, let_time_pass};
use futures_util::future::join_all;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const KEY: &str = "a-clients-key-0123456789";
/// What a stop may take besides its drain, in seconds: last words 2, the store
/// 5, spans and log 2 each, and 4 for a busy machine.
const STOP_ITSELF: u64 = 15;

/// The chart with few seconds, and accounts whose answers take 4 s.
async fn chart(sets: &[&str]) -> Chart {
    let mut all = vec![
        "router.drain.endpointsSeconds=2",
        "router.drain.seconds=30",
        "config.connections[0].id=slow",
        "config.connections[0].provider=simulated",
        "config.connections[0].providerSpecificData.tokens=40",
        "config.connections[0].providerSpecificData.tokensPerSecond=10",
    ];
    all.extend(sets);
    Chart::with("minimal", &all).await
}

fn world(redis: &Redis) -> World {
    World::default()
        .secret("omniroute", "OMNIROUTE_CLIENT_KEY", KEY)
        .host("redis.data.svc:6379", &redis.addr().to_string())
}

fn pod(chart: &Chart, component: &str, world: &World, name: &str) -> Pod {
    let owner = chart.one("Deployment", &format!("-{component}"));
    Plan::of(chart, owner, world, name).start()
}

fn ask(addr: std::net::SocketAddr, stream: bool) -> Call {
    let body = json!({"model": "simulated/ok", "stream": stream,
        "messages": [{"role": "user", "content": "ping"}]});
    let call = Call::new(addr, "POST", "/v1/chat/completions");
    call.bearer(KEY).json(&body)
}

/// The text of a stream that ended as it should.
fn whole(stream: &str) -> String {
    assert!(stream.trim_end().ends_with("data: [DONE]"), "{stream}");
    let text = |event: &Value| {
        event["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::to_owned)
    };
    events(stream)
        .iter()
        .filter_map(|event| text(&event.json()))
        .collect()
}

#[tokio::test]
async fn every_grace_fits_its_streams() {
    for name in VALUES {
        let chart = Chart::of(name).await;
        let spec = &chart.one("Deployment", "-router")["spec"];
        let pod = &spec["template"]["spec"];
        let before = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
            .as_u64()
            .unwrap();
        let config: Value = serde_yaml_ng::from_str(chart.config()).unwrap();
        let drain = config["server"]["drainTimeoutMs"]
            .as_u64()
            .unwrap()
            .div_ceil(1000);
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert_eq!(grace, before + drain + STOP_ITSELF, "{name}");
        assert_eq!(spec["strategy"]["type"], "RollingUpdate", "{name}");
        assert_eq!(
            spec["strategy"]["rollingUpdate"]["maxUnavailable"], 0,
            "{name}"
        );
        assert_eq!(spec["strategy"]["rollingUpdate"]["maxSurge"], 1, "{name}");
        assert!(spec["minReadySeconds"].as_u64().unwrap() >= 1, "{name}");
    }
}

#[tokio::test]
async fn a_deleted_pod_serves_on_and_then_finishes_its_streams() {
    let redis = Redis::start().await;
    let chart = chart(&[]).await;
    let mut router = pod(&chart, "router", &world(&redis), "r");
    router.ready().await;
    let addr = router.addr(8080);
    let mut stream = ask(addr, true).open().await;
    stream.read_until("data: ").await;
    // While it is in its preStop it serves as before, also those who have not heard.
    let late = async {
        let_time_pass(Duration::from_secs(1), "preStop has begun").await;
        let late = ask(addr, true).open().await;
        assert_eq!(late.status, 200);
        whole(&late.finish().await)
    };
    let (text, late, ()) = tokio::join!(
        async { whole(&stream.finish().await) },
        late,
        router.delete()
    );
    assert_eq!(text.matches("pong").count(), 40, "{text}");
    assert_eq!(late.matches("pong").count(), 40, "{late}");
    let drained = router.process.log().text();
    assert!(!drained.contains("cut short"), "{drained}");
}

#[tokio::test]
async fn what_outlasts_the_drain_is_told_so_before_the_grace_is_over() {
    let redis = Redis::start().await;
    let chart = chart(&["router.drain.seconds=1", "router.drain.endpointsSeconds=1"]).await;
    let mut router = pod(&chart, "router", &world(&redis), "r");
    router.ready().await;
    let mut stream = ask(router.addr(8080), true).open().await;
    stream.read_until("data: ").await;
    let (told, ()) = tokio::join!(stream.finish(), router.delete());
    assert!(told.contains("server_shutting_down"), "{told}");
}

#[tokio::test]
async fn a_stopping_router_is_not_ready_and_takes_nothing_new() {
    let redis = Redis::start().await;
    let chart = chart(&[]).await;
    let mut router = pod(&chart, "router", &world(&redis), "r");
    router.ready().await;
    let mut stream = ask(router.addr(8080), true).open().await;
    stream.read_until("data: ").await;
    router.process.signal(Signal::SIGTERM);
    eventually("it is not ready", || async {
        (router.probe("readinessProbe").await != Some(200)).then_some(())
    })
    .await;
    eventually("the door is closed", || async {
        ask(router.addr(8080), false)
            .try_send()
            .await
            .is_err()
            .then_some(())
    })
    .await;
    whole(&stream.finish().await);
    assert_eq!(router.process.exit(SOON).await.code(), Some(0));
}

/// Clients that ask one after another until they are told to end.
struct Load {
    clients: Vec<JoinHandle<()>>,
    over: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
}

impl Load {
    /// `streams` clients of streams and `plain` ones of whole answers.
    fn start(addr: std::net::SocketAddr, streams: usize, plain: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let clients = (0..streams + plain).map(|at| {
            let (over, answered) = (Arc::clone(&over), Arc::clone(&answered));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    let mut answer = ask(addr, at < streams).try_open().await.unwrap();
                    assert_eq!(answer.status, 200);
                    assert_eq!(answer.read_to_end().await, End::Clean, "{}", answer.text());
                    let text = answer.text();
                    let text = if at < streams { whole(&text) } else { text };
                    assert_eq!(text.matches("pong").count(), 40, "{text}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let clients = clients.collect();
        Self {
            clients,
            over,
            answered,
        }
    }

    /// Lets everybody finish; how many answers there were. A cut stream or a
    /// failed request fails here.
    async fn end(self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        for client in join_all(self.clients).await {
            client.unwrap();
        }
        self.answered.load(Ordering::Relaxed)
    }
}

/// How late the balancer hears that a pod goes: most of what preStop allows.
const NEWS: Duration = Duration::from_millis(1200);

/// Replaces the routers as the Deployment's controller does with this
/// strategy: a new pod first, which has to be ready for `minReadySeconds`; then
/// an old one is deleted, and the next new one does not wait for its end.
async fn replace(
    old: Vec<Pod>,
    balancer: &tokio::sync::Mutex<Balancer>,
    new: impl Fn(usize) -> Pod,
    min_ready: Duration,
) -> (Vec<Pod>, Vec<Pod>) {
    let mut leaving = Vec::new();
    let mut arrived = Vec::new();
    for (at, mut gone) in old.into_iter().enumerate() {
        let next = new(at);
        next.ready().await;
        balancer.lock().await.add(next.addr(8080));
        let_time_pass(min_ready, "minReadySeconds").await;
        assert_eq!(next.probe("readinessProbe").await, Some(200));
        arrived.push(next);
        let addr = gone.addr(8080);
        let forgetting = async {
            let_time_pass(NEWS, "endpoints take their time to be known").await;
            balancer.lock().await.remove(addr);
        };
        // The same moment begins both; the deletion goes on beside the next step.
        let (leave, left) = tokio::sync::oneshot::channel();
        leaving.push(left);
        let deleting = async move {
            gone.delete().await;
            leave.send(gone).ok().unwrap();
        };
        drop(tokio::spawn(deleting));
        forgetting.await;
    }
    let left = join_all(leaving)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    (arrived, left)
}

#[tokio::test]
async fn three_routers_are_replaced_under_streaming_load_without_a_failed_request() {
    let redis = Redis::start().await;
    let (before, after) = (
        chart(&[]).await,
        chart(&["config.settings.maxAttempts=7"]).await,
    );
    let world = world(&redis);
    let strategy = &after.one("Deployment", "-router")["spec"];
    assert_eq!(strategy["replicas"], 3);
    let min_ready = Duration::from_secs(strategy["minReadySeconds"].as_u64().unwrap());
    let mut coordinator = pod(&before, "coordinator", &world, "c-old");
    let old: Vec<Pod> = (0..3)
        .map(|at| pod(&before, "router", &world, &format!("old-{at}")))
        .collect();
    join_all(old.iter().map(Pod::ready)).await;
    let addresses: Vec<_> = old.iter().map(|pod| pod.addr(8080)).collect();
    let balancer = Balancer::start(&addresses).await;
    let addr = balancer.addr();
    let balancer = tokio::sync::Mutex::new(balancer);
    let load = Load::start(addr, 24, 4);
    let_time_pass(Duration::from_secs(2), "streams are under way everywhere").await;
    // Coordinators, beside it, one after another and none more than there are.
    coordinator.ready().await;
    coordinator.delete().await;
    let coordinator = pod(&after, "coordinator", &world, "c-new");
    let new = |at: usize| pod(&after, "router", &world, &format!("new-{at}"));
    let (arrived, left) = replace(old, &balancer, new, min_ready).await;
    let answered = load.end().await;
    assert!(answered > 50, "only {answered} answers");
    coordinator.ready().await;
    // It was no idle exercise: pods were told to end with streams under way.
    let drained: u64 = left.iter().map(in_flight_at_the_end).sum();
    assert!(drained > 0, "nothing was under way");
    let nodes = arrived[0].call(9090, "GET", "/readyz").send().await.json();
    assert_eq!(nodes["status"], "ready", "{nodes}");
    let mut balancer = balancer.into_inner();
    assert_eq!(balancer.complaints(), Vec::<String>::new());
    balancer.stop().await;
}

/// How many requests were under way when it was told to end.
fn in_flight_at_the_end(pod: &Pod) -> u64 {
    let records = pod.process.log().records();
    let draining = records.iter().find(|record| {
        record["message"]
            .as_str()
            .is_some_and(|message| message.starts_with("draining"))
    });
    draining.unwrap()["in_flight"].as_u64().unwrap()
}
