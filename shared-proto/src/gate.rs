//! The gate in front of what combos fail on, where the operator wants one.
//!
//! It counts each failed target of a combo twice: for its connection, which
//! then rests for a while that doubles with each failure in a row, and for its
//! provider, which rests as a whole once its window holds too many. Both rests
//! are measured from the last failure, and read, never written.
//!
//! # What is news
//!
//! Requests that were under way together meet one outage: a failure counts if
//! its attempt began after the last one that was counted of its connection. A
//! success forgets what was counted before its attempt began. So the same event
//! twice changes nothing.

mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::config::{ProviderCooldown, Settings};
use crate::failure::{Blame, Failure, Profile};
use crate::id::{ConnectionId, ProviderId};
use crate::mirror::key;
use crate::mirror::record::Body;

pub use record::{Failing, GateEvent, GateOutcome, GateStep};

/// Failures of a provider that are remembered, the newest.
const FAILURES_MAX: usize = 200;
/// Connections that are remembered; the one that failed longest ago goes first.
const CONNECTIONS_MAX: usize = 1_000;
/// A connection's failures are forgotten after this time at the earliest, ms.
const RETENTION_MS: u64 = 1_800_000;
/// Most doublings of a connection's rest.
const DOUBLINGS_MAX: u32 = 10;

/// The numbers of one provider's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateRules {
    /// Whether there is a gate at all.
    pub enabled: bool,
    /// A connection's rest after its first failure, ms.
    pub min_ms: u64,
    /// A connection's longest rest, ms.
    pub max_ms: u64,
    /// Failures in the window that make the provider rest.
    pub threshold: u32,
    /// How long a failure is counted, ms.
    pub window_ms: u64,
    /// How long the provider rests after the last of them, ms.
    pub cooldown_ms: u64,
}

impl GateRules {
    /// The rules of the provider `id` with `profile`. One that is called
    /// `unknown`, or nothing, is not told from others, so it has no gate.
    pub fn new(settings: &Settings, id: &ProviderId, profile: Profile) -> Self {
        let ProviderCooldown {
            enabled,
            min_ms,
            max_ms,
            windows,
        } = &settings.provider_cooldown;
        let window = windows.get(profile);
        Self {
            enabled: *enabled && !matches!(id.as_str(), "" | "unknown"),
            min_ms: *min_ms,
            max_ms: *max_ms,
            threshold: window.threshold,
            window_ms: window.window_ms,
            cooldown_ms: window.cooldown_ms,
        }
    }

    fn retention_ms(&self) -> u64 {
        self.max_ms.max(RETENTION_MS)
    }

    /// A connection's rest after `count` failures in a row, ms.
    fn rest_ms(&self, count: u32) -> u64 {
        let doublings = count.saturating_sub(1).min(DOUBLINGS_MAX);
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        self.min_ms.saturating_mul(factor).min(self.max_ms)
    }
}

/// What is remembered about a provider. The default lets everybody pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProviderGate {
    /// When its connections failed, oldest first; the newest 200.
    pub failures: Vec<Millis>,
    /// Connections that failed since their last success.
    pub connections: BTreeMap<ConnectionId, Failing>,
    /// The last reset.
    pub renewed_at: Option<Millis>,
}

/// Whether a failure is the gate's to count. The request's own are not, nor, at
/// a provider whose quotas are per model, what may be about one model only.
pub const fn counts(failure: &Failure, per_model_quota: bool) -> bool {
    let of_one_model = per_model_quota && matches!(failure.status, 429 | 500);
    let blames = match failure.blame {
        Blame::Model | Blame::Connection | Blame::EgressIp | Blame::Provider => true,
        Blame::Request | Blame::ProtocolQuirk | Blame::Router | Blame::Client => false,
    };
    blames && failure.fallback && !of_one_model
}

// === readings ===

impl ProviderGate {
    /// Until when requests pass over `connection` at `now`, because of itself
    /// or of its provider; `None` when they don't.
    pub fn shut(
        &self,
        connection: &ConnectionId,
        rules: &GateRules,
        now: Millis,
    ) -> Option<Millis> {
        self.provider_rests(rules, now)
            .max(self.connection_rests(connection, rules, now))
    }

