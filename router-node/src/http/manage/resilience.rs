//! Which connections may be used now, and the operator's resets.

use std::net::IpAddr;

use actix_web::{HttpResponse, web};
use serde::Deserialize;
use serde_json::{Value, json};
use shared_proto::breaker::{Admission, BreakerEvent, ProviderBreaker};
use shared_proto::clock::Millis;
use shared_proto::gate::{GateEvent, ProviderGate};
use shared_proto::health::{ConnectionHealth, HealthEvent, Retry, RetryRules};
use shared_proto::lane::LaneEvent;
use shared_proto::tools::{ToolEvent, ToolLimit};

use super::{Manager, lockouts, words};
use crate::actor::owner::Report;
use crate::http::reply::ClientError;
use crate::request::transition::Durable;
use crate::routing::{ProviderSlot, Slot};

/// Rows of one answer.
const MAX_ROWS: usize = 1000;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Query {
    window_ms: Option<u64>,
    provider: Option<String>,
}

/// `GET /api/resilience/connections?provider=ID`.
pub(super) async fn connections(
    manager: Manager,
    query: Result<web::Query<Query>, actix_web::Error>,
) -> HttpResponse {
    let usable = |query: &web::Query<Query>| {
        let provider = query.provider.as_deref();
        query.window_ms.unwrap_or(0) <= 86_400_000
            && provider.is_none_or(|name| (1..=64).contains(&name.len()))
    };
    let Some(query) = query.ok().filter(usable) else {
        return manager.error(&ClientError::bad_request(
            "invalid_query",
            None,
            "`windowMs` is a number from 0 to 86400000, `provider` a name of 1 to 64 characters",
        ));
    };
    let now = manager.worker.now();
    let routing = &manager.routing;
    let of_it = |slot: &&Slot| {
        let wanted = query.provider.as_deref();
        wanted.is_none_or(|provider| slot.provider.id.as_str() == provider)
    };
    let order = routing.config.connections.iter();
    let slots = order
        .filter_map(|c| routing.slots.get(&c.id))
        .map(|slot| &**slot);
    let slots: Vec<&Slot> = slots.filter(of_it).collect();
    let rules = &routing.config.settings.expired_retry;
    let rows: Vec<Value> = slots
        .iter()
        .take(MAX_ROWS)
        .filter_map(|slot| {
            let provider = routing.providers.get(&slot.provider.id)?;
            let leased = manager
                .worker
                .node
                .leases
                .is_leased(&slot.connection.id, now);
            let known = manager.worker.node.egress.address(&slot.connection.id, now);
            let beside = Beside {
                leased,
                egress_ip: known.filter(|_| slot.egress_family.is_some()),
                rules,
            };
            Some(row(slot, provider, &beside, now))
        })
        .collect();
    manager.json(json!({
        "meta": { "totalConnections": slots.len(), "countsCapped": slots.len() > MAX_ROWS },
        "connections": rows,
    }))
}

/// How the connection stands, its provider's breaker included.
pub(super) fn connection_status(slot: &Slot, provider: &ProviderSlot, now: Millis) -> &'static str {
    let admission = provider.breaker.breaker().admit(now);
    match words::status(&slot.cell.health(), now) {
        "terminal" => "terminal",
        _ if matches!(admission, Admission::Reject { .. }) => "circuit_open",
        status => status,
    }
}

/// What a row says that the connection's own state does not.
struct Beside<'a> {
    leased: bool,
    egress_ip: Option<IpAddr>,
    rules: &'a RetryRules,
}

