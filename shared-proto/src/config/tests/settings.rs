//! Numbers: defaults, clamps, and who goes before whom.

use super::super::{ModelLockout, ProviderBreaker, Settings, shape};
use super::{Surroundings, bad, good, load_text};
use crate::failure::Profile;
use crate::health::HealthRules;

fn settings(text: &str) -> Settings {
    good(&format!("settings: {text}")).config.settings
}

fn breaker(text: &str) -> ProviderBreaker {
    let text = format!("{{resilience: {{providerBreaker: {{apikey: {text}}}}}}}");
    settings(&text).provider_breaker.api_key
}

fn lockout(text: &str) -> ModelLockout {
    settings(&format!("{{modelLockout: {text}}}")).model_lockout
}

#[test]
fn profiles_have_their_own_numbers() {
    let built_in = Settings::default();
    let cooldown = |c: &super::super::ConnectionCooldown| {
        (
            c.base_cooldown_ms,
            c.max_backoff_steps,
            c.use_upstream_retry_hints,
        )
    };
    let all = &built_in.connection_cooldown;
    assert_eq!(cooldown(&all.oauth), (5000, 8, true));
    assert_eq!(cooldown(&all.api_key), (3000, 5, true));
    assert_eq!(cooldown(&all.local), (2000, 3, true));
    let breaker = |b: &ProviderBreaker| {
        (
            b.failure_threshold,
            b.degradation_threshold,
            b.reset_timeout_ms,
            b.max_backoff_multiplier,
            b.backoff_escalation_count,
        )
    };
    let all = &built_in.provider_breaker;
    assert_eq!(breaker(&all.oauth), (8, 5, 60_000, 8, 2));
    assert_eq!(breaker(&all.api_key), (12, 7, 30_000, 4, 3));
    // BRK-21: derived, so that "degraded" is never seen at the local defaults.
    assert_eq!(breaker(&all.local), (2, 2, 15_000, 16, 3));
    assert_eq!(built_in, settings("{}"));
    assert_eq!(built_in.max_cooldown_ms, 1_800_000);
    assert_eq!(built_in.hint_bounds.quota_ms, 30 * 86_400_000);
    assert_eq!(built_in.hint_bounds.rate_limit_ms, 8 * 86_400_000);
    assert_eq!(built_in.max_attempts, 30);
}

#[test]
fn brk_16_degradation_stays_below_the_threshold() {
    let both = breaker("{failureThreshold: 3, degradationThreshold: 9}");
    assert_eq!((both.failure_threshold, both.degradation_threshold), (3, 2));
    let low = breaker("{failureThreshold: 4}");
    assert_eq!((low.failure_threshold, low.degradation_threshold), (4, 3));
    let one = breaker("{failureThreshold: 1, degradationThreshold: 1}");
    assert_eq!((one.failure_threshold, one.degradation_threshold), (1, 1));
    let local = settings("{resilience: {providerBreaker: {local: {failureThreshold: 10}}}}");
    assert_eq!(local.provider_breaker.local.degradation_threshold, 6);
}

#[test]
fn api_15_numbers_are_clamped() {
    let clamped = breaker("{resetTimeoutMs: 10, failureThreshold: 0}");
    assert_eq!(
        (clamped.reset_timeout_ms, clamped.failure_threshold),
        (1000, 1)
    );
    let of =
        "{resilience: {connectionCooldown: {apiKey: {baseCooldownMs: -5, maxBackoffSteps: 99}}}}";
    let cooldown = settings(of).connection_cooldown.api_key;
    assert_eq!(
        (cooldown.base_cooldown_ms, cooldown.max_backoff_steps),
        (0, 32)
    );
}

