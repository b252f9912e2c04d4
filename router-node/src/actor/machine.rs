//! What a state machine has to offer so that an [`super::owner::Owner`] can run it.

use shared_proto::breaker::{BreakerEvent, BreakerOutcome, BreakerRules, ProviderBreaker};
use shared_proto::clock::Millis;
use shared_proto::egress::Observations;
use shared_proto::gate::{GateEvent, GateOutcome, GateRules, ProviderGate};
use shared_proto::health::{self, ConnectionHealth};
use shared_proto::lane::{LaneEvent, LaneOutcome, LaneRules, UsageLane};
use shared_proto::lockout::{self, LockoutEvent, LockoutRules, ModelLockouts};
use shared_proto::mirror::record::Body;
use shared_proto::step::Step;
use shared_proto::tools::{Learned, ToolLimit};

/// A pure machine whose state is mirrored.
pub(crate) trait Machine: Body + Clone + Default + PartialEq + Unpin + 'static {
    /// What happens to it.
    type Event: Clone + Send + Unpin + 'static;
    /// The numbers it obeys.
    type Rules: Clone + Send + Unpin + 'static;
    /// What a step tells whoever reported the event.
    type Outcome: Clone + Send + Unpin + 'static;

    /// The next state, whether it differs, and what the reporter is told.
    fn apply(
        &self,
        event: &Self::Event,
        now: Millis,
        rules: &Self::Rules,
    ) -> Step<Self, Self::Outcome>;

    /// The next time after `now` at which the state reads differently by itself;
    /// none where every reader judges its ends from the clock.
    fn wakes_at(&self, _now: Millis) -> Option<Millis> {
        None
    }

    /// What has to happen to a state that a starting owner finds in the store,
    /// because of the rules it starts with.
    fn on_found(&self, _rules: &Self::Rules) -> Option<Self::Event> {
        None
    }

    /// Whether the event changes nothing on a state that knows it already, so
    /// that it may be applied again where nobody can tell whether it is known.
    fn may_repeat(event: &Self::Event) -> bool;
}

/// Whether both are known and not the same.
fn differ<T: PartialEq>(found: Option<T>, own: Option<T>) -> bool {
    found.zip(own).is_some_and(|(found, own)| found != own)
}

impl Machine for ConnectionHealth {
    type Event = health::HealthEvent;
    type Rules = health::HealthRules;
    type Outcome = health::Outcome;

    fn apply(
        &self,
        event: &Self::Event,
        now: Millis,
        rules: &Self::Rules,
    ) -> Step<Self, Self::Outcome> {
        let step = self.step(event, now, rules);
        Step {
            state: step.state,
            changed: step.changed,
            outcome: step.outcome,
        }
    }

    fn wakes_at(&self, now: Millis) -> Option<Millis> {
        self.deadline(now)
    }

    fn on_found(&self, rules: &Self::Rules) -> Option<Self::Event> {
        // The failures were those of another credential.
        differ(self.credential, rules.credential).then_some(health::HealthEvent::CredentialsChanged)
    }

    fn may_repeat(event: &Self::Event) -> bool {
        match event {
            health::HealthEvent::Failed { .. }
            | health::HealthEvent::Counted { .. }
            | health::HealthEvent::KeyRefused { .. }
            | health::HealthEvent::KeyAccepted { .. }
            | health::HealthEvent::Succeeded { .. }
            | health::HealthEvent::Retried { .. }
            | health::HealthEvent::LimitedAt { .. }
            | health::HealthEvent::SiblingLimited(_)
            | health::HealthEvent::Withheld(_) => true,
            // It would forget what was counted since.
            health::HealthEvent::Reset | health::HealthEvent::CredentialsChanged => false,
        }
    }
}

impl Machine for ModelLockouts {
    type Event = LockoutEvent;
    type Rules = LockoutRules;
    type Outcome = lockout::Outcome;

