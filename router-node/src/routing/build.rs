//! Builds a [`Routing`] from a configuration and the cells that outlive it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Uri};
use secrecy::{ExposeSecret as _, SecretString};
use shared_proto::clock::Millis;
use shared_proto::config::{AuthStyle, Config, Connection, Credential, ErrorRule, Provider};
use shared_proto::gate::GateRules;
use shared_proto::health::key_mark;
use shared_proto::id::{ConnectionId, ProviderId};
use shared_proto::lockout::LockoutRules;
use shared_proto::pick::ready::ReadyIndex;
use shared_proto::protocol::Protocol;
use shared_proto::rotation::RotationRules;

use crate::token;
use crate::upstream::proxy;
use crate::wall::Wall;

use super::{Alarm, Cells, Key, Placement, Pool, ProviderSlot, Routing, Slot};

/// Turns `config` into what requests read.
pub(crate) fn build(config: Arc<Config>, cells: &mut Cells, now: Millis) -> Routing {
    let off = slots(&config, cells, false);
    let slots = slots(&config, cells, true);
    let mut grouped: Vec<(Arc<Provider>, Vec<Arc<Slot>>)> = Vec::new();
    let mut places: HashMap<&ProviderId, usize> = HashMap::new();
    for slot in &slots {
        let place = *places.entry(&slot.provider.id).or_insert_with(|| {
            grouped.push((Arc::clone(&slot.provider), Vec::new()));
            grouped.len().saturating_sub(1)
        });
        if let Some((_, of_it)) = grouped.get_mut(place) {
            of_it.push(Arc::clone(slot));
        }
    }
    let in_order: Vec<Arc<ProviderSlot>> = grouped
        .into_iter()
        .map(|(provider, of_it)| Arc::new(provider_slot(&config, (provider, of_it), cells, now)))
        .collect();
    let (exact, prefixes) = bare_models(&in_order);
    let providers: HashMap<ProviderId, Arc<ProviderSlot>> = in_order
        .into_iter()
        .map(|provider| (provider.provider.id.clone(), provider))
        .collect();
    let switched_off = off
        .into_iter()
        .map(|slot| {
            let provider = providers.get(&slot.provider.id).cloned();
            let provider = provider.unwrap_or_else(|| {
                let alone = (Arc::clone(&slot.provider), Vec::new());
                Arc::new(provider_slot(&config, alone, cells, now))
            });
            (slot.connection.id.clone(), (provider, slot))
        })
        .collect();
    Routing {
        switched_off,
        slots: slots
            .iter()
            .map(|slot| (slot.connection.id.clone(), Arc::clone(slot)))
            .collect(),
        providers,
        combos: config
            .combos
            .iter()
            .map(|combo| (combo.name.clone(), Arc::clone(combo)))
            .collect(),
        keys: config
            .api_keys
            .iter()
            .map(|key| (key.sha256, Arc::clone(key)))
            .collect(),
        exact,
        prefixes,
        config,
    }
}

/// The connections that are switched on, or those that are off.
fn slots(config: &Config, cells: &mut Cells, on: bool) -> Vec<Arc<Slot>> {
    let wanted = config.connections.iter().filter(|c| c.enabled == on);
    let managed = config.api_keys.iter().filter(|key| key.is_managed());
    let reserved: HashSet<&ConnectionId> = managed
        .flat_map(|key| key.allowed_connections.iter().flatten())
        .collect();
    wanted
        .filter_map(|connection| {
            let provider = config.providers.get(&connection.provider)?;
            let rotation = RotationRules::of_connection(&config.settings, connection);
            let lockout_rules = LockoutRules::new(&config.settings, provider);
            Some(Arc::new(Slot {
                cell: cells.connection(&connection.id),
                reserved: reserved.contains(&connection.id),
                urls: Protocol::ALL
                    .map(|protocol| url(provider, connection, (protocol, protocol.path()))),
                auth: auth(provider, connection),
                keys: keys(provider, connection),
                rotation,
                tokens: token::Setup::of(config, provider, connection).map(Arc::new),
                default_headers: default_headers(provider),
                wall: Wall::of(config, provider, connection).map(Arc::new),
                lockout_rules: Arc::new(lockout_rules.resetting(&rotation)),
                per_model_quota: per_model_quota(provider, connection),
                error_rules: error_rules(config, provider),
                egress_family: egress_family(config, provider, connection),
                proxy_secrets: proxy_secrets(connection),
                connection: Arc::clone(connection),
                provider: Arc::clone(provider),
            }))
        })
        .collect()
}