#[test]
fn numbers_may_be_strings_or_have_fractions() {
    assert_eq!(breaker("{failureThreshold: '9'}").failure_threshold, 9);
    assert_eq!(breaker("{failureThreshold: ' 9.9 '}").failure_threshold, 9);
    assert_eq!(breaker("{failureThreshold: 9.9}").failure_threshold, 9);
    assert_eq!(breaker("{failureThreshold: 1e30}").failure_threshold, 1000);
    assert_eq!(breaker("{failureThreshold: -1e30}").failure_threshold, 1);
    assert_eq!(breaker("{failureThreshold: 0x10}").failure_threshold, 16);
    assert_eq!(breaker("{failureThreshold: null}").failure_threshold, 12);
    for wrong in [
        "{failureThreshold: nine}",
        "{failureThreshold: true}",
        "{failureThreshold: .nan}",
        "{failureThreshold: ''}",
    ] {
        let text = format!("settings: {{resilience: {{providerBreaker: {{oauth: {wrong}}}}}}}");
        assert_eq!(bad(&text).len(), 1, "{wrong}");
    }
}

#[test]
fn api_16_a_wait_without_tries_or_time_is_off() {
    let wait = |text: &str| {
        settings(&format!("{{resilience: {{waitForCooldown: {text}}}}}")).wait_for_cooldown
    };
    assert!(wait("{}").enabled);
    assert!(!wait("{maxRetries: 0}").enabled);
    assert!(!wait("{maxRetryWaitSec: 0}").enabled);
    assert!(!wait("{enabled: false}").enabled);
    let long = wait("{maxRetryWaitSec: 400, budgetMs: 5, maxRetries: 11}");
    assert_eq!(
        (long.max_wait_ms, long.budget_ms, long.max_retries),
        (300_000, 300_000, 10)
    );
    let short = wait("{maxRetryWaitSec: 2, budgetMs: 5}");
    assert_eq!((short.max_wait_ms, short.budget_ms), (2000, 2000));
}

#[test]
fn mlk_17_to_19_the_lockout_is_normalised() {
    let clamped = lockout(
        "{baseCooldownMs: 1, maxCooldownMs: 1000, maxBackoffSteps: 99, errorCodes: [99, 600, 429]}",
    );
    let expected = ModelLockout {
        base_cooldown_ms: 5000,
        max_cooldown_ms: 5000,
        max_backoff_steps: 20,
        error_codes: vec![429],
        ..ModelLockout::default()
    };
    assert_eq!(clamped, expected);
    let low = lockout("{maxCooldownMs: 1000}");
    assert_eq!(
        (low.base_cooldown_ms, low.max_cooldown_ms),
        (120_000, 120_000)
    );
    for none in ["{errorCodes: []}", "{errorCodes: [7]}"] {
        assert_eq!(lockout(none).error_codes, [403, 404, 429, 502, 503, 504]);
    }
    let whole = settings("{modelLockout: {maxCooldownMs: 900000}}");
    assert_eq!(whole.max_cooldown_ms, 900_000);
}

#[test]
fn signals_are_compared_in_lower_case() {
    let settings = settings("{customBannedSignals: [' Account CLOSED ', ' ']}");
    assert_eq!(settings.custom_banned_signals, ["account closed"]);
    let long = format!("settings: {{customBannedSignals: [{}]}}", "x".repeat(201));
    assert_eq!(
        bad(&long),
        ["omniroute.yaml:1:34: settings.customBannedSignals[0]: longer than 200 characters"]
    );
}

#[test]
fn variables_are_defaults_below_the_file() {
    let env = Surroundings::with(&[
        ("OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD", "20"),
        ("OMNIROUTE_CIRCUIT_BREAKER_OAUTH_RESET_MS", "7000"),
        ("OMNIROUTE_CIRCUIT_BREAKER_API_KEY_THRESHOLD", "4.7"),
        ("OMNIROUTE_CIRCUIT_BREAKER_LOCAL_THRESHOLD", "5"),
        ("OMNIROUTE_CIRCUIT_BREAKER_LOCAL_RESET_MS", ""),
        (
            "OMNIROUTE_PROVIDER_BREAKER_OAUTH_DEGRADATION_THRESHOLD",
            "9",
        ),
        (
            "OMNIROUTE_PROVIDER_BREAKER_OAUTH_MAX_BACKOFF_MULTIPLIER",
            "-1",
        ),
        (
            "OMNIROUTE_PROVIDER_BREAKER_API_KEY_BACKOFF_ESCALATION_COUNT",
            "0",
        ),
    ]);
    let text = "settings: {resilience: {providerBreaker: {oauth: {failureThreshold: 6}}}}";
    let breakers = load_text(text, &env)
        .unwrap()
        .config
        .settings
        .provider_breaker;
    assert_eq!(breakers.oauth.failure_threshold, 6);
    assert_eq!(breakers.oauth.reset_timeout_ms, 7000);
    assert_eq!(breakers.oauth.degradation_threshold, 5);
    assert_eq!(breakers.oauth.max_backoff_multiplier, 8);
    assert_eq!(breakers.api_key.failure_threshold, 4);
    assert_eq!(breakers.api_key.degradation_threshold, 3);
    assert_eq!(breakers.api_key.backoff_escalation_count, 0);
    assert_eq!(breakers.local.failure_threshold, 5);
    assert_eq!(breakers.local.degradation_threshold, 3);
    assert_eq!(breakers.local.reset_timeout_ms, 15_000);
}

