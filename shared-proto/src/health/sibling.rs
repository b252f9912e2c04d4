//! A limit that counts by address: whoever meets it rests as for any other, and
//! is marked; whoever leaves by the same address rests as long.
//!
//! A sibling's cooldown is only ever made longer, and its level stays. It hears
//! of a limit any number of times and by several: by the node that met it and
//! by the coordinator. A success or a reset after the limit was counted knows
//! better, and so does the end of its time.

use super::record::{ErrorSource, LastError};
use super::{ConnectionHealth, HealthRules, Outcome, Step};
use crate::clock::Millis;
use crate::egress::{Exit, Limit, Mark};
use crate::failure::Failure;
use crate::id::ConnectionId;

/// The rule that a sibling's error names.
pub const SIBLING_RULE: &str = "egress-sibling";

impl ConnectionHealth {
    /// Met at its own address by an attempt that began at `started_at`.
    pub(super) fn limited(
        &self,
        (started_at, failure): (Millis, &Failure),
        (exit, met_by): (&Exit, &ConnectionId),
        now: Millis,
        rules: &HealthRules,
    ) -> Step {
        let mut step = self.counted(started_at, failure, now, rules);
        if matches!(step.outcome, Outcome::Cooled { .. }) {
            step.state.egress = Some(Mark {
                exit: exit.clone(),
                met_by: met_by.clone(),
                at: now,
            });
        }
        step
    }

    /// Whether it rests at least as long as `limit` wants, or for good.
    pub fn outlasts(&self, limit: &Limit) -> bool {
        self.terminal.is_some() || self.cooldown_until >= Some(limit.until)
    }

    /// Met by another connection that leaves by the same address.
    pub(super) fn shared(&self, limit: &Limit, now: Millis, rules: &HealthRules) -> Step {
        if self.terminal.is_some() {
            return self.kept(now, Outcome::AlreadyTerminal);
        }
        if rules.disable_cooling {
            return self.kept(now, Outcome::Nothing);
        }
        let knows_better = self.renewed_at.max(self.recovered_from) >= Some(limit.at);
        if knows_better || limit.until <= now {
            return self.kept(now, Outcome::Stale);
        }
        if self.outlasts(limit) {
            return self.kept(now, Outcome::Cooling);
        }
        let cooldown_ms = limit.until.since(now);
        let state = Self {
            cooldown_until: Some(limit.until),
            backoff_level: self.level(now),
            last_cooldown_ms: cooldown_ms,
            hint_source: limit.hint_source,
            last_error: Some(LastError {
                error_type: None,
                reason: limit.reason,
                status: 429,
                code: None,
                at: now,
                message: "another connection met the limit of the address it leaves by".into(),
                source: ErrorSource::Upstream,
                rule: SIBLING_RULE.into(),
            }),
            settled_at: self.settled_at.max(Some(now)),
            settled_from: self.settled_from.max(Some(limit.at)),
            credential: rules.credential.or(self.credential),
            egress: Some(limit.mark()),
            preflight: None,
            ..self.clone()
        };
        let hinted = limit.hint_source.is_some();
        let outcome = Outcome::Cooled {
            cooldown_ms,
            hinted,
        };
        state.into_step(now, outcome)
    }
}
