//! The shape of the configuration file. The doc comments here are the texts of
//! the published JSON Schema, and the bounds here are the bounds that hold.
//!
//! Every field may be absent, so that one fault does not hide the next; what is
//! required is said in the schema. Two of our own keywords mark the schema:
//! `x-notYet` names keys that are accepted but not acted on yet (a list holds
//! the values that ask for nothing), `x-exact` numbers that are refused out of
//! their bounds instead of clamped.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

mod egress;
mod extras;
mod gates;
mod quota;
mod rules;
mod settings;
mod specific;
mod words;

pub(crate) use egress::Egress;
pub(crate) use extras::{EmergencyFallback, UsageWall};
pub(crate) use gates::{ExpiredRetry, ProviderCooldown};
pub(crate) use quota::{Percent, QuotaPreflight};
pub(crate) use rules::{ErrorRule, Marker, ModelLockout, RestatementRule, Status};
pub(crate) use settings::{
    BannedScope, ConnectionCooldown, HintBounds, Leases, Profiles, ProviderBreaker, Settings,
    Signal, Switch, WaitForCooldown,
};
pub(crate) use specific::{ProviderSpecific, RotationOverrides};
pub(crate) use words::{
    Auth, AuthHeader, ClientAuth, GrantBody, Instant, OneOrMany, ProfileName, ProtocolName, Secret,
};

/// Configuration of a router node and of a coordinator. A number out of its
/// bounds is clamped to the nearest bound, with a warning; a number may be
/// written as a string of digits.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Configuration file")]
pub(crate) struct File {
    /// Listeners, limits and the admin token.
    pub(crate) server: Option<Server>,
    /// Where shared state lives.
    pub(crate) store: Option<Store>,
    /// Adds to the built-in catalogue of providers, or overrides it field by field.
    pub(crate) providers: Option<Vec<Provider>>,
    /// The accounts. Without a file, one for each provider whose usual variable is set.
    pub(crate) connections: Option<Vec<Connection>>,
    /// Named lists of targets; clients put the name into `model`.
    pub(crate) combos: Option<Vec<Combo>>,
    /// Keys of clients. Without any, a loopback listener takes every caller and no other may start.
    pub(crate) api_keys: Option<Vec<ApiKey>>,
    /// Behaviour with numbers.
    pub(crate) settings: Option<Settings>,
    /// The coordinators of a cluster.
    pub(crate) coordinator: Option<Coordinator>,
}

/// The coordinators of a cluster.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Coordinator {
    /// How long a leader may be silent before another takes over, in ms; read at the start, and to be
    /// the same for all. Default 5000.
    #[schemars(range(min = 1000, max = 60_000))]
    pub(crate) lease_ms: Option<u64>,
}

/// Listeners, limits and the admin token.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Server {
    /// Address and port of the client API. Default 127.0.0.1:8080. `OMNIROUTE_LISTEN` overrides it.
    pub(crate) listen: Option<String>,
    /// A listener of its own for management API, dashboard and metrics. `OMNIROUTE_ADMIN_LISTEN` overrides it.
    pub(crate) admin_listen: Option<String>,
    /// What management callers send as `Authorization: Bearer`. `OMNIROUTE_ADMIN_TOKEN` overrides it.
    pub(crate) admin_token: Option<Secret>,
    /// Largest request body after inflation, in bytes. Default 33554432.
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    pub(crate) max_body_bytes: Option<u64>,
    /// Most memory that the request bodies under way may take together, in bytes of inflated body; at
    /// least maxBodyBytes. Past it a request is refused with 503. Default 1073741824, or maxBodyBytes
    /// where that is more.
    #[schemars(range(min = 1024, max = 1_099_511_627_776_u64))]
    pub(crate) max_body_memory_bytes: Option<u64>,
    /// Largest buffered upstream answer after inflation, in bytes. Default 67108864.
    #[schemars(range(min = 1024, max = 1_073_741_824))]
    pub(crate) max_response_bytes: Option<u64>,
    /// How long a stop waits for requests in flight, in ms. Default 30000.
    #[schemars(range(min = 0, max = 3_600_000))]
    pub(crate) drain_timeout_ms: Option<u64>,
    /// Longest silence of a client while it sends its body, in ms. Default 30000.
    #[schemars(range(min = 100, max = 3_600_000))]
    pub(crate) body_idle_timeout_ms: Option<u64>,
    /// A silent stream's client gets a comment this often, in ms; 0 is never. Default 15000.
    #[schemars(range(min = 0, max = 600_000))]
    pub(crate) keep_alive_ms: Option<u64>,
    /// Whether comments may go out before the upstream answered; they settle the status as 200, and
    /// a later failure is told in the stream. Default true.
    pub(crate) early_keep_alive: Option<bool>,
    /// Worker threads. Default: one a core.
    #[schemars(range(min = 1, max = 1024))]
    pub(crate) workers: Option<u64>,
}

/// Where shared state lives.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Store {
    /// `embedded:PATH` (a directory of this node, made when absent) or `embedded:memory` (forgotten at
    /// exit). Default embedded:./omniroute-data. `OMNIROUTE_STORE_URL` overrides it.
    pub(crate) url: Option<String>,
    /// Prefix of every shared key: letters, digits, `_`, `-` and `.`. Default omniroute.
    pub(crate) prefix: Option<String>,
}