#[test]
fn the_schema_bounds_what_variables_give() {
    for key in [
        "failureThreshold",
        "degradationThreshold",
        "resetTimeoutMs",
        "maxBackoffMultiplier",
        "backoffEscalationCount",
    ] {
        let (_, most) = shape::bounds("ProviderBreaker", key);
        assert!(most < u64::from(u32::MAX), "{key}");
    }
    assert_eq!(
        shape::bounds("ProviderBreaker", "resetTimeoutMs"),
        (1000, 86_400_000)
    );
}

#[test]
fn leases_are_clamped_and_known() {
    let leases = |text: &str| settings(&format!("{{leases: {text}}}")).leases;
    assert_eq!(leases("{}"), Settings::default().leases);
    for (text, ttl_ms, grace_ms, replicas) in [
        ("{}", 120_000, 2_000, 0),
        (
            "{ttlMs: 0, handoverGraceMs: -5, minReplicas: -1}",
            1_000,
            0,
            0,
        ),
        (
            "{ttlMs: 9999999, handoverGraceMs: 9999999, minReplicas: 99}",
            1_800_000,
            60_000,
            10,
        ),
        (
            "{ttlMs: '5000', handoverGraceMs: 1.9, minReplicas: 2}",
            5_000,
            1,
            2,
        ),
    ] {
        let leases = leases(text);
        assert_eq!(
            (
                leases.ttl_ms(),
                leases.handover_grace_ms(),
                leases.min_replicas()
            ),
            (ttl_ms, grace_ms, replicas),
            "{text}"
        );
    }
    let [problem] = &bad("settings: {leases: {ttlms: 5}}")[..] else {
        panic!("not one problem");
    };
    assert!(problem.contains("ttlMs"), "{problem}");
}

#[test]
fn a_managed_key_needs_connections() {
    let of = |rest: &str| {
        let key = "{id: team, key: a-key-that-is-long-enough, scopes: [manage, lease:exclusive]";
        good(&format!("apiKeys: [{key}{rest}}}]"))
    };
    for rest in ["", ", allowedConnections: []"] {
        let loaded = of(rest);
        assert!(loaded.config.api_keys.iter().all(|key| key.is_managed()));
        let warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
        let of_the_scope = |warning: &&String| warning.contains("apiKeys[0].scopes[1]");
        assert_eq!(
            warnings.iter().filter(of_the_scope).count(),
            1,
            "{warnings:?}"
        );
    }
}

#[test]
fn mlk_18_the_cap_is_at_least_the_first_step() {
    let low = lockout("{maxCooldownMs: 1000}");
    assert_eq!(
        (low.base_cooldown_ms, low.max_cooldown_ms),
        (120_000, 120_000)
    );
}

fn rule(rest: &str) -> String {
    format!("settings: {{providerErrorRules: {{acme: [{{{rest}}}]}}}}")
}

