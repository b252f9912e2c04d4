//! A forward proxy that behaves to order: HTTP, by `CONNECT` or with the whole
//! address in the request, and SOCKS 5, with a user and password or without.
//! What it was asked for is kept for the test to look at.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// It leads there.
    Pass,
    /// It does not.
    Refuse,
    /// It answers with something else.
    Garbage,
    /// It answers nothing.
    Silent,
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

/// What it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// How.
    pub how: How,
    /// `host:port`, or the whole address.
    pub target: String,
    /// What it was shown: `Proxy-Authorization`, or `user:password`.
    pub login: Option<String>,
}

#[derive(Debug)]
struct Shared {
    manner: Mutex<Manner>,
    asked: Mutex<Vec<Asked>>,
    /// What it wants to be shown, as in [`Asked::login`].
    login: Option<String>,
    /// The key that it adds to requests which show none.
    stamp: Option<String>,
}

/// The proxy; it stops when dropped.
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
    /// One that takes everybody.
    pub async fn start() -> Self {
        Self::with(None, None).await
    }

    /// One that wants to be shown `login`: the value of `Proxy-Authorization`,
    /// or `user:password` for SOCKS.
    pub async fn asking(login: &str) -> Self {
        Self::with(Some(login.to_owned()), None).await
    }

    /// One that reads requests and gives those without a key the key of
    /// connection `id`, by which a scripted upstream can tell proxies apart.
    pub async fn stamping(id: &str) -> Self {
        Self::with(None, Some(crate::config::upstream_key(id))).await
    }

    async fn with(login: Option<String>, stamp: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            manner: Mutex::new(Manner::Pass),
            asked: Mutex::default(),
            login,
            stamp,
        });
        let serving = Arc::clone(&shared);
        let server = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let shared = Arc::clone(&serving);
                // Whoever hangs up ends its own task only.
                tokio::spawn(async move { shared.serve(stream).await });
            }
        });
        Self {
            addr,
            shared,
            server,
        }
    }

    /// Where it listens.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its URL.
    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.addr)
    }

    /// Its URL with `user:password`.
    pub fn url_with(&self, scheme: &str, login: &str) -> String {
        format!("{scheme}://{login}@{}", self.addr)
    }

    /// Behaves like this from now on, to new connections.
    pub fn set(&self, manner: Manner) {
        *self.shared.manner.lock().unwrap() = manner;
    }

    /// What it was asked for so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }
}

