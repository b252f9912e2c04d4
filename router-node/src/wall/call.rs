//! The calls that ask for a reset. Nothing of them is logged but how they ended.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::{HeaderName, Method, Request, Uri};
use secrecy::ExposeSecret;
use shared_proto::clock::Millis;
use shared_proto::lane::{Offered, ResetOutcome, organization_of, read_claim, read_status};
use tokio::time::timeout;

use super::Wall;
use crate::upstream::Single;

/// How long a question may take.
const ASK: Duration = Duration::from_secs(5);
/// How long the reset itself may take.
const CLAIM: Duration = Duration::from_secs(25);
/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 256 * 1024;
/// What accounts with tokens have to name.
const BETA: &str = "oauth-2025-04-20";

const STATUS: &str = "/api/oauth/usage?at_wall=1&skip_spend=1";
const ACCOUNT: &str = "/api/claude_cli/bootstrap";

/// Asks for a reset with `credential`: how that ended, and when it may be asked
/// for again, as announced.
pub(super) async fn ask(
    wall: &Wall,
    credential: &(HeaderName, HeaderValue),
) -> (ResetOutcome, Option<Millis>) {
    let proxy = wall.proxy.as_ref();
    let proxy = proxy.map(ExposeSecret::expose_secret);
    let Ok(client) = Single::through(proxy, wall.connect_ms) else {
        return (ResetOutcome::StatusUnreadable, None);
    };
    let caller = Caller {
        wall,
        credential,
        client,
    };
    let offered = caller.call(STATUS, None, ASK).await;
    match offered.map(|(status, body)| read_status(status, &body)) {
        Some(Offered::Yes) => {}
        Some(Offered::No(next_at)) => return (ResetOutcome::NotOffered, next_at),
        Some(Offered::Unreadable) | None => return (ResetOutcome::StatusUnreadable, None),
    }
    let Some(organization) = caller.organization().await else {
        return (ResetOutcome::NoOrganization, None);
    };
    let path = format!("/api/organizations/{organization}/reset_rate_limits");
    let program = Bytes::from_static(br#"{"program":"juniper_tide"}"#);
    match caller.call(&path, Some(program), CLAIM).await {
        Some((status, body)) => read_claim(status, &body),
        None => (ResetOutcome::Error, None),
    }
}

struct Caller<'a> {
    wall: &'a Wall,
    credential: &'a (HeaderName, HeaderValue),
    client: Single,
}

impl Caller<'_> {
    async fn organization(&self) -> Option<String> {
        if let Some(named) = &self.wall.organization {
            return Some(named.clone());
        }
        let (status, body) = self.call(ACCOUNT, None, ASK).await?;
        organization_of(&body).filter(|_| (200..300).contains(&status))
    }

    /// A POST of `body`, or a GET without one. `None` when there is no answer in time.
    async fn call(
        &self,
        path: &str,
        body: Option<Bytes>,
        within: Duration,
    ) -> Option<(u16, Bytes)> {
        let posts = body.is_some();
        let mut request = Request::new(body.unwrap_or_default());
        *request.uri_mut() = Uri::try_from(format!("{}{path}", self.wall.api)).ok()?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert("anthropic-beta", HeaderValue::from_static(BETA));
        let (name, value) = self.credential;
        headers.insert(name, value.clone());
        if posts {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *request.method_mut() = Method::POST;
        }
        let calling = self.client.call(request, MAX_ANSWER);
        let answer = timeout(within, calling).await.ok()?.ok()?;
        Some((answer.status().as_u16(), answer.into_body()))
    }
}
