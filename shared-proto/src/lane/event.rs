//! What happens at a connection's wall, and what comes of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ResetOutcome, Signs, UsageLane};
use crate::clock::Millis;

/// The numbers that the machine obeys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneRules {
    /// Tells the configured credential apart; another one has another wall.
    pub credential: Option<u64>,
}

/// Something that happened at the wall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneEvent {
    /// An answer came.
    Answered {
        /// What it said of the wall.
        signs: Signs,
        /// The end of the window whose lane its request was sent on; `None` for
        /// one that was sent without the slow header.
        rode: Option<Millis>,
        /// How long the request has waited.
        waited: Waited,
    },
    /// Somebody wants to ask for the weekly reset.
    ClaimReset {
        /// Who.
        holder: Arc<str>,
    },
    /// Who had claimed it is done.
    ResetEnded {
        /// Who.
        holder: Arc<str>,
        /// What came of it.
        outcome: ResetOutcome,
        /// When it may be asked for again, as announced.
        next_at: Option<Millis>,
    },
    /// Other credentials, or an operator's word: nothing of before counts.
    Forget,
}

/// How long one request has waited on the lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// So far, ms.
    pub ms: u64,
    /// At most, by the request's own time limit, ms.
    pub ceiling_ms: u64,
}

/// What an event did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOutcome {
    /// Nothing that concerns the request: it takes the ordinary way.
    Nothing,
    /// The request is sent again on the same account, after [`delay_ms`](super::delay_ms).
    Retry {
        /// Why.
        via: Via,
        /// The wait before its jitter, ms; 0 is at once.
        base_ms: u64,
        /// What is left of the request's longest wait, ms.
        left_ms: u64,
    },
    /// The request was served on the lane.
    Served,
    /// The lane ended; the answer takes the ordinary way.
    Ended(EndReason),
    /// What becomes of a claim on the reset.
    Reset(ResetTurn),
    /// Something is remembered.
    Noted,
}

/// Why a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// The lane was accepted, or is ridden by others.
    LowPriorityAccepted,
    /// The lane's slots are taken.
    SlotBusy,
    /// The upstream is overloaded.
    CapacityBusy,
    /// The limit was reset.
    LimitReset,
}

impl Via {
    /// Its word in traces and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LowPriorityAccepted => "low-priority-accepted",
            Self::SlotBusy => "slot-busy",
            Self::CapacityBusy => "capacity-busy",
            Self::LimitReset => "limit-reset",
        }
    }
}

/// Why a lane ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// Its window is over, or another one began.
    Reset,
    /// A request waited as long as it may.
    MaxWait,
    /// The weekly limit is reached.
    Weekly,
    /// The lane's own budget is spent.
    Budget,
    /// The upstream switched it off.
    Off,
    /// The account may not use it.
    Ineligible,
    /// Paid usage covers the limit now.
    ExtraUsage,
    /// Refused at the wall all the same.
    Wall,
    /// The limit itself was reset.
    LimitReset,
}

impl EndReason {
    /// Its word in traces, metrics and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::MaxWait => "max_wait",
            Self::Weekly => "weekly",
            Self::Budget => "budget",
            Self::Off => "off",
            Self::Ineligible => "ineligible",
            Self::ExtraUsage => "extra_usage",
            Self::Wall => "wall",
            Self::LimitReset => "limit_reset",
        }
    }
}

/// What becomes of a claim on the weekly reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetTurn {
    /// It was granted a moment ago: no need to ask.
    Recent,
    /// Not yet again.
    NotBefore {
        /// First moment at which it may be asked for.
        at: Millis,
    },
    /// Somebody else is asking.
    Busy {
        /// Until when that is believed.
        until: Millis,
    },
    /// The claim stands.
    Claimed,
}

/// The result of one event.
pub type Step = crate::step::Step<UsageLane, LaneOutcome>;
