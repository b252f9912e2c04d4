//! Room for locks: how many are kept, and of which names.

use super::{ENTRIES_MAX, Locked, Lockout, MODEL_MAX_BYTES, ModelLockouts, Outcome, Scope, Step};
use crate::clock::Millis;

impl ModelLockouts {
    /// The same with a lock in its place. Without room for another one, what is
    /// over goes first, then what nobody has (404): a client may make up such names,
    /// and they must not push out a lock that spares an account. Other locks that
    /// run stay, and the new one is not kept.
    pub(super) fn placed(&self, key: String, lockout: Lockout, now: Millis) -> Step {
        let mut state = self.clone();
        if state.entries.len() >= ENTRIES_MAX && !state.entries.contains_key(&key) {
            let may_go = |entry: &Lockout| entry.until <= now || entry.scope == Scope::NotFound;
            let least = state.entries.iter().filter(|(_, entry)| may_go(entry));
            let least = least.min_by_key(|(_, entry)| (entry.until > now, entry.until));
            let Some((least, _)) = least else {
                return self.kept(Outcome::Nothing);
            };
            let least = least.clone();
            state.entries.remove(&least);
        }
        let Lockout { until, scope, .. } = lockout;
        state.entries.insert(key, lockout);
        state.into_step(Outcome::Locked(Locked { until, scope }))
    }
}

/// Whether a lock may be kept of `model`.
pub(super) fn lockable(model: &str) -> bool {
    (1..=MODEL_MAX_BYTES).contains(&model.trim().len())
}
