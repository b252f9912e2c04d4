//! The rotation gate's numbers, several keys of a connection, and the switch of probes.

use secrecy::ExposeSecret;

use super::super::{Connection, Settings};
use super::{Problem, Surroundings, good, load_text};
use crate::rotation::{ClassOverride, ClassRule, RotationOverrides, RotationRules};

fn in_surroundings(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
    let loaded = load_text("settings: {}", &Surroundings::with(variables)).unwrap();
    let warnings = loaded.warnings.iter().map(ToString::to_string);
    let about = warnings.filter(|warning| warning.contains("OMNIROUTE_ROTAT"));
    (loaded.config.settings, about.collect())
}

fn connection(specific: &str) -> String {
    format!(
        "connections:\n  - id: a\n    provider: openai\n    apiKey: first-key\n    providerSpecificData: {specific}\n"
    )
}

fn resolved(specific: &str) -> Connection {
    let config = good(&connection(specific)).config;
    Connection::clone(&config.connections[0])
}

fn refused(text: &str) -> Vec<Problem> {
    load_text(text, &Surroundings::default()).unwrap_err()
}

/// What is wrong, without the name of the file.
fn problems(specific: &str) -> Vec<String> {
    let problems = refused(&connection(specific));
    let told = problems.iter().map(|problem| {
        let hint = problem.suggestion.clone().unwrap_or_default();
        format!("{}: {} {hint}", problem.path, problem.message)
    });
    told.collect()
}

#[test]
fn nobody_said_anything() {
    let (settings, warnings) = in_surroundings(&[]);
    assert_eq!(settings.rotation, RotationRules::DEFAULT);
    assert_eq!(warnings, Vec::<String>::new());
    let on = ClassRule {
        rotate: true,
        threshold: 1,
        window_ms: 120_000,
    };
    assert_eq!(settings.rotation.limited, on);
    assert_eq!(settings.rotation.bad_gateway, on);
    assert_eq!(settings.rotation.server, on);
    assert!(!settings.rotation.bad_request.rotate);
    assert!(settings.rotation.enabled && settings.rotation.rests_without_reset);
    assert_eq!(settings.rotation.reset_ms, 0);
}

#[test]
fn the_environments_words() {
    let (settings, warnings) = in_surroundings(&[
        ("OMNIROUTE_ROTATION_ENABLED", "false"),
        ("OMNIROUTE_ROTATE_ON_429", "0"),
        ("OMNIROUTE_ROTATE_ON_400", "yes"),
        ("OMNIROUTE_ROTATE_ON_500", "off"),
        ("OMNIROUTE_ROTATE_ON_502", "no"),
        ("OMNIROUTE_ROTATE_429_THRESHOLD", "4"),
        ("OMNIROUTE_ROTATE_500_THRESHOLD", "5"),
        ("OMNIROUTE_ROTATE_502_THRESHOLD", "6"),
        ("OMNIROUTE_ROTATE_400_THRESHOLD", "7"),
        ("OMNIROUTE_ROTATE_429_WINDOW_SECONDS", "40"),
        ("OMNIROUTE_ROTATE_500_WINDOW_SECONDS", "50"),
        ("OMNIROUTE_ROTATE_502_WINDOW_SECONDS", "60"),
        ("OMNIROUTE_ROTATE_400_WINDOW_SECONDS", "70"),
        ("OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS", "90"),
        ("OMNIROUTE_ROTATION_DISABLE_TAG_WITHOUT_RESET", "false"),
    ]);
    let class = |rotate, threshold, seconds: u64| ClassRule {
        rotate,
        threshold,
        window_ms: seconds * 1000,
    };
    let expected = RotationRules {
        enabled: false,
        limited: class(false, 4, 40),
        server: class(false, 5, 50),
        bad_gateway: class(false, 6, 60),
        bad_request: class(true, 7, 70),
        reset_ms: 90_000,
        rests_without_reset: false,
    };
    assert_eq!(settings.rotation, expected);
    assert_eq!(warnings, Vec::<String>::new());
}

