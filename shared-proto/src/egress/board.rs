//! Which address each connection was last seen to leave by, as each node saw it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Limit;
use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::mirror::key;
use crate::mirror::record::Body;

/// Connections in one node's record; of further ones nothing is known.
pub const MAX_OBSERVED: usize = 2048;

/// By which address a connection left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// The family of providers that it belongs to.
    pub family: Arc<str>,
    /// The address, in its usual form.
    pub address: IpAddr,
    /// When it was seen, store time.
    pub at: Millis,
    /// Whether it is a proxy's, and so the same for every node.
    pub proxied: bool,
}

/// What one node saw: its record, which nobody else writes. Only connections
/// that may be rested for a sibling's limit are in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Observations {
    /// How long each counts, ms.
    pub keep_ms: u64,
    /// The last one of each connection.
    pub seen: BTreeMap<ConnectionId, Observation>,
}

impl Body for Observations {
    const KIND: &'static str = key::EGRESS;
    const VERSION: u16 = 1;
}

impl Observations {
    /// What is known of `connection`, unless it is too old at `now`.
    pub fn of(&self, connection: &ConnectionId, now: Millis) -> Option<&Observation> {
        let seen = self.seen.get(connection)?;
        (now.since(seen.at) < self.keep_ms).then_some(seen)
    }

    /// Takes out what is too old at `now`, and what is beyond the bound.
    pub fn tidy(&mut self, now: Millis) {
        let keep_ms = self.keep_ms;
        self.seen.retain(|_, seen| now.since(seen.at) < keep_ms);
        while self.seen.len() > MAX_OBSERVED {
            self.seen.pop_last();
        }
    }
}

/// What all nodes saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Board {
    nodes: BTreeMap<Arc<str>, Arc<Observations>>,
}

impl Board {
    /// What `node` says now.
    pub fn set(&mut self, node: &str, observations: Observations) {
        self.nodes.insert(node.into(), Arc::new(observations));
    }

    /// `node` says nothing any more.
    pub fn remove(&mut self, node: &str) {
        self.nodes.remove(node);
    }

    /// What `node` says.
    pub fn of(&self, node: &str) -> Option<&Observations> {
        self.nodes.get(node).map(|told| &**told)
    }

    /// The address of `connection` as `node` has to take it at `now`: what it
    /// saw itself, if there is no proxy; else the newest that anybody saw.
    pub fn latest(
        &self,
        node: Option<&str>,
        connection: &ConnectionId,
        now: Millis,
    ) -> Option<&Observation> {
        let own = node.and_then(|node| self.of(node)?.of(connection, now));
        if let Some(own) = own.filter(|own| !own.proxied) {
            return Some(own);
        }
        let all = self.nodes.values();
        let all = all.filter_map(|told| told.of(connection, now));
        all.max_by_key(|seen| seen.at)
    }

    /// The connections that leave by the address of `limit` as `node` has to
    /// take it at `now`, but for the one that met it; in order of their names.
    pub fn siblings(&self, node: Option<&str>, limit: &Limit, now: Millis) -> Vec<ConnectionId> {
        let shares = |seen: &Observation| {
            seen.address == limit.exit.address && seen.family == limit.exit.family
        };
        let told = self.nodes.values().flat_map(|told| &told.seen);
        let mut named: Vec<&ConnectionId> = told
            .filter(|(id, seen)| shares(seen) && **id != limit.met_by)
            .map(|(id, _)| id)
            .collect();
        named.sort_unstable();
        named.dedup();
        named.retain(|id| self.latest(node, id, now).is_some_and(shares));
        named.into_iter().cloned().collect()
    }
}
