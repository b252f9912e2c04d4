//! Addresses: base URLs, proxies, listeners.

use std::net::{Ipv4Addr, SocketAddr};

use super::super::problem::{Path, shorten};
use super::super::report::From;
use super::{Context, World};

/// The parts of `scheme://host[:port][/path]`.
pub(super) struct Url<'a> {
    pub(super) scheme: String,
    pub(super) has_user: bool,
    pub(super) host: &'a str,
    pub(super) port: Option<u16>,
}

impl<'a> Url<'a> {
    /// Splits an absolute URL; the error says what is wrong with it and holds none of it.
    pub(super) fn parse(text: &'a str) -> Result<Self, &'static str> {
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("a URL has no spaces");
        }
        let (scheme, rest) = text
            .split_once("://")
            .ok_or("a URL begins with its scheme, such as https://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = rest.get(..end).unwrap_or_default();
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        let (host, port) = if let Some(inner) = address.strip_prefix('[') {
            let (host, port) = inner.split_once(']').ok_or("the address lacks its `]`")?;
            (
                host,
                port.strip_prefix(':')
                    .or_else(|| (!port.is_empty()).then_some("?")),
            )
        } else {
            match address.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            }
        };
        if host.is_empty() {
            return Err("the URL has no host");
        }
        let port = match port {
            None => None,
            Some(port) => Some(
                port.parse()
                    .map_err(|_| "the URL's port is not a number up to 65535")?,
            ),
        };
        Ok(Self {
            scheme: scheme.to_ascii_lowercase(),
            has_user: user.is_some(),
            host,
            port,
        })
    }

    /// Whether a connection to the URL would end at `listen`.
    fn leads_to(&self, listen: SocketAddr) -> bool {
        let port = self
            .port
            .unwrap_or(if self.scheme == "https" { 443 } else { 80 });
        if port != listen.port() {
            return false;
        }
        let here = self.host.eq_ignore_ascii_case("localhost");
        let host = self.host.parse().ok();
        let open = listen.ip().is_unspecified();
        let loopback = here || host.is_some_and(|ip: std::net::IpAddr| ip.is_loopback());
        host == Some(listen.ip()) || (loopback && open) || (here && listen.ip().is_loopback())
    }
}

/// A base URL of the file, without the slash at its end.
pub(super) fn base_url(text: &str, path: &Path, context: &mut Context<'_, '_>) -> Option<String> {
    let fault = match Url::parse(text) {
        Err(fault) => Some(fault),
        Ok(url) if url.scheme != "http" && url.scheme != "https" => {
            Some("a base URL begins with http:// or https://")
        }
        Ok(url) if url.has_user => Some("a base URL holds no user and password; use apiKey"),
        Ok(_) if text.contains(['?', '#']) => Some("a base URL has no `?` and no `#`"),
        Ok(_) => None,
    };
    if let Some(fault) = fault {
        context.report.problem(path, fault);
        return None;
    }
    Some(text.trim_end_matches('/').to_owned())
}

/// Whether `text` is an address that can be asked, with a query or without.
pub(super) fn check_endpoint(text: &str, path: &Path, context: &mut Context<'_, '_>) -> bool {
    let fault = match Url::parse(text) {
        Err(fault) => Some(fault),
        Ok(url) if url.scheme != "http" && url.scheme != "https" => {
            Some("the URL begins with http:// or https://")
        }
        Ok(url) if url.has_user => Some("the URL holds no user and password"),
        Ok(_) if text.contains('#') => Some("the URL has no `#`"),
        Ok(_) => None,
    };
    if let Some(fault) = fault {
        context.report.problem(path, fault);
    }
    fault.is_none()
}

/// Checks a proxy's URL; it may hold a password and is never shown.
pub(super) fn check_proxy(text: &str, path: &Path, context: &mut Context<'_, '_>) {
    let known = ["http", "https", "socks5", "socks5h"];
    match Url::parse(text) {
        Err(fault) => context.report.problem(path, fault),
        Ok(url) if !known.contains(&url.scheme.as_str()) => {
            let suggestion = url.scheme.starts_with("socks").then(|| "socks5".to_owned());
            let message = format!(
                "a proxy is http://, https://, socks5:// or socks5h://, not {}://",
                shorten(&url.scheme)
            );
            context.report.problem_with(path, message, suggestion);
        }
        Ok(_) => {}
    }
}

/// An address to listen on. `localhost` is the loopback address of IPv4.
pub(super) fn listen(text: &str, from: &From, context: &mut Context<'_, '_>) -> Option<SocketAddr> {
    let text = text.trim();
    let address = match text.strip_prefix("localhost:") {
        Some(port) => port
            .parse()
            .ok()
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        None => text.parse().ok(),
    };
    if address.is_none() {
        let shown = shorten(text);
        let message = format!(
            "`{shown}` is not an address and port, such as 127.0.0.1:8080, 0.0.0.0:8080 or [::]:8080"
        );
        context.report.problem_of(from, message);
    }
    address
}

/// Refuses connections that lead back to this router.
pub(super) fn refuse_loops(world: &World<'_>, listen: SocketAddr, context: &mut Context<'_, '_>) {
    for (at, connection) in world.connections.iter().enumerate() {
        let Some(provider) = world.providers.get(&connection.provider) else {
            continue;
        };
        let own = connection.base_url.as_deref();
        let loops = |url: &str| Url::parse(url).is_ok_and(|url| url.leads_to(listen));
        let endpoints = &provider.endpoints;
        let of_provider = [
            endpoints.openai.as_deref(),
            endpoints.responses.as_deref(),
            endpoints.anthropic.as_deref(),
        ];
        let found = match own {
            Some(url) => loops(url).then_some(url),
            None => of_provider.into_iter().flatten().find(|url| loops(url)),
        };
        if let Some(url) = found {
            let path = Path::of("connections").index(at);
            let message = format!(
                "{url} is this router's own address; give the connection a baseUrl or listen elsewhere"
            );
            context.report.problem(&path, message);
        }
    }
}
