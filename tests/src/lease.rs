//! A client of session leases: an owner with its key.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::client::{Answer, Call};
use crate::config::Config;
use crate::dialect::{Dialect, add_provider};
use crate::node::Node;

/// The path of the lease's life cycle.
pub const PATH: &str = "/api/v1/session-leases";
/// The header that names the owner.
pub const OWNER: &str = "x-omniroute-lease-owner";
/// The header that names the generation.
pub const GENERATION: &str = "x-omniroute-lease-generation";

/// The key of team `team`, which is managed.
pub const KEY: &str = "the-managed-key";
/// The key of team `rival`, which is managed too.
pub const RIVAL: &str = "the-rival-key";
/// The key of team `plain`, which is not managed.
pub const PLAIN: &str = "the-plain-key";

/// A provider for each of `dialects`, each with connections `shorts`, all of
/// them allowed to both managed keys; and a key that is not managed.
pub fn managed(url: &str, dialects: &[Dialect], shorts: &[&str]) -> Config {
    let mut config = Config::new();
    let mut allowed = Vec::new();
    for dialect in dialects {
        config = add_provider(config, *dialect, url, shorts, json!({}));
        allowed.extend(shorts.iter().map(|short| dialect.connection(short)));
    }
    let scopes = json!({"scopes": ["lease:exclusive"], "allowedConnections": allowed});
    config
        .api_key("team", KEY, scopes.clone())
        .api_key("rival", RIVAL, scopes)
        .api_key("plain", PLAIN, json!({}))
        .no_waiting()
}

/// Sets one key of `settings.leases`.
#[must_use]
pub fn setting(config: Config, key: &str, value: u64) -> Config {
    config.set(&["settings", "leases", key], json!(value))
}

/// An owner of a lease, or one who wants to be.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Its token, which it chose itself.
    pub token: String,
    /// The API key it presents.
    pub key: String,
}

impl Owner {
    /// The owner called `name`, at most 43 letters, with this API key.
    pub fn new(name: &str, key: &str) -> Self {
        let token = format!("vlo_{name:A<43}");
        assert_eq!(token.len(), 47, "{name} is too long");
        Self {
            token,
            key: key.into(),
        }
    }

    /// A lifecycle call with any body.
    pub fn call(&self, node: &Node, body: &Value) -> Call {
        node.post(PATH, body)
            .bearer(&self.key)
            .header(OWNER, &self.token)
    }

    /// Acquires.
    pub async fn acquire(&self, node: &Node, model: &str) -> Answer {
        let body = json!({"action": "acquire", "model": model});
        self.call(node, &body).send().await
    }

    /// Renews.
    pub async fn renew(&self, node: &Node, generation: u64) -> Answer {
        let body = json!({"action": "renew", "generation": generation});
        self.call(node, &body).send().await
    }

    /// Releases without a reason.
    pub async fn release(&self, node: &Node, generation: u64) -> Answer {
        let body = json!({"action": "release", "generation": generation});
        self.call(node, &body).send().await
    }

    /// Asks for the state.
    pub async fn status(&self, node: &Node, generation: u64) -> Answer {
        let body = json!({"action": "status", "generation": generation});
        self.call(node, &body).send().await
    }

    /// Acquires, which must succeed; the generation.
    pub async fn hold(&self, node: &Node, model: &str) -> u64 {
        let answer = self.acquire(node, model).await.expect_status(200);
        generation(&answer)
    }

    /// An inference call under the lease.
    pub fn ask(&self, node: &Node, dialect: Dialect, generation: u64, stream: bool) -> Call {
        self.ask_for(
            node,
            dialect,
            generation,
            &dialect.request(&dialect.model(), stream),
        )
    }

    /// An inference call under the lease, with any body.
    pub fn ask_for(&self, node: &Node, dialect: Dialect, generation: u64, body: &Value) -> Call {
        node.post(dialect.path(), body)
            .bearer(&self.key)
            .header(OWNER, &self.token)
            .header(GENERATION, &generation.to_string())
    }
}

/// The generation an answer tells.
pub fn generation(answer: &Answer) -> u64 {
    let body = answer.json();
    let told = body["generation"].as_u64();
    told.unwrap_or_else(|| panic!("no generation in {body}"))
}

/// A moment in an answer, milliseconds since 1970.
pub fn moment(answer: &Answer, field: &str) -> i64 {
    let body = answer.json();
    let text = body[field].as_str();
    let text = text.unwrap_or_else(|| panic!("no {field} in {body}"));
    assert!(text.ends_with('Z'), "{field} is not in UTC: {text}");
    let moment: Timestamp = text.parse().unwrap();
    moment.as_millisecond()
}

/// The time of this machine, milliseconds since 1970.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap().as_millis()).unwrap()
}

/// How long it is until a moment of [`moment`].
pub fn until(moment: i64) -> Duration {
    Duration::from_millis(u64::try_from(moment - now()).unwrap_or(0))
}

/// The active leases that the management API lists.
pub async fn listed(node: &Node) -> Vec<Value> {
    let all = node.admin_get("/api/leases").await;
    let leases = all["leases"].as_array();
    leases
        .unwrap_or_else(|| panic!("no leases in {all}"))
        .clone()
}

/// The same as soon as there are so many: a node hears of what was done on
/// another one a moment later.
pub async fn listed_as(node: &Node, many: usize) -> Vec<Value> {
    crate::wait::eventually(&format!("{many} leases are listed"), || async {
        let leases = listed(node).await;
        (leases.len() == many).then_some(leases)
    })
    .await
}

/// The connection that one of [`listed`] names.
pub fn connection_of(lease: &Value) -> &str {
    let named = ["connectionId", "connection"];
    let found = named.iter().find_map(|name| lease[*name].as_str());
    found.unwrap_or_else(|| panic!("no connection in {lease}"))
}
