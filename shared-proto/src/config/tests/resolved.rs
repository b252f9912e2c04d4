//! What a right file comes to.

use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};

use super::super::{Credential, Overrides, Source, StoreUrl, StrategyName, load};
use super::{Surroundings, bad, good, load_text};

#[test]
fn command_line_goes_before_variable_before_file() {
    let text = "server: {listen: '127.0.0.1:1'}\nstore: {url: 'embedded:from-file'}\n";
    let source = Source {
        name: "f",
        bytes: text.as_bytes(),
    };
    let listen = |env: &Surroundings, overrides: &Overrides| {
        let config = load(Some(&source), env, overrides).unwrap().config;
        (config.server.listen.to_string(), config.store.url)
    };
    let none = Overrides::default();
    let from_file = StoreUrl::Disk("from-file".into());
    assert_eq!(
        listen(&Surroundings::default(), &none),
        ("127.0.0.1:1".to_owned(), from_file)
    );
    let env = Surroundings::with(&[
        ("OMNIROUTE_LISTEN", "localhost:2"),
        ("OMNIROUTE_STORE_URL", "embedded:memory"),
    ]);
    assert_eq!(
        listen(&env, &none),
        ("127.0.0.1:2".to_owned(), StoreUrl::Memory)
    );
    let both = Overrides {
        listen: Some("[::1]:3".to_owned()),
        store: Some("embedded:/var/lib/x".to_owned()),
    };
    let disk = StoreUrl::Disk("/var/lib/x".into());
    assert_eq!(listen(&env, &both), ("[::1]:3".to_owned(), disk));
    let wrong = Overrides {
        listen: Some("3".to_owned()),
        store: Some("sqlite:x".to_owned()),
    };
    let told: Vec<String> = load(Some(&source), &env, &wrong)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].starts_with("command line: --listen: `3` is not an address"),
        "{told:?}"
    );
    assert!(
        told[1].starts_with("command line: --store: not a store"),
        "{told:?}"
    );
}

#[test]
fn other_machines_need_keys() {
    let open = "server: {listen: '0.0.0.0:8080'}\n";
    assert!(bad(open)[0].contains("no apiKeys are configured"));
    let keyed = format!("{open}apiKeys: [{{id: a, key: a-key-of-some-length}}]\n");
    let loaded = good(&keyed);
    let told: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(
        told.iter()
            .any(|line| line.contains("management stays off at 0.0.0.0:8080")),
        "{told:?}"
    );
    // One fault, not two: the keys are there, but faulty.
    let faulty = format!("{open}apiKeys: [{{id: a, key: 5}}]\n");
    assert_eq!(bad(&faulty).len(), 1);
    let env = Surroundings::with(&[("OMNIROUTE_LISTEN", "[::]:80")]);
    let told = load_text("store: {}", &env).unwrap_err();
    assert_eq!(
        (told[0].file.as_str(), told[0].path.as_str()),
        ("environment", "OMNIROUTE_LISTEN")
    );
    let same = "server: {listen: '127.0.0.1:80', adminListen: '127.0.0.1:80'}";
    assert!(bad(same)[0].contains("is the address of the client API"));
}

#[test]
fn keys_are_kept_as_hashes() {
    let loaded = good(
        "apiKeys:\n  - {id: a, key: test-test-test-test-test}\n  - {id: b, sha256: 9F86D081884C7D659A2FEAA0C55AD015A3BF4F1B2B0B822CD15D6C15B0F00A08, allowedModels: [x]}\n",
    );
    let keys = &loaded.config.api_keys;
    let expected = Sha256::digest("test-test-test-test-test");
    assert_eq!(keys[0].sha256[..], expected[..]);
    assert_eq!(keys[1].sha256[..3], [0x9f, 0x86, 0xd0]);
    assert_eq!(keys[0].allowed_connections, None);
    assert_eq!(keys[1].allowed_models, ["x"]);
    assert!(!format!("{:?}", loaded.config).contains("test-test"));
}

#[test]
fn secrets_come_from_text_variable_or_file() {
    let mut env = Surroundings::with(&[("KEY", " from-variable ")]);
    env.files
        .insert("/key".to_owned(), "from-file\n".to_owned());
    let text = "connections:\n  - {id: a, provider: openai, apiKey: plain}\n  \
                - {id: b, provider: openai, apiKey: {env: KEY}}\n  \
                - {id: c, provider: openai, apiKey: {file: /key}}\n";
    let loaded = load_text(text, &env).unwrap();
    let keys: Vec<&str> = loaded
        .config
        .connections
        .iter()
        .filter_map(|c| match &c.credential {
            Credential::ApiKey(key) => Some(key.expose_secret()),
            Credential::None | Credential::Oauth { .. } => None,
        })
        .collect();
    assert_eq!(keys, ["plain", "from-variable", "from-file"]);
    let shown = format!("{:?}", loaded.config);
    assert!(!shown.contains("from-variable") && !shown.contains("from-file"));
}

