//! The settings in force, and changes of them that every node keeps.

use actix_web::http::header::{CACHE_CONTROL, ETAG, IF_MATCH};
use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Map, Value, json};
use shared_proto::breaker::{BreakerEvent, ProviderBreaker};
use shared_proto::config::{Area, Config, Patch, Problem};

use super::{Manager, get_or_head, only};
use crate::actor::owner::Report;
use crate::http::reply::{ClientError, stamp};
use crate::node::{Saving, Unsaved, save};
use crate::request::transition::Durable;

/// Largest change, bytes: all rules at their longest fit.
const MAX_BODY: usize = 512 * 1024;
/// Problems told in one message; all are listed beside it.
const MAX_TOLD: usize = 5;

/// Both routes.
pub(super) fn routes(service: &mut web::ServiceConfig) {
    service.service(
        web::resource("/api/resilience")
            .app_data(web::PayloadConfig::new(MAX_BODY))
            .route(get_or_head().to(resilience))
            .route(web::patch().to(change_resilience))
            .default_service(only("GET, HEAD, PATCH")),
    );
    service.service(
        web::resource("/api/settings")
            .app_data(web::PayloadConfig::new(MAX_BODY))
            .route(get_or_head().to(general))
            .route(web::patch().to(change_general))
            .default_service(only("GET, HEAD, PATCH")),
    );
}

/// `GET /api/resilience`.
async fn resilience(manager: Manager) -> HttpResponse {
    show(&manager, Area::Resilience)
}

/// `GET /api/settings`.
async fn general(manager: Manager) -> HttpResponse {
    show(&manager, Area::General)
}

/// `PATCH /api/resilience`.
async fn change_resilience(
    manager: Manager,
    request: HttpRequest,
    body: Result<web::Bytes, actix_web::Error>,
) -> HttpResponse {
    change(&manager, &request, Area::Resilience, body).await
}

/// `PATCH /api/settings`.
async fn change_general(
    manager: Manager,
    request: HttpRequest,
    body: Result<web::Bytes, actix_web::Error>,
) -> HttpResponse {
    change(&manager, &request, Area::General, body).await
}

fn show(manager: &Manager, area: Area) -> HttpResponse {
    let node = &manager.worker.node;
    // The state's name first: what is shown may be newer, never older.
    let etag = node.settings.known().etag();
    answer(manager, &etag, node.routing().config.shown(area))
}

fn answer(manager: &Manager, etag: &str, shown: Map<String, Value>) -> HttpResponse {
    let mut response = HttpResponse::Ok();
    stamp(&mut response, &manager.id);
    response
        .insert_header((ETAG, etag))
        .insert_header((CACHE_CONTROL, "no-store"))
        .json(shown)
}

async fn change(
    manager: &Manager,
    request: &HttpRequest,
    area: Area,
    body: Result<web::Bytes, actix_web::Error>,
) -> HttpResponse {
    let body = match body {
        Ok(body) => body,
        Err(error) => return manager.error(&unread(&error)),
    };
    let patch = match Patch::read(area, &body) {
        Ok(patch) => patch,
        Err(problems) => return manager.error(&invalid(&problems)),
    };
    let only_if = request.headers().get(IF_MATCH);
    // What is no text names no state.
    let only_if = only_if.map(|value| value.to_str().unwrap_or(""));
    let saving = Saving {
        patch: &patch,
        only_if,
    };
    let done = match save(&manager.worker.node, &saving).await {
        Ok(done) => done,
        Err(unsaved) => return manager.error(&refusal(unsaved)),
    };
    if hints(&done.before) != hints(&done.after) {
        forget_breakers(manager).await;
    }
    let mut shown = Map::new();
    shown.insert("ok".to_owned(), json!(true));
    shown.extend(done.after.shown(area));
    if !done.warnings.is_empty() {
        shown.insert("warnings".to_owned(), listed(&done.warnings));
    }
    answer(manager, &done.etag, shown)
}

/// Whose 429s are trusted, by profile.
fn hints(config: &Config) -> [Option<bool>; 3] {
    let all = &config.settings.connection_cooldown;
    [&all.oauth, &all.api_key, &all.local].map(|one| one.use_upstream_429_breaker_hints)
}

/// What breakers have counted was counted by another rule.
async fn forget_breakers(manager: &Manager) {
    let mut durable = Durable::default();
    for provider in manager.worker.node.routing().providers.values() {
        let Some(owner) = provider.breaker.owner() else {
            continue;
        };
        let reset = Report::<ProviderBreaker>(BreakerEvent::Reset);
        let told = owner.send(reset).await;
        durable.push(told.ok().and_then(|reported| reported.durable));
    }
    durable.settle().await;
}

fn unread(error: &actix_web::Error) -> ClientError {
    let status = error.as_response_error().status_code().as_u16();
    if status == 413 {
        let message = format!("the body is larger than {MAX_BODY} bytes");
        ClientError::new(413, "request_too_large", message)
    } else {
        ClientError::bad_request("incomplete_body", None, "the body ended early")
    }
}

fn invalid(problems: &[Problem]) -> ClientError {
    let told: Vec<String> = problems
        .iter()
        .take(MAX_TOLD)
        .map(Problem::to_string)
        .collect();
    let more = problems.len().saturating_sub(MAX_TOLD);
    let more = if more > 0 {
        format!("; and {more} more")
    } else {
        String::new()
    };
    let of_body = problems.iter().any(|problem| problem.path == "body");
    let mut error = ClientError::bad_request(
        "invalid_settings",
        of_body.then_some("body"),
        format!("{}{more}", told.join("; ")),
    );
    error.extra.insert("problems".to_owned(), listed(problems));
    error
}

fn listed(problems: &[Problem]) -> Value {
    let one = |problem: &Problem| {
        json!({
            "path": problem.path,
            "message": problem.message,
            "suggestion": problem.suggestion,
        })
    };
    problems.iter().map(one).collect()
}

fn refusal(unsaved: Unsaved) -> ClientError {
    let later = |code: &'static str, message: &'static str| ClientError {
        retry_after_ms: Some(1000),
        ..ClientError::new(503, code, message)
    };
    match unsaved {
        Unsaved::Invalid(problems) => invalid(&problems),
        Unsaved::Stale(etag) => ClientError {
            headers: vec![("etag", etag)],
            ..ClientError::new(
                412,
                "settings_changed",
                "somebody else has changed the settings since; read them again",
            )
        },
        Unsaved::Newer => ClientError::new(
            409,
            "settings_newer",
            "a newer version of the router saved settings that this one can't change; update this node",
        ),
        Unsaved::TooLarge => ClientError::new(
            413,
            "settings_too_large",
            "the saved settings would be larger than a record may be (1 MiB)",
        ),
        Unsaved::Busy => later(
            "settings_busy",
            "other changes of the settings are under way; try again",
        ),
        Unsaved::Away => later(
            "store_unavailable",
            "the store does not answer, and the settings in force stay; read them again before you try again",
        ),
    }
}
