//! Providers: of one's own, of the catalogue, and their addresses.

use super::super::{AuthKind, AuthStyle, Timeouts};
use super::{bad, good};
use crate::failure::Profile;
use crate::protocol::Protocol;
use crate::token::{ClientAuth, GrantBody};

#[test]
fn a_provider_of_ones_own() {
    let loaded = good(
        "providers:\n  - id: acme\n    protocol: [openai, anthropic]\n    baseUrl: https://acme.example/v1/\n    \
         models: ['acme-*']\n    passthroughModels: true\n    lenientStreamEnd: true\n    defaultHeaders: {X-Team: blue}\n    \
         timeouts: {firstContentMs: 5, totalMs: 0}\n",
    );
    let of = |id: &str| &loaded.config.providers[id];
    let acme = of("acme");
    assert_eq!(
        acme.endpoints.base_url(Protocol::Embeddings),
        Some("https://acme.example/v1")
    );
    assert_eq!(
        acme.endpoints.base_url(Protocol::Messages),
        Some("https://acme.example/v1")
    );
    assert!(!acme.endpoints.offers(Protocol::Responses));
    assert_eq!(
        (acme.auth, acme.auth_kind, acme.profile),
        (AuthStyle::Bearer, AuthKind::ApiKey, Profile::ApiKey)
    );
    assert!(acme.per_model_quota && acme.lenient_stream_end);
    assert_eq!(
        acme.default_headers,
        [("x-team".to_owned(), "blue".to_owned())]
    );
    assert_eq!(
        (acme.timeouts.first_content_ms, acme.timeouts.total_ms),
        (5, 0)
    );
    assert_eq!(
        acme.timeouts.connect_ms,
        Timeouts::of(Profile::ApiKey).connect_ms
    );
    assert!(acme.serves("acme-large") && !acme.serves("large"));
}

#[test]
fn what_follows_from_protocol_and_auth() {
    let loaded = good(
        "providers:\n  - {id: claudish, protocol: anthropic, baseUrl: 'https://b.example/v1'}\n  \
         - {id: bearer, protocol: anthropic, baseUrl: 'https://b.example/v1', authHeader: bearer}\n  \
         - {id: free, protocol: openai, baseUrl: 'http://c.example', auth: none}\n  \
         - {id: lab, protocol: openai, baseUrl: 'http://c.example', auth: none, profile: local}\n  \
         - {id: pretend, protocol: simulated, auth: none, models: [pretend-1]}\n",
    );
    let of = |id: &str| &loaded.config.providers[id];
    assert_eq!(of("claudish").auth, AuthStyle::XApiKey);
    assert_eq!(of("bearer").auth, AuthStyle::Bearer);
    assert_eq!(of("free").profile, Profile::Oauth);
    assert_eq!(of("lab").profile, Profile::Local);
    assert_eq!(of("lab").timeouts, Timeouts::of(Profile::Local));
    assert!(of("pretend").endpoints.simulated && of("pretend").serves("pretend-1"));
}

#[test]
fn the_catalogue_is_overridden_field_by_field() {
    let loaded = good(
        "providers:\n  - {id: openai, baseUrl: 'http://mock/v1'}\n  \
         - {id: deepseek, protocol: anthropic, baseUrl: 'http://mock/a'}\n  \
         - {id: xai, protocol: openai}\n  \
         - {id: anthropic, defaultHeaders: {anthropic-beta: x}, models: []}\n  \
         - {id: vllm, auth: apiKey, timeouts: {connectMs: 1}}\n  \
         - {id: groq, profile: local}\n",
    );
    let of = |id: &str| &loaded.config.providers[id];
    assert_eq!(
        of("openai").endpoints.openai.as_deref(),
        Some("http://mock/v1")
    );
    assert_eq!(
        of("openai").endpoints.responses.as_deref(),
        Some("http://mock/v1")
    );
    assert!(of("openai").serves("gpt-4o"));
    assert_eq!(
        of("deepseek").endpoints.anthropic.as_deref(),
        Some("http://mock/a")
    );
    assert_eq!(
        of("deepseek").endpoints.openai.as_deref(),
        Some("https://api.deepseek.com/v1")
    );
    assert!(of("xai").endpoints.openai.is_some() && of("xai").endpoints.responses.is_none());
    let names: Vec<&str> = of("anthropic")
        .default_headers
        .iter()
        .map(|(name, _)| &**name)
        .collect();
    assert_eq!(names, ["anthropic-beta", "anthropic-version"]);
    assert!(!of("anthropic").serves("claude-x"));
    assert_eq!(of("anthropic").auth, AuthStyle::XApiKey);
    assert_eq!(
        (of("vllm").profile, of("vllm").auth_kind),
        (Profile::Local, AuthKind::ApiKey)
    );
    assert_eq!(of("vllm").timeouts.connect_ms, 1);
    assert_eq!(of("groq").timeouts, Timeouts::of(Profile::Local));
}

