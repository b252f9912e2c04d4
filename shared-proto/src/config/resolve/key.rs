//! `apiKeys:`

use std::collections::HashMap;

use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};

use crate::id::{ApiKeyId, ConnectionId};

use super::super::problem::{Path, shorten};
use super::super::{ApiKey, MANAGED_SCOPE, file};
use super::{Context, ID, World, check_name, length};

/// Scopes that mean something, with whether this version acts on them.
const SCOPES: [(&str, bool); 7] = [
    ("manage", true),
    ("admin", true),
    (MANAGED_SCOPE, true),
    ("mcp:connect", false),
    ("self:usage", false),
    ("self:account-quota", false),
    ("policy:bypass-provider-quota", false),
];
/// A shorter key is worth a warning.
const SHORT_KEY: usize = 20;

/// Resolves the keys; each is kept as its hash.
pub(super) fn resolve(
    given: &[file::ApiKey],
    world: &World<'_>,
    context: &mut Context<'_, '_>,
) -> Vec<ApiKey> {
    let path = Path::of("apiKeys");
    let mut ids = HashMap::new();
    let mut hashes: HashMap<[u8; 32], usize> = HashMap::new();
    let mut keys = Vec::with_capacity(given.len());
    for (at, key) in given.iter().enumerate() {
        let path = path.index(at);
        if let Some(id) = &key.id {
            check_name(id, ID, &mut ids, (at, &path.key("id")), context);
        }
        let sha256 = hash(key, &path, context);
        if let Some(sha256) = sha256
            && let Some(first) = hashes.insert(sha256, at)
        {
            let message = format!("the same key as number {}", first.saturating_add(1));
            context.report.problem(&path, message);
        }
        check_scopes(key, &path, context);
        check_managed(key, &path, context);
        let allowed_connections = key.allowed_connections.as_ref().map(|allowed| {
            check_connections(
                allowed,
                is_managed(key),
                &path.key("allowedConnections"),
                world,
                context,
            );
            allowed
                .iter()
                .map(|id| ConnectionId::from(id.as_str()))
                .collect()
        });
        keys.push(ApiKey {
            id: ApiKeyId::from(key.id.as_deref().unwrap_or_default()),
            sha256: sha256.unwrap_or_default(),
            scopes: key.scopes.clone().unwrap_or_default(),
            allowed_connections,
            allowed_models: key.allowed_models.clone().unwrap_or_default(),
        });
    }
    keys
}

fn hash(key: &file::ApiKey, path: &Path, context: &mut Context<'_, '_>) -> Option<[u8; 32]> {
    match (&key.sha256, &key.key) {
        (Some(_), Some(_)) => {
            context
                .report
                .problem(path, "takes sha256 or key, not both");
            None
        }
        (None, None) => {
            if !context.report.faulty_below(path) {
                let message = "needs sha256 or key; `router-node keygen` prints both";
                context.report.problem(path, message);
            }
            None
        }
        (Some(text), None) => {
            let hash = from_hex(text.trim());
            if hash.is_none() {
                let message = format!(
                    "a SHA-256 is 64 hexadecimal digits; this has {} characters",
                    text.trim().chars().count()
                );
                context.report.problem(&path.key("sha256"), message);
            }
            hash
        }
        (None, Some(secret)) => {
            let path = path.key("key");
            let secret = context.secret(secret, &path)?;
            let length = length(&secret);
            if length < SHORT_KEY {
                let message = format!(
                    "shorter than {SHORT_KEY} characters, so it might be guessed; \
                     `router-node keygen` makes a good one"
                );
                context.report.warn(&path, message);
            }
            Some(Sha256::digest(secret.expose_secret().as_bytes()).into())
        }
    }
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != hash.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(pairs) {
        if !pair.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let digits = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(hash)
}

fn check_scopes(key: &file::ApiKey, path: &Path, context: &mut Context<'_, '_>) {
    let path = path.key("scopes");
    for (at, scope) in key.scopes.iter().flatten().enumerate() {
        let path = path.index(at);
        match SCOPES.iter().find(|(known, _)| known == scope) {
            Some((_, true)) => {}
            Some((_, false)) => {
                let message = "accepted, but this version does not act on it yet";
                context.report.warn(&path, message);
            }
            None => {
                let message = format!("`{}` is no known scope and grants nothing", shorten(scope));
                let known = SCOPES.iter().map(|(known, _)| *known);
                context.report.warn_unknown(&path, message, scope, known);
            }
        }
    }
}

fn is_managed(key: &file::ApiKey) -> bool {
    let mut scopes = key.scopes.iter().flatten();
    scopes.any(|scope| scope == MANAGED_SCOPE)
}

/// A key of leases needs connections to lease. The key is kept, so that its
/// holder is told what is wrong.
fn check_managed(key: &file::ApiKey, path: &Path, context: &mut Context<'_, '_>) {
    let listed = key.allowed_connections.as_ref().map_or(0, Vec::len);
    if is_managed(key) && listed == 0 {
        let scopes = key.scopes.iter().flatten();
        let at = scopes.take_while(|scope| *scope != MANAGED_SCOPE).count();
        let message = "needs a list of the connections to lease; \
             without one every request with this key is refused";
        context.report.warn(&path.key("scopes").index(at), message);
    }
}

fn check_connections(
    allowed: &[String],
    managed: bool,
    path: &Path,
    world: &World<'_>,
    context: &mut Context<'_, '_>,
) {
    if allowed.is_empty() && !managed {
        let message = "an empty list allows no connection; leave it out to allow all";
        context.report.warn(path, message);
    }
    for (at, id) in allowed.iter().enumerate() {
        if !world.by_id.contains_key(id.as_str()) {
            let message = format!("there is no connection `{}`", shorten(id));
            let path = path.index(at);
            context
                .report
                .unknown(&path, message, id, world.connection_ids());
        }
    }
}
