//! Where the master is: given, told by sentinels, or followed through a
//! cluster. All keys of a deployment are in one slot, so one server at a time
//! has all of them, and a cluster needs no map.

use std::sync::Arc;
use std::time::Duration;

use ::redis::Value;
use ::redis::aio::MultiplexedConnection;

use super::dial::{Dial, Party};
use super::fault::{Cure, Fault};
use super::reply::{Answer, lossy};
use crate::config::{RedisHost, RedisServers};

/// Redirections followed from one node of a cluster.
const MAX_HOPS: usize = 4;
/// Nodes that are remembered besides those of the URL.
const MAX_LEARNED: usize = 64;

/// Finds the master, and remembers who could tell.
pub(super) struct Locator {
    dial: Arc<Dial>,
    servers: RedisServers,
    /// A key of the deployment, for the cluster to say who has it.
    key: String,
    patience: Duration,
    /// Nodes of the cluster that were there lately.
    learned: Vec<RedisHost>,
}

/// A server that is said to be the master.
pub(super) struct Found {
    pub(super) connection: MultiplexedConnection,
    pub(super) host: RedisHost,
}

impl Locator {
    pub(super) const fn new(
        dial: Arc<Dial>,
        servers: RedisServers,
        key: String,
        patience: Duration,
    ) -> Self {
        Self {
            dial,
            servers,
            key,
            patience,
            learned: Vec::new(),
        }
    }

    pub(super) async fn find(&mut self) -> Result<Found, Fault> {
        match self.servers.clone() {
            RedisServers::Single(host) => self.open(host).await,
            RedisServers::Sentinel(sentinels, name) => self.by_sentinels(sentinels, &name).await,
            RedisServers::Cluster(seeds) => self.in_cluster(seeds).await,
        }
    }

    /// The master by the sentinel that was right last; `None` without
    /// sentinels or when it does not say.
    pub(super) async fn named(&self) -> Option<RedisHost> {
        match &self.servers {
            RedisServers::Sentinel(sentinels, name) => {
                self.ask(sentinels.first()?, name).await.ok()
            }
            RedisServers::Single(_) | RedisServers::Cluster(_) => None,
        }
    }

    async fn open(&self, host: RedisHost) -> Result<Found, Fault> {
        let connection = self.dial.open(&host, Party::Server, self.patience).await?;
        Ok(Found { connection, host })
    }

    async fn by_sentinels(
        &mut self,
        sentinels: Vec<RedisHost>,
        name: &str,
    ) -> Result<Found, Fault> {
        let mut last = Fault::odd();
        for (at, sentinel) in sentinels.iter().enumerate() {
            let found = match self.ask(sentinel, name).await {
                Ok(host) => self.master_at(host).await,
                Err(fault) => Err(fault),
            };
            match found {
                Ok(found) => {
                    if let RedisServers::Sentinel(order, _) = &mut self.servers {
                        order.swap(0, at);
                    }
                    return Ok(found);
                }
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    async fn ask(&self, sentinel: &RedisHost, name: &str) -> Result<RedisHost, Fault> {
        let mut connection = self
            .dial
            .open(sentinel, Party::Sentinel, self.patience)
            .await?;
        let told: Result<Value, _> = ::redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(name)
            .query_async(&mut connection)
            .await;
        let told = told.map_err(|error| Fault::of(&error).at(sentinel))?;
        if told == Value::Nil {
            let why = "this sentinel knows no master of that name";
            return Err(Fault::new(Cure::Reconnect, why).at(sentinel));
        }
        let mut told = Answer::of(told)?;
        let host = told.text()?;
        let port = u16::try_from(told.number()?).map_err(|_| Fault::odd())?;
        Ok(RedisHost { host, port })
    }

    /// Sentinels may name a server before it has become the master, and one
    /// that was cut off names the former.
    async fn master_at(&self, host: RedisHost) -> Result<Found, Fault> {
        let mut found = self.open(host).await?;
        let role: Result<Value, _> = ::redis::cmd("ROLE")
            .query_async(&mut found.connection)
            .await;
        let role = role.map_err(|error| Fault::of(&error).at(&found.host))?;
        if Answer::of(role)?.bytes()? == b"master" {
            return Ok(found);
        }
        let why = "the sentinels name it as the master, but it is a replica";
        Err(Fault::new(Cure::Reconnect, why).at(&found.host))
    }

    async fn in_cluster(&mut self, seeds: Vec<RedisHost>) -> Result<Found, Fault> {
        let mut last = Fault::odd();
        let mut nodes = self.learned.clone();
        nodes.extend(
            seeds
                .into_iter()
                .filter(|seed| !self.learned.contains(seed)),
        );
        for node in nodes {
            match self.follow(node).await {
                Ok(mut found) => {
                    self.learn(&mut found).await;
                    return Ok(found);
                }
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    async fn follow(&self, mut node: RedisHost) -> Result<Found, Fault> {
        for _ in 0..MAX_HOPS {
            let mut found = self.open(node).await?;
            let asked: Result<Value, _> = ::redis::cmd("EXISTS")
                .arg(&self.key)
                .query_async(&mut found.connection)
                .await;
            let Err(error) = asked else {
                return Ok(found);
            };
            let there = error.redirect_node();
            let there = there.and_then(|(there, _)| redirected(there, &found.host));
            node = there.ok_or_else(|| Fault::of(&error).at(&found.host))?;
        }
        let why = "the nodes of the cluster send each other for the keys";
        Err(Fault::new(Cure::Reconnect, why))
    }

    /// Remembers the cluster's nodes, so that it is found again when those of
    /// the URL are gone. A user who may not ask goes by the URL alone.
    async fn learn(&mut self, found: &mut Found) {
        let told: Result<Value, _> = ::redis::cmd("CLUSTER")
            .arg("NODES")
            .query_async(&mut found.connection)
            .await;
        let Ok(Value::BulkString(text)) = told else {
            return;
        };
        let text = lossy(&text);
        let others = text.lines().filter_map(|line| {
            // ID HOST:PORT@BUS[,NAME] FLAGS ...
            let address = line.split(' ').nth(1)?;
            redirected(address.split('@').next()?, &found.host)
        });
        self.learned = std::iter::once(found.host.clone()).chain(others).collect();
        self.learned.dedup();
        self.learned.truncate(MAX_LEARNED);
    }
}

/// `HOST:PORT` as a cluster tells it; without a host it is that of `teller`.
fn redirected(address: &str, teller: &RedisHost) -> Option<RedisHost> {
    let (host, port) = address.rsplit_once(':')?;
    let host = if host.is_empty() { &teller.host } else { host };
    Some(RedisHost {
        host: host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned(),
        port: port.parse().ok().filter(|port| *port > 0)?,
    })
}