/// A provider: where its endpoints are and how it behaves.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Provider {
    /// Its name in `provider/model`. A name of the catalogue overrides that entry field by field.
    #[schemars(required)]
    pub(crate) id: Option<String>,
    /// What it speaks; one or several.
    pub(crate) protocol: Option<OneOrMany>,
    /// URL to which the call's path (`/chat/completions`, `/messages`, ...) is added, so usually ending
    /// in `/v1`. With `protocol` it is the URL of those protocols only, else of all the provider speaks.
    pub(crate) base_url: Option<String>,
    /// Kind of credential its connections hold. Default apiKey.
    pub(crate) auth: Option<Auth>,
    /// Where OAuth tokens of its connections are refreshed. Overrides the catalogue key by key.
    pub(crate) oauth: Option<TokenEndpoint>,
    /// The header that carries a key. Default: what the protocol uses.
    pub(crate) auth_header: Option<AuthHeader>,
    /// Most tools of one request to it. Goes before `settings.maxTools` and before what the provider
    /// stated itself.
    #[schemars(range(min = 1, max = 10_000))]
    pub(crate) max_tools: Option<u64>,
    /// Which numbers of `settings` apply. Default: oauth where `auth` is not apiKey, local for the
    /// catalogue's local servers.
    pub(crate) profile: Option<ProfileName>,
    /// Models it serves to requests that name no provider: exact names, or a prefix and `*`.
    pub(crate) models: Option<Vec<String>>,
    /// Headers sent upstream unless the client sent them.
    pub(crate) default_headers: Option<BTreeMap<String, String>>,
    /// Timers of its upstream calls.
    pub(crate) timeouts: Option<Timeouts>,
    /// Whether quotas are per model rather than per account.
    pub(crate) per_model_quota: Option<bool>,
    /// Whether any model name is passed through; quotas are then per model.
    pub(crate) passthrough_models: Option<bool>,
    /// Whether a stream may end without a finish reason or end marker.
    pub(crate) lenient_stream_end: Option<bool>,
    /// Whether a built-in rule of the provider may say what a refusal is charged to.
    pub(crate) honours_rule_scope: Option<bool>,
    /// Whether its built-in rules see the whole text of a refusal, not only its code and type.
    pub(crate) full_text_rules: Option<bool>,
    /// Zone in which a day's quota is counted. Default: the catalogue's, else `modelLockout`'s.
    pub(crate) daily_quota_reset_timezone: Option<String>,
    /// Hour there at which it begins anew. Default 0.
    #[schemars(range(min = 0, max = 23))]
    pub(crate) daily_quota_reset_hour: Option<u64>,
    /// Where an account's live usage is asked for, to end a rest of `quotaPreflight` early. Default:
    /// the catalogue's where `baseUrl` is too. Empty: nowhere.
    pub(crate) usage_url: Option<String>,
    /// Name of the family whose limits count by the address that connections leave by. Empty: none.
    pub(crate) egress_bucket_family: Option<String>,
}

/// The token endpoint of a provider, for the refresh-token grant of OAuth 2.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TokenEndpoint {
    /// Its URL.
    pub(crate) token_url: Option<String>,
    /// The client that the tokens were issued to.
    pub(crate) client_id: Option<String>,
    /// The client's secret, if it has one.
    pub(crate) client_secret: Option<Secret>,
    /// Where the client names itself. Default body.
    pub(crate) client_auth: Option<ClientAuth>,
    /// How the grant is written. Default form.
    pub(crate) body: Option<GrantBody>,
    /// Scopes to ask for again. Empty: as they were granted.
    pub(crate) scopes: Option<Vec<String>>,
}

/// Timers of an upstream call, in ms; 0 switches one off.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "a unit belongs to its number")]
pub(crate) struct Timeouts {
    /// DNS, TCP, proxy and TLS together. Default 10000; local servers 5000.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) connect_ms: Option<u64>,
    /// From the request sent to a stream's headers. Default 120000; local servers 600000.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) response_headers_ms: Option<u64>,
    /// From the headers to a stream's first content. Default 300000; local servers 600000.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) first_content_ms: Option<u64>,
    /// Longest silence on the wire. Default 120000; local servers 600000.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) byte_idle_ms: Option<u64>,
    /// Longest time without a data event, comments or not. Default 300000; local servers 600000.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) progress_idle_ms: Option<u64>,
    /// A whole answer that is not a stream. Default 600000; local servers 1800000.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) total_ms: Option<u64>,
}

