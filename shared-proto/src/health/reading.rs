//! What a connection's state means at a given time.

use super::{Blocked, ConnectionHealth, DECAY_MIN_MS, Status};
use crate::clock::Millis;

impl ConnectionHealth {
    /// Whether it may be used at `now`.
    pub fn eligible(&self, now: Millis) -> Result<(), Blocked> {
        if let Some(terminal) = self.terminal {
            return Err(Blocked::Terminal(terminal.kind));
        }
        match self.cooldown_until {
            Some(until) if until > now => Err(Blocked::Cooling { until }),
            Some(_) | None => Ok(()),
        }
    }

    /// The state's name at `now`. A cooldown that passed is over without an event.
    pub fn status(&self, now: Millis) -> Status {
        match self.eligible(now) {
            Ok(()) => Status::Active,
            Err(Blocked::Cooling { .. }) => Status::Unavailable,
            Err(Blocked::Terminal(kind)) => Status::Terminal(kind),
        }
    }

    /// What is left of the cooldown at `now`, ms; 0 for a terminal state.
    pub fn remaining_ms(&self, now: Millis) -> u64 {
        match self.eligible(now) {
            Err(Blocked::Cooling { until }) => until.since(now),
            Ok(()) | Err(Blocked::Terminal(_)) => 0,
        }
    }

    /// The ladder's level at `now`, after decay.
    pub fn level(&self, now: Millis) -> u32 {
        let periods = self.decay_periods(now);
        self.backoff_level
            .saturating_sub(u32::try_from(periods).unwrap_or(u32::MAX))
    }

    /// The next time after `now` at which the state reads differently without
    /// an event: the end of the cooldown, or the next fall of the level.
    pub fn deadline(&self, now: Millis) -> Option<Millis> {
        let until = self.cooldown_until.filter(|_| self.terminal.is_none())?;
        if until > now {
            return Some(until);
        }
        if self.level(now) == 0 {
            return None;
        }
        let next = self.decay_periods(now).saturating_add(1);
        Some(until.plus(self.decay_period_ms().saturating_mul(next)))
    }

    fn decay_period_ms(&self) -> u64 {
        self.last_cooldown_ms.max(DECAY_MIN_MS)
    }

    fn decay_periods(&self, now: Millis) -> u64 {
        let rested = self.cooldown_until.map_or(0, |until| now.since(until));
        rested.checked_div(self.decay_period_ms()).unwrap_or(0)
    }

    /// Whether an attempt that began at `started_at` was in flight when the
    /// last failure was counted. The same millisecond counts as in flight, so
    /// an event applied twice is counted once.
    pub(super) fn seen(&self, started_at: Millis) -> bool {
        self.settled_at.is_some_and(|at| started_at <= at)
    }

    /// Whether it holds nothing against the connection, nor against one of its keys.
    pub fn is_clean(&self) -> bool {
        self.is_well() && self.keys_aside.is_empty()
    }

    /// Whether a success has nothing to end.
    pub fn is_well(&self) -> bool {
        self.is_sound() && self.rotation.is_empty()
    }

    /// The same, whatever the rotation gate counts.
    pub(super) fn is_sound(&self) -> bool {
        self.terminal.is_none()
            && self.cooldown_until.is_none()
            && self.backoff_level == 0
            && self.last_error.is_none()
            && !self.auto_disabled
    }
}
