//! From a client's `model` to the targets that could serve it.
//!
//! Order: a combo's name, then `provider/model`, then a bare model name that
//! some provider serves. This is the one place that says which protocols a
//! model offers, so translation between protocols will hook in here.

use std::sync::Arc;

use shared_proto::config::{ApiKey, QueueRules, StrategyName};
use shared_proto::pick;
use shared_proto::protocol::Protocol;

use crate::http::reply::ClientError;
use crate::routing::{ProviderSlot, Routing, Slot};

/// One place a request may go to.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) provider: Arc<ProviderSlot>,
    /// The upstream's name of the model.
    pub(crate) model: Arc<str>,
    /// One connection, or any of the provider's.
    pub(crate) connection: Option<Arc<Slot>>,
}

impl Target {
    /// The connections that could serve it and that `key` may use, whatever
    /// their state.
    pub(crate) fn candidates<'t>(
        &'t self,
        key: Option<&'t ApiKey>,
    ) -> impl Iterator<Item = &'t Arc<Slot>> {
        let one = self.connection.as_slice();
        let slots = if one.is_empty() {
            &self.provider.all
        } else {
            one
        };
        let managed = key.is_some_and(ApiKey::is_managed);
        slots.iter().filter(move |slot| {
            let allowed = key.and_then(|key| key.allowed_connections.as_ref());
            slot.serves(&self.model)
                && (managed || !slot.reserved)
                && allowed.is_none_or(|allowed| allowed.contains(&slot.connection.id))
        })
    }
}

/// Where a request may go, best first.
#[derive(Clone)]
pub(crate) struct Targets {
    pub(crate) list: Vec<Target>,
    /// Those that don't speak the client's protocol.
    pub(crate) foreign: Vec<Target>,
    /// Whether a combo named them.
    pub(crate) combo: bool,
    /// How a combo uses them.
    pub(crate) strategy: Option<StrategyName>,
    /// How a request waits for a slot where all of them are full.
    pub(crate) queue: QueueRules,
}

/// Why a model leads nowhere.
pub(crate) enum Nowhere {
    /// Nothing serves it.
    Unknown,
    /// Its provider has no enabled connection.
    NoConnection {
        /// Which one.
        provider: String,
    },
}

impl Nowhere {
    fn told(&self, routing: &Routing, model: &str) -> ClientError {
        match self {
            Self::Unknown => unknown(routing, model),
            Self::NoConnection { provider } => no_connections(routing, provider, model),
        }
    }
}

/// The targets of `model` for a client of `protocol`.
pub(crate) fn resolve(
    routing: &Routing,
    protocol: Protocol,
    model: &str,
    key: Option<&ApiKey>,
) -> Result<Targets, ClientError> {
    if let Some(key) = key {
        allowed(key, model)?;
    }
    let found = find(routing, model);
    let mut targets = found.map_err(|nowhere| nowhere.told(routing, model))?;
    let offered: Vec<Protocol> = Protocol::ALL
        .into_iter()
        .filter(|p| {
            targets
                .list
                .iter()
                .any(|t| t.provider.provider.endpoints.offers(*p))
        })
        .collect();
    let offers = |target: &Target| target.provider.provider.endpoints.offers(protocol);
    let (speaking, foreign) = targets.list.into_iter().partition(offers);
    targets.list = speaking;
    targets.foreign = foreign;
    if targets.list.is_empty() {
        return Err(not_offered(model, protocol, &offered));
    }
    if let Some(key) = key {
        reachable(key, &targets, model)?;
    }
    Ok(targets)
}

/// Refuses a model that the key may not name.
pub(crate) fn allowed(key: &ApiKey, model: &str) -> Result<(), ClientError> {
    if key.allowed_models.is_empty() || key.allowed_models.iter().any(|name| name == model) {
        return Ok(());
    }
    Err(ClientError {
        param: Some("model"),
        ..ClientError::new(
            403,
            "model_not_allowed",
            format!(
                "this API key may not use the model `{}` (apiKeys[].allowedModels)",
                shown(model)
            ),
        )
    })
}

/// Refuses a key none of whose connections could serve the request.
fn reachable(key: &ApiKey, targets: &Targets, model: &str) -> Result<(), ClientError> {
    let Some(allowed) = &key.allowed_connections else {
        return Ok(());
    };
    let reaches = |target: &Target| match &target.connection {
        Some(slot) => allowed.contains(&slot.connection.id),
        None => allowed.iter().any(|id| {
            let slot = target.provider.slot(id);
            slot.is_some_and(|slot| slot.serves(&target.model))
        }),
    };
    if targets.list.iter().any(reaches) {
        return Ok(());
    }
    Err(ClientError {
        param: Some("model"),
        ..ClientError::new(
            403,
            "connection_not_allowed",
            format!(
                "this API key may not use any connection that serves `{}` (apiKeys[].allowedConnections)",
                shown(model)
            ),
        )
    })
}

