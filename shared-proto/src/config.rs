//! The typed configuration: what a file, the environment and the built-in
//! catalogue add up to. [`load`] builds it or reports every problem at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

use crate::clock::Millis;
use crate::failure::Profile;
use crate::id::{ApiKeyId, ConnectionId, NodeId, ProviderId};
use crate::protocol::Protocol;
use crate::rotation::RotationOverrides;
use crate::token::{self, Keyring, TokenEndpoint, Tokens};

mod combo;
mod defaults;
pub(crate) mod file;
mod load;
mod nature;
mod problem;
mod report;
mod resolve;
mod saved;
mod settings;
mod shape;
mod store_url;
pub(crate) mod yaml;

#[cfg(test)]
mod tests;

pub use combo::{Combo, StrategyName, Target};
pub use load::{Env, FoundConnection, Loaded, Overrides, Source, load};
pub use nature::{DailyReset, ModelFamily, Reading, UnsaidOverflow};
pub use problem::{Problem, nearest};
pub(crate) use resolve::{Parts, assemble, described};
pub use saved::{Area, Patch, Saved};
pub use settings::{
    ConnectionCooldown, EgressRules, EmergencyFallback, ErrorRule, HintBounds, MAX_TOOLS,
    ModelLockout, PerProfile, ProviderBreaker, ProviderCooldown, ProviderWindow, QueueRules,
    QuotaPreflight, Settings, UsageWall, WaitForCooldown,
};
pub use shape::schema;
pub use store_url::{Login, RedisHost, RedisServers, RedisUrl, StoreUrl};

/// Everything a node needs to know, resolved: defaults filled in, clamps
/// applied, secrets read, references checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Listeners, limits and the admin token.
    pub server: Server,
    /// Where shared state lives.
    pub store: Store,
    /// The catalogue with the file's additions and overrides applied.
    pub providers: BTreeMap<ProviderId, Arc<Provider>>,
    /// The accounts, in file order.
    pub connections: Vec<Arc<Connection>>,
    /// Named lists of targets.
    pub combos: Vec<Arc<Combo>>,
    /// Client keys; empty means that a loopback listener takes every caller.
    pub api_keys: Vec<Arc<ApiKey>>,
    /// Behaviour with numbers.
    pub settings: Settings,
    /// The coordinators of a cluster.
    pub coordinator: Coordinator,
    /// This node's name (`OMNIROUTE_NODE_ID`); `None` lets the node choose.
    pub node_id: Option<NodeId>,
    /// Encrypt tokens at rest (`OMNIROUTE_SECRET_KEY`): the first encrypts, all decrypt.
    pub secret_keys: Option<Arc<Keyring>>,
    /// What `settings` were made from.
    given: Arc<saved::Given>,
}

/// Listeners and limits of one process.
#[derive(Clone, Debug)]
pub struct Server {
    /// Client API, and the management API too unless `admin_listen` is set.
    pub listen: SocketAddr,
    /// A listener of its own for management API, dashboard and metrics.
    pub admin_listen: Option<SocketAddr>,
    /// What `Authorization: Bearer` has to carry for the management API.
    pub admin_token: Option<SecretString>,
    /// Largest request body after inflation, in bytes.
    pub max_body_bytes: usize,
    /// Most bytes that the request bodies under way hold together, after
    /// inflation; at least `max_body_bytes`.
    pub max_body_memory_bytes: usize,
    /// Largest buffered upstream answer after inflation, in bytes.
    pub max_response_bytes: usize,
    /// How long a stop waits for requests in flight, in ms.
    pub drain_timeout_ms: u64,
    /// Longest silence of a client while it sends its body, in ms.
    pub body_idle_timeout_ms: u64,
    /// A comment goes to a silent stream's client this often, in ms; 0 never.
    pub keep_alive_ms: u64,
    /// Whether such comments may go out before the upstream answered. They
    /// settle the status as 200; a later failure is told in-band.
    pub early_keep_alive: bool,
    /// Worker threads; `None` is one a core.
    pub workers: Option<usize>,
}

/// The coordinators of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinator {
    /// How long a leader may be silent before another takes over, in ms;
    /// within the bounds of [`leader`](crate::leader).
    pub lease_ms: u64,
}

/// Where shared state lives.
#[derive(Clone, Debug)]
pub struct Store {
    /// Which backend, and where.
    pub url: StoreUrl,
    /// Prefix of every shared key.
    pub prefix: String,
}