#[test]
fn oauth_connections_hold_tokens() {
    let text = |at: &str| {
        format!(
            "connections: [{{id: a, provider: claude, oauth: {{accessToken: t, expiresAt: {at}}}}}]"
        )
    };
    for (written, ms) in [
        ("2026-10-01T12:00:00Z", 1_790_856_000_000),
        ("1790856000000", 1_790_856_000_000),
        ("'1790856000000'", 1_790_856_000_000_u64),
    ] {
        let loaded = good(&text(written));
        let Credential::Oauth {
            access_token,
            refresh_token,
            expires_at_ms,
        } = &loaded.config.connections[0].credential
        else {
            panic!("{written}")
        };
        assert_eq!(access_token.expose_secret(), "t");
        assert!(refresh_token.is_none());
        assert_eq!(*expires_at_ms, Some(ms), "{written}");
    }
    // The end may be kept elsewhere, or be told by the token itself.
    let env = Surroundings::with(&[("ENDS", " 2026-10-01T12:00:00Z\n")]);
    for tokens in [
        "accessToken: t, expiresAt: {env: ENDS}",
        "accessToken: a.eyJleHAiOjE3OTA4NTYwMDB9.c",
    ] {
        let one = format!("connections: [{{id: a, provider: claude, oauth: {{{tokens}}}}}]");
        let loaded = load_text(&one, &env).unwrap();
        let end = loaded.config.connections[0].credential.expires_at_ms();
        assert_eq!(end, Some(1_790_856_000_000), "{tokens}");
    }
    let wrong = Surroundings::with(&[("ENDS", "soon")]);
    let one =
        "connections: [{id: a, provider: claude, oauth: {accessToken: t, expiresAt: {env: ENDS}}}]";
    let told = load_text(one, &wrong).unwrap_err();
    assert_eq!(told[0].path, "connections[0].oauth.expiresAt");
    // An account with tokens at a provider that otherwise takes keys.
    let mixed = good("connections: [{id: a, provider: anthropic, oauth: {accessToken: t}}]");
    assert!(matches!(
        mixed.config.connections[0].credential,
        Credential::Oauth { .. }
    ));
}

#[test]
fn combos_list_their_targets_in_order() {
    let loaded = good(
        "connections: [{id: a, provider: openai, apiKey: k, priority: 3, models: ['gpt-*']}]\n\
         combos:\n  - name: fast\n    targets:\n      - {model: openai/gpt-4o, connection: a}\n      - {model: openai/gpt-5}\n  \
         - {name: deep, strategy: priority, targets: [{model: openrouter/meta-llama/llama-3}]}\n",
    );
    let combos = &loaded.config.combos;
    assert_eq!(combos[0].strategy, StrategyName::Priority);
    assert_eq!(
        combos[0].targets[0].connection.as_ref().unwrap().as_str(),
        "a"
    );
    assert_eq!(combos[0].targets[1].connection, None);
    let deep = &combos[1].targets[0];
    assert_eq!(
        (deep.provider.as_str(), &*deep.model, deep.weight),
        ("openrouter", "meta-llama/llama-3", 1)
    );
    let connection = &loaded.config.connections[0];
    assert_eq!((connection.priority, connection.enabled), (3, true));
    assert!(connection.serves("gpt-4o") && !connection.serves("o3"));
}

#[test]
fn node_id_and_secret_key_come_from_variables() {
    let env = |key: &str| {
        Surroundings::with(&[
            ("OMNIROUTE_SECRET_KEY", key),
            ("OMNIROUTE_NODE_ID", "node-1"),
        ])
    };
    for key in [
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
    ] {
        let config = load_text("{}", &env(key)).unwrap().config;
        // What stands for it is told from no other's key.
        assert_eq!(
            format!("{:?}", config.secret_keys.unwrap()),
            "[\"e2da8cd6804fbfed\"]"
        );
        assert_eq!(config.node_id.unwrap().as_str(), "node-1");
    }
    let url_safe = "_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-8=";
    assert!(load_text("{}", &env(url_safe)).is_ok());
    let both = format!("{url_safe} , AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n");
    let both = load_text("{}", &env(&both)).unwrap().config;
    let both = format!("{:?}", both.secret_keys.unwrap());
    assert!(
        both.ends_with("e2da8cd6804fbfed\"]") && both.len() == 40,
        "{both}"
    );
    for key in [
        "AAEC",
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=,AAEC",
        "not base64 at all",
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gIQ==",
    ] {
        let told = load_text("{}", &env(key)).unwrap_err();
        assert_eq!(told[0].path, "OMNIROUTE_SECRET_KEY", "{key}");
        assert!(!told[0].message.contains(key));
    }
    let bad_id = Surroundings::with(&[("OMNIROUTE_NODE_ID", "a b")]);
    assert_eq!(
        load_text("{}", &bad_id).unwrap_err()[0].path,
        "OMNIROUTE_NODE_ID"
    );
}

#[test]
fn a_store_is_named_by_its_url_and_its_password_is_not_told() {
    for (url, fits) in [
        ("embedded:memory", true),
        ("embedded:./here", true),
        ("embedded:", false),
        ("redis://h", true),
        ("rediss://user:pw@h", true),
        ("redis+sentinel://h1,h2/master/0", true),
        ("redis+cluster://h1,h2", true),
        ("redis+cluster://user:pw@h1,h2/1", false),
        ("sqlite://x", false),
        ("memory", false),
    ] {
        let text = format!("store: {{url: '{url}'}}");
        if fits {
            good(&text);
            continue;
        }
        let told = bad(&text);
        assert_eq!(told.len(), 1, "{url}");
        assert!(!told[0].contains("pw"), "{told:?}");
    }
}
