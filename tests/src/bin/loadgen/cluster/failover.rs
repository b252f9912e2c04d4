//! How long it takes until somebody else has taken over.

use std::net::SocketAddr;
use std::time::Duration;

use cluster_tests::coordinator::Coordinator;
use cluster_tests::node::{Node, Setup};
use cluster_tests::redis::{self, Redis};
use cluster_tests::sentinel::Sentinel;
use cluster_tests::wait::eventually;
use serde_json::json;
use tokio::time::Instant;

use super::fleet::plain;
use super::{Failed, figure};

/// Each way to lose a leader is tried so often.
const TIMES: usize = 5;

pub(super) async fn measure(upstream: SocketAddr) -> Result<(), Failed> {
    leaders(upstream).await?;
    store_again(upstream).await?;
    other_master(upstream).await
}

/// A leader that is killed, and one that is told to stop.
async fn leaders(upstream: SocketAddr) -> Result<(), Failed> {
    let redis = Redis::start().await;
    let config = plain(upstream).set(&["store", "url"], json!(redis.url()));
    let mut all = Vec::new();
    for name in ["coordinator-0", "coordinator-1"] {
        all.push(Coordinator::start(&config, name).await);
    }
    for kill in [true, false] {
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let leader = leading(&all).await;
            let start = Instant::now();
            let other = 1_usize.saturating_sub(leader);
            let lost = all.get_mut(leader).ok_or("no leader")?;
            if kill {
                lost.kill_9().await;
            } else {
                lost.stop().await;
            }
            let standby = all.get(other).ok_or("no standby")?;
            leads(standby).await;
            times.push(start.elapsed());
            let again = all.get(leader).ok_or("no leader")?.start_again().await;
            if let Some(place) = all.get_mut(leader) {
                *place = again;
            }
        }
        let how = if kill { "kill -9" } else { "SIGTERM" };
        figure(
            format!("a standby leads after {how} of the leader (lease 5 s)"),
            spread(times),
        )?;
    }
    Ok(())
}

async fn leading(all: &[Coordinator]) -> usize {
    eventually("a coordinator leads", || async {
        for (at, one) in all.iter().enumerate() {
            if one.role().await.as_deref() == Some("leader") {
                return Some(at);
            }
        }
        None
    })
    .await
}

async fn leads(one: &Coordinator) {
    eventually("the standby leads", || async {
        (one.role().await.as_deref() == Some("leader")).then_some(())
    })
    .await;
}

/// Redis is killed and started again with its data.
async fn store_again(upstream: SocketAddr) -> Result<(), Failed> {
    let mut redis = redis::Setup::durable().start().await;
    let config = plain(upstream).set(&["store", "url"], json!(redis.url()));
    let node = Setup::with(&config).start().await;
    let (mut noticed, mut back) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let start = Instant::now();
        redis.kill().await;
        store_is(&node, "down").await;
        noticed.push(start.elapsed());
        redis.restart().await;
        let start = Instant::now();
        store_is(&node, "up").await;
        back.push(start.elapsed());
    }
    figure(
        "a node tells that Redis is gone after kill -9",
        spread(noticed),
    )?;
    figure(
        "a node is in step again after Redis answers again",
        spread(back),
    )?;
    Ok(())
}

/// The master behind sentinels is killed.
async fn other_master(upstream: SocketAddr) -> Result<(), Failed> {
    let mut sentinel = Sentinel::start().await;
    let config = plain(upstream).set(&["store", "url"], json!(sentinel.url()));
    let node = Setup::with(&config).start().await;
    store_is(&node, "up").await;
    let start = Instant::now();
    sentinel.kill_master().await;
    store_is(&node, "down").await;
    store_is(&node, "up").await;
    let value = spread(vec![start.elapsed()]);
    figure(
        "a node is in step with the new master (down-after 2 s)",
        value,
    )?;
    Ok(())
}

/// Until `/readyz` says so: `up`, or anything else for down.
async fn store_is(node: &Node, state: &str) {
    eventually("the store's state", || async {
        let answer = node.get("/readyz").try_send().await.ok()?;
        let up = answer.json().get("store")?.as_str()? == "up";
        (up == (state == "up")).then_some(())
    })
    .await;
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |index: usize| times.get(index).copied().unwrap_or_default().as_secs_f64();
    let last = times.len().saturating_sub(1);
    format!(
        "{:.2} s ({:.2}-{:.2})",
        at(times.len() / 2),
        at(0),
        at(last)
    )
}
