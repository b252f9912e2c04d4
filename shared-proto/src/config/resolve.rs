//! What the file means: defaults, references, secrets, environment. Every
//! check goes on after a fault, with a stand-in that never leaves this module,
//! since a configuration with a problem is not handed out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

use crate::catalogue;
use crate::id::ProviderId;

use super::file::{File, Secret};
use super::load::{Env, FoundConnection, Overrides};
use super::problem::Path;
use super::report::{From, Origin, Report};
use super::{Config, Connection, Coordinator};

mod combo;
mod connection;
mod egress;
mod environment;
mod extras;
mod gates;
mod key;
mod keys;
mod provider;
mod quota;
mod rotation;
mod rules;
mod server;
mod settings;
mod token_endpoint;
mod url;
mod zero;

pub(crate) use combo::STRATEGIES;
pub(crate) use provider::{Parts, assemble};
pub(super) use settings::resolve as settings;
pub(crate) use token_endpoint::described;

/// Longest secret, in bytes.
const MAX_SECRET: usize = 64 * 1024;

/// What every check works with.
pub(super) struct Context<'r, 'a> {
    pub(super) report: &'r mut Report<'a>,
    pub(super) env: &'r dyn Env,
    pub(super) overrides: &'r Overrides,
}

/// Resolves a file, or what the environment offers where there is none.
pub(super) fn config(
    file: Option<File>,
    context: &mut Context<'_, '_>,
) -> (Config, Vec<FoundConnection>) {
    let configured = file.is_some();
    let file = file.unwrap_or_default();
    if let Err(fault) = catalogue::entries() {
        let message = format!("the built-in catalogue of providers: {fault}");
        context.report.problem(&Path::default(), message);
    }
    let settings = settings::resolve(file.settings.unwrap_or_default(), context);
    let mut providers = provider::resolve(file.providers.as_deref().unwrap_or_default(), context);
    egress::check(&settings.egress, &providers, context);
    let (mut connections, found) = if configured {
        let given = file.connections.as_deref().unwrap_or_default();
        (
            connection::resolve(given, &mut providers, context),
            Vec::new(),
        )
    } else {
        zero::connections(&providers, context)
    };
    if connections.is_empty() {
        let message = "no connection; only the simulated provider answers (model `simulated/ok`)";
        context.report.warn(&Path::of("connections"), message);
    }
    zero::add_simulated(&mut connections);
    let world = World::new(&providers, &connections);
    let combos = file.combos.as_deref().unwrap_or_default();
    let combos = combo::resolve(combos, settings.queue, &world, context);
    let api_keys = key::resolve(
        file.api_keys.as_deref().unwrap_or_default(),
        &world,
        context,
    );
    let server = server::server(
        file.server.unwrap_or_default(),
        !api_keys.is_empty(),
        context,
    );
    url::refuse_loops(&world, server.listen, context);
    let store = server::store(file.store.unwrap_or_default(), context);
    extras::check_target(&settings.emergency_fallback, world.providers, context);
    environment::warn_of_idle(context);
    let lease_ms = file.coordinator.and_then(|given| given.lease_ms);
    let lease_ms = lease_ms.unwrap_or(crate::leader::DEFAULT_LEASE_MS);
    let config = Config {
        server,
        store,
        providers: providers
            .into_iter()
            .map(|(id, provider)| (id, Arc::new(provider)))
            .collect(),
        connections: connections.into_iter().map(Arc::new).collect(),
        combos: combos.into_iter().map(Arc::new).collect(),
        api_keys: api_keys.into_iter().map(Arc::new).collect(),
        settings,
        coordinator: Coordinator { lease_ms },
        node_id: environment::node_id(context),
        secret_keys: environment::secret_keys(context),
        given: Arc::default(),
    };
    (config, found)
}

/// What references may point at.
struct World<'a> {
    providers: &'a BTreeMap<ProviderId, super::Provider>,
    connections: &'a [Connection],
    by_id: HashMap<&'a str, &'a Connection>,
    by_provider: HashMap<&'a str, Vec<&'a Connection>>,
}

impl<'a> World<'a> {
    fn new(
        providers: &'a BTreeMap<ProviderId, super::Provider>,
        connections: &'a [Connection],
    ) -> Self {
        let mut by_provider: HashMap<&str, Vec<&Connection>> = HashMap::new();
        for connection in connections {
            let of_provider = by_provider.entry(connection.provider.as_str());
            of_provider.or_default().push(connection);
        }
        Self {
            providers,
            connections,
            by_id: connections.iter().map(|c| (c.id.as_str(), c)).collect(),
            by_provider,
        }
    }