#[test]
fn flags_and_addresses_of_the_catalogue_are_overridden_too() {
    let loaded = good(
        "providers:\n  - {id: opencode-go, egressBucketFamily: '', perModelQuota: false}\n  \
         - {id: azure-openai, baseUrl: 'https://mine.example/openai/v1'}\n\
         connections:\n  - {id: az, provider: azure-openai, apiKey: k}\n",
    );
    let of = |id: &str| &loaded.config.providers[id];
    assert_eq!(
        (
            of("opencode-go").egress_bucket_family.as_deref(),
            of("opencode-go").per_model_quota
        ),
        (None, false)
    );
    let azure = of("azure-openai");
    assert!(
        azure.endpoints.offers(Protocol::Responses) && !azure.endpoints.offers(Protocol::Messages)
    );
    assert_eq!(azure.auth, AuthStyle::ApiKey);
}

#[test]
fn an_address_may_be_the_connections_own() {
    let loaded = good(
        "connections:\n  - {id: a, provider: azure-openai, apiKey: k, baseUrl: 'https://a.example/openai/v1/'}\n  \
         - {id: b, provider: azure-openai, apiKey: k, providerSpecificData: {baseUrl: 'https://b.example/openai/v1', disableCooling: true}}\n",
    );
    let urls: Vec<Option<&str>> = loaded
        .config
        .connections
        .iter()
        .map(|c| c.base_url.as_deref())
        .collect();
    assert_eq!(
        urls,
        [
            Some("https://a.example/openai/v1"),
            Some("https://b.example/openai/v1"),
            None
        ]
    );
    assert!(
        loaded.config.providers["azure-openai"]
            .endpoints
            .offers(Protocol::ChatCompletions)
    );
    assert!(loaded.config.connections[1].disable_cooling);
}

#[test]
fn a_connection_never_leads_back_to_the_router() {
    let connection = "connections: [{id: a, provider: llama-cpp}]";
    assert_eq!(bad(connection).len(), 1);
    good(&format!(
        "server: {{listen: '127.0.0.1:9000'}}\n{connection}"
    ));
    for url in ["http://localhost:8080/v1", "http://127.0.0.1:8080"] {
        let text =
            format!("connections: [{{id: a, provider: openai, apiKey: k, baseUrl: '{url}'}}]");
        assert_eq!(bad(&text).len(), 1, "{url}");
    }
    for url in [
        "http://localhost:8081/v1",
        "http://10.0.0.1:8080",
        "https://localhost/v1",
    ] {
        good(&format!(
            "connections: [{{id: a, provider: openai, apiKey: k, baseUrl: '{url}'}}]"
        ));
    }
}

#[test]
fn token_endpoints_are_the_catalogues_and_overridden_key_by_key() {
    let loaded = good(
        "providers:\n  - {id: claude, oauth: {clientId: ours, body: form}}\n  \
         - {id: acme, protocol: openai, baseUrl: 'https://a.example/v1', auth: oauth, \
         oauth: {tokenUrl: 'https://a.example/token', clientSecret: s, clientAuth: basic, scopes: [x]}}\n  \
         - {id: codex, oauth: {clientId: ''}}\n",
    );
    let of = |id: &str| loaded.config.providers[id].token_endpoint.clone();
    let claude = of("claude").unwrap();
    assert_eq!(claude.url, "https://platform.claude.com/v1/oauth/token");
    assert_eq!(claude.client_id.as_deref(), Some("ours"));
    assert_eq!(claude.body, GrantBody::Form);
    let acme = of("acme").unwrap();
    assert_eq!(acme.client_auth, ClientAuth::Basic);
    assert_eq!((acme.client_id, acme.scopes), (None, vec!["x".to_owned()]));
    assert!(acme.client_secret.is_some());
    let codex = of("codex").unwrap();
    assert_eq!((codex.client_id, codex.body), (None, GrantBody::Json));
    assert_eq!(of("openai"), None);
}

#[test]
fn a_token_endpoint_needs_an_address() {
    for (oauth, fault) in [
        ("{clientId: c}", "providers[0].oauth.tokenUrl: is missing"),
        ("{tokenUrl: 'ftp://x'}", "providers[0].oauth.tokenUrl"),
        (
            "{tokenUrl: 'https://x/t', body: xml}",
            "providers[0].oauth.body",
        ),
    ] {
        let text = format!(
            "providers: [{{id: acme, protocol: openai, baseUrl: 'https://a.example', oauth: {oauth}}}]"
        );
        let told = bad(&text);
        assert!(told.iter().any(|told| told.contains(fault)), "{told:?}");
    }
}
