//! A forward proxy, over HTTP (CONNECT, or absolute URLs) or SOCKS5. It notes
//! whom it was asked for and what was presented, misbehaves to order, and can
//! lead connections for one address to another, so that two proxies give the
//! same service two faces.

mod http;
mod socks;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// What it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// HTTP.
    Http,
    /// SOCKS, version 5.
    Socks5,
}

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It connects.
    Serve,
    /// It says that it can't connect (HTTP 502, SOCKS "host unreachable").
    Refuse,
    /// It wants other credentials (HTTP 407, SOCKS "no acceptable method").
    Unauthorized,
    /// It reads and never answers.
    Silent,
    /// It answers in another protocol.
    Garbage,
    /// It closes at once.
    Close,
}

/// How it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// `CONNECT`.
    Tunnel,
    /// With the whole address in the request.
    Whole,
    /// SOCKS 5.
    Socks,
}

/// One connection that it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// How.
    pub how: How,
    /// `host:port`, as it was asked.
    pub target: String,
    /// `proxy-authorization` as it came, or `user:password` of SOCKS.
    pub credentials: Option<String>,
}

#[derive(Debug)]
struct Shared {
    kind: Kind,
    /// What it wants to be shown, as in [`Asked::credentials`].
    wanted: Option<String>,
    manner: Mutex<Manner>,
    asked: Mutex<Vec<Asked>>,
    ways: Mutex<HashMap<String, SocketAddr>>,
    open: AtomicUsize,
}

/// The proxy; it ends with its connections when dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Proxy {
    /// One that takes everybody, on a free port of loopback.
    pub async fn start(kind: Kind) -> Self {
        Self::with(kind, None).await
    }

    /// One that wants to be shown `login`: the value of `Proxy-Authorization`,
    /// or `user:password` for SOCKS.
    pub async fn asking(kind: Kind, login: &str) -> Self {
        Self::with(kind, Some(login.to_owned())).await
    }

    async fn with(kind: Kind, wanted: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            kind,
            wanted,
            manner: Mutex::new(Manner::Serve),
            asked: Mutex::default(),
            ways: Mutex::default(),
            open: AtomicUsize::new(0),
        });
        let server = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            addr,
            shared,
            server,
        }
    }

    /// The URL to configure.
    pub fn url(&self) -> String {
        self.url_as("")
    }

    /// The URL to configure, with `user:password@` before the host.
    pub fn url_as(&self, login: &str) -> String {
        let scheme = match self.shared.kind {
            Kind::Http => "http",
            Kind::Socks5 => "socks5",
        };
        self.url_by(scheme, login)
    }

    /// The same by another name of what it speaks, as `socks5h`.
    pub fn url_by(&self, scheme: &str, login: &str) -> String {
        format!("{scheme}://{login}{}", self.addr)
    }

    /// Where it listens.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes how it behaves from the next connection on.
    pub fn set(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// Whoever asks for `from` is led to `to`.
    pub fn lead(&self, from: SocketAddr, to: SocketAddr) {
        let mut ways = self.shared.ways.lock().unwrap();
        ways.insert(from.to_string(), to);
    }

    /// Everything it was asked for so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// How many connections to `addr` it was asked for.
    pub fn count(&self, addr: SocketAddr) -> usize {
        let target = addr.to_string();
        let asked = self.asked();
        asked.iter().filter(|one| one.target == target).count()
    }

    /// How many connections it holds open now.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut serving = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let shared = Arc::clone(&shared);
        serving.spawn(async move {
            shared.open.fetch_add(1, Ordering::SeqCst);
            // A peer that goes away in the middle is nobody's concern.
            drop(serve(stream, &shared).await);
            shared.open.fetch_sub(1, Ordering::SeqCst);
        });
        while serving.try_join_next().is_some() {}
    }
}

async fn serve(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    match shared.manner() {
        Manner::Close => return Ok(()),
        Manner::Silent => return silence(&mut client).await,
        Manner::Garbage => {
            let read = client.read(&mut [0; 1024]).await?;
            let answer: &[u8] = if read > 0 {
                b"SSH-2.0-OpenSSH_9.9\r\n\r\n"
            } else {
                b""
            };
            return client.write_all(answer).await;
        }
        Manner::Serve | Manner::Refuse | Manner::Unauthorized => {}
    }
    match shared.kind {
        Kind::Http => http::serve(&mut client, shared).await,
        Kind::Socks5 => socks::serve(&mut client, shared).await,
    }
}

impl Shared {
    fn manner(&self) -> Manner {
        *self.manner.lock().unwrap()
    }

    /// Notes what it was asked for; whether it takes who asks.
    fn note(&self, how: How, target: &str, credentials: Option<String>) -> bool {
        let welcome = self.wanted.is_none() || self.wanted == credentials;
        let takes = welcome && self.manner() != Manner::Unauthorized;
        self.asked.lock().unwrap().push(Asked {
            how,
            target: target.to_owned(),
            credentials,
        });
        takes
    }

    async fn connect(&self, target: &str) -> io::Result<TcpStream> {
        let way = self.ways.lock().unwrap().get(target).copied();
        let stream = match way {
            Some(addr) => TcpStream::connect(addr).await?,
            None => TcpStream::connect(target).await?,
        };
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Does nothing until the peer closes.
async fn silence(client: &mut TcpStream) -> io::Result<()> {
    let mut bytes = [0; 1024];
    while client.read(&mut bytes).await? > 0 {}
    Ok(())
}
