//! What a subscription account does at the wall of its five-hour limit: it goes
//! on in the upstream's low-priority lane, or has its limit reset once a week.
//!
//! Both need the operator's word for each connection. The record is shared, so
//! that an offer accepted on one node is ridden by all.
//!
//! # The lane
//!
//! A refusal at the wall that offers the lane is accepted: until the announced
//! reset, and [`GRACE_MS`] beyond it, requests carry the slow header. The answers
//! to those keep the lane, ask to wait, or end it. An answer speaks of the lane
//! that its request was sent on, told apart by the window's end; one that was
//! sent without the header only asks to be sent again, on the lane.
//!
//! # The reset
//!
//! One holder in the cluster asks for it at a time; how that ended, and when it
//! may be asked for again, is remembered here ([`ResetMemo`]).

mod event;
mod reset;
mod signs;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::mirror::key;
use crate::mirror::record::Body;

pub use event::{EndReason, LaneEvent, LaneOutcome, LaneRules, ResetTurn, Step, Via, Waited};
pub use reset::{
    Offered, ResetMemo, ResetOutcome, organization_of, read_claim, read_status, usable_organization,
};
pub use signs::{Offer, Signs, SlowStatus};

/// A lane is ridden this long after the announced reset, ms.
pub const GRACE_MS: u64 = 60_000;
/// No offer is taken for this long after waiting on the lane was in vain, ms.
pub const COOL_OFF_MS: u64 = 600_000;
/// A spent budget and a lane are believed for this long at most, ms.
pub const LONGEST_MS: u64 = 8 * 86_400_000;
/// Wait on the lane where the upstream asks for none, ms.
pub const RETRY_AFTER_MS: u64 = 20_000;
/// Longest wait of one request where the upstream says nothing, ms.
pub const MAX_WAIT_MS: u64 = 1_200_000;

/// What is known of a connection's wall. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsageLane {
    riding: Option<Riding>,
    cooling_off_until: Option<Millis>,
    budget_spent_until: Option<Millis>,
    ended: Option<Ended>,
    /// What is known of the weekly reset.
    pub reset: ResetMemo,
    /// Of which credential all this is.
    pub credential: Option<u64>,
}

/// A lane that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Riding {
    /// When the limit ends, as announced.
    pub resets_at: Millis,
    /// When the offer was accepted.
    pub accepted_at: Millis,
    /// Answers on the lane.
    pub served: u64,
    /// Answers that needed no lane.
    pub served_standard: u64,
    /// Wait that the upstream asks for, ms, within its bounds.
    pub retry_after_ms: Option<u64>,
    /// Longest wait that it allows, ms, within its bounds.
    pub max_wait_ms: Option<u64>,
}

/// How the last lane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Why.
    pub reason: EndReason,
    /// When.
    pub at: Millis,
}

// === reading ===

impl UsageLane {
    /// The lane that a request sent at `now` rides, if there is one.
    pub fn riding(&self, now: Millis) -> Option<&Riding> {
        let riding = self.riding.as_ref()?;
        (now < riding.resets_at.plus(GRACE_MS)).then_some(riding)
    }

    /// Until when no offer is taken because waiting was in vain.
    pub fn cooling_off(&self, now: Millis) -> Option<Millis> {
        self.cooling_off_until.filter(|until| *until > now)
    }

    /// Until when no offer is taken because the lane's budget is spent.
    pub fn budget_spent(&self, now: Millis) -> Option<Millis> {
        self.budget_spent_until.filter(|until| *until > now)
    }

    /// How the last lane ended; one that lapsed ended by its window's reset.
    pub fn ended(&self, now: Millis) -> Option<Ended> {
        match self.riding {
            Some(_) if self.riding(now).is_some() => None,
            Some(riding) => Some(Ended {
                reason: EndReason::Reset,
                at: riding.resets_at.plus(GRACE_MS),
            }),
            None => self.ended,
        }
    }
}

// === events ===

/// An answer as the machine judges it.
#[derive(Clone, Copy)]
struct Answer<'e> {
    signs: &'e Signs,
    /// The end of the window whose lane its request was sent on.
    rode: Option<Millis>,
    waited: Waited,
    now: Millis,
}

impl UsageLane {
    /// Applies one event. Total: any state, event and time give a result.
    #[must_use]
    pub fn step(&self, event: &LaneEvent, now: Millis, rules: &LaneRules) -> Step {
        let mut next = self.clone();
        next.lapse(now);
        let outcome = match event {
            LaneEvent::Answered {
                signs,
                rode,
                waited,
            } => next.answered(Answer {
                signs,
                rode: *rode,
                waited: *waited,
                now,
            }),
            LaneEvent::ClaimReset { holder } => LaneOutcome::Reset(next.reset.claim(holder, now)),
            LaneEvent::ResetEnded {
                holder,
                outcome,
                next_at,
            } => next.reset_ended(holder, (*outcome, *next_at), now),
            LaneEvent::Forget => {
                let known = self.credential;
                let other = known.is_some() && known != rules.credential;
                next = Self {
                    credential: if other { None } else { known },
                    ..Self::default()
                };
                LaneOutcome::Nothing
            }
        };
        let changed = next != *self;
        if changed {
            next.credential = rules.credential;
        }
        Step {
            state: next,
            changed,
            outcome,
        }
    }

    /// A lane whose window is over has ended.
    fn lapse(&mut self, now: Millis) {
        self.ended = self.ended(now);
        if self.riding(now).is_none() {
            self.riding = None;
        }
    }

