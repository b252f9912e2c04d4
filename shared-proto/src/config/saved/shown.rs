//! The settings in force, in the names and units of the file.

use serde_json::{Map, Value as Json, json};

use super::super::{
    Config, ConnectionCooldown, DailyReset, ModelLockout, PerProfile, ProviderBreaker, Settings,
    WaitForCooldown,
};
use super::{Area, RESILIENCE};

impl Config {
    /// The settings in force of an area. What it gives can be sent back as a
    /// change, and then changes none of them.
    pub fn shown(&self, area: Area) -> Map<String, Json> {
        let given = &self.given.whole;
        let shown = match area {
            Area::Resilience => {
                let given = given.get(RESILIENCE).unwrap_or(&Json::Null);
                extended(
                    as_given(unused_resilience(), given),
                    resilience(&self.settings),
                )
            }
            Area::General => {
                let given = Json::Object(given.clone());
                extended(as_given(listed(), &given), general(&self.settings, &given))
            }
        };
        match shown {
            Json::Object(shown) => shown,
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => {
                Map::new()
            }
        }
    }
}

/// `built_in` with what is given in its place.
fn as_given(built_in: Json, given: &Json) -> Json {
    match (built_in, given) {
        (built_in, Json::Null) => built_in,
        (Json::Object(built_in), Json::Object(given)) if !built_in.is_empty() => {
            let of = |(key, value): (String, Json)| {
                let value = as_given(value, given.get(&key).unwrap_or(&Json::Null));
                (key, value)
            };
            Json::Object(built_in.into_iter().map(of).collect())
        }
        (_, given) => given.clone(),
    }
}

fn extended(shown: Json, more: Json) -> Json {
    match (shown, more) {
        (Json::Object(mut shown), Json::Object(more)) => {
            shown.extend(more);
            Json::Object(shown)
        }
        (shown, _) => shown,
    }
}

/// Settings that are accepted but not acted on yet; none of them has a value
/// of its own kind.
fn unused_resilience() -> Json {
    json!({
        "requestQueue": {
            "autoEnableApiKeyProviders": false,
            "requestsPerMinute": null,
            "minTimeBetweenRequestsMs": null,
            "concurrentRequests": null,
            "globalConcurrentRequests": 0,
            "maxWaitMs": 30_000,
            "executionMaxWaitMs": 600_000,
            "maxQueueDepth": 0,
        },
        "comboCooldownWait": {
            "enabled": true,
            "maxWaitMs": 90_000,
            "maxAttempts": 5,
            "budgetMs": 300_000,
        },
        "streamRecovery": {
            "enabled": false,
            "continueMidStream": false,
            "throughputWatchdog": {
                "enabled": false,
                "warmupMs": 30_000,
                "windowMs": 30_000,
                "minUsefulBytesPerSecond": 4,
                "minUsefulBytes": 1,
            },
        },
        "providerQuotaOverrides": {},
    })
}

/// Lists and rules are shown as they were written; the rest is not acted on yet.
fn listed() -> Json {
    json!({
        "customBannedSignals": [],
        "providerErrorRules": {},
        "statusRestatementRules": [],
        "autoDisableBannedScope": "all",
        "stickyRoundRobinLimit": null,
        "comboStickyRoundRobinLimit": null,
        "fallbackStrategy": "fill-first",
        "comboDefaults": {},
    })
}

fn resilience(settings: &Settings) -> Json {
    let (hints, gate) = (&settings.hint_bounds, &settings.provider_cooldown);
    let preflight = &settings.quota_preflight;
    json!({
        "connectionCooldown": profiles(&settings.connection_cooldown, cooldown),
        "providerBreaker": profiles(&settings.provider_breaker, breaker),
        "waitForCooldown": waits(&settings.wait_for_cooldown),
        "quotaShareConcurrencyLimit": {"enabled": settings.queue.enabled},
        "providerCooldown": {
            "enabled": gate.enabled,
            "minRetryCooldownMs": gate.min_ms,
            "maxRetryCooldownMs": gate.max_ms,
        },
        "quotaPreflight": {
            "enabled": preflight.enabled,
            "defaultThresholdPercent": preflight.default_threshold_percent,
            "warnThresholdPercent": preflight.warn_threshold_percent,
            "providerWindowDefaults": preflight.provider_window_defaults,
        },
        "hintBounds": {"quotaMs": hints.quota_ms, "rateLimitMs": hints.rate_limit_ms},
    })
}

