//! A provider's circuit breaker.
//!
//! Counted failures of all its connections add up, successes take one off, and
//! time alone takes off nothing. Enough of them open it: for a while nothing is
//! sent. Then one request in the whole cluster may try (half-open), and its
//! result closes the breaker or opens it again, for longer after several
//! failed tries.
//!
//! There is no timer. The end of the open time is part of the record, and every
//! reader judges for itself: [`ProviderBreaker::state`] at that time is
//! [`BreakerState::HalfOpen`].
//!
//! # The probe
//!
//! Whoever wants to try has to claim the one slot. A claim has a generation and
//! a deadline. The generation never repeats and never falls; past the deadline
//! somebody else may claim. A result that carries another generation than the
//! standing claim's is ignored, and so is one that comes while the breaker is
//! open. An attempt that never claimed (one dispatched before this node learned
//! of the opening) decides only if it began after the breaker became half-open.
//!
//! # What is news
//!
//! One connection is counted once in [`DEDUPE_MS`]. A failure met while open is
//! dropped, so it cannot keep the breaker open, and one whose attempt began
//! before the breaker closed again belongs to the outage that is over.

mod event;
mod record;
mod rules;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::mirror::key;
use crate::mirror::record::Body;

pub use event::{Admission, BreakerEvent, BreakerOutcome, BreakerStep};
pub use record::{
    BreakerState, Counted, FailureKind, KindCounts, Probe, Transition, TransitionReason,
};
pub use rules::{BreakerRules, KindOverrides, counted_status, counts};

/// One connection's failures are counted once in this time, ms.
pub const DEDUPE_MS: u64 = 5_000;

/// Connections remembered for that; beyond, the oldest is forgotten.
pub const MAX_RECENT: usize = 512;

/// Transitions kept.
pub const MAX_HISTORY: usize = 20;

/// What is remembered about a provider. The default is a closed breaker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProviderBreaker {
    /// As written; [`ProviderBreaker::state`] is the state now.
    pub written: BreakerState,
    /// Counted failures less successes.
    pub failure_count: u32,
    /// When a failure was last counted; outlives a closing.
    pub last_failure_at: Option<Millis>,
    /// Its kind; cleared by a closing.
    pub last_failure_kind: Option<FailureKind>,
    /// Counted failures by kind since the last closing.
    pub kind_failure_counts: KindCounts,
    /// Failed tries in a row.
    pub open_cycle_count: u32,
    /// When the open time ends, and since when it is half-open.
    pub open_until: Option<Millis>,
    /// When it last closed after having been open, or was reset.
    pub closed_at: Option<Millis>,
    /// The claimed slot.
    pub probe: Option<Probe>,
    /// The last generation given out.
    pub last_generation: u64,
    /// Which connections were counted within the last [`DEDUPE_MS`], oldest first.
    pub recent: Vec<Counted>,
    /// The last [`MAX_HISTORY`] transitions, oldest first.
    pub history: Vec<Transition>,
}

// === reading ===

impl ProviderBreaker {
    /// The state at `now`. An open time that passed is over without an event.
    pub fn state(&self, now: Millis) -> BreakerState {
        let is_over = self.open_until.is_none_or(|until| until <= now);
        if self.written == BreakerState::Open && is_over {
            BreakerState::HalfOpen
        } else {
            self.written
        }
    }

    /// Whether a request may go out at `now`. Asking takes no slot.
    pub fn admit(&self, now: Millis) -> Admission {
        match self.state(now) {
            BreakerState::Closed | BreakerState::Degraded => Admission::Admit,
            BreakerState::HalfOpen if self.live_probe(now).is_none() => Admission::Probe,
            BreakerState::Open | BreakerState::HalfOpen => Admission::Reject {
                retry_after_ms: self.retry_after_ms(now),
            },
        }
    }

    /// When asking again makes sense, ms from `now`; 0 while requests pass or the slot is free.
    pub fn retry_after_ms(&self, now: Millis) -> u64 {
        self.deadline(now).map_or(0, |at| at.since(now))
    }

    /// The next time after `now` at which it reads differently without an event.
    pub fn deadline(&self, now: Millis) -> Option<Millis> {
        match self.state(now) {
            BreakerState::Closed | BreakerState::Degraded => None,
            BreakerState::Open => self.open_until,
            BreakerState::HalfOpen => self.live_probe(now).map(|probe| probe.deadline),
        }
    }

    fn live_probe(&self, now: Millis) -> Option<Probe> {
        self.probe.filter(|probe| probe.deadline > now)
    }
}

