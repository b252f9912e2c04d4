//! `GET /api/events`: every change of shared state as it reaches this node.

use std::sync::Arc;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use bytes::Bytes;
use futures_util::{Stream, stream};
use serde_json::{Map, Value, json};
use shared_proto::breaker::ProviderBreaker;
use shared_proto::clock::Millis;
use shared_proto::config::Saved;
use shared_proto::health::ConnectionHealth;
use shared_proto::lane::UsageLane;
use shared_proto::lockout::ModelLockouts;
use shared_proto::mirror::key::Key;
use shared_proto::mirror::log::{LogEntry, Logged};
use shared_proto::mirror::record::Record;
use shared_proto::tools::ToolLimit;

use super::{Manager, words};
use crate::http::reply::{ClientError, stamp};
use crate::node::{ChangeListener, Node, Over};

/// Silence after which a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// `GET /api/events`.
pub(super) async fn events(manager: Manager) -> HttpResponse {
    let node = Arc::clone(&manager.worker.node);
    if node.stop.begun() {
        return manager.error(&refused("stopping", "this node is stopping"));
    }
    let Some(listener) = node.changes.listen() else {
        return manager.error(&refused(
            "too_many_listeners",
            "as many as may are listening to this node's events already",
        ));
    };
    let mut response = HttpResponse::Ok();
    stamp(&mut response, &manager.id);
    response
        .insert_header((CONTENT_TYPE, "text/event-stream"))
        .insert_header((CACHE_CONTROL, "no-store"))
        .streaming(frames(node, listener))
}

fn refused(code: &'static str, message: &'static str) -> ClientError {
    ClientError {
        retry_after_ms: Some(5_000),
        ..ClientError::new(503, code, message)
    }
}

enum Stage {
    Begin(ChangeListener),
    Listen(ChangeListener),
    Ended,
}

fn frames(
    node: Arc<Node>,
    listener: ChangeListener,
) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
    stream::unfold((node, Stage::Begin(listener)), |(node, stage)| async move {
        let (frame, stage) = match stage {
            // So that the listener knows from when on it misses nothing.
            Stage::Begin(listener) => (comment("listening"), Stage::Listen(listener)),
            Stage::Listen(mut listener) => {
                match tokio::time::timeout(KEEP_ALIVE, listener.next()).await {
                    Ok(Ok(entry)) => (frame(&entry, node.now()), Stage::Listen(listener)),
                    Ok(Err(over)) => (last(over), Stage::Ended),
                    Err(_) => (comment("keep-alive"), Stage::Listen(listener)),
                }
            }
            Stage::Ended => return None,
        };
        Some((Ok(frame), (node, stage)))
    })
}

fn comment(text: &str) -> Bytes {
    format!(": {text}\n\n").into()
}

/// The last event says why there are no more.
fn last(over: Over) -> Bytes {
    let data = match over {
        Over::Stopping => json!({"reason": "stopping"}),
        Over::TooSlow(missed) => json!({"reason": "too_slow", "missed": missed}),
    };
    format!("event: end\ndata: {data}\n\n").into()
}

/// One change. JSON has no line breaks of its own, so it is one line of data.
fn frame(entry: &LogEntry, now: Millis) -> Bytes {
    let data = told(entry, now);
    format!("id: {}\nevent: change\ndata: {data}\n\n", entry.position).into()
}

fn told(entry: &LogEntry, now: Millis) -> Value {
    let (key, at, change) = match &entry.change {
        Logged::Put(record) => (
            Some(&record.key),
            Some(record.written_at),
            changed(record, now),
        ),
        Logged::Deleted { key, at, .. } => (Some(key), Some(*at), json!({"removed": true})),
        Logged::Unreadable(_) => (None, None, json!({"unreadable": true})),
    };
    let (kind, id) = key.map_or(("unknown", None), named);
    json!({
        "kind": kind,
        "id": id,
        "at": at.map(Millis::to_rfc3339),
        "position": entry.position.to_string(),
        "change": change,
    })
}

/// What the change is about. The name of a lease is made from its owner's
/// token, so it is not told.
fn named(key: &Key) -> (&str, Option<&str>) {
    match key {
        Key::Health(id) => ("connection", Some(id.as_str())),
        Key::Lockout(id) => ("lockouts", Some(id.as_str())),
        Key::Lane(id) => ("lane", Some(id.as_str())),
        Key::Breaker(id) => ("breaker", Some(id.as_str())),
        Key::Gate(id) => ("providerCooldown", Some(id.as_str())),
        Key::Tools(id) => ("tools", Some(id.as_str())),
        Key::Bound(id) | Key::Token(id) | Key::Refresh(id) => (key.kind(), Some(id.as_str())),
        Key::Lease(_) | Key::Pin(_) | Key::Leader | Key::Settings | Key::Other(_) => {
            (key.kind(), None)
        }
        Key::Egress(node) => (key.kind(), Some(&**node)),
    }
}

fn changed(record: &Record, now: Millis) -> Value {
    match &record.key {
        Key::Health(_) => record
            .decode::<ConnectionHealth>()
            .map_or_else(|_| unknown(), |health| of_connection(&health, now)),
        Key::Lockout(_) => record.decode::<ModelLockouts>().map_or_else(
            |_| unknown(),
            |lockouts| json!({"lockouts": words::lockouts(&lockouts, now)}),
        ),
        Key::Tools(_) => record.decode::<ToolLimit>().map_or_else(
            |_| unknown(),
            |tools| json!({"maxTools": tools.known(now).map(|known| known.limit)}),
        ),
        Key::Lane(_) => record.decode::<UsageLane>().map_or_else(
            |_| unknown(),
            |lane| json!({"lowPriorityLane": words::lane(&lane, now), "limitReset": words::limit_reset(&lane)}),
        ),
        Key::Breaker(_) => record.decode::<ProviderBreaker>().map_or_else(
            |_| unknown(),
            |breaker| json!({"breaker": words::breaker(&breaker, now)}),
        ),
        Key::Settings => record
            .decode::<Saved>()
            .map_or_else(|_| unknown(), |saved| json!({"sections": saved.sections()})),
        Key::Lease(_)
        | Key::Gate(_)
        | Key::Bound(_)
        | Key::Pin(_)
        | Key::Token(_)
        | Key::Refresh(_)
        | Key::Egress(_)
        | Key::Leader
        | Key::Other(_) => json!({"expiresAt": record.expires_at.map(Millis::to_rfc3339)}),
    }
}

fn of_connection(health: &ConnectionHealth, now: Millis) -> Value {
    let mut change = Map::new();
    change.insert("connectionStatus".into(), words::status(health, now).into());
    change.extend(words::health(health, now));
    Value::Object(change)
}

/// Written by a version that says more than this one understands.
fn unknown() -> Value {
    json!({"unreadable": true})
}

#[cfg(test)]
mod tests;
