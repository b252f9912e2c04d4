//! Several nodes on one Redis, each through a proxy of its own, with one
//! scripted upstream behind them and, where a test wants them, coordinators.

use serde_json::json;

use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::cut::Cut;
use crate::node::{Node, Setup};
use crate::redis::{self, Redis};
use crate::upstream::Upstream;

/// A cluster about to be started.
#[derive(Clone, Debug)]
pub struct Plan {
    nodes: usize,
    coordinators: usize,
    redis: redis::Setup,
    env: Vec<(usize, String, String)>,
}

impl Plan {
    /// This many nodes, no coordinator, a Redis that forgets.
    pub fn of(nodes: usize) -> Self {
        Self {
            nodes,
            coordinators: 0,
            redis: redis::Setup::memory(),
            env: Vec::new(),
        }
    }

    /// Adds coordinators.
    #[must_use]
    pub const fn coordinators(mut self, count: usize) -> Self {
        self.coordinators = count;
        self
    }

    /// Takes another Redis.
    #[must_use]
    pub fn redis(mut self, setup: redis::Setup) -> Self {
        self.redis = setup;
        self
    }

    /// Sets a variable of one node.
    #[must_use]
    pub fn env(mut self, node: usize, key: &str, value: &str) -> Self {
        self.env.push((node, key.into(), value.into()));
        self
    }

    /// Starts everything. `config` gives the configuration of all nodes; the
    /// store's URL is added to it.
    pub async fn start(&self, config: impl FnOnce(&Upstream) -> Config) -> Cluster {
        let upstream = Upstream::start().await;
        let base = config(&upstream);
        let mut cluster = Cluster {
            redis: self.redis.start().await,
            upstream,
            nodes: Vec::new(),
            cuts: Vec::new(),
            coordinators: Vec::new(),
            coordinator_cuts: Vec::new(),
            base,
        };
        for _ in 0..self.nodes {
            cluster
                .cuts
                .push(Cut::before(cluster.redis.node_addr()).await);
        }
        let starting = (0..self.nodes).map(|at| {
            let setup = Setup::with(&cluster.config_of(at)).env("OMNIROUTE_NODE_ID", &name(at));
            let vars = self.env.iter().filter(move |(node, _, _)| *node == at);
            let setup = vars.fold(setup, |setup, (_, key, value)| setup.env(key, value));
            async move { setup.start().await }
        });
        cluster.nodes = futures_util::future::join_all(starting).await;
        for _ in 0..self.coordinators {
            cluster.add_coordinator().await;
        }
        cluster
    }
}

/// The name of a node, `OMNIROUTE_NODE_ID`.
pub fn name(node: usize) -> String {
    format!("node-{node}")
}

/// A running cluster.
pub struct Cluster {
    /// The nodes, by their index; declared first, so that they end first.
    pub nodes: Vec<Node>,
    /// The coordinators.
    pub coordinators: Vec<Coordinator>,
    /// The proxy between each node and Redis.
    pub cuts: Vec<Cut>,
    /// The proxy between each coordinator and Redis.
    pub coordinator_cuts: Vec<Cut>,
    /// The one upstream.
    pub upstream: Upstream,
    /// The one Redis.
    pub redis: Redis,
    base: Config,
}

impl Cluster {
    /// Starts nodes on a Redis that forgets, without a coordinator.
    pub async fn start(nodes: usize, config: impl FnOnce(&Upstream) -> Config) -> Self {
        Plan::of(nodes).start(config).await
    }

    /// The whole configuration of one node.
    pub fn config_of(&self, node: usize) -> Config {
        self.via(&self.cuts[node])
    }

    fn via(&self, cut: &Cut) -> Config {
        let url = self.redis.url_via(cut.addr());
        self.base.clone().set(&["store", "url"], json!(url))
    }

    /// Gives every node another configuration, which each reads on its own.
    pub fn reconfigure(&mut self, config: Config) {
        self.base = config;
        for (at, node) in self.nodes.iter().enumerate() {
            std::fs::write(node.setup().file(), self.config_of(at).to_yaml()).unwrap();
        }
    }

    /// The configuration common to all, as it was given.
    pub const fn base(&self) -> &Config {
        &self.base
    }

    /// Adds a coordinator behind a proxy of its own.
    pub async fn add_coordinator(&mut self) {
        let cut = Cut::before(self.redis.node_addr()).await;
        let name = format!("coordinator-{}", self.coordinators.len());
        let coordinator = Coordinator::start(&self.via(&cut), &name).await;
        self.coordinators.push(coordinator);
        self.coordinator_cuts.push(cut);
    }

    /// Starts a node again that has ended.
    pub async fn restart(&mut self, node: usize) {
        self.nodes[node] = self.nodes[node].start_again().await;
    }

    /// The index of the coordinator that leads, and of one that does not.
    pub async fn roles(&self) -> (usize, usize) {
        crate::wait::eventually("one coordinator leads and one stands by", || async {
            let (mut leader, mut standby) = (None, None);
            for (at, one) in self.coordinators.iter().enumerate() {
                match one.role().await?.as_str() {
                    "leader" => leader = Some(at),
                    "standby" => standby = Some(at),
                    _ => return None,
                }
            }
            Some((leader?, standby?))
        })
        .await
    }
}
