//! One call to a token endpoint.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER,
};
use http::{HeaderMap, Method, Request, Uri};
use secrecy::{ExposeSecret, SecretString};
use shared_proto::clock::Millis;
use shared_proto::hint::retry_after_ms;
use shared_proto::token::{Answer, CALL_MS, read_answer, request};
use tokio::time::timeout;

use super::Setup;
use crate::timer::limit;
use crate::upstream::{CallError, Single};

/// Bytes of an answer that are read: two tokens of any kind, and some words.
const MAX_ANSWER: usize = 256 * 1024;

/// Spends `refresh`, by the account's own way out. The answer, and what the
/// endpoint asks to wait, in ms. Nothing of either is logged.
pub(super) async fn call(
    setup: &Setup,
    refresh: &SecretString,
    sent_at: Millis,
) -> (Answer, Option<u64>) {
    let failed = |code: &str| {
        let code = code.to_owned();
        (Answer::Failed { code }, None)
    };
    let proxy = setup.proxy.as_ref();
    let proxy = proxy.map(ExposeSecret::expose_secret);
    let Ok(client) = Single::through(proxy, setup.connect_ms) else {
        return failed("proxy");
    };
    let Some(request) = grant(setup, refresh) else {
        return failed("bad_address");
    };
    let calling = client.call(request, MAX_ANSWER);
    let Ok(answered) = timeout(Duration::from_millis(CALL_MS), calling).await else {
        return failed("timeout");
    };
    match answered {
        Ok(answer) => {
            let status = answer.status().as_u16();
            let wait_ms = asked_wait(answer.headers(), sent_at);
            let read = read_answer(status, answer.body(), refresh, sent_at);
            (read, wait_ms)
        }
        Err(CallError::Connect) => failed("connect"),
        Err(CallError::Broken) => failed("broken"),
    }
}

fn grant(setup: &Setup, refresh: &SecretString) -> Option<Request<Bytes>> {
    let grant = request(&setup.endpoint, refresh);
    let body = Bytes::from(grant.body.expose_secret().to_owned());
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::try_from(&setup.endpoint.url).ok()?;
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(grant.content_type));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(authorization) = grant.authorization {
        let mut value = HeaderValue::try_from(authorization.expose_secret()).ok()?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    Some(request)
}

/// What `Retry-After` asks to wait, ms; a second at least.
fn asked_wait(headers: &HeaderMap, now: Millis) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let wait = limit(retry_after_ms(text, now)?.max(1000));
    u64::try_from(wait.as_millis()).ok()
}
