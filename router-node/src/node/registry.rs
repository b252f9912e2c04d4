//! Starts the owners and keeps the cells that outlive a configuration.
//!
//! An owner is never stopped while the node runs: a connection that leaves the
//! configuration keeps its state, so that it is still respected when it comes back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use shared_proto::breaker::{BreakerRules, ProviderBreaker};
use shared_proto::config::{Connection, Credential};
use shared_proto::health::{ConnectionHealth, HealthEvent, HealthRules};
use shared_proto::id::ConnectionId;
use shared_proto::mirror::Snapshot;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::key::{Key, Keyspace, Spelled};
use shared_proto::mirror::record::{Record, Why};

use crate::actor::machine::Machine;
use crate::actor::owner::{NewRules, Owner, Report, Shared};
use crate::routing::{Cells, PublishBreaker, PublishHealth, Routing, Slot};

/// Cells and owners by name.
pub(super) struct Registry {
    shared: Shared,
    /// What the mirror held at the start.
    records: HashMap<Key, Record>,
    /// Records there that make no sense; the next change replaces them.
    corrupt: HashSet<Key>,
    pub(super) cells: Cells,
    credentials: HashMap<ConnectionId, u64>,
}

impl Registry {
    pub(super) fn new(shared: Shared, prefix: &str, snapshot: Snapshot) -> Self {
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
            shared,
            records: snapshot
                .records
                .into_iter()
                .map(|record| (record.key.clone(), record))
                .collect(),
            cells: Cells::default(),
            credentials: HashMap::new(),
        }
    }

    /// Starts owners for what is new in `routing`, gives the others their new
    /// numbers, and tells those whose credentials changed.
    pub(super) fn apply(&mut self, routing: &Routing) {
        for slot in routing.slots.values() {
            self.apply_connection(routing, slot);
        }
        for provider in routing.providers.values() {
            let id = &provider.provider.id;
            let settings = &routing.config.settings;
            let rules = BreakerRules::new(settings, provider.provider.profile);
            let cell = &provider.breaker;
            if let Some(owner) = cell.owner() {
                owner.do_send(NewRules::<ProviderBreaker>(rules));
                continue;
            }
            let key = Key::Breaker(id.clone());
            let held = self.held::<ProviderBreaker>(&key);
            let publish = PublishBreaker(Arc::clone(cell));
            cell.own(|| Owner::start(key, held, rules, publish, self.shared.clone()));
        }
    }

    fn apply_connection(&mut self, routing: &Routing, slot: &Slot) {
        let connection = &slot.connection;
        let settings = &routing.config.settings;
        let mark = fingerprint(connection);
        let rules =
            HealthRules::new(settings, slot.provider.profile, connection).with_credential(mark);
        let cell = &slot.cell;
        let mut before = self.credentials.insert(connection.id.clone(), mark);
        if let Some(owner) = cell.owner() {
            owner.do_send(NewRules::<ConnectionHealth>(rules));
        } else {
            let key = Key::Health(connection.id.clone());
            let held = self.held::<ConnectionHealth>(&key);
            before = held.0.credential;
            let publish = PublishHealth(Arc::clone(cell));
            cell.own(|| Owner::start(key, held, rules, publish, self.shared.clone()));
        }
        let changed = before.is_some_and(|before| before != mark);
        if let Some(owner) = cell.owner().filter(|_| changed) {
            owner.do_send(Report::<ConnectionHealth>(HealthEvent::CredentialsChanged));
        }
    }

    fn held<M: Machine>(&mut self, key: &Key) -> (M, Expected) {
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

/// Tells credentials apart without keeping them: the first eight bytes of a
/// hash over the connection's name and its secret.
fn fingerprint(connection: &Connection) -> u64 {
    use secrecy::ExposeSecret as _;
    use sha2::{Digest as _, Sha256};
    let secret = match &connection.credential {
        Credential::None => "",
        Credential::ApiKey(key) => key.expose_secret(),
        Credential::Oauth {
            access_token,
            refresh_token,
            ..
        } => refresh_token
            .as_ref()
            .unwrap_or(access_token)
            .expose_secret(),
    };
    let mut hash = Sha256::new();
    hash.update(connection.id.as_str().as_bytes());
    hash.update([0]);
    hash.update(secret.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut first = [0; 8];
    first.copy_from_slice(digest.get(..8).unwrap_or(&[0; 8]));
    u64::from_be_bytes(first)
}