/// One account.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Connection {
    /// Its name.
    #[schemars(required)]
    pub(crate) id: Option<String>,
    /// Whose account it is.
    #[schemars(required)]
    pub(crate) provider: Option<String>,
    /// A static key.
    pub(crate) api_key: Option<Secret>,
    /// A subscription's tokens, instead of a key.
    pub(crate) oauth: Option<Oauth>,
    /// Whether it takes part at all. Default true.
    pub(crate) enabled: Option<bool>,
    /// Lower is tried first. Default 1.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(crate) priority: Option<u64>,
    /// The models it serves: exact names, or a prefix and `*`. Empty: whatever the provider serves.
    pub(crate) models: Option<Vec<String>>,
    /// Requests at a time over the whole cluster. 0: no limit.
    #[schemars(range(min = 0, max = 100_000))]
    pub(crate) max_concurrent: Option<u64>,
    /// Proxy of its upstream calls: http://, https://, socks5:// (names are resolved here) or socks5h://
    /// (there), with `user:password@` where it asks for one.
    pub(crate) proxy_url: Option<Secret>,
    /// Failures never cool it; terminal states still apply. Default false.
    pub(crate) disable_cooling: Option<bool>,
    /// Its own URL instead of the provider's.
    pub(crate) base_url: Option<String>,
    /// Its own limits instead of the request queue's.
    #[schemars(extend("x-notYet" = true))]
    #[expect(dead_code, reason = "accepted; not acted on yet")]
    pub(crate) rate_limit_overrides: Option<RateLimitOverrides>,
    /// Provider-specific switches, kept as written. The simulated provider's parameters go here.
    pub(crate) provider_specific_data: Option<ProviderSpecific>,
}

/// A subscription's tokens.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Oauth {
    /// Sent as a bearer token.
    #[schemars(required)]
    pub(crate) access_token: Option<Secret>,
    /// For a new access token; without it there is no refresh. What a refresh brings is kept in the
    /// store, encrypted with `OMNIROUTE_SECRET_KEY`, until another credential stands here.
    pub(crate) refresh_token: Option<Secret>,
    /// When the access token ends: RFC 3339, or ms since the Unix epoch, or where that is kept.
    pub(crate) expires_at: Option<Instant>,
}

/// A connection's own limits instead of the request queue's; 0 is no override.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "the shape is checked; the values are not acted on yet"
)]
pub(crate) struct RateLimitOverrides {
    /// Requests at a time.
    #[schemars(range(min = 0, max = 10_000))]
    pub(crate) max_concurrent: Option<u64>,
    /// Shortest time between two requests, ms.
    #[schemars(range(min = 0, max = 3_600_000))]
    pub(crate) min_time: Option<u64>,
    /// Requests a minute.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub(crate) rpm: Option<u64>,
    /// Tokens a minute.
    #[schemars(range(min = 0, max = 1_000_000_000_000_u64))]
    pub(crate) tpm: Option<u64>,
    /// Longest wait in the queue, ms.
    #[schemars(range(min = 0, max = 120_000))]
    pub(crate) max_wait_ms: Option<u64>,
    /// Longest execution, ms.
    #[schemars(range(min = 0, max = 600_000))]
    pub(crate) execution_max_wait_ms: Option<u64>,
}

/// A named list of targets.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Combo {
    /// What clients put into `model`: up to 100 letters, digits, spaces and `- _ / . [ ]`.
    #[schemars(required)]
    pub(crate) name: Option<String>,
    /// How targets are ordered. Default priority, the only one that this version has.
    #[schemars(extend("enum" = super::resolve::STRATEGIES))]
    pub(crate) strategy: Option<String>,
    /// The targets, in order.
    #[schemars(required)]
    pub(crate) targets: Option<Vec<Target>>,
    /// Parameters of the strategy.
    pub(crate) config: Option<ComboConfig>,
}

/// Parameters of a combo. This version acts on those of the queue for a slot.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("additionalProperties" = {"x-notYet": true}))]
pub(crate) struct ComboConfig {
    /// How long a request waits for a slot of a full connection before it goes without one, ms.
    /// Default 30000.
    #[schemars(range(min = 0, max = 86_400_000))]
    pub(crate) queue_timeout_ms: Option<u64>,
    /// Requests that wait for one connection; one more goes without a slot. Default 20.
    #[schemars(range(min = 0, max = 100))]
    pub(crate) queue_depth: Option<u64>,
}

/// One target of a combo.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Target {
    /// `provider/model`.
    #[schemars(required)]
    pub(crate) model: Option<String>,
    /// One connection; without it any of the provider's.
    pub(crate) connection: Option<String>,
    /// For the strategies that draw. Default 1.
    #[schemars(range(min = 0, max = 100), extend("x-notYet" = [1]))]
    pub(crate) weight: Option<u64>,
}

/// A client's key: its hash or the key itself.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ApiKey {
    /// Its name.
    #[schemars(required)]
    pub(crate) id: Option<String>,
    /// SHA-256 of the key, 64 hexadecimal digits; `router-node keygen` prints both.
    pub(crate) sha256: Option<String>,
    /// The key itself; only its hash is kept.
    pub(crate) key: Option<Secret>,
    /// What it may do besides calling models: `manage`, `admin`, `lease:exclusive`, ...
    pub(crate) scopes: Option<Vec<String>>,
    /// The connections it may use. Absent: all.
    pub(crate) allowed_connections: Option<Vec<String>>,
    /// The models and combos it may name. Absent or empty: all.
    pub(crate) allowed_models: Option<Vec<String>>,
}