impl Shared {
    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let manner = *self.manner.lock().unwrap();
        let mut first = [0; 1];
        stream.peek(&mut first).await.ok()?;
        match manner {
            Manner::Close => None,
            Manner::Silent => {
                let mut buffer = [0; 1024];
                while stream.read(&mut buffer).await.ok()? > 0 {}
                None
            }
            Manner::Garbage => {
                let mut buffer = [0; 1024];
                if stream.read(&mut buffer).await.ok()? == 0 {
                    return None;
                }
                stream.write_all(b"SSH-2.0-OpenSSH_9.9\r\n\r\n").await.ok()
            }
            Manner::Pass | Manner::Refuse if first[0] == 5 => {
                self.socks(stream, manner == Manner::Pass).await
            }
            Manner::Pass | Manner::Refuse => self.http(stream, manner == Manner::Pass).await,
        }
    }

    fn note(&self, how: How, target: &str, login: Option<String>) -> bool {
        let accepted = self.login.is_none() || self.login == login;
        self.asked.lock().unwrap().push(Asked {
            how,
            target: target.to_owned(),
            login,
        });
        accepted
    }

    async fn http(&self, mut stream: TcpStream, passes: bool) -> Option<()> {
        let mut buffer = Vec::new();
        let end = loop {
            if let Some(at) = buffer.windows(4).position(|at| at == b"\r\n\r\n") {
                break at + 4;
            }
            if stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let rest = buffer.split_off(end);
        let mut parts = head.lines().next()?.split(' ');
        let (method, target) = (parts.next()?, parts.next()?);
        let login = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("proxy-authorization")
                .then(|| value.to_owned())
        });
        let how = if method == "CONNECT" {
            How::Tunnel
        } else {
            How::Whole
        };
        if !self.note(how, target, login) {
            let answer = "HTTP/1.1 407 Proxy Authentication Required\r\n\
                proxy-authenticate: Basic realm=\"it\"\r\ncontent-length: 0\r\n\r\n";
            return stream.write_all(answer.as_bytes()).await.ok();
        }
        if !passes {
            let answer = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";
            return stream.write_all(answer.as_bytes()).await.ok();
        }
        if how == How::Tunnel {
            let mut upstream = TcpStream::connect(target).await.ok()?;
            let answer = "HTTP/1.1 200 Connection established\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.ok()?;
            upstream.write_all(&rest).await.ok()?;
            copy_bidirectional(&mut stream, &mut upstream).await.ok()?;
            return Some(());
        }
        let (authority, path) = target.strip_prefix("http://")?.split_once('/')?;
        let mut upstream = TcpStream::connect(authority).await.ok()?;
        let head = self.passed_on(&head, method, path);
        upstream.write_all(head.as_bytes()).await.ok()?;
        upstream.write_all(&rest).await.ok()?;
        once(stream, upstream).await
    }

    /// The head as an origin wants it.
    fn passed_on(&self, head: &str, method: &str, path: &str) -> String {
        let mut out = format!("{method} /{path} HTTP/1.1\r\n");
        let mut shows_key = false;
        for line in head.lines().skip(1).filter(|line| !line.is_empty()) {
            let name = line.split(':').next().unwrap_or("").to_ascii_lowercase();
            shows_key |= name == "authorization";
            if name != "proxy-authorization" && name != "connection" {
                out.push_str(line);
                out.push_str("\r\n");
            }
        }
        if let Some(stamp) = self.stamp.as_ref().filter(|_| !shows_key) {
            out.extend(["authorization: Bearer ", stamp.as_str(), "\r\n"]);
        }
        out.push_str("\r\n");
        out
    }

    async fn socks(&self, mut stream: TcpStream, passes: bool) -> Option<()> {
        let methods = take(&mut stream, 2).await?;
        let methods = take(&mut stream, methods[1].into()).await?;
        let login = if methods.contains(&2) && self.login.is_some() {
            stream.write_all(&[5, 2]).await.ok()?;
            let user = usize::from(take(&mut stream, 2).await?[1]);
            let user = text(&take(&mut stream, user).await?);
            let password = usize::from(take(&mut stream, 1).await?[0]);
            let password = text(&take(&mut stream, password).await?);
            let login = format!("{user}:{password}");
            if self.login.as_ref() != Some(&login) {
                self.note(How::Socks, "", Some(login));
                return stream.write_all(&[1, 1]).await.ok();
            }
            stream.write_all(&[1, 0]).await.ok()?;
            Some(login)
        } else if self.login.is_none() && methods.contains(&0) {
            stream.write_all(&[5, 0]).await.ok()?;
            None
        } else {
            return stream.write_all(&[5, 0xff]).await.ok();
        };
        let kind = take(&mut stream, 4).await?[3];
        let host = match kind {
            1 => take(&mut stream, 4)
                .await?
                .iter()
                .map(u8::to_string)
                .collect::<Vec<_>>()
                .join("."),
            3 => {
                let length = take(&mut stream, 1).await?[0].into();
                text(&take(&mut stream, length).await?)
            }
            _ => return None,
        };
        let port = take(&mut stream, 2).await?;
        let port = u16::from_be_bytes([port[0], port[1]]);
        self.note(How::Socks, &format!("{host}:{port}"), login);
        // Not allowed by its rules, or established.
        let code = if passes { 0 } else { 2 };
        let answer = [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
        if !passes {
            return stream.write_all(&answer).await.ok();
        }
        let mut upstream = TcpStream::connect((host.as_str(), port)).await.ok()?;
        stream.write_all(&answer).await.ok()?;
        copy_bidirectional(&mut stream, &mut upstream).await.ok()?;
        Some(())
    }
}

/// Passes one request's body and its answer on, and tells the client that the
/// connection is of no use for another one, which would have to be read, too.
async fn once(mut stream: TcpStream, mut upstream: TcpStream) -> Option<()> {
    let (mut asks, mut hears) = stream.split();
    let (mut answers, mut takes) = upstream.split();
    let forth = tokio::io::copy(&mut asks, &mut takes);
    let back = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n") {
            head.push(answers.read_u8().await.ok()?);
        }
        hears.write_all(&head).await.ok()?;
        hears.write_all(b"connection: close\r\n").await.ok()?;
        tokio::io::copy(&mut answers, &mut hears).await.ok()
    };
    let sent = tokio::select! {
        sent = forth => sent.ok(),
        sent = back => sent,
    };
    sent.map(|_| ())
}

async fn take(stream: &mut TcpStream, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await.ok()?;
    Some(bytes)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