    fn connection_ids(&self) -> impl Iterator<Item = &'a str> {
        self.connections.iter().map(|c| c.id.as_str())
    }
}

impl Context<'_, '_> {
    /// A variable's value; an empty one counts as not set.
    fn variable(&self, name: &str) -> Option<String> {
        self.env.var(name).filter(|value| !value.trim().is_empty())
    }

    /// Reads a secret of the file. A fault names the key and the place it
    /// points to, never the value.
    fn secret(&mut self, secret: &Secret, path: &Path) -> Option<SecretString> {
        let text = match secret {
            Secret::Text(text) => text.clone(),
            Secret::Elsewhere {
                env: Some(name), ..
            } => {
                let Some(text) = self.env.var(name) else {
                    let message = format!("the variable {name} is not set");
                    self.report.problem(path, message);
                    return None;
                };
                if text.trim().is_empty() {
                    let message = format!("the variable {name} is empty");
                    self.report.problem(path, message);
                    return None;
                }
                text
            }
            Secret::Elsewhere {
                file: Some(name), ..
            } => match self.env.read_file(name.as_ref()) {
                Ok(text) => text,
                Err(reason) => {
                    let message = format!("cannot read the file {name}: {reason}");
                    self.report.problem(path, message);
                    return None;
                }
            },
            Secret::Elsewhere { .. } => return None,
        };
        let text = text.trim();
        let fault = if text.is_empty() {
            Some("may not be empty".to_owned())
        } else if text.len() > MAX_SECRET {
            Some(format!("longer than {MAX_SECRET} bytes"))
        } else if text.chars().any(char::is_control) {
            Some("holds a line break or another control character".to_owned())
        } else {
            None
        };
        if let Some(fault) = fault {
            let place = match secret {
                Secret::Elsewhere {
                    env: Some(name), ..
                } => format!("the variable {name}: "),
                Secret::Elsewhere {
                    file: Some(name), ..
                } => format!("the file {name}: "),
                Secret::Text(_) | Secret::Elsewhere { .. } => String::new(),
            };
            self.report.problem(path, format!("{place}{fault}"));
            return None;
        }
        Some(SecretString::from(text))
    }

    /// The first of command line, variable and file that says something, with
    /// where it was said.
    fn first_of(
        &self,
        option: Option<(&'static str, Option<&String>)>,
        variable: &'static str,
        file: (Option<String>, Path),
    ) -> (Option<String>, From) {
        if let Some((name, Some(text))) = option {
            return (Some(text.clone()), From::Outside(Origin::Option(name)));
        }
        if let Some(text) = self.variable(variable) {
            let origin = Origin::Variable(variable);
            return (Some(text.trim().to_owned()), From::Outside(origin));
        }
        (file.0, From::File(file.1))
    }
}

/// What a name may look like.
#[derive(Clone, Copy)]
struct NameRule {
    longest: usize,
    besides: &'static str,
}

/// Ids of providers: they stand before the `/` of a model.
const PROVIDER_NAME: NameRule = NameRule {
    longest: 64,
    besides: "-_.",
};
/// Ids of connections and keys: they stand in paths, headers and logs.
const ID: NameRule = NameRule {
    longest: 128,
    besides: "-_.:@+=",
};

impl NameRule {
    fn fits(self, name: &str) -> bool {
        let plain = |c: char| c.is_ascii_alphanumeric() || self.besides.contains(c);
        !name.is_empty() && name.len() <= self.longest && name.chars().all(plain)
    }

    fn in_words(self) -> String {
        let signs: Vec<String> = self.besides.chars().map(|c| format!("`{c}`")).collect();
        let (longest, signs) = (self.longest, signs.join(" "));
        format!("takes 1 to {longest} letters, digits and {signs}")
    }
}

/// Refuses a name that is out of shape or given twice.
fn check_name<'n>(
    name: &'n str,
    rule: NameRule,
    seen: &mut HashMap<&'n str, usize>,
    (index, path): (usize, &Path),
    context: &mut Context<'_, '_>,
) -> bool {
    if !rule.fits(name) {
        context.report.problem(path, rule.in_words());
        return false;
    }
    if let Some(first) = seen.get(name) {
        let message = format!(
            "`{name}` is given twice; the first is number {}",
            first.saturating_add(1)
        );
        context.report.problem(path, message);
        return false;
    }
    seen.insert(name, index);
    true
}

/// Number of characters of a secret.
fn length(secret: &SecretString) -> usize {
    secret.expose_secret().chars().count()
}
