//! The HTTP surface: which path leads where, on which listener.

mod auth;
pub(crate) mod body;
mod client_api;
pub(crate) mod headers;
mod manage;
pub(crate) mod pieces;
pub(crate) mod reply;
mod stream_body;

use std::future::{Ready, ready};
use std::rc::Rc;

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpRequest, HttpResponse, web};

use crate::node::{Listener, Worker};
use reply::{ClientError, Shape};

/// Everything a listener serves.
pub(crate) fn routes(listener: Listener) -> impl FnOnce(&mut web::ServiceConfig) {
    move |service| {
        if listener.clients {
            for prefix in ["/v1", "/api/v1"] {
                service.service(web::scope(prefix).configure(client_api::routes));
            }
        }
        service.service(web::resource("/healthz").get(manage::health::healthz));
        service.service(web::resource("/readyz").get(manage::health::readyz));
        manage::routes(service, listener);
        service.default_service(web::to(not_found));
    }
}

async fn not_found(request: HttpRequest) -> HttpResponse {
    let path: String = request.path().chars().take(128).collect();
    ClientError::new(404, "not_found", format!("there is nothing at {path}"))
        .response(Shape::OpenAi, &request_id(&request))
}

/// The request's id: the client's own when it is usable, else a new one.
pub(crate) fn request_id(request: &HttpRequest) -> String {
    let own = request.headers().get("x-request-id");
    let own = own.and_then(|value| value.to_str().ok()).unwrap_or("");
    let usable = (1..=128).contains(&own.len())
        && own
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b));
    if usable {
        own.to_owned()
    } else {
        format!("req_{}", uuid::Uuid::new_v4().simple())
    }
}

/// The worker that serves the request.
pub(crate) struct Here(pub(crate) Rc<Worker>);

impl FromRequest for Here {
    type Error = actix_web::Error;
    type Future = Ready<Result<Self, Self::Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let worker = request.app_data::<Rc<Worker>>().cloned();
        let missing = || actix_web::error::ErrorInternalServerError("the worker is not set up");
        ready(worker.map(Self).ok_or_else(missing))
    }
}
