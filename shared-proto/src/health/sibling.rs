//! What one connection met and others would meet as well: a limit that counts by
//! address, or a failure of the provider. Whoever met it rests as for any other;
//! the siblings, which leave by the same address or go the same way, rest as long.
//!
//! A sibling's cooldown is only ever made longer, and its level stays. It hears
//! of a cause any number of times and by several: by the node that met it and
//! by the coordinator. A success or a reset after the cause was counted knows
//! better, and so does the end of its time.

use super::record::{ErrorSource, LastError, MESSAGE_CHARS};
use super::{Blocked, ConnectionHealth, HealthRules, Outcome, Step};
use crate::clock::Millis;
use crate::egress::{Exit, Limit, Mark};
use crate::failure::{Failure, HintSource};
use crate::id::ConnectionId;

/// The rule that the error of a sibling by address names.
pub const SIBLING_RULE: &str = "egress-sibling";
/// The rule that the error of a sibling at the provider names.
pub const PROVIDER_RULE: &str = "provider-sibling";

/// A failure charged to the provider, as one connection met it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outage {
    /// When it was counted.
    pub at: Millis,
    /// Until when the one that met it rests.
    pub until: Millis,
    /// Where its end was announced, if it was.
    pub hint_source: Option<HintSource>,
    /// What that one's record says of it.
    pub error: LastError,
}

impl Outage {
    /// The outage that `health` rests for at `now`, if `failure` is what it rests for.
    pub fn of(health: &ConnectionHealth, failure: &Failure, now: Millis) -> Option<Self> {
        let Err(Blocked::Cooling { until }) = health.eligible(now) else {
            return None;
        };
        let error = health.last_error.as_ref();
        let error = error.filter(|error| error.rule == failure.rule)?;
        Some(Self {
            at: error.at,
            until,
            hint_source: health.hint_source,
            error: error.clone(),
        })
    }
}

/// What a sibling is told, of either kind.
struct Cause {
    at: Millis,
    until: Millis,
    hint_source: Option<HintSource>,
    error: LastError,
    egress: Option<Mark>,
}

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

    /// Whether it rests at least until `until`, or for good.
    pub fn outlasts(&self, until: Millis) -> bool {
        self.terminal.is_some() || self.cooldown_until >= Some(until)
    }

    /// Met by another connection that leaves by the same address.
    pub(super) fn shared(&self, limit: &Limit, now: Millis, rules: &HealthRules) -> Step {
        let cause = Cause {
            at: limit.at,
            until: limit.until,
            hint_source: limit.hint_source,
            error: LastError {
                error_type: None,
                reason: limit.reason,
                status: 429,
                code: None,
                at: now,
                message: "another connection met the limit of the address it leaves by".into(),
                source: ErrorSource::Upstream,
                rule: SIBLING_RULE.into(),
            },
            egress: Some(limit.mark()),
        };
        self.rests_with(cause, now, rules)
    }

    /// Met by another connection of the provider, that goes the same way.
    pub(super) fn concerned(&self, outage: &Outage, now: Millis, rules: &HealthRules) -> Step {
        let told = &outage.error.message;
        let message = format!("another connection of the provider met it: {told}");
        let cause = Cause {
            at: outage.at,
            until: outage.until,
            hint_source: outage.hint_source,
            error: LastError {
                at: now,
                message: message.chars().take(MESSAGE_CHARS).collect(),
                rule: PROVIDER_RULE.into(),
                ..outage.error.clone()
            },
            egress: None,
        };
        self.rests_with(cause, now, rules)
    }

    fn rests_with(&self, cause: Cause, now: Millis, rules: &HealthRules) -> Step {
        if self.terminal.is_some() {
            return self.kept(now, Outcome::AlreadyTerminal);
        }
        if rules.disable_cooling {
            return self.kept(now, Outcome::Nothing);
        }
        let knows_better = self.renewed_at.max(self.recovered_from) >= Some(cause.at);
        if knows_better || cause.until <= now {
            return self.kept(now, Outcome::Stale);
        }
        if self.outlasts(cause.until) {
            return self.kept(now, Outcome::Cooling);
        }
        let cooldown_ms = cause.until.since(now);
        let state = Self {
            cooldown_until: Some(cause.until),
            backoff_level: self.level(now),
            last_cooldown_ms: cooldown_ms,
            hint_source: cause.hint_source,
            last_error: Some(cause.error),
            settled_at: self.settled_at.max(Some(now)),
            settled_from: self.settled_from.max(Some(cause.at)),
            credential: rules.credential.or(self.credential),
            egress: cause.egress,
            preflight: None,
            ..self.clone()
        };
        let outcome = Outcome::Cooled {
            cooldown_ms,
            hinted: cause.hint_source.is_some(),
        };
        state.into_step(now, outcome)
    }
}
