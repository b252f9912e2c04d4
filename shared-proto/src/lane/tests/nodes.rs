//! What any order of events makes of a lane, on any node.

use proptest::prelude::*;

use super::super::{
    LONGEST_MS, LaneEvent, LaneOutcome, LaneRules, Offer, Signs, SlowStatus, UsageLane, Waited,
};
use super::{Desk, ROOMY, T0, signs, wall};
use crate::clock::Millis;

#[test]
fn two_nodes_that_accept_at_once_ride_one_lane() {
    let (mut one, mut other) = (Desk::default(), Desk::default());
    one.plain(wall(), T0);
    other.plain(wall(), T0.plus(40));
    let rode = other
        .lane
        .riding(T0.plus(40))
        .map(|riding| riding.resets_at);
    // The other's record lost; its request was sent on its own lane all the same.
    let event = LaneEvent::Answered {
        signs: signs(200, &[("slow-status", "active")]),
        rode,
        waited: ROOMY,
    };
    assert_eq!(one.apply(&event, T0.plus(80)), LaneOutcome::Served);
}

#[test]
fn a_late_verdict_on_an_earlier_window_ends_no_lane() {
    let mut desk = Desk::riding();
    let event = LaneEvent::Answered {
        signs: signs(429, &[("slow-status", "weekly_limit")]),
        rode: Some(T0.minus(1)),
        waited: ROOMY,
    };
    assert_eq!(desk.apply(&event, T0), LaneOutcome::Nothing);
    assert!(desk.lane.riding(T0).is_some());
}

#[test]
fn what_ended_for_one_is_not_accepted_again_for_the_next() {
    let mut desk = Desk::riding();
    let rode = desk.lane.riding(T0).map(|riding| riding.resets_at);
    let told = signs(
        429,
        &[
            ("slow-status", "off"),
            ("slow-offer", "treatment"),
            ("reset", "+3600"),
        ],
    );
    desk.slow(told, ROOMY, T0);
    let event = LaneEvent::Answered {
        signs: told,
        rode,
        waited: ROOMY,
    };
    assert_eq!(desk.apply(&event, T0.plus(1)), LaneOutcome::Nothing);
}

fn some_time() -> impl Strategy<Value = Option<Millis>> {
    proptest::option::of((0..20_000_000_000_u64).prop_map(|ms| T0.minus(5_000_000_000).plus(ms)))
}

fn some_signs() -> impl Strategy<Value = Signs> {
    let status = prop_oneof![Just(200_u16), Just(429), Just(529), Just(500)];
    let offer = prop_oneof![
        Just(None),
        Just(Some(Offer::Treatment)),
        Just(Some(Offer::Control))
    ];
    let slow = prop_oneof![
        Just(None),
        Just(Some(SlowStatus::Active)),
        Just(Some(SlowStatus::NotNeeded)),
        Just(Some(SlowStatus::SlotBusy)),
        Just(Some(SlowStatus::BudgetExhausted)),
        Just(Some(SlowStatus::Ineligible)),
    ];
    let times = (some_time(), some_time(), some_time());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (status, offer, slow, times, flags).prop_map(|(status, offer, slow, times, flags)| Signs {
        status,
        offer,
        slow,
        resets_at: times.0,
        five_hour_reset: times.1,
        budget_reset: times.2,
        rejected: flags.0,
        overage_in_use: flags.1,
        overage_status: flags.2,
        ..Signs::default()
    })
}

proptest! {
    /// Whatever is told, in whatever order: a lane has its bounds, a wait its
    /// limit, and nobody rides where nothing may be accepted.
    #[test]
    fn a_lane_keeps_its_bounds(
        events in proptest::collection::vec((some_signs(), any::<bool>(), 0..700_000_u64, 0..9_000_000_u64), 1..40)
    ) {
        let mut lane = UsageLane::default();
        let mut now = T0;
        for (signs, rides, waited, later) in events {
            now = now.plus(later);
            let rode = lane.riding(now).filter(|_| rides).map(|riding| riding.resets_at);
            let barred = lane.cooling_off(now).is_some() || lane.budget_spent(now).is_some();
            let was_riding = lane.riding(now).is_some();
            let event = LaneEvent::Answered { signs, rode, waited: Waited { ms: waited, ceiling_ms: 595_000 } };
            let step = lane.step(&event, now, &LaneRules::default());
            let again = step.state.step(&event, now, &LaneRules::default());
            if let LaneOutcome::Retry { base_ms, left_ms, .. } = step.outcome {
                prop_assert!(step.state.riding(now).is_some());
                prop_assert!(base_ms == 0 || left_ms.saturating_add(waited) <= 595_000_u64.max(waited));
            }
            lane = step.state;
            if let Some(riding) = lane.riding(now) {
                prop_assert!(was_riding || !barred);
                prop_assert!(riding.resets_at <= riding.accepted_at.plus(LONGEST_MS));
            }
            if signs.status != 200 && lane.riding(now).is_some() {
                // The same refusal told twice changes nothing more.
                prop_assert_eq!(&again.state, &lane);
            }
            prop_assert!(lane.budget_spent(now).is_none_or(|at| at <= now.plus(LONGEST_MS)));
        }
    }
}
