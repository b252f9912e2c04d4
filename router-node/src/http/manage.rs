//! The management API, behind the admin rule, and the public health routes.

pub(super) mod health;
mod requests;
mod resilience;

use std::rc::Rc;
use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;

use super::reply::{ClientError, Shape, stamp};
use super::{Here, auth, request_id};
use crate::node::{Listener, Worker};
use crate::routing::Routing;

/// Management bodies are small, bytes.
const MAX_BODY: usize = 64 * 1024;

/// The routes of `listener`: all of them, or those anybody may see.
pub(super) fn routes(service: &mut web::ServiceConfig, listener: Listener) {
    if !listener.manage {
        return;
    }
    service.app_data(listener);
    service.app_data(web::PayloadConfig::new(MAX_BODY));
    service.service(web::resource("/metrics").get(health::metrics));
    service.service(web::resource("/api/monitoring/health").get(health::monitoring));
    service.service(web::resource("/api/resilience/connections").get(resilience::connections));
    service.service(web::resource("/api/resilience/reset").post(resilience::reset));
    service.service(web::resource("/api/connections/{id}/reset").post(resilience::reset_one));
    service.service(web::resource("/api/requests").get(requests::newest));
    service.service(web::resource("/api/requests/{id}").get(requests::one));
    service.service(web::resource("/api/{rest:.*}").default_service(web::to(unknown)));
}

/// Whatever is not known yet is management too: it is not told to strangers.
async fn unknown(Here(worker): Here, request: HttpRequest) -> HttpResponse {
    match Manager::admit(worker, &request) {
        Ok(manager) => manager.error(&ClientError::new(
            404,
            "not_found",
            "there is no such route",
        )),
        Err(refused) => refused,
    }
}

/// A caller who may manage the router.
struct Manager {
    worker: Rc<Worker>,
    routing: Arc<Routing>,
    id: String,
}

impl Manager {
    /// Applies the admin rule.
    fn admit(worker: Rc<Worker>, request: &HttpRequest) -> Result<Self, HttpResponse> {
        let id = request_id(request);
        let routing = worker.node.routing();
        let loopback = request.app_data::<Listener>().is_some_and(|l| l.loopback);
        match auth::manager(request, &routing, loopback) {
            Ok(()) => Ok(Self {
                worker,
                routing,
                id,
            }),
            Err(error) => Err(error.response(Shape::OpenAi, &id)),
        }
    }

    fn json(&self, body: impl Serialize) -> HttpResponse {
        let mut response = HttpResponse::Ok();
        stamp(&mut response, &self.id);
        response.json(body)
    }

    fn error(&self, error: &ClientError) -> HttpResponse {
        error.response(Shape::OpenAi, &self.id)
    }
}
