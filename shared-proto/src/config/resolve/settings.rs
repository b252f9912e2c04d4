//! `settings:`, over the environment's defaults, over the built-in ones.

use super::super::defaults::derived_degradation;
use super::super::file::{self, Profiles};
use super::super::problem::Path;
use super::super::{
    ConnectionCooldown, HintBounds, ModelLockout, PerProfile, ProviderBreaker, QueueRules,
    Settings, WaitForCooldown, shape,
};
use super::{Context, combo, egress, extras, gates, quota, rotation, rules};
use crate::lease::LeaseRules;

/// Resolves everything of `settings:` that has numbers.
pub(in super::super) fn resolve(given: file::Settings, context: &mut Context<'_, '_>) -> Settings {
    let built_in = Settings::default();
    let path = Path::of("settings");
    let below = path.key("resilience");
    let resilience = given.resilience.unwrap_or_default();
    let affinity = given.session_affinity_ttl_ms;
    let affinity = affinity.or(given.codex_session_affinity_ttl_ms);
    let cooldown = by_profile(
        resilience.connection_cooldown,
        &below.key("connectionCooldown"),
        context,
    );
    let provider_breaker = breakers(
        resilience.provider_breaker,
        &below.key("providerBreaker"),
        (built_in.provider_breaker, &mut *context),
    );
    let before = built_in.connection_cooldown;
    let lockout = given.model_lockout.unwrap_or_default();
    let lockout = model_lockout(lockout, &path.key("modelLockout"), context);
    Settings {
        connection_cooldown: PerProfile {
            oauth: connection_cooldown(&cooldown.oauth.value, before.oauth),
            api_key: connection_cooldown(&cooldown.api_key.value, before.api_key),
            local: connection_cooldown(&cooldown.local.value, before.local),
        },
        provider_breaker,
        wait_for_cooldown: wait_for_cooldown(
            &resilience.wait_for_cooldown.unwrap_or_default(),
            built_in.wait_for_cooldown,
            (&below.key("waitForCooldown"), context),
        ),
        hint_bounds: hint_bounds(resilience.hint_bounds.as_ref(), built_in.hint_bounds),
        max_cooldown_ms: lockout.max_cooldown_ms,
        model_lockout: lockout,
        custom_banned_signals: signals(given.custom_banned_signals),
        provider_error_rules: rules::error_rules(given.provider_error_rules, context),
        restate_rules: rules::restate_rules(given.status_restatement_rules, context),
        auto_disable_banned_accounts: given
            .auto_disable_banned_accounts
            .unwrap_or(built_in.auto_disable_banned_accounts),
        auto_disable_all_accounts: !matches!(
            given.auto_disable_banned_scope,
            Some(file::BannedScope::Subscription)
        ),
        max_attempts: given.max_attempts.map_or(built_in.max_attempts, small),
        leases: leases(&given.leases.unwrap_or_default(), built_in.leases),
        session_affinity_ttl_ms: affinity.unwrap_or(built_in.session_affinity_ttl_ms),
        queue: queue(
            given.combo_defaults.as_ref(),
            resilience.quota_share_concurrency_limit.as_ref(),
            built_in.queue,
        ),
        expired_retry: gates::expired_retry(&given.expired_retry.unwrap_or_default()),
        provider_cooldown: gates::provider_cooldown(
            &resilience.provider_cooldown.unwrap_or_default(),
            &below.key("providerCooldown"),
            context,
        ),
        egress: egress::resolve(given.egress.unwrap_or_default(), context),
        usage_wall: extras::usage_wall(given.usage_wall, context),
        max_tools: extras::max_tools(given.max_tools, context),
        emergency_fallback: extras::emergency(given.emergency_fallback, context),
        quota_preflight: quota::preflight(resilience.quota_preflight, context),
        probe_can_disable: extras::probe_can_disable(given.probe_can_disable, context),
        rotation: rotation::resolve(context),
    }
}

/// The breaker's numbers of each profile.
fn breakers(
    given: Option<Profiles<file::ProviderBreaker>>,
    path: &Path,
    (built_in, context): (PerProfile<ProviderBreaker>, &mut Context<'_, '_>),
) -> PerProfile<ProviderBreaker> {
    let breaker = by_profile(given, path, context);
    let [oauth, api_key, local] = BREAKER_VARIABLES;
    let mut one = |given: Given<file::ProviderBreaker>, built_in, variables| {
        let path = path.key(given.name);
        provider_breaker(&given.value, &variables, built_in, (&path, &mut *context))
    };
    PerProfile {
        oauth: one(breaker.oauth, built_in.oauth, oauth),
        api_key: one(breaker.api_key, built_in.api_key, api_key),
        local: one(breaker.local, built_in.local, local),
    }
}

/// The queue for a slot: the defaults of combos, and its one switch.
fn queue(
    defaults: Option<&file::ComboConfig>,
    switch: Option<&file::Switch>,
    built_in: QueueRules,
) -> QueueRules {
    let enabled = switch.and_then(|switch| switch.enabled);
    QueueRules {
        enabled: enabled.unwrap_or(built_in.enabled),
        ..combo::waits(defaults).over(built_in)
    }
}

