//! Which models of a connection are left alone, and until when.
//!
//! A failure charged to a model locks it on the connection that met it; the
//! account stays in use for everything else. A lock has a scope (`scope`): one
//! model, or the family of models that share a quota.
//!
//! Its length comes from the upstream's announcement, from a rule that knows it,
//! or from a ladder that doubles while failures follow each other: another one
//! within the last lock's length and a window after it counts as the next.
//!
//! # What is news
//!
//! As in [`health`](crate::health), an event carries the time its attempt was
//! dispatched. What was in flight when the last failure was counted belongs to
//! it, and only an announcement may still extend the lock. A lock is never
//! shortened by a failure. A success forgets or halves only what was counted
//! before its attempt began; a lock that runs ends by its time.

mod event;
mod preflight;
mod room;
mod rules;
mod scope;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::room::lockable;
use crate::clock::Millis;
use crate::failure::{Blame, Cooldown, Failure, Reason};
use crate::health::EXTEND_MIN_MS;
use crate::mirror::key;
use crate::mirror::record::Body;

pub use event::{Freed, Locked, LockoutEvent, Outcome, Step};
pub use preflight::{Due, Withheld};
pub use rules::{LockoutRules, charged};
pub use scope::{Scope, keys, quota_key};

/// Models and families of one connection that are remembered. Past it what
/// matters least is forgotten, see [`ModelLockouts::placed`].
pub const ENTRIES_MAX: usize = 1000;
/// Bytes of a model's name, so that a full record stays one that is stored. A
/// longer name is not locked; no request with one is taken.
pub const MODEL_MAX_BYTES: usize = 256;
/// Models whose broken streams are counted.
const TORN_MODELS_MAX: usize = 250;

/// A model whose streams break after their first output is locked by so many in a row.
const TORN_MAX: u32 = 3;
/// Breaks further apart than this are not in a row, ms.
const TORN_WINDOW_MS: u64 = 600_000;

/// What is remembered of a connection's models. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelLockouts {
    /// By scope key, see [`scope`].
    entries: BTreeMap<String, Lockout>,
    /// Streams that broke after their first output, by model.
    torn: BTreeMap<String, Torn>,
    /// The last clearing of everything.
    renewed_at: Option<Millis>,
    /// When the live usage was asked for that last ended a lock early.
    freed_at: Option<Millis>,
}

/// One lock, running or over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lockout {
    /// The model that met the failure, as it was asked for.
    pub model: String,
    /// Which models it is about.
    pub scope: Scope,
    /// Why.
    pub reason: Reason,
    /// The upstream's status.
    pub status: u16,
    /// First moment at which it is over.
    pub until: Millis,
    /// When it was last set.
    pub locked_at: Millis,
    /// Failures that followed each other.
    pub failure_count: u32,
    /// When the last of them was counted.
    pub last_failure_at: Millis,
    /// Length that the last of them called for, ms.
    pub last_cooldown_ms: u64,
    /// Why it was set before anybody refused, if nobody has since.
    #[serde(default)]
    pub withheld: Option<Withheld>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Torn {
    count: u32,
    last_at: Millis,
}

/// A failure as a model met it.
#[derive(Clone, Copy)]
struct Met<'e> {
    started_at: Millis,
    now: Millis,
    model: &'e str,
    failure: &'e Failure,
}

// === reading ===

impl ModelLockouts {
    /// The running lock that keeps `model` from being used at `now`: of those
    /// that are about it, the one that ends last.
    pub fn locked(&self, model: &str, rules: &LockoutRules, now: Millis) -> Option<&Lockout> {
        if self.entries.is_empty() {
            return None;
        }
        keys(model, &rules.families)
            .into_iter()
            .filter_map(|key| self.entries.get(&key))
            .filter(|lockout| lockout.until > now)
            .max_by_key(|lockout| lockout.until)
    }

