//! One failure in the client's protocol.

use shared_proto::failure::{Blame, ErrorType, Failure, Reason};
use shared_proto::protocol::Protocol;

use crate::http::reply::ClientError;
use crate::request::pick::Candidate;

/// Longest code of an upstream's own that a client sees, in bytes.
const MAX_CODE: usize = 64;

/// The router's own codes, sorted: none of them is ever an upstream's word.
const OWN_CODES: &[&str] = &[
    "all_accounts_inactive",
    "all_models_failed",
    "all_targets_cooling_down",
    "connection_not_allowed",
    "connection_not_found",
    "context_length_exceeded",
    "cross_site_request",
    "empty_answer",
    "incomplete_body",
    "insufficient_quota",
    "internal_error",
    "invalid_api_key",
    "invalid_body",
    "invalid_json",
    "invalid_model",
    "invalid_query",
    "invalid_settings",
    "invalid_stream",
    "lease_not_found",
    "management_forbidden",
    "max_attempts_exceeded",
    "method_not_allowed",
    "missing_api_key",
    "missing_model",
    "model_access_denied",
    "model_not_allowed",
    "model_not_found",
    "model_unavailable",
    "no_executable_targets",
    "no_upstream_response",
    "not_found",
    "protocol_not_offered",
    "provider_circuit_open",
    "provider_not_found",
    "quota_exhausted",
    "rate_limit_exceeded",
    "request_not_found",
    "request_timeout",
    "request_too_large",
    "server_error",
    "server_is_overloaded",
    "server_overloaded",
    "server_shutting_down",
    "service_not_running",
    "settings_busy",
    "settings_changed",
    "settings_newer",
    "settings_too_large",
    "stopping",
    "store_unavailable",
    "too_many_tools",
    "unsupported_content_encoding",
    "upstream_auth_failed",
    "upstream_blocked",
    "upstream_error",
    "upstream_rejected_request",
    "upstream_timeout",
    "upstream_unavailable",
];

/// A failure in the client's protocol: which status and code stand for it.
pub(crate) fn tell(failure: &Failure, protocol: Protocol) -> ClientError {
    let messages = protocol == Protocol::Messages;
    let of_request = failure.blame == Blame::Request;
    let (status, code): (u16, &str) = match (failure.error_type, failure.reason) {
        (Some(ErrorType::ContextOverflow), _) => (400, "context_length_exceeded"),
        (Some(ErrorType::ModelNotFound), _) | (_, Reason::NotFound) => (404, "model_not_found"),
        (Some(ErrorType::EmptyContent), _) => (502, "empty_answer"),
        // Client libraries would send it again after a 429, in vain.
        (_, Reason::RateLimitExceeded) if of_request => (400, "upstream_rejected_request"),
        (_, Reason::QuotaExhausted) if of_request => (402, "insufficient_quota"),
        (_, Reason::RateLimitExceeded) => (429, "rate_limit_exceeded"),
        (_, Reason::QuotaExhausted) if failure.terminal.is_some() && messages => {
            (402, "insufficient_quota")
        }
        (_, Reason::QuotaExhausted) if failure.terminal.is_some() => (429, "insufficient_quota"),
        (_, Reason::QuotaExhausted) => (429, "quota_exhausted"),
        (Some(ErrorType::FingerprintRejection), _) => (503, "upstream_blocked"),
        // The client's own key is fine: the accounts behind the router are not.
        (_, Reason::AuthError) if failure.blame == Blame::Model => (403, "model_access_denied"),
        (_, Reason::AuthError) => (503, "upstream_auth_failed"),
        (_, Reason::ServiceNotRunning) => (503, "service_not_running"),
        _ if of_request => request_scoped(failure),
        // Some say with a 429 that they are busy: it is not the client's pace.
        (_, Reason::ModelCapacity) if matches!(failure.status, 400..=428 | 430..=499) => {
            (failure.status, "model_unavailable")
        }
        (_, Reason::ModelCapacity) => (if messages { 529 } else { 503 }, "server_is_overloaded"),
        (_, Reason::ServerError | Reason::Unknown) => server_side(failure, messages),
    };
    let mut error = ClientError::new(status, code, &failure.message);
    let theirs = failure.upstream_code.as_deref();
    if let Some(theirs) = theirs.filter(|code| of_request && is_fit(code)) {
        theirs.clone_into(&mut error.code);
    }
    error
}

/// Whether an upstream's code may stand for ours: a word, and none that the
/// router says itself.
pub(super) fn is_fit(code: &str) -> bool {
    let inside = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(&b);
    code.len() <= MAX_CODE
        && code.starts_with(|c: char| c.is_ascii_lowercase())
        && code.bytes().all(inside)
        && OWN_CODES.binary_search(&code).is_err()
}

fn request_scoped(failure: &Failure) -> (u16, &'static str) {
    match failure.status {
        // Our client has not left, so it can't be told that it has.
        499 => (502, "server_error"),
        429 => (400, "upstream_rejected_request"),
        status @ 400..500 => (status, "upstream_rejected_request"),
        _ => (400, "upstream_rejected_request"),
    }
}

fn server_side(failure: &Failure, messages: bool) -> (u16, &'static str) {
    match failure.status {
        504 | 408 | 524 => (504, "upstream_timeout"),
        503 => (503, "upstream_unavailable"),
        status @ 400..500 => (status, "upstream_error"),
        _ => (if messages { 500 } else { 502 }, "server_error"),
    }
}

/// A failure after the commit point, told inside the stream.
pub(crate) fn in_stream(
    failure: &Failure,
    candidate: &Candidate,
    protocol: Protocol,
) -> ClientError {
    let provider = candidate.slot.provider.id.as_str();
    let mut error = tell(failure, protocol);
    error.message = format!("the stream of {provider} broke off: {}", failure.message);
    error.provider = Some(provider.to_owned());
    error
}

#[cfg(test)]
mod tests;
