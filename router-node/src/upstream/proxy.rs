//! The way through a connection's proxy: HTTP and HTTPS proxies by `CONNECT`,
//! or with the whole address in the request where the upstream is plain HTTP;
//! SOCKS 5 with names resolved here (`socks5`) or there (`socks5h`).
//!
//! Whatever goes wrong up to the upstream's own door is the proxy's fault and
//! says so, without a word of the user, the password or the address.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use http::{HeaderValue, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use tower_service::Service;

use super::connector::{BoxError, Io, Transport, tcp, tls_for_http1};

/// Where a proxy listens whose URL names no port.
const SOCKS_PORT: u16 = 1080;

/// A proxy URL that can't be used. Says nothing of its user or password.
#[derive(Debug, thiserror::Error)]
#[error("the proxy URL is not usable: {0}")]
pub(crate) struct ProxyError(&'static str);

/// What a proxy did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProxyFault {
    /// It can't be reached, or does not answer in time.
    #[error("the proxy can't be reached")]
    Unreachable,
    /// It asks for a user and password, or for others.
    #[error("the proxy does not accept the user and password")]
    Login,
    /// It does not lead to the upstream.
    #[error("the proxy does not lead there")]
    Refused,
    /// It does not speak like a proxy of its kind.
    #[error("the proxy's answer makes no sense")]
    Garbage,
}

impl ProxyFault {
    /// What the words of the library's error say; its types are not public.
    fn told(words: &str) -> Self {
        let says = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
        if says(&["failed to create underlying connection", "resolve"]) {
            Self::Unreachable
        } else if says(&["proxy authorization", "credentials", "authentication"]) {
            Self::Login
        } else if says(&["end of file", "io error", "parsing", "too long"]) {
            Self::Garbage
        } else {
            Self::Refused
        }
    }
}

/// The way through one proxy.
#[derive(Clone)]
pub(super) struct Proxy {
    way: Way,
    /// What an HTTP proxy is shown with requests that it reads.
    login: Option<HeaderValue>,
}

#[derive(Clone)]
enum Way {
    Http(Uri, HttpConnector, Tunnel<HttpConnector>),
    Https(
        Uri,
        HttpsConnector<HttpConnector>,
        Tunnel<HttpsConnector<HttpConnector>>,
    ),
    Socks {
        socks: SocksV5<HttpConnector>,
        resolve: bool,
    },
}

type Connecting = Pin<Box<dyn Future<Output = Result<Io, BoxError>> + Send>>;

impl Proxy {
    /// The way through the proxy at `url`.
    pub(super) fn new(url: &str) -> Result<Self, ProxyError> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or(ProxyError("it has no scheme"))?;
        let (login, host) = match rest.rsplit_once('@') {
            Some((login, host)) => (Some(login), host),
            None => (None, rest),
        };
        let host = host.split('/').next().unwrap_or(host);
        let uri = |scheme: &str| {
            let uri = Uri::try_from(format!("{scheme}://{host}/"));
            uri.map_err(|_| ProxyError("its host is not valid"))
        };
        let scheme = scheme.to_ascii_lowercase();
        let basic = login.map(basic).transpose()?;
        let way = match scheme.as_str() {
            "http" => {
                let to = uri("http")?;
                let tunnel = with_login(Tunnel::new(to.clone(), tcp()), basic.as_ref());
                Way::Http(to, tcp(), tunnel)
            }
            "https" => {
                let to = uri("https")?;
                let tunnel = with_login(
                    Tunnel::new(to.clone(), tls_for_http1(tcp())),
                    basic.as_ref(),
                );
                Way::Https(to, tls_for_http1(tcp()), tunnel)
            }
            "socks5" | "socks5h" => Way::Socks {
                socks: socks(&uri("http")?, login)?,
                resolve: scheme == "socks5",
            },
            _ => return Err(ProxyError("its scheme is not http, https or socks5")),
        };
        Ok(Self { way, login: basic })
    }

    /// What a request to `to` has to carry for the proxy, which reads it.
    pub(super) fn login_for(&self, to: &Uri) -> Option<&HeaderValue> {
        self.reads(to).then_some(self.login.as_ref()).flatten()
    }

    /// Whether the proxy reads requests to `to` and sends them on itself.
    pub(super) fn reads(&self, to: &Uri) -> bool {
        let by_http = match self.way {
            Way::Http(..) | Way::Https(..) => true,
            Way::Socks { .. } => false,
        };
        by_http && to.scheme() == Some(&http::uri::Scheme::HTTP)
    }

    /// A connection on which the upstream of `to` answers, or the proxy in its
    /// name; TLS with the upstream is still to come. Fails with a
    /// [`ProxyFault`], or because the upstream's name is not known here.
    pub(super) fn connect(&mut self, to: &Uri) -> Connecting {
        let reads = self.reads(to);
        let to = with_port(to);
        match &mut self.way {
            Way::Http(proxy, plain, _) if reads => in_its_name(plain.call(proxy.clone())),
            Way::Https(proxy, plain, _) if reads => in_its_name(plain.call(proxy.clone())),
            Way::Http(_, _, tunnel) => through(tunnel.call(to)),
            Way::Https(_, _, tunnel) => through(tunnel.call(to)),
            Way::Socks { socks, resolve } => {
                let (mut socks, resolve) = (socks.clone(), *resolve);
                Box::pin(async move {
                    let to = if resolve { resolved(to).await? } else { to };
                    through(socks.call(to)).await
                })
            }
        }
    }
}

