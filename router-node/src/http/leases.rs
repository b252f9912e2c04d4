//! The life of a session lease: acquire, renew, release, status.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::HeaderValue;
use actix_web::{HttpRequest, HttpResponse, Route, web};
use shared_proto::config::ApiKey;
use shared_proto::id::{ApiKeyId, ConnectionId};
use shared_proto::lease::lifecycle::{self, Action, ConnectionLabel};
use shared_proto::lease::{
    self, Acquire, EndReason, Generation, Lease, LeaseCode, OwnerHash, Presented, Refusal,
};
use tokio::time::Instant;

use super::body::{self, Held, Limits};
use super::reply::{ClientError, Shape, stamp};
use super::{Here, auth, request_id, wrong_method};
use crate::lease::{KIND, Operation};
use crate::node::Worker;
use crate::request::leased::{GENERATION, OWNER, only};
use crate::request::pick::Picker;
use crate::request::refuse;
use crate::request::resolve::{self, Nowhere};
use crate::routing::Routing;

/// Largest body, bytes: an action with the longest model that is taken.
const MAX_BODY: usize = 16 * 1024;
/// Longest silence while it is sent.
const BODY_IDLE: Duration = Duration::from_secs(5);

/// The route below `/v1`.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    let wrong = async |request: HttpRequest| {
        let id = request_id(&request);
        wrong_method(&request, "POST").response(Shape::OpenAi, &id)
    };
    service.service(
        web::resource("/session-leases")
            .post(serve)
            .route(preflight())
            .default_service(web::to(wrong)),
    );
}

/// Answers a browser's question which headers it may send. Which sites may is
/// not said: this router serves none.
pub(super) fn preflight() -> Route {
    web::route()
        .method(actix_web::http::Method::OPTIONS)
        .to(async |request: HttpRequest| {
            let allowed = format!(
                "authorization, content-type, x-api-key, x-request-id, {OWNER}, {GENERATION}"
            );
            let mut response = HttpResponse::NoContent();
            stamp(&mut response, &request_id(&request));
            response
                .insert_header(("access-control-allow-methods", "POST"))
                .insert_header(("access-control-allow-headers", allowed))
                .finish()
        })
}

async fn serve(Here(worker): Here, request: HttpRequest, payload: web::Payload) -> HttpResponse {
    let id = request_id(&request);
    let begun = Instant::now();
    let mut said = Said::default();
    let acted = act(&worker, &request, payload, &mut said).await;
    said.log(&id, acted.as_ref().err(), begun);
    match acted {
        Ok(answer) => {
            let mut response = HttpResponse::Ok();
            stamp(&mut response, &id);
            response.json(answer)
        }
        Err(error) => {
            // What the ordinary policy refuses is told in its own shape.
            let own = error.kind == Some(KIND);
            let shape = if own { Shape::Lease } else { Shape::OpenAi };
            error.response(shape, &id)
        }
    }
}

/// What the one line of a call says. Nothing of its owner.
#[derive(Default)]
struct Said {
    action: Option<&'static str>,
    key: Option<ApiKeyId>,
    connection: Option<ConnectionId>,
    generation: Option<Generation>,
}

impl Said {
    fn log(&self, id: &str, error: Option<&ClientError>, begun: Instant) {
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let text = |value: Option<&str>| value.unwrap_or("-").to_owned();
        tracing::info!(
            request_id = id,
            action = self.action.unwrap_or("-"),
            key = text(self.key.as_ref().map(ApiKeyId::as_str)),
            connection = text(self.connection.as_ref().map(ConnectionId::as_str)),
            generation = self.generation.map(Generation::number),
            status = error.map_or(200, |error| error.status),
            code = error.map_or("ok", |error| &*error.code),
            took_ms,
            "lease"
        );
    }
}

/// The checks, in their order, and then the action.
async fn act(
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: web::Payload,
    said: &mut Said,
) -> Result<lifecycle::LeaseAnswer, ClientError> {
    let routing = worker.node.routing();
    let key = auth::lessee(request, &routing)?;
    said.key = Some(key.id.clone());
    if worker.node.stop.begun() {
        return Err(refuse::shutting_down());
    }
    let action = read(worker, request, payload, &routing).await?;
    said.action = Some(match &action {
        Action::Acquire { .. } => "acquire",
        Action::Renew { .. } => "renew",
        Action::Release { .. } => "release",
        Action::Status { .. } => "status",
    });
    if let Action::Acquire { model } = &action {
        resolve::allowed(&key, model)?;
    }
    let allowed = key.allowed_connections.as_ref().map_or(0, Vec::len);
    lifecycle::managed(key.is_managed(), allowed)?;
    let owner = lifecycle::owner(only(request.headers(), OWNER)?)?;
    let call = Call {
        worker,
        routing: &routing,
        key: &key,
        owner,
    };
    let outcome = match action {
        Action::Acquire { model } => call.acquire(&model).await?,
        Action::Renew { generation } => call.renew(generation).await,
        Action::Release { generation, reason } => call.release(generation, reason).await,
        Action::Status { generation } => call.status(generation).await,
    };
    let lease = outcome?.lease;
    said.connection = Some(lease.connection.clone());
    said.generation = Some(lease.generation);
    Ok(call.answer(&lease, said.action == Some("status")))
}

