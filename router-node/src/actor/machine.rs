//! What a state machine has to offer so that an [`super::owner::Owner`] can run it.

use shared_proto::breaker::{BreakerEvent, BreakerOutcome, BreakerRules, ProviderBreaker};
use shared_proto::clock::Millis;
use shared_proto::health::{self, ConnectionHealth};
use shared_proto::mirror::record::Body;

/// A pure machine whose state is mirrored.
pub(crate) trait Machine: Body + Clone + Default + Unpin + 'static {
    /// What happens to it.
    type Event: Clone + Send + Unpin + 'static;
    /// The numbers it obeys.
    type Rules: Clone + Send + Unpin + 'static;
    /// What a step tells whoever reported the event.
    type Outcome: Clone + Send + Unpin + 'static;

    /// The next state, whether it differs, and what the reporter is told.
    fn apply(&self, event: &Self::Event, now: Millis, rules: &Self::Rules) -> Applied<Self>;

    /// The next time after `now` at which the state reads differently by itself.
    fn wakes_at(&self, now: Millis) -> Option<Millis>;
}

/// The result of one step.
pub(crate) struct Applied<M: Machine> {
    pub(crate) state: M,
    pub(crate) changed: bool,
    pub(crate) outcome: M::Outcome,
}

impl Machine for ConnectionHealth {
    type Event = health::HealthEvent;
    type Rules = health::HealthRules;
    type Outcome = health::Outcome;

    fn apply(&self, event: &Self::Event, now: Millis, rules: &Self::Rules) -> Applied<Self> {
        let step = self.step(event, now, rules);
        Applied {
            state: step.state,
            changed: step.changed,
            outcome: step.outcome,
        }
    }

    fn wakes_at(&self, now: Millis) -> Option<Millis> {
        self.deadline(now)
    }
}

impl Machine for ProviderBreaker {
    type Event = BreakerEvent;
    type Rules = BreakerRules;
    type Outcome = BreakerOutcome;

    fn apply(&self, event: &Self::Event, now: Millis, rules: &Self::Rules) -> Applied<Self> {
        let step = self.step(event, now, rules);
        Applied {
            state: step.state,
            changed: step.changed,
            outcome: step.outcome,
        }
    }

    fn wakes_at(&self, _: Millis) -> Option<Millis> {
        // Half-open is lazy: every reader judges it from the clock.
        None
    }
}
