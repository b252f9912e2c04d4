//! Every row of the catalogue is usable as it stands.

use std::collections::HashSet;

use super::{Entry, SIMULATED, entries, read};
use crate::config::{AuthKind, AuthStyle};
use crate::failure::Profile;
use crate::protocol::Protocol;

fn entry(id: &str) -> &'static Entry {
    let mut all = entries().unwrap().iter();
    all.find(|entry| entry.provider.id.as_str() == id).unwrap()
}

#[test]
fn names_what_it_has_to() {
    let wanted = [
        "openai",
        "anthropic",
        "claude",
        "gemini",
        "vertex",
        "azure-openai",
        "openrouter",
        "groq",
        "mistral",
        "deepseek",
        "xai",
        "together",
        "fireworks",
        "cerebras",
        "nvidia",
        "cohere",
        "perplexity",
        "glm",
        "zai",
        "minimax",
        "moonshot",
        "dashscope",
        "siliconflow",
        "opencode",
        "opencode-go",
        "opencode-zen",
        "opencode-cli",
        "agentrouter",
        "cloudflare-ai",
        "github",
        "codex",
        "ollama-local",
        "ollama-cloud",
        "lm-studio",
        "vllm",
        "llama-cpp",
        "simulated",
    ];
    let have: Vec<&str> = entries()
        .unwrap()
        .iter()
        .map(|e| e.provider.id.as_str())
        .collect();
    for id in wanted {
        assert!(have.contains(&id), "{id}");
    }
    let unique: HashSet<&str> = have.iter().copied().collect();
    assert_eq!(unique.len(), have.len());
}

#[test]
fn every_entry_has_what_its_auth_kind_needs() {
    for entry in entries().unwrap() {
        let provider = &entry.provider;
        let id = &provider.id;
        let endpoints = &provider.endpoints;
        let spoken = Protocol::ALL
            .iter()
            .any(|protocol| endpoints.offers(*protocol));
        assert_ne!(
            spoken,
            entry.own_url.is_some(),
            "{id}: an address, or an example of one"
        );
        match provider.auth_kind {
            AuthKind::ApiKey => assert!(!provider.key_env.is_empty(), "{id}"),
            AuthKind::Oauth => {
                assert_eq!(
                    provider.auth,
                    AuthStyle::Bearer,
                    "{id}: tokens go as a bearer"
                );
                assert_eq!(provider.profile, Profile::Oauth, "{id}");
            }
            AuthKind::None => assert!(provider.key_env.is_empty(), "{id}"),
        }
        let urls = [
            &endpoints.openai,
            &endpoints.responses,
            &endpoints.anthropic,
            &endpoints.gemini,
        ];
        for url in urls.into_iter().flatten() {
            let hosted = url.starts_with("https://");
            let local = url.starts_with("http://127.0.0.1:");
            assert!(hosted || local, "{id}: {url}");
            assert_eq!(local, provider.profile == Profile::Local, "{id}: {url}");
            assert!(!url.ends_with('/'), "{id}: {url}");
        }
        if let Some(url) = &endpoints.anthropic {
            assert!(
                url.ends_with("/v1"),
                "{id}: the path of a call begins below /v1"
            );
        }
    }
}

#[test]
fn says_the_same_to_everybody_about_the_usual_ones() {
    let openai = &entry("openai").provider;
    assert_eq!(
        openai.endpoints.openai.as_deref(),
        Some("https://api.openai.com/v1")
    );
    assert_eq!(openai.endpoints.responses, openai.endpoints.openai);
    assert_eq!(openai.auth, AuthStyle::Bearer);
    let anthropic = &entry("anthropic").provider;
    assert_eq!(anthropic.auth, AuthStyle::XApiKey);
    assert_eq!(
        anthropic.endpoints.base_url(Protocol::Messages),
        Some("https://api.anthropic.com/v1")
    );
    assert!(!anthropic.endpoints.offers(Protocol::ChatCompletions));
    assert_eq!(
        anthropic.default_headers,
        [("anthropic-version".to_owned(), "2023-06-01".to_owned())]
    );
    assert_eq!(entry("azure-openai").provider.auth, AuthStyle::ApiKey);
}

#[test]
fn families_have_their_flags() {
    for id in [
        "codex",
        "gemini",
        "github",
        "opencode",
        "openrouter",
        "agentrouter",
        "ollama-cloud",
    ] {
        assert!(entry(id).provider.per_model_quota, "{id}");
    }
    for (id, family) in [
        ("opencode", true),
        ("opencode-go", true),
        ("opencode-cli", true),
        ("opencode-zen", false),
    ] {
        assert_eq!(
            entry(id).provider.egress_bucket_family.is_some(),
            family,
            "{id}"
        );
    }
    for id in ["ollama-local", "lm-studio", "vllm", "llama-cpp"] {
        let provider = &entry(id).provider;
        assert_eq!(provider.profile, Profile::Local, "{id}");
        assert_eq!(
            provider.auth,
            AuthStyle::Bearer,
            "{id}: a key, where one is given, is a bearer"
        );
        assert!(provider.timeouts.first_content_ms >= 600_000, "{id}");
    }
}

#[test]
fn bare_names_find_their_maker_and_never_the_simulated_provider() {
    let maker = |model: &str| {
        let mut all = entries().unwrap().iter();
        all.find(|entry| entry.provider.serves(model))
            .map(|entry| entry.provider.id.as_str())
    };
    for (model, id) in [
        ("gpt-4.1-mini", "openai"),
        ("o3", "openai"),
        ("text-embedding-3-small", "openai"),
        ("claude-sonnet-4-5", "anthropic"),
        ("gemini-2.5-flash", "gemini"),
        ("mistral-large-latest", "mistral"),
        ("deepseek-chat", "deepseek"),
        ("grok-4", "xai"),
        ("sonar", "perplexity"),
        ("glm-4.6", "zai"),
        ("MiniMax-M2", "minimax"),
        ("kimi-k2", "moonshot"),
        ("qwen3-max", "dashscope"),
        ("llama-3.3-70b-versatile", "groq"),
    ] {
        assert_eq!(maker(model), Some(id), "{model}");
    }
    assert_eq!(maker("ok"), None);
    assert_eq!(maker("llama-3"), None);
    assert!(entry(SIMULATED).provider.models.is_empty());
    assert!(entry(SIMULATED).provider.endpoints.simulated);
    assert_eq!(entry(SIMULATED).provider.auth, AuthStyle::None);
}

#[test]
fn a_faulty_file_is_an_error_and_no_panic() {
    for text in [
        "",
        "- id: [",
        "- {id: x}",
        "- {id: x, auth: apiKey, endpoint: {}}",
        "x: 1",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}
