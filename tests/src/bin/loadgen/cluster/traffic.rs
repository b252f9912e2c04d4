//! Unmanaged traffic of healthy connections: with the shared store against a store in the process.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::load::{self, Target};
use crate::samples::median;
use crate::scenario::Scenario;

use super::fleet::{Fleet, plain};
use super::{Failed, figure};

/// Each fleet is measured so often, in turn.
const ROUNDS: usize = 7;

/// One measurement of a fleet under full load.
#[derive(Clone, Copy)]
struct Run {
    per_second: f64,
    /// CPU time of the nodes for a request, microseconds.
    cpu_us: f64,
}

pub(super) async fn measure(upstream: SocketAddr, duration: Duration) -> Result<(), Failed> {
    let config = plain(upstream);
    let mut stored = None;
    for count in [1, 3] {
        let embedded = Fleet::embedded(count, &config).await;
        let shared = Fleet::shared(count, &config).await;
        let mut rates = [Vec::new(), Vec::new(), Vec::new()];
        let mut costs = [Vec::new(), Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            let (a, b) = if round % 2 == 0 {
                let a = under_load(&embedded, duration).await?;
                (a, under_load(&shared, duration).await?)
            } else {
                let b = under_load(&shared, duration).await?;
                (under_load(&embedded, duration).await?, b)
            };
            let rate = [a.per_second, b.per_second, b.per_second / a.per_second];
            let cost = [a.cpu_us, b.cpu_us, b.cpu_us / a.cpu_us];
            for at in 0..3 {
                rates[at].push(rate[at]);
                costs[at].push(cost[at]);
            }
        }
        report(count, "requests/s", rates)?;
        report(count, "CPU us a request", costs)?;
        stored = Some(shared);
    }
    let shared = stored.ok_or("no fleet was measured")?;
    commands(&shared, duration).await
}

fn report(
    nodes: usize,
    what: &str,
    [embedded, shared, ratio]: [Vec<f64>; 3],
) -> Result<(), Failed> {
    let lowest = ratio.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = ratio.iter().copied().fold(0.0, f64::max);
    let [embedded, shared, ratio] = [embedded, shared, ratio].map(|all| median(all).unwrap_or(0.0));
    let value =
        format!("{embedded:.1} embedded, {shared:.1} Redis: {ratio:.3} ({lowest:.3}-{highest:.3})");
    Ok(figure(format!("{what}, {nodes} node(s)"), value)?)
}

/// All nodes at once, 64 connections each.
async fn under_load(fleet: &Fleet, duration: Duration) -> Result<Run, Failed> {
    let cpu = fleet.cpu_us()?;
    let start = Instant::now();
    let requests = all_nodes(fleet, duration, Scenario::Small).await?;
    let elapsed = start.elapsed();
    let cpu = fleet.cpu_us()?.saturating_sub(cpu);
    Ok(Run {
        per_second: count(requests) / elapsed.as_secs_f64(),
        cpu_us: count(cpu) / count(requests),
    })
}

/// The number of right answers.
async fn all_nodes(fleet: &Fleet, duration: Duration, scenario: Scenario) -> Result<u64, Failed> {
    let running = fleet.nodes.iter().map(|node| {
        let target = Target {
            address: node.addr(),
            pid: None,
            duration,
        };
        load::run(scenario, target)
    });
    let mut requests = 0_u64;
    for outcome in join_all(running).await {
        let tally = outcome?.tally;
        if tally.wrong > 0 {
            return Err(tally.first_wrong.join("; ").into());
        }
        requests = requests.saturating_add(u64::try_from(tally.samples.len())?);
    }
    Ok(requests)
}

/// What the traffic sends to the store, over what the nodes send while they have nothing to do.
async fn commands(fleet: &Fleet, duration: Duration) -> Result<(), Failed> {
    let long = duration.saturating_mul(5);
    let before = fleet.commands().await;
    let start = Instant::now();
    sleep(long).await;
    let idle = per_second(fleet.commands().await.saturating_sub(before), start);
    let before = fleet.commands().await;
    let start = Instant::now();
    let requests = all_nodes(fleet, long, Scenario::Small).await?;
    let sent = fleet.commands().await.saturating_sub(before);
    let elapsed = start.elapsed().as_secs_f64();
    let busy = per_second(sent, start);
    let more = (busy - idle) * elapsed / count(requests);
    let value =
        format!("{idle:.2} at rest, {busy:.2} under {requests} requests: {more:.5} a request");
    Ok(figure("Redis commands/s of 3 nodes, unmanaged", value)?)
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run of seconds")]
pub(super) const fn count(many: u64) -> f64 {
    many as f64
}

#[expect(clippy::cast_precision_loss, reason = "counts of a run of seconds")]
pub(super) fn per_second(many: i64, since: Instant) -> f64 {
    many as f64 / since.elapsed().as_secs_f64()
}
