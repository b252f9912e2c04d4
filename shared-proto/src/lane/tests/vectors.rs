//! The vectors CL-* and the rows of the lane's table.

use super::super::{
    COOL_OFF_MS, EndReason, GRACE_MS, LONGEST_MS, LaneOutcome, Via, Waited, delay_ms,
};
use super::{Desk, ROOMY, T0, signs, wall};

const ACCEPTED: LaneOutcome = LaneOutcome::Retry {
    via: Via::LowPriorityAccepted,
    base_ms: 0,
    left_ms: 0,
};

/// The wait of a retry, drawn at `per_mille`.
fn delay(outcome: LaneOutcome, per_mille: u64) -> (Via, u64) {
    let LaneOutcome::Retry {
        via,
        base_ms,
        left_ms,
    } = outcome
    else {
        panic!("{outcome:?}");
    };
    (via, delay_ms(base_ms, per_mille, left_ms))
}

#[test]
fn cl_01_an_offer_at_the_wall_is_accepted() {
    let mut desk = Desk::default();
    assert_eq!(desk.plain(wall(), T0), ACCEPTED);
    let end = T0.plus(3_600_000);
    assert_eq!(desk.lane.riding(T0).unwrap().resets_at, end);
    assert!(desk.lane.riding(end.plus(GRACE_MS - 1)).is_some());
    assert!(desk.lane.riding(end.plus(GRACE_MS)).is_none());
    let ended = desk.lane.ended(end.plus(GRACE_MS)).unwrap();
    assert_eq!(ended.reason, EndReason::Reset);
}

#[test]
fn cl_03_09_what_is_not_accepted() {
    let not = |desk: &mut Desk, signs| {
        assert_eq!(desk.plain(signs, T0), LaneOutcome::Nothing);
        assert!(desk.lane.riding(T0).is_none());
    };
    // CL-03 and its kind: no wall, no offer, another status, no time, a past one.
    for signs in [
        signs(429, &[("retry-after", "3")]),
        signs(429, &[("status", "rejected"), ("reset", "+3600")]),
        signs(429, &[("slow-offer", "control"), ("reset", "+3600")]),
        signs(429, &[("slow-offer", "maybe"), ("reset", "+3600")]),
        signs(403, &[("slow-offer", "treatment"), ("reset", "+3600")]),
        signs(429, &[("slow-offer", "treatment")]),
        signs(429, &[("slow-offer", "treatment"), ("reset", "+0")]),
        signs(429, &[("slow-offer", "treatment"), ("reset", "-5")]),
    ] {
        not(&mut Desk::default(), signs);
    }
    let five_hours = signs(429, &[("slow-offer", "treatment"), ("5h-reset", "+60")]);
    assert_eq!(Desk::default().plain(five_hours, T0), ACCEPTED);
    // CL-09: waiting was in vain a moment ago.
    let mut desk = Desk::riding();
    let waited = Waited {
        ms: 1_200_000,
        ceiling_ms: 9_000_000,
    };
    let busy = signs(429, &[("slow-status", "slot_busy")]);
    assert_eq!(
        desk.slow(busy, waited, T0),
        LaneOutcome::Ended(EndReason::MaxWait)
    );
    not(&mut desk, wall());
    assert_eq!(desk.lane.cooling_off(T0), Some(T0.plus(COOL_OFF_MS)));
    assert_eq!(desk.plain(wall(), T0.plus(COOL_OFF_MS)), ACCEPTED);
}

#[test]
fn cl_05_06_07_busy_lanes_are_waited_for() {
    let busy = |headers: &[(&str, &str)]| {
        let mut all = vec![("slow-status", "slot_busy")];
        all.extend(headers);
        Desk::riding().slow(signs(429, &all), ROOMY, T0)
    };
    let slot = |ms| (Via::SlotBusy, ms);
    assert_eq!(
        delay(busy(&[("slow-retry-after", "20")]), 0),
        slot(14_000),
        "CL-05"
    );
    assert_eq!(
        delay(busy(&[("slow-retry-after", "1")]), 500),
        slot(5000),
        "CL-06"
    );
    assert_eq!(
        delay(busy(&[("slow-retry-after", "7200")]), 500),
        slot(595_000)
    );
    assert_eq!(
        delay(busy(&[("slow-retry-after", "-3")]), 500),
        slot(20_000)
    );
    assert_eq!(
        delay(busy(&[("slow-retry-after", "soon")]), 1000),
        slot(26_000)
    );
    assert_eq!(delay(busy(&[]), 500), slot(20_000));
    let full = Desk::riding().slow(signs(529, &[]), ROOMY, T0);
    assert_eq!(delay(full, 1000), (Via::CapacityBusy, 26_000), "CL-07");
    let full = signs(529, &[("slow-status", "active")]);
    let full = Desk::riding().slow(full, ROOMY, T0);
    assert_eq!(delay(full, 500), (Via::CapacityBusy, 20_000));
}

