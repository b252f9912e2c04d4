//! `settings.egress`: whose limits count by address.

use super::super::{EgressRules, Settings};
use super::{Surroundings, bad, load_text};
use crate::id::ProviderId;

fn settings(text: &str, variables: &[(&str, &str)]) -> Settings {
    let loaded = load_text(&format!("settings: {text}"), &Surroundings::with(variables));
    loaded.unwrap().config.settings
}

/// Which of some providers are in which family.
fn families(text: &str, variable: Option<&str>) -> Vec<(&'static str, String)> {
    let variables = variable.map(|value| ("OMNIROUTE_EGRESS_IP_LOCK_PROVIDERS", value));
    let env = Surroundings::with(variables.as_slice());
    let loaded = load_text(&format!("settings: {text}"), &env).unwrap();
    let names = [
        "opencode",
        "opencode-go",
        "opencode-cli",
        "opencode-zen",
        "openai",
    ];
    let family = |name: &'static str| {
        let provider = &loaded.config.providers[&ProviderId::from(name)];
        let family = loaded.config.settings.egress.family(provider)?;
        Some((name, family.to_owned()))
    };
    names.into_iter().filter_map(family).collect()
}

fn of(family: &str, names: &[&'static str]) -> Vec<(&'static str, String)> {
    names
        .iter()
        .map(|name| (*name, family.to_owned()))
        .collect()
}

#[test]
fn numbers_have_defaults_and_bounds() {
    let built_in = EgressRules::default();
    assert_eq!(settings("{}", &[]).egress, built_in);
    assert_eq!(built_in.echo_url, "https://api64.ipify.org?format=json");
    assert_eq!((built_in.cache_ms, built_in.timeout_ms), (300_000, 6_000));
    let low = "{egress: {cacheMs: 0, timeoutMs: 0, observationMaxAgeMs: 0}}";
    let low = settings(low, &[]).egress;
    assert_eq!(
        (low.cache_ms, low.timeout_ms, low.max_age_ms),
        (100, 100, 1_000)
    );
    let high = "{egress: {cacheMs: 1e18, timeoutMs: 1e18, observationMaxAgeMs: 1e18}}";
    let high = settings(high, &[]).egress;
    let day = 86_400_000;
    assert_eq!(
        (high.cache_ms, high.timeout_ms, high.max_age_ms),
        (day, 60_000, day)
    );
}

#[test]
fn an_echo_service_has_an_address() {
    for url in ["http://10.0.0.7:81/ip?a=b", "https://[::1]/"] {
        let text = format!("{{egress: {{echoUrl: '{url}'}}}}");
        assert_eq!(settings(&text, &[]).egress.echo_url, url);
    }
    for url in [
        "ftp://a",
        "a.example",
        "https://u:p@a.example",
        "https://a/#b",
        "http://",
    ] {
        let problems = bad(&format!("settings: {{egress: {{echoUrl: '{url}'}}}}"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains("settings.egress.echoUrl"),
            "{problems:?}"
        );
    }
}

/// EGR-08, EGR-13, EGR-14.
#[test]
fn families_are_the_catalogue_s_unless_somebody_lists_them() {
    let usual = of("opencode", &["opencode", "opencode-go", "opencode-cli"]);
    assert_eq!(families("{}", None), usual);
    assert_eq!(families("{}", Some("  ")), usual);
    assert_eq!(families("{egress: {lockProviders: null}}", None), usual);
    for off in ["none", "OFF", " false ", "0"] {
        assert_eq!(families("{}", Some(off)), []);
    }
    assert_eq!(families("{egress: {lockProviders: []}}", None), []);
    let listed = of("listed", &["opencode-zen", "openai"]);
    assert_eq!(families("{}", Some("OpenAI, opencode-zen,,")), listed);
    let text = "{egress: {lockProviders: [openai, ' OpenCode-Zen ']}}";
    assert_eq!(families(text, None), listed);
    assert_eq!(families(text, Some("none")), listed, "the file goes first");
}
