//! Starts the owners and keeps the cells that outlive a configuration.
//!
//! An owner is never stopped while the node runs: a connection that leaves the
//! configuration keeps its state, so that it is still respected when it comes back.

use std::collections::HashMap;
use std::sync::Arc;

use shared_proto::breaker::{BreakerRules, ProviderBreaker};
use shared_proto::config::{Connection, Credential};
use shared_proto::health::{ConnectionHealth, HealthEvent, HealthRules};
use shared_proto::id::{ConnectionId, ProviderId};
use shared_proto::mirror::Snapshot;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::{Record, Why};

use crate::actor::machine::Machine;
use crate::actor::owner::{NewRules, Owner, Report, Shared};
use crate::routing::{
    BreakerCell, Cells, ConnectionCell, PublishBreaker, PublishHealth, Routing, Slot,
};

/// Cells and owners by name.
pub(super) struct Registry {
    shared: Shared,
    /// What the mirror held at the start.
    records: HashMap<Key, Record>,
    connections: HashMap<ConnectionId, Arc<ConnectionCell>>,
    breakers: HashMap<ProviderId, Arc<BreakerCell>>,
    credentials: HashMap<ConnectionId, u64>,
}

impl Registry {
    pub(super) fn new(shared: Shared, snapshot: Snapshot) -> Self {
        Self {
            shared,
            records: snapshot
                .records
                .into_iter()
                .map(|record| (record.key.clone(), record))
                .collect(),
            connections: HashMap::new(),
            breakers: HashMap::new(),
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
        let rules = HealthRules::new(settings, slot.provider.profile, connection)
            .with_credential(fingerprint(connection));
        let cell = &slot.cell;
        if cell.owner().is_none() {
            let key = Key::Health(connection.id.clone());
            let held = self.held::<ConnectionHealth>(&key);
            let publish = PublishHealth(Arc::clone(cell));
            cell.own(|| Owner::start(key, held, rules.clone(), publish, self.shared.clone()));
        }
        let Some(owner) = cell.owner() else { return };
        owner.do_send(NewRules::<ConnectionHealth>(rules));
        // Compared inside: the same credential is no event.
        owner.do_send(Report::<ConnectionHealth>(HealthEvent::CredentialsChanged));
    }

    fn held<M: Machine>(&mut self, key: &RecordKey) -> (M, u64) {
        let Some(record) = self.records.remove(key) else {
            return (M::default(), 0);
        };
        match record.decode::<M>() {
            Ok(state) => (state, record.revision),
            Err(error) => {
                tracing::warn!(%key, %error, "a stored state can't be read; the connection starts healthy and the record is kept until its next change");
                (M::default(), record.revision)
            }
        }
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
        Credential::Oauth { access_token, refresh_token, .. } => {
            refresh_token.as_ref().unwrap_or(access_token).expose_secret()
        }
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

impl Cells for Registry {
    fn connection(&mut self, id: &ConnectionId) -> Arc<ConnectionCell> {
        Arc::clone(self.connections.entry(id.clone()).or_default())
    }

    fn breaker(&mut self, id: &ProviderId) -> Arc<BreakerCell> {
        Arc::clone(self.breakers.entry(id.clone()).or_default())
    }
}