async fn read(
    worker: &Worker,
    request: &HttpRequest,
    payload: web::Payload,
    routing: &Routing,
) -> Result<Action, ClientError> {
    let limits = Limits {
        max_bytes: MAX_BODY,
        max_memory: routing.config.server.max_body_memory_bytes,
        idle: BODY_IDLE,
    };
    let content_type = request.headers().get("content-type");
    let content_type = content_type.map(HeaderValue::as_bytes);
    if let Err(LeaseCode::ContentTypeRequired) = lifecycle::action(content_type, b"") {
        return Err(LeaseCode::ContentTypeRequired.into());
    }
    let mut held = Held::nothing(&worker.node.observer.metrics.request_body_bytes);
    let body = match body::read(request.headers(), payload, limits, &mut held).await {
        Ok(body) => body,
        // Too much for an action, or not what it says it is.
        Err(error) if matches!(error.status, 400 | 413 | 415) => {
            return Err(LeaseCode::ActionInvalid.into());
        }
        Err(error) => return Err(error),
    };
    Ok(lifecycle::action(content_type, &body)?)
}

/// One action of an owner with its key.
struct Call<'a> {
    worker: &'a Worker,
    routing: &'a Routing,
    key: &'a Arc<ApiKey>,
    owner: OwnerHash,
}

type Outcome = Result<lease::Binding, Refusal>;

impl Call<'_> {
    async fn acquire(&self, model: &str) -> Result<Outcome, ClientError> {
        let now = self.worker.now();
        let targets = match resolve::find(self.routing, model) {
            Ok(targets) => targets,
            Err(Nowhere::Unknown) => return Err(LeaseCode::ModelInvalid.into()),
            Err(Nowhere::NoConnection { .. }) => {
                return Err(LeaseCode::NoEligibleConnection.into());
            }
        };
        let picker = Picker::new(&targets, Some(self.key), None);
        let candidates = picker.open(now);
        let ask = Acquire {
            owner: &self.owner,
            api_key: &self.key.id,
            candidates: &candidates,
            none: if picker.anybody() {
                LeaseCode::EligibilityUnavailable
            } else {
                LeaseCode::NoEligibleConnection
            },
        };
        let rules = self.routing.config.settings.leases;
        let operation = Operation::Acquire;
        let leases = &self.worker.node.leases;
        let acquiring = leases.drive(operation, |seen, now| {
            lease::acquire(seen, &ask, &rules, now)
        });
        Ok(acquiring.await)
    }

    async fn renew(&self, generation: Generation) -> Outcome {
        let presented = self.presented(generation);
        let rules = self.routing.config.settings.leases;
        let leases = &self.worker.node.leases;
        let renewing = leases.drive(Operation::Renew, |seen, now| {
            lease::renew(seen, &presented, &rules, now)
        });
        renewing.await
    }

    async fn release(&self, generation: Generation, reason: EndReason) -> Outcome {
        let presented = self.presented(generation);
        let leases = &self.worker.node.leases;
        let releasing = leases.drive(Operation::Release, |seen, now| {
            lease::release(seen, &presented, reason, now)
        });
        releasing.await
    }

    async fn status(&self, generation: Generation) -> Outcome {
        let presented = self.presented(generation);
        let leases = &self.worker.node.leases;
        let asking = leases.drive(Operation::Status, |seen, now| {
            lease::status(seen, &presented, now)
        });
        asking.await
    }

    fn presented(&self, generation: Generation) -> Presented {
        Presented {
            owner: self.owner.clone(),
            generation,
            api_key: self.key.id.clone(),
        }
    }

    fn answer(&self, lease: &Lease, labelled: bool) -> lifecycle::LeaseAnswer {
        let label = labelled.then(|| ConnectionLabel {
            // The configuration has no names but ids, which are not told.
            display_name: None,
            provider: lease.provider.as_str().to_owned(),
        });
        lease.answer(self.worker.now(), label)
    }
}
