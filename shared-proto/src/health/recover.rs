//! What ends a connection's trouble, and what the rotation gate counts until then.

use super::{ConnectionHealth, HealthRules, KeyAside, Outcome, Step};
use crate::clock::Millis;
use crate::rotation::RotationClass;

impl ConnectionHealth {
    pub(super) fn succeeded(&self, started_at: Millis, now: Millis) -> Step {
        if self.is_well() {
            return self.kept(now, Outcome::Nothing);
        }
        if self.settled_at.is_some_and(|at| started_at < at) {
            return self.kept(now, Outcome::Stale);
        }
        let rotation = self.rotation.after_success(started_at);
        if self.is_sound() && rotation == self.rotation {
            return self.kept(now, Outcome::Stale);
        }
        let state = Self {
            settled_at: self.settled_at,
            recovered_from: self.recovered_from.max(Some(started_at)),
            renewed_at: self.renewed_at,
            noted_at: self.noted_at,
            keys_aside: self.keys_aside.clone(),
            rotation,
            ..Self::default()
        };
        state.into_step(now, Outcome::Recovered)
    }

    /// Forgets all. What began before now is old; what begins in this same millisecond is not.
    ///
    /// It may be told again later (a commit without an answer, a store that
    /// went back), so it clears nothing of an attempt that began after it.
    pub(super) fn renewed(&self, now: Millis, keys_aside: Vec<KeyAside>) -> Step {
        let before = Some(now.minus(1));
        if self.renewed_at >= before {
            return self.kept(now, Outcome::Nothing);
        }
        if self.settled_from.is_some_and(|began| began > now) {
            let state = Self {
                renewed_at: before,
                ..self.clone()
            };
            return state.into_step(now, Outcome::Nothing);
        }
        let state = Self {
            settled_at: before,
            renewed_at: before,
            keys_aside,
            ..Self::default()
        };
        let outcome = if self.is_clean() {
            Outcome::Nothing
        } else {
            Outcome::Recovered
        };
        let changed = state != *self;
        Step {
            changed,
            ..state.into_step(now, outcome)
        }
    }

    /// One more of a class that the rotation gate counts.
    pub(super) fn noticed(
        &self,
        class: RotationClass,
        started_at: Millis,
        now: Millis,
        rules: &HealthRules,
    ) -> Step {
        let renewed = self.renewed_at.is_some_and(|at| started_at <= at);
        if renewed || self.recovered_from.is_some_and(|from| started_at < from) {
            return self.kept(now, Outcome::Stale);
        }
        let rule = rules.rotation.of(class);
        match self.rotation.with(class, (started_at, now), rule) {
            None => self.kept(now, Outcome::Stale),
            Some(rotation) => {
                let state = Self {
                    rotation,
                    ..self.clone()
                };
                state.into_step(now, Outcome::Noted)
            }
        }
    }
}