/// A provider: where its endpoints are and how it behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Its name in `provider/model`.
    pub id: ProviderId,
    /// What it speaks, and where.
    pub endpoints: Endpoints,
    /// How a connection proves itself.
    pub auth: AuthStyle,
    /// Kind of credential its connections hold.
    pub auth_kind: AuthKind,
    /// Which numbers apply.
    pub profile: Profile,
    /// The environment variables that hold a key for a zero-configuration start, first one set wins.
    pub key_env: Vec<String>,
    /// Model names served when a request gives no provider: exact names, or a prefix ending in `*`.
    pub models: Vec<String>,
    /// Headers sent with every request unless the client set them.
    pub default_headers: Vec<(String, String)>,
    /// Timers of its upstream calls.
    pub timeouts: Timeouts,
    /// Whether quotas are per model rather than per account.
    pub per_model_quota: bool,
    /// Whether a stream may end without terminal evidence (servers that never send it).
    pub lenient_stream_end: bool,
    /// The catalogue's entry whose peculiarities it has: its own id, unless
    /// that is another name of an entry.
    pub canonical: ProviderId,
    /// How its refusals are to be read.
    pub reading: Reading,
    /// Models that share one quota, the first that fits.
    pub model_families: Vec<ModelFamily>,
    /// When a day's quota begins anew, where it is known.
    pub daily_reset: Option<DailyReset>,
    /// The family in which its limits count by the address that connections leave by.
    pub egress_bucket_family: Option<String>,
    /// Where its OAuth tokens are refreshed; `None` where that is not known.
    pub token_endpoint: Option<TokenEndpoint>,
    /// Where an account's live usage is asked for; `None` where that is not known.
    pub usage_url: Option<String>,
}

/// Where a provider serves each protocol. Absent means it does not.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// Answers in the process; no address.
    pub simulated: bool,
    /// Base URL for chat completions and embeddings.
    pub openai: Option<String>,
    /// Base URL for responses.
    pub responses: Option<String>,
    /// Base URL for messages.
    pub anthropic: Option<String>,
    /// Base URL of the Gemini API; no client protocol yet reaches it.
    pub gemini: Option<String>,
}

impl Endpoints {
    /// The base URL for `protocol`, if the provider speaks it over HTTP.
    pub fn base_url(&self, protocol: Protocol) -> Option<&str> {
        match protocol {
            Protocol::ChatCompletions | Protocol::Embeddings => self.openai.as_deref(),
            Protocol::Responses => self.responses.as_deref(),
            Protocol::Messages => self.anthropic.as_deref(),
        }
    }

    /// Whether a client of `protocol` can be served as it is.
    pub fn offers(&self, protocol: Protocol) -> bool {
        self.simulated || self.base_url(protocol).is_some()
    }
}

impl Provider {
    /// Whether a request that names `model` without a provider may come here.
    pub fn serves(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| matches(pattern, model))
    }
}

impl Connection {
    /// Whether the connection takes requests for `model` of its provider.
    pub fn serves(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|pattern| matches(pattern, model))
    }

    /// Its secret texts, as [`Credential::secrets`] gives them.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let extra = self.extra_keys.iter().map(ExposeSecret::expose_secret);
        let extra = extra.filter(|secret| secret.len() >= LEAST_SECRET);
        self.credential.secrets().chain(extra)
    }
}

/// Whether `model` is `pattern`, or begins with it where it ends in `*`.
fn matches(pattern: &str, model: &str) -> bool {
    pattern
        .strip_suffix('*')
        .map_or(pattern == model, |prefix| model.starts_with(prefix))
}

/// How a credential is presented to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthStyle {
    /// `Authorization: Bearer`.
    Bearer,
    /// `x-api-key` (Anthropic). OAuth tokens still go as a bearer.
    XApiKey,
    /// `api-key` (Azure).
    ApiKey,
    /// `x-goog-api-key` (Gemini).
    XGoogApiKey,
    /// Nothing.
    None,
}

/// What kind of credential a provider's connections hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthKind {
    /// A static key.
    ApiKey,
    /// An access token with a refresh token.
    Oauth,
    /// None: a local server.
    None,
}

