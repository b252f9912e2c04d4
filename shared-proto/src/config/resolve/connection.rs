//! `connections:`

use std::collections::{BTreeMap, HashMap, HashSet};

use secrecy::ExposeSecret;
use serde_json::{Map, Value as Json};

use crate::catalogue::{self, OwnUrl};
use crate::id::{ConnectionId, ProviderId};
use crate::lane::usable_organization;

use super::super::problem::{Path, shorten};
use super::super::{AuthKind, Connection, Credential, Provider, file};
use super::{Context, ID, check_name, keys, provider, rotation, url};

/// Resolves the connections. A provider whose address only the operator knows
/// takes it from its first connection.
pub(super) fn resolve(
    given: &[file::Connection],
    providers: &mut BTreeMap<ProviderId, Provider>,
    context: &mut Context<'_, '_>,
) -> Vec<Connection> {
    let path = Path::of("connections");
    let mut ids = HashMap::new();
    let mut connections = Vec::with_capacity(given.len());
    for (at, file) in given.iter().enumerate() {
        let path = path.index(at);
        if let Some(id) = &file.id {
            check_name(id, ID, &mut ids, (at, &path.key("id")), context);
        }
        connections.push(one(file, providers, &path, context));
    }
    for connection in &connections {
        if let Some(url) = &connection.base_url
            && let Some(own) = own_url(&connection.provider)
            && let Some(provider) = providers.get_mut(&connection.provider)
            && provider.endpoints.protocols().is_empty()
        {
            for protocol in &own.protocols {
                provider.endpoints.set(*protocol, url);
            }
        }
    }
    connections
}

fn one(
    file: &file::Connection,
    providers: &BTreeMap<ProviderId, Provider>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Connection {
    let provider_id = file.provider.as_deref().unwrap_or_default();
    let base_url = base_url(file, path, context);
    let provider = providers.get(provider_id);
    match provider {
        None if file.provider.is_some() => {
            let message = format!("there is no provider `{}`", shorten(provider_id));
            let known = providers.keys().map(ProviderId::as_str);
            context
                .report
                .unknown(&path.key("provider"), message, provider_id, known);
        }
        None => {}
        Some(provider) => check_address(provider, base_url.as_deref(), path, context),
    }
    let credential = credential(file, provider, path, context);
    let models = file.models.clone().unwrap_or_default();
    check_models(&models, provider_id, &path.key("models"), context);
    let proxy_url = file.proxy_url.as_ref().and_then(|secret| {
        let path = path.key("proxyUrl");
        let secret = context.secret(secret, &path)?;
        url::check_proxy(secret.expose_secret(), &path, context);
        Some(secret)
    });
    let data = file.provider_specific_data.as_ref();
    let specific = data.map_or_else(Map::new, |data| data.switches.clone());
    let specific_path = path.key("providerSpecificData");
    let extra_keys = keys::resolve(data, (&credential, provider), &specific_path, context);
    let simulated = provider.is_some_and(|provider| provider.endpoints.simulated);
    if !simulated {
        let path = specific_path;
        warn_of_switches(&specific, &path, context);
        let messages = provider.is_none_or(|provider| provider.endpoints.anthropic.is_some());
        let oauth = matches!(credential, Credential::Oauth { .. } | Credential::None);
        warn_of_no_wall(&specific, messages && oauth, &path, context);
    }
    let switched_off = || specific.get("disableCooling").and_then(Json::as_bool);
    Connection {
        id: ConnectionId::from(file.id.as_deref().unwrap_or_default()),
        provider: ProviderId::from(provider_id),
        credential,
        enabled: file.enabled.unwrap_or(true),
        priority: file
            .priority
            .map_or(1, |given| u32::try_from(given).unwrap_or(u32::MAX)),
        models,
        max_concurrent: file
            .max_concurrent
            .and_then(|given| u32::try_from(given).ok())
            .filter(|given| *given > 0),
        proxy_url,
        disable_cooling: file.disable_cooling.or_else(switched_off).unwrap_or(false),
        base_url,
        extra_keys,
        rotation: rotation::overrides(data.and_then(|data| data.rotation_overrides.as_ref())),
        provider_specific: specific,
    }
}

/// The connection's own address: its `baseUrl`, else the one among its switches.
fn base_url(file: &file::Connection, path: &Path, context: &mut Context<'_, '_>) -> Option<String> {
    if let Some(text) = &file.base_url {
        return url::base_url(text, &path.key("baseUrl"), context);
    }
    let specific = file.provider_specific_data.as_ref()?;
    let text = specific.switches.get("baseUrl")?.as_str()?;
    let path = path.key("providerSpecificData").key("baseUrl");
    url::base_url(text, &path, context)
}

/// What an address of the provider looks like, where only the operator knows it.
fn own_url(provider: &ProviderId) -> Option<&'static OwnUrl> {
    let entries = catalogue::entries().unwrap_or_default();
    let entry = entries
        .iter()
        .find(|entry| entry.provider.id == *provider)?;
    entry.own_url.as_ref()
}

