//! Starts the owners and keeps the cells that outlive a configuration.
//!
//! An owner is never stopped while the node runs: a connection that leaves the
//! configuration keeps its state, so that it is still respected when it comes
//! back. An owner that a reload starts is told what the store holds before a
//! request can see its view.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use secrecy::SecretString;
use shared_proto::breaker::{BreakerRules, ProviderBreaker};
use shared_proto::config::{Connection, Credential};
use shared_proto::gate::ProviderGate;
use shared_proto::health::{ConnectionHealth, HealthEvent, HealthRules, key_mark};
use shared_proto::id::ConnectionId;
use shared_proto::lane::{LaneEvent, LaneRules, UsageLane};
use shared_proto::lockout::{LockoutEvent, LockoutRules, ModelLockouts};
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::key::{Key, Keyspace, Spelled};
use shared_proto::mirror::record::{Record, Why};
use shared_proto::mirror::{LoadError, Snapshot};
use shared_proto::tools::ToolLimit;

use super::follow::{Directory, Following, expectation};
use crate::actor::machine::Machine;
use crate::actor::owner::{Heard, NewRules, Owner, Report, Shared, Stored};
use crate::egress::Egress;
use crate::routing::{
    Cells, ProviderSlot, PublishBreaker, PublishGate, PublishHealth, PublishLockouts, PublishTools,
    Routing, Slot,
};
use crate::token;
use crate::token::refresher::{NewSetup, Refresher};
use crate::wall::PublishLane;

/// Records that a reload looks up at once.
const LOADS: usize = 32;
/// A look-up that takes longer counts as failed.
const LOAD_DEADLINE: Duration = Duration::from_millis(250);
/// All of them together; what is left by then counts as failed too.
const RELOAD_DEADLINE: Duration = Duration::from_secs(2);

/// Cells and owners by name.
pub(super) struct Registry {
    shared: Shared,
    tokens: token::Shared,
    /// What the mirror held at the start, for the owners of the start.
    found: Option<Found>,
    pub(super) cells: Rc<RefCell<Cells>>,
    credentials: HashMap<ConnectionId, u64>,
}

/// What the mirror held at the start.
struct Found {
    records: HashMap<Key, Record>,
    /// Records there that make no sense; the next change replaces them.
    corrupt: HashSet<Key>,
}

impl Found {
    fn new(snapshot: Snapshot, prefix: &str) -> Self {
        let keys = Keyspace::new(prefix);
        let mut corrupt = HashSet::new();
        for unreadable in snapshot.unreadable {
            tracing::warn!(%unreadable, "a stored record is left alone");
            if let (Why::Corrupt(_), Spelled::Key(key)) =
                (&unreadable.why, keys.parse(&unreadable.key))
            {
                corrupt.insert(key);
            }
        }
        Self {
            corrupt,
            records: snapshot
                .records
                .into_iter()
                .map(|record| (record.key.clone(), record))
                .collect(),
        }
    }

    fn take<M: Machine>(&mut self, key: &Key) -> (M, Expected) {
        if let Some(record) = self.records.remove(key) {
            let stored = Expected::Revision(record.revision);
            return match record.decode::<M>() {
                Ok(state) => (state, stored),
                Err(error) => {
                    tracing::warn!(?key, %error, "a stored state can't be read; it starts anew and the record stays until its next change");
                    (M::default(), stored)
                }
            };
        }
        let stored = if self.corrupt.contains(key) {
            Expected::Corrupt
        } else {
            Expected::Absent
        };
        (M::default(), stored)
    }
}

impl Found {
    /// What nodes saw of addresses.
    fn addresses(self) -> Vec<(Arc<str>, Stored)> {
        let records = self.records.into_values();
        let named = records.map(|record| {
            let Key::Egress(node) = &record.key else {
                return None;
            };
            Some((Arc::clone(node), Stored::Record(record)))
        });
        named.flatten().collect()
    }

    /// The same as it is told to who refreshes tokens.
    fn take_stored(&mut self, key: &Key) -> Stored {
        match self.records.remove(key) {
            Some(record) => Stored::Record(record),
            None if self.corrupt.contains(key) => Stored::Unreadable(Expected::Corrupt),
            None => Stored::Nothing(None),
        }
    }
}

impl Registry {
    /// Without a snapshot the owners begin with default states, until the
    /// follower tells them what the store holds.
    pub(super) fn new(
        shared: Shared,
        tokens: token::Shared,
        prefix: &str,
        snapshot: Option<Snapshot>,
    ) -> Self {
        Self {
            shared,
            tokens,
            found: snapshot.map(|snapshot| Found::new(snapshot, prefix)),
            cells: Rc::default(),
            credentials: HashMap::new(),
        }
    }