/// Every target of `model`, whatever protocol it speaks.
pub(crate) fn find(routing: &Routing, model: &str) -> Result<Targets, Nowhere> {
    let combo_name = model.strip_prefix("combo/").unwrap_or(model);
    if let Some(combo) = routing
        .combos
        .get(model)
        .or_else(|| routing.combos.get(combo_name))
    {
        let order = pick::order(combo.strategy, &combo.targets);
        let listed: Vec<Target> = order
            .into_iter()
            .filter_map(|place| {
                let target = combo.targets.get(place)?;
                Some(Target {
                    provider: Arc::clone(routing.providers.get(&target.provider)?),
                    model: target.model.as_str().into(),
                    connection: match &target.connection {
                        Some(id) => Some(Arc::clone(routing.slots.get(id)?)),
                        None => None,
                    },
                })
            })
            .collect();
        return Ok(Targets {
            list: listed,
            foreign: Vec::new(),
            combo: true,
            strategy: Some(combo.strategy),
            queue: combo.queue,
        });
    }
    let queue = routing.config.settings.queue;
    if let Some((provider, name)) = model.split_once('/').filter(|(_, name)| !name.is_empty()) {
        if let Some(slot) = routing.providers.get(provider) {
            return Ok(plain(vec![Arc::clone(slot)], name, queue));
        }
        let known = routing.config.providers.contains_key(provider);
        if known && routing.providers_of(model).is_empty() {
            let provider = provider.to_owned();
            return Err(Nowhere::NoConnection { provider });
        }
    }
    let providers = routing.providers_of(model);
    if providers.is_empty() {
        return Err(Nowhere::Unknown);
    }
    Ok(plain(providers, model, queue))
}

fn plain(providers: Vec<Arc<ProviderSlot>>, model: &str, queue: QueueRules) -> Targets {
    let model: Arc<str> = model.into();
    let list = providers
        .into_iter()
        .map(|provider| Target {
            provider,
            model: Arc::clone(&model),
            connection: None,
        })
        .collect();
    Targets {
        list,
        foreign: Vec::new(),
        combo: false,
        strategy: None,
        queue,
    }
}

/// A client's name for a model as messages show it: printable and short.
pub(crate) fn shown(model: &str) -> String {
    let mut shown: String = model
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .take(MAX_SHOWN)
        .collect();
    if shown.len() < model.len() {
        shown.push('…');
    }
    shown
}

/// Characters of a model's name in messages.
const MAX_SHOWN: usize = 100;

fn not_offered(model: &str, protocol: Protocol, offered: &[Protocol]) -> ClientError {
    let model = shown(model);
    let list = |word: fn(Protocol) -> String| {
        let words: Vec<String> = offered.iter().map(|p| word(*p)).collect();
        words.join(", ")
    };
    ClientError::bad_request(
        "protocol_not_offered",
        Some("model"),
        if offered.is_empty() {
            format!("no target of `{model}` speaks a protocol this router serves")
        } else {
            format!(
                "`{model}` is not offered over {protocol}; it offers {} (call {})",
                list(|p| p.to_string()),
                list(|p| format!("/v1/{}", p.path())),
            )
        },
    )
}

fn not_found(message: String) -> ClientError {
    ClientError {
        param: Some("model"),
        ..ClientError::new(404, "model_not_found", message)
    }
}

fn no_connections(routing: &Routing, provider: &str, model: &str) -> ClientError {
    let model = shown(model);
    let variable = routing
        .config
        .providers
        .get(provider)
        .and_then(|p| p.key_env.first())
        .map_or_else(String::new, |name| format!(", or set {name} and restart"));
    not_found(format!(
        "`{model}`: the provider `{provider}` has no enabled connection; add one under `connections:`{variable}"
    ))
}

fn unknown(routing: &Routing, model: &str) -> ClientError {
    let names = routing
        .combos
        .keys()
        .map(String::as_str)
        .chain(routing.listed_models().map(|(name, _)| name));
    let near = shared_proto::config::nearest(model, names)
        .map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
    let model = shown(model);
    not_found(format!(
        "no combo, provider or connection serves the model `{model}`{near} (write provider/model, or see GET /v1/models)"
    ))
}