/// Refuses a connection that has no address, or one that must not have any.
fn check_address(
    provider: &Provider,
    own: Option<&str>,
    path: &Path,
    context: &mut Context<'_, '_>,
) {
    let path = path.key("baseUrl");
    if provider.endpoints.simulated && own.is_some() {
        let message = "a simulated provider answers in the process and has no baseUrl";
        context.report.problem(&path, message);
    }
    let missing = own.is_none() && provider.endpoints.protocols().is_empty();
    if let Some(needed) = own_url(&provider.id)
        && missing
        && !context.report.faulty_below(&path)
    {
        let message = format!(
            "is missing; every customer of `{}` has an address of its own, such as {}",
            provider.id, needed.example
        );
        context.report.problem(&path, message);
    }
}

fn credential(
    file: &file::Connection,
    provider: Option<&Provider>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Credential {
    let kind = provider.map(|provider| provider.auth_kind);
    let name = file.provider.as_deref().unwrap_or_default();
    match (&file.api_key, &file.oauth) {
        (Some(_), Some(_)) => {
            context
                .report
                .problem(path, "takes apiKey or oauth, not both");
            Credential::None
        }
        (Some(key), None) => {
            let path = path.key("apiKey");
            if kind == Some(AuthKind::Oauth) {
                let message =
                    format!("`{name}` takes oauth: {{accessToken: ...}} instead of a key");
                context.report.problem(&path, message);
            }
            context
                .secret(key, &path)
                .map_or(Credential::None, Credential::ApiKey)
        }
        (None, Some(tokens)) => {
            let path = path.key("oauth");
            warn_of_no_refresh(tokens, provider, &path.key("refreshToken"), context);
            oauth(tokens, &path, context)
        }
        (None, None) => {
            let (key, needed) = match kind {
                Some(AuthKind::ApiKey) => ("apiKey", "a key"),
                Some(AuthKind::Oauth) => ("oauth", "an accessToken"),
                Some(AuthKind::None) | None => return Credential::None,
            };
            let path = path.key(key);
            if !context.report.faulty_below(&path) {
                let message = format!("is missing; `{name}` needs {needed}");
                context.report.problem(&path, message);
            }
            Credential::None
        }
    }
}

fn oauth(tokens: &file::Oauth, path: &Path, context: &mut Context<'_, '_>) -> Credential {
    let mut read = |secret: &Option<file::Secret>, key: &str| {
        secret
            .as_ref()
            .and_then(|secret| context.secret(secret, &path.key(key)))
    };
    let access_token = read(&tokens.access_token, "accessToken");
    let refresh_token = read(&tokens.refresh_token, "refreshToken");
    let expires_at_ms = expiry(tokens.expires_at.as_ref(), &path.key("expiresAt"), context);
    access_token.map_or(Credential::None, |access_token| Credential::Oauth {
        access_token,
        refresh_token,
        expires_at_ms,
    })
}

/// Says why a refresh token that is given will not be used.
fn warn_of_no_refresh(
    tokens: &file::Oauth,
    provider: Option<&Provider>,
    path: &Path,
    context: &mut Context<'_, '_>,
) {
    let (Some(_), Some(provider)) = (&tokens.refresh_token, provider) else {
        return;
    };
    if provider.token_endpoint.is_none() {
        let id = &provider.id;
        let message = format!(
            "is not used: nothing says where `{id}` refreshes tokens; give the provider an oauth.tokenUrl"
        );
        context.report.warn(path, message);
    } else if context.variable("OMNIROUTE_SECRET_KEY").is_none() {
        let message = "is not used: OMNIROUTE_SECRET_KEY is not set, and what a refresh brings is stored \
                       encrypted or not at all";
        context.report.warn(path, message);
    }
}

fn expiry(
    given: Option<&file::Instant>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Option<u64> {
    let text = match given? {
        file::Instant::Ms(ms) => return Some(*ms),
        file::Instant::Text(text) => text.clone(),
        file::Instant::Elsewhere(place) => {
            let text = context.secret(place, path)?;
            text.expose_secret().to_owned()
        }
    };
    let time = instant(text.trim());
    if time.is_none() {
        let message = "is no time; write 2026-01-31T12:00:00Z, or ms since 1970";
        context.report.problem(path, message);
    }
    time
}

/// RFC 3339 or digits, as ms since the epoch.
fn instant(text: &str) -> Option<u64> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok();
    }
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

fn check_models(models: &[String], provider: &str, path: &Path, context: &mut Context<'_, '_>) {
    provider::check_models(models, path, context);
    let mut seen = HashSet::new();
    for (at, model) in models.iter().enumerate() {
        let path = path.index(at);
        if !seen.insert(model) {
            let message = format!("`{}` is listed twice", shorten(model));
            context.report.warn(&path, message);
        }
        let own = model
            .strip_prefix(provider)
            .and_then(|rest| rest.strip_prefix('/'));
        if let Some(bare) = own {
            let message = format!(
                "models are listed as the upstream names them; `{}` takes requests for `{provider}/{}`, \
                 not for `{provider}/{}`",
                shorten(model),
                shorten(model),
                shorten(bare)
            );
            context.report.warn(&path, message);
        }
    }
}

/// Says that the wall of a limit is of no account where there is none.
fn warn_of_no_wall(
    specific: &Map<String, Json>,
    has_wall: bool,
    path: &Path,
    context: &mut Context<'_, '_>,
) {
    for name in ["lowPriorityMode", "autoLimitReset"] {
        if !has_wall && specific.get(name) == Some(&Json::Bool(true)) {
            let message = "is not used: only subscription accounts of the Messages protocol, \
                           with `oauth:`, have such a limit";
            context.report.warn(&path.key(name), message);
        }
    }
}

/// Nothing is ignored in silence: says which switches do nothing.
fn warn_of_switches(specific: &Map<String, Json>, path: &Path, context: &mut Context<'_, '_>) {
    for (name, value) in specific {
        let path = path.key(name);
        let wrong = match name.as_str() {
            "baseUrl" => !value.is_string(),
            "disableCooling" | "lowPriorityMode" | "autoLimitReset" => !value.is_boolean(),
            "organizationUUID" | "organization_uuid" => {
                let text = value.as_str().unwrap_or_default();
                if usable_organization(text).is_none() {
                    let message = "expected the organization's UUID";
                    context.report.problem(&path, message);
                }
                continue;
            }
            _ => {
                context
                    .report
                    .warn(&path, "no known switch; kept, but nothing acts on it");
                continue;
            }
        };
        if wrong {
            let wanted = if name == "baseUrl" {
                "text"
            } else {
                "true or false"
            };
            context.report.problem(&path, format!("expected {wanted}"));
        }
    }
}
