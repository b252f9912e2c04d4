//! One question to an echo service.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue, USER_AGENT};
use http::{Request, StatusCode, Uri};
use shared_proto::config::EgressRules;
use shared_proto::egress::echo::{MAX_ANSWER, read_answer};
use tokio::time::timeout;

use crate::upstream::Single;

/// The address that a service sees whom we ask through `proxy`, if there is
/// one. `None` for whatever is no answer in time. Nothing of it is logged.
pub(super) async fn ask(rules: &EgressRules, proxy: Option<&str>) -> Option<IpAddr> {
    let client = Single::through(proxy, rules.timeout_ms).ok()?;
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = Uri::try_from(&rules.echo_url).ok()?;
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(USER_AGENT, HeaderValue::from_static("omniroute-router"));
    let calling = client.call(request, MAX_ANSWER);
    let answer = timeout(Duration::from_millis(rules.timeout_ms), calling).await;
    let answer = answer.ok()?.ok()?;
    let is_well = answer.status() == StatusCode::OK;
    read_answer(answer.body()).filter(|_| is_well)
}
