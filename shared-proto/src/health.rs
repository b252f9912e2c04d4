//! A connection's state machine: may this account be used now, and if not, until when?
//!
//! A failure blamed on the connection cools it. The length comes from a ladder
//! that doubles with each failure, or from the upstream's own announcement. A
//! refused credential, a ban or an empty balance is terminal: no timer ends it.
//!
//! # What is news
//!
//! Many requests on many nodes meet the same outage, so an event carries the
//! time its attempt was dispatched and the machine counts an outage once:
//!
//! - A step of the ladder is climbed only by an attempt that began after the
//!   last cooldown ended, or, when a success cleared that cooldown, after it
//!   was set. Everything that was in flight meanwhile belongs to the same outage.
//! - An announcement ends a guess: it replaces a ladder cooldown that ends
//!   sooner, whoever brings it, and sets the level to 0. An announced cooldown
//!   that runs is extended by a later end, whoever brings it, and only by more
//!   than [`EXTEND_MIN_MS`].
//! - A terminal verdict is news whatever cools, unless its attempt began before
//!   the last reset or change of credentials, or before one that ended the last
//!   trouble by succeeding.
//! - A success clears only what was set before its attempt began.
//!
//! So a cooldown is never shortened by a failure, and the order in which
//! concurrent results arrive does not change how far the ladder was climbed.
//!
//! # Decay
//!
//! The level survives the end of its cooldown. It stays for
//! [`DECAY_MIN_MS`] or the last cooldown's length, whichever is longer, and
//! then falls by one for each further such period: an account that rested long
//! comes back step by step. Decay is read, never written: see
//! [`ConnectionHealth::level`].

mod event;
mod imported;
mod keys;
mod reading;
mod record;
mod recover;
mod retry;
mod rules;
mod sibling;
mod streak;
#[cfg(test)]
mod tests;
mod withheld;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::egress::Mark;
use crate::failure::{Blame, Cooldown, Failure, HintSource, ResetHint, Terminal};
use crate::mirror::key;
use crate::mirror::record::Body;
use crate::quota::preflight::Origin;
use crate::rotation::RotationCounts;

pub use event::{Blocked, HealthEvent, Outcome, Status, Step};
pub use imported::parse_until;
pub use keys::{KeyAside, key_mark, names_key};
pub use record::{ErrorSource, LastError, Refusals, TerminalState};
pub use retry::{ExpiredRetry, Retry, RetryRules};
pub use rules::HealthRules;
pub use sibling::{Outage, PROVIDER_RULE, SIBLING_RULE};

/// Shortest time a level is kept after its cooldown ended, ms.
pub const DECAY_MIN_MS: u64 = 30_000;

/// An announced cooldown is not extended by less than this, ms: the same
/// announcement read twice differs by rounding and by the time between.
pub const EXTEND_MIN_MS: u64 = 1_000;

/// A failure that changes nothing but the error fields is written at most this
/// often, ms, so that the log does not grow with the number of requests.
pub const NOTE_EVERY_MS: u64 = 5_000;

/// What is remembered about a connection. The default is a healthy one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionHealth {
    /// Out of use until an operator, new credentials or a success of a newer attempt.
    pub terminal: Option<TerminalState>,
    /// End of the last cooldown; kept after it passed, for the decay of the level.
    pub cooldown_until: Option<Millis>,
    /// The ladder's level as it was set; [`ConnectionHealth::level`] is the level now.
    pub backoff_level: u32,
    /// Length of the last cooldown, ms.
    pub last_cooldown_ms: u64,
    /// Where the standing cooldown's length was announced; `None` for the ladder.
    pub hint_source: Option<HintSource>,
    /// The failure that explains the state.
    pub last_error: Option<LastError>,
    /// A ban switched the connection off as well.
    pub auto_disabled: bool,
    /// Refusals without a reason that followed each other.
    pub refusals: Option<Refusals>,
    /// When a failure was last counted, or the last renewal.
    pub settled_at: Option<Millis>,
    /// When the attempt of that failure began; `None` if nothing is counted.
    pub settled_from: Option<Millis>,
    /// When the attempt began that last ended trouble by succeeding.
    pub recovered_from: Option<Millis>,
    /// The last reset or change of credentials.
    pub renewed_at: Option<Millis>,
    /// When error fields were last written without a change of state.
    pub noted_at: Option<Millis>,
    /// Which credential the failures were of, as [`HealthRules::credential`]
    /// tells them apart; another one starts afresh.
    pub credential: Option<u64>,
    /// Retries of a connection that is expired; gone with that state.
    pub expired_retry: Option<ExpiredRetry>,
    /// The limit of an address that it rests for, if it does for one.
    pub egress: Option<Mark>,
    /// The window of its quota that it rests for before anybody refused, if it does.
    pub preflight: Option<Origin>,
    /// Keys that were refused while others of the connection are left, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys_aside: Vec<KeyAside>,
    /// Failures that the rotation gate counts.
    #[serde(skip_serializing_if = "RotationCounts::is_empty")]
    pub rotation: RotationCounts,
}

