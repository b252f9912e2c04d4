//! Locks that are set before anybody refused, and their early end.
//!
//! A window of a model's quota is all but used up, and the operator does not want
//! to meet its end: the models that share the quota rest until it begins anew.
//! Such a lock remembers why. Whatever else is counted for these models takes that
//! away: the lock is an ordinary one then.
//!
//! While the reason stands, the account's usage is asked for now and then, by one
//! node in the cluster at a time. What the lock was when the question was asked is
//! compared once more when the answer is told, and the answer is judged again by
//! the owner's own numbers, so that a late one changes nothing.

use serde::{Deserialize, Serialize};

use super::room::lockable;
use super::{Freed, Lockout, LockoutRules, ModelLockouts, Outcome, Scope, Step, scope};
use crate::clock::Millis;
use crate::failure::Reason;
use crate::quota::preflight::Origin;
use crate::quota::usage::{EVERY_MS, may_end};

/// Why a lock was set before anybody refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    /// The window.
    pub origin: Origin,
    /// How often the live usage was asked for since.
    pub looks: u32,
    /// When it was last.
    pub looked_at: Option<Millis>,
}

/// A lock whose live usage is due to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// The lock's key.
    pub key: String,
    /// Why it was set.
    pub origin: Origin,
    /// Its end.
    pub until: Millis,
    /// The how manieth question it is, from 1.
    pub number: u32,
}

impl ModelLockouts {
    /// What was told of windows until then is no reason for a lock any more.
    pub fn heard_after(&self) -> Option<Millis> {
        self.renewed_at.max(self.freed_at)
    }

    /// The first lock at `now` that a live usage might end and for which none was
    /// asked for of late.
    pub fn due(&self, now: Millis) -> Option<Due> {
        let running = self.entries.iter().filter(|(_, lock)| lock.until > now);
        let mut due = running.filter_map(|(key, lock)| {
            let withheld = lock.withheld.as_ref()?;
            let asked = withheld.looked_at.is_some_and(|at| now < at.plus(EVERY_MS));
            (!asked && may_end(&withheld.origin)).then(|| Due {
                key: key.clone(),
                origin: withheld.origin.clone(),
                until: lock.until,
                number: withheld.looks.saturating_add(1),
            })
        });
        due.next()
    }

    /// Nothing is sent for `model` until the window of `origin` begins anew.
    pub(super) fn withheld(
        &self,
        model: &str,
        origin: &Origin,
        now: Millis,
        rules: &LockoutRules,
    ) -> Step {
        if !lockable(model) {
            return self.kept(Outcome::Nothing);
        }
        let known_better = self.heard_after() >= Some(origin.observed_at);
        let runs = self.locked(model, rules, now).is_some();
        if known_better || runs || origin.resets_at <= now {
            return self.kept(Outcome::Stale);
        }
        let key = scope::quota_key(model, &rules.families);
        let before = self.entries.get(&key);
        let lockout = Lockout {
            model: model.trim().to_owned(),
            scope: Scope::Family,
            reason: Reason::QuotaExhausted,
            status: 429,
            until: origin.resets_at,
            locked_at: now,
            failure_count: before.map_or(0, |before| before.failure_count),
            last_failure_at: now,
            last_cooldown_ms: origin.resets_at.since(now),
            withheld: Some(Withheld {
                origin: origin.clone(),
                looks: 0,
                looked_at: None,
            }),
        };
        self.placed(key, lockout, now)
    }

    /// Question `number` about the lock begins, unless somebody else has begun it.
    pub(super) fn looking(&self, key: &str, origin: &Origin, number: u32, now: Millis) -> Step {
        let mut state = self.clone();
        let lock = state.entries.get_mut(key);
        let withheld = lock.and_then(|lock| lock.withheld.as_mut());
        match withheld.filter(|known| known.origin == *origin) {
            Some(known) if known.looks.saturating_add(1) == number => {
                known.looks = number;
                known.looked_at = Some(now);
                state.into_step(Outcome::Looking)
            }
            Some(_) | None => self.kept(Outcome::Nothing),
        }
    }

    /// Ends the lock if it is still the one that the usage was asked for, and the
    /// usage says so by the numbers that hold now.
    pub(super) fn freed(&self, freed: &Freed, now: Millis, rules: &LockoutRules) -> Step {
        let same = self.entries.get(&freed.key).is_some_and(|lock| {
            let origin = lock.withheld.as_ref().map(|withheld| &withheld.origin);
            origin == Some(&freed.origin) && lock.until == freed.until && lock.until > now
        });
        let policy = &rules.preflight;
        if !same || *policy != freed.policy || !freed.usage.ends(&freed.origin, policy, now) {
            return self.kept(Outcome::Stale);
        }
        let mut state = self.clone();
        state.entries.remove(&freed.key);
        state.freed_at = state.freed_at.max(Some(freed.usage.observed_at()));
        state.into_step(Outcome::Recovered)
    }
}
