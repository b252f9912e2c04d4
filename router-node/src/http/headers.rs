//! Which headers cross the router, in each direction.
//!
//! Towards the upstream: everything the client said except who it is, what it
//! says to us, and what belongs to its own hop. Towards the client: everything
//! the upstream said except what belongs to its hop or tells of the account.

use actix_web::http::header::HeaderMap as ClientHeaders;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// Request headers that never reach an upstream, lowercased and sorted.
const NOT_UPSTREAM: &[&str] = &[
    "accept-encoding",
    "anthropic-usage-limit",
    "api-key",
    "authorization",
    "baggage",
    "cf-connecting-ip",
    "connection",
    "content-encoding",
    "content-length",
    "cookie",
    "cookie2",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "session-id",
    "session_id",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "true-client-ip",
    "upgrade",
    "via",
    "x-api-key",
    "x-client-ip",
    "x-codex-session-id",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-goog-api-key",
    "x-real-ip",
    "x-request-id",
    "x-session-id",
    "x_session_id",
];

/// Response headers that never reach a client, lowercased and sorted.
const NOT_CLIENT: &[&str] = &[
    "alt-svc",
    "anthropic-organization-id",
    "connection",
    "content-encoding",
    "content-length",
    "date",
    "keep-alive",
    "openai-organization",
    "openai-project",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "report-to",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "server",
    "set-cookie",
    "set-cookie2",
    "strict-transport-security",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "x-request-id",
];

/// Prefixes with the same meaning. The account's limits are its own business:
/// a client that reads them would block itself on one account of many.
const NOT_CLIENT_PREFIXES: &[&str] = &[
    "anthropic-ratelimit-",
    "x-ratelimit-",
    "x-codex-",
    "x-omniroute-",
];

/// Client headers kept for one upstream request; past it the rest is dropped.
const MAX_FORWARDED: usize = 64;

/// What the client said that an upstream may hear.
pub(crate) fn towards_upstream(client: &ClientHeaders) -> HeaderMap {
    let hop = named_by_connection(client);
    let mut out = HeaderMap::with_capacity(16);
    for (name, value) in client {
        let name = name.as_str();
        let dropped = NOT_UPSTREAM.binary_search(&name).is_ok()
            || name.starts_with("x-omniroute-")
            || hop.iter().any(|hop| hop == name);
        if dropped || out.len() >= MAX_FORWARDED {
            continue;
        }
        // Both libraries hold the same grammar, so neither conversion fails.
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_bytes()),
            HeaderValue::from_bytes(value.as_bytes()),
        ) {
            out.append(name, value);
        }
    }
    out
}

/// Header names that `Connection` ties to the client's hop.
fn named_by_connection(client: &ClientHeaders) -> Vec<String> {
    let values = client.get_all("connection");
    hop_names(values.filter_map(|value| value.to_str().ok()))
}

/// The same for the upstream's hop.
pub(crate) fn named_by_upstream(upstream: &HeaderMap) -> Vec<String> {
    let values = upstream.get_all(http::header::CONNECTION).iter();
    hop_names(values.filter_map(|value| value.to_str().ok()))
}

fn hop_names<'a>(values: impl Iterator<Item = &'a str>) -> Vec<String> {
    values
        .flat_map(|value| value.split(','))
        .map(|token| token.trim().to_ascii_lowercase())
        .filter(|token| !matches!(token.as_str(), "" | "keep-alive" | "close"))
        .collect()
}

/// Whether a response header of an upstream may reach the client.
pub(crate) fn reaches_client(name: &str) -> bool {
    NOT_CLIENT.binary_search(&name).is_err()
        && !NOT_CLIENT_PREFIXES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// The headers of an upstream's answer for the classifier: names lowercased,
/// values as text, bounded.
pub(crate) fn for_classifier(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .take(128)
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), value.chars().take(1024).collect())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{NOT_CLIENT, NOT_UPSTREAM};

    #[test]
    fn the_lists_are_sorted_for_the_binary_search() {
        assert!(NOT_CLIENT.is_sorted());
        assert!(NOT_UPSTREAM.is_sorted());
    }
}
