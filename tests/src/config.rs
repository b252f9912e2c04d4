//! A configuration file, built piece by piece. The key of a connection `x` is
//! `key-x`, by which the scripted upstream tells connections apart.

use serde_json::{Map, Value, json};

/// The key that connection `id` presents upstream.
pub fn upstream_key(id: &str) -> String {
    format!("key-{id}")
}

/// The configuration of one node.
#[derive(Clone, Debug)]
pub struct Config(Value);

impl Default for Config {
    fn default() -> Self {
        Self::new()
    }
}

impl Config {
    /// A loopback listener on a free port, and nothing else.
    pub fn new() -> Self {
        Self(json!({"server": {"listen": "127.0.0.1:0"}}))
    }

    /// Adds a provider that speaks `protocol` at `base_url`.
    #[must_use]
    pub fn provider(self, id: &str, protocol: &str, base_url: &str) -> Self {
        self.provider_with(id, protocol, base_url, json!({}))
    }

    /// Adds a provider with further keys.
    #[must_use]
    pub fn provider_with(mut self, id: &str, protocol: &str, base_url: &str, more: Value) -> Self {
        let entry = json!({"id": id, "protocol": protocol, "baseUrl": base_url});
        self.push("providers", entry, more);
        self
    }

    /// Adds a connection with its key.
    #[must_use]
    pub fn connection(self, id: &str, provider: &str) -> Self {
        self.connection_with(id, provider, json!({}))
    }

    /// Adds a connection with further keys.
    #[must_use]
    pub fn connection_with(mut self, id: &str, provider: &str, more: Value) -> Self {
        let mut entry = json!({"id": id, "provider": provider});
        if more.get("oauth").is_none() {
            entry["apiKey"] = json!(upstream_key(id));
        }
        self.push("connections", entry, more);
        self
    }

    /// Adds a combo of strategy `priority`; a target is `provider/model` or
    /// `provider/model@connection`.
    #[must_use]
    pub fn combo(mut self, name: &str, targets: &[&str]) -> Self {
        let targets: Vec<Value> = targets
            .iter()
            .map(|target| match target.split_once('@') {
                Some((model, connection)) => json!({"model": model, "connection": connection}),
                None => json!({"model": target}),
            })
            .collect();
        let entry = json!({"name": name, "strategy": "priority", "targets": targets});
        self.push("combos", entry, json!({}));
        self
    }

    /// Adds a client key with further keys.
    #[must_use]
    pub fn api_key(mut self, id: &str, key: &str, more: Value) -> Self {
        self.push("apiKeys", json!({"id": id, "key": key}), more);
        self
    }

    /// Sets one key of `server`.
    #[must_use]
    pub fn server(self, key: &str, value: Value) -> Self {
        self.set(&["server", key], value)
    }

    /// Sets one key of `settings.resilience`, given by its path with dots.
    #[must_use]
    pub fn resilience(self, path: &str, value: Value) -> Self {
        let mut keys = vec!["settings", "resilience"];
        keys.extend(path.split('.'));
        self.set(&keys, value)
    }

    /// Switches off waiting inside a request, so that a refusal shows at once.
    #[must_use]
    pub fn no_waiting(self) -> Self {
        self.resilience("waitForCooldown.enabled", json!(false))
    }

    /// Sets any key by its path.
    #[must_use]
    pub fn set(mut self, path: &[&str], value: Value) -> Self {
        let mut at = &mut self.0;
        for key in path {
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            at = &mut at[*key];
        }
        *at = value;
        self
    }

    /// The file's text.
    pub fn to_yaml(&self) -> String {
        serde_yaml_ng::to_string(&self.0).unwrap()
    }

    fn push(&mut self, list: &str, mut entry: Value, more: Value) {
        if let (Some(entry), Value::Object(more)) = (entry.as_object_mut(), more) {
            entry.extend(more);
        }
        let entries = &mut self.0[list];
        if entries.is_null() {
            *entries = json!([]);
        }
        entries.as_array_mut().unwrap().push(entry);
    }
}
