//! Sentinels and clusters: a new master is found, lost writes are told, and
//! replicas are waited for.

use std::time::Duration;

use cluster_tests::redis::{Redis as Server, Setup};
use cluster_tests::redis_cluster::RedisCluster;
use cluster_tests::resp::Link;
use cluster_tests::sentinel::Sentinel;
use cluster_tests::wait::eventually;
use shared_proto::mirror::Mirror;
use shared_proto::mirror::commit::{Expected, TransactError, Transaction};
use shared_proto::mirror::log::TailError;
use shared_proto::mirror::redis::Options;

use super::harness::{create, key, open, patient, put, up};

#[tokio::test]
async fn a_failover_by_sentinels_is_followed() {
    let mut all = Sentinel::start().await;
    let mirror = open(&all.url(), patient()).await;
    let done = create(&mirror, "a").await;
    let at = 1 - all.master_at().await;
    let replica = all.servers()[at].addr();
    eventually("the replica has it", || async move {
        let mut link = Link::connect(replica).await.ok()?;
        let there = link.call(&["EXISTS", "{test}:health:a"]).await.ok()?;
        (there.int() == 1).then_some(())
    })
    .await;
    all.kill_master().await;
    let next = eventually("it takes commits again", || async {
        mirror.commit(put("b", Expected::Absent, 1)).await.ok()
    })
    .await;
    assert!(next.revision > done.revision);
    assert!(mirror.load(&key("a")).await.unwrap().is_some());
    let mut tail = mirror.tail(done.position).await.unwrap();
    assert_eq!(tail.next().await.unwrap().position, next.position);
}

#[tokio::test]
async fn a_failover_that_loses_the_last_writes_is_a_rewind() {
    let mut all = Sentinel::start().await;
    let mirror = open(&all.url(), patient()).await;
    create(&mirror, "a").await;
    all.break_replication().await;
    let lost = create(&mirror, "lost").await;
    all.kill_master().await;
    let next = eventually("it takes commits again", || async {
        mirror.commit(put("b", Expected::Absent, 1)).await.ok()
    })
    .await;
    assert!(next.revision > lost.revision, "revisions rise all the same");
    let outcome = mirror.tail(lost.position).await.err();
    assert_eq!(outcome, Some(TailError::Rewound));
    assert_eq!(mirror.load(&key("lost")).await, Ok(None));
}

#[tokio::test]
async fn a_master_that_is_replaced_without_a_failure_is_left() {
    let all = Sentinel::start().await;
    let mirror = open(&all.url(), patient()).await;
    create(&mirror, "a").await;
    all.fail_over().await;
    // The former master takes writes, which are lost, until it hears of it.
    let master = all.master().await;
    let ids = std::cell::Cell::new(0_u32);
    eventually("commits reach the new master", || async {
        ids.set(ids.get() + 1);
        let id = ids.get().to_string();
        mirror.commit(put(&id, Expected::Absent, 1)).await.ok()?;
        let key = format!("{{test}}:health:{id}");
        let there = master.call(&["EXISTS", &key]).await;
        (there.int() == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_loses_the_master_of_the_keys_goes_on() {
    let mut cluster = RedisCluster::start().await;
    let mirror = open(&cluster.url(), patient()).await;
    let done = create(&mirror, "a").await;
    let at = cluster.holder_of("{test}:health:a").await;
    cluster.servers_mut()[at].kill().await;
    eventually("it takes commits again", || async {
        mirror.commit(put("b", Expected::Absent, 1)).await.ok()
    })
    .await;
    up(&mirror).await;
    let outcome = mirror.tail(done.position).await;
    // The replica may have missed the last commit.
    assert!(
        matches!(outcome, Ok(_) | Err(TailError::Rewound)),
        "{outcome:?}"
    );
}

fn replicated(id: &str, replicas: u32) -> Transaction {
    Transaction {
        replicas,
        ..put(id, Expected::Absent, 1).into()
    }
}

#[tokio::test]
async fn a_transaction_waits_for_the_replicas_it_asks_for() {
    let master = Setup::memory()
        .line("repl-diskless-sync-delay 0")
        .start()
        .await;
    let options = Options {
        replicas_within: Duration::from_secs(3),
        ..patient()
    };
    let mirror = open(&master.url(), options).await;
    let outcome = mirror.transact(replicated("a", 1)).await;
    assert_eq!(outcome, Err(TransactError::Replicas { wanted: 1, got: 0 }));
    assert!(
        mirror.load(&key("a")).await.unwrap().is_some(),
        "it took effect"
    );
    let outcome = mirror.transact(replicated("a", 1)).await;
    assert!(matches!(outcome, Err(TransactError::Conflict { .. })));

    let port = master.addr().port();
    let replica: Server = Setup::memory()
        .line(&format!("replicaof 127.0.0.1 {port}"))
        .start()
        .await;
    eventually("the replica follows", || async {
        let text = replica.call(&["INFO", "replication"]).await.text();
        text.contains("master_link_status:up").then_some(())
    })
    .await;
    let ids: Vec<_> = (0..100_u32).map(|n| format!("r{n}")).collect();
    let all = ids.iter().map(|id| mirror.transact(replicated(id, 1)));
    for outcome in futures_util::future::join_all(all).await {
        assert!(outcome.is_ok(), "{outcome:?}");
    }
    let there = replica.call(&["EXISTS", "{test}:health:r99"]).await;
    assert_eq!(there.int(), 1);
    let outcome = mirror.transact(replicated("b", 2)).await;
    assert_eq!(outcome, Err(TransactError::Replicas { wanted: 2, got: 1 }));
    // A frozen replica holds up nobody who does not ask for it.
    replica.stop();
    let waiting = mirror.transact(replicated("c", 1));
    let (waited, done) =
        futures_util::future::join(waiting, mirror.commit(put("d", Expected::Absent, 1))).await;
    assert_eq!(waited, Err(TransactError::Replicas { wanted: 1, got: 0 }));
    assert!(done.is_ok());
    replica.cont();
}
