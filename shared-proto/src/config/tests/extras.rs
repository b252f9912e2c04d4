//! The usage wall, the limit on tools and the emergency fallback.

use super::super::{EmergencyFallback, Settings, UsageWall};
use super::{Surroundings, bad, good, load_text};

fn settings(text: &str) -> Settings {
    good(&format!("settings: {text}")).config.settings
}

fn with(variable: (&str, &str), text: &str) -> (Settings, Vec<String>) {
    let env = Surroundings::with(&[variable]);
    let loaded = load_text(&format!("settings: {text}"), &env).unwrap();
    let about = loaded.warnings.iter().map(ToString::to_string);
    let about = about.filter(|warning| warning.contains(variable.0));
    (loaded.config.settings, about.collect())
}

#[test]
fn what_nobody_set() {
    let built_in = settings("{}");
    assert_eq!(built_in.max_tools, 128, "TL-03");
    assert_eq!(
        built_in.usage_wall.api_base_url,
        "https://api.anthropic.com"
    );
    assert_eq!(built_in.emergency_fallback, EmergencyFallback::default());
    assert!(!built_in.emergency_fallback.enabled);
    assert_eq!(built_in.emergency_fallback.max_output_tokens, 4096);
}

#[test]
fn what_somebody_set() {
    let own = settings(
        "{maxTools: 20000, usageWall: {apiBaseUrl: 'http://127.0.0.1:1/'}, \
         emergencyFallback: {enabled: true, target: openai/gpt, maxOutputTokens: 0}}",
    );
    assert_eq!(own.max_tools, 10_000);
    let api_base_url = "http://127.0.0.1:1".to_owned();
    assert_eq!(own.usage_wall, UsageWall { api_base_url });
    let expected = EmergencyFallback {
        enabled: true,
        target: "openai/gpt".to_owned(),
        max_output_tokens: 1,
    };
    assert_eq!(own.emergency_fallback, expected);
}

#[test]
fn tl_04_the_variable_of_the_limit_takes_a_positive_number() {
    let name = "OMNIROUTE_MAX_TOOLS_LIMIT";
    let (own, warnings) = with((name, " 64 "), "{}");
    assert_eq!((own.max_tools, warnings.len()), (64, 0));
    for text in ["0", "-3", "1.5", "many"] {
        let (own, warnings) = with((name, text), "{}");
        assert_eq!((own.max_tools, warnings.len()), (128, 1), "TL-04: {text}");
    }
    assert_eq!(with((name, "64"), "{maxTools: 5}").0.max_tools, 5);
}

#[test]
fn ef_04_06_the_variable_of_the_fallback_is_a_switch() {
    let name = "OMNIROUTE_EMERGENCY_FALLBACK";
    let on = |text, file: &str| with((name, text), file).0.emergency_fallback.enabled;
    for text in ["true", "1", "yes", "ON"] {
        assert!(on(text, "{}"), "{text}");
        assert!(!on(text, "{emergencyFallback: {enabled: false}}"), "EF-06");
    }
    for text in ["false", "0", "No", "off"] {
        assert!(!on(text, "{}"), "EF-04: {text}");
        assert!(on(text, "{emergencyFallback: {enabled: true}}"));
    }
    assert_eq!(with((name, "perhaps"), "{}").1.len(), 1);
}

#[test]
fn targets_and_addresses_that_can_not_be() {
    for (text, said) in [
        ("{emergencyFallback: {target: gpt}}", "provider/model"),
        ("{emergencyFallback: {target: /gpt-x}}", "provider/model"),
        (
            "{emergencyFallback: {target: nvida/gpt}}",
            "no provider `nvida`",
        ),
        ("{usageWall: {apiBaseUrl: ftp://x}}", "http://"),
        ("{usageWall: {apiBaseUrl: 'http://x/?a=b'}}", "apiBaseUrl"),
    ] {
        let problems = bad(&format!("settings: {text}"));
        assert!(
            problems.iter().any(|problem| problem.contains(said)),
            "{text}: {problems:?}"
        );
    }
}

#[test]
fn switches_of_the_wall_are_for_accounts_only() {
    let warnings = |connection: &str| {
        let text = format!("connections: [{{id: a, {connection}}}]");
        let loaded = good(&text);
        let all = loaded.warnings.iter().map(ToString::to_string);
        all.filter(|warning| warning.contains("lowPriorityMode"))
            .count()
    };
    let on = "providerSpecificData: {lowPriorityMode: true}";
    assert_eq!(
        warnings(&format!(
            "provider: claude, oauth: {{accessToken: t}}, {on}"
        )),
        0
    );
    assert_eq!(
        warnings(&format!("provider: anthropic, apiKey: k, {on}")),
        1
    );
    assert_eq!(warnings(&format!("provider: openai, apiKey: k, {on}")), 1);
    let off = "providerSpecificData: {lowPriorityMode: false}";
    assert_eq!(warnings(&format!("provider: openai, apiKey: k, {off}")), 0);
    let wrong = "connections: [{id: a, provider: claude, oauth: {accessToken: t}, \
                 providerSpecificData: {lowPriorityMode: 'yes', organizationUUID: ../x}}]";
    assert_eq!(bad(wrong).len(), 2);
}
