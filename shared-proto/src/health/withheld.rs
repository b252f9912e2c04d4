//! A rest that is begun before anybody refused: a window of the quota is all but
//! used up, and the operator does not want to meet its end.
//!
//! It is no failure, so it climbs no ladder, and it never replaces a rest that
//! runs. What was told before the last reset, by an operator or of the window, is
//! no reason.

use super::record::{ErrorSource, LastError};
use super::{ConnectionHealth, HealthRules, Outcome, Step};
use crate::clock::Millis;
use crate::failure::{ErrorType, HintSource, Reason};
use crate::quota::preflight::{Origin, RULE};

impl ConnectionHealth {
    /// Nothing is sent until the window of `origin` begins anew.
    pub(super) fn withheld(&self, origin: &Origin, now: Millis, rules: &HealthRules) -> Step {
        if self.terminal.is_some() {
            return self.kept(now, Outcome::AlreadyTerminal);
        }
        if rules.disable_cooling {
            return self.kept(now, Outcome::Nothing);
        }
        if self.remaining_ms(now) > 0 {
            return self.kept(now, Outcome::Cooling);
        }
        if self.renewed_at >= Some(origin.observed_at) || origin.resets_at <= now {
            return self.kept(now, Outcome::Stale);
        }
        let cooldown_ms = origin.resets_at.since(now);
        let state = Self {
            cooldown_until: Some(origin.resets_at),
            backoff_level: self.level(now),
            last_cooldown_ms: cooldown_ms,
            hint_source: Some(HintSource::QuotaWindow),
            last_error: Some(LastError {
                error_type: Some(ErrorType::QuotaPreflight),
                reason: Reason::QuotaExhausted,
                status: 429,
                code: None,
                at: now,
                message: origin.message(),
                source: ErrorSource::Foreseen,
                rule: RULE.into(),
            }),
            settled_at: self.settled_at.max(Some(now)),
            settled_from: self.settled_from.max(Some(origin.observed_at)),
            credential: rules.credential.or(self.credential),
            egress: None,
            preflight: Some(origin.clone()),
            ..self.clone()
        };
        let outcome = Outcome::Cooled {
            cooldown_ms,
            hinted: true,
        };
        state.into_step(now, outcome)
    }
}
