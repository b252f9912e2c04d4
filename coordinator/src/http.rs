//! What a coordinator tells: that it lives, its role, its metrics. Nothing here
//! is secret, and nothing can be changed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix_web::dev::Server;
use actix_web::{App, HttpResponse, HttpServer, guard, web};
use prometheus_client::encoding::text;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::json;
use shared_proto::mirror::{Health, Mirror};

use crate::lead::Board;
use crate::metrics::Metrics;

/// A request's head has to arrive within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections at once.
const MAX_CONNECTIONS: usize = 256;

/// What the handlers read.
pub(crate) struct Desk {
    pub(crate) id: String,
    pub(crate) mirror: Arc<dyn Mirror>,
    pub(crate) board: Board,
    pub(crate) draining: AtomicBool,
    registry: Registry,
    leader: Gauge,
    epoch: Gauge,
    store_up: Gauge,
}

impl Desk {
    pub(crate) fn new(id: String, mirror: Arc<dyn Mirror>, metrics: &Metrics) -> Self {
        let mut registry = Registry::default();
        let common = registry.sub_registry_with_prefix("omniroute");
        metrics.register(common);
        let (leader, epoch, store_up) = (Gauge::default(), Gauge::default(), Gauge::default());
        for (name, help, gauge) in [
            (
                "coordinator_leader",
                "1 while this coordinator leads",
                &leader,
            ),
            (
                "coordinator_epoch",
                "The highest epoch of a leader heard of",
                &epoch,
            ),
            ("store_up", "1 while the store takes writes", &store_up),
        ] {
            common.register(name, help, gauge.clone());
        }
        Self {
            id,
            mirror,
            board: Board::default(),
            draining: AtomicBool::new(false),
            registry,
            leader,
            epoch,
            store_up,
        }
    }

    /// Whether it leads now, as far as it can know.
    pub(crate) fn leads(&self) -> bool {
        self.board.leads(self.mirror.now())
    }

    pub(crate) fn store_is_up(&self) -> bool {
        self.mirror.health() == Health::Up
    }

    fn metrics(&self) -> String {
        self.leader.set(i64::from(self.leads()));
        let epoch = i64::try_from(self.board.epoch()).unwrap_or(i64::MAX);
        self.epoch.set(epoch);
        self.store_up.set(i64::from(self.store_is_up()));
        let mut out = String::new();
        // Writing to a string can't fail.
        text::encode(&mut out, &self.registry).ok();
        out
    }
}

/// Serves on `address` once it is awaited.
pub(crate) fn serve(desk: Arc<Desk>, address: SocketAddr) -> std::io::Result<(Server, SocketAddr)> {
    let app = move || {
        let read = || web::route().guard(guard::Any(guard::Get()).or(guard::Head()));
        App::new()
            .app_data(web::Data::from(Arc::clone(&desk)))
            .route("/healthz", read().to(healthz))
            .route("/readyz", read().to(readyz))
            .route("/metrics", read().to(metrics))
    };
    let server = HttpServer::new(app)
        .workers(1)
        .max_connections(MAX_CONNECTIONS)
        .client_request_timeout(HEAD_TIMEOUT)
        .disable_signals()
        .bind(address)?;
    let bound = server.addrs().first().copied().unwrap_or(address);
    Ok((server.run(), bound))
}

async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(json!({"status": "ok"}))
}

/// 200 unless it stops; a store that is away makes it `degraded`, since nobody
/// could do anything about that by taking this process away.
async fn readyz(desk: web::Data<Desk>) -> HttpResponse {
    let draining = desk.draining.load(Ordering::Relaxed);
    let up = desk.store_is_up();
    let status = match (draining, up) {
        (true, _) => "draining",
        (false, true) => "ready",
        (false, false) => "degraded",
    };
    let degraded: &[&str] = if up { &[] } else { &["store"] };
    let body = json!({
        "status": status,
        "degraded": degraded,
        "role": if desk.leads() { "leader" } else { "standby" },
        "epoch": desk.board.epoch(),
        "store": if up { "up" } else { "down" },
        "node": desk.id,
        "version": env!("CARGO_PKG_VERSION"),
    });
    if draining {
        HttpResponse::ServiceUnavailable().json(body)
    } else {
        HttpResponse::Ok().json(body)
    }
}

async fn metrics(desk: web::Data<Desk>) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("application/openmetrics-text; version=1.0.0; charset=utf-8")
        .body(desk.metrics())
}
