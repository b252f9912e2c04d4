//! A forward proxy, over HTTP (CONNECT, or absolute URLs) or SOCKS5. It notes
//! whom it was asked for and what was presented, refuses and falls silent to
//! order, and can lead connections for one address to another, so that two
//! proxies give the same service two faces.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
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
}

/// One connection that it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `host:port`, as it was asked.
    pub target: String,
    /// `proxy-authorization` as it came, or `user:password` of SOCKS.
    pub credentials: Option<String>,
}

#[derive(Debug)]
struct Shared {
    kind: Kind,
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
    /// Starts on a free port of loopback.
    pub async fn start(kind: Kind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            kind,
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
        format!("{scheme}://{login}{}", self.addr)
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
    match shared.kind {
        Kind::Http => http(&mut client, shared).await,
        Kind::Socks5 => socks(&mut client, shared).await,
    }
}

impl Shared {
    fn manner(&self) -> Manner {
        *self.manner.lock().unwrap()
    }

    fn note(&self, target: &str, credentials: Option<String>) {
        let target = target.to_owned();
        let asked = Asked {
            target,
            credentials,
        };
        self.asked.lock().unwrap().push(asked);
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

async fn http(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut head = Vec::new();
    let end = loop {
        let end = head.windows(4).position(|at| at == b"\r\n\r\n");
        match end {
            Some(at) => break at,
            None if client.read_buf(&mut head).await? == 0 => return Ok(()),
            None => {}
        }
    };
    let text = String::from_utf8_lossy(&head[..end]).into_owned();
    let first: Vec<&str> = text.lines().next().unwrap_or("").split(' ').collect();
    let (method, uri) = (first[0], first.get(1).copied().unwrap_or(""));
    let credentials = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is = name.eq_ignore_ascii_case("proxy-authorization");
        is.then(|| value.trim().to_owned())
    });
    let absolute = uri.strip_prefix("http://").unwrap_or(uri);
    let (authority, path) = match absolute.find('/') {
        Some(at) => absolute.split_at(at),
        None => (absolute, "/"),
    };
    shared.note(authority, credentials);
    let refusal: &[u8] = match shared.manner() {
        Manner::Serve => b"",
        Manner::Refuse => b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n",
        Manner::Unauthorized => {
            b"HTTP/1.1 407 Proxy Authentication Required\r\nproxy-authenticate: Basic realm=\"x\"\r\ncontent-length: 0\r\n\r\n"
        }
        Manner::Silent => return silence(client).await,
    };
    if !refusal.is_empty() {
        return client.write_all(refusal).await;
    }
    let mut server = shared.connect(authority).await?;
    if method == "CONNECT" {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        server.write_all(&head[end + 4..]).await?;
    } else {
        let rest = text.split_once("\r\n").map_or("", |(_, rest)| rest);
        let first = format!("{method} {path} HTTP/1.1\r\n{rest}\r\n\r\n");
        server.write_all(first.as_bytes()).await?;
        server.write_all(&head[end + 4..]).await?;
    }
    copy_bidirectional(client, &mut server).await?;
    Ok(())
}

async fn socks(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut start = [0; 2];
    client.read_exact(&mut start).await?;
    let mut methods = vec![0; usize::from(start[1])];
    client.read_exact(&mut methods).await?;
    match shared.manner() {
        Manner::Silent => return silence(client).await,
        Manner::Unauthorized => {
            shared.note("", None);
            return client.write_all(&[5, 0xff]).await;
        }
        Manner::Serve | Manner::Refuse => {}
    }
    let mut credentials = None;
    if methods.contains(&2) {
        client.write_all(&[5, 2]).await?;
        client.read_exact(&mut [0; 1]).await?;
        let user = short_text(client).await?;
        let password = short_text(client).await?;
        credentials = Some(format!("{user}:{password}"));
        client.write_all(&[1, 0]).await?;
    } else {
        client.write_all(&[5, 0]).await?;
    }
    let target = socks_target(client).await?;
    shared.note(&target, credentials);
    if shared.manner() == Manner::Refuse {
        return client.write_all(&[5, 4, 0, 1, 0, 0, 0, 0, 0, 0]).await;
    }
    let mut server = shared.connect(&target).await?;
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    copy_bidirectional(client, &mut server).await?;
    Ok(())
}

/// A byte of length and as many of text.
async fn short_text(client: &mut TcpStream) -> io::Result<String> {
    let mut length = [0; 1];
    client.read_exact(&mut length).await?;
    let mut text = vec![0; usize::from(length[0])];
    client.read_exact(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Reads a SOCKS request; its target as `host:port`.
async fn socks_target(client: &mut TcpStream) -> io::Result<String> {
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    let host = match head[3] {
        1 => {
            let mut ip = [0; 4];
            client.read_exact(&mut ip).await?;
            std::net::Ipv4Addr::from(ip).to_string()
        }
        3 => short_text(client).await?,
        _ => {
            let mut ip = [0; 16];
            client.read_exact(&mut ip).await?;
            format!("[{}]", std::net::Ipv6Addr::from(ip))
        }
    };
    let mut port = [0; 2];
    client.read_exact(&mut port).await?;
    Ok(format!("{host}:{}", u16::from_be_bytes(port)))
}
