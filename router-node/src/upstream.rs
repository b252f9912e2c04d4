//! Calls to upstreams over HTTP: pooled clients, one set a worker.
//!
//! Each worker thread owns its clients, so a request, its upstream connection
//! and the task that drives it never leave the thread. A client is kept for
//! each pair of proxy and connect timeout, since both belong to the connector.

pub(crate) mod answer;
mod connector;
pub(crate) mod proxy;
mod single;

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::error::Error as StdError;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::TokioTimer;

use connector::{ConnectTimedOut, Connector, Served};
pub(crate) use proxy::{ProxyError, ProxyFault};
pub(crate) use single::{CallError, Single};

/// Idle upstream connections kept for each host and worker.
const IDLE_PER_HOST: usize = 256;
/// How long an idle upstream connection is kept; below the 75 s after which
/// common servers close one.
const IDLE_TIMEOUT: Duration = Duration::from_secs(55);
/// Clients of one worker; past it the pools are dropped and built anew.
const MAX_CLIENTS: usize = 1024;

/// How hyper calls an answer's head of more bytes or headers than it takes; a
/// client is given no other sign.
const HEAD_TOO_LARGE: &str = "head is too large";

/// A client and how its connections are made.
struct Pool {
    client: Client<Connector, Body>,
    connector: Connector,
}

/// The upstream clients of one worker.
#[derive(Default)]
pub(crate) struct Clients {
    by_route: RefCell<HashMap<Route, Pool>>,
}

/// What a client's connector depends on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Route {
    proxy: Option<String>,
    connect_ms: u64,
}

impl Clients {
    /// Starts one request, whose head is waited for at most `head` from when
    /// the connection stands; connecting has a limit of its own. Without one
    /// the caller's holds. Dropping the future cancels the request.
    pub(crate) fn send(
        &self,
        mut request: http::Request<Body>,
        proxy: Option<&str>,
        (connect_ms, head): (u64, Option<Duration>),
    ) -> Result<Sending, ProxyError> {
        let route = Route {
            proxy: proxy.map(str::to_owned),
            connect_ms,
        };
        let mut pools = self.by_route.borrow_mut();
        if !pools.contains_key(&route) && pools.len() >= MAX_CLIENTS {
            pools.clear();
        }
        let pool = match pools.entry(route) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let pool = Pool::new(new.key())?;
                new.insert(pool)
            }
        };
        let within = head.map(|limit| (limit, capture_connection(&mut request)));
        let is_read = shown_to_a_proxy(&mut request, &pool.connector);
        Ok(Sending {
            response: pool.client.request(request),
            within,
            is_read,
        })
    }
}

/// Adds what a proxy has to see that reads the request; whether one does.
fn shown_to_a_proxy(request: &mut http::Request<Body>, connector: &Connector) -> bool {
    if let Some(login) = connector.login_for(request.uri()).cloned() {
        let headers = request.headers_mut();
        headers.insert(http::header::PROXY_AUTHORIZATION, login);
    }
    connector.is_read(request.uri())
}

/// A request on its way.
pub(crate) struct Sending {
    response: ResponseFuture,
    /// The limit on the head, and when the connection stands.
    within: Option<(Duration, CaptureConnection)>,
    /// A proxy reads the request and may answer it.
    is_read: bool,
}

impl Sending {
    /// Waits for the answer's head.
    pub(crate) async fn head(self) -> Result<http::Response<hyper::body::Incoming>, SendError> {
        let is_read = self.is_read;
        let answered = match self.within {
            None => self.response.await,
            Some(within) => within_limit(self.response, within).await?,
        };
        match answered {
            Ok(mut response) => {
                // Nobody else reads the extensions, and a map is to be freed.
                let extensions = std::mem::take(response.extensions_mut());
                if let Some(served) = extensions.get::<Served>() {
                    served.mark();
                }
                if is_read && response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
                    return Err(SendError::Proxy(ProxyFault::Login));
                }
                Ok(response)
            }
            // Whoever answers so is the proxy itself.
            Err(error) if is_read && is_unreadable(&error) => {
                Err(SendError::Proxy(ProxyFault::Garbage))
            }
            Err(error) => {
                let kind = send_error(&error);
                let stale = kind == SendError::Reset && stale(&error);
                Err(if stale { SendError::Stale } else { kind })
            }
        }
    }
}

