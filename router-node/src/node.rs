//! The composition root: the only file that sees everything.

mod changes;
mod follow;
mod registry;
mod reload;
mod retry;
mod roster;
mod settings;
mod stop;
mod store;
mod usage;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use actix::Addr;
use actix_web::dev::ServerHandle;
use actix_web::{App, HttpServer};
use arc_swap::ArcSwap;
use shared_proto::clock::Millis;
use shared_proto::config::{Config, StoreUrl};
use shared_proto::mirror::{Health, Mirror};

use crate::actor::owner::Shared;
use crate::config::{Origin, Seen};
use crate::egress::{self, Egress};
use crate::http;
use crate::lease::Leases;
use crate::observe::{Observer, Shelf, Spans};
use crate::pins::Pins;
use crate::routing::{Routing, build};
use crate::slots::Slots;
use crate::token;
use crate::upstream::Clients;
use crate::welcome;
use changes::Changes;
use follow::{Follower, Following};
use registry::Registry;
use roster::Roster;
use settings::{Inbox, Settings};

pub(crate) use changes::{Listener as ChangeListener, Over};
pub(crate) use reload::Reloads;
pub(crate) use settings::{Saving, Unsaved, save};
pub(crate) use stop::Stop;

/// Requests' heads have to arrive within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// Idle client connections are kept this long: longer than the 60 s of common
/// load balancers, so that they close first.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// The store lets go of its files within this time, or the system closes them.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);

/// What a token endpoint has answered is stored within this time, or lost.
const REFRESH_DEADLINE: Duration = Duration::from_secs(5);

