//! The operator's live test of one connection.

use std::rc::Rc;
use std::sync::Arc;

use actix_web::{HttpResponse, web};
use serde::Deserialize;
use serde_json::json;
use shared_proto::lockout::MODEL_MAX_BYTES;

use super::{Manager, resilience};
use crate::http::reply::ClientError;
use crate::request::trial::{Trial, Why};

/// Characters of the message.
const MAX_MESSAGE: usize = 300;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Body {
    model: Option<String>,
}

impl Body {
    fn read(bytes: &[u8]) -> Result<Self, ClientError> {
        if bytes.iter().all(u8::is_ascii_whitespace) {
            return Ok(Self::default());
        }
        let refused = |why: &dyn std::fmt::Display| {
            let message = format!("the body is empty or {{\"model\": \"...\"}}: {why}");
            ClientError::bad_request("invalid_body", None, message)
        };
        let body: Self = serde_json::from_slice(bytes).map_err(|error| refused(&error))?;
        let usable = body.model.as_ref().is_none_or(|model| {
            let name = model.trim();
            (1..=MODEL_MAX_BYTES).contains(&name.len()) && !name.chars().any(char::is_control)
        });
        if usable {
            Ok(body)
        } else {
            Err(refused(&format!(
                "`model` is a name of 1 to {MODEL_MAX_BYTES} bytes"
            )))
        }
    }
}

/// `POST /api/connections/{id}/test`: asks the upstream something small, now.
pub(super) async fn test(
    manager: Manager,
    path: web::Path<String>,
    body: web::Bytes,
) -> HttpResponse {
    let Some((provider, slot)) = manager.routing.connection(path.as_str()) else {
        return manager.error(&ClientError::new(
            404,
            "connection_not_found",
            "no connection has that id",
        ));
    };
    let body = match Body::read(&body) {
        Ok(body) => body,
        Err(error) => return manager.error(&error),
    };
    let trial = Trial {
        worker: Rc::clone(&manager.worker),
        routing: Arc::clone(&manager.routing),
        provider: Arc::clone(&provider),
        slot: Arc::clone(&slot),
        model: body.model.map(|model| model.trim().to_owned()),
        id: manager.id.as_str().into(),
        why: Why::Operator,
    };
    let verdict = match trial.run().await {
        Ok(verdict) => verdict,
        Err(error) => return manager.error(&error),
    };
    let failure = verdict.failure.as_ref();
    let message = failure.map(|failure| {
        let words = failure.message.chars();
        words.take(MAX_MESSAGE).collect::<String>()
    });
    let now = manager.worker.now();
    manager.json(json!({
        "connection": slot.connection.id,
        "ok": verdict.passed(),
        "status": verdict.status,
        "reason": failure.map(|failure| failure.reason),
        "message": message,
        "model": verdict.model,
        "latencyMs": verdict.latency_ms,
        "connectionStatus": resilience::connection_status(&slot, &provider, now),
    }))
}
