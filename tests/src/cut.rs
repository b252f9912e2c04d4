//! A TCP proxy that misbehaves to order, between a node and its store or an
//! upstream. It changes its manner for the connections it has and for new ones
//! at once. What it withholds is not lost but late, as on a network whose
//! partition heals: it is delivered when bytes may pass again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::port::Port;
use crate::wait::eventually;

/// Most connections at a time; more wait for one to end.
const MOST: usize = 1024;
/// Most bytes withheld in one direction of a connection.
const BUFFER: usize = 16 * 1024;

/// How the proxy behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Bytes pass at once.
    Pass,
    /// Every piece is late by this time, in both directions.
    Delay(Duration),
    /// One byte in this time, in both directions.
    Drip(Duration),
    /// What clients send passes; what the server answers is withheld.
    Mute,
    /// Connections are accepted and nothing passes.
    BlackHole,
    /// Connections are reset, new ones as soon as they are there.
    Cut,
    /// Connections are reset and new ones are refused.
    Refuse,
}

impl Mode {
    const fn severs(self) -> bool {
        matches!(self, Self::Cut | Self::Refuse)
    }
}

/// The proxy; it ends with its connections when dropped.
#[derive(Debug)]
pub struct Cut {
    port: Port,
    mode: watch::Sender<Mode>,
    listens: watch::Receiver<bool>,
    counts: Arc<Counts>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    live: AtomicU64,
    accepted: AtomicU64,
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Cut {
    /// A proxy in front of `target` that lets everything pass.
    pub async fn before(target: SocketAddr) -> Self {
        let port = Port::take();
        let (mode, modes) = watch::channel(Mode::Pass);
        let (listening, listens) = watch::channel(false);
        let counts = Arc::new(Counts::default());
        let proxy = Proxy {
            at: port.addr(),
            target,
            modes,
            counts: Arc::clone(&counts),
            room: Arc::new(Semaphore::new(MOST)),
        };
        let server = tokio::spawn(async move { proxy.serve(&listening).await });
        let cut = Self {
            port,
            mode,
            listens,
            counts,
            server,
        };
        cut.set(Mode::Pass).await;
        cut
    }

    /// Where clients reach it.
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// How many connections it has now.
    pub fn live(&self) -> u64 {
        self.counts.live.load(Ordering::SeqCst)
    }

    /// How many connections it ever accepted.
    pub fn accepted(&self) -> u64 {
        self.counts.accepted.load(Ordering::SeqCst)
    }

    /// Behaves like this from now on; returns once it does.
    pub async fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        eventually("the proxy changes its manner", || async {
            let listens = *self.listens.borrow() == (mode != Mode::Refuse);
            let severed = !mode.severs() || self.live() == 0;
            (listens && severed).then_some(())
        })
        .await;
    }

    /// Resets what is there and goes on as before.
    pub async fn blink(&self) {
        let before = *self.mode.borrow();
        self.set(Mode::Cut).await;
        self.set(before).await;
    }
}

struct Proxy {
    at: SocketAddr,
    target: SocketAddr,
    modes: watch::Receiver<Mode>,
    counts: Arc<Counts>,
    room: Arc<Semaphore>,
}

impl Proxy {
    async fn serve(self, listening: &watch::Sender<bool>) {
        let mut modes = self.modes.clone();
        loop {
            let open = modes.wait_for(|mode| *mode != Mode::Refuse);
            if open.await.is_err() {
                return;
            }
            let listener = TcpListener::bind(self.at).await.unwrap();
            listening.send_replace(true);
            tokio::select! {
                gone = modes.wait_for(|mode| *mode == Mode::Refuse) => {
                    if gone.is_err() {
                        return;
                    }
                }
                () = self.accept(&listener) => {}
            }
            drop(listener);
            listening.send_replace(false);
        }
    }

    async fn accept(&self, listener: &TcpListener) {
        loop {
            let room = Arc::clone(&self.room).acquire_owned().await.unwrap();
            let Ok((client, _)) = listener.accept().await else {
                continue;
            };
            let counts = Arc::clone(&self.counts);
            counts.accepted.fetch_add(1, Ordering::SeqCst);
            counts.live.fetch_add(1, Ordering::SeqCst);
            let (target, modes) = (self.target, self.modes.clone());
            tokio::spawn(async move {
                relay(client, target, modes).await;
                counts.live.fetch_sub(1, Ordering::SeqCst);
                drop(room);
            });
        }
    }
}

async fn relay(mut client: TcpStream, target: SocketAddr, mut modes: watch::Receiver<Mode>) {
    let mut both = modes.clone();
    let connected = tokio::select! {
        () = severed(&mut modes) => None,
        connected = TcpStream::connect(target) => connected.ok(),
    };
    let Some(mut server) = connected else {
        drop(client.set_zero_linger());
        return;
    };
    for stream in [&client, &server] {
        drop(stream.set_nodelay(true));
    }
    let cut = {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let mut back = modes.clone();
        let forth = pump(from_client, to_server, &mut both, Way::ToServer);
        let back = pump(from_server, to_client, &mut back, Way::ToClient);
        tokio::select! {
            () = severed(&mut modes) => true,
            (forth, back) = futures_util::future::join(forth, back) => forth || back,
        }
    };
    if cut {
        drop(client.set_zero_linger());
        drop(server.set_zero_linger());
    }
}

/// Returns once connections are to be reset, or the proxy is gone.
async fn severed(modes: &mut watch::Receiver<Mode>) {
    drop(modes.wait_for(|mode| mode.severs()).await);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    ToServer,
    ToClient,
}

/// Copies until the end of `from`; true when it broke instead of ending.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    modes: &mut watch::Receiver<Mode>,
    way: Way,
) -> bool {
    let mut buffer = vec![0; BUFFER];
    loop {
        let read = from.read(&mut buffer).await;
        let Ok(read) = read else {
            return true;
        };
        if read == 0 {
            passing(modes, way).await;
            return to.shutdown().await.is_err();
        }
        if deliver(&buffer[..read], &mut to, modes, way).await.is_err() {
            return true;
        }
    }
}

async fn deliver(
    bytes: &[u8],
    to: &mut WriteHalf<'_>,
    modes: &mut watch::Receiver<Mode>,
    way: Way,
) -> std::io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        let mode = passing(modes, way).await;
        let (now, pause) = match mode {
            Mode::Delay(late) => (left.len(), late),
            Mode::Drip(each) => (1, each),
            Mode::Pass | Mode::Mute | Mode::BlackHole | Mode::Cut | Mode::Refuse => {
                (left.len(), Duration::ZERO)
            }
        };
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
            // What was on its way when the line went dead is withheld too.
            passing(modes, way).await;
        }
        to.write_all(&left[..now]).await?;
        left = &left[now..];
    }
    Ok(())
}

/// Waits until bytes may pass this way; the manner in which they may.
async fn passing(modes: &mut watch::Receiver<Mode>, way: Way) -> Mode {
    let may = |mode: &Mode| match mode {
        Mode::BlackHole => false,
        Mode::Mute => way == Way::ToServer,
        Mode::Pass | Mode::Delay(_) | Mode::Drip(_) | Mode::Cut | Mode::Refuse => true,
    };
    modes.wait_for(may).await.map_or(Mode::Cut, |mode| *mode)
}