    /// Until when the provider rests as a whole.
    pub fn provider_rests(&self, rules: &GateRules, now: Millis) -> Option<Millis> {
        if !rules.enabled {
            return None;
        }
        let threshold = usize::try_from(rules.threshold.max(1)).unwrap_or(usize::MAX);
        let last = self.failures.last()?;
        // It rests while the window holds enough; the window moves on.
        let decisive = self.failures.len().checked_sub(threshold)?;
        let decisive = self.failures.get(decisive)?;
        let in_window = decisive.plus(rules.window_ms).plus(1);
        let until = last.plus(rules.cooldown_ms).min(in_window);
        (until > now).then_some(until)
    }

    /// Until when one connection rests.
    pub fn connection_rests(
        &self,
        connection: &ConnectionId,
        rules: &GateRules,
        now: Millis,
    ) -> Option<Millis> {
        let failing = self.connections.get(connection).filter(|_| rules.enabled)?;
        let until = failing.last_at.plus(rules.rest_ms(failing.count));
        (until > now).then_some(until)
    }

    /// Whether a success of `connection` has anything to forget.
    pub fn remembers(&self, connection: &ConnectionId) -> bool {
        !self.failures.is_empty() || self.connections.contains_key(connection)
    }

    /// Whether nothing is remembered.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.connections.is_empty()
    }
}

// === events ===

impl ProviderGate {
    /// Applies one event. Total: any state, event and time give a result.
    #[must_use]
    pub fn step(&self, event: &GateEvent, now: Millis, rules: &GateRules) -> GateStep {
        match event {
            GateEvent::Failed {
                started_at,
                connection,
            } => self.failed((*started_at, now), connection, rules),
            GateEvent::Succeeded {
                started_at,
                connection,
            } => self.succeeded(*started_at, connection),
            GateEvent::Reset => self.reset(now),
        }
    }

    fn failed(
        &self,
        (started_at, now): (Millis, Millis),
        connection: &ConnectionId,
        rules: &GateRules,
    ) -> GateStep {
        let before = self.connections.get(connection);
        let known = before.is_some_and(|failing| started_at <= failing.last_at);
        let forgotten = self.renewed_at.is_some_and(|at| started_at <= at);
        if !rules.enabled || known || forgotten {
            return self.kept();
        }
        let mut state = self.clone();
        let is_kept = |at: Millis, ms: u64| now.since(at) <= ms;
        state.failures.retain(|at| is_kept(*at, rules.window_ms));
        state.failures.push(now);
        state.failures.sort_unstable();
        let surplus = state.failures.len().saturating_sub(FAILURES_MAX);
        state.failures.drain(..surplus);
        state
            .connections
            .retain(|_, failing| is_kept(failing.last_at, rules.retention_ms()));
        if !state.connections.contains_key(connection) && state.connections.len() >= CONNECTIONS_MAX
        {
            let oldest = state
                .connections
                .iter()
                .min_by_key(|(_, failing)| failing.last_at)
                .map(|(id, _)| id.clone());
            if let Some(oldest) = oldest {
                state.connections.remove(&oldest);
            }
        }
        let failing = state
            .connections
            .entry(connection.clone())
            .or_insert(Failing {
                count: 0,
                last_at: now,
            });
        failing.count = failing.count.saturating_add(1);
        failing.last_at = now;
        state.into_step(GateOutcome::Counted)
    }

    fn succeeded(&self, started_at: Millis, connection: &ConnectionId) -> GateStep {
        let mut state = self.clone();
        state.failures.retain(|at| *at > started_at);
        if self
            .connections
            .get(connection)
            .is_some_and(|failing| failing.last_at <= started_at)
        {
            state.connections.remove(connection);
        }
        if state == *self {
            return self.kept();
        }
        state.into_step(GateOutcome::Forgot)
    }

    /// It may be told again later, so it forgets nothing that came after it.
    fn reset(&self, now: Millis) -> GateStep {
        let mut state = self.clone();
        state.failures.retain(|at| *at > now);
        state.connections.retain(|_, failing| failing.last_at > now);
        if state == *self {
            return self.kept();
        }
        state.renewed_at = Some(now);
        state.into_step(GateOutcome::Forgot)
    }

    fn kept(&self) -> GateStep {
        GateStep {
            state: self.clone(),
            changed: false,
            outcome: GateOutcome::Nothing,
        }
    }

    fn into_step(self, outcome: GateOutcome) -> GateStep {
        GateStep {
            state: self,
            changed: true,
            outcome,
        }
    }
}

impl Body for ProviderGate {
    const KIND: &'static str = key::GATE;
    const VERSION: u16 = 1;
}
