//! What requests read: the configuration turned into slots, pools and tables.
//!
//! A [`Routing`] never changes; a reload builds a new one and swaps it in.
//! What outlives a reload (health, breaker, load, owners) sits in cells that
//! both share.

mod alarm;
mod build;
mod cell;
mod gate;
mod keys;
#[cfg(test)]
mod tests;
mod tools;

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Uri};
use secrecy::{ExposeSecret, SecretString};
use shared_proto::clock::Millis;
use shared_proto::config::{ApiKey, Combo, Config, Connection, ErrorRule, Provider};
use shared_proto::failure::Failure;
use shared_proto::gate::GateRules;
use shared_proto::health::Blocked;
use shared_proto::id::{ConnectionId, ProviderId};
use shared_proto::lockout::LockoutRules;
use shared_proto::pick::ready::ReadyIndex;
use shared_proto::protocol::Protocol;
use shared_proto::rotation::RotationRules;

use crate::token;
use crate::token::cell::Bearer;
use crate::wall::Wall;

pub(crate) use alarm::Alarm;
pub(crate) use build::build;
pub(crate) use cell::{
    BreakerCell, Cells, ConnectionCell, InFlight, Placement, PublishBreaker, PublishHealth,
    PublishLockouts,
};
pub(crate) use gate::{GateCell, PublishGate};
pub(crate) use keys::Key;
pub(crate) use tools::{PublishTools, ToolsCell, ToolsOwner};

/// One configuration, ready to route by.
pub(crate) struct Routing {
    pub(crate) config: Arc<Config>,
    pub(crate) slots: HashMap<ConnectionId, Arc<Slot>>,
    /// Those that are switched off: nobody is routed to them, but they can be tested.
    pub(crate) switched_off: HashMap<ConnectionId, (Arc<ProviderSlot>, Arc<Slot>)>,
    pub(crate) providers: HashMap<ProviderId, Arc<ProviderSlot>>,
    pub(crate) combos: HashMap<String, Arc<Combo>>,
    pub(crate) keys: HashMap<[u8; 32], Arc<ApiKey>>,
    /// Providers that serve a bare model name, by exact name.
    exact: HashMap<String, Vec<Arc<ProviderSlot>>>,
    /// The same by prefix, in configuration order.
    prefixes: Vec<(String, Arc<ProviderSlot>)>,
}

/// What stands in a secret's place.
const HIDDEN: &str = "***";

/// One connection as requests see it.
pub(crate) struct Slot {
    pub(crate) connection: Arc<Connection>,
    pub(crate) provider: Arc<Provider>,
    pub(crate) cell: Arc<ConnectionCell>,
    /// Whether a key of leases names it: only requests under a lease use it.
    pub(crate) reserved: bool,
    /// Where it is called, by protocol.
    urls: [Option<Uri>; 4],
    /// What it proves itself with as configured; marked sensitive.
    pub(crate) auth: Option<(HeaderName, HeaderValue)>,
    /// Its keys in the order in which they are presented, where it has several; `auth` is the first.
    pub(crate) keys: Vec<Key>,
    /// Its numbers of the rotation gate.
    pub(crate) rotation: RotationRules,
    /// How its tokens are refreshed, if they are.
    pub(crate) tokens: Option<Arc<token::Setup>>,
    /// How it meets its usage wall, if it is to.
    pub(crate) wall: Option<Arc<Wall>>,
    /// Sent unless the client said otherwise.
    pub(crate) default_headers: Vec<(HeaderName, HeaderValue)>,
    /// The numbers of its models' locks.
    pub(crate) lockout_rules: Arc<LockoutRules>,
    /// Whether its quotas count by model: its own word goes before its provider's.
    pub(crate) per_model_quota: bool,
    /// What the operator says about its provider's refusals.
    pub(crate) error_rules: Arc<[ErrorRule]>,
    /// The family of providers whose limits count by address, if it may be
    /// rested for one.
    pub(crate) egress_family: Option<Arc<str>>,
    /// The secrets of its proxy's URL.
    pub(crate) proxy_secrets: Vec<SecretString>,
}