    /// Running locks with their keys, those that end last first.
    pub fn running(&self, now: Millis) -> Vec<(&str, &Lockout)> {
        let mut running: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, lockout)| lockout.until > now)
            .map(|(key, lockout)| (key.as_str(), lockout))
            .collect();
        running.sort_by_key(|(_, lockout)| std::cmp::Reverse(lockout.until));
        running
    }

    /// Whether a success with `model` has anything to change.
    pub fn remembers(&self, model: &str, rules: &LockoutRules) -> bool {
        let of_it = |key: String| self.entries.contains_key(&key) || self.torn.contains_key(&key);
        !self.is_clean() && keys(model, &rules.families).into_iter().any(of_it)
    }

    /// Whether nothing is remembered.
    pub fn is_clean(&self) -> bool {
        self.entries.is_empty() && self.torn.is_empty()
    }
}

// === events ===

impl ModelLockouts {
    /// Applies one event. Total: any state, event and time give a result.
    #[must_use]
    pub fn step(&self, event: &LockoutEvent, now: Millis, rules: &LockoutRules) -> Step {
        match event {
            LockoutEvent::Failed {
                started_at,
                model,
                failure,
                after_output,
            } => {
                let met = Met {
                    started_at: *started_at,
                    now,
                    model,
                    failure,
                };
                self.failed(met, *after_output, rules)
            }
            LockoutEvent::Succeeded {
                started_at,
                model,
                halve,
            } => self.succeeded((*started_at, now), model, *halve, rules),
            LockoutEvent::Withheld { model, origin } => self.withheld(model, origin, now, rules),
            LockoutEvent::Looking {
                key,
                origin,
                number,
            } => self.looking(key, origin, *number, now),
            LockoutEvent::Freed(freed) => self.freed(freed, now, rules),
            LockoutEvent::Clear { model: Some(model) } => self.cleared(model, rules),
            LockoutEvent::Clear { model: None } => self.renewed(now),
        }
    }

    fn failed(&self, met: Met<'_>, after_output: bool, rules: &LockoutRules) -> Step {
        let failure = met.failure;
        if failure.blame != Blame::Model || !lockable(met.model) {
            return self.kept(Outcome::Nothing);
        }
        if self.renewed_at.is_some_and(|at| met.started_at <= at) {
            return self.kept(Outcome::Stale);
        }
        if failure.cooldown == Cooldown::None {
            return self.kept(Outcome::Nothing);
        }
        if !after_output || failure.status < 500 {
            return self.locked_by(met, rules);
        }
        match self.torn(met.model, (met.started_at, met.now)) {
            (Some(mut torn), true) => {
                torn.torn.remove(&scope::exact(met.model));
                Step {
                    changed: true,
                    ..torn.locked_by(met, rules)
                }
            }
            (Some(torn), false) => torn.into_step(Outcome::Noted),
            (None, _) => self.kept(Outcome::Stale),
        }
    }

    /// The next break of a stream of `model`, and whether it is one too many.
    /// `None` for one that was under way when the last was counted.
    fn torn(&self, model: &str, (started_at, now): (Millis, Millis)) -> (Option<Self>, bool) {
        let key = scope::exact(model);
        let last = self.torn.get(&key);
        if last.is_some_and(|torn| started_at <= torn.last_at) {
            return (None, false);
        }
        let in_row = last.filter(|torn| now.since(torn.last_at) <= TORN_WINDOW_MS);
        let count = in_row.map_or(1, |torn| torn.count.saturating_add(1));
        let mut state = self.clone();
        let room = state.torn.len() < TORN_MODELS_MAX || last.is_some();
        if !room {
            state.torn.pop_first();
        }
        state.torn.insert(
            key,
            Torn {
                count,
                last_at: now,
            },
        );
        (Some(state), count >= TORN_MAX)
    }

