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
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A proxy URL that can't be used. Says nothing of its user or password.
#[derive(Debug, thiserror::Error)]
#[error("the proxy URL is not usable: {0}")]
pub(crate) struct ProxyError(&'static str);

/// The connect timeout passed.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0} ms")]
pub(super) struct ConnectTimedOut(u64);

/// A transport of any kind.
trait Transport: Read + Write + Connection + Send + Unpin {}
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
pub(super) struct Io(Box<dyn Transport>, Served);

/// Makes connections along one route.
#[derive(Clone)]
pub(super) struct Connector {
    inner: Inner,
    connect_ms: u64,
}

#[derive(Clone)]
enum Inner {
    Direct(HttpsConnector<HttpConnector>),
    HttpProxy(HttpsConnector<Tunnel<HttpConnector>>),
    HttpsProxy(HttpsConnector<Tunnel<HttpsConnector<HttpConnector>>>),
    Socks(HttpsConnector<SocksV5<HttpConnector>>),
}

impl Connector {
    /// A connector through `proxy`, if there is one. A `connect_ms` of 0 never gives up.
    pub(super) fn new(proxy: Option<&str>, connect_ms: u64) -> Result<Self, ProxyError> {
        let inner = match proxy {
            None => Inner::Direct(tls(tcp())),
            Some(url) => through(url)?,
        };
        Ok(Self { inner, connect_ms })
    }
}

fn through(url: &str) -> Result<Inner, ProxyError> {
    let (scheme, rest) = url
        .split_once("://")
        .ok_or(ProxyError("it has no scheme"))?;
    let (login, host) = match rest.rsplit_once('@') {
        Some((login, host)) => (Some(login), host),
        None => (None, rest),
    };
    let host = host.trim_end_matches('/');
    let uri = |scheme: &str| {
        Uri::try_from(format!("{scheme}://{host}/"))
            .map_err(|_| ProxyError("its host is not valid"))
    };
    match scheme {
        "http" => {
            let tunnel = Tunnel::new(uri("http")?, tcp());
            Ok(Inner::HttpProxy(tls(with_login(tunnel, login)?)))
        }
        "https" => {
            let tunnel = Tunnel::new(uri("https")?, tls(tcp()));
            Ok(Inner::HttpsProxy(tls(with_login(tunnel, login)?)))
        }
        "socks5" | "socks5h" => {
            let socks = SocksV5::new(uri("http")?, tcp()).local_dns(scheme == "socks5");
            let socks = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
                Some((user, password)) => socks.with_auth(decode(user), decode(password)),
                None => socks,
            };
            Ok(Inner::Socks(tls(socks)))
        }
        _ => Err(ProxyError("its scheme is not http, https or socks5")),
    }
}

fn with_login<C>(tunnel: Tunnel<C>, login: Option<&str>) -> Result<Tunnel<C>, ProxyError> {
    use base64::Engine as _;
    let Some(login) = login else {
        return Ok(tunnel);
    };
    let encoded = base64::engine::general_purpose::STANDARD.encode(decode(login));
    let mut value = HeaderValue::try_from(format!("Basic {encoded}"))
        .map_err(|_| ProxyError("its user or password is not valid"))?;
    value.set_sensitive(true);
    Ok(tunnel.with_auth(value))
}

/// Undoes percent-encoding; what is not valid stays as it is.
fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned()
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    // A half-open connection (sleep, a NAT that forgot it) shows within two minutes.
    connector.set_keepalive(Some(Duration::from_mins(1)));
    connector.set_keepalive_interval(Some(Duration::from_secs(20)));
    connector.set_keepalive_retries(Some(3));
    connector
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
        let connecting: Self::Future = match &mut self.inner {
            Inner::Direct(c) => boxed(c.call(to)),
            Inner::HttpProxy(c) => boxed(c.call(to)),
            Inner::HttpsProxy(c) => boxed(c.call(to)),
            Inner::Socks(c) => boxed(c.call(to)),
        };
        let limit = self.connect_ms;
        if limit == 0 {
            return connecting;
        }
        Box::pin(async move {
            tokio::time::timeout(Duration::from_millis(limit), connecting)
                .await
                .map_err(|_| Box::new(ConnectTimedOut(limit)) as BoxError)?
        })
    }
}

fn boxed<T>(
    connecting: impl Future<Output = Result<T, BoxError>> + Send + 'static,
) -> Pin<Box<dyn Future<Output = Result<Io, BoxError>> + Send>>
where
    T: Transport + 'static,
{
    Box::pin(async move { Ok(Io(Box::new(connecting.await?), Served::default())) })
}

// === impl Io ===

impl Connection for Io {
    fn connected(&self) -> Connected {
        self.0.connected().extra(self.1.clone())
    }
}

impl Read for Io {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl Write for Io {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write_vectored(cx, bufs)
    }
}