fn profiles<T>(all: &PerProfile<T>, show: fn(&T) -> Json) -> Json {
    json!({"oauth": show(&all.oauth), "apikey": show(&all.api_key), "local": show(&all.local)})
}

fn cooldown(of: &ConnectionCooldown) -> Json {
    json!({
        "baseCooldownMs": of.base_cooldown_ms,
        "useUpstreamRetryHints": of.use_upstream_retry_hints,
        "useUpstream429BreakerHints": of.use_upstream_429_breaker_hints,
        "maxBackoffSteps": of.max_backoff_steps,
    })
}

fn breaker(of: &ProviderBreaker) -> Json {
    json!({
        "failureThreshold": of.failure_threshold,
        "degradationThreshold": of.degradation_threshold,
        "resetTimeoutMs": of.reset_timeout_ms,
        "maxBackoffMultiplier": of.max_backoff_multiplier,
        "backoffEscalationCount": of.backoff_escalation_count,
    })
}

fn waits(of: &WaitForCooldown) -> Json {
    json!({
        "enabled": of.enabled,
        "maxRetries": of.max_retries,
        "maxRetryWaitSec": of.max_wait_ms.div_euclid(1000),
        "budgetMs": of.budget_ms,
    })
}

fn general(settings: &Settings, given: &Json) -> Json {
    let (leases, retry) = (&settings.leases, &settings.expired_retry);
    let queue = json!({
        "queueTimeoutMs": settings.queue.timeout_ms,
        "queueDepth": settings.queue.depth,
    });
    // Its other keys are not acted on yet.
    let defaults = as_given(json!({}), given.get("comboDefaults").unwrap_or(&Json::Null));
    json!({
        "modelLockout": lockout(&settings.model_lockout),
        "autoDisableBannedAccounts": settings.auto_disable_banned_accounts,
        "maxAttempts": settings.max_attempts,
        "sessionAffinityTtlMs": settings.session_affinity_ttl_ms,
        "comboDefaults": extended(defaults, queue),
        "leases": {
            "ttlMs": leases.ttl_ms(),
            "handoverGraceMs": leases.handover_grace_ms(),
            "minReplicas": leases.min_replicas(),
        },
        "egress": {
            "echoUrl": settings.egress.echo_url,
            "cacheMs": settings.egress.cache_ms,
            "timeoutMs": settings.egress.timeout_ms,
            "observationMaxAgeMs": settings.egress.max_age_ms,
            "lockProviders": settings.egress.lock_providers,
        },
        "expiredRetry": {
            "enabled": retry.enabled,
            "sweepMs": retry.sweep_ms,
            "baseMs": retry.base_ms,
            "maxRetries": retry.max_retries,
        },
        "usageWall": {"apiBaseUrl": settings.usage_wall.api_base_url},
        "probeCanDisable": settings.probe_can_disable,
        "maxTools": settings.max_tools,
        "emergencyFallback": {
            "enabled": settings.emergency_fallback.enabled,
            "target": settings.emergency_fallback.target,
            "maxOutputTokens": settings.emergency_fallback.max_output_tokens,
        },
    })
}

fn lockout(of: &ModelLockout) -> Json {
    let DailyReset { zone, hour } = &of.daily_reset;
    json!({
        "enabled": of.enabled,
        "errorCodes": of.error_codes,
        "baseCooldownMs": of.base_cooldown_ms,
        "maxCooldownMs": of.max_cooldown_ms,
        "maxBackoffSteps": of.max_backoff_steps,
        "useExponentialBackoff": of.use_exponential_backoff,
        "dailyQuotaResetTimezone": zone.iana_name().unwrap_or("UTC"),
        "dailyQuotaResetHour": hour,
    })
}