    fn locked_by(&self, met: Met<'_>, rules: &LockoutRules) -> Step {
        let Met {
            started_at,
            now,
            model,
            failure,
        } = met;
        let (key, scope) = scope::of(model, failure, &rules.families);
        let before = self.entries.get(&key);
        let announced = failure.hint.as_ref().map(|hint| hint.wait_ms);
        if let Some(known) = before.filter(|known| started_at <= known.last_failure_at) {
            return self.extended(&key, known, announced, now);
        }
        let follows = before.filter(|known| {
            let window = rules.window_ms.saturating_add(known.last_cooldown_ms);
            now.since(known.last_failure_at) <= window
        });
        let failure_count = follows.map_or(1, |known| known.failure_count.saturating_add(1));
        let cooldown_ms = rules.cooldown_ms(failure, failure_count, now);
        if cooldown_ms == 0 {
            return self.kept(Outcome::Nothing);
        }
        let wanted = now.plus(cooldown_ms);
        let standing = before.map(|known| known.until).filter(|until| *until > now);
        let until = standing.map_or(wanted, |standing| standing.max(wanted));
        let lockout = Lockout {
            model: model.trim().to_owned(),
            scope,
            reason: failure.reason,
            status: failure.status,
            until,
            locked_at: now,
            failure_count,
            last_failure_at: now,
            last_cooldown_ms: cooldown_ms,
            withheld: None,
        };
        self.placed(key, lockout, now)
    }

    /// One that was under way when the last failure was counted: it may still
    /// bring a better word on when it ends.
    fn extended(&self, key: &str, known: &Lockout, announced: Option<u64>, now: Millis) -> Step {
        let until = announced.map(|wait| now.plus(wait));
        let Some(until) = until.filter(|until| *until > known.until.plus(EXTEND_MIN_MS)) else {
            return self.kept(Outcome::Stale);
        };
        let mut state = self.clone();
        let scope = known.scope;
        if let Some(entry) = state.entries.get_mut(key) {
            entry.until = until;
            entry.last_cooldown_ms = until.since(entry.last_failure_at);
            entry.withheld = None;
        }
        state.into_step(Outcome::Locked(Locked { until, scope }))
    }

    fn succeeded(
        &self,
        (started_at, now): (Millis, Millis),
        model: &str,
        halve: bool,
        rules: &LockoutRules,
    ) -> Step {
        let mut state = self.clone();
        for key in keys(model, &rules.families) {
            if state
                .torn
                .get(&key)
                .is_some_and(|torn| torn.last_at <= started_at)
            {
                state.torn.remove(&key);
            }
            let Some(entry) = state.entries.get_mut(&key) else {
                continue;
            };
            if entry.last_failure_at > started_at {
                continue;
            }
            entry.failure_count = if halve {
                entry.failure_count.checked_div(2).unwrap_or(0)
            } else {
                0
            };
            if entry.failure_count == 0 && (!halve || entry.until <= now) {
                state.entries.remove(&key);
            }
        }
        if state == *self {
            return self.kept(Outcome::Nothing);
        }
        state.into_step(Outcome::Recovered)
    }

    fn cleared(&self, model: &str, rules: &LockoutRules) -> Step {
        let mut state = self.clone();
        for key in keys(model, &rules.families) {
            state.entries.remove(&key);
            state.torn.remove(&key);
        }
        if state == *self {
            return self.kept(Outcome::Nothing);
        }
        state.into_step(Outcome::Recovered)
    }

    /// Forgets all. What began before now is old; what begins in this same millisecond is not.
    fn renewed(&self, now: Millis) -> Step {
        if self.is_clean() {
            return self.kept(Outcome::Nothing);
        }
        let state = Self {
            renewed_at: Some(now.minus(1)),
            ..Self::default()
        };
        state.into_step(Outcome::Recovered)
    }

    fn kept(&self, outcome: Outcome) -> Step {
        Step {
            state: self.clone(),
            changed: false,
            outcome,
        }
    }

    fn into_step(self, outcome: Outcome) -> Step {
        Step {
            state: self,
            changed: true,
            outcome,
        }
    }
}

impl Body for ModelLockouts {
    const KIND: &'static str = key::LOCKOUT;
    const VERSION: u16 = 1;
}
