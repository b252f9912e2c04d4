//! What this node knows of a connection's quota, from the headers of its answers.
//!
//! It is written by whoever gets an answer, without a lock, and is nobody else's
//! business: no event, no commit, no line in the log but for a window of which
//! little is left. The rules are pure ([`shared_proto::quota`]).

use arc_swap::{ArcSwap, Guard};
use http::HeaderMap;
use http::header::DATE;
use shared_proto::clock::Millis;
use shared_proto::failure::Failure;
use shared_proto::lockout::quota_key;
use shared_proto::quota::{Source, Window, Windows, informed, read, speaks};
use std::sync::Arc;

use crate::routing::Slot;

/// Headers of one answer that are looked at.
const HEADERS_MAX: usize = 128;

/// What is known of a connection's windows on this node.
#[derive(Default)]
pub(crate) struct QuotaCell(ArcSwap<Windows>);

impl QuotaCell {
    /// What is known.
    pub(crate) fn windows(&self) -> Guard<Arc<Windows>> {
        self.0.load()
    }

    /// It is another account now, or somebody wants to begin anew.
    pub(crate) fn forget(&self) {
        if !self.0.load().all().is_empty() {
            self.0.store(Arc::default());
        }
    }
}

/// Notes what the head of an answer of `slot` tells, which was asked for `model`;
/// without a name, for the list of them. Cheap where it tells nothing.
pub(crate) fn saw(slot: &Slot, model: &str, headers: &HeaderMap, now: Millis) {
    if !headers.keys().any(|name| speaks(name.as_str())) {
        return;
    }
    let told = |name: &str| speaks(name) || name == DATE.as_str();
    let told = headers.iter().filter(|(name, _)| told(name.as_str()));
    let pairs: Vec<(&str, &str)> = told
        .filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
        .take(HEADERS_MAX)
        .collect();
    let rules = &slot.lockout_rules;
    let key = quota_key(model, &rules.families);
    let source = Source {
        key: &key,
        families: &rules.families,
        per_model_quota: slot.per_model_quota,
        bound_ms: rules.quota_bound_ms,
    };
    heard(slot, &read(&pairs, &source, now));
}

/// Takes over windows that were told of, in an answer or when they were asked for.
pub(crate) fn heard(slot: &Slot, told: &[Window]) {
    if told.is_empty() {
        return;
    }
    let warn = slot.lockout_rules.preflight.warning();
    let cell = &slot.cell.quota.0;
    let before = cell.rcu(|known| known.with(told, warn));
    if warn.is_some() {
        for window in before.with(told, warn).newly_warned(&before) {
            tracing::warn!(
                connection = %slot.connection.id,
                provider = %slot.provider.id,
                window = &*window.name,
                remaining_percent = window.used.map(|used| used.rest().percent()),
                resets_at = window.resets_at.map(Millis::to_rfc3339),
                "little is left of a quota's window"
            );
        }
    }
}

/// A refusal for a spent quota of `model` that does not say when it ends, with
/// what is known of that.
pub(crate) fn refused(slot: &Slot, model: &str, failure: Failure, now: Millis) -> Failure {
    let rules = &slot.lockout_rules;
    let key = quota_key(model, &rules.families);
    informed(
        failure,
        &slot.cell.quota.windows(),
        &key,
        rules.quota_bound_ms,
        now,
    )
}
