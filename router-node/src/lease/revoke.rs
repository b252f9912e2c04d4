//! Ends the leases of keys that a changed configuration no longer has, or no
//! longer lets lease.

use std::sync::Arc;
use std::time::Duration;

use shared_proto::config::Config;
use shared_proto::id::ApiKeyId;
use shared_proto::lease::{EndReason, LeaseCode, LeaseId, Outcome, invalidate};

use super::{Leases, Operation};
use crate::node::Node;
use crate::timer::{Backoff, jittered};

/// Waits between tries while the store is away.
const RETRY: Backoff = Backoff::between(Duration::from_millis(500), Duration::from_secs(10));

impl Leases {
    /// Ends a lease for good. Refused with [`LeaseCode::Required`] when it is
    /// not active.
    pub(crate) async fn revoke(&self, id: &LeaseId) -> Outcome {
        self.drive(Operation::Revoke, |seen, now| {
            invalidate(seen, id, EndReason::ManagedKeyRevoked, now)
        })
        .await
    }
}

/// The keys that could lease `before` and can't `now`.
pub(crate) fn gone(before: &Config, now: &Config) -> Vec<ApiKeyId> {
    let managed = |config: &Config, id: &ApiKeyId| {
        let mut keys = config.api_keys.iter();
        keys.any(|key| key.id == *id && key.is_managed())
    };
    let keys = before.api_keys.iter().map(|key| &key.id);
    keys.filter(|id| managed(before, id) && !managed(now, id))
        .cloned()
        .collect()
}

/// Ends every lease of `keys`, and tries again until the store has it. A key
/// that is back meanwhile keeps what it has.
pub(crate) async fn revoke_keys(node: Arc<Node>, keys: Vec<ApiKeyId>) {
    let mut failures = 0;
    while !sweep(&node, &keys).await {
        tokio::time::sleep(jittered(RETRY.after(failures))).await;
        failures = failures.saturating_add(1);
    }
}

async fn sweep(node: &Node, keys: &[ApiKeyId]) -> bool {
    let now = node.now();
    let config = Arc::clone(&node.routing().config);
    let table = node.leases.table();
    let back = |id: &ApiKeyId| {
        let mut keys = config.api_keys.iter();
        keys.any(|key| key.id == *id && key.is_managed())
    };
    let mut done = node.store_is_up();
    for key in keys.iter().filter(|key| !back(key)) {
        for (owner, lease) in table.of_key(key, now) {
            match node.leases.revoke(&lease.id(owner)).await {
                Ok(_) => tracing::info!(key = key.as_str(), "a lease ended with its API key"),
                // It is over already.
                Err(refusal) if refusal.code() == Some(LeaseCode::Required) => {}
                Err(_) => done = false,
            }
        }
    }
    done
}