fn leases(given: &file::Leases, built_in: LeaseRules) -> LeaseRules {
    let replicas = given.min_replicas.map(small);
    LeaseRules::new(
        given.ttl_ms.unwrap_or_else(|| built_in.ttl_ms()),
        given
            .handover_grace_ms
            .unwrap_or_else(|| built_in.handover_grace_ms()),
        replicas.unwrap_or_else(|| built_in.min_replicas()),
    )
}

/// A profile's part of the file and the key under which it stands.
struct Given<T> {
    name: &'static str,
    value: T,
}

/// One value for each profile; `apikey` and `apiKey` are the same.
fn by_profile<T: Default>(
    given: Option<Profiles<T>>,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> PerProfile<Given<T>> {
    let given = given.unwrap_or_default();
    if given.apikey.is_some() && given.api_key.is_some() {
        let message = "`apikey` and `apiKey` are the same profile; give one of them";
        context.report.problem(&path.key("apiKey"), message);
    }
    let api_key_name = if given.api_key.is_some() {
        "apiKey"
    } else {
        "apikey"
    };
    let of = |name, value: Option<T>| Given {
        name,
        value: value.unwrap_or_default(),
    };
    PerProfile {
        oauth: of("oauth", given.oauth),
        api_key: of(api_key_name, given.apikey.or(given.api_key)),
        local: of("local", given.local),
    }
}

fn connection_cooldown(
    given: &file::ConnectionCooldown,
    built_in: ConnectionCooldown,
) -> ConnectionCooldown {
    ConnectionCooldown {
        base_cooldown_ms: given.base_cooldown_ms.unwrap_or(built_in.base_cooldown_ms),
        use_upstream_retry_hints: given
            .use_upstream_retry_hints
            .unwrap_or(built_in.use_upstream_retry_hints),
        use_upstream_429_breaker_hints: given.use_upstream_429_breaker_hints,
        max_backoff_steps: given
            .max_backoff_steps
            .map_or(built_in.max_backoff_steps, small),
    }
}

/// The variables that give a breaker's defaults.
#[derive(Clone, Copy)]
struct BreakerVariables {
    threshold: &'static str,
    reset: &'static str,
    /// Degradation threshold, multiplier, escalation; the local profile has none.
    finer: Option<[&'static str; 3]>,
}

const BREAKER_VARIABLES: [BreakerVariables; 3] = [
    BreakerVariables {
        threshold: "OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD",
        reset: "OMNIROUTE_CIRCUIT_BREAKER_OAUTH_RESET_MS",
        finer: Some([
            "OMNIROUTE_PROVIDER_BREAKER_OAUTH_DEGRADATION_THRESHOLD",
            "OMNIROUTE_PROVIDER_BREAKER_OAUTH_MAX_BACKOFF_MULTIPLIER",
            "OMNIROUTE_PROVIDER_BREAKER_OAUTH_BACKOFF_ESCALATION_COUNT",
        ]),
    },
    BreakerVariables {
        threshold: "OMNIROUTE_CIRCUIT_BREAKER_API_KEY_THRESHOLD",
        reset: "OMNIROUTE_CIRCUIT_BREAKER_API_KEY_RESET_MS",
        finer: Some([
            "OMNIROUTE_PROVIDER_BREAKER_API_KEY_DEGRADATION_THRESHOLD",
            "OMNIROUTE_PROVIDER_BREAKER_API_KEY_MAX_BACKOFF_MULTIPLIER",
            "OMNIROUTE_PROVIDER_BREAKER_API_KEY_BACKOFF_ESCALATION_COUNT",
        ]),
    },
    BreakerVariables {
        threshold: "OMNIROUTE_CIRCUIT_BREAKER_LOCAL_THRESHOLD",
        reset: "OMNIROUTE_CIRCUIT_BREAKER_LOCAL_RESET_MS",
        finer: None,
    },
];

fn provider_breaker(
    given: &file::ProviderBreaker,
    variables: &BreakerVariables,
    built_in: ProviderBreaker,
    (path, context): (&Path, &mut Context<'_, '_>),
) -> ProviderBreaker {
    let mut number = |given: Option<u64>, variable: Option<&'static str>, key: &str| {
        let of_environment = variable.and_then(|name| of_variable(name, key, context));
        given.or(of_environment)
    };
    let [degradation, multiplier, escalation] =
        variables.finer.map_or([None; 3], |names| names.map(Some));
    let threshold = number(
        given.failure_threshold,
        Some(variables.threshold),
        "failureThreshold",
    );
    let reset = number(
        given.reset_timeout_ms,
        Some(variables.reset),
        "resetTimeoutMs",
    );
    let degradation = number(
        given.degradation_threshold,
        degradation,
        "degradationThreshold",
    );
    let multiplier = number(
        given.max_backoff_multiplier,
        multiplier,
        "maxBackoffMultiplier",
    );
    let escalation = number(
        given.backoff_escalation_count,
        escalation,
        "backoffEscalationCount",
    );

    let failure_threshold = threshold.map_or(built_in.failure_threshold, small);
    let most = failure_threshold.saturating_sub(1).max(1);
    let is_derived = variables.finer.is_none();
    let derived = derived_degradation(failure_threshold);
    let degradation_threshold = match degradation.map(small) {
        // The default, said aloud.
        Some(wanted) if is_derived && wanted == derived => derived,
        Some(wanted) => wanted.min(most),
        None if is_derived => derived,
        None => built_in.degradation_threshold.min(most),
    };
    if let Some(wanted) = given.degradation_threshold
        && small(wanted) != degradation_threshold
    {
        let message = format!(
            "{wanted} is not below failureThreshold {failure_threshold}; {degradation_threshold} is used"
        );
        context
            .report
            .warn(&path.key("degradationThreshold"), message);
    }
    ProviderBreaker {
        failure_threshold,
        degradation_threshold,
        reset_timeout_ms: reset.unwrap_or(built_in.reset_timeout_ms),
        max_backoff_multiplier: multiplier.map_or(built_in.max_backoff_multiplier, small),
        backoff_escalation_count: escalation.map_or(built_in.backoff_escalation_count, small),
    }
}

/// A breaker's number from the environment, within the bounds that the file's
/// key has.
fn of_variable(name: &'static str, key: &str, context: &mut Context<'_, '_>) -> Option<u64> {
    gates::number(name, shape::bounds("ProviderBreaker", key), context)
}

fn wait_for_cooldown(
    given: &file::WaitForCooldown,
    built_in: WaitForCooldown,
    (path, context): (&Path, &mut Context<'_, '_>),
) -> WaitForCooldown {
    let max_retries = given.max_retries.map_or(built_in.max_retries, small);
    let max_wait_ms = given
        .max_retry_wait_sec
        .map_or(built_in.max_wait_ms, |seconds| seconds.saturating_mul(1000));
    let wanted = given.budget_ms.unwrap_or(built_in.budget_ms);
    let budget_ms = wanted.max(max_wait_ms);
    if budget_ms != wanted {
        let message = format!("{wanted} is less than one wait; {budget_ms} is used");
        context.report.warn(&path.key("budgetMs"), message);
    }
    let possible = max_retries > 0 && max_wait_ms > 0;
    if !possible && given.enabled == Some(true) {
        let message = "maxRetries or maxRetryWaitSec is 0, so nothing waits";
        context.report.warn(&path.key("enabled"), message);
    }
    WaitForCooldown {
        enabled: possible && given.enabled.unwrap_or(built_in.enabled),
        max_retries,
        max_wait_ms,
        budget_ms,
    }
}

fn hint_bounds(given: Option<&file::HintBounds>, built_in: HintBounds) -> HintBounds {
    HintBounds {
        quota_ms: given
            .and_then(|given| given.quota_ms)
            .unwrap_or(built_in.quota_ms),
        rate_limit_ms: given
            .and_then(|given| given.rate_limit_ms)
            .unwrap_or(built_in.rate_limit_ms),
    }
}

fn model_lockout(
    given: file::ModelLockout,
    path: &Path,
    context: &mut Context<'_, '_>,
) -> ModelLockout {
    let built_in = ModelLockout::default();
    let written = given.error_codes.unwrap_or_default();
    let mut error_codes = Vec::new();
    for (at, code) in written.iter().enumerate() {
        if let Ok(code @ 100..=599) = u16::try_from(*code) {
            error_codes.push(code);
        } else {
            let path = path.key("errorCodes").index(at);
            let message = format!("{code} is not a status; it is dropped");
            context.report.warn(&path, message);
        }
    }
    if error_codes.is_empty() {
        error_codes = built_in.error_codes;
    }
    let base_cooldown_ms = given.base_cooldown_ms.unwrap_or(built_in.base_cooldown_ms);
    let wanted = given.max_cooldown_ms.unwrap_or(built_in.max_cooldown_ms);
    let max_cooldown_ms = wanted.max(base_cooldown_ms);
    if max_cooldown_ms != wanted {
        let message = format!(
            "{wanted} is less than baseCooldownMs {base_cooldown_ms}; {max_cooldown_ms} is used"
        );
        context.report.warn(&path.key("maxCooldownMs"), message);
    }
    ModelLockout {
        enabled: given.enabled.unwrap_or(built_in.enabled),
        error_codes,
        base_cooldown_ms,
        max_cooldown_ms,
        max_backoff_steps: given
            .max_backoff_steps
            .map_or(built_in.max_backoff_steps, small),
        use_exponential_backoff: given
            .use_exponential_backoff
            .unwrap_or(built_in.use_exponential_backoff),
        daily_reset: rules::daily_reset(
            given.daily_quota_reset_timezone.as_deref(),
            given.daily_quota_reset_hour,
            (path, context),
        )
        .unwrap_or(built_in.daily_reset),
    }
}

/// Trimmed and lowercased, since texts are compared that way.
fn signals(given: Option<Vec<file::Signal>>) -> Vec<String> {
    given
        .into_iter()
        .flatten()
        .map(|file::Signal(text)| text.trim().to_lowercase())
        .filter(|text| !text.is_empty())
        .collect()
}

/// The schema's bounds are far below what 32 bits hold.
fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
