//! The life of leases, and what a lease adds to a request.

use std::net::SocketAddr;
use std::time::Duration;

use cluster_tests::lease::{GENERATION, KEY, OWNER, PATH, PLAIN};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::samples::{Quantiles, median, micros};

use super::fleet::{Fleet, managed};
use super::traffic::{count, per_second};
use super::{Failed, figure};

/// Clients that hold and give back leases at the same time.
const OWNERS: usize = 16;
/// Renewals between acquiring and releasing.
const RENEWALS: usize = 8;
/// Managed and unmanaged requests are measured so often, in turn.
const ROUNDS: usize = 5;
const CHAT: &str = "/v1/chat/completions";
const MODEL: &str = "mock/m";

pub(super) async fn measure(upstream: SocketAddr, duration: Duration) -> Result<(), Failed> {
    let fleet = Fleet::shared(3, &managed(upstream)).await;
    life(&fleet, duration).await?;
    fence(&fleet, duration).await
}

/// Owners acquire, renew and release on the nodes in turn.
async fn life(fleet: &Fleet, duration: Duration) -> Result<(), Failed> {
    let (commands, scripts) = (fleet.commands().await, fleet.scripts().await);
    let start = Instant::now();
    let mut running = JoinSet::new();
    for at in 0..OWNERS {
        let mut owner = Owner::new(at, fleet);
        running.spawn(async move {
            let mut times = Vec::new();
            while start.elapsed() < duration {
                owner
                    .round(&mut times)
                    .await
                    .map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = running.join_next().await {
        times.extend(done??);
    }
    let operations = u64::try_from(times.len())?;
    let rate = count(operations) / start.elapsed().as_secs_f64();
    let commands = fleet.commands().await.saturating_sub(commands);
    let scripts = fleet.scripts().await.saturating_sub(scripts);
    let each = |many| per_second(many, start) / rate;
    let quantiles = Quantiles::of(times).ok_or("no operation")?;
    figure(
        format!("lease operations/s, {OWNERS} owners, 3 nodes"),
        format!(
            "{rate:.0}; p50 {:.2} ms, p99 {:.2} ms; each calls {:.2} scripts of {:.0} commands in all",
            ms(quantiles.p50),
            ms(quantiles.p99),
            each(scripts),
            each(commands)
        ),
    )?;
    Ok(())
}

/// The same small request with and without a lease, on one node.
async fn fence(fleet: &Fleet, duration: Duration) -> Result<(), Failed> {
    let node = fleet.nodes.first().ok_or("no node")?.addr();
    let mut owners = Vec::new();
    for at in 0..OWNERS {
        let mut owner = Owner::new(at, fleet);
        let generation = owner.acquire().await?;
        owners.push(owner.chat(node, generation));
    }
    let plain: Vec<Vec<u8>> = (0..OWNERS)
        .map(|_| {
            request(
                node,
                CHAT,
                &[("authorization", &format!("Bearer {PLAIN}"))],
                &chat(),
            )
        })
        .collect();
    let mut added = [Vec::new(), Vec::new()];
    let mut ratio = [Vec::new(), Vec::new()];
    let (mut scripts, mut commands) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (at, clients) in [1, OWNERS].into_iter().enumerate() {
            let without = asked(fleet, node, &plain[..clients], duration).await?;
            let with = asked(fleet, node, &owners[..clients], duration).await?;
            added[at].push(with.p50_ms - without.p50_ms);
            ratio[at].push(with.cpu_us / without.cpu_us);
            if at == 1 {
                scripts.push(with.scripts - without.scripts);
                commands.push(with.commands - without.commands);
            }
        }
    }
    let middle = |all: Vec<f64>| median(all).unwrap_or(0.0);
    let [one, many] = added.map(middle);
    let [_, cpu] = ratio.map(middle);
    figure(
        "fence of a managed request, added to p50",
        format!("{one:.3} ms one at a time, {many:.3} ms with {OWNERS} at once"),
    )?;
    figure("CPU of the node, managed : unmanaged", format!("{cpu:.2}"))?;
    let (scripts, commands) = (middle(scripts), middle(commands));
    figure(
        "Redis scripts called by a managed request",
        format!("{scripts:.2}, of {commands:.0} commands in all"),
    )?;
    Ok(())
}

struct Asked {
    p50_ms: f64,
    cpu_us: f64,
    scripts: f64,
    commands: f64,
}

/// Each client repeats its request as soon as it has its answer.
async fn asked(
    fleet: &Fleet,
    node: SocketAddr,
    clients: &[Vec<u8>],
    duration: Duration,
) -> Result<Asked, Failed> {
    let (commands, scripts) = (fleet.commands().await, fleet.scripts().await);
    let cpu = fleet.cpu_us()?;
    let start = Instant::now();
    let mut running = JoinSet::new();
    for bytes in clients {
        let bytes = bytes.clone();
        running.spawn(async move {
            let mut connection = Connection::to(node);
            let mut times = Vec::new();
            while start.elapsed() < duration {
                let asked = Instant::now();
                let sent = connection.call(&bytes).await;
                let answer = sent.map_err(|error| error.to_string())?;
                if answer.status != 200 {
                    return Err(String::from_utf8_lossy(answer.body).into_owned());
                }
                times.push(micros(asked.elapsed()));
            }
            Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = running.join_next().await {
        times.extend(done??);
    }
    let requests = count(u64::try_from(times.len())?);
    let cpu = count(fleet.cpu_us()?.saturating_sub(cpu));
    let commands = fleet.commands().await.saturating_sub(commands);
    let scripts = fleet.scripts().await.saturating_sub(scripts);
    let each = |many| per_second(many, start) * start.elapsed().as_secs_f64() / requests;
    Ok(Asked {
        p50_ms: ms(Quantiles::of(times).ok_or("no answer")?.p50),
        cpu_us: cpu / requests,
        scripts: each(scripts),
        commands: each(commands),
    })
}

/// One client of leases, with a connection to each node.
struct Owner {
    token: String,
    nodes: Vec<(SocketAddr, Connection)>,
    next: usize,
}

impl Owner {
    fn new(at: usize, fleet: &Fleet) -> Self {
        let nodes = fleet.nodes.iter();
        Self {
            token: format!("vlo_{at:A<43}"),
            nodes: nodes
                .map(|node| (node.addr(), Connection::to(node.addr())))
                .collect(),
            next: at,
        }
    }

    /// One lease from its beginning to its end.
    async fn round(&mut self, times: &mut Vec<u32>) -> Result<(), Failed> {
        let start = Instant::now();
        let generation = self.acquire().await?;
        times.push(micros(start.elapsed()));
        let renewals = std::iter::repeat_n("renew", RENEWALS);
        for action in renewals.chain(["release"]) {
            let start = Instant::now();
            self.call(&json!({"action": action, "generation": generation}))
                .await?;
            times.push(micros(start.elapsed()));
        }
        Ok(())
    }

    async fn acquire(&mut self) -> Result<u64, Failed> {
        let answer = self
            .call(&json!({"action": "acquire", "model": MODEL}))
            .await?;
        let generation = answer.get("generation").and_then(Value::as_u64);
        generation.ok_or_else(|| format!("no generation in {answer}").into())
    }

    /// On the next node.
    async fn call(&mut self, body: &Value) -> Result<Value, Failed> {
        let at = self.next.checked_rem(self.nodes.len()).ok_or("no node")?;
        self.next = at.saturating_add(1);
        let (address, connection) = self.nodes.get_mut(at).ok_or("no node")?;
        let authorization = format!("Bearer {KEY}");
        let headers = [
            ("authorization", authorization.as_str()),
            (OWNER, &self.token),
        ];
        let answer = connection
            .call(&request(*address, PATH, &headers, body))
            .await?;
        if answer.status != 200 {
            return Err(format!("{body}: {}", String::from_utf8_lossy(answer.body)).into());
        }
        Ok(serde_json::from_slice(answer.body)?)
    }

    /// A request under this lease.
    fn chat(&self, node: SocketAddr, generation: u64) -> Vec<u8> {
        let authorization = format!("Bearer {KEY}");
        let generation = generation.to_string();
        let headers = [
            ("authorization", authorization.as_str()),
            (OWNER, &self.token),
            (GENERATION, &generation),
        ];
        request(node, CHAT, &headers, &chat())
    }
}

fn chat() -> Value {
    json!({
        "model": MODEL,
        "user": "bench/plain",
        "stream": false,
        "messages": [{"role": "user", "content": "How are you?"}],
    })
}

fn request(host: SocketAddr, path: &str, headers: &[(&str, &str)], body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let mut text = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        for part in [name, ": ", value, "\r\n"] {
            text.push_str(part);
        }
    }
    text.push_str("\r\n");
    text.push_str(&body);
    text.into()
}

fn ms(micros: u32) -> f64 {
    f64::from(micros) / 1000.0
}
