//! How long a node needs to act on what another has committed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cluster_tests::config::Config;
use cluster_tests::node::Node;
use cluster_tests::reply::Reply;
use cluster_tests::upstream::Upstream;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::load::{self, Target};
use crate::samples::{Quantiles, micros};
use crate::scenario::Scenario;

use super::fleet::{Fleet, plain};
use super::{Failed, figure};

/// Cooldowns whose way is timed.
const CHANGES: usize = 400;
/// Between two of them.
const GAP: Duration = Duration::from_millis(20);
/// How long the load on every node lasts: longer than all changes take.
const LOAD: Duration = Duration::from_secs(14);
/// When a change that no node told is missed.
const MISSED: Duration = Duration::from_secs(5);

pub(super) async fn measure(upstream: SocketAddr) -> Result<(), Failed> {
    let failing = Upstream::start().await;
    failing.script_all([Reply::limited(60)]);
    let fleet = Fleet::shared(3, &config(upstream, &failing)).await;
    let mut load = JoinSet::new();
    for node in &fleet.nodes {
        let target = Target {
            address: node.addr(),
            pid: None,
            duration: LOAD,
        };
        load.spawn(async move { load::run(Scenario::Latency, target).await.map(drop) });
    }
    let from_commit = changes(&fleet).await?;
    let told = |all: Vec<u32>| Quantiles::of(all).ok_or("no change was told");
    let (after_answer, after_request): (Vec<u32>, Vec<u32>) = from_commit.into_iter().unzip();
    for (what, times) in [
        ("the client heard of the failure", told(after_answer)?),
        ("the failing request was sent", told(after_request)?),
    ] {
        let ms = |micros: u32| f64::from(micros) / 1000.0;
        figure(
            format!(
                "until the other 2 nodes acted on a cooldown, from when {what}; 600 requests/s"
            ),
            format!(
                "p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
                ms(times.p50),
                ms(times.p99),
                ms(times.max)
            ),
        )?;
    }
    while let Some(done) = load.join_next().await {
        done??;
    }
    Ok(())
}

/// A connection for each change, each with a name of its own for the model that leads to it.
fn config(upstream: SocketAddr, failing: &Upstream) -> Config {
    let mut config = plain(upstream).provider_with(
        "limited",
        "openai",
        &format!("{}/v1", failing.url()),
        json!({}),
    );
    for at in 0..CHANGES {
        let id = format!("limited-{at}-");
        config = config
            .connection(&id, "limited")
            .combo(&format!("to-{at}"), &[&format!("limited/m@{id}")]);
    }
    config
}

/// Fails on one node after the other and waits until the other two have told the change. The times are
/// from the answer and from the request, in microseconds.
async fn changes(fleet: &Fleet) -> Result<Vec<(u32, u32)>, Failed> {
    let nodes = fleet.nodes.len();
    let (tell, mut told) = mpsc::channel(1024);
    let tell = Arc::new(tell);
    let mut listening = JoinSet::new();
    for (at, node) in fleet.nodes.iter().enumerate() {
        let mut events = node.admin_call("GET", "/api/events").open().await;
        events.read_until(": listening").await;
        let tell = Arc::clone(&tell);
        listening.spawn(async move {
            let mut seen = events.text().len();
            while events.read_more().await {
                let now = Instant::now();
                let text = events.text();
                let new = text.get(seen..).unwrap_or_default().to_owned();
                seen = text.len();
                if tell.send((at, now, new)).await.is_err() {
                    break;
                }
            }
        });
    }
    let mut times = Vec::new();
    for change in 0..CHANGES {
        let at = change.checked_rem(nodes).ok_or("no node")?;
        let node = fleet.nodes.get(at).ok_or("no node")?;
        let asked = Instant::now();
        fail(node, change).await?;
        let answered = Instant::now();
        let name = format!("limited-{change}-\"");
        let mut missing = nodes.saturating_sub(1);
        while missing > 0 {
            let next = timeout(MISSED, told.recv()).await?;
            let (from, when, text) = next.ok_or("the nodes tell nothing any more")?;
            if from != at && text.contains(&name) {
                missing = missing.saturating_sub(1);
                let since = |start| micros(when.saturating_duration_since(start));
                times.push((since(answered), since(asked)));
            }
        }
        sleep(GAP).await;
    }
    listening.abort_all();
    Ok(times)
}

async fn fail(node: &Node, change: usize) -> Result<(), Failed> {
    let body = json!({
        "model": format!("to-{change}"),
        "messages": [{"role": "user", "content": "How are you?"}],
    });
    let answer = node.post("/v1/chat/completions", &body).try_send().await?;
    match answer.status {
        429 | 503 => Ok(()),
        status => Err(format!("{status}: {}", answer.text()).into()),
    }
}
