//! Who is calling: client keys, and the admin rule of the management API.

use std::net::IpAddr;
use std::sync::Arc;

use actix_web::HttpRequest;
use secrecy::ExposeSecret as _;
use sha2::{Digest as _, Sha256};
use shared_proto::config::ApiKey;
use shared_proto::lease::LeaseCode;
use subtle::ConstantTimeEq as _;

use super::reply::ClientError;
use crate::routing::Routing;

/// The key a caller presents, from `Authorization: Bearer` or `x-api-key`.
fn presented(request: &HttpRequest) -> Option<&str> {
    let header = |name| request.headers().get(name)?.to_str().ok();
    let bearer = header("authorization").and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer
        .or_else(|| header("x-api-key").map(str::trim))
        .filter(|key| !key.is_empty())
}

fn known<'a>(routing: &'a Routing, key: &str) -> Option<&'a Arc<ApiKey>> {
    // Looked up by hash: what the time of a look-up tells is of the hash only.
    let hash: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    routing.keys.get(&hash)
}

/// Lets a client in. Without configured keys a loopback listener takes every
/// caller; any other address refused to start.
pub(crate) fn client(
    request: &HttpRequest,
    routing: &Routing,
) -> Result<Option<Arc<ApiKey>>, ClientError> {
    if routing.keys.is_empty() {
        return same_site(request).map(|()| None);
    }
    let Some(key) = presented(request) else {
        return Err(ClientError::new(
            401,
            "missing_api_key",
            "no API key was sent; use `Authorization: Bearer KEY` or `x-api-key: KEY`",
        ));
    };
    match known(routing, key) {
        Some(key) => Ok(Some(Arc::clone(key))),
        None => Err(ClientError::new(
            401,
            "invalid_api_key",
            "the API key is not one of this router's (apiKeys)",
        )),
    }
}

/// Lets a client of the lease endpoint in, which always has a key.
pub(crate) fn lessee(request: &HttpRequest, routing: &Routing) -> Result<Arc<ApiKey>, LeaseCode> {
    let key = presented(request).ok_or(LeaseCode::AuthenticationRequired)?;
    let known = known(routing, key).ok_or(LeaseCode::ApiKeyInvalid)?;
    Ok(Arc::clone(known))
}

/// Lets a caller of the management API in: the admin token, a key with the
/// scope `manage` or `admin`, or anybody local when no token is set.
pub(crate) fn manager(
    request: &HttpRequest,
    routing: &Routing,
    loopback_listener: bool,
) -> Result<(), ClientError> {
    let token = routing.config.server.admin_token.as_ref();
    if let Some(key) = presented(request) {
        let is_token = token.is_some_and(|token| {
            let token = token.expose_secret().as_bytes();
            bool::from(token.ct_eq(key.as_bytes()))
        });
        let has_scope = || {
            known(routing, key).is_some_and(|key| {
                let manages = |scope: &String| scope == "manage" || scope == "admin";
                key.scopes.iter().any(manages)
            })
        };
        return if is_token || has_scope() {
            Ok(())
        } else {
            Err(ClientError::new(
                403,
                "management_forbidden",
                "this credential does not manage the router; use server.adminToken or a key with the scope `manage`",
            ))
        };
    }
    let open = token.is_none() && loopback_listener && host_is_loopback(request);
    if open {
        return same_site(request);
    }
    let hint = if token.is_none() && !loopback_listener {
        "management is off: set server.adminToken, or use a key with the scope `manage`"
    } else {
        "send the admin token (server.adminToken) or a key with the scope `manage` as `Authorization: Bearer`"
    };
    Err(ClientError::new(401, "AUTH_001", hint))
}

/// Where no credential is asked for, any web page that somebody on this machine
/// opens could send requests; browsers say so.
fn same_site(request: &HttpRequest) -> Result<(), ClientError> {
    let header = |name| request.headers().get(name)?.to_str().ok();
    let foreign_origin = header("origin").is_some_and(|origin| {
        let host = origin.split_once("://").map_or("", |(_, host)| host);
        !is_loopback(host)
    });
    let cross_site = header("sec-fetch-site").is_some_and(|site| site == "cross-site");
    if foreign_origin || cross_site {
        return Err(ClientError::new(
            403,
            "cross_site_request",
            "a web page of another site sent this; set apiKeys and server.adminToken to let pages in by credential",
        ));
    }
    Ok(())
}

/// A page of another site can reach a loopback listener through a name that
/// it makes resolve to loopback; its `Host` gives it away.
fn host_is_loopback(request: &HttpRequest) -> bool {
    let Some(host) = request.headers().get("host").and_then(|h| h.to_str().ok()) else {
        return false;
    };
    is_loopback(host)
}

/// Whether `host`, with or without a port, is this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