#[test]
fn hints_are_kept_until_another_lane_is_accepted() {
    let mut desk = Desk::riding();
    let served = signs(
        200,
        &[
            ("slow-status", "active"),
            ("slow-retry-after", "30"),
            ("slow-max-wait", "90"),
        ],
    );
    desk.slow(served, ROOMY, T0);
    let busy = signs(429, &[("slow-status", "slot_busy")]);
    assert_eq!(
        delay(desk.slow(busy, ROOMY, T0), 500),
        (Via::SlotBusy, 30_000)
    );
    let waited = Waited {
        ms: 90_000,
        ..ROOMY
    };
    assert_eq!(
        desk.slow(busy, waited, T0),
        LaneOutcome::Ended(EndReason::MaxWait)
    );
    assert_eq!(desk.plain(wall(), T0.plus(COOL_OFF_MS)), ACCEPTED);
    let now = T0.plus(COOL_OFF_MS);
    assert_eq!(
        delay(desk.slow(busy, ROOMY, now), 500),
        (Via::SlotBusy, 20_000)
    );
}

#[test]
fn cl_14_the_last_wait_is_cut_and_then_it_is_over() {
    let busy = signs(429, &[("slow-status", "slot_busy")]);
    let after = |ms, ceiling_ms| Desk::riding().slow(busy, Waited { ms, ceiling_ms }, T0);
    assert_eq!(delay(after(3000, 10_000), 500), (Via::SlotBusy, 7000));
    assert_eq!(
        after(10_000, 10_000),
        LaneOutcome::Ended(EndReason::MaxWait),
        "CL-14"
    );
    assert_eq!(after(0, 0), LaneOutcome::Ended(EndReason::MaxWait));
    // The upstream's own limit: at least a minute, at most six hours.
    let short = signs(429, &[("slow-status", "slot_busy"), ("slow-max-wait", "1")]);
    let waited = |ms| Waited {
        ms,
        ceiling_ms: u64::MAX,
    };
    assert!(matches!(
        Desk::riding().slow(short, waited(59_999), T0),
        LaneOutcome::Retry { left_ms: 1, .. }
    ));
    let long = signs(
        429,
        &[("slow-status", "slot_busy"), ("slow-max-wait", "999999")],
    );
    let outcome = Desk::riding().slow(long, waited(21_600_000), T0);
    assert_eq!(outcome, LaneOutcome::Ended(EndReason::MaxWait));
}

#[test]
fn cl_10_11_15_what_ends_a_lane() {
    let ended = |status, headers: &[(&str, &str)]| {
        let mut desk = Desk::riding();
        let outcome = desk.slow(signs(status, headers), ROOMY, T0);
        if let LaneOutcome::Ended(reason) = outcome {
            assert!(desk.lane.riding(T0).is_none());
            assert_eq!(desk.lane.ended(T0).unwrap().reason, reason);
        }
        outcome
    };
    let end = LaneOutcome::Ended;
    assert_eq!(
        ended(429, &[("slow-status", "weekly_limit")]),
        end(EndReason::Weekly)
    );
    assert_eq!(ended(429, &[("slow-status", "off")]), end(EndReason::Off));
    assert_eq!(
        ended(429, &[("slow-status", "ineligible")]),
        end(EndReason::Ineligible)
    );
    for status in [200, 429, 500] {
        let paid = [("slow-status", "ineligible"), ("overage-in-use", "true")];
        assert_eq!(ended(status, &paid), end(EndReason::ExtraUsage), "CL-11");
    }
    for told in [
        ("representative-claim", "seven_day"),
        ("overage-status", "rejected"),
    ] {
        assert_eq!(ended(429, &[told]), end(EndReason::Wall), "CL-15");
    }
    for status in [200, 429, 529] {
        let outcome = ended(status, &[("5h-reset", "+3660")]);
        assert_eq!(outcome, end(EndReason::Reset));
    }
    assert_ne!(ended(200, &[("5h-reset", "+3659")]), end(EndReason::Reset));
    let nothing = LaneOutcome::Nothing;
    assert_eq!(ended(429, &[]), nothing);
    assert_eq!(ended(429, &[("slow-status", "active")]), nothing);
    assert_eq!(ended(500, &[("slow-status", "slot_busy")]), nothing);
    assert_eq!(ended(200, &[("slow-status", "weekly_limit")]), nothing);
    assert_eq!(ended(529, &[("slow-status", "not_needed")]), nothing);
}

