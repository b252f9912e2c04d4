//! Nodes that are measured together.

use std::net::SocketAddr;

use cluster_tests::config::Config;
use cluster_tests::lease::{KEY, PLAIN};
use cluster_tests::node::{Node, Setup};
use cluster_tests::redis::Redis;
use futures_util::future::join_all;
use serde_json::json;

use crate::process::Usage;
use crate::samples::micros;

use super::Failed;

/// Connections of the fleets that leases are measured on.
pub(super) const MANAGED: usize = 64;

/// One provider that answers at once, and a connection of it.
pub(super) fn plain(upstream: SocketAddr) -> Config {
    Config::new()
        .provider("mock", "openai", &format!("http://{upstream}/v1"))
        .connection("mock-1", "mock")
        .no_waiting()
}

/// As [`plain`], with a managed key, the connections that it leases, and a key that is not managed.
pub(super) fn managed(upstream: SocketAddr) -> Config {
    let mut config = plain(upstream);
    let leased: Vec<String> = (0..MANAGED).map(|at| format!("leased-{at}")).collect();
    for id in &leased {
        config = config.connection(id, "mock");
    }
    let scopes = json!({"scopes": ["lease:exclusive"], "allowedConnections": leased});
    config
        .api_key("team", KEY, scopes)
        .api_key("plain", PLAIN, json!({}))
}

/// Nodes with one configuration.
pub(super) struct Fleet {
    pub(super) nodes: Vec<Node>,
    pub(super) redis: Option<Redis>,
}

impl Fleet {
    /// Each with an embedded store of its own, on disk as by default.
    pub(super) async fn embedded(count: usize, config: &Config) -> Self {
        Self {
            nodes: start(count, config).await,
            redis: None,
        }
    }

    /// All on one Redis.
    pub(super) async fn shared(count: usize, config: &Config) -> Self {
        let redis = Redis::start().await;
        let config = config.clone().set(&["store", "url"], json!(redis.url()));
        Self {
            nodes: start(count, &config).await,
            redis: Some(redis),
        }
    }

    /// Commands that the Redis has executed so far, those inside of scripts too; 0 without one.
    pub(super) async fn commands(&self) -> i64 {
        match &self.redis {
            Some(redis) => redis.info("total_commands_processed").await,
            None => 0,
        }
    }

    /// Scripts that the nodes have called so far: questions they waited for.
    pub(super) async fn scripts(&self) -> i64 {
        match &self.redis {
            Some(redis) => redis.scripts().await,
            None => 0,
        }
    }

    /// CPU time of all nodes so far, in microseconds.
    pub(super) fn cpu_us(&self) -> Result<u64, Failed> {
        let mut total: u64 = 0;
        for node in &self.nodes {
            let usage = Usage::of(u32::try_from(node.process_id())?)?;
            total = total.saturating_add(u64::from(micros(usage.cpu)));
        }
        Ok(total)
    }
}

async fn start(count: usize, config: &Config) -> Vec<Node> {
    let starting = (0..count).map(|at| {
        let setup = Setup::with(config).env("OMNIROUTE_NODE_ID", &format!("node-{at}"));
        async move { setup.start().await }
    });
    join_all(starting).await
}
