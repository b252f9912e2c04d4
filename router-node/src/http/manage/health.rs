//! Whether the process lives, whether it can route, and how the providers are.

use std::collections::BTreeMap;

use actix_web::HttpResponse;
use serde_json::{Value, json};
use shared_proto::health::Blocked;

use crate::http::Here;
use crate::node::Node;
use crate::observe::StateLabels;

/// `GET /healthz`: the process answers.
pub(in crate::http) async fn healthz() -> HttpResponse {
    HttpResponse::Ok().json(json!({"status": "ok"}))
}

/// `GET /readyz`: 200 when requests can be routed.
pub(in crate::http) async fn readyz(Here(worker): Here) -> HttpResponse {
    let node = &worker.node;
    let degraded = degraded(node);
    let draining = node.stop.begun();
    let status = match (draining, degraded.is_empty()) {
        (true, _) => "draining",
        (false, true) => "ready",
        (false, false) => "degraded",
    };
    let body = json!({
        "status": status,
        "degraded": degraded,
        "store": if node.store_is_up() { "up" } else { "down" },
        "coordinator": coordinator(node),
        "node": node.id,
        "version": env!("CARGO_PKG_VERSION"),
    });
    if draining {
        HttpResponse::ServiceUnavailable().json(body)
    } else {
        HttpResponse::Ok().json(body)
    }
}

/// Who does the coordinator's duties: this process, one that leads, or nobody,
/// which makes nothing wrong, only late.
fn coordinator(node: &Node) -> &'static str {
    if !node.shared_store {
        "embedded"
    } else if node.is_led() {
        "up"
    } else {
        "absent"
    }
}

fn degraded(node: &Node) -> Vec<&'static str> {
    let mut degraded = Vec::new();
    if !node.store_is_up() {
        degraded.push("store");
    }
    if node.reloads.refused() {
        degraded.push("config");
    }
    degraded
}

/// `GET /metrics`: text for Prometheus; no connection names.
pub(super) async fn metrics(Here(worker): Here) -> HttpResponse {
    let node = &worker.node;
    let metrics = &node.observer.metrics;
    metrics.store_up.set(i64::from(node.store_is_up()));
    let counts = count(node);
    for (provider, counts) in &counts {
        for (state, number) in [
            ("healthy", counts.healthy),
            ("cooling_down", counts.cooling),
            ("terminal", counts.terminal),
        ] {
            let labels = StateLabels {
                provider: provider.clone(),
                state,
            };
            metrics.connections.get_or_create(&labels).set(number);
        }
        for state in ["CLOSED", "DEGRADED", "OPEN", "HALF_OPEN"] {
            let labels = StateLabels {
                provider: provider.clone(),
                state,
            };
            let is = i64::from(counts.breaker == state);
            metrics.breakers.get_or_create(&labels).set(is);
        }
    }
    HttpResponse::Ok()
        .content_type("application/openmetrics-text; version=1.0.0; charset=utf-8")
        .body(metrics.encode())
}

#[derive(Default)]
struct Counts {
    healthy: i64,
    cooling: i64,
    terminal: i64,
    soonest_ms: Option<u64>,
    breaker: &'static str,
    failures: u32,
    retry_after_ms: u64,
}

fn count(node: &Node) -> BTreeMap<String, Counts> {
    let now = node.now();
    let routing = node.routing();
    let mut all = BTreeMap::new();
    for (id, provider) in &routing.providers {
        let breaker = provider.breaker.breaker();
        let mut counts = Counts {
            breaker: breaker.state(now).as_str(),
            failures: breaker.failure_count,
            retry_after_ms: breaker.retry_after_ms(now),
            ..Counts::default()
        };
        for slot in &provider.all {
            let of_state = match slot.cell.eligible(now) {
                Ok(()) => &mut counts.healthy,
                Err(Blocked::Terminal(_)) => &mut counts.terminal,
                Err(Blocked::Cooling { until }) => {
                    let wait = until.since(now);
                    counts.soonest_ms = Some(counts.soonest_ms.map_or(wait, |s| s.min(wait)));
                    &mut counts.cooling
                }
            };
            *of_state = of_state.saturating_add(1);
        }
        all.insert(id.as_str().to_owned(), counts);
    }
    all
}

/// `GET /api/monitoring/health`: for anybody; no secrets, no connection names.
pub(super) async fn monitoring(Here(worker): Here) -> HttpResponse {
    let node = &worker.node;
    let counts = count(node);
    let with = |state: &str| counts.values().filter(|c| c.breaker == state).count();
    let breakers: Vec<Value> = counts
        .iter()
        .map(|(provider, c)| {
            json!({"provider": provider, "state": c.breaker, "failureCount": c.failures,
                "retryAfterMs": c.retry_after_ms})
        })
        .collect();
    let cooling: BTreeMap<&String, Value> = counts
        .iter()
        .filter(|(_, c)| c.cooling > 0)
        .map(|(provider, c)| {
            let total = c
                .healthy
                .saturating_add(c.cooling)
                .saturating_add(c.terminal);
            let health = json!({"coolingDown": c.cooling, "total": total,
                "soonestRetryAfterMs": c.soonest_ms});
            (provider, health)
        })
        .collect();
    let up = node.store_is_up();
    let degraded = degraded(node);
    let body = json!({
        "status": if degraded.is_empty() { "healthy" } else { "degraded" },
        "degraded": degraded,
        "version": env!("CARGO_PKG_VERSION"),
        "timestamp": node.now().to_rfc3339(),
        "db": if up { "available" } else { "unavailable" },
        "circuitBreakers": {
            "open": with("OPEN"), "halfOpen": with("HALF_OPEN"), "degraded": with("DEGRADED"),
            "closed": with("CLOSED"), "total": counts.len(),
        },
        "providerBreakers": breakers,
        "connectionHealth": cooling,
    });
    if up {
        HttpResponse::Ok().json(body)
    } else {
        HttpResponse::ServiceUnavailable().json(body)
    }
}
