//! A forward proxy, over HTTP (CONNECT, or absolute URLs) or SOCKS5. It notes
//! whom it was asked for and what was presented, refuses and falls silent to
//! order, and can lead connections for one address to another, so that two
//! proxies give the same service two faces.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy, copy_bidirectional};
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

/// The head of a request, without its last empty line.
struct Head {
    method: String,
    uri: String,
    /// Every other line, each with its end, but those that are for the proxy.
    fields: String,
    credentials: Option<String>,
    length: usize,
}

impl Head {
    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let mut first = lines.next().unwrap_or("").split(' ');
        let mut word = || first.next().unwrap_or("").to_owned();
        let mut head = Self {
            method: word(),
            uri: word(),
            fields: String::new(),
            credentials: None,
            length: 0,
        };
        for line in lines {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            match name.to_ascii_lowercase().as_str() {
                "proxy-authorization" => head.credentials = Some(value.trim().to_owned()),
                "proxy-connection" => {}
                name => {
                    if name == "content-length" {
                        head.length = value.trim().parse().unwrap_or(0);
                    }
                    head.fields.extend([line, "\r\n"]);
                }
            }
        }
        head
    }

    /// Whom it is for, and the path there.
    fn target(&self) -> (&str, &str) {
        let absolute = self.uri.strip_prefix("http://").unwrap_or(&self.uri);
        match absolute.find('/') {
            Some(at) => absolute.split_at(at),
            None => (absolute, "/"),
        }
    }
}

/// Reads up to the end of a head; `None` once the peer has closed. `read` holds
/// what came beyond it.
async fn head(
    client: &mut (impl AsyncRead + Unpin),
    read: &mut Vec<u8>,
) -> io::Result<Option<Head>> {
    loop {
        if let Some(end) = read.windows(4).position(|at| at == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&read[..end]).into_owned();
            read.drain(..end + 4);
            return Ok(Some(Head::parse(&text)));
        }
        if client.read_buf(read).await? == 0 {
            return Ok(None);
        }
    }
}

async fn http(client: &mut TcpStream, shared: &Shared) -> io::Result<()> {
    let mut read = Vec::new();
    let Some(first) = head(client, &mut read).await? else {
        return Ok(());
    };
    let target = first.target().0.to_owned();
    shared.note(&target, first.credentials.clone());
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
    let mut server = shared.connect(&target).await?;
    if first.method == "CONNECT" {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        server.write_all(&read).await?;
        copy_bidirectional(client, &mut server).await?;
        return Ok(());
    }
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let asking = async {
        let mut next = Some(first);
        while let Some(request) = next {
            let (_, path) = request.target();
            let text = format!(
                "{} {path} HTTP/1.1\r\n{}\r\n",
                request.method, request.fields
            );
            to_server.write_all(text.as_bytes()).await?;
            while read.len() < request.length {
                if from_client.read_buf(&mut read).await? == 0 {
                    return Ok(());
                }
            }
            let body: Vec<u8> = read.drain(..request.length).collect();
            to_server.write_all(&body).await?;
            next = head(&mut from_client, &mut read).await?;
        }
        io::Result::Ok(())
    };
    // Whichever side closes first ends both.
    tokio::select! {
        asked = asking => asked,
        answered = copy(&mut from_server, &mut to_client) => answered.map(drop),
    }
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