#[test]
fn cl_10_a_spent_budget_is_remembered() {
    let spent = |headers: &[(&str, &str)]| {
        let mut all = vec![("slow-status", "budget_exhausted")];
        all.extend(headers);
        let mut desk = Desk::riding();
        let outcome = desk.slow(signs(429, &all), ROOMY, T0);
        assert_eq!(outcome, LaneOutcome::Ended(EndReason::Budget));
        desk
    };
    let mut desk = spent(&[("slow-budget-reset", "+864000")]);
    let until = T0.plus(LONGEST_MS);
    assert_eq!(desk.lane.budget_spent(T0), Some(until), "CL-10");
    assert_eq!(desk.plain(wall(), T0.plus(1)), LaneOutcome::Nothing);
    let later = signs(429, &[("slow-offer", "treatment"), ("reset", "+9999999")]);
    assert_eq!(desk.plain(later, until), ACCEPTED);
    let seven = spent(&[("7d-reset", "+7200")]);
    assert_eq!(seven.lane.budget_spent(T0), Some(T0.plus(7_200_000)));
    // Nothing usable is said: until the lane would have ended.
    for headers in [&[][..], &[("slow-budget-reset", "+0")]] {
        let spent = spent(headers).lane.budget_spent(T0);
        assert_eq!(spent, Some(T0.plus(3_600_000)));
    }
}

#[test]
fn served_requests_are_counted() {
    let mut desk = Desk::riding();
    for (word, times) in [("active", 3), ("not_needed", 2)] {
        for _ in 0..times {
            let served = signs(200, &[("slow-status", word)]);
            assert_eq!(desk.slow(served, ROOMY, T0), LaneOutcome::Served);
        }
    }
    assert_eq!(desk.slow(signs(200, &[]), ROOMY, T0), LaneOutcome::Nothing);
    let riding = desk.lane.riding(T0).unwrap();
    assert_eq!((riding.served, riding.served_standard), (3, 2));
}

#[test]
fn cl_13_a_request_without_the_header_only_joins_the_lane() {
    let mut desk = Desk::riding();
    let before = desk.lane.clone();
    assert_eq!(desk.plain(wall(), T0.plus(1)), ACCEPTED, "CL-13");
    let rejected = signs(429, &[("status", "rejected")]);
    assert_eq!(desk.plain(rejected, T0.plus(1)), ACCEPTED);
    for ignored in [
        signs(429, &[]),
        signs(
            200,
            &[("slow-status", "active"), ("slow-retry-after", "90")],
        ),
        signs(500, &[("status", "rejected")]),
        signs(200, &[("5h-reset", "+9999")]),
    ] {
        assert_eq!(desk.plain(ignored, T0.plus(1)), LaneOutcome::Nothing);
    }
    assert_eq!(desk.lane, before);
}

#[test]
fn numbers_that_make_no_sense_are_not_there() {
    for text in [
        "",
        "-1",
        "NaN",
        "1e9",
        "+5",
        "0x10",
        "1.",
        ".5",
        "99999999999999999999999",
    ] {
        // `+` stands for a time in these tests only where digits follow it.
        let read = super::Signs::read(429, |name| (name == "slow-retry-after").then_some(text));
        assert_eq!(read.retry_after_ms, None, "{text}");
    }
    let read = |text| super::Signs::read(429, |name| (name == "slow-retry-after").then_some(text));
    assert_eq!(read("7.25").retry_after_ms, Some(7250));
    assert_eq!(read(" 30 ").retry_after_ms, Some(30_000));
    assert_eq!(read("0").retry_after_ms, Some(5000));
    let far = super::Signs::read(429, |name| {
        (name == "reset").then_some("18446744073709551615")
    });
    assert!(far.resets_at.is_some());
}
