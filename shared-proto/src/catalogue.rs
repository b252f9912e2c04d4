//! The built-in providers: a data file, read once. The configuration adds to
//! it and overrides it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::config::file::{
    Auth, AuthHeader, ProfileName, ProtocolName, Timeouts, TokenEndpoint as TokenRow,
};
use crate::config::{
    DailyReset, Endpoints, ModelFamily, Parts, Provider, Reading, UnsaidOverflow, assemble,
    described, yaml,
};

#[cfg(test)]
mod tests;

/// A provider of the catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its resolved form, with the built-in timers.
    pub provider: Provider,
    /// Set where each customer has an address of its own: the provider's
    /// endpoints are then empty until the configuration gives one.
    pub own_url: Option<OwnUrl>,
    /// Other names under which a configuration may know it.
    pub aliases: Vec<String>,
}

/// An address that only the operator knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnUrl {
    /// What it looks like.
    pub example: String,
    /// What is spoken there.
    pub(crate) protocols: Vec<ProtocolName>,
}

/// The id of the provider that answers in the process.
pub const SIMULATED: &str = "simulated";

static ENTRIES: LazyLock<Result<Vec<Entry>, String>> =
    LazyLock::new(|| read(include_str!("catalogue/providers.yaml")));

/// The built-in providers, in the order in which a bare model name is looked
/// for. The error can only be a fault of the data file itself.
pub fn entries() -> Result<&'static [Entry], &'static str> {
    match &*ENTRIES {
        Ok(entries) => Ok(entries),
        Err(fault) => Err(fault),
    }
}

/// The entry that is called `name`, or has it as another name.
pub fn entry(name: &str) -> Option<&'static Entry> {
    let entries = entries().unwrap_or_default();
    let named = |entry: &&Entry| entry.provider.id.as_str() == name;
    let known_as = |entry: &&Entry| entry.aliases.iter().any(|alias| alias == name);
    entries
        .iter()
        .find(named)
        .or_else(|| entries.iter().find(known_as))
}

/// A provider as the data file writes it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Row {
    id: String,
    #[serde(default)]
    endpoints: BTreeMap<ProtocolName, String>,
    #[serde(default)]
    simulated: bool,
    own_url: Option<OwnUrlRow>,
    auth: Auth,
    auth_header: Option<AuthHeader>,
    profile: Option<ProfileName>,
    #[serde(default)]
    key_env: Vec<String>,
    #[serde(default)]
    models: Vec<String>,
    #[serde(default)]
    default_headers: BTreeMap<String, String>,
    #[serde(default)]
    timeouts: Timeouts,
    #[serde(default)]
    per_model_quota: bool,
    #[serde(default)]
    lenient_stream_end: bool,
    egress_bucket_family: Option<String>,
    usage_url: Option<String>,
    oauth: Option<TokenRow>,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    own_rules: Vec<OwnRules>,
    #[serde(default)]
    unsaid_overflow: Vec<Unsaid>,
    #[serde(default)]
    model_families: Vec<Family>,
    daily_quota_reset_timezone: Option<String>,
}

/// What the provider's rules of `classify/quirk.rs` may do.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
enum OwnRules {
    HonoursScope,
    FullText,
}

/// How a prompt that is too long is refused without a word of it.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
enum Unsaid {
    Bare400,
    EmptyAnswer,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Family {
    name: String,
    models: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OwnUrlRow {
    example: String,
    protocols: Vec<ProtocolName>,
}

fn read(text: &str) -> Result<Vec<Entry>, String> {
    let parsed = yaml::parse("providers.yaml", text.as_bytes());
    if let Some(problem) = parsed.problems.first() {
        return Err(problem.to_string());
    }
    let root = parsed.root.ok_or("the catalogue is empty")?;
    let rows: Vec<Row> =
        serde_json::from_value(root.to_json()).map_err(|fault| fault.to_string())?;
    Ok(rows.into_iter().map(built).collect())
}

fn built(row: Row) -> Entry {
    let mut endpoints = Endpoints {
        simulated: row.simulated,
        ..Endpoints::default()
    };
    for (protocol, url) in &row.endpoints {
        endpoints.set(*protocol, url);
    }
    let own_url = row.own_url.map(|own| OwnUrl {
        example: own.example,
        protocols: own.protocols,
    });
    let provider = assemble(Parts {
        id: &row.id,
        endpoints,
        auth: row.auth,
        auth_header: row.auth_header,
        profile: row.profile,
        timeouts: &row.timeouts,
    });
    let provider = Provider {
        key_env: row.key_env,
        models: row.models,
        default_headers: row.default_headers.into_iter().collect(),
        per_model_quota: row.per_model_quota,
        lenient_stream_end: row.lenient_stream_end,
        egress_bucket_family: row.egress_bucket_family,
        usage_url: row.usage_url,
        token_endpoint: row.oauth.and_then(|row| {
            let url = row.token_url.clone()?;
            Some(described(&row, url, None))
        }),
        reading: Reading {
            honours_rule_scope: row.own_rules.contains(&OwnRules::HonoursScope),
            full_text_rules: row.own_rules.contains(&OwnRules::FullText),
            unsaid_overflow: UnsaidOverflow {
                bare_400: row.unsaid_overflow.contains(&Unsaid::Bare400),
                empty_answer: row.unsaid_overflow.contains(&Unsaid::EmptyAnswer),
            },
        },
        daily_reset: row
            .daily_quota_reset_timezone
            .and_then(|zone| DailyReset::named(&zone, 0)),
        model_families: row.model_families.into_iter().map(family).collect(),
        ..provider
    };
    Entry {
        provider,
        own_url,
        aliases: row.aliases,
    }
}

fn family(row: Family) -> ModelFamily {
    ModelFamily {
        name: row.name,
        models: row.models,
    }
}
