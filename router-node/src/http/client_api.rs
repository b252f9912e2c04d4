//! The client API: the four protocols and the list of models.

use std::future::ready;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::encoding::Encoder;
use actix_web::body::MessageBody as _;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, ContentEncoding, HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder, web};
use serde_json::{Value, json};
use shared_proto::config::ApiKey;
use shared_proto::protocol::Protocol;

use super::body::{self, Held, Limits};
use super::reply::{ClientError, Shape, mark, stamp};
use super::stream_body::StreamBody;
use super::{
    GET, Here, auth, get_or_head, headers, leases, refused_call, request_id, shape_of, wrong_method,
};
use crate::node::Worker;
use crate::request::after::After;
use crate::request::background;
use crate::request::dispatch::Whole;
use crate::request::facts::{Facts, session};
use crate::request::leased;
use crate::request::refuse;
use crate::request::resolve::shown;
use crate::request::trace::Trace;
use crate::request::{Admitted, Served, plan};
use crate::routing::Routing;
use crate::simulated;

/// Answers below this size are not worth compressing, bytes.
const COMPRESS_FROM: usize = 1024;

/// The routes below `/v1`.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    for protocol in Protocol::ALL {
        let call = move |here: Here, request: HttpRequest, payload: web::Payload| {
            serve(protocol, here, request, payload)
        };
        let wrong = move |Here(worker): Here, request: HttpRequest| {
            let error = wrong_method(&request, "POST");
            ready(refused_call(&worker, &request, Some(protocol), &error))
        };
        service.service(
            web::resource(format!("/{}", protocol.path()))
                .post(call)
                .route(leases::preflight())
                .default_service(web::to(wrong)),
        );
    }
    leases::routes(service);
    let wrong = |Here(worker): Here, request: HttpRequest| {
        let error = wrong_method(&request, GET);
        ready(refused_call(&worker, &request, None, &error))
    };
    for (path, route) in [
        ("/models", get_or_head().to(models)),
        ("/models/{id:.*}", get_or_head().to(model)),
    ] {
        let resource = web::resource(path).route(route);
        service.service(resource.default_service(web::to(wrong)));
    }
}

async fn serve(
    protocol: Protocol,
    Here(worker): Here,
    request: HttpRequest,
    payload: web::Payload,
) -> HttpResponse {
    let id: Arc<str> = request_id(&request).into();
    let shape = Shape::from(protocol);
    let observer = Arc::clone(&worker.node.observer);
    let (now, headers) = (worker.now(), request.headers());
    let mut trace = Trace::begin(Arc::clone(&id), Some(protocol), now, headers, observer);
    let admitted = tokio::select! {
        biased;
        admitted = admit(protocol, &worker, &request, payload, &mut trace) => admitted,
        () = worker.node.stop.cut() => Err(refuse::shutting_down()),
    };
    let admitted = match admitted {
        Ok(admitted) => Rc::new(admitted),
        Err(error) => {
            trace.refused(&error);
            return error.response(shape, &id);
        }
    };
    let mut response = answer(&request, &admitted, trace, &id).await;
    if admitted.facts.background {
        mark(&mut response, background::WARNING);
    }
    response
}

/// Lets the plan find an answer, and makes the response of it.
async fn answer(
    request: &HttpRequest,
    admitted: &Rc<Admitted>,
    trace: Trace,
    id: &Arc<str>,
) -> HttpResponse {
    let protocol = admitted.protocol;
    let server = &admitted.routing.config.server;
    let keep_alive = Duration::from_millis(server.keep_alive_ms);
    let early = admitted.facts.stream && server.early_keep_alive && !keep_alive.is_zero();
    let planned = plan(Rc::clone(admitted), trace);
    let served = if early {
        // Past one silent interval the head goes out, and the plan goes on
        // inside the body: a proxy in front would give up on a silent answer.
        let mut planned: Pin<Box<dyn Future<Output = Served>>> = Box::pin(planned);
        let Ok(served) = tokio::time::timeout(keep_alive, &mut planned).await else {
            let body = StreamBody::waiting(planned, protocol, Arc::clone(id), keep_alive);
            return event_stream(StatusCode::OK, id, None).body(body);
        };
        served
    } else {
        planned.await
    };
    match served {
        Served::Refused(error) => error.response(Shape::from(protocol), id),
        Served::Whole(mut whole, after) => {
            if admitted.facts.background {
                whole.body = background::noted(&whole.body);
            }
            whole_response(request, whole, &after, id)
        }
        Served::Live(live, after) => {
            let status = StatusCode::from_u16(live.answer().status).unwrap_or(StatusCode::OK);
            let mut response = event_stream(status, id, Some(&after));
            forward_headers(&mut response, &live.answer().headers, &after);
            let id = Arc::clone(id);
            response.body(StreamBody::live(live, after, protocol, id, keep_alive))
        }
    }
}

