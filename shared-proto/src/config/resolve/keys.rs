//! `providerSpecificData.extraApiKeys` of a connection.

use secrecy::{ExposeSecret, SecretString};

use super::super::problem::Path;
use super::super::{AuthKind, Credential, MAX_EXTRA_KEYS, Provider, file};
use super::Context;

/// The keys beside the first, each once. A key that is given twice would be
/// presented twice for nothing.
pub(super) fn resolve(
    given: Option<&file::ProviderSpecific>,
    (credential, provider): (&Credential, Option<&Provider>),
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Vec<SecretString> {
    let Some(given) = given.and_then(|data| data.extra_api_keys.as_ref()) else {
        return Vec::new();
    };
    let path = path.key("extraApiKeys");
    if let Some(provider) = provider.filter(|provider| provider.auth_kind != AuthKind::ApiKey) {
        let message = format!(
            "connections of `{}` have no keys; only providers with `auth: apiKey` take several",
            provider.id
        );
        context.report.problem(&path, message);
        return Vec::new();
    }
    if given.len() > MAX_EXTRA_KEYS {
        let message = format!(
            "holds {} keys; at most {MAX_EXTRA_KEYS} are taken",
            given.len()
        );
        context.report.problem(&path, message);
        return Vec::new();
    }
    let mut keys: Vec<SecretString> = Vec::with_capacity(given.len());
    for (at, secret) in given.iter().enumerate() {
        let path = path.index(at);
        let Some(key) = context.secret(secret, &path) else {
            continue;
        };
        let is = |known: &SecretString| known.expose_secret() == key.expose_secret();
        let first = match credential {
            Credential::ApiKey(first) => is(first),
            Credential::None | Credential::Oauth { .. } => false,
        };
        if first || keys.iter().any(is) {
            let message = "the connection has this key already; it is left out";
            context.report.warn(&path, message);
        } else {
            keys.push(key);
        }
    }
    keys
}