    fn answered(&mut self, answer: Answer<'_>) -> LaneOutcome {
        let Some(riding) = self.riding else {
            return self.offered(answer);
        };
        if answer.rode != Some(riding.resets_at) {
            return if answer.signs.is_refusal_at_the_wall() {
                at_once(Via::LowPriorityAccepted)
            } else {
                LaneOutcome::Nothing
            };
        }
        self.verdict(riding, answer)
    }

    /// No lane is ridden: an offer may be taken.
    fn offered(&mut self, answer: Answer<'_>) -> LaneOutcome {
        let (signs, now) = (answer.signs, answer.now);
        let told = signs.slow.is_some_and(SlowStatus::ends);
        let open = signs.is_refusal_at_the_wall()
            && signs.offer == Some(Offer::Treatment)
            && self.budget_spent(now).is_none()
            && self.cooling_off(now).is_none()
            && !(answer.rode.is_some() && told);
        let resets_at = signs.resets_at.or(signs.five_hour_reset);
        let Some(resets_at) = resets_at.filter(|at| open && *at > now) else {
            return LaneOutcome::Nothing;
        };
        self.riding = Some(Riding {
            resets_at: resets_at.min(now.plus(LONGEST_MS)),
            accepted_at: now,
            served: 0,
            served_standard: 0,
            retry_after_ms: None,
            max_wait_ms: None,
        });
        self.ended = None;
        at_once(Via::LowPriorityAccepted)
    }

    /// What the answer to a request on the lane says of it.
    fn verdict(&mut self, mut riding: Riding, answer: Answer<'_>) -> LaneOutcome {
        let (signs, now) = (answer.signs, answer.now);
        riding.retry_after_ms = signs.retry_after_ms.or(riding.retry_after_ms);
        riding.max_wait_ms = signs.max_wait_ms.or(riding.max_wait_ms);
        self.riding = Some(riding);
        if signs.slow == Some(SlowStatus::Ineligible) && signs.overage_in_use {
            return self.end(EndReason::ExtraUsage, now);
        }
        let renewed = riding.resets_at.plus(GRACE_MS);
        if signs.five_hour_reset.is_some_and(|at| at >= renewed) {
            return self.end(EndReason::Reset, now);
        }
        match (signs.status, signs.slow) {
            (200..300, Some(SlowStatus::Active)) => {
                riding.served = riding.served.saturating_add(1);
                self.riding = Some(riding);
                LaneOutcome::Served
            }
            (200..300, Some(SlowStatus::NotNeeded)) => {
                riding.served_standard = riding.served_standard.saturating_add(1);
                self.riding = Some(riding);
                LaneOutcome::Served
            }
            (429, Some(SlowStatus::SlotBusy)) => self.busy(riding, Via::SlotBusy, answer),
            (529, None | Some(SlowStatus::Active)) => self.busy(riding, Via::CapacityBusy, answer),
            (429, Some(SlowStatus::WeeklyLimit)) => self.end(EndReason::Weekly, now),
            (429, Some(SlowStatus::BudgetExhausted)) => {
                let spent = signs.budget_reset.or(signs.seven_day_reset);
                let spent = spent.filter(|at| *at > now).unwrap_or(riding.resets_at);
                self.budget_spent_until = Some(spent.min(now.plus(LONGEST_MS)));
                self.end(EndReason::Budget, now)
            }
            (429, Some(SlowStatus::Off)) => self.end(EndReason::Off, now),
            (429, Some(SlowStatus::Ineligible)) => self.end(EndReason::Ineligible, now),
            (429, None) if signs.claim.is_some() || signs.overage_status => {
                self.end(EndReason::Wall, now)
            }
            _ => LaneOutcome::Nothing,
        }
    }

    fn busy(&mut self, riding: Riding, via: Via, answer: Answer<'_>) -> LaneOutcome {
        let max_wait = riding.max_wait_ms.unwrap_or(MAX_WAIT_MS);
        let limit = max_wait.min(answer.waited.ceiling_ms);
        let left_ms = limit.saturating_sub(answer.waited.ms);
        if left_ms == 0 {
            self.cooling_off_until = Some(answer.now.plus(COOL_OFF_MS));
            return self.end(EndReason::MaxWait, answer.now);
        }
        LaneOutcome::Retry {
            via,
            base_ms: riding.retry_after_ms.unwrap_or(RETRY_AFTER_MS),
            left_ms,
        }
    }

    fn end(&mut self, reason: EndReason, now: Millis) -> LaneOutcome {
        self.riding = None;
        self.ended = Some(Ended { reason, at: now });
        LaneOutcome::Ended(reason)
    }

    fn reset_ended(
        &mut self,
        holder: &str,
        (outcome, next_at): (ResetOutcome, Option<Millis>),
        now: Millis,
    ) -> LaneOutcome {
        if !self.reset.end(holder, outcome, next_at, now) {
            return LaneOutcome::Nothing;
        }
        if outcome.is_reset() && self.riding.is_some() {
            // The account is as fast as ever: nothing is sent slowly any more.
            self.end(EndReason::LimitReset, now);
        }
        LaneOutcome::Noted
    }
}

const fn at_once(via: Via) -> LaneOutcome {
    LaneOutcome::Retry {
        via,
        base_ms: 0,
        left_ms: 0,
    }
}

/// A wait of `base_ms`, give or take 30 %, by where `per_mille` is between 0 and
/// 1000; at most `left_ms`.
pub fn delay_ms(base_ms: u64, per_mille: u64, left_ms: u64) -> u64 {
    let share = per_mille.min(1000).saturating_mul(6);
    let factor = share.checked_div(10).unwrap_or(0).saturating_add(700);
    let delay = base_ms.saturating_mul(factor).checked_div(1000);
    delay.unwrap_or(base_ms).min(left_ms)
}

impl Body for UsageLane {
    const KIND: &'static str = key::LANE;
    const VERSION: u16 = 1;
}