#[test]
fn per_14_rules_out_of_bounds_are_refused() {
    let good_rule = "status: 404, match: gone, scope: model";
    let many = format!(
        "settings: {{providerErrorRules: {{acme: [{}]}}}}",
        vec![format!("{{{good_rule}}}"); 51].join(", ")
    );
    let long = "x".repeat(201);
    let key = "k".repeat(101);
    let texts = [
        many,
        rule("status: 404, match: '', scope: model"),
        rule(&format!("status: 404, match: {long}, scope: model")),
        rule("status: 99, match: gone, scope: model"),
        rule("status: 600, match: gone, scope: model"),
        rule("status: 404.5, match: gone, scope: model"),
        rule(&format!("{good_rule}, cooldownMs: -1")),
        rule(&format!("{good_rule}, cooldownMs: 86400001")),
        rule("status: 404, match: gone, scope: global"),
        rule(&format!("{good_rule}, reason: custom")),
        rule("match: gone, scope: model"),
        format!("settings: {{providerErrorRules: {{'   ': [{{{good_rule}}}]}}}}"),
        format!("settings: {{providerErrorRules: {{{key}: [{{{good_rule}}}]}}}}"),
        "settings: {statusRestatementRules: [{provider: acme, fromStatuses: [], toStatus: 429, textMarkers: [x]}]}".to_owned(),
        "settings: {statusRestatementRules: [{provider: acme, fromStatuses: [200], toStatus: 429, textMarkers: [x]}]}".to_owned(),
        "settings: {modelLockout: {dailyQuotaResetTimezone: Mars/Olympus}}".to_owned(),
    ];
    for text in texts {
        assert!(!bad(&text).is_empty(), "{text}");
    }
}

#[test]
fn per_15_rules_within_bounds_are_taken() {
    use crate::failure::{Reason, RuleScope};
    let fifty = format!(
        "settings: {{providerErrorRules: {{acme: [{}]}}}}",
        vec!["{status: 404, match: gone, scope: model}"; 50].join(", ")
    );
    let taken = good(&fifty).config.settings.provider_error_rules;
    assert_eq!(taken["acme"].len(), 50);
    assert!(
        settings("{providerErrorRules: {}}")
            .provider_error_rules
            .is_empty()
    );
    let rules =
        settings("{providerErrorRules: {' Acme ': [{status: 404, match: GONE, scope: provider}]}}");
    let rule = &rules.provider_error_rules["acme"][0];
    assert_eq!((rule.status, rule.text.as_str()), (404, "gone"));
    assert_eq!(
        (rule.scope, rule.reason, rule.cooldown_ms),
        (RuleScope::Provider, Reason::QuotaExhausted, None)
    );
}

#[test]
fn operators_restate_before_the_built_in_rules() {
    let text = "{statusRestatementRules: [{provider: acme, fromStatuses: [403], toStatus: 429, \
                textMarkers: [Busy], excludeMarkers: [model], defaultRetryAfterMs: 5000}]}";
    let rules = settings(text).restate_rules;
    assert_eq!(rules.len(), 2);
    let told = crate::restate::restate(&rules, "acme", 403, "we are busy", None).unwrap();
    assert_eq!(
        (told.status, told.retry_after_ms, told.rule),
        (429, Some(5000), "operator-acme-0")
    );
    assert!(crate::restate::restate(&rules, "acme", 403, "busy model", None).is_none());
}

#[test]
fn a_ban_may_switch_off_subscriptions_only() {
    let connection = "{id: a, provider: openai, apiKey: k}";
    let disables = |given: &str, profile| {
        let text = format!("settings: {{{given}}}\nconnections: [{connection}]");
        let loaded = good(&text);
        assert!(loaded.warnings.is_empty(), "{given}");
        let config = loaded.config;
        HealthRules::new(&config.settings, profile, &config.connections[0]).auto_disable_banned
    };
    let on = "autoDisableBannedAccounts: true";
    let some = "autoDisableBannedAccounts: true, autoDisableBannedScope: subscription";
    for (given, key, subscription) in [
        ("autoDisableBannedScope: all", false, false),
        (on, true, true),
        (some, false, true),
    ] {
        assert_eq!(disables(given, Profile::ApiKey), key, "{given}");
        assert_eq!(disables(given, Profile::Oauth), subscription, "{given}");
    }
}
