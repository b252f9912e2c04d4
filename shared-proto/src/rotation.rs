//! The rotation gate: an operator's word on which failures may move a request to
//! another connection, and from how many on.
//!
//! Failures of four classes come to it after they were classified: 429, 502 (and
//! calls without any answer), every other 5xx, and a 400 that would be the
//! client's answer. Where a class is switched off, or fewer of its failures were
//! seen in its window than its threshold, the failure is *held back*: nothing
//! rests and the client hears of it. What a class of 400 lets through moves on.
//!
//! Never held back: what is final for the account, what an operator's rule has
//! decided, a local service that is not up yet, and what is the request's own.
//!
//! Counts are part of a connection's health ([`RotationCounts`]), so that all
//! nodes count together. Failures that were under way when the last was counted
//! are the same outage and count once. Where the threshold is 1 nothing is kept.

mod counts;
mod rules;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::classify;
use crate::clock::Millis;
use crate::failure::{Blame, Cooldown, Failure, Reason};

pub use counts::RotationCounts;
pub use rules::{
    ClassOverride, ClassRule, RESET_SECONDS, RotationOverrides, RotationRules, THRESHOLDS,
    WINDOW_SECONDS,
};

/// How long a connection rests for a 400 that moved on, ms.
pub const TURNED_MS: u64 = 120_000;

/// A kind of failure with a rule of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RotationClass {
    /// Too many requests, or a quota that is used up.
    #[serde(rename = "429")]
    Limited,
    /// A gateway's failure, or a call without any answer.
    #[serde(rename = "502")]
    BadGateway,
    /// Every other 5xx.
    #[serde(rename = "500")]
    Server,
    /// A refusal of the request that nobody else would be asked about.
    #[serde(rename = "400")]
    BadRequest,
}

impl RotationClass {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Limited,
        Self::BadGateway,
        Self::Server,
        Self::BadRequest,
    ];

    /// The class of a failure with `status`; `unanswered` says that the call got no answer.
    pub const fn of(status: u16, unanswered: bool) -> Option<Self> {
        match status {
            429 => Some(Self::Limited),
            502 => Some(Self::BadGateway),
            500..=599 if unanswered => Some(Self::BadGateway),
            500..=599 => Some(Self::Server),
            400 => Some(Self::BadRequest),
            _ => None,
        }
    }

    /// The word of JSON and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Limited => "429",
            Self::BadGateway => "502",
            Self::Server => "500",
            Self::BadRequest => "400",
        }
    }
}

/// What the gate made of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    /// It is the client's answer, and nothing rests.
    Held,
    /// It counts and moves on as it would without a gate.
    Passed,
    /// It moves on, and nothing rests, since nothing said until when.
    Unrested,
    /// A 400 that moves on, and its connection rests.
    Turned,
}

impl Ruling {
    /// The word of JSON and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Passed => "passed",
            Self::Unrested => "unrested",
            Self::Turned => "turned",
        }
    }
}

/// What the gate made of a failure, and why; part of a request's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Gated {
    /// Of which class it is.
    pub class: RotationClass,
    /// What comes of it.
    pub ruling: Ruling,
    /// The how manieth of its class within the window; absent where the class is switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u32>,
    /// From the how manieth on its class moves on.
    pub threshold: u32,
}

impl Gated {
    /// Whether the connection's health has to count it.
    pub const fn is_counted(&self) -> bool {
        self.nth.is_some() && self.threshold > 1
    }
}

/// A failure's attempt.
#[derive(Clone, Copy, Debug)]
pub struct Met {
    /// When it began.
    pub began: Millis,
    /// Now.
    pub now: Millis,
    /// Whether the call got no answer at all.
    pub unanswered: bool,
}

impl RotationRules {
    /// Rules on a failure of a connection that has `seen` this. Changes what comes of
    /// it; `None` where the gate has nothing to say and nothing is to be counted.
    pub fn judge(&self, failure: &mut Failure, seen: &RotationCounts, met: Met) -> Option<Gated> {
        let class = RotationClass::of(failure.status, met.unanswered)?;
        if is_exempt(failure, class) {
            return None;
        }
        let rule = self.of(class);
        let is_on = self.enabled && rule.rotate;
        let threshold = rule.threshold;
        let gated = |ruling, nth| {
            Some(Gated {
                class,
                ruling,
                nth,
                threshold,
            })
        };
        if !is_on && class == RotationClass::BadRequest {
            return None;
        }
        if !is_on {
            hold(failure);
            return gated(Ruling::Held, None);
        }
        let nth = seen.nth(class, rule.window_ms, met);
        if nth < threshold {
            hold(failure);
            return gated(Ruling::Held, Some(nth));
        }
        if class == RotationClass::BadRequest {
            self.turn(failure);
            return gated(Ruling::Turned, Some(nth));
        }
        let announced = failure.hint.as_ref().is_some_and(|hint| hint.wait_ms > 0);
        if !self.rests_without_reset && self.reset_ms == 0 && !announced {
            failure.cooldown = Cooldown::None;
            return gated(Ruling::Unrested, Some(nth));
        }
        (threshold > 1).then_some(Gated {
            class,
            ruling: Ruling::Passed,
            nth: Some(nth),
            threshold,
        })
    }

    /// A 400 that goes to another connection: this one rests.
    fn turn(&self, failure: &mut Failure) {
        failure.fallback = true;
        failure.blame = Blame::Connection;
        failure.cooldown = Cooldown::Fixed(match self.reset_ms {
            0 => TURNED_MS,
            reset => reset,
        });
    }
}

/// Whether the gate has no word in it.
fn is_exempt(failure: &Failure, class: RotationClass) -> bool {
    let own = if class == RotationClass::BadRequest {
        // It would go on without the gate, or it is somebody's fault.
        failure.fallback
    } else {
        matches!(
            failure.blame,
            Blame::Request | Blame::Client | Blame::Router
        )
    };
    own || failure.terminal.is_some()
        || failure.reason == Reason::ServiceNotRunning
        || classify::is_operators(&failure.rule)
}

/// The client hears of it, and nothing rests.
fn hold(failure: &mut Failure) {
    failure.fallback = false;
    failure.cooldown = Cooldown::None;
}
