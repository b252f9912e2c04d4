//! The start without a file.

use std::path::PathBuf;

use secrecy::ExposeSecret;

use super::super::{Credential, FoundConnection, Loaded, Overrides, StoreUrl, load};
use super::{Surroundings, good};

fn start(variables: &[(&str, &str)]) -> Loaded {
    load(None, &Surroundings::with(variables), &Overrides::default()).unwrap()
}

#[test]
fn nothing_at_all_is_a_valid_start() {
    let Loaded {
        config,
        warnings,
        found,
    } = start(&[]);
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(
        config.store.url,
        StoreUrl::Disk(PathBuf::from("./omniroute-data"))
    );
    assert_eq!(config.store.prefix, "omniroute");
    assert_eq!(found, []);
    let ids: Vec<&str> = config.connections.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(ids, ["simulated"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(config.api_keys.is_empty() && config.combos.is_empty());
    let server = &config.server;
    assert_eq!(
        (
            server.max_body_bytes,
            server.max_body_memory_bytes,
            server.max_response_bytes,
            server.drain_timeout_ms
        ),
        (33_554_432, 1 << 30, 67_108_864, 30_000)
    );
    assert_eq!(
        (
            server.body_idle_timeout_ms,
            server.keep_alive_ms,
            server.early_keep_alive,
            server.workers
        ),
        (30_000, 15_000, true, None)
    );
}

#[test]
fn each_usual_variable_makes_one_connection() {
    let names = [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "OPENROUTER_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "DEEPSEEK_API_KEY",
        "XAI_API_KEY",
    ];
    for name in names {
        let Loaded {
            config,
            warnings,
            found,
        } = start(&[(name, " key-1\n")]);
        let id = name.split('_').next().unwrap().to_ascii_lowercase();
        let expected = FoundConnection {
            variable: name.to_owned(),
            connection: id.clone(),
        };
        assert_eq!(found, [expected]);
        assert_eq!(warnings, []);
        let connection = &config.connections[0];
        assert_eq!(
            (connection.id.as_str(), connection.provider.as_str()),
            (&*id, &*id)
        );
        let Credential::ApiKey(key) = &connection.credential else {
            panic!("{name}")
        };
        assert_eq!(key.expose_secret(), "key-1");
        assert_eq!(config.connections[1].id.as_str(), "simulated");
    }
    let both = start(&[("GOOGLE_API_KEY", "two"), ("GEMINI_API_KEY", "one")]);
    assert_eq!(both.found.len(), 1);
    assert_eq!(both.found[0].variable, "GEMINI_API_KEY");
}

#[test]
fn what_needs_more_than_a_key_is_not_guessed() {
    let loaded = start(&[
        ("AZURE_OPENAI_API_KEY", "a"),
        ("CLOUDFLARE_API_TOKEN", "b"),
        ("OPENAI_API_KEY", "  "),
        ("GROQ_API_KEY", "two\nlines"),
    ]);
    assert_eq!(loaded.found, []);
    let told: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(
        told.iter()
            .any(|line| line.starts_with("environment: GROQ_API_KEY: ")),
        "{told:?}"
    );
}

#[test]
fn a_file_means_only_what_it_says_and_the_simulated_provider() {
    let env = Surroundings::with(&[("OPENAI_API_KEY", "sk-1")]);
    let loaded = super::load_text("store: {url: 'embedded:memory'}", &env).unwrap();
    assert_eq!(loaded.found, []);
    let ids = |loaded: &Loaded| -> Vec<String> {
        loaded
            .config
            .connections
            .iter()
            .map(|c| c.id.to_string())
            .collect()
    };
    assert_eq!(ids(&loaded), ["simulated"]);
    let own = good("connections: [{id: mine, provider: simulated}]");
    assert_eq!(ids(&own), ["mine"]);
    let taken = good("connections: [{id: simulated, provider: ollama-local}]");
    assert_eq!(ids(&taken), ["simulated", "simulated:built-in"]);
    let simulated = &taken.config.providers["simulated"];
    assert!(!simulated.serves("ok") && simulated.models.is_empty());
}
