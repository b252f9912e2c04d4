//! The management API, behind the admin rule, and the public health routes.

mod events;
pub(super) mod health;
mod leases;
mod lockouts;
mod nodes;
mod requests;
mod resilience;
mod settings;
mod trial;
mod words;

use std::future::{Ready, ready};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::Payload;
use actix_web::error::InternalError;
use actix_web::{FromRequest, HttpRequest, HttpResponse, Route, web};
use serde::Serialize;
use shared_proto::mirror::LoadError;
use shared_proto::mirror::key::Key;
use tokio::time::timeout;

use super::reply::{ClientError, Shape, stamp};
use super::{GET, Here, auth, get_or_head, not_found, reading, request_id, wrong_method};
use crate::node::{Listener, Worker};
use crate::routing::Routing;

/// Management bodies are small, bytes.
const MAX_BODY: usize = 64 * 1024;
/// How long a write waits to hear whether the store is there.
const STORE_DEADLINE: Duration = Duration::from_millis(250);

/// The routes of `listener`: all of them, or those anybody may see.
pub(super) fn routes(service: &mut web::ServiceConfig, listener: Listener) {
    if !listener.manage {
        return;
    }
    service.app_data(listener);
    service.app_data(web::PayloadConfig::new(MAX_BODY));
    service.service(reading("/metrics", health::metrics));
    service.service(
        web::resource("/api/monitoring/health")
            .route(get_or_head().to(health::monitoring))
            .route(web::delete().to(resilience::close_breakers))
            .default_service(only("GET, HEAD, DELETE")),
    );
    resilience_routes(service);
    service.service(
        web::resource("/api/requests")
            .route(get_or_head().to(requests::newest))
            .default_service(only(GET)),
    );
    service.service(
        web::resource("/api/requests/{id}")
            .route(get_or_head().to(requests::one))
            .default_service(only(GET)),
    );
    service.service(
        web::resource("/api/nodes")
            .route(get_or_head().to(nodes::nodes))
            .default_service(only(GET)),
    );
    service.service(
        web::resource("/api/leases")
            .route(get_or_head().to(leases::active))
            .default_service(only(GET)),
    );
    service.service(
        web::resource("/api/leases/{id}")
            .route(web::delete().to(leases::revoke))
            .default_service(only("DELETE")),
    );
    service.service(
        web::resource("/api/events")
            .get(events::events)
            .default_service(only("GET")),
    );
    service.service(web::resource("/api/{rest:.*}").default_service(web::to(unknown)));
}

/// Settings, and what may be used now.
fn resilience_routes(service: &mut web::ServiceConfig) {
    settings::routes(service);
    service.service(
        web::resource("/api/resilience/connections")
            .route(get_or_head().to(resilience::connections))
            .default_service(only(GET)),
    );
    service.service(
        web::resource("/api/resilience/reset")
            .post(resilience::reset)
            .default_service(only("POST")),
    );
    service.service(
        web::resource("/api/resilience/model-cooldowns")
            .route(get_or_head().to(lockouts::running))
            .route(web::delete().to(lockouts::remove))
            .default_service(only("GET, DELETE")),
    );
    service.service(
        web::resource("/api/connections/{id}/reset")
            .post(resilience::reset_one)
            .default_service(only("POST")),
    );
    service.service(
        web::resource("/api/connections/{id}/test")
            .post(trial::test)
            .default_service(only("POST")),
    );
}

/// Whatever is not known yet is management too: it is not told to strangers.
async fn unknown(manager: Manager, request: HttpRequest) -> HttpResponse {
    manager.error(&not_found(&request))
}

/// The answer to other methods than `allowed`, which are not told to strangers either.
fn only(allowed: &'static str) -> Route {
    web::to(move |manager: Manager, request: HttpRequest| {
        ready(manager.error(&wrong_method(&request, allowed)))
    })
}

/// A caller who may manage the router.
struct Manager {
    worker: Rc<Worker>,
    routing: Arc<Routing>,
    id: String,
}

impl FromRequest for Manager {
    type Error = actix_web::Error;
    type Future = Ready<Result<Self, Self::Error>>;

    /// Applies the admin rule.
    fn from_request(request: &HttpRequest, payload: &mut Payload) -> Self::Future {
        let admit = |Here(worker): Here| {
            let id = request_id(request);
            let routing = worker.node.routing();
            let loopback = request.app_data::<Listener>().is_some_and(|l| l.loopback);
            match auth::manager(request, &routing, loopback) {
                Ok(()) => Ok(Self {
                    worker,
                    routing,
                    id,
                }),
                Err(error) => {
                    let response = error.response(Shape::OpenAi, &id);
                    Err(InternalError::from_response("not admitted", response).into())
                }
            }
        };
        ready(
            Here::from_request(request, payload)
                .into_inner()
                .and_then(admit),
        )
    }
}

impl Manager {
    fn json(&self, body: impl Serialize) -> HttpResponse {
        let mut response = HttpResponse::Ok();
        stamp(&mut response, &self.id);
        response.json(body)
    }

    /// Refuses a write that could not reach every node: the store is away. Asks
    /// it, since what this node thinks of it may be a moment old.
    async fn writable(&self) -> Result<(), ClientError> {
        let node = &self.worker.node;
        let asked = async {
            let answered = timeout(STORE_DEADLINE, node.mirror.load(&Key::Leader)).await;
            !matches!(answered, Err(_) | Ok(Err(LoadError::Unreachable(_))))
        };
        if node.store_is_up() && asked.await {
            return Ok(());
        }
        Err(ClientError {
            retry_after_ms: Some(1_000),
            ..ClientError::new(
                503,
                "store_unavailable",
                "the shared store is away, so that nothing was changed; try again when it is back",
            )
        })
    }

    fn error(&self, error: &ClientError) -> HttpResponse {
        error.response(Shape::OpenAi, &self.id)
    }
}
