//! A master, a replica and three sentinels that fail over within seconds.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::redis::{Redis, Setup};
use crate::resp::Resp;
use crate::wait::eventually;

/// The name of the master.
pub const MASTER: &str = "primary";

/// After this time a failover that was asked for is asked for again: longer than
/// the sentinels take to give one up.
const AGAIN: Duration = Duration::from_secs(8);

/// The whole of it.
#[derive(Debug)]
pub struct Sentinel {
    servers: [Redis; 2],
    sentinels: Vec<Redis>,
}

impl Sentinel {
    /// Starts it and waits until the sentinels know everyone.
    pub async fn start() -> Self {
        Self::start_from(&Setup::durable()).await
    }

    /// The same where everybody speaks TLS to everybody.
    pub async fn start_with_tls() -> Self {
        let setup = Setup::durable().tls().line("tls-replication yes");
        Self::start_from(&setup).await
    }

    async fn start_from(setup: &Setup) -> Self {
        let base = setup.clone().line("repl-diskless-sync-delay 0");
        let master = base.start().await;
        let port = master.node_addr().port();
        let replica = base.line(&format!("replicaof 127.0.0.1 {port}"));
        let replica = replica.start().await;
        let mut watching = Setup::memory().tls_of(setup);
        if !setup.tls_query().is_empty() {
            watching = watching.line("tls-replication yes");
        }
        let watching = watching
            .line(&format!("sentinel monitor {MASTER} 127.0.0.1 {port} 2"))
            .line(&format!("sentinel down-after-milliseconds {MASTER} 2000"))
            .line(&format!("sentinel failover-timeout {MASTER} 3000"));
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(watching.start_as("redis-sentinel").await);
        }
        let all = Self {
            servers: [master, replica],
            sentinels,
        };
        all.settled().await;
        all
    }

    /// The URL for nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|one| one.node_addr().to_string())
            .collect();
        let query = self.servers[0].tls_query();
        let scheme = if query.is_empty() { "redis" } else { "rediss" };
        format!("{scheme}+sentinel://{}/{MASTER}/0{query}", hosts.join(","))
    }

    /// Which of the two servers the sentinels call the master.
    pub async fn master_at(&self) -> usize {
        let addr = self.master_addr().await;
        let at = self.servers.iter().position(|one| one.node_addr() == addr);
        at.expect("the master is neither of the two")
    }

    /// The server that is the master.
    pub async fn master(&self) -> &Redis {
        &self.servers[self.master_at().await]
    }

    /// The two servers.
    pub const fn servers(&self) -> &[Redis; 2] {
        &self.servers
    }

    /// The two servers, to kill and start.
    pub const fn servers_mut(&mut self) -> &mut [Redis; 2] {
        &mut self.servers
    }

    /// The sentinels, to kill and start.
    pub fn sentinels_mut(&mut self) -> &mut [Redis] {
        &mut self.sentinels
    }

    /// Makes the replica miss whatever the master is written from now on. The
    /// next failover must begin within seconds, or the sentinels think the
    /// replica too old.
    pub async fn break_replication(&self) {
        let master = self.master_at().await;
        let replica = &self.servers[1 - master];
        // The master has no password, so it refuses whoever presents one.
        replica
            .call(&["CONFIG", "SET", "masterauth", "wrong"])
            .await;
        self.servers[master]
            .call(&["CLIENT", "KILL", "TYPE", "replica"])
            .await;
        eventually("the replica has lost the master", || async {
            let text = replica.call(&["INFO", "replication"]).await.text();
            text.contains("master_link_status:down").then_some(())
        })
        .await;
    }

    /// Kills the master and waits until the other one took over; the index of
    /// the killed one.
    pub async fn kill_master(&mut self) -> usize {
        let master = self.master_at().await;
        self.servers[master].kill().await;
        self.taken_over(1 - master).await;
        self.servers[1 - master]
            .call(&["CONFIG", "SET", "masterauth", ""])
            .await;
        master
    }

    /// Asks for a failover without a failure and waits for it.
    pub async fn fail_over(&self) {
        let master = self.master_at().await;
        let began = std::cell::Cell::new(None::<Instant>);
        eventually("the replica takes over", || async {
            if self.has_taken_over(1 - master).await {
                return Some(());
            }
            // One that a busy machine was too slow for is given up.
            let given_up = began.get().is_none_or(|at| at.elapsed() > AGAIN);
            if given_up && self.master_at().await == master {
                // Refused until the sentinel has heard that the other one follows.
                let words = ["SENTINEL", "FAILOVER", MASTER];
                let reply = self.sentinels[0].call(&words).await;
                if reply == Resp::Simple("OK".into()) {
                    began.set(Some(Instant::now()));
                }
            }
            None
        })
        .await;
    }

    async fn taken_over(&self, at: usize) {
        eventually("the replica takes over", || async {
            self.has_taken_over(at).await.then_some(())
        })
        .await;
    }

    async fn has_taken_over(&self, at: usize) -> bool {
        let role = self.servers[at].call(&["ROLE"]).await.array();
        let known = self.master_addr().await == self.servers[at].node_addr();
        known && role[0].text() == "master"
    }

    async fn master_addr(&self) -> SocketAddr {
        let reply = self.sentinels[0]
            .call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])
            .await
            .array();
        let addr = format!("{}:{}", reply[0].text(), reply[1].text());
        addr.parse().unwrap()
    }

    async fn settled(&self) {
        for sentinel in &self.sentinels {
            eventually("the sentinels know everyone", || async {
                let reply = sentinel.call(&["SENTINEL", "MASTER", MASTER]).await.array();
                let field = |name: &str| {
                    let at = reply.iter().position(|one| one.text() == name);
                    at.map(|at| reply[at + 1].text()).unwrap_or_default()
                };
                let known = field("num-slaves") == "1" && field("num-other-sentinels") == "2";
                let quorum = sentinel.call(&["SENTINEL", "CKQUORUM", MASTER]).await;
                (known && matches!(quorum, Resp::Simple(_))).then_some(())
            })
            .await;
        }
        eventually("the replica follows", || async {
            let text = self.servers[1].call(&["INFO", "replication"]).await.text();
            text.contains("master_link_status:up").then_some(())
        })
        .await;
    }
}
