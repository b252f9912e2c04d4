//! Active leases, and their revocation.

use actix_web::{HttpResponse, web};
use serde_json::{Value, json};
use shared_proto::lease::{Lease, LeaseCode, OwnerHash};

use super::Manager;
use crate::http::reply::ClientError;
use crate::lease::public_id;

/// Rows of one answer.
const MAX_ROWS: usize = 1000;

/// `GET /api/leases`.
pub(super) async fn active(manager: Manager) -> HttpResponse {
    let now = manager.worker.now();
    let table = manager.worker.node.leases.table();
    let mut active: Vec<(&OwnerHash, &Lease)> = table.active(now).collect();
    active.sort_by_key(|(owner, lease)| (lease.acquired_at, *owner));
    let rows: Vec<Value> = active
        .iter()
        .take(MAX_ROWS)
        .map(|(owner, lease)| row(owner, lease))
        .collect();
    manager.json(json!({
        "meta": { "totalLeases": active.len(), "countsCapped": active.len() > MAX_ROWS },
        "leases": rows,
    }))
}

fn row(owner: &OwnerHash, lease: &Lease) -> Value {
    json!({
        "id": public_id(&lease.id(owner)),
        "apiKeyId": lease.api_key,
        "provider": lease.provider,
        "connectionId": lease.connection,
        "generation": lease.generation,
        "state": "ACTIVE",
        "acquiredAt": lease.acquired_at.to_rfc3339(),
        "renewedAt": lease.renewed_at.to_rfc3339(),
        "expiresAt": lease.expires_at.to_rfc3339(),
    })
}

/// `DELETE /api/leases/{id}`: the lease is over, and what is in flight is cut.
pub(super) async fn revoke(manager: Manager, path: web::Path<String>) -> HttpResponse {
    let leases = &manager.worker.node.leases;
    let (now, table) = (manager.worker.now(), leases.table());
    let mut active = table.active(now).map(|(owner, lease)| lease.id(owner));
    let Some(id) = active.find(|id| public_id(id) == path.as_str()) else {
        return manager.error(&not_found());
    };
    match leases.revoke(&id).await {
        Ok(_) => manager.json(json!({ "ok": true, "id": path.as_str() })),
        Err(refusal) if refusal.code() == Some(LeaseCode::Required) => manager.error(&not_found()),
        Err(refusal) => manager.error(&refusal.into()),
    }
}

fn not_found() -> ClientError {
    ClientError::new(
        404,
        "lease_not_found",
        "no active lease has that id; see GET /api/leases",
    )
}