fn row(slot: &Slot, provider: &ProviderSlot, beside: &Beside<'_>, now: Millis) -> Value {
    let health = slot.cell.health();
    let breaker = provider.breaker.breaker();
    let status = connection_status(slot, provider, now);
    let mut row = json!({
        "id": slot.connection.id,
        "provider": slot.provider.id,
        "priority": slot.connection.priority,
        "connectionStatus": status,
        "isActive": !health.auto_disabled && health.retry(beside.rules) != Retry::Over,
    });
    let (wall, lane) = (slot.wall.as_deref(), slot.cell.lane.state());
    let rest = json!({
        "lowPriorityLane": wall
            .filter(|wall| wall.low_priority)
            .map(|_| words::lane(&lane, now)),
        "limitReset": wall
            .filter(|wall| wall.auto_reset)
            .map(|_| words::limit_reset(&lane)),
        "egressIp": beside.egress_ip,
        "inFlight": slot.cell.in_flight(),
        "maxConcurrent": slot.connection.max_concurrent,
        "leased": beside.leased,
        "breaker": words::breaker(&breaker, now),
        "providerCooldown": words::gate(slot, provider, now),
        "lockouts": words::lockouts(&slot.cell.lockouts(), now),
        "quotaWindows": words::quota_windows(&slot.cell.quota.windows()),
        "rotation": words::rotation(&health, &slot.rotation, now),
    });
    if let (Value::Object(row), Some((total, usable))) = (&mut row, slot.key_counts(&health)) {
        row.insert("keys".to_owned(), json!({"total": total, "usable": usable}));
    }
    if let (Value::Object(row), Value::Object(rest)) = (&mut row, rest) {
        row.extend(words::health(&health, now));
        row.insert(
            "expiredRetry".to_owned(),
            words::retries(&health, beside.rules),
        );
        row.extend(rest);
    }
    row
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResetBody {
    #[serde(default)]
    scope: Scope,
    provider: Option<String>,
    connection: Option<String>,
}

#[derive(Clone, Copy, Deserialize, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
enum Scope {
    /// Breakers and lockouts, when the body names none.
    #[default]
    #[serde(skip)]
    Usual,
    All,
    Breakers,
    Lockouts,
    Cooldowns,
}

/// What a body asks for; the error is that it can't be read, or that nobody is called so.
fn wanted(manager: &Manager, body: &[u8]) -> Result<ResetBody, ClientError> {
    let wanted = if body.iter().all(u8::is_ascii_whitespace) {
        ResetBody::default()
    } else {
        serde_json::from_slice(body).map_err(|error| {
            let message = format!("the body is {{scope?, provider?, connection?}}: {error}");
            ClientError::bad_request("invalid_body", None, message)
        })?
    };
    known(manager, &wanted)?;
    Ok(wanted)
}

/// `POST /api/resilience/reset`.
pub(super) async fn reset(manager: Manager, body: web::Bytes) -> HttpResponse {
    let wanted = match wanted(&manager, &body) {
        Ok(wanted) => wanted,
        Err(error) => return manager.error(&error),
    };
    if let Err(error) = manager.writable().await {
        return manager.error(&error);
    }
    let mut durable = Durable::default();
    let breakers = match wanted.scope {
        Scope::Usual | Scope::All | Scope::Breakers => {
            reset_breakers(&manager, &wanted, &mut durable).await
        }
        Scope::Lockouts | Scope::Cooldowns => 0,
    };
    let cooldowns = match wanted.scope {
        Scope::All | Scope::Cooldowns => reset_cooldowns(&manager, &wanted, &mut durable).await,
        Scope::Usual | Scope::Breakers | Scope::Lockouts => 0,
    };
    let gates = match wanted.scope {
        Scope::Usual | Scope::All | Scope::Cooldowns => {
            reset_gates(&manager, &wanted, &mut durable).await
        }
        Scope::Breakers | Scope::Lockouts => 0,
    };
    let lockouts = match wanted.scope {
        Scope::Usual | Scope::All | Scope::Lockouts => {
            let provider = wanted.provider.as_deref();
            let connection = wanted.connection.as_deref();
            lockouts::clear(&manager, (provider, connection, None), &mut durable).await
        }
        Scope::Breakers | Scope::Cooldowns => 0,
    };
    let tool_limits = match wanted.scope {
        Scope::Usual | Scope::All | Scope::Lockouts => {
            forget_tools(&manager, &wanted, &mut durable).await
        }
        Scope::Breakers | Scope::Cooldowns => 0,
    };
    durable.settle().await;
    let count = match wanted.scope {
        // What is counted is what the call is known for.
        Scope::Usual => breakers,
        Scope::All | Scope::Breakers | Scope::Lockouts | Scope::Cooldowns => {
            breakers.saturating_add(cooldowns).saturating_add(lockouts)
        }
    };
    manager.json(json!({
        "ok": true,
        "resetCount": count,
        "breakers": breakers,
        "cooldowns": cooldowns,
        "lockouts": lockouts,
        "providerCooldowns": gates,
        "toolLimits": tool_limits,
        "message": format!(
            "{breakers} breaker(s), {cooldowns} cooldown(s) and the lockouts of {lockouts} connection(s) reset"
        ),
    }))
}

/// `DELETE /api/monitoring/health`: every breaker is closed and forgets.
pub(super) async fn close_breakers(manager: Manager) -> HttpResponse {
    if let Err(error) = manager.writable().await {
        return manager.error(&error);
    }
    let mut durable = Durable::default();
    let count = reset_breakers(&manager, &ResetBody::default(), &mut durable).await;
    durable.settle().await;
    manager.json(json!({
        "success": true,
        "resetCount": count,
        "message": format!("{count} breaker(s) reset"),
    }))
}

fn known(manager: &Manager, wanted: &ResetBody) -> Result<(), ClientError> {
    let routing = &manager.routing;
    let provider = wanted.provider.as_deref();
    if provider.is_some_and(|id| !routing.config.providers.contains_key(id)) {
        let message = "there is no provider of that name";
        return Err(ClientError::new(404, "provider_not_found", message));
    }
    let connection = wanted.connection.as_deref();
    if connection.is_some_and(|id| !routing.slots.contains_key(id)) {
        return Err(connection_not_found());
    }
    Ok(())
}

fn connection_not_found() -> ClientError {
    ClientError::new(
        404,
        "connection_not_found",
        "no enabled connection has that id; see GET /api/resilience/connections",
    )
}

/// Whether the reset is about the provider.
fn is_meant(wanted: &ResetBody, provider: &ProviderSlot) -> bool {
    let id = provider.provider.id.as_str();
    let named = wanted.provider.as_deref().is_none_or(|p| p == id);
    named
        && wanted.connection.as_deref().is_none_or(|c| {
            let mut of_it = provider.all.iter();
            of_it.any(|slot| slot.connection.id.as_str() == c)
        })
}

async fn reset_gates(manager: &Manager, wanted: &ResetBody, durable: &mut Durable) -> usize {
    let mut count = 0_usize;
    for provider in manager.routing.providers.values() {
        let owner = provider.gate.owner();
        let Some(owner) = owner.filter(|_| is_meant(wanted, provider)) else {
            continue;
        };
        let counted = !provider.gate.gate().is_clean();
        let told = owner.send(Report::<ProviderGate>(GateEvent::Reset)).await;
        durable.push(told.ok().and_then(|reported| reported.durable));
        count = count.saturating_add(usize::from(counted));
    }
    count
}

/// Forgets what providers said of tools. Theirs, so not where one connection is meant.
async fn forget_tools(manager: &Manager, wanted: &ResetBody, durable: &mut Durable) -> usize {
    let mut count = 0_usize;
    let now = manager.worker.now();
    let providers = manager.routing.providers.values();
    for provider in providers.filter(|_| wanted.connection.is_none()) {
        let owner = provider.tools.owner();
        let Some(owner) = owner.filter(|_| is_meant(wanted, provider)) else {
            continue;
        };
        let known = provider.tools.state().known(now).is_some();
        let event = ToolEvent::Forget { at: now };
        let told = owner.send(Report::<ToolLimit>(event)).await;
        durable.push(told.ok().and_then(|reported| reported.durable));
        count = count.saturating_add(usize::from(known));
    }
    count
}

async fn reset_breakers(manager: &Manager, wanted: &ResetBody, durable: &mut Durable) -> usize {
    let mut count = 0_usize;
    for provider in manager.routing.providers.values() {
        let owner = provider.breaker.owner();
        let Some(owner) = owner.filter(|_| is_meant(wanted, provider)) else {
            continue;
        };
        let tripped = !provider.breaker.breaker().is_clean();
        let told = owner
            .send(Report::<ProviderBreaker>(BreakerEvent::Reset))
            .await;
        durable.push(told.ok().and_then(|reported| reported.durable));
        count = count.saturating_add(usize::from(tripped));
    }
    count
}

/// Ends cooldowns. A terminal state stays, unless everything is reset.
async fn reset_cooldowns(manager: &Manager, wanted: &ResetBody, durable: &mut Durable) -> usize {
    let mut count = 0_usize;
    for slot in manager.routing.slots.values() {
        let provider = wanted.provider.as_deref();
        let connection = wanted.connection.as_deref();
        let named = provider.is_none_or(|p| p == slot.provider.id.as_str())
            && connection.is_none_or(|c| c == slot.connection.id.as_str());
        let health = slot.cell.health();
        let stays = health.terminal.is_some() && wanted.scope != Scope::All;
        if !named || health.is_clean() || stays {
            continue;
        }
        drop(health);
        count = count.saturating_add(usize::from(reset_slot(slot, durable).await));
    }
    count
}

async fn reset_slot(slot: &Slot, durable: &mut Durable) -> bool {
    slot.cell.quota.forget();
    let Some(owner) = slot.cell.owner() else {
        return false;
    };
    let told = owner
        .send(Report::<ConnectionHealth>(HealthEvent::Reset))
        .await;
    match told {
        Ok(reported) => {
            let changed = reported.durable.is_some();
            durable.push(reported.durable);
            changed
        }
        Err(_) => false,
    }
}

/// `POST /api/connections/{id}/reset`: the connection is as good as new,
/// terminal or not.
pub(super) async fn reset_one(manager: Manager, path: web::Path<String>) -> HttpResponse {
    let Some(slot) = manager.routing.slots.get(path.as_str()) else {
        return manager.error(&connection_not_found());
    };
    if let Err(error) = manager.writable().await {
        return manager.error(&error);
    }
    let mut durable = Durable::default();
    let changed = reset_slot(slot, &mut durable).await;
    let changed = lockouts::clear_slot(slot, None, &mut durable).await || changed;
    slot.cell.lane.tell(LaneEvent::Forget).await;
    durable.settle().await;
    manager.json(json!({ "ok": true, "connection": slot.connection.id, "changed": changed }))
}
