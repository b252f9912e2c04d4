//! An upstream that answers to order. Connections of the router are told apart
//! by the key they present; each key has its own script, whose last reply
//! repeats. Everything it was sent is kept for the test to look at.

pub(crate) mod wire;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::reply::{Act, Finish, Reply};
use crate::wait::{SOON, within};

/// What became of the answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is being sent.
    Running,
    /// The script ran to its end.
    Done,
    /// The router closed the connection before that.
    Dropped(Instant),
}

/// One request as it arrived.
#[derive(Debug)]
pub struct Seen {
    /// The key it presented, without `Bearer`; empty when it had none.
    pub key: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// The headers in order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, unframed.
    pub body: Vec<u8>,
    /// When it was complete.
    pub at: Instant,
    /// Which TCP connection brought it, counted from 0.
    pub tcp: u64,
    fate: watch::Sender<Fate>,
    ended: Mutex<Option<Instant>>,
}

impl Seen {
    /// The value of a header, if it was there.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The body as JSON, inflated where a header says that it is compressed.
    pub fn json(&self) -> Value {
        let body = match self.header("content-encoding") {
            Some("gzip") => wire::gunzip(&self.body),
            None | Some(_) => self.body.clone(),
        };
        serde_json::from_slice(&body).expect("the upstream was sent something else than JSON")
    }

    /// What has become of the answer so far.
    pub fn fate(&self) -> Fate {
        *self.fate.borrow()
    }

    /// When the last piece of the answer was about to be sent, or the router
    /// dropped the connection.
    pub fn ended(&self) -> Option<Instant> {
        *self.ended.lock().unwrap()
    }

    fn end(&self) {
        self.ended.lock().unwrap().get_or_insert_with(Instant::now);
    }

    /// Whether both were being answered at the same time.
    pub fn overlaps(&self, other: &Self) -> bool {
        let ends_after = |one: &Self, at: Instant| one.ended().is_none_or(|end| end > at);
        ends_after(self, other.at) && ends_after(other, self.at)
    }

    /// Waits until the router drops the connection; panics when the answer ends otherwise.
    pub async fn dropped(&self, limit: Duration) -> Instant {
        let mut fate = self.fate.subscribe();
        let settled = fate.wait_for(|fate| *fate != Fate::Running);
        let fate = *within(limit, "the router drops the upstream request", settled)
            .await
            .unwrap();
        match fate {
            Fate::Dropped(at) => at,
            Fate::Running | Fate::Done => panic!("the answer ran to its end"),
        }
    }
}

#[derive(Default)]
struct Shared {
    scripts: Mutex<HashMap<String, VecDeque<Reply>>>,
    seen: watch::Sender<Vec<Arc<Seen>>>,
    tcp: AtomicU64,
}

/// The scripted upstream; it stops when dropped.
pub struct Upstream {
    addr: SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Upstream {
    /// Starts on a free port of loopback.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let server = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self {
            addr,
            shared,
            server,
        }
    }

    /// The base URL to configure, with `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.addr)
    }

    /// Where it listens.
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets what connection `id` is answered from now on.
    pub fn script(&self, id: &str, replies: impl IntoIterator<Item = Reply>) {
        let replies: VecDeque<Reply> = replies.into_iter().collect();
        assert!(!replies.is_empty(), "an empty script");
        let key = crate::config::upstream_key(id);
        self.shared.scripts.lock().unwrap().insert(key, replies);
    }

    /// Sets what every key without a script of its own is answered.
    pub fn script_all(&self, replies: impl IntoIterator<Item = Reply>) {
        let replies: VecDeque<Reply> = replies.into_iter().collect();
        assert!(!replies.is_empty(), "an empty script");
        let mut scripts = self.shared.scripts.lock().unwrap();
        scripts.insert(String::new(), replies);
    }

    /// All requests so far, in order of arrival.
    pub fn requests(&self) -> Vec<Arc<Seen>> {
        self.shared.seen.borrow().clone()
    }

    /// The requests of connection `id` so far.
    pub fn requests_of(&self, id: &str) -> Vec<Arc<Seen>> {
        let key = crate::config::upstream_key(id);
        let mut requests = self.requests();
        requests.retain(|seen| seen.key == key);
        requests
    }

    /// How many requests connection `id` has sent.
    pub fn count(&self, id: &str) -> usize {
        self.requests_of(id).len()
    }

    /// How many requests of connection `id` are being answered now.
    pub fn running(&self, id: &str) -> usize {
        let mut requests = self.requests_of(id);
        requests.retain(|seen| seen.ended().is_none());
        requests.len()
    }

    /// Most requests of connection `id` that were being answered at the same
    /// time.
    pub fn peak(&self, id: &str) -> usize {
        let requests = self.requests_of(id);
        let at_begin = requests.iter().map(|new| {
            let others = requests
                .iter()
                .filter(|old| old.at <= new.at && old.ended().is_none_or(|end| end > new.at));
            others.count()
        });
        at_begin.max().unwrap_or(0)
    }

    /// The connections in the order in which their requests came.
    pub fn order(&self) -> Vec<String> {
        let requests = self.requests();
        let ids = requests
            .iter()
            .map(|seen| seen.key.trim_start_matches("key-").to_owned());
        ids.collect()
    }

    /// Waits for the `n`th request of connection `id` (from 1).
    pub async fn request(&self, id: &str, n: usize) -> Arc<Seen> {
        let key = crate::config::upstream_key(id);
        let mut seen = self.shared.seen.subscribe();
        let nth = |all: &Vec<Arc<Seen>>| all.iter().filter(|seen| seen.key == key).count() >= n;
        let arrived = within(SOON, "a request reaches the upstream", seen.wait_for(nth))
            .await
            .unwrap();
        let mut mine = arrived.iter().filter(|seen| seen.key == key);
        Arc::clone(mine.nth(n - 1).unwrap())
    }
}