async fn within_limit(
    mut response: ResponseFuture,
    (limit, mut connection): (Duration, CaptureConnection),
) -> Result<Answered, SendError> {
    tokio::select! {
        biased;
        answered = &mut response => return Ok(answered),
        _ = connection.wait_for_connection_metadata() => {}
    }
    tokio::time::timeout(limit, &mut response)
        .await
        .map_err(|_| SendError::HeadersTimeout)
}

type Answered = Result<http::Response<hyper::body::Incoming>, hyper_util::client::legacy::Error>;

/// Whether a pooled connection was closed by its server between two requests:
/// it had served before, and ended without an answer that could be misread.
fn stale(error: &hyper_util::client::legacy::Error) -> bool {
    if is_unreadable(error) {
        return false;
    }
    let mut extensions = http::Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extensions);
    }
    extensions.get::<Served>().is_some_and(Served::is_marked)
}

/// Whether an answer came that is none of HTTP.
fn is_unreadable(error: &hyper_util::client::legacy::Error) -> bool {
    unreadable(error).is_some()
}

/// What is wrong with an answer's head that came, if that is what failed.
fn unreadable(error: &hyper_util::client::legacy::Error) -> Option<SendError> {
    let mut source: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(cause) = source {
        let parsing = cause.downcast_ref::<hyper::Error>();
        if let Some(error) = parsing.filter(|error| error.is_parse()) {
            let too_large = error.to_string().contains(HEAD_TOO_LARGE);
            return Some(if too_large {
                SendError::HeadTooLarge
            } else {
                SendError::NotHttp
            });
        }
        source = cause.source();
    }
    None
}

impl Pool {
    fn new(route: &Route) -> Result<Self, ProxyError> {
        let connector = Connector::new(route.proxy.as_deref(), route.connect_ms)?;
        let client = Client::builder(LocalExecutor)
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(Duration::from_secs(20))
            .build(connector.clone());
        Ok(Self { client, connector })
    }
}

/// Runs hyper's connection tasks on the worker's own thread.
#[derive(Clone, Copy)]
struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future<Output = ()> + 'static,
{
    fn execute(&self, task: F) {
        drop(tokio::task::spawn_local(task));
    }
}

/// A request body: up to three pieces, sent as they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    pieces: [Bytes; 3],
    next: usize,
}

impl Body {
    /// `first`, `second` and `third`, one after the other.
    pub(crate) fn new(first: Bytes, second: Bytes, third: Bytes) -> Self {
        Self {
            pieces: [first, second, third],
            next: 0,
        }
    }

    /// One piece.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::new(bytes, Bytes::new(), Bytes::new())
    }

    /// Bytes not yet sent.
    pub(crate) fn len(&self) -> u64 {
        let left = self.pieces.iter().skip(self.next).map(Bytes::len);
        u64::try_from(left.sum::<usize>()).unwrap_or(u64::MAX)
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        while let Some(piece) = this.pieces.get_mut(this.next) {
            this.next = this.next.saturating_add(1);
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(http_body::Frame::data(std::mem::take(piece)))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.len() == 0
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.len())
    }
}

/// What went wrong before an upstream's response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// DNS, TCP or TLS failed.
    ConnectFailed,
    /// The connection was not up in time.
    ConnectTimeout,
    /// The connection's proxy is in the way.
    Proxy(ProxyFault),
    /// The head did not come in time.
    HeadersTimeout,
    /// A pooled connection turned out to be closed; nothing was answered.
    Stale,
    /// The connection broke before the response's head.
    Reset,
    /// The head is larger than is taken.
    HeadTooLarge,
    /// What came is no HTTP.
    NotHttp,
}

/// Tells what a client error was.
fn send_error(error: &hyper_util::client::legacy::Error) -> SendError {
    if !error.is_connect() {
        return unreadable(error).unwrap_or(SendError::Reset);
    }
    let mut source: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(cause) = source {
        if cause.is::<ConnectTimedOut>() {
            return SendError::ConnectTimeout;
        }
        if let Some(fault) = cause.downcast_ref::<ProxyFault>() {
            return SendError::Proxy(*fault);
        }
        source = cause.source();
    }
    SendError::ConnectFailed
}