#[test]
fn words_and_numbers_of_the_environment_that_can_not_be_used() {
    let (settings, warnings) = in_surroundings(&[
        ("OMNIROUTE_ROTATE_ON_429", "perhaps"),
        ("OMNIROUTE_ROTATE_429_THRESHOLD", "0"),
        ("OMNIROUTE_ROTATE_500_THRESHOLD", "101"),
        ("OMNIROUTE_ROTATE_502_THRESHOLD", "many"),
        ("OMNIROUTE_ROTATE_502_WINDOW_SECONDS", "90000"),
        ("OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS", "-1"),
    ]);
    let rotation = settings.rotation;
    assert!(rotation.limited.rotate);
    assert_eq!(rotation.limited.threshold, 1);
    assert_eq!(rotation.server.threshold, 100);
    assert_eq!(rotation.bad_gateway.threshold, 1);
    assert_eq!(rotation.bad_gateway.window_ms, 86_400_000);
    assert_eq!(rotation.reset_ms, 0);
    assert_eq!(warnings.len(), 6, "{warnings:#?}");
}

#[test]
fn a_connections_own_numbers_go_first() {
    let own = resolved(
        "{rotationOverrides: {rotateOn429: false, error429Threshold: 2, error500WindowSeconds: 30, \
         rotateOn400: true, rotateOn500: true, rotateOn502: false, error400Threshold: 100, \
         error400WindowSeconds: 1, error429WindowSeconds: 86400, error500Threshold: 3, \
         error502Threshold: 4, error502WindowSeconds: 5, rateLimitResetSeconds: 0}}",
    );
    let class = |rotate, threshold, seconds: u64| ClassOverride {
        rotate: Some(rotate),
        threshold: Some(threshold),
        window_ms: Some(seconds * 1000),
    };
    let expected = RotationOverrides {
        limited: class(false, 2, 86_400),
        server: class(true, 3, 30),
        bad_gateway: class(false, 4, 5),
        bad_request: class(true, 100, 1),
        reset_ms: Some(0),
    };
    assert_eq!(own.rotation, expected);
    let (mut settings, _) = in_surroundings(&[]);
    settings.rotation.reset_ms = 5_000;
    let partly = resolved("{rotationOverrides: {error429Threshold: 2}}");
    let rules = RotationRules::of_connection(&settings, &partly);
    assert_eq!(
        (rules.limited.threshold, rules.limited.window_ms),
        (2, 120_000)
    );
    assert_eq!(rules.reset_ms, 5_000);
    let rules = RotationRules::of_connection(&settings, &own);
    assert_eq!(rules.reset_ms, 0, "0 is a word, too");
    assert!(resolved("{}").rotation == RotationOverrides::default());
}

#[test]
fn wrong_numbers_are_refused_with_their_path() {
    let of =
        |key: &str, value: &str| problems(&format!("{{rotationOverrides: {{{key}: {value}}}}}"));
    for (key, value) in [
        ("error400Threshold", "0"),
        ("error429Threshold", "101"),
        ("error500Threshold", "-1"),
        ("error502Threshold", "1.5"),
        ("error400WindowSeconds", "0"),
        ("error429WindowSeconds", "86401"),
        ("error500WindowSeconds", "many"),
        ("error502WindowSeconds", "[1]"),
        ("rateLimitResetSeconds", "86401"),
        ("rateLimitResetSeconds", "-1"),
        ("rotateOn429", "1"),
    ] {
        let told = of(key, value);
        let path = format!("connections[0].providerSpecificData.rotationOverrides.{key}: ");
        assert_eq!(told.len(), 1, "{key} {value}: {told:#?}");
        assert!(told[0].starts_with(&path), "{key} {value}: {told:#?}");
    }
    let unknown = of("error429Treshold", "2");
    assert!(
        unknown[0].ends_with("error429Treshold: unknown key error429Threshold"),
        "{unknown:?}"
    );
    assert_eq!(problems("{rotationOverrides: [1]}").len(), 1);
}