// === events ===

impl ProviderBreaker {
    /// Applies one event. Total: any state, event and time give a result.
    #[must_use]
    pub fn step(&self, event: &BreakerEvent, now: Millis, rules: &BreakerRules) -> BreakerStep {
        match event {
            BreakerEvent::Failed {
                started_at,
                connection,
                kind,
                probe_generation,
            } => match self.judge(*started_at, *probe_generation, now) {
                Verdict::Ignored(outcome) => self.kept(outcome),
                Verdict::OfTheTry => self.reopened(*kind, now, rules),
                Verdict::Ordinary => match self.not_news(*started_at, connection, now) {
                    Some(outcome) => self.kept(outcome),
                    None => self.failed(connection, *kind, now, rules),
                },
            },
            BreakerEvent::Succeeded {
                started_at,
                probe_generation,
            } => match self.judge(*started_at, *probe_generation, now) {
                Verdict::Ignored(outcome) => self.kept(outcome),
                Verdict::OfTheTry => self.closed(now, TransitionReason::ProbeSucceeded),
                Verdict::Ordinary => self.eased(now, rules),
            },
            BreakerEvent::ClaimProbe => self.claimed(now, rules),
            BreakerEvent::ReleaseProbe { generation } => self.released(*generation),
            BreakerEvent::Reset if self.is_clean() => self.kept(BreakerOutcome::Nothing),
            BreakerEvent::Reset => self.closed(now, TransitionReason::Reset),
        }
    }

    /// What an attempt's result may decide.
    fn judge(&self, started_at: Millis, probe_generation: Option<u64>, now: Millis) -> Verdict {
        let state = self.state(now);
        let of_standing_claim = probe_generation
            .is_some_and(|generation| self.probe.is_some_and(|p| p.generation == generation));
        let outcome = match state {
            BreakerState::Open => BreakerOutcome::IgnoredOpen,
            BreakerState::HalfOpen if of_standing_claim => return Verdict::OfTheTry,
            BreakerState::Closed | BreakerState::Degraded | BreakerState::HalfOpen
                if probe_generation.is_some() =>
            {
                BreakerOutcome::IgnoredGeneration
            }
            BreakerState::HalfOpen if self.open_until.is_none_or(|since| started_at >= since) => {
                return Verdict::OfTheTry;
            }
            BreakerState::HalfOpen => BreakerOutcome::IgnoredStale,
            BreakerState::Closed | BreakerState::Degraded => return Verdict::Ordinary,
        };
        Verdict::Ignored(outcome)
    }

    /// Why a failure met while requests pass is not counted.
    fn not_news(
        &self,
        started_at: Millis,
        connection: &ConnectionId,
        now: Millis,
    ) -> Option<BreakerOutcome> {
        if self.closed_at.is_some_and(|at| started_at < at) {
            return Some(BreakerOutcome::IgnoredStale);
        }
        let mut recent = self.recent.iter().filter(|counted| counted.is_recent(now));
        recent
            .any(|counted| counted.connection == *connection)
            .then_some(BreakerOutcome::IgnoredDuplicate)
    }

    fn failed(
        &self,
        connection: &ConnectionId,
        kind: FailureKind,
        now: Millis,
        rules: &BreakerRules,
    ) -> BreakerStep {
        let mut state = self.counting(kind, now);
        state.recent.retain(|counted| counted.is_recent(now));
        if state.recent.len() >= MAX_RECENT {
            state.recent.remove(0);
        }
        state.recent.push(Counted {
            connection: connection.clone(),
            at: now,
        });
        if state.failure_count >= rules.failure_threshold {
            return state.opened(now, TransitionReason::Threshold, rules);
        }
        if state.failure_count >= rules.degradation_threshold {
            state.go(BreakerState::Degraded, now, TransitionReason::Threshold);
        }
        state.into_step(BreakerOutcome::Counted)
    }

    fn reopened(&self, kind: FailureKind, now: Millis, rules: &BreakerRules) -> BreakerStep {
        let mut state = self.refreshed(now).counting(kind, now);
        state.open_cycle_count = state.open_cycle_count.saturating_add(1);
        state.opened(now, TransitionReason::ProbeFailed, rules)
    }

    fn eased(&self, now: Millis, rules: &BreakerRules) -> BreakerStep {
        if self.failure_count == 0 && self.written == BreakerState::Closed {
            return self.kept(BreakerOutcome::Nothing);
        }
        let mut state = self.clone();
        state.failure_count = state.failure_count.saturating_sub(1);
        if state.failure_count <= rules.degradation_threshold {
            state.go(BreakerState::Closed, now, TransitionReason::Eased);
        }
        state.into_step(BreakerOutcome::Eased)
    }

