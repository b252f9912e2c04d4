//! Recent requests of this node: every attempt, every excluded candidate, why.

use actix_web::{HttpResponse, web};
use serde::Deserialize;
use serde_json::json;

use super::Manager;
use crate::http::reply::ClientError;
use crate::observe::{ById, Newest};

/// How many are listed: unless told, and at most.
const USUAL: usize = 100;
const MOST: usize = 1000;

#[derive(Deserialize)]
pub(super) struct Query {
    limit: Option<usize>,
}

/// `GET /api/requests?limit=N`: the newest first.
pub(super) async fn newest(
    manager: Manager,
    query: Result<web::Query<Query>, actix_web::Error>,
) -> HttpResponse {
    let limit = query.map_or(0, |query| query.limit.unwrap_or(USUAL));
    if !(1..=MOST).contains(&limit) {
        return manager.error(&ClientError::bad_request(
            "invalid_query",
            Some("limit"),
            format!("`limit` has to be a whole number from 1 to {MOST}"),
        ));
    }
    match manager.worker.node.shelf.send(Newest(limit)).await {
        Ok(requests) => manager.json(json!({ "requests": requests })),
        Err(_) => manager.error(&stopping()),
    }
}

/// `GET /api/requests/{id}`.
pub(super) async fn one(manager: Manager, path: web::Path<String>) -> HttpResponse {
    let id = path.into_inner();
    match manager.worker.node.shelf.send(ById(id)).await {
        Ok(Some(record)) => manager.json(&record),
        Ok(None) => manager.error(&ClientError::new(
            404,
            "request_not_found",
            "no recent request of this node has that id; the last 1000 are kept",
        )),
        Err(_) => manager.error(&stopping()),
    }
}

fn stopping() -> ClientError {
    ClientError::new(503, "stopping", "this node is stopping")
}
