//! Refusals without a reason: the first ones may pass, the third is a ban.

use super::{ConnectionHealth, HealthRules, Outcome, Refusals, Step};
use crate::clock::Millis;
use crate::failure::{ErrorType, Failure, Terminal};

/// Rest after the first and after the second in a row, ms.
const RESTS_MS: [u64; 2] = [300_000, 900_000];
/// A refusal that comes so long after the last begins anew, ms.
const STALE_MS: u64 = 86_400_000;

impl ConnectionHealth {
    /// One refusal. What is met while the connection still rests belongs to the
    /// one before.
    pub(super) fn refused(
        &self,
        started_at: Millis,
        failure: &Failure,
        now: Millis,
        rules: &HealthRules,
    ) -> Step {
        let last = self.refusals.filter(|last| now.since(last.at) < STALE_MS);
        let before = last.map_or(0, |last| last.count);
        let place = usize::try_from(before).unwrap_or(usize::MAX);
        let refusals = Some(Refusals {
            count: before.saturating_add(1),
            at: now,
        });
        let Some(rest) = RESTS_MS.get(place) else {
            // News like any other: not what was under way when the last was counted.
            if self.remaining_ms(now) > 0 || self.seen(started_at) {
                return self.cooled(started_at, failure, now, (1, self.level(now)));
            }
            let failure = Failure {
                error_type: Some(ErrorType::Forbidden),
                ..failure.clone()
            };
            let mut step = self.ended(Terminal::Banned, &failure, now, rules);
            step.state.refusals = refusals;
            step.state.auto_disabled = true;
            return step;
        };
        let mut step = self.cooled(started_at, failure, now, (*rest, self.level(now)));
        if matches!(step.outcome, Outcome::Cooled { .. }) {
            step.state.refusals = refusals;
        }
        step
    }
}
