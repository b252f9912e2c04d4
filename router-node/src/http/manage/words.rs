//! The words in which the state of connections and breakers is told.

use serde_json::{Map, Value, json};
use shared_proto::breaker::ProviderBreaker;
use shared_proto::clock::Millis;
use shared_proto::failure::ErrorType;
use shared_proto::health::{Blocked, ConnectionHealth, LastError, Retry, RetryRules};
use shared_proto::lane::{ResetOutcome, UsageLane};
use shared_proto::lockout::ModelLockouts;
use shared_proto::quota::preflight::Origin;
use shared_proto::quota::{Share, Windows};
use shared_proto::rotation::{RotationClass, RotationRules};

use crate::routing::{ProviderSlot, Slot};

/// A connection's health at `now`.
pub(super) fn health(health: &ConnectionHealth, now: Millis) -> Map<String, Value> {
    let until = match health.eligible(now) {
        Err(Blocked::Cooling { until }) => Some(until),
        Err(Blocked::Terminal(_)) | Ok(()) => None,
    };
    let error = health.last_error.as_ref();
    let words = json!({
        "testStatus": health.status(now).as_str(),
        "rateLimitedUntil": until.map(Millis::as_epoch_ms),
        "cooldownRemainingMs": until.map_or(0, |until| until.since(now)),
        "backoffLevel": health.backoff_level,
        "lastErrorType": error.map(error_type),
        "lastErrorReason": error.map(|e| e.reason),
        "lastErrorRule": error.map(|e| &e.rule),
        "lastErrorMessage": error.map(|e| &e.message),
        "errorCode": error.map(|e| e.status),
        "lastErrorAt": error.map(|e| e.at.to_rfc3339()),
        "hintSource": health.hint_source,
        "quotaPreflight": preflight(health.preflight.as_ref().filter(|_| until.is_some())),
    });
    match words {
        Value::Object(words) => words,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// Retries of an expired connection; null when none was or will be made.
pub(super) fn retries(health: &ConnectionHealth, rules: &RetryRules) -> Value {
    let next = match health.retry(rules) {
        Retry::At { due, .. } => Some(due),
        Retry::Over | Retry::Never => None,
    };
    if next.is_none() && health.expired_retry.is_none() {
        return Value::Null;
    }
    json!({
        "count": health.expired_retry.map_or(0, |retry| retry.count),
        "at": health.expired_retry.map(|retry| retry.at.to_rfc3339()),
        "nextAt": next.map(Millis::to_rfc3339),
        "over": health.retry(rules) == Retry::Over,
    })
}

/// How the gate in front of combos stands; null while it lets the connection pass.
pub(super) fn gate(slot: &Slot, provider: &ProviderSlot, now: Millis) -> Value {
    let id = &slot.connection.id;
    let Some(until) = provider.gate.shut(id, &provider.gate_rules, now) else {
        return Value::Null;
    };
    let gate = provider.gate.gate();
    let whole = gate.provider_rests(&provider.gate_rules, now);
    json!({
        "scope": if whole.is_some() { "provider" } else { "connection" },
        "remainingMs": until.since(now),
        "failureCount": gate.connections.get(id).map_or(0, |failing| failing.count),
        "providerFailureCount": gate.failures.len(),
    })
}

/// Failures that the rotation gate counts at `now`, by class; null where there are none.
pub(super) fn rotation(health: &ConnectionHealth, rules: &RotationRules, now: Millis) -> Value {
    let mut counts = Map::new();
    for class in RotationClass::ALL {
        let rule = rules.of(class);
        let count = health.rotation.within(class, rule.window_ms, now);
        if count > 0 {
            let word = class.as_str().to_owned();
            counts.insert(word, json!({"count": count, "threshold": rule.threshold}));
        }
    }
    if counts.is_empty() {
        Value::Null
    } else {
        Value::Object(counts)
    }
}

/// A provider's breaker at `now`.
pub(super) fn breaker(breaker: &ProviderBreaker, now: Millis) -> Value {
    json!({
        "state": breaker.state(now).as_str(),
        "failureCount": breaker.failure_count,
        "retryAfterMs": breaker.retry_after_ms(now),
    })
}

/// What this node knows of a connection's quota.
pub(super) fn quota_windows(windows: &Windows) -> Vec<Value> {
    let windows = windows.all().iter();
    windows
        .map(|window| {
            json!({
                "window": &*window.name,
                "scope": window.scope.as_deref(),
                "usedPercent": window.used.map(percent),
                "remainingPercent": window.used.map(|used| percent(used.rest())),
                "resetsAt": window.resets_at.map(Millis::to_rfc3339),
                "windowMs": window.window_ms,
                "observedAt": window.observed_at.to_rfc3339(),
            })
        })
        .collect()
}

/// A whole number where it is one.
fn percent(share: Share) -> Value {
    let percent = share.percent();
    if percent.fract() == 0.0 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is a whole number from 0 to 100"
        )]
        let whole = percent as u8;
        json!(whole)
    } else {
        json!(percent)
    }
}