impl Slot {
    /// The URL for `protocol`; none when it is not spoken over HTTP.
    pub(crate) fn url(&self, protocol: Protocol) -> Option<&Uri> {
        self.urls.get(protocol.index())?.as_ref()
    }

    /// Where it lists its models; none when `protocol` is not spoken over HTTP.
    pub(crate) fn models_url(&self, protocol: Protocol) -> Option<Uri> {
        build::url(&self.provider, &self.connection, (protocol, "models"))
    }

    /// Its refreshed tokens, if it is an account that has them. Those of another
    /// credential than this configuration's are none.
    pub(crate) fn bearer(&self) -> Option<Arc<Bearer>> {
        let setup = self.tokens.as_ref()?;
        let bearer = self.cell.token.bearer()?;
        (bearer.mark == setup.mark).then_some(bearer)
    }

    /// Takes the connection's own secrets out of what an upstream said.
    pub(crate) fn redact(&self, mut failure: Failure) -> Failure {
        let bearer = self.bearer();
        for secret in self.secrets(bearer.as_deref()) {
            failure.message = failure.message.replace(secret, HIDDEN);
            if let Some(code) = &mut failure.upstream_code {
                *code = code.replace(secret, HIDDEN);
            }
        }
        failure
    }

    /// Whether `text` shows one of the connection's secrets.
    pub(crate) fn shows_secret(&self, text: &[u8]) -> bool {
        let bearer = self.bearer();
        self.secrets(bearer.as_deref())
            .any(|secret| memchr::memmem::find(text, secret.as_bytes()).is_some())
    }

    fn secrets<'a>(&'a self, bearer: Option<&'a Bearer>) -> impl Iterator<Item = &'a str> {
        let refreshed = bearer.into_iter().flat_map(Bearer::secrets);
        let of_proxy = self.proxy_secrets.iter().map(ExposeSecret::expose_secret);
        let own = self.connection.secrets();
        own.chain(refreshed).chain(of_proxy)
    }

    /// Whether it serves `model` (the upstream's name).
    pub(crate) fn serves(&self, model: &str) -> bool {
        self.connection.serves(model)
    }

    /// Until when `model` is locked on it, if it is.
    pub(crate) fn locked(&self, model: &str, now: Millis) -> Option<Millis> {
        Some(self.lock(model, now)?.0)
    }

    /// The same, and whether it is before anybody refused.
    pub(crate) fn lock(&self, model: &str, now: Millis) -> Option<(Millis, bool)> {
        let lockouts = self.cell.lockouts();
        let lockout = lockouts.locked(model, &self.lockout_rules, now)?;
        Some((lockout.until, lockout.withheld.is_some()))
    }

    /// Whether it may be used for `model` now.
    pub(crate) fn eligible_for(&self, model: &str, now: Millis) -> Result<(), Blocked> {
        self.cell.eligible(now)?;
        match self.locked(model, now) {
            Some(until) => Err(Blocked::Cooling { until }),
            None => Ok(()),
        }
    }

    /// Whether its calls go where those of `other` go, and by the same proxy: what
    /// stands in the way of one stands in the way of both.
    pub(crate) fn goes_the_way_of(&self, other: &Self) -> bool {
        let own = self.connection.proxy_url.as_ref();
        let its = other.connection.proxy_url.as_ref();
        self.provider.id == other.provider.id
            && self.urls == other.urls
            && own.map(ExposeSecret::expose_secret) == its.map(ExposeSecret::expose_secret)
    }

    /// Its place among others: priority, then least recently used.
    pub(crate) fn order(&self) -> (u32, u64) {
        (self.connection.priority, self.cell.last_used())
    }

    /// Whether it answers in the process.
    pub(crate) fn simulated(&self) -> bool {
        self.provider.endpoints.simulated
    }
}

