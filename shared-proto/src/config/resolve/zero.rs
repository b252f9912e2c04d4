//! Connections that exist without being written down.

use std::collections::{BTreeMap, HashSet};

use secrecy::SecretString;

use crate::catalogue::{self, SIMULATED};
use crate::id::{ConnectionId, ProviderId};
use crate::rotation::RotationOverrides;

use super::super::load::FoundConnection;
use super::super::report::Origin;
use super::super::{Connection, Credential, Provider};
use super::Context;

/// One connection for each provider whose usual variable is set. A variable
/// makes one connection, at the first provider that names it.
pub(super) fn connections(
    providers: &BTreeMap<ProviderId, Provider>,
    context: &mut Context<'_, '_>,
) -> (Vec<Connection>, Vec<FoundConnection>) {
    let mut used: HashSet<&str> = HashSet::new();
    let mut connections = Vec::new();
    let mut found = Vec::new();
    for entry in catalogue::entries().unwrap_or_default() {
        let provider = &entry.provider;
        if entry.own_url.is_some() || !providers.contains_key(&provider.id) {
            continue;
        }
        let names = provider.key_env.iter().map(String::as_str);
        let mut unused = names.filter(|name| !used.contains(name));
        let Some((variable, value)) = unused.find_map(|name| Some((name, context.variable(name)?)))
        else {
            continue;
        };
        used.insert(variable);
        let key = value.trim();
        if key.chars().any(char::is_control) {
            let message = "holds a line break or another control character; not used";
            context
                .report
                .warn_outside(Origin::Variable(variable), message);
            continue;
        }
        let credential = Credential::ApiKey(SecretString::from(key));
        connections.push(plain(provider.id.as_str(), &provider.id, credential));
        found.push(FoundConnection {
            variable: variable.to_owned(),
            connection: provider.id.to_string(),
        });
    }
    (connections, found)
}

/// Makes `simulated/...` answer in every configuration that says nothing of it.
/// The provider lists no models, so it is never chosen for a bare name.
pub(super) fn add_simulated(connections: &mut Vec<Connection>) {
    let provider = ProviderId::from(SIMULATED);
    if connections
        .iter()
        .any(|connection| connection.provider == provider)
    {
        return;
    }
    let taken = connections
        .iter()
        .any(|connection| connection.id.as_str() == SIMULATED);
    let id = if taken {
        "simulated:built-in"
    } else {
        SIMULATED
    };
    connections.push(plain(id, &provider, Credential::None));
}

fn plain(id: &str, provider: &ProviderId, credential: Credential) -> Connection {
    Connection {
        id: ConnectionId::from(id),
        provider: provider.clone(),
        credential,
        enabled: true,
        priority: 1,
        models: Vec::new(),
        max_concurrent: None,
        proxy_url: None,
        disable_cooling: false,
        base_url: None,
        extra_keys: Vec::new(),
        rotation: RotationOverrides::default(),
        provider_specific: serde_json::Map::new(),
    }
}