fn per_model_quota(provider: &Provider, connection: &Connection) -> bool {
    let own = connection.provider_specific.get("passthroughModels");
    own.and_then(serde_json::Value::as_bool)
        .unwrap_or(provider.per_model_quota)
}

/// One that never cools is left out, and one without an address of its own.
fn egress_family(
    config: &Config,
    provider: &Provider,
    connection: &Connection,
) -> Option<Arc<str>> {
    let may_rest = !connection.disable_cooling && !provider.endpoints.simulated;
    let family = config.settings.egress.family(provider);
    family.filter(|_| may_rest).map(Arc::from)
}

fn proxy_secrets(connection: &Connection) -> Vec<SecretString> {
    let url = connection.proxy_url.as_ref();
    let secrets = url.map(|url| proxy::secrets(url.expose_secret()));
    let secrets = secrets.into_iter().flatten();
    secrets.map(SecretString::from).collect()
}

/// The operator's rules are found under the provider's own name.
fn error_rules(config: &Config, provider: &Provider) -> Arc<[ErrorRule]> {
    let rules = &config.settings.provider_error_rules;
    let of_it = rules.get(&provider.id.as_str().to_lowercase());
    of_it.map_or_else(|| Arc::from([]), |rules| Arc::from(rules.as_slice()))
}

/// Where `path` of `protocol` is. Base URLs come with or without their version
/// segment; both mean the same.
pub(super) fn url(
    provider: &Provider,
    connection: &Connection,
    (protocol, path_of_call): (Protocol, &str),
) -> Option<Uri> {
    let own = provider.endpoints.base_url(protocol)?;
    let base = connection.base_url.as_deref().unwrap_or(own);
    let (base, query) = base
        .split_once('?')
        .map_or((base, None), |(b, q)| (b, Some(q)));
    let base = base.trim_end_matches('/');
    let path = base.split_once("://").map_or("", |(_, rest)| {
        rest.split_once('/').map_or("", |(_, path)| path)
    });
    let versioned = match protocol {
        // Anthropic's clients are given the bare host, OpenAI's the version.
        Protocol::Messages => path.split('/').any(is_version),
        Protocol::ChatCompletions | Protocol::Responses | Protocol::Embeddings => !path.is_empty(),
    };
    let version = if versioned { "" } else { "/v1" };
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    Uri::try_from(format!("{base}{version}/{path_of_call}{query}")).ok()
}

fn is_version(segment: &str) -> bool {
    let digits = segment.strip_prefix('v').unwrap_or("");
    digits.starts_with(|c: char| c.is_ascii_digit())
}

fn auth(provider: &Provider, connection: &Connection) -> Option<(HeaderName, HeaderValue)> {
    match &connection.credential {
        Credential::None => None,
        Credential::ApiKey(key) => header(provider, key, false),
        Credential::Oauth { access_token, .. } => header(provider, access_token, true),
    }
}

/// All of its keys, where it has several.
fn keys(provider: &Provider, connection: &Connection) -> Vec<Key> {
    let first = match &connection.credential {
        Credential::ApiKey(key) if !connection.extra_keys.is_empty() => key,
        Credential::ApiKey(_) | Credential::None | Credential::Oauth { .. } => return Vec::new(),
    };
    let all = std::iter::once(first).chain(&connection.extra_keys);
    let keys = all.filter_map(|key| {
        Some(Key {
            mark: key_mark(&connection.id, key),
            header: header(provider, key, false)?,
        })
    });
    keys.collect()
}

/// What a key or token is presented in.
fn header(
    provider: &Provider,
    token: &SecretString,
    oauth: bool,
) -> Option<(HeaderName, HeaderValue)> {
    let token = token.expose_secret();
    let (name, value) = match provider.auth {
        AuthStyle::None => return None,
        AuthStyle::Bearer => ("authorization", format!("Bearer {token}")),
        // A token is a bearer wherever it goes.
        AuthStyle::XApiKey | AuthStyle::ApiKey | AuthStyle::XGoogApiKey if oauth => {
            ("authorization", format!("Bearer {token}"))
        }
        AuthStyle::XApiKey => ("x-api-key", token.to_owned()),
        AuthStyle::ApiKey => ("api-key", token.to_owned()),
        AuthStyle::XGoogApiKey => ("x-goog-api-key", token.to_owned()),
    };
    let mut value = HeaderValue::try_from(value).ok()?;
    value.set_sensitive(true);
    Some((HeaderName::from_static(name), value))
}