impl Shared {
    fn next(&self, key: &str) -> Reply {
        let mut scripts = self.scripts.lock().unwrap();
        let key = if scripts.contains_key(key) { key } else { "" };
        match scripts.get_mut(key) {
            Some(replies) if replies.len() > 1 => replies.pop_front().unwrap(),
            Some(replies) => replies[0].clone(),
            None => Reply::error(418, "no script for this key"),
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        stream.set_nodelay(true).unwrap();
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let tcp = shared.tcp.fetch_add(1, Ordering::SeqCst);
            serve(stream, &shared, tcp).await;
        });
    }
}

async fn serve(mut stream: TcpStream, shared: &Shared, tcp: u64) {
    let mut buffer = Vec::new();
    while let Some(request) = wire::read_request(&mut stream, &mut buffer).await {
        let seen = Arc::new(Seen {
            key: request.key(),
            method: request.method,
            path: request.path,
            headers: request.headers,
            body: request.body,
            at: Instant::now(),
            tcp,
            fate: watch::Sender::new(Fate::Running),
            ended: Mutex::new(None),
        });
        let (acts, finish) = shared.next(&seen.key).script();
        shared.seen.send_modify(|all| all.push(Arc::clone(&seen)));
        // Whoever has read the last piece may send the next request before
        // this task goes on, so the end is noted before that piece.
        let ends = (finish != Finish::Hang).then_some(&*seen);
        let done = perform(&mut stream, &mut buffer, acts, ends).await
            && (finish != Finish::Hang || hang(&mut stream, &mut buffer).await);
        let fate = if done {
            Fate::Done
        } else {
            Fate::Dropped(Instant::now())
        };
        seen.end();
        seen.fate.send_replace(fate);
        match finish {
            Finish::KeepOpen if done => {}
            Finish::Reset => {
                stream.set_zero_linger().unwrap();
                return;
            }
            Finish::KeepOpen | Finish::Close | Finish::Hang => return,
        }
    }
}

/// Performs the acts; false when the peer closed before the last one.
async fn perform(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    acts: Vec<Act>,
    ends: Option<&Seen>,
) -> bool {
    let last = acts.len().saturating_sub(1);
    for (at, act) in acts.into_iter().enumerate() {
        if let (Some(seen), true, Act::Send(_)) = (ends, at == last, &act) {
            seen.end();
        }
        let going = match act {
            Act::Send(bytes) => {
                let sent = stream.write_all(&bytes).await.is_ok() && stream.flush().await.is_ok();
                // Lets the bytes leave as a write of their own.
                tokio::task::yield_now().await;
                sent
            }
            Act::Wait(time) => tokio::select! {
                () = tokio::time::sleep(time) => true,
                () = closed(stream, buffer) => false,
            },
            Act::Gate(gate) => tokio::select! {
                () = gate.pass() => true,
                () = closed(stream, buffer) => false,
            },
        };
        if !going {
            return false;
        }
    }
    true
}

/// Does nothing until the peer closes; always false.
async fn hang(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> bool {
    closed(stream, buffer).await;
    false
}

/// Returns once the peer has closed; what it sends before is kept.
async fn closed(stream: &mut TcpStream, buffer: &mut Vec<u8>) {
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = stream.read(&mut bytes).await {
        buffer.extend_from_slice(&bytes[..read]);
    }
}

/// A port of loopback that refuses connections and stays taken while it is held.
pub struct Refused(TcpSocket);

impl Default for Refused {
    fn default() -> Self {
        Self::new()
    }
}

impl Refused {
    /// Takes a free port without listening on it.
    pub fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self(socket)
    }

    /// The base URL to configure.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.0.local_addr().unwrap())
    }
}

/// A port of loopback on which a connection is never established: its backlog is full.
pub struct BlackHole {
    listener: TcpListener,
    _fillers: Vec<TcpStream>,
}

impl BlackHole {
    /// Fills a listener that nobody accepts from.
    pub async fn start() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let addr = listener.local_addr().unwrap();
        let mut fillers = Vec::new();
        while let Ok(filler) =
            tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(addr)).await
        {
            fillers.push(filler.unwrap());
            assert!(fillers.len() < 64, "the backlog does not fill");
        }
        Self {
            listener,
            _fillers: fillers,
        }
    }

    /// The base URL to configure.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.listener.local_addr().unwrap())
    }
}
