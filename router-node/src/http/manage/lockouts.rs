//! The locks of models: which run, and the operator's clearing.

use actix_web::{HttpResponse, web};
use serde::Deserialize;
use serde_json::{Value, json};
use shared_proto::lockout::{LockoutEvent, ModelLockouts};

use super::{Manager, words};
use crate::actor::owner::Report;
use crate::http::reply::ClientError;
use crate::request::transition::Durable;
use crate::routing::Slot;

/// Rows of one answer.
const MAX_ROWS: usize = 1000;

/// `GET /api/resilience/model-cooldowns`: the locks that run, longest first.
pub(super) async fn running(manager: Manager) -> HttpResponse {
    let now = manager.worker.now();
    let mut items: Vec<(u64, Value)> = Vec::new();
    for slot in manager.routing.slots.values() {
        let lockouts = slot.cell.lockouts();
        for (key, lockout) in lockouts.running(now) {
            let withheld = lockout.withheld.as_ref().map(|withheld| &withheld.origin);
            let left = lockout.until.since(now);
            let provider = slot.provider.canonical.as_str();
            let connection = slot.connection.id.as_str();
            items.push((
                left,
                json!({
                    "provider": slot.provider.id,
                    "connection": connection,
                    "connectionId": connection,
                    "model": lockout.model,
                    "modelFamily": key,
                    "key": format!("{provider}:{connection}:{key}"),
                    "scope": lockout.scope,
                    "reason": lockout.reason,
                    "status": lockout.status,
                    "remainingMs": left,
                    "failureCount": lockout.failure_count,
                    "quotaPreflight": words::preflight(withheld),
                    "lockedAt": lockout.locked_at.to_rfc3339(),
                    "lockedAtMs": lockout.locked_at,
                    "until": lockout.until.to_rfc3339(),
                    "expiresAt": lockout.until.to_rfc3339(),
                }),
            ));
        }
    }
    items.sort_by_key(|(left, _)| std::cmp::Reverse(*left));
    let capped = items.len() > MAX_ROWS;
    let items: Vec<Value> = items
        .into_iter()
        .take(MAX_ROWS)
        .map(|(_, item)| item)
        .collect();
    manager.json(json!({ "items": items, "countsCapped": capped }))
}

/// What a clearing may name. Anything else in it is left alone.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Wanted {
    provider: Option<String>,
    model: Option<String>,
    connection: Option<String>,
    connection_id: Option<String>,
    all: bool,
}

/// `DELETE /api/resilience/model-cooldowns`.
pub(super) async fn remove(manager: Manager, body: web::Bytes) -> HttpResponse {
    let wanted: Wanted = serde_json::from_slice(&body).unwrap_or_default();
    let named = wanted.provider.is_some() || wanted.model.is_some();
    if wanted.all && (named || wanted.connection.is_some() || wanted.connection_id.is_some()) {
        return manager.error(&ClientError::bad_request(
            "invalid_body",
            None,
            "`all` clears every lock: with a provider, model or connection beside it, it can't be told which is meant",
        ));
    }
    if let Err(error) = manager.writable().await {
        return manager.error(&error);
    }
    let mut durable = Durable::default();
    if wanted.all {
        clear(&manager, (None, None, None), &mut durable).await;
        durable.settle().await;
        return manager.json(json!({ "ok": true, "clearedAll": true }));
    }
    let (Some(provider), Some(model)) = (&wanted.provider, &wanted.model) else {
        return manager.error(&ClientError::bad_request(
            "invalid_body",
            None,
            "the body is {provider, model, connection?} or {all: true}",
        ));
    };
    let connection = wanted.connection.as_ref().or(wanted.connection_id.as_ref());
    let named = (
        Some(provider.as_str()),
        connection.map(String::as_str),
        Some(model.as_str()),
    );
    let cleared = clear(&manager, named, &mut durable).await;
    durable.settle().await;
    let scope = if connection.is_some() {
        "connection-model"
    } else {
        "provider-model"
    };
    manager.json(json!({ "ok": true, "removed": cleared > 0, "scope": scope }))
}

/// Clears locks: of one provider, of one connection, of one model, each if it
/// is named. The number of connections on which something was locked.
pub(super) async fn clear(
    manager: &Manager,
    (provider, connection, model): (Option<&str>, Option<&str>, Option<&str>),
    durable: &mut Durable,
) -> usize {
    let mut count = 0_usize;
    for slot in manager.routing.slots.values() {
        let of_provider = provider.is_none_or(|name| {
            name == slot.provider.id.as_str() || name == slot.provider.canonical.as_str()
        });
        let named = connection.is_none_or(|id| id == slot.connection.id.as_str());
        if of_provider && named && clear_slot(slot, model, durable).await {
            count = count.saturating_add(1);
        }
    }
    count
}

/// Clears the locks of one connection. Whether anything was there.
pub(super) async fn clear_slot(slot: &Slot, model: Option<&str>, durable: &mut Durable) -> bool {
    // Or what is known of its quota would lock them again at once.
    slot.cell.quota.forget();
    let clean = slot.cell.lockouts().is_clean();
    let Some(owner) = slot.cell.lockout_owner().filter(|_| !clean) else {
        return false;
    };
    let event = LockoutEvent::Clear {
        model: model.map(str::to_owned),
    };
    match owner.send(Report::<ModelLockouts>(event)).await {
        Ok(reported) => {
            let changed = reported.durable.is_some()
                || reported.outcome == shared_proto::lockout::Outcome::Recovered;
            durable.push(reported.durable);
            changed
        }
        Err(_) => false,
    }
}
