//! A client of session leases: an owner with its key.

use serde_json::{Value, json};

use crate::client::{Answer, Call};
use crate::dialect::Dialect;
use crate::node::Node;

/// The path of the lease's life cycle.
pub const PATH: &str = "/api/v1/session-leases";
/// The header that names the owner.
pub const OWNER: &str = "x-omniroute-lease-owner";
/// The header that names the generation.
pub const GENERATION: &str = "x-omniroute-lease-generation";

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