    /// The owners, for whoever tells them what the store holds.
    pub(super) fn directory(&self) -> Directory {
        Directory(Rc::clone(&self.cells))
    }

    /// Starts the owners of the first configuration.
    pub(super) async fn start(&mut self, routing: &Routing, egress: &Egress) {
        self.apply(routing);
        let key = egress.key();
        let held = self.found.as_mut().map(|found| found.take(&key));
        let shared = self.shared.clone();
        egress.own(|publish| Owner::start(key, held, (), publish, shared));
        if let Some(found) = self.found.take() {
            egress.tell_all(found.addresses(), None).await;
        }
    }

    /// Takes over a changed configuration: starts owners for what is new in
    /// `routing` and waits until they know what the store holds, as far as it
    /// answers; what it does not answer is read when it is back.
    pub(super) async fn reload(&mut self, routing: &Routing, following: &Following) {
        let new = self.apply(routing);
        let directory = self.directory();
        let loading = futures_util::stream::iter(new)
            .map(|key| self.load(key, &directory))
            .buffer_unordered(LOADS);
        let all = loading.fold(true, |all, loaded| async move { loaded && all });
        if !tokio::time::timeout(RELOAD_DEADLINE, all)
            .await
            .unwrap_or(false)
        {
            following.read_again();
        }
    }

    async fn load(&self, key: Key, directory: &Directory) -> bool {
        let loading = tokio::time::timeout(LOAD_DEADLINE, self.shared.mirror.load(&key));
        let stored = match loading.await {
            Ok(Ok(Some(record))) => Stored::Record(record),
            Ok(Ok(None)) => Stored::Nothing(None),
            Ok(Err(LoadError::Unreadable(unreadable))) => {
                tracing::warn!(%unreadable, "a stored record is left alone");
                Stored::Unreadable(expectation(&unreadable.why))
            }
            Ok(Err(LoadError::Unreachable(_))) | Err(_) => return false,
        };
        let heard = Heard {
            stored,
            reading: None,
        };
        directory.tell(&key, heard).await;
        true
    }

    /// Starts owners for what is new in `routing`, gives the others their new
    /// numbers, and tells those whose credentials changed. Returns the new ones.
    fn apply(&mut self, routing: &Routing) -> Vec<Key> {
        let mut new = Vec::new();
        for slot in routing.slots.values() {
            new.extend(self.apply_connection(routing, slot));
            new.extend(self.apply_tokens(slot));
            new.extend(self.apply_lockouts(slot));
            new.extend(self.apply_lane(slot));
        }
        // What is switched off can be tested; its tokens are left alone.
        for (_, slot) in routing.switched_off.values() {
            new.extend(self.apply_connection(routing, slot));
            new.extend(self.apply_lockouts(slot));
        }
        self.forget_tokens(routing);
        for provider in routing.providers.values() {
            new.extend(self.apply_gate(provider));
            let id = &provider.provider.id;
            let settings = &routing.config.settings;
            let rules = BreakerRules::new(settings, provider.provider.profile)
                .trusting_limits(settings.trusts_limits(&provider.provider));
            new.extend(self.apply_tools(provider));
            let cell = &provider.breaker;
            if let Some(owner) = cell.owner() {
                owner.do_send(NewRules::<ProviderBreaker>(rules));
                continue;
            }
            let key = Key::Breaker(id.clone());
            let held = self.found.as_mut().map(|found| found.take(&key));
            let publish = PublishBreaker(Arc::clone(cell));
            new.push(key.clone());
            cell.own(|| Owner::start(key, held, rules, publish, self.shared.clone()));
        }
        new
    }

    fn apply_connection(&mut self, routing: &Routing, slot: &Slot) -> Option<Key> {
        let connection = &slot.connection;
        let settings = &routing.config.settings;
        let mark = fingerprint(connection);
        let rules =
            HealthRules::new(settings, slot.provider.profile, connection).with_credential(mark);
        let cell = &slot.cell;
        let before = self.credentials.insert(connection.id.clone(), mark);
        let Some(owner) = cell.owner() else {
            // A new owner compares the credential with the one of the state it finds.
            let key = Key::Health(connection.id.clone());
            let held = self.found.as_mut().map(|found| found.take(&key));
            let publish = PublishHealth(Arc::clone(cell));
            cell.own(|| Owner::start(key.clone(), held, rules, publish, self.shared.clone()));
            return Some(key);
        };
        owner.do_send(NewRules::<ConnectionHealth>(rules));
        if before.is_some_and(|before| before != mark) {
            owner.do_send(Report::<ConnectionHealth>(HealthEvent::CredentialsChanged));
            cell.quota.forget();
            if let Some(owner) = cell.lockout_owner() {
                // They were the limits of another account.
                owner.do_send(Report::<ModelLockouts>(LockoutEvent::Clear { model: None }));
            }
            if let Some(owner) = cell.lane.owner() {
                let credential = Some(mark);
                owner.do_send(NewRules::<UsageLane>(LaneRules { credential }));
                owner.do_send(Report::<UsageLane>(LaneEvent::Forget));
            }
        }
        None
    }