/// Authenticates the caller and reads the request.
async fn admit(
    protocol: Protocol,
    worker: &Rc<Worker>,
    request: &HttpRequest,
    payload: web::Payload,
    trace: &mut Trace,
) -> Result<Admitted, ClientError> {
    let routing = worker.node.routing();
    let key = auth::client(request, &routing)?;
    trace.edit(|record| record.api_key = key.as_ref().map(|key| key.id.clone()));
    if worker.node.stop.begun() {
        return Err(refuse::shutting_down());
    }
    let lease = leased::context(request.headers(), key.as_deref())?;
    let limits = Limits {
        max_bytes: routing.config.server.max_body_bytes,
        max_memory: routing.config.server.max_body_memory_bytes,
        idle: Duration::from_millis(routing.config.server.body_idle_timeout_ms),
    };
    let mut held = Held::nothing(&worker.node.observer.metrics.request_body_bytes);
    let body = body::read(request.headers(), payload, limits, &mut held).await?;
    let facts = Facts::read(protocol, body)?;
    trace.edit(|record| {
        record.model = Some(facts.model.clone());
        record.stream = facts.stream;
        if facts.background {
            record.warnings.push(background::WARNING);
        }
    });
    if facts.background {
        tracing::warn!(
            request_id = %request_id(request),
            warning = background::WARNING,
            "a background response is run while the client waits"
        );
    }
    let ttl_ms = routing.config.settings.session_affinity_ttl_ms;
    // A lease says where its requests go, whatever their session.
    let session = (ttl_ms > 0 && lease.is_none())
        .then(|| session(protocol, request.headers(), &facts.body))
        .flatten();
    Ok(Admitted {
        protocol,
        facts,
        session,
        _held: held,
        headers: headers::towards_upstream(request.headers()),
        key,
        lease,
        routing,
        worker: Rc::clone(worker),
    })
}

/// A response head for a stream: nothing on the way may hold it back.
fn event_stream(status: StatusCode, id: &str, after: Option<&After>) -> HttpResponseBuilder {
    let mut response = HttpResponse::build(status);
    response.insert_header((header::CONTENT_TYPE, "text/event-stream"));
    response.insert_header((header::CACHE_CONTROL, "no-cache, no-transform"));
    response.insert_header((HeaderName::from_static("x-accel-buffering"), "no"));
    stamp(&mut response, id);
    if let Some(after) = after {
        name_route(&mut response, after);
    }
    response
}

fn whole_response(request: &HttpRequest, whole: Whole, after: &After, id: &str) -> HttpResponse {
    let status = StatusCode::from_u16(whole.status).unwrap_or(StatusCode::OK);
    let mut response = HttpResponse::build(status);
    forward_headers(&mut response, &whole.headers, after);
    if let Ok(value) = HeaderValue::from_bytes(whole.content_type.as_bytes()) {
        response.insert_header((header::CONTENT_TYPE, value));
    }
    stamp(&mut response, id);
    name_route(&mut response, after);
    let encoding = accepted_encoding(request).filter(|_| whole.body.len() >= COMPRESS_FROM);
    let Some(encoding) = encoding else {
        return response.body(whole.body);
    };
    response.insert_header((header::VARY, "accept-encoding"));
    response
        .body(whole.body)
        .map_body(|head, body| Encoder::response(encoding, head, body).boxed())
}

/// The best encoding that the client names; none when it names none.
fn accepted_encoding(request: &HttpRequest) -> Option<ContentEncoding> {
    let accepted = request
        .headers()
        .get(header::ACCEPT_ENCODING)?
        .to_str()
        .ok()?;
    let accepts = |name: &str| {
        accepted.split(',').any(|item| {
            let mut parts = item.split(';').map(str::trim);
            let named = parts.next().is_some_and(|n| n.eq_ignore_ascii_case(name));
            named && !parts.any(|p| matches!(p.replace(' ', "").as_str(), "q=0" | "q=0.0"))
        })
    };
    [
        ("zstd", ContentEncoding::Zstd),
        ("br", ContentEncoding::Brotli),
        ("gzip", ContentEncoding::Gzip),
        ("deflate", ContentEncoding::Deflate),
    ]
    .into_iter()
    .find_map(|(name, encoding)| accepts(name).then_some(encoding))
}