/// What a node could not start for.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration has problems; each names its place.
    #[error("the configuration has {} problem(s)", .0.len())]
    Config(Vec<shared_proto::config::Problem>),
    /// The store can't be opened.
    #[error(transparent)]
    Store(#[from] shared_proto::mirror::embedded::OpenError),
    /// The shared store can't be looked for.
    #[error(transparent)]
    Redis(#[from] shared_proto::mirror::redis::OpenError),
    /// The store can't be read.
    #[error("the store can't be read: {0}")]
    Snapshot(String),
    /// A listener can't be bound.
    #[error("{setting}: can't listen on {address}: {error}")]
    Listen {
        /// The setting that names the address.
        setting: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// The server failed while it ran.
    #[error("the server failed: {0}")]
    Server(#[from] std::io::Error),
}

/// What all workers of a node share.
pub(crate) struct Node {
    pub(crate) observer: Arc<Observer>,
    pub(crate) shelf: Addr<Shelf>,
    pub(crate) mirror: Arc<dyn Mirror>,
    pub(crate) id: String,
    pub(crate) reloads: Reloads,
    /// Whether other nodes may use the store.
    pub(crate) shared_store: bool,
    pub(crate) changes: Changes,
    pub(crate) leases: Leases,
    pub(crate) slots: Slots,
    pub(crate) pins: Pins,
    /// Settings saved through the API.
    pub(crate) settings: Settings,
    pub(crate) egress: Arc<Egress>,
    /// Token refreshes under way.
    refreshes: token::Jobs,
    following: Following,
    roster: Roster,
    /// How often a snapshot was begun to be read.
    readings: Arc<AtomicU64>,
    pub(crate) stop: Stop,
    routing: ArcSwap<Routing>,
}

impl Node {
    /// The store's time.
    pub(crate) fn now(&self) -> Millis {
        self.mirror.now()
    }

    /// The configuration in force.
    pub(crate) fn routing(&self) -> Arc<Routing> {
        self.routing.load_full()
    }

    /// Whether a coordinator leads, as far as is known here.
    pub(crate) fn is_led(&self) -> bool {
        self.following.is_led(self.now())
    }

    /// Whether the store takes changes, and those made elsewhere arrive here.
    pub(crate) fn store_is_up(&self) -> bool {
        self.mirror.health() == Health::Up && self.following.follows()
    }
}

/// What one worker thread has to itself.
pub(crate) struct Worker {
    pub(crate) node: Arc<Node>,
    pub(crate) clients: Clients,
}

impl Worker {
    /// The store's time.
    pub(crate) fn now(&self) -> Millis {
        self.node.now()
    }
}

/// What a listener serves, and to whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listener {
    /// Whether the client API is here.
    pub(crate) clients: bool,
    /// Whether the management API is here.
    pub(crate) manage: bool,
    /// Whether it only takes callers of this machine.
    pub(crate) loopback: bool,
}

/// Does the coordinator's duties where the store belongs to this process.
async fn duties(node: Arc<Node>, prefix: String) {
    if node.shared_store {
        return;
    }
    let metrics = node.observer.metrics.duties.clone();
    let mirror = Arc::clone(&node.mirror);
    let configured = move || {
        let routing = node.routing();
        let ids = routing.config.connections.iter().map(|one| one.id.clone());
        Some(ids.collect())
    };
    let work = coordinator::Work {
        mirror,
        prefix,
        configured: Arc::new(configured),
        metrics,
    };
    coordinator::alone(work).await;
}

/// Runs a node until it is told to stop. Requests are traced as `spans` says.
pub(crate) async fn run(origin: Origin, spans: Option<Spans>) -> Result<(), StartError> {
    let seen = origin.read(&Seen::default());
    let mut seen = seen.map_err(StartError::Config)?;
    let loaded = origin.load(&mut seen).map_err(StartError::Config)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let config = Arc::new(loaded.config);
    let (node, keeping, follower) = start(Arc::clone(&config), spans).await?;
    roster::begin(&node).await;
    let servers = listen(&node, &config)?;
    welcome::show(&config, &loaded.found, &servers.addresses);
    let watching = reload::watch(Arc::clone(&node), keeping, origin, seen);
    let watching = async {
        tokio::join!(
            watching,
            follower.run(),
            roster::keep(Arc::clone(&node)),
            store::watch(Arc::clone(&node)),
            retry::keep(Arc::clone(&node)),
            usage::keep(Arc::clone(&node)),
            egress::keep(Arc::clone(&node)),
            duties(Arc::clone(&node), config.store.prefix.clone()),
        );
    };
    let stopping = stop::on_signal(Arc::clone(&node), servers.handles.clone());
    let serving = futures_util::future::try_join_all(servers.running);
    tokio::pin!(serving, watching, stopping);
    let result = tokio::select! {
        served = &mut serving => served.map(drop),
        () = &mut watching => serving.await.map(drop),
        () = &mut stopping => Ok(()),
    };
    node.slots.leave().await;
    node.refreshes.finish(REFRESH_DEADLINE).await;
    roster::leave(&node).await;
    // What was accepted is durable already; closing only lets go of the files.
    tokio::time::timeout(CLOSE_DEADLINE, node.mirror.close())
        .await
        .ok();
    tracing::info!("stopped");
    Ok(result?)
}

async fn start(
    config: Arc<Config>,
    spans: Option<Spans>,
) -> Result<(Arc<Node>, (Registry, Inbox), Follower), StartError> {
    let prefix = config.store.prefix.clone();
    let shared_store = matches!(config.store.url, StoreUrl::Redis(_));
    let (mirror, snapshot) = store::open(&config.store).await?;
    let position = snapshot.as_ref().map(|snapshot| snapshot.position);
    let (config, known) = settings::at_start(config, snapshot.as_ref());
    let (settings, inbox) = Settings::new(known);
    let observer = Arc::new(Observer::new(spans));
    observer.metrics.store_up.set(i64::from(snapshot.is_some()));
    let readings = Arc::new(AtomicU64::new(0));
    let leases = Leases::start(
        &mirror,
        &prefix,
        snapshot.as_ref(),
        config.settings.leases,
        observer.metrics.leases.clone(),
    );
    let shared = Shared {
        mirror: Arc::clone(&mirror),
        commits: observer.metrics.commits.clone(),
        readings: Arc::clone(&readings),
    };
    let id = config.node_id.as_ref().map_or_else(
        || format!("node-{}", uuid::Uuid::new_v4().simple()),
        |id| id.as_str().to_owned(),
    );
    let tokens = token::Shared {
        mirror: Arc::clone(&mirror),
        keyring: config.secret_keys.clone(),
        holder: format!("{id}/{}", uuid::Uuid::new_v4().simple()).into(),
        metrics: observer.metrics.tokens.clone(),
        jobs: token::Jobs::default(),
    };
    let refreshes = tokens.jobs.clone();
    let mut registry = Registry::new(shared, tokens, &prefix, snapshot);
    let routing = build(config, &mut registry.cells.borrow_mut(), mirror.now());
    let egress = Arc::new(Egress::new(&id, observer.metrics.egress.clone()));
    registry.start(&routing, &egress).await;
    let node = Arc::new(Node {
        shelf: observer.journal.shelf(),
        slots: Slots::start(&mirror, observer.metrics.slots.clone()),
        pins: Pins::start(&mirror, shared_store, observer.metrics.pins.clone()),
        settings,
        egress,
        observer,
        mirror,
        id,
        reloads: Reloads::default(),
        shared_store,
        changes: Changes::default(),
        leases,
        refreshes,
        following: Following::begun(position.is_some()),
        roster: Roster::default(),
        readings,
        routing: ArcSwap::from_pointee(routing),
        stop: Stop::default(),
    });
    let follower = Follower::new(Arc::clone(&node), registry.directory(), &prefix, position);
    Ok((node, (registry, inbox), follower))
}

struct Servers {
    running: Vec<actix_web::dev::Server>,
    handles: Vec<ServerHandle>,
    addresses: Vec<(&'static str, SocketAddr)>,
}

fn listen(node: &Arc<Node>, config: &Config) -> Result<Servers, StartError> {
    let mut servers = Servers {
        running: Vec::new(),
        handles: Vec::new(),
        addresses: Vec::new(),
    };
    let server = &config.server;
    let clients = Listener {
        clients: true,
        manage: server.admin_listen.is_none(),
        loopback: server.listen.ip().is_loopback(),
    };
    servers.add(node, config, ("server.listen", server.listen), clients)?;
    if let Some((_, address)) = servers.addresses.first() {
        node.roster.listens(*address);
    }
    if let Some(address) = server.admin_listen {
        let admin = Listener {
            clients: false,
            manage: true,
            loopback: address.ip().is_loopback(),
        };
        servers.add(node, config, ("server.adminListen", address), admin)?;
    }
    Ok(servers)
}

impl Servers {
    fn add(
        &mut self,
        node: &Arc<Node>,
        config: &Config,
        (setting, address): (&'static str, SocketAddr),
        listener: Listener,
    ) -> Result<(), StartError> {
        let node = Arc::clone(node);
        let app = move || {
            let worker = Rc::new(Worker {
                node: Arc::clone(&node),
                clients: Clients::default(),
            });
            App::new()
                .app_data(worker)
                .configure(http::routes(listener))
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = if listener.clients {
            config.server.workers.unwrap_or(cores)
        } else {
            1
        };
        let server = HttpServer::new(app)
            .workers(workers)
            .client_request_timeout(HEAD_TIMEOUT)
            .keep_alive(KEEP_ALIVE)
            // Each event leaves at once instead of waiting for the last one's receipt.
            .tcp_nodelay(true)
            // A client that hangs up ends its request, upstream call and all.
            .h1_allow_half_closed(false)
            // When to give up is decided by `stop`, which can also tell the requests.
            .shutdown_timeout(u64::MAX)
            .disable_signals()
            .bind(address)
            .map_err(|error| StartError::Listen {
                setting,
                address,
                error,
            })?;
        let bound = server.addrs().first().copied().unwrap_or(address);
        self.addresses.push((setting, bound));
        let server = server.run();
        self.handles.push(server.handle());
        self.running.push(server);
        Ok(())
    }
}
