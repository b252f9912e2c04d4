//! Tests of the lane: each row of its table, and what several nodes make of it.

mod nodes;
mod reset;
mod vectors;

use super::{LaneEvent, LaneOutcome, LaneRules, Signs, UsageLane, Waited};
use crate::clock::Millis;

/// A Tuesday noon, for example.
const T0: Millis = Millis::from_epoch_ms(1_900_000_000_000);
/// No request has less time.
const ROOMY: Waited = Waited {
    ms: 0,
    ceiling_ms: 595_000,
};

/// Signs of an answer of `status`; headers are named without their common prefix,
/// and a value `+N` is a time `N` seconds after [`T0`].
fn signs(status: u16, headers: &[(&str, &str)]) -> Signs {
    let values: Vec<(&str, String)> = headers
        .iter()
        .map(|(name, value)| {
            let value = value.strip_prefix('+').map_or_else(
                || (*value).to_owned(),
                |seconds| {
                    let seconds: u64 = seconds.parse().unwrap();
                    let at = T0.plus(seconds.saturating_mul(1000)).as_epoch_ms();
                    at.div_euclid(1000).to_string()
                },
            );
            (*name, value)
        })
        .collect();
    Signs::read(status, |name| {
        let found = values.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.as_str())
    })
}

/// A refusal at the wall that offers the lane until an hour after [`T0`].
fn wall() -> Signs {
    signs(
        429,
        &[
            ("status", "rejected"),
            ("slow-offer", "treatment"),
            ("reset", "+3600"),
        ],
    )
}

/// A connection at its wall.
#[derive(Default)]
struct Desk {
    lane: UsageLane,
    rules: LaneRules,
}

impl Desk {
    /// One that rides the lane until an hour after [`T0`].
    fn riding() -> Self {
        let mut desk = Self::default();
        desk.plain(wall(), T0);
        assert!(desk.lane.riding(T0).is_some());
        desk
    }

    fn apply(&mut self, event: &LaneEvent, now: Millis) -> LaneOutcome {
        let step = self.lane.step(event, now, &self.rules);
        assert_eq!(step.changed, step.state != self.lane);
        self.lane = step.state;
        step.outcome
    }

    /// The answer to a request that was sent without the slow header.
    fn plain(&mut self, signs: Signs, now: Millis) -> LaneOutcome {
        let event = LaneEvent::Answered {
            signs,
            rode: None,
            waited: ROOMY,
        };
        self.apply(&event, now)
    }

    /// The answer to a request on the lane, which waited for `ms` of `ceiling_ms`.
    fn slow(&mut self, signs: Signs, waited: Waited, now: Millis) -> LaneOutcome {
        let event = LaneEvent::Answered {
            signs,
            rode: self.lane.riding(now).map(|riding| riding.resets_at),
            waited,
        };
        self.apply(&event, now)
    }
}