fn forward_headers(response: &mut HttpResponseBuilder, upstream: &http::HeaderMap, after: &After) {
    let slot = &after.candidate().slot;
    let hop = headers::named_by_upstream(upstream);
    for (name, value) in upstream {
        let kept = name != http::header::CONTENT_TYPE
            && headers::reaches_client(name.as_str())
            && !hop.iter().any(|hop| hop == name.as_str())
            && !slot.shows_secret(value.as_bytes());
        if !kept {
            continue;
        }
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_str().as_bytes()),
            HeaderValue::from_bytes(value.as_bytes()),
        ) {
            response.append_header((name, value));
        }
    }
}

/// Says who served the request.
fn name_route(response: &mut HttpResponseBuilder, after: &After) {
    let candidate = after.candidate();
    let slot = &candidate.slot;
    for (name, value) in [
        ("x-omniroute-connection", slot.connection.id.as_str()),
        ("x-omniroute-provider", slot.provider.id.as_str()),
        ("x-omniroute-model", &*candidate.model),
    ] {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.insert_header((HeaderName::from_static(name), value));
        }
    }
    for warning in after.warnings() {
        if *warning != background::WARNING {
            response.append_header(("x-omniroute-warning", *warning));
        }
    }
    response.insert_header((
        HeaderName::from_static("x-omniroute-attempts"),
        HeaderValue::from(after.attempts()),
    ));
}

async fn models(Here(worker): Here, request: HttpRequest) -> HttpResponse {
    let id = request_id(&request);
    let routing = worker.node.routing();
    match auth::client(&request, &routing) {
        Err(error) => error.response(shape_of(&request), &id),
        Ok(key) => {
            let data = listed(&routing, key.as_deref());
            let mut response = HttpResponse::Ok();
            stamp(&mut response, &id);
            // Both client families read this list; the last three are Anthropic's.
            response.json(json!({
                "object": "list",
                "has_more": false,
                "first_id": data.first().map(|model| model["id"].clone()),
                "last_id": data.last().map(|model| model["id"].clone()),
                "data": data,
            }))
        }
    }
}

async fn model(Here(worker): Here, request: HttpRequest, path: web::Path<String>) -> HttpResponse {
    let id = request_id(&request);
    let routing = worker.node.routing();
    let key = match auth::client(&request, &routing) {
        Err(error) => return error.response(shape_of(&request), &id),
        Ok(key) => key,
    };
    let name = path.into_inner();
    let listed = listed(&routing, key.as_deref());
    match listed
        .into_iter()
        .find(|model| model["id"] == name.as_str())
    {
        Some(model) => {
            let mut response = HttpResponse::Ok();
            stamp(&mut response, &id);
            response.json(model)
        }
        None => ClientError::new(
            404,
            "model_not_found",
            format!(
                "the model `{}` is not listed; see GET /v1/models",
                shown(&name)
            ),
        )
        .response(shape_of(&request), &id),
    }
}

/// The models `key` may name: combos first, then every listed model as
/// `provider/model`.
fn listed(routing: &Routing, key: Option<&ApiKey>) -> Vec<Value> {
    let combos = routing
        .config
        .combos
        .iter()
        .map(|combo| (combo.name.clone(), "combo".to_owned()));
    let mut models: Vec<(String, String)> = routing
        .listed_models()
        .map(|(name, provider)| {
            let provider = provider.provider.id.as_str();
            (format!("{provider}/{name}"), provider.to_owned())
        })
        .collect();
    models.sort_unstable();
    for provider in routing.providers.values() {
        let provider = &provider.provider;
        if provider.endpoints.simulated {
            let name = provider.id.as_str();
            let of_it = simulated::MODELS.iter();
            models.extend(of_it.map(|model| (format!("{name}/{model}"), name.to_owned())));
        }
    }
    let allowed = |name: &str| {
        key.is_none_or(|key| {
            let list = &key.allowed_models;
            list.is_empty() || list.iter().any(|allowed| allowed == name)
        })
    };
    combos
        .chain(models)
        .filter(|(name, _)| allowed(name))
        .map(|(name, owner)| {
            json!({
                "id": name,
                "object": "model",
                "type": "model",
                "display_name": name,
                "created": 0,
                "created_at": "1970-01-01T00:00:00Z",
                "owned_by": owner,
            })
        })
        .collect()
}