fn default_headers(provider: &Provider) -> Vec<(HeaderName, HeaderValue)> {
    let pairs = provider.default_headers.iter();
    pairs
        .filter_map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            Some((name, HeaderValue::from_str(value).ok()?))
        })
        .collect()
}

fn provider_slot(
    config: &Config,
    (provider, all): (Arc<Provider>, Vec<Arc<Slot>>),
    cells: &mut Cells,
    now: Millis,
) -> ProviderSlot {
    let mut any: Vec<Arc<Slot>> = Vec::new();
    let mut by_model: HashMap<String, Vec<Arc<Slot>>> = HashMap::new();
    // Requests under a lease know which connection they use.
    for slot in all.iter().filter(|slot| !slot.reserved) {
        let models = &slot.connection.models;
        if models.is_empty() || models.iter().any(|model| model.ends_with('*')) {
            any.push(Arc::clone(slot));
            continue;
        }
        for model in models {
            by_model
                .entry(model.clone())
                .or_default()
                .push(Arc::clone(slot));
        }
    }
    let mut places: HashMap<ConnectionId, Vec<Placement>> = HashMap::new();
    let any = pool(any, &mut places);
    let by_model = by_model
        .into_iter()
        .map(|(model, slots)| (model, pool(slots, &mut places)))
        .collect();
    for slot in &all {
        let places = places.remove(&slot.connection.id).unwrap_or_default();
        slot.cell.place(places, now);
    }
    ProviderSlot {
        breaker: cells.breaker(&provider.id),
        gate: cells.gate(&provider.id),
        tools: cells.tools(&provider.id),
        gate_rules: GateRules::new(&config.settings, &provider.id, provider.profile),
        provider,
        by_id: all
            .iter()
            .map(|slot| (slot.connection.id.clone(), Arc::clone(slot)))
            .collect(),
        all,
        any,
        by_model,
    }
}

/// An index over `slots` that starts in the order they were last used in.
fn pool(slots: Vec<Arc<Slot>>, places: &mut HashMap<ConnectionId, Vec<Placement>>) -> Pool {
    let priorities: Vec<u32> = slots.iter().map(|slot| slot.connection.priority).collect();
    let index = Arc::new(ReadyIndex::new(&priorities));
    let alarm = Arc::new(Alarm::default());
    let mut used: Vec<(u64, usize)> = slots
        .iter()
        .enumerate()
        .map(|(leaf, slot)| (slot.cell.last_used(), leaf))
        .filter(|(last_used, _)| *last_used > 0)
        .collect();
    used.sort_unstable();
    for (_, leaf) in used {
        index.touch(leaf);
    }
    for (leaf, slot) in slots.iter().enumerate() {
        let of_it = places.entry(slot.connection.id.clone()).or_default();
        of_it.push(Placement {
            index: Arc::clone(&index),
            alarm: Arc::clone(&alarm),
            leaf,
        });
    }
    Pool {
        index,
        alarm,
        slots,
    }
}

type BareModels = (
    HashMap<String, Vec<Arc<ProviderSlot>>>,
    Vec<(String, Arc<ProviderSlot>)>,
);

/// Which providers a bare model name leads to. A simulated provider is only
/// reached by its own name.
fn bare_models(providers: &[Arc<ProviderSlot>]) -> BareModels {
    let (mut exact, mut prefixes) = BareModels::default();
    for provider in providers.iter().filter(|p| !p.provider.endpoints.simulated) {
        let of_connections = provider.all.iter().flat_map(|slot| &slot.connection.models);
        for model in provider.provider.models.iter().chain(of_connections) {
            if let Some(prefix) = model.strip_suffix('*') {
                prefixes.push((prefix.to_owned(), Arc::clone(provider)));
                continue;
            }
            let known: &mut Vec<Arc<ProviderSlot>> = exact.entry(model.clone()).or_default();
            if !known.iter().any(|p| Arc::ptr_eq(p, provider)) {
                known.push(Arc::clone(provider));
            }
        }
    }
    (exact, prefixes)
}
