//! What the leader does for all, what a router on its own store does itself,
//! and that routers know who leads.

use std::sync::Arc;
use std::time::Duration;

use cluster_tests::cluster::{Cluster, Plan};
use cluster_tests::config::Config;
use cluster_tests::metrics::Exposition;
use cluster_tests::node::Setup;
use cluster_tests::wait::{eventually, within};
use serde_json::{Value, json};
use shared_proto::clock::SystemClock;
use shared_proto::config::StoreUrl;
use shared_proto::lease::{EndReason, Generation, Lease};
use shared_proto::mirror::Mirror;
use shared_proto::mirror::commit::{Commit, Expected};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::redis::{Options, Redis};

const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn config() -> Config {
    Config::new().set(&["coordinator", "leaseMs"], json!(1_000))
}

async fn store(cluster: &Cluster) -> Redis {
    let StoreUrl::Redis(url) = cluster.redis.url().parse().unwrap() else {
        panic!("not a Redis");
    };
    let options = Options {
        deadline: Duration::from_secs(5),
        ..Options::default()
    };
    let redis = Redis::open(&url, "omniroute", Arc::new(SystemClock), options).unwrap();
    redis.contact().await.unwrap();
    redis
}

#[tokio::test]
async fn a_lease_that_runs_out_is_written_down_as_expired() {
    let cluster = Plan::of(0).coordinators(1).start(|_| config()).await;
    let store = store(&cluster).await;
    let (key, now) = (Key::Lease(HASH.into()), store.now());
    let lease = Lease {
        generation: Generation::new(now.as_epoch_ms()).unwrap(),
        api_key: "team".into(),
        provider: "glm".into(),
        connection: "a".into(),
        acquired_at: now,
        renewed_at: now,
        expires_at: now.plus(1_500),
        end: None,
    };
    let put = Commit::put(key.clone(), Expected::Absent, &lease).unwrap();
    store.commit(put.expiring(lease.expires_at)).await.unwrap();
    let record = eventually("the lease has an end", || async {
        let record = store.load(&key).await.unwrap()?;
        record
            .decode::<Lease>()
            .unwrap()
            .end
            .is_some()
            .then_some(record)
    })
    .await;
    let end = record.decode::<Lease>().unwrap().end.unwrap();
    assert_eq!(
        (end.reason, end.at),
        (EndReason::TtlExpired, lease.expires_at)
    );
    assert!(record.written_at >= lease.expires_at, "too early");
    let text = cluster.coordinators[0].get("/metrics").send().await.text();
    let metrics = Exposition::parse(&text);
    assert!(metrics.sum("omniroute_leases_expired_total") >= 1.0);
    assert!(metrics.sum("omniroute_duty_turns_total") >= 4.0);
}

#[tokio::test]
async fn routers_list_coordinators_and_know_whether_one_leads() {
    let mut cluster = Plan::of(1).coordinators(2).start(|_| config()).await;
    let (leads, stands_by) = cluster.roles().await;
    let node = &cluster.nodes[0];
    eventually("both are listed with what they do", || async {
        let listed = node.admin_get("/api/nodes").await;
        let of = |at: usize| {
            let id = format!("coordinator-{at}");
            let rows = listed["nodes"].as_array()?;
            rows.iter().find(|row| row["id"] == json!(id)).cloned()
        };
        let (one, other): (Value, Value) = (of(leads)?, of(stands_by)?);
        assert_eq!(
            (&one["role"], &other["role"]),
            (&json!("coordinator"), &json!("coordinator"))
        );
        assert_eq!(listed["liveRouters"], json!(1));
        (one["leads"] == json!(true) && other["leads"] == json!(false)).then_some(())
    })
    .await;
    let said = async |word: &str| {
        eventually(word, || async {
            let answer = node.get("/readyz").send().await.expect_status(200).json();
            (answer["coordinator"] == json!(word)).then_some(answer)
        })
        .await
    };
    said("up").await;
    for one in &mut cluster.coordinators {
        one.kill_9().await;
    }
    let ready = said("absent").await;
    assert_eq!(
        (&ready["status"], &ready["degraded"]),
        (&json!("ready"), &json!([]))
    );
}

#[tokio::test]
async fn a_router_on_its_own_store_does_the_duties_itself() {
    let node = Setup::bare().start().await;
    let ready = node.get("/readyz").send().await.json();
    assert_eq!(ready["coordinator"], json!("embedded"));
    eventually("every duty had its turn", || async {
        let text = node.get("/metrics").send().await.text();
        let metrics = Exposition::parse(&text);
        let done = |duty: &str| {
            metrics.samples.iter().any(|sample| {
                let is =
                    |name: &str, value: &str| sample.labels.get(name).is_some_and(|it| it == value);
                sample.name == "omniroute_duty_turns_total"
                    && is("duty", duty)
                    && is("result", "done")
            })
        };
        ["expire", "forget", "trim", "roster", "egress"]
            .into_iter()
            .all(done)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_coordinator_has_nothing_to_do_beside_an_embedded_store() {
    let mut process = Setup::of("coordinator", &Config::new()).spawn();
    let status = process.exit(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(2));
    eventually("it says why", || async {
        let text = process.log().text();
        text.contains("nothing to coordinate").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_coordinator_ends_though_its_store_is_frozen() {
    let mut cluster = Plan::of(0).coordinators(1).start(|_| config()).await;
    cluster.redis.stop();
    let ended = within(
        Duration::from_secs(20),
        "it ends without the store",
        cluster.coordinators[0].stop(),
    );
    assert_eq!(ended.await.code(), Some(0));
    cluster.redis.cont();
}
