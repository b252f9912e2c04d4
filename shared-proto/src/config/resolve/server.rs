//! `server:` and `store:`, with what variables and options say about them.

use std::net::{Ipv4Addr, SocketAddr};

use secrecy::SecretString;

use super::super::problem::Path;
use super::super::report::{From, Origin};
use super::super::{Server, Store, StoreUrl, file};
use super::{Context, NameRule, length, url};

/// Most bytes of request bodies under way, unless one body may be larger.
const MAX_BODY_MEMORY: u64 = 1 << 30;
/// A shorter admin token is worth a warning.
const SHORT_TOKEN: usize = 16;

/// Resolves `server:`; `has_keys` says whether clients need a key.
pub(super) fn server(file: file::Server, has_keys: bool, context: &mut Context<'_, '_>) -> Server {
    let path = Path::of("server");
    let at = path.key("listen");
    let option = Some(("--listen", context.overrides.listen.as_ref()));
    let (text, listen_from) = context.first_of(option, "OMNIROUTE_LISTEN", (file.listen, at));
    let built_in = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
    let listen = text.map_or(Some(built_in), |text| {
        url::listen(&text, &listen_from, context)
    });
    let at = path.key("adminListen");
    let (text, admin_from) =
        context.first_of(None, "OMNIROUTE_ADMIN_LISTEN", (file.admin_listen, at));
    let admin_listen = text.and_then(|text| url::listen(&text, &admin_from, context));
    let admin_token = admin_token(file.admin_token.as_ref(), &path, context);

    if let Some(listen) = listen {
        check_exposure(listen, &listen_from, has_keys, context);
        if admin_listen == Some(listen) && listen.port() != 0 {
            let message = "is the address of the client API; leave it out to serve both there";
            context.report.problem_of(&admin_from, message);
        }
    }
    let (management, from) = match admin_listen {
        Some(address) => (Some(address), &admin_from),
        None => (listen, &listen_from),
    };
    if let Some(address) = management
        && !address.ip().is_loopback()
        && admin_token.is_none()
    {
        let message = format!(
            "management stays off at {address}, except for keys with the scope `manage`: \
             there is no server.adminToken"
        );
        context.report.warn_of(from, message);
    }
    let max_body_bytes = file.max_body_bytes.unwrap_or(33_554_432);
    let max_body_memory_bytes = file
        .max_body_memory_bytes
        .unwrap_or_else(|| MAX_BODY_MEMORY.max(max_body_bytes));
    if max_body_memory_bytes < max_body_bytes {
        let message = format!(
            "{max_body_memory_bytes} is less than server.maxBodyBytes ({max_body_bytes}): \
             the largest body would never be taken"
        );
        let path = path.key("maxBodyMemoryBytes");
        context.report.problem(&path, message);
    }
    let bytes = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Server {
        listen: listen.unwrap_or(built_in),
        admin_listen,
        admin_token,
        max_body_bytes: bytes(max_body_bytes),
        max_body_memory_bytes: bytes(max_body_memory_bytes),
        max_response_bytes: bytes(file.max_response_bytes.unwrap_or(67_108_864)),
        drain_timeout_ms: file.drain_timeout_ms.unwrap_or(30_000),
        body_idle_timeout_ms: file.body_idle_timeout_ms.unwrap_or(30_000),
        keep_alive_ms: file.keep_alive_ms.unwrap_or(15_000),
        early_keep_alive: file.early_keep_alive.unwrap_or(true),
        workers: file
            .workers
            .map(|count| usize::try_from(count).unwrap_or(usize::MAX)),
    }
}

/// An address that others reach needs keys.
fn check_exposure(listen: SocketAddr, from: &From, has_keys: bool, context: &mut Context<'_, '_>) {
    // A faulty list of keys is not the absence of keys.
    let keys_are_faulty = context.report.faulty_below(&Path::of("apiKeys"));
    if listen.ip().is_loopback() || has_keys || keys_are_faulty {
        return;
    }
    let message = format!(
        "{listen} can be reached from other machines, and no apiKeys are configured: add one \
         (`router-node keygen` prints a key and its sha256) or listen on 127.0.0.1:{}",
        listen.port()
    );
    context.report.problem_of(from, message);
}

fn admin_token(
    given: Option<&file::Secret>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> Option<SecretString> {
    let variable = "OMNIROUTE_ADMIN_TOKEN";
    let (token, from) = if let Some(text) = context.variable(variable) {
        let from = From::Outside(Origin::Variable(variable));
        let token = text.trim();
        if token.chars().any(char::is_control) {
            let message = "holds a line break or another control character";
            context.report.problem_of(&from, message);
            return None;
        }
        (SecretString::from(token), from)
    } else {
        let path = path.key("adminToken");
        (context.secret(given?, &path)?, From::File(path))
    };
    if length(&token) < SHORT_TOKEN {
        let message = format!("shorter than {SHORT_TOKEN} characters; use a longer, random one");
        context.report.warn_of(&from, message);
    }
    Some(token)
}

/// Resolves `store:`.
pub(super) fn store(file: file::Store, context: &mut Context<'_, '_>) -> Store {
    let path = Path::of("store");
    let option = Some(("--store", context.overrides.store.as_ref()));
    let at = path.key("url");
    let (text, from) = context.first_of(option, "OMNIROUTE_STORE_URL", (file.url, at));
    let text = text.unwrap_or_else(|| "embedded:./omniroute-data".to_owned());
    let url = match text.trim().parse() {
        Ok(url) => url,
        Err(fault) => {
            context.report.problem_of(&from, fault);
            StoreUrl::Memory
        }
    };
    let rule = NameRule {
        longest: 64,
        besides: "-_.",
    };
    let prefix = file.prefix.unwrap_or_else(|| "omniroute".to_owned());
    if !rule.fits(&prefix) {
        context.report.problem(&path.key("prefix"), rule.in_words());
    }
    Store { url, prefix }
}