    fn apply(
        &self,
        event: &Self::Event,
        now: Millis,
        rules: &Self::Rules,
    ) -> Step<Self, Self::Outcome> {
        self.step(event, now, rules)
    }

    fn may_repeat(event: &Self::Event) -> bool {
        match event {
            LockoutEvent::Failed { .. }
            | LockoutEvent::Succeeded { halve: false, .. }
            | LockoutEvent::Withheld { .. }
            | LockoutEvent::Looking { .. }
            | LockoutEvent::Freed(_) => true,
            // It halves each time, or forgets what was counted since.
            LockoutEvent::Succeeded { halve: true, .. } | LockoutEvent::Clear { .. } => false,
        }
    }
}

/// What a node saw replaces what it saw before.
impl Machine for Observations {
    type Event = Self;
    type Rules = ();
    type Outcome = ();

    fn apply(&self, event: &Self, _: Millis, (): &()) -> Step<Self, Self::Outcome> {
        Step {
            changed: event != self,
            state: event.clone(),
            outcome: (),
        }
    }

    fn may_repeat(_: &Self) -> bool {
        true
    }
}

impl Machine for UsageLane {
    type Event = LaneEvent;
    type Rules = LaneRules;
    type Outcome = LaneOutcome;

    fn apply(
        &self,
        event: &Self::Event,
        now: Millis,
        rules: &Self::Rules,
    ) -> Step<Self, Self::Outcome> {
        self.step(event, now, rules)
    }

    fn on_found(&self, rules: &Self::Rules) -> Option<Self::Event> {
        // It was the wall of another account.
        differ(self.credential, rules.credential).then_some(LaneEvent::Forget)
    }

    fn may_repeat(event: &Self::Event) -> bool {
        match event {
            // A served request would be counted twice.
            LaneEvent::Answered { signs, .. } => !(200..300).contains(&signs.status),
            LaneEvent::ClaimReset { .. } | LaneEvent::ResetEnded { .. } => true,
            // It would forget what is known since.
            LaneEvent::Forget => false,
        }
    }
}

impl Machine for ToolLimit {
    type Event = Learned;
    type Rules = ();
    type Outcome = ();

    fn apply(&self, event: &Self::Event, _: Millis, (): &Self::Rules) -> Step<Self, Self::Outcome> {
        let (state, changed) = self.step(*event);
        Step {
            state,
            changed,
            outcome: (),
        }
    }

    fn may_repeat(_: &Self::Event) -> bool {
        true
    }
}

impl Machine for ProviderBreaker {
    type Event = BreakerEvent;
    type Rules = BreakerRules;
    type Outcome = BreakerOutcome;

    fn apply(
        &self,
        event: &Self::Event,
        now: Millis,
        rules: &Self::Rules,
    ) -> Step<Self, Self::Outcome> {
        self.step(event, now, rules)
    }

    fn may_repeat(event: &Self::Event) -> bool {
        match event {
            BreakerEvent::Failed { .. }
            | BreakerEvent::Succeeded {
                probe_generation: Some(_),
                ..
            }
            | BreakerEvent::ClaimProbe
            | BreakerEvent::ReleaseProbe { .. } => true,
            // It takes one off each time, or forgets what was counted since.
            // Without it one failure more stands, which is the safe side.
            BreakerEvent::Succeeded {
                probe_generation: None,
                ..
            }
            | BreakerEvent::Reset => false,
        }
    }
}

impl Machine for ProviderGate {
    type Event = GateEvent;
    type Rules = GateRules;
    type Outcome = GateOutcome;

    fn apply(
        &self,
        event: &Self::Event,
        now: Millis,
        rules: &Self::Rules,
    ) -> Step<Self, Self::Outcome> {
        self.step(event, now, rules)
    }

    fn may_repeat(event: &Self::Event) -> bool {
        match event {
            GateEvent::Failed { .. } | GateEvent::Succeeded { .. } => true,
            // It would forget what was counted since.
            GateEvent::Reset => false,
        }
    }
}