    fn apply_gate(&mut self, provider: &ProviderSlot) -> Option<Key> {
        let (cell, rules) = (&provider.gate, provider.gate_rules);
        if let Some(owner) = cell.owner() {
            owner.do_send(NewRules::<ProviderGate>(rules));
            return None;
        }
        let key = Key::Gate(provider.provider.id.clone());
        let held = self.found.as_mut().map(|found| found.take(&key));
        let publish = PublishGate(Arc::clone(cell));
        cell.own(|| Owner::start(key.clone(), held, rules, publish, self.shared.clone()));
        Some(key)
    }

    fn apply_lockouts(&mut self, slot: &Slot) -> Option<Key> {
        let rules = LockoutRules::clone(&slot.lockout_rules);
        let cell = &slot.cell;
        if let Some(owner) = cell.lockout_owner() {
            owner.do_send(NewRules::<ModelLockouts>(rules));
            return None;
        }
        let key = Key::Lockout(slot.connection.id.clone());
        let held = self.found.as_mut().map(|found| found.take(&key));
        let publish = PublishLockouts(Arc::clone(cell));
        cell.own_lockouts(|| Owner::start(key.clone(), held, rules, publish, self.shared.clone()));
        Some(key)
    }
}

impl Registry {
    /// Starts the owner of a provider's limit on tools.
    fn apply_tools(&mut self, provider: &ProviderSlot) -> Option<Key> {
        let cell = &provider.tools;
        if cell.owner().is_some() {
            return None;
        }
        let key = Key::Tools(provider.provider.id.clone());
        let held = self
            .found
            .as_mut()
            .map(|found| found.take::<ToolLimit>(&key));
        let publish = PublishTools(Arc::clone(cell));
        let shared = self.shared.clone();
        cell.own(|| Owner::start(key.clone(), held, (), publish, shared));
        Some(key)
    }

    /// Starts the owner of what is known of a connection's usage wall, if it has one.
    fn apply_lane(&mut self, slot: &Slot) -> Option<Key> {
        let cell = &slot.cell;
        if slot.wall.is_none() || cell.lane.owner().is_some() {
            return None;
        }
        let rules = LaneRules {
            credential: Some(fingerprint(&slot.connection)),
        };
        let key = Key::Lane(slot.connection.id.clone());
        let held = self.found.as_mut().map(|found| found.take(&key));
        let publish = PublishLane(Arc::clone(cell));
        let shared = self.shared.clone();
        cell.lane
            .own(|| Owner::start(key.clone(), held, rules, publish, shared));
        Some(key)
    }

    /// Starts who refreshes a connection's tokens, or tells them how they are
    /// configured now.
    fn apply_tokens(&mut self, slot: &Slot) -> Option<Key> {
        let cell = &slot.cell;
        if let Some(refresher) = cell.token.refresher() {
            refresher.do_send(NewSetup(slot.tokens.clone()));
            return None;
        }
        let setup = slot.tokens.clone()?;
        let key = Key::Token(setup.connection.clone());
        let held = self.found.as_mut().map(|found| found.take_stored(&key));
        Refresher::start(cell, setup, held, self.tokens.clone());
        Some(key)
    }

    /// Tokens of connections that are gone or switched off are left alone.
    fn forget_tokens(&self, routing: &Routing) {
        let cells = self.cells.borrow();
        for id in cells
            .refreshed()
            .filter(|id| !routing.slots.contains_key(*id))
        {
            if let Some(refresher) = cells.refresher(id) {
                refresher.do_send(NewSetup(None));
            }
        }
    }
}

/// Tells credentials apart without keeping them: the mark of the first secret,
/// mixed with those of a connection's other keys.
fn fingerprint(connection: &Connection) -> u64 {
    let none = SecretString::default();
    let secret = match &connection.credential {
        Credential::None => &none,
        Credential::ApiKey(key) => key,
        Credential::Oauth {
            access_token,
            refresh_token,
            ..
        } => refresh_token.as_ref().unwrap_or(access_token),
    };
    let first = key_mark(&connection.id, secret);
    let extra = connection.extra_keys.iter();
    // Their order is no other credential, but each of them is.
    extra.fold(first, |mixed, key| {
        let mark = key_mark(&connection.id, key);
        mixed.wrapping_add(mark.wrapping_mul(MIX))
    })
}

/// An odd number, so that a key that moves from the first place to another tells.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
