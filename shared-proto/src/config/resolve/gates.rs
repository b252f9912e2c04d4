//! The gate in front of what combos fail on, and the retries of what expired.

use super::super::file;
use super::super::problem::Path;
use super::super::report::Origin;
use super::super::yaml::{Value, scalar};
use super::super::{PerProfile, ProviderCooldown, ProviderWindow, shape};
use super::Context;
use crate::health::RetryRules;

/// `settings.expiredRetry`.
pub(super) fn expired_retry(given: &file::ExpiredRetry) -> RetryRules {
    let built_in = RetryRules::default();
    RetryRules {
        enabled: given.enabled.unwrap_or(built_in.enabled),
        sweep_ms: given.sweep_ms.unwrap_or(built_in.sweep_ms),
        base_ms: given.base_ms.unwrap_or(built_in.base_ms),
        max_retries: given.max_retries.map_or(built_in.max_retries, |n| {
            u32::try_from(n).unwrap_or(u32::MAX)
        }),
    }
}

/// `settings.resilience.providerCooldown`, over the environment.
pub(super) fn provider_cooldown(
    given: &file::ProviderCooldown,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> ProviderCooldown {
    let built_in = ProviderCooldown::default();
    let switched_on = switch("PROVIDER_COOLDOWN_ENABLED", context);
    let mut bounded = |given: Option<u64>, variable, key| {
        let bounds = shape::bounds("ProviderCooldown", key);
        let of_environment = number(variable, bounds, context);
        given.or(of_environment)
    };
    let min_ms = bounded(
        given.min_retry_cooldown_ms,
        "PROVIDER_COOLDOWN_MIN_MS",
        "minRetryCooldownMs",
    );
    let min_ms = min_ms.unwrap_or(built_in.min_ms);
    let wanted = bounded(
        given.max_retry_cooldown_ms,
        "PROVIDER_COOLDOWN_MAX_MS",
        "maxRetryCooldownMs",
    );
    let max_ms = wanted.unwrap_or(built_in.max_ms).max(min_ms);
    if let Some(wanted) = given
        .max_retry_cooldown_ms
        .filter(|wanted| *wanted < min_ms)
    {
        let message =
            format!("{wanted} is less than minRetryCooldownMs {min_ms}; {max_ms} is used");
        context
            .report
            .warn(&path.key("maxRetryCooldownMs"), message);
    }
    let windows = built_in.windows;
    ProviderCooldown {
        enabled: given.enabled.or(switched_on).unwrap_or(built_in.enabled),
        min_ms,
        max_ms,
        windows: PerProfile {
            oauth: window(windows.oauth, OAUTH, context),
            api_key: window(windows.api_key, API_KEY, context),
            local: window(windows.local, LOCAL, context),
        },
    }
}

/// Threshold, window, cooldown.
type Variables = [&'static str; 3];

const OAUTH: Variables = [
    "OMNIROUTE_PROVIDER_BREAKER_OAUTH_FAILURE_THRESHOLD",
    "OMNIROUTE_PROVIDER_BREAKER_OAUTH_FAILURE_WINDOW_MS",
    "OMNIROUTE_PROVIDER_BREAKER_OAUTH_COOLDOWN_MS",
];
const API_KEY: Variables = [
    "OMNIROUTE_PROVIDER_BREAKER_API_KEY_FAILURE_THRESHOLD",
    "OMNIROUTE_PROVIDER_BREAKER_API_KEY_FAILURE_WINDOW_MS",
    "OMNIROUTE_PROVIDER_BREAKER_API_KEY_COOLDOWN_MS",
];
const LOCAL: Variables = [
    "OMNIROUTE_PROVIDER_BREAKER_LOCAL_FAILURE_THRESHOLD",
    "OMNIROUTE_PROVIDER_BREAKER_LOCAL_FAILURE_WINDOW_MS",
    "OMNIROUTE_PROVIDER_BREAKER_LOCAL_COOLDOWN_MS",
];

/// One day, ms.
const DAY_MS: u64 = 86_400_000;

fn window(
    built_in: ProviderWindow,
    [threshold, window, cooldown]: Variables,
    context: &mut Context<'_, '_>,
) -> ProviderWindow {
    // As many as are remembered of one provider.
    let threshold = number(threshold, (1, 200), context);
    ProviderWindow {
        threshold: threshold.map_or(built_in.threshold, |n| {
            u32::try_from(n).unwrap_or(built_in.threshold)
        }),
        window_ms: number(window, (1, DAY_MS), context).unwrap_or(built_in.window_ms),
        cooldown_ms: number(cooldown, (0, DAY_MS), context).unwrap_or(built_in.cooldown_ms),
    }
}

/// A switch from the environment.
pub(super) fn switch(name: &'static str, context: &Context<'_, '_>) -> Option<bool> {
    let text = context.variable(name)?;
    Some(matches!(
        text.trim().to_ascii_lowercase().as_str(),
        "true" | "1" | "on"
    ))
}

/// A number from the environment within its bounds. What is no number of 0 or
/// more counts as not set, with a warning.
pub(super) fn number(
    name: &'static str,
    (least, most): (u64, u64),
    context: &mut Context<'_, '_>,
) -> Option<u64> {
    let text = context.variable(name)?;
    let number = match scalar::number(text.trim()) {
        Some(Value::Int(whole)) => u64::try_from(whole).ok(),
        Some(Value::Float(number)) if number.is_finite() && number >= 0.0 =>
        {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "cutting is the rule, the sign is known, and the cast saturates"
            )]
            Some(number.trunc() as u64)
        }
        _ => None,
    };
    let Some(number) = number else {
        let message = "is not a number of 0 or more; the default is used";
        context.report.warn_outside(Origin::Variable(name), message);
        return None;
    };
    let kept = number.clamp(least, most);
    if kept != number {
        let message = format!("{number} is out of bounds ({least} to {most}); {kept} is used");
        context.report.warn_outside(Origin::Variable(name), message);
    }
    Some(kept)
}
