//! A Redis Cluster of six processes: three masters, each with a replica.

use std::process::Stdio;

use tokio::process::Command;

use crate::port::Port;
use crate::redis::{Redis, Setup};
use crate::wait::{SOON, eventually, within};

/// The whole of it.
#[derive(Debug)]
pub struct RedisCluster {
    servers: Vec<Redis>,
    /// Held while the servers talk to each other there.
    _buses: Vec<Port>,
}

impl RedisCluster {
    /// Starts it and waits until every server finds it in order.
    pub async fn start() -> Self {
        Self::start_from(&Setup::durable()).await
    }

    /// The same where everybody speaks TLS to everybody.
    pub async fn start_with_tls() -> Self {
        let setup = Setup::durable().tls().line("tls-cluster yes");
        Self::start_from(&setup.line("tls-replication yes")).await
    }

    async fn start_from(setup: &Setup) -> Self {
        let (mut servers, mut buses) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let bus = Port::take();
            let setup = setup
                .clone()
                .line("cluster-enabled yes")
                .line("cluster-config-file cluster.conf")
                .line("cluster-node-timeout 1000")
                // A replica that was held up by a busy machine may still take over.
                .line("cluster-replica-validity-factor 0")
                .line("repl-diskless-sync-delay 0")
                .line(&format!("cluster-port {}", bus.number()));
            servers.push(setup.start().await);
            buses.push(bus);
        }
        let all = Self {
            servers,
            _buses: buses,
        };
        all.create(&setup.cli_args()).await;
        all.settled().await;
        all
    }

    /// The URL for nodes: three of the servers, the rest is to be found.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.servers[..3]
            .iter()
            .map(|one| one.node_addr().to_string())
            .collect();
        let query = self.servers[0].tls_query();
        let scheme = if query.is_empty() { "redis" } else { "rediss" };
        format!("{scheme}+cluster://{}{query}", hosts.join(","))
    }

    /// The servers; the first three begin as masters.
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// The servers, to kill and start.
    pub fn servers_mut(&mut self) -> &mut [Redis] {
        &mut self.servers
    }

    /// The index of the master that holds `key`.
    pub async fn holder_of(&self, key: &str) -> usize {
        eventually("a master holds the key", || async {
            for (at, server) in self.servers.iter().enumerate() {
                let Ok(mut link) = server.link().await else {
                    continue;
                };
                let role = link.call(&["ROLE"]).await.ok()?.array();
                let exists = link.call(&["EXISTS", key]).await.ok()?;
                if role[0].text() == "master" && exists.flat().trim() == "1" {
                    return Some(at);
                }
            }
            None
        })
        .await
    }

    /// A key of the deployment with this prefix, on whatever server holds one.
    pub async fn any_key(&self, prefix: &str) -> String {
        eventually("the deployment has a key", || async {
            for server in &self.servers {
                let keys = server.keys().await;
                if let Some(key) = keys.into_iter().find(|key| key.starts_with(prefix)) {
                    return Some(key);
                }
            }
            None
        })
        .await
    }

    async fn create(&self, cli_args: &[String]) {
        let mut command = Command::new("redis-cli");
        command.args(cli_args).args(["--cluster", "create"]);
        for server in &self.servers {
            command.arg(server.node_addr().to_string());
        }
        command
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = within(SOON, "the cluster is created", command.output());
        let output = output.await.expect("no redis-cli");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}");
    }

    async fn settled(&self) {
        for server in &self.servers {
            eventually("the cluster is in order", || async {
                let text = server.call(&["CLUSTER", "INFO"]).await.text();
                let sound = text.contains("cluster_state:ok")
                    && text.contains("cluster_known_nodes:6")
                    && text.contains("cluster_slots_ok:16384");
                sound.then_some(())
            })
            .await;
        }
        let mut replicas = 0;
        for server in &self.servers {
            let role = server.call(&["ROLE"]).await.array()[0].text();
            if role == "slave" {
                replicas += 1;
                // One without its master's data does not take over.
                eventually("the replica follows", || async {
                    let text = server.call(&["INFO", "replication"]).await.text();
                    text.contains("master_link_status:up").then_some(())
                })
                .await;
            }
        }
        assert_eq!(replicas, 3);
    }
}