/// One provider with connections.
pub(crate) struct ProviderSlot {
    pub(crate) provider: Arc<Provider>,
    pub(crate) breaker: Arc<BreakerCell>,
    pub(crate) gate: Arc<GateCell>,
    /// The numbers of its gate.
    pub(crate) gate_rules: GateRules,
    /// How many tools it takes, as far as it said.
    pub(crate) tools: Arc<ToolsCell>,
    /// Every connection, in configuration order.
    pub(crate) all: Vec<Arc<Slot>>,
    /// The same by priority, those of one priority in configuration order.
    pub(crate) by_priority: Vec<Arc<Slot>>,
    /// The same by name.
    by_id: HashMap<ConnectionId, Arc<Slot>>,
    /// Those that do not name the models they serve one by one.
    any: Pool,
    /// Those that do, by model.
    by_model: HashMap<String, Pool>,
}

/// Connections ordered by priority, then least recently used.
struct Pool {
    index: Arc<ReadyIndex>,
    alarm: Arc<Alarm>,
    slots: Vec<Arc<Slot>>,
}

impl Pool {
    /// Connections that are ready at `now`, in order.
    fn ready(&self, now: Millis) -> impl Iterator<Item = &Arc<Slot>> {
        if self.alarm.rings(now) {
            self.wake(now);
        }
        self.index
            .iter_best()
            .filter_map(|leaf| self.slots.get(leaf))
    }

    /// Enters those whose rest is over. It never takes one out: its owner may
    /// just have entered it.
    fn wake(&self, now: Millis) {
        for (leaf, slot) in self.slots.iter().enumerate() {
            if self.index.is_ready(leaf) {
                continue;
            }
            match slot.cell.eligible(now) {
                Ok(()) => self.index.set_ready(leaf, true),
                Err(Blocked::Cooling { until }) => self.alarm.set(until),
                Err(Blocked::Terminal(_)) => {}
            }
        }
    }
}

impl ProviderSlot {
    /// Its connection of that name.
    pub(crate) fn slot(&self, id: &ConnectionId) -> Option<&Arc<Slot>> {
        self.by_id.get(id)
    }

    /// Connections that serve `model` and are ready at `now`, best first. The
    /// work is bounded by how many are looked at, not by how many there are,
    /// but for the one pick that meets the end of a rest.
    pub(crate) fn ready<'a>(
        &'a self,
        model: &'a str,
        now: Millis,
    ) -> impl Iterator<Item = &'a Arc<Slot>> {
        let named = self.by_model.get(model).into_iter();
        let mut named = named.flat_map(move |pool| pool.ready(now)).peekable();
        let mut any = self.any.ready(now).peekable();
        std::iter::from_fn(move || match (named.peek(), any.peek()) {
            (Some(a), Some(b)) if a.order() <= b.order() => named.next(),
            (_, Some(_)) => any.next(),
            (_, None) => named.next(),
        })
        .filter(|slot| slot.serves(model))
    }
}

impl Routing {
    /// A connection and its provider, whether it is switched on or not.
    pub(crate) fn connection(&self, id: &str) -> Option<(Arc<ProviderSlot>, Arc<Slot>)> {
        if let Some(slot) = self.slots.get(id) {
            let provider = self.providers.get(&slot.provider.id)?;
            return Some((Arc::clone(provider), Arc::clone(slot)));
        }
        self.switched_off.get(id).cloned()
    }

    /// The providers that serve a bare model name, best first: exact names
    /// before prefixes, configuration order among equals.
    pub(crate) fn providers_of(&self, model: &str) -> Vec<Arc<ProviderSlot>> {
        if let Some(exact) = self.exact.get(model) {
            return exact.clone();
        }
        let mut found: Vec<Arc<ProviderSlot>> = Vec::new();
        for (prefix, provider) in &self.prefixes {
            let known = |p: &Arc<ProviderSlot>| Arc::ptr_eq(p, provider);
            if model.starts_with(prefix.as_str()) && !found.iter().any(known) {
                found.push(Arc::clone(provider));
            }
        }
        found
    }

    /// Exact model names that can be listed, with the provider of each.
    pub(crate) fn listed_models(&self) -> impl Iterator<Item = (&str, &ProviderSlot)> {
        let exact = self.exact.iter();
        exact.flat_map(|(name, providers)| providers.iter().map(move |p| (name.as_str(), &**p)))
    }
}
