//! How a client reaches an upstream: directly or through a proxy, with TLS
//! where the URL says so, within the connect timeout.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use tokio::time::{Instant, timeout};
use tower_service::Service;

use super::proxy::{Proxy, ProxyError, ProxyFault};

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The connect timeout passed.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0} ms")]
pub(super) struct ConnectTimedOut(u64);

/// A transport of any kind.
pub(super) trait Transport: Read + Write + Connection + Send + Unpin {}
impl<T: Read + Write + Connection + Send + Unpin> Transport for T {}

/// Whether a connection has served a request before.
#[derive(Clone, Debug, Default)]
pub(super) struct Served(Arc<AtomicBool>);

impl Served {
    /// It has, from now on.
    pub(super) fn mark(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it has.
    pub(super) fn is_marked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connected transport.
pub(super) struct Io {
    transport: Box<dyn Transport>,
    served: Served,
    /// A proxy reads the requests and wants whole addresses in them.
    proxied: bool,
}

impl Io {
    /// One that nothing was sent on yet.
    pub(super) fn new(transport: impl Transport + 'static) -> Self {
        Self {
            transport: Box::new(transport),
            served: Served::default(),
            proxied: false,
        }
    }

    /// The same, at whose other end a proxy reads the requests.
    pub(super) fn read_by_a_proxy(mut self) -> Self {
        self.proxied = true;
        self
    }
}

/// Makes connections along one route.
#[derive(Clone)]
pub(super) struct Connector {
    inner: Inner,
    connect_ms: u64,
}

#[derive(Clone)]
enum Inner {
    Direct(HttpsConnector<HttpConnector>),
    Proxied(Box<Proxy>),
}

impl Connector {
    /// A connector through `proxy`, if there is one. A `connect_ms` of 0 never gives up.
    pub(super) fn new(proxy: Option<&str>, connect_ms: u64) -> Result<Self, ProxyError> {
        let inner = match proxy {
            None => Inner::Direct(tls(tcp())),
            Some(url) => Inner::Proxied(Box::new(Proxy::new(url)?)),
        };
        Ok(Self { inner, connect_ms })
    }

    /// What a request to `to` has to carry for a proxy that reads it.
    pub(super) fn login_for(&self, to: &Uri) -> Option<&HeaderValue> {
        match &self.inner {
            Inner::Direct(_) => None,
            Inner::Proxied(proxy) => proxy.login_for(to),
        }
    }

    /// Whether a proxy reads requests to `to` and may answer them itself.
    pub(super) fn is_read(&self, to: &Uri) -> bool {
        match &self.inner {
            Inner::Direct(_) => false,
            Inner::Proxied(proxy) => proxy.reads(to),
        }
    }
}

pub(super) fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    // A half-open connection (sleep, a NAT that forgot it) shows within two minutes.
    connector.set_keepalive(Some(Duration::from_mins(1)));
    connector.set_keepalive_interval(Some(Duration::from_secs(20)));
    connector.set_keepalive_retries(Some(3));
    connector
}

/// TLS as servers of HTTP/1.1 understand it, such as proxies.
pub(super) fn tls_for_http1<C>(inner: C) -> HttpsConnector<C> {
    hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config((*tls_config()).clone())
        .https_or_http()
        .enable_http1()
        .wrap_connector(inner)
}

fn tls<C>(inner: C) -> HttpsConnector<C> {
    hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config((*tls_config()).clone())
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(inner)
}

/// Built on first use: a node that only talks to plain servers never pays for it.
fn tls_config() -> Arc<rustls::ClientConfig> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    CONFIG
        .get_or_init(|| {
            let mut roots = rustls::RootCertStore::empty();
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            // A company's own authority counts too; one that can't be read is not our failure.
            let own = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(own.certs);
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let builder = rustls::ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(rustls::ALL_VERSIONS);
            match builder {
                Ok(builder) => {
                    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
                }
                // The ring provider supports every version; this arm keeps us total.
                Err(_) => Arc::new(
                    rustls::ClientConfig::builder()
                        .with_root_certificates(roots)
                        .with_no_client_auth(),
                ),
            }
        })
        .clone()
}

impl Service<Uri> for Connector {
    type Response = Io;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Io, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let limit = self.connect_ms;
        match &mut self.inner {
            Inner::Direct(connector) => {
                let connecting = connector.call(to);
                Box::pin(async move {
                    let within = within(limit, connecting).await;
                    let transport = within.ok_or(ConnectTimedOut(limit))??;
                    Ok(Io::new(transport))
                })
            }
            Inner::Proxied(proxy) => {
                let connecting = proxy.connect(&to);
                Box::pin(async move {
                    let began = Instant::now();
                    let stands = within(limit, connecting).await;
                    let io = stands.ok_or(ProxyFault::Unreachable)??;
                    // What is left of the time is the upstream's.
                    let left = match limit {
                        0 => 0,
                        limit => limit.saturating_sub(millis(began)).max(1),
                    };
                    let secured = within(left, secured(io, to)).await;
                    secured.ok_or(ConnectTimedOut(limit))?
                })
            }
        }
    }
}

/// What `work` gives within `limit` ms; 0 never gives up.
async fn within<T>(limit: u64, work: impl Future<Output = T>) -> Option<T> {
    match limit {
        0 => Some(work.await),
        limit => timeout(Duration::from_millis(limit), work).await.ok(),
    }
}

fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// TLS with the upstream of `to` over what leads there, where its URL says so.
async fn secured(io: Io, to: Uri) -> Result<Io, BoxError> {
    if to.scheme() != Some(&http::uri::Scheme::HTTPS) {
        return Ok(io);
    }
    let secured = tls(Standing(Some(io))).call(to).await?;
    Ok(Io::new(secured))
}

/// A connection that stands already, as a connector.
struct Standing(Option<Io>);

impl Service<Uri> for Standing {
    type Response = Io;
    type Error = BoxError;
    type Future = std::future::Ready<Result<Io, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let once = || BoxError::from("a connection is used once");
        std::future::ready(self.0.take().ok_or_else(once))
    }
}

// === impl Io ===

impl Connection for Io {
    fn connected(&self) -> Connected {
        let connected = self.transport.connected().extra(self.served.clone());
        connected.proxy(self.proxied)
    }
}

impl Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.transport).poll_read(cx, buf)
    }
}

impl Write for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut *self.transport).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.transport).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.transport).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut *self.transport).poll_write_vectored(cx, bufs)
    }
}
