//! Single calls to servers that are no upstreams: nothing is pooled, so a
//! client lives on whatever runtime its caller has.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

use super::connector::Connector;
use super::{Body, ProxyError, shown_to_a_proxy};

/// Why a single call failed; the words name neither address nor content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// DNS, TCP or TLS failed.
    #[error("no connection")]
    Connect,
    /// The connection broke, or the answer was not HTTP or larger than allowed.
    #[error("the connection broke")]
    Broken,
}

/// A client without a pool.
pub(crate) struct Single {
    client: Client<Connector, Body>,
    connector: Connector,
}

impl std::fmt::Debug for Single {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Single")
    }
}

impl Single {
    /// A client whose connections have to stand within `connect_ms`.
    pub(crate) fn new(connect_ms: u64) -> Result<Self, ProxyError> {
        Self::through(None, connect_ms)
    }

    /// The same through a proxy, if one is given.
    pub(crate) fn through(proxy: Option<&str>, connect_ms: u64) -> Result<Self, ProxyError> {
        let connector = Connector::new(proxy, connect_ms)?;
        let client = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(connector.clone());
        Ok(Self { client, connector })
    }

    /// One call and its answer, of at most `max` bytes. It has no time limit of its own.
    pub(crate) async fn call(
        &self,
        request: http::Request<Bytes>,
        max: usize,
    ) -> Result<http::Response<Bytes>, CallError> {
        let mut request = request.map(Body::whole);
        shown_to_a_proxy(&mut request, &self.connector);
        let sent = self.client.request(request).await;
        let (head, body) = sent
            .map_err(|error| {
                if error.is_connect() {
                    CallError::Connect
                } else {
                    CallError::Broken
                }
            })?
            .into_parts();
        let read = Limited::new(body, max).collect().await;
        let read = read.map_err(|_| CallError::Broken)?;
        Ok(http::Response::from_parts(head, read.to_bytes()))
    }
}