    fn claimed(&self, now: Millis, rules: &BreakerRules) -> BreakerStep {
        match self.admit(now) {
            Admission::Admit => self.kept(BreakerOutcome::NotNeeded),
            Admission::Reject { retry_after_ms } => {
                self.kept(BreakerOutcome::Refused { retry_after_ms })
            }
            Admission::Probe => {
                let mut state = self.refreshed(now);
                // Not below the clock, so that a store that lost its last writes gives no number twice.
                let generation = self
                    .last_generation
                    .saturating_add(1)
                    .max(now.as_epoch_ms());
                let deadline = now.plus(rules.probe_timeout_ms.max(1));
                state.last_generation = generation;
                state.probe = Some(Probe {
                    generation,
                    started_at: now,
                    deadline,
                });
                state.into_step(BreakerOutcome::Claimed {
                    generation,
                    deadline,
                })
            }
        }
    }

    fn released(&self, generation: u64) -> BreakerStep {
        if self
            .probe
            .is_none_or(|probe| probe.generation != generation)
        {
            return self.kept(BreakerOutcome::IgnoredGeneration);
        }
        let state = Self {
            probe: None,
            ..self.clone()
        };
        state.into_step(BreakerOutcome::Released)
    }

    /// Closed and everything zeroed. A reset forgets the last failure as well.
    fn closed(&self, now: Millis, reason: TransitionReason) -> BreakerStep {
        let refreshed = self.refreshed(now);
        let is_reset = reason == TransitionReason::Reset;
        let mut state = Self {
            written: refreshed.written,
            last_failure_at: self.last_failure_at.filter(|_| !is_reset),
            closed_at: Some(now),
            last_generation: self.last_generation,
            history: refreshed.history,
            ..Self::default()
        };
        state.go(BreakerState::Closed, now, reason);
        state.into_step(BreakerOutcome::Closed)
    }

    fn opened(
        mut self,
        now: Millis,
        reason: TransitionReason,
        rules: &BreakerRules,
    ) -> BreakerStep {
        let open_ms = rules.open_ms(self.open_cycle_count, self.last_failure_kind);
        self.open_until = Some(now.plus(open_ms));
        self.probe = None;
        self.recent.clear();
        self.go(BreakerState::Open, now, reason);
        self.into_step(BreakerOutcome::Opened)
    }

    fn counting(&self, kind: FailureKind, now: Millis) -> Self {
        let mut state = self.clone();
        state.failure_count = state.failure_count.saturating_add(1);
        state.last_failure_at = Some(now);
        state.last_failure_kind = Some(kind);
        state.kind_failure_counts.add(kind);
        state
    }

    /// Writes down that the open time ended, if it did.
    fn refreshed(&self, now: Millis) -> Self {
        let mut state = self.clone();
        if self.state(now) == BreakerState::HalfOpen {
            let since = self.open_until.unwrap_or(now);
            state.go(BreakerState::HalfOpen, since, TransitionReason::Elapsed);
        }
        state
    }

    fn go(&mut self, to: BreakerState, at: Millis, reason: TransitionReason) {
        if self.written == to {
            return;
        }
        if self.history.len() >= MAX_HISTORY {
            self.history.remove(0);
        }
        self.history.push(Transition {
            from: self.written,
            to,
            at,
            failure_count: self.failure_count,
            reason,
        });
        self.written = to;
    }

    /// Whether nothing was counted since it was last closed: a success or a
    /// reset would change nothing.
    pub fn is_clean(&self) -> bool {
        self.written == BreakerState::Closed
            && self.failure_count == 0
            && self.last_failure_at.is_none()
    }

    fn kept(&self, outcome: BreakerOutcome) -> BreakerStep {
        BreakerStep {
            state: self.clone(),
            changed: false,
            outcome,
        }
    }

    fn into_step(self, outcome: BreakerOutcome) -> BreakerStep {
        BreakerStep {
            state: self,
            changed: true,
            outcome,
        }
    }
}

/// What an attempt's result may decide.
enum Verdict {
    /// Nothing.
    Ignored(BreakerOutcome),
    /// The half-open state's end.
    OfTheTry,
    /// One more or one less.
    Ordinary,
}

impl Body for ProviderBreaker {
    const KIND: &'static str = key::BREAKER;
    const VERSION: u16 = 1;
}
