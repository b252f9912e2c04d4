//! The HTTP surface: which path leads where, on which listener.

mod auth;
pub(crate) mod body;
mod client_api;
pub(crate) mod headers;
mod leases;
mod manage;
pub(crate) mod pieces;
pub(crate) mod reply;
mod stream_body;

use std::future::{Ready, ready};
use std::rc::Rc;
use std::sync::Arc;

use actix_web::dev::Payload;
use actix_web::{FromRequest, Handler, HttpRequest, HttpResponse, Resource, Responder, guard, web};
use shared_proto::protocol::Protocol;

use crate::node::{Listener, Worker};
use crate::request::trace::Trace;
use reply::{ClientError, Shape};

/// Everything a listener serves.
pub(crate) fn routes(listener: Listener) -> impl FnOnce(&mut web::ServiceConfig) {
    move |service| {
        if listener.clients {
            for prefix in ["/v1", "/api/v1"] {
                let unknown = web::to(unknown_call);
                let scope = web::scope(prefix).configure(client_api::routes);
                service.service(scope.default_service(unknown));
            }
        }
        service.service(reading("/healthz", manage::health::healthz));
        service.service(reading("/readyz", manage::health::readyz));
        manage::routes(service, listener);
        if listener.clients {
            service.default_service(web::to(unknown_call));
        } else {
            service.default_service(web::to(async |request: HttpRequest| {
                let id = request_id(&request);
                not_found(&request).response(Shape::OpenAi, &id)
            }));
        }
    }
}

/// What only GET reads; HEAD is answered alike, and the server leaves out the body.
fn reading<F, A>(path: &str, handler: F) -> Resource
where
    F: Handler<A>,
    A: FromRequest + 'static,
    F::Output: Responder + 'static,
{
    let wrong = async |request: HttpRequest| {
        let id = request_id(&request);
        wrong_method(&request, GET).response(Shape::OpenAi, &id)
    };
    web::resource(path)
        .route(get_or_head().to(handler))
        .default_service(web::to(wrong))
}

/// The methods of what is read, as `Allow` names them.
const GET: &str = "GET, HEAD";

fn get_or_head() -> actix_web::Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}

fn wrong_method(request: &HttpRequest, allowed: &'static str) -> ClientError {
    let mut error = ClientError::new(
        405,
        "method_not_allowed",
        format!(
            "{} is not allowed at {}; use {allowed}",
            shortened(request.method().as_str()),
            shortened(request.path())
        ),
    );
    error.headers.push(("allow", allowed.to_owned()));
    error
}

fn not_found(request: &HttpRequest) -> ClientError {
    let path = shortened(request.path());
    ClientError::new(404, "not_found", format!("there is nothing at {path}"))
}

/// A client that calls what is not there, most often by a wrong base URL.
async fn unknown_call(Here(worker): Here, request: HttpRequest) -> HttpResponse {
    let error = not_found(&request);
    refused_call(&worker, &request, None, &error)
}

/// Refuses a call of the client API before it is anybody's request; it is
/// among the recent requests all the same.
fn refused_call(
    worker: &Worker,
    request: &HttpRequest,
    protocol: Option<Protocol>,
    error: &ClientError,
) -> HttpResponse {
    let id: Arc<str> = request_id(request).into();
    let observer = Arc::clone(&worker.node.observer);
    let (now, headers) = (worker.now(), request.headers());
    Trace::begin(Arc::clone(&id), protocol, now, headers, observer).refused(error);
    let shape = protocol.map_or_else(|| shape_of(request), Shape::from);
    error.response(shape, &id)
}

/// The shape that a caller understands where the path alone does not say it.
fn shape_of(request: &HttpRequest) -> Shape {
    let anthropic =
        request.headers().contains_key("anthropic-version") || request.path().contains("/messages");
    if anthropic {
        Shape::Anthropic
    } else {
        Shape::OpenAi
    }
}

/// Enough of what a client sent to recognise it.
fn shortened(text: &str) -> String {
    text.chars().take(128).collect()
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