// === events ===

impl ConnectionHealth {
    /// Applies one event. Total: any state, event and time give a result.
    #[must_use]
    pub fn step(&self, event: &HealthEvent, now: Millis, rules: &HealthRules) -> Step {
        match event {
            HealthEvent::Failed {
                started_at,
                failure,
            } => self.counted(*started_at, failure, now, rules),
            HealthEvent::LimitedAt {
                started_at,
                failure,
                exit,
                met_by,
            } => self.limited((*started_at, failure), (exit, met_by), now, rules),
            HealthEvent::SiblingLimited(limit) => self.shared(limit, now, rules),
            HealthEvent::SiblingFailed(outage) => self.concerned(outage, now, rules),
            HealthEvent::Withheld(origin) => self.withheld(origin, now, rules),
            HealthEvent::Succeeded { started_at } => self.succeeded(*started_at, now),
            HealthEvent::Counted { started_at, class } => {
                self.noticed(*class, *started_at, now, rules)
            }
            HealthEvent::KeyRefused {
                started_at,
                key,
                failure,
            } => self.key_refused((*started_at, *key), failure, now, rules),
            HealthEvent::KeyAccepted { started_at, key } => {
                self.key_accepted((*started_at, *key), now)
            }
            HealthEvent::Retried { number, expired_at } => self.retried(*number, *expired_at, now),
            HealthEvent::Reset if self.is_clean() => self.kept(now, Outcome::Nothing),
            HealthEvent::Reset => self.renewed(now, Vec::new()),
            // A key that stayed is as refused as before; one that is gone is asked for by nobody.
            HealthEvent::CredentialsChanged => self.renewed(now, self.keys_aside.clone()),
        }
    }

    fn counted(
        &self,
        started_at: Millis,
        failure: &Failure,
        now: Millis,
        rules: &HealthRules,
    ) -> Step {
        let mut step = self.failed(started_at, failure, now, rules);
        if step.changed {
            step.state.credential = rules.credential;
        }
        if matches!(step.outcome, Outcome::Cooled { .. } | Outcome::Terminal(_)) {
            // A better word may come from an attempt that began before the one that was counted.
            step.state.settled_from = self.settled_from.max(Some(started_at));
        }
        step
    }

    fn failed(
        &self,
        started_at: Millis,
        failure: &Failure,
        now: Millis,
        rules: &HealthRules,
    ) -> Step {
        if failure.blame != Blame::Connection {
            return self.kept(now, Outcome::Nothing);
        }
        if self.terminal.is_some() {
            return self.kept(now, Outcome::AlreadyTerminal);
        }
        if self.renewed_at.is_some_and(|at| started_at <= at) {
            return self.kept(now, Outcome::Stale);
        }
        if let Some(kind) = failure.terminal {
            if self.recovered_from.is_some_and(|from| started_at < from) {
                return self.kept(now, Outcome::Stale);
            }
            return self.ended(kind, failure, now, rules);
        }
        if rules.disable_cooling {
            return self.noted(started_at, failure, now);
        }
        match failure.cooldown {
            Cooldown::None => self.noted(started_at, failure, now),
            Cooldown::Fixed(ms) => self.cooled(started_at, failure, now, (ms, self.level(now))),
            Cooldown::Streak => self.refused(started_at, failure, now, rules),
            Cooldown::Ladder => {
                if let Some(hint) = failure.heeded_hint(rules.use_hints) {
                    return self.announced(started_at, failure, hint, now);
                }
                let next = rules.unannounced(failure.reason, self.level(now));
                self.cooled(started_at, failure, now, next)
            }
        }
    }