/// The secrets of a proxy's URL, for finding them where they must not be: the
/// password as it is written and as it is meant, and the header made of it.
pub(crate) fn secrets(url: &str) -> Vec<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let Some((login, _)) = rest.rsplit_once('@') else {
        return Vec::new();
    };
    let password = login.split_once(':').map_or("", |(_, password)| password);
    let all = [password.to_owned(), decode(password), encoded(login)];
    all.into_iter().filter(|text| text.len() >= 4).collect()
}

fn through<T, E>(connecting: impl Future<Output = Result<T, E>> + Send + 'static) -> Connecting
where
    T: Transport + 'static,
    E: std::fmt::Display,
{
    Box::pin(async move {
        match connecting.await {
            Ok(transport) => Ok(Io::new(transport)),
            Err(error) => Err(ProxyFault::told(&error.to_string()).into()),
        }
    })
}

/// The same where the proxy reads the requests.
fn in_its_name<T, E>(connecting: impl Future<Output = Result<T, E>> + Send + 'static) -> Connecting
where
    T: Transport + 'static,
{
    Box::pin(async move {
        let transport = connecting.await.map_err(|_| ProxyFault::Unreachable)?;
        Ok(Io::new(transport).read_by_a_proxy())
    })
}

/// `to` with its port spelled out: a proxy can't know the scheme's.
fn with_port(to: &Uri) -> Uri {
    if to.port().is_some() {
        return to.clone();
    }
    let is_plain = to.scheme() == Some(&http::uri::Scheme::HTTP);
    at(to.host().unwrap_or(""), if is_plain { 80 } else { 443 }).unwrap_or_else(|| to.clone())
}

fn at(host: &str, port: u16) -> Option<Uri> {
    Uri::try_from(format!("http://{host}:{port}/")).ok()
}

/// `to` with an address instead of its name, an old one if there is one. The
/// library would hold up the thread for it.
async fn resolved(to: Uri) -> Result<Uri, BoxError> {
    let (host, port) = (to.host().unwrap_or(""), to.port_u16().unwrap_or(443));
    if host.starts_with('[') || host.parse::<std::net::IpAddr>().is_ok() {
        return Ok(to);
    }
    let found = tokio::net::lookup_host((host, port)).await;
    let found: Vec<SocketAddr> = found?.collect();
    let first = found.iter().find(|address| address.is_ipv4());
    let address = first.or_else(|| found.first()).ok_or("no address")?;
    Ok(Uri::try_from(format!("http://{address}/"))?)
}

fn socks(proxy: &Uri, login: Option<&str>) -> Result<SocksV5<HttpConnector>, ProxyError> {
    let host = proxy.host().unwrap_or("");
    let port = proxy.port_u16().unwrap_or(SOCKS_PORT);
    let to = at(host, port).ok_or(ProxyError("its host is not valid"))?;
    let socks = SocksV5::new(to, tcp());
    let Some(login) = login else {
        return Ok(socks);
    };
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let (user, password) = (decode(user), decode(password));
    if user.len() > 255 || password.len() > 255 {
        return Err(ProxyError("its user or password is too long"));
    }
    Ok(socks.with_auth(user, password))
}

fn with_login<C>(tunnel: Tunnel<C>, login: Option<&HeaderValue>) -> Tunnel<C> {
    match login {
        Some(login) => tunnel.with_auth(login.clone()),
        None => tunnel,
    }
}

fn basic(login: &str) -> Result<HeaderValue, ProxyError> {
    let mut value = HeaderValue::try_from(format!("Basic {}", encoded(login)))
        .map_err(|_| ProxyError("its user or password is not valid"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn encoded(login: &str) -> String {
    use base64::Engine as _;
    let login = match login.split_once(':') {
        Some((user, password)) => format!("{}:{}", decode(user), decode(password)),
        None => format!("{}:", decode(login)),
    };
    base64::engine::general_purpose::STANDARD.encode(login)
}

/// Undoes percent-encoding; what is not valid stays as it is.
fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests;
