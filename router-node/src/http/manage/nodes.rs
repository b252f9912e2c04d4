//! Who lives: router nodes and coordinators.

use actix_web::HttpResponse;
use serde_json::{Value, json};
use shared_proto::roster::Member;

use super::Manager;

/// `GET /api/nodes`.
pub(super) async fn nodes(manager: Manager) -> HttpResponse {
    let node = &manager.worker.node;
    let (members, stale) = node.members();
    let rows: Vec<Value> = members
        .iter()
        .map(|member| row(member, member.id == node.id))
        .collect();
    manager.json(json!({
        // The store is away: the others are those last seen.
        "stale": stale,
        "liveRouters": node.live_nodes(),
        "nodes": rows,
    }))
}

fn row(member: &Member, is_this: bool) -> Value {
    let note = &member.note;
    json!({
        "id": member.id,
        "role": note.role,
        "version": note.version,
        "address": note.address,
        "startedAt": note.started_at.to_rfc3339(),
        "heartbeat": note.at.to_rfc3339(),
        "expiresAt": member.until.to_rfc3339(),
        "inFlight": note.in_flight,
        "lagMs": note.lag_ms,
        "leads": note.leads,
        "thisNode": is_this,
    })
}