#[test]
fn keys_beside_the_first() {
    let env = Surroundings::with(&[("SECOND", " second-key ")]);
    let text = connection("{extraApiKeys: [{env: SECOND}, third-key, first-key, third-key]}");
    let loaded = load_text(&text, &env).unwrap();
    let config = &loaded.config;
    let keys = config.connections[0].extra_keys.iter();
    let keys: Vec<&str> = keys.map(ExposeSecret::expose_secret).collect();
    assert_eq!(keys, ["second-key", "third-key"]);
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    let secrets: Vec<&str> = config.connections[0].secrets().collect();
    assert_eq!(secrets, ["first-key", "second-key", "third-key"]);
    let shown = format!("{config:?} {:?}", loaded.warnings);
    for key in ["first-key", "second-key", "third-key"] {
        assert!(!shown.contains(key), "{shown}");
    }
    let most: Vec<String> = (0..16).map(|n| format!("key-{n}")).collect();
    let most = format!("{{extraApiKeys: [{}]}}", most.join(", "));
    assert_eq!(resolved(&most).extra_keys.len(), 16);
    assert!(resolved("{extraApiKeys: []}").extra_keys.is_empty());
}

#[test]
fn keys_that_can_not_be_used() {
    let path = "connections[0].providerSpecificData.extraApiKeys";
    for (given, place) in [
        ("just-one", ""),
        ("{env: A}", ""),
        ("[{env: NOWHERE}]", "[0]"),
        ("[good-key, {file: nowhere}]", "[1]"),
        ("['']", "[0]"),
        ("[{env: A, file: B}]", "[0]"),
        ("[{vault: A}]", "[0].vault"),
        ("[good-key, 5]", "[1]"),
        ("[[good-key]]", "[0]"),
    ] {
        let told = problems(&format!("{{extraApiKeys: {given}}}"));
        let at = format!("{path}{place}: ");
        assert!(
            told.iter().any(|told| told.starts_with(&at)),
            "{given}: {told:#?}"
        );
        assert!(!format!("{told:?}").contains("good-key"), "{told:?}");
    }
    let many: Vec<String> = (0..17).map(|n| format!("key-{n}")).collect();
    let told = problems(&format!("{{extraApiKeys: [{}]}}", many.join(", ")));
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with(&format!("{path}: holds 17 keys")),
        "{told:?}"
    );
}

#[test]
fn only_keys_have_others_beside_them() {
    let tokens = "connections:\n  - id: a\n    provider: claude\n    oauth: {accessToken: t0ken}\n    \
                  providerSpecificData: {extraApiKeys: [another]}\n";
    let local = "connections:\n  - id: a\n    provider: ollama-local\n    \
                 providerSpecificData: {extraApiKeys: [another]}\n";
    for text in [tokens, local] {
        let problems = refused(text);
        let at = "connections[0].providerSpecificData.extraApiKeys";
        assert!(
            problems.iter().any(|problem| problem.path == at),
            "{problems:?}"
        );
    }
}

#[test]
fn the_switch_of_probes() {
    let set = |variable: &str, file: &str| {
        let env = Surroundings::with(&[("PROBE_CAN_DISABLE", variable)]);
        let loaded = load_text(&format!("settings: {file}"), &env).unwrap();
        let warned = loaded.warnings.iter();
        let warned = warned.filter(|warning| warning.path == "PROBE_CAN_DISABLE");
        (loaded.config.settings.probe_can_disable, warned.count())
    };
    assert_eq!(set("", "{}"), (false, 0));
    assert_eq!(set("true", "{}"), (true, 0));
    assert_eq!(set("false", "{}"), (false, 0));
    assert_eq!(set("true", "{probeCanDisable: false}"), (false, 0));
    assert_eq!(set("", "{probeCanDisable: true}"), (true, 0));
    assert_eq!(set("maybe", "{}"), (false, 1));
}