/// Timers of an upstream call, in ms; 0 switches one off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// DNS, TCP, proxy and TLS together.
    pub connect_ms: u64,
    /// From the request sent to the response's headers.
    pub response_headers_ms: u64,
    /// From the response's headers to the first content of a stream.
    pub first_content_ms: u64,
    /// Longest silence on the wire.
    pub byte_idle_ms: u64,
    /// Longest time without a data event, comments or not.
    pub progress_idle_ms: u64,
    /// A whole answer that is not a stream.
    pub total_ms: u64,
}

/// Most keys that a connection may have beside its first.
pub const MAX_EXTRA_KEYS: usize = 16;

/// One account.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its name.
    pub id: ConnectionId,
    /// Whose account it is.
    pub provider: ProviderId,
    /// What it presents upstream.
    pub credential: Credential,
    /// Whether it takes part at all.
    pub enabled: bool,
    /// Lower is tried first.
    pub priority: u32,
    /// The models it serves, exact names or a prefix ending in `*`; empty means whatever the provider serves.
    pub models: Vec<String>,
    /// Requests at a time, over the whole cluster.
    pub max_concurrent: Option<u32>,
    /// `http://`, `https://`, `socks5://` or `socks5h://` proxy of its upstream calls; may hold a password.
    pub proxy_url: Option<SecretString>,
    /// Failures never cool it; terminal states still apply.
    pub disable_cooling: bool,
    /// Its own base URL instead of the provider's.
    pub base_url: Option<String>,
    /// More keys of the same account, presented in this order when those before
    /// are refused; only beside [`Credential::ApiKey`], at most [`MAX_EXTRA_KEYS`].
    pub extra_keys: Vec<SecretString>,
    /// Its own numbers of the rotation gate.
    pub rotation: RotationOverrides,
    /// Provider-specific switches, kept as written.
    pub provider_specific: serde_json::Map<String, serde_json::Value>,
}

/// Bytes of the shortest text that is taken for a secret.
const LEAST_SECRET: usize = 4;

/// What a connection presents upstream.
#[derive(Clone, Debug)]
pub enum Credential {
    /// Nothing.
    None,
    /// A static key.
    ApiKey(SecretString),
    /// A subscription's tokens.
    Oauth {
        /// Sent as a bearer.
        access_token: SecretString,
        /// For a new access token; absent means there is no refresh.
        refresh_token: Option<SecretString>,
        /// When the access token ends, epoch ms.
        expires_at_ms: Option<u64>,
    },
}

impl Credential {
    /// The tokens of an account that can be refreshed.
    pub fn refreshable(&self) -> Option<Tokens> {
        match self {
            Self::Oauth {
                access_token,
                refresh_token: Some(refresh),
                ..
            } => Some(Tokens {
                access: access_token.clone(),
                refresh: refresh.clone(),
            }),
            Self::None | Self::ApiKey(_) | Self::Oauth { .. } => None,
        }
    }

    /// When the access token ends, epoch ms: as configured, or by its own words.
    pub fn expires_at_ms(&self) -> Option<u64> {
        match self {
            Self::Oauth {
                access_token,
                expires_at_ms,
                ..
            } => {
                expires_at_ms.or_else(|| token::told_expiry(access_token).map(Millis::as_epoch_ms))
            }
            Self::None | Self::ApiKey(_) => None,
        }
    }

    /// Its secret texts, for finding them where they must not be. One of fewer
    /// than four characters is no secret, and would hide half of every text.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::None => (None, None),
            Self::ApiKey(key) => (Some(key), None),
            Self::Oauth {
                access_token,
                refresh_token,
                ..
            } => (Some(access_token), refresh_token.as_ref()),
        };
        let secrets = [first, second].into_iter().flatten();
        secrets
            .map(ExposeSecret::expose_secret)
            .filter(|secret| secret.len() >= LEAST_SECRET)
    }
}

/// The scope of keys whose requests need a session lease.
pub const MANAGED_SCOPE: &str = "lease:exclusive";

/// A client's key. Only its hash is kept.
#[derive(Clone, Debug)]
pub struct ApiKey {
    /// Its name.
    pub id: ApiKeyId,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// What it may do besides calling models (`manage`, `admin`, `lease:exclusive`, ...).
    pub scopes: Vec<String>,
    /// The connections it may use; `None` is all.
    pub allowed_connections: Option<Vec<ConnectionId>>,
    /// The models and combos it may name; empty is all.
    pub allowed_models: Vec<String>,
}

impl ApiKey {
    /// Whether its requests need a session lease.
    pub fn is_managed(&self) -> bool {
        self.scopes.iter().any(|scope| scope == MANAGED_SCOPE)
    }
}