    /// A cooldown by the ladder or by a rule: `next` is its length in ms and the level after it.
    fn cooled(&self, started_at: Millis, failure: &Failure, now: Millis, next: (u64, u32)) -> Step {
        let (cooldown_ms, level) = next;
        if cooldown_ms == 0 {
            return self.noted(started_at, failure, now);
        }
        match self.cooldown_until {
            Some(until) if until > now => return self.kept(now, Outcome::Cooling),
            Some(until) if started_at < until => return self.kept(now, Outcome::Stale),
            Some(_) | None if self.seen(started_at) => return self.kept(now, Outcome::Stale),
            Some(_) | None => {}
        }
        let mut state = self.marked(failure, now);
        state.cooldown_until = Some(now.plus(cooldown_ms));
        state.backoff_level = level;
        state.last_cooldown_ms = cooldown_ms;
        state.hint_source = None;
        state.into_step(
            now,
            Outcome::Cooled {
                cooldown_ms,
                hinted: false,
            },
        )
    }

    fn announced(
        &self,
        started_at: Millis,
        failure: &Failure,
        hint: &ResetHint,
        now: Millis,
    ) -> Step {
        let until = now.plus(hint.wait_ms);
        let a_guess_stands = self.cooldown_until.is_some() && self.hint_source.is_none();
        let standing = self.cooldown_until.filter(|standing| *standing > now);
        if let Some(standing) = standing {
            let margin = if a_guess_stands { 0 } else { EXTEND_MIN_MS };
            if until <= standing.plus(margin) {
                return self.kept(now, Outcome::Cooling);
            }
        } else if self.seen(started_at) && !a_guess_stands {
            return self.kept(now, Outcome::Stale);
        }
        let mut state = self.marked(failure, now);
        state.cooldown_until = Some(until);
        state.backoff_level = 0;
        state.last_cooldown_ms = hint.wait_ms;
        state.hint_source = Some(hint.source);
        state.into_step(
            now,
            Outcome::Cooled {
                cooldown_ms: hint.wait_ms,
                hinted: true,
            },
        )
    }

    fn ended(&self, kind: Terminal, failure: &Failure, now: Millis, rules: &HealthRules) -> Step {
        let mut state = self.marked(failure, now);
        state.terminal = Some(TerminalState {
            kind,
            sub_reason: failure.error_type,
            at: now,
        });
        state.cooldown_until = None;
        state.backoff_level = 0;
        state.last_cooldown_ms = 0;
        state.hint_source = None;
        state.expired_retry = None;
        state.auto_disabled = kind == Terminal::Banned && rules.auto_disable_banned;
        state.into_step(now, Outcome::Terminal(kind))
    }

    /// Error fields only. They never replace the error that explains a cooldown.
    fn noted(&self, started_at: Millis, failure: &Failure, now: Millis) -> Step {
        if self.remaining_ms(now) > 0 {
            return self.kept(now, Outcome::Cooling);
        }
        if self.seen(started_at) {
            return self.kept(now, Outcome::Stale);
        }
        if self.noted_at.is_some_and(|at| now < at.plus(NOTE_EVERY_MS)) {
            return self.kept(now, Outcome::Nothing);
        }
        let mut state = self.clone();
        state.last_error = Some(LastError::new(failure, now));
        state.noted_at = Some(now);
        state.into_step(now, Outcome::Noted)
    }

    fn marked(&self, failure: &Failure, now: Millis) -> Self {
        Self {
            last_error: Some(LastError::new(failure, now)),
            settled_at: Some(now),
            egress: None,
            preflight: None,
            ..self.clone()
        }
    }

    fn kept(&self, now: Millis, outcome: Outcome) -> Step {
        Step {
            changed: false,
            ..self.clone().into_step(now, outcome)
        }
    }

    fn into_step(self, now: Millis, outcome: Outcome) -> Step {
        Step {
            remaining_ms: self.remaining_ms(now),
            state: self,
            changed: true,
            outcome,
        }
    }
}

impl Body for ConnectionHealth {
    const KIND: &'static str = key::HEALTH;
    const VERSION: u16 = 1;
}