/// Why something rests that nobody refused; null where somebody did.
pub(super) fn preflight(origin: Option<&Origin>) -> Value {
    origin.map_or(Value::Null, |origin| {
        json!({
            "window": origin.window,
            "windowMs": origin.window_ms,
            "resetsAt": origin.resets_at.to_rfc3339(),
            "observedAt": origin.observed_at.to_rfc3339(),
        })
    })
}

/// The locks that run on a connection's models at `now`.
pub(super) fn lockouts(lockouts: &ModelLockouts, now: Millis) -> Vec<Value> {
    let running = lockouts.running(now).into_iter();
    running
        .map(|(_, lockout)| {
            let withheld = lockout.withheld.as_ref().map(|withheld| &withheld.origin);
            json!({
                "model": lockout.model,
                "reason": lockout.reason,
                "scope": lockout.scope,
                "remainingMs": lockout.until.since(now),
                "failureCount": lockout.failure_count,
                "lastErrorType": withheld.map(|_| ErrorType::QuotaPreflight),
                "quotaPreflight": preflight(withheld),
            })
        })
        .collect()
}

/// The low-priority lane of a connection that may ride one.
pub(super) fn lane(lane: &UsageLane, now: Millis) -> Value {
    let riding = lane.riding(now);
    let time = |at: Option<Millis>| at.map(Millis::to_rfc3339);
    json!({
        "state": if riding.is_some() { "active" } else { "idle" },
        "resetsAt": time(riding.map(|riding| riding.resets_at)),
        "acceptedAt": time(riding.map(|riding| riding.accepted_at)),
        "served": riding.map_or(0, |riding| riding.served),
        "servedStandard": riding.map_or(0, |riding| riding.served_standard),
        "coolingOffUntil": time(lane.cooling_off(now)),
        "budgetSpentUntil": time(lane.budget_spent(now)),
        "endReason": lane.ended(now).map(|ended| ended.reason.as_str()),
    })
}

/// What is known of the weekly reset of a connection that may ask for it.
pub(super) fn limit_reset(lane: &UsageLane) -> Value {
    let memo = &lane.reset;
    json!({
        "outcome": memo.outcome.map(ResetOutcome::as_str),
        "endedAt": memo.ended_at.map(Millis::to_rfc3339),
        "notBefore": memo.not_before.map(Millis::to_rfc3339),
    })
}

/// `connectionStatus`, as far as the connection's own health says it.
pub(super) fn status(health: &ConnectionHealth, now: Millis) -> &'static str {
    match health.eligible(now) {
        Err(Blocked::Terminal(_)) => "terminal",
        Err(Blocked::Cooling { .. }) => "cooling_down",
        Ok(()) => "healthy",
    }
}

/// The failure's type, or the word of its reason where it has none.
fn error_type(error: &LastError) -> Value {
    error
        .error_type
        .map_or_else(|| json!(error.reason), |error_type| json!(error_type))
}
