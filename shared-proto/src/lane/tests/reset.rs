//! The vectors LR-*: the weekly reset.

use std::sync::Arc;

use proptest::prelude::*;

use super::super::{
    EndReason, LaneEvent, LaneOutcome, LaneRules, Offered, ResetOutcome, ResetTurn, UsageLane,
    organization_of, read_claim, read_status,
};
use super::{Desk, T0, signs};
use crate::clock::Millis;

const MINUTES_15: u64 = 900_000;
const WEEK: u64 = 604_800_000;

fn claim(holder: &str) -> LaneEvent {
    LaneEvent::ClaimReset {
        holder: Arc::from(holder),
    }
}

fn ended(holder: &str, outcome: ResetOutcome, next_at: Option<Millis>) -> LaneEvent {
    LaneEvent::ResetEnded {
        holder: Arc::from(holder),
        outcome,
        next_at,
    }
}

/// When it may be asked for again after an attempt that ended so.
fn again(outcome: ResetOutcome, next_at: Option<Millis>) -> u64 {
    let mut desk = Desk::default();
    assert_eq!(
        desk.apply(&claim("a"), T0),
        LaneOutcome::Reset(ResetTurn::Claimed)
    );
    assert_eq!(
        desk.apply(&ended("a", outcome, next_at), T0),
        LaneOutcome::Noted
    );
    desk.lane.reset.not_before.unwrap().since(T0)
}

#[test]
fn lr_02_03_06_11_when_it_may_be_asked_for_again() {
    let announced = T0.plus(5000);
    let past = Some(T0.minus(1));
    for outcome in [
        ResetOutcome::Reset,
        ResetOutcome::NotLimited,
        ResetOutcome::AlreadyUsed,
    ] {
        assert_eq!(again(outcome, None), WEEK, "LR-03");
        assert_eq!(again(outcome, Some(announced)), 5000);
        assert_eq!(again(outcome, past), WEEK);
    }
    for outcome in [
        ResetOutcome::Cooldown,
        ResetOutcome::Ineligible,
        ResetOutcome::Unavailable,
        ResetOutcome::Unknown,
        ResetOutcome::NotOffered,
    ] {
        assert_eq!(again(outcome, None), MINUTES_15);
        assert_eq!(again(outcome, Some(announced)), 5000);
        assert_eq!(again(outcome, past), MINUTES_15);
    }
    for outcome in [
        ResetOutcome::RateLimited,
        ResetOutcome::AuthError,
        ResetOutcome::Error,
        ResetOutcome::StatusUnreadable,
        ResetOutcome::NoOrganization,
    ] {
        assert_eq!(again(outcome, Some(announced)), MINUTES_15, "LR-06, LR-11");
        assert!(!outcome.is_reset());
    }
    assert!(
        ResetOutcome::Reset.is_reset() && ResetOutcome::NotLimited.is_reset(),
        "LR-02"
    );
    assert!(!ResetOutcome::AlreadyUsed.is_reset(), "LR-03");
}

#[test]
fn lr_07_one_asks_and_the_others_share_what_came_of_it() {
    let mut desk = Desk::default();
    assert_eq!(
        desk.apply(&claim("a"), T0),
        LaneOutcome::Reset(ResetTurn::Claimed)
    );
    let busy = desk.apply(&claim("b"), T0.plus(1));
    let LaneOutcome::Reset(ResetTurn::Busy { until }) = busy else {
        panic!("{busy:?}");
    };
    assert!(desk.lane.reset.is_claimed(until.minus(1)) && !desk.lane.reset.is_claimed(until));
    // Nobody ends what another one claimed.
    let foreign = ended("b", ResetOutcome::Error, None);
    assert_eq!(desk.apply(&foreign, T0.plus(2)), LaneOutcome::Nothing);
    desk.apply(&ended("a", ResetOutcome::Reset, None), T0.plus(3));
    let now = T0.plus(30_003);
    assert_eq!(
        desk.apply(&claim("b"), now),
        LaneOutcome::Reset(ResetTurn::Recent),
        "LR-07"
    );
    let now = T0.plus(60_003);
    let turn = desk.apply(&claim("b"), now);
    assert!(
        matches!(turn, LaneOutcome::Reset(ResetTurn::NotBefore { .. })),
        "{turn:?}"
    );
    let turn = desk.apply(&claim("b"), T0.plus(3 + WEEK));
    assert_eq!(turn, LaneOutcome::Reset(ResetTurn::Claimed));
}

#[test]
fn a_claim_lapses() {
    let mut desk = Desk::default();
    desk.apply(&claim("b"), T0);
    let turn = desk.apply(&claim("c"), T0.plus(40_000));
    assert_eq!(turn, LaneOutcome::Reset(ResetTurn::Claimed));
}

#[test]
fn a_granted_reset_ends_the_lane() {
    let mut desk = Desk::riding();
    desk.apply(&claim("a"), T0);
    desk.apply(&ended("a", ResetOutcome::AlreadyUsed, None), T0);
    assert!(desk.lane.riding(T0).is_some());
    let mut desk = Desk::riding();
    desk.apply(&claim("a"), T0);
    desk.apply(&ended("a", ResetOutcome::NotLimited, None), T0);
    assert_eq!(desk.lane.ended(T0).unwrap().reason, EndReason::LimitReset);
}

#[test]
fn lr_05_what_is_offered() {
    let status =
        |program: &str| read_status(200, format!(r#"{{"juniper_tide": {program}}}"#).as_bytes());
    let yes = r#"{"eligible": true, "arm": "reset", "available": true}"#;
    assert_eq!(status(yes), Offered::Yes);
    for program in [
        r#"{"eligible": true, "arm": "control", "available": true}"#,
        r#"{"eligible": false, "arm": "reset", "available": true}"#,
        r#"{"eligible": true, "arm": "reset", "available": false}"#,
        r#"{"eligible": "true", "arm": "reset", "available": 1}"#,
        "null",
        "[]",
    ] {
        assert_eq!(status(program), Offered::No(None), "LR-05: {program}");
    }
    let later = r#"{"eligible": false, "next_available_at": "2030-03-17T17:46:45Z"}"#;
    assert_eq!(status(later), Offered::No(Some(T0.plus(5000))));
    assert_eq!(read_status(200, b"{}"), Offered::No(None));
    assert_eq!(read_status(500, b"{}"), Offered::Unreadable);
    assert_eq!(read_status(200, b"<html>"), Offered::Unreadable);
}

#[test]
fn what_a_claim_is_answered() {
    let claimed = |status, body: &str| read_claim(status, body.as_bytes());
    for (word, outcome) in [
        ("reset", ResetOutcome::Reset),
        ("not_limited", ResetOutcome::NotLimited),
        ("already_used", ResetOutcome::AlreadyUsed),
        ("cooldown", ResetOutcome::Cooldown),
        ("ineligible", ResetOutcome::Ineligible),
        ("unavailable", ResetOutcome::Unavailable),
        ("whatever", ResetOutcome::Unknown),
    ] {
        assert_eq!(
            claimed(200, &format!(r#"{{"result": "{word}"}}"#)),
            (outcome, None)
        );
    }
    assert_eq!(claimed(200, "nonsense"), (ResetOutcome::Unknown, None));
    assert_eq!(claimed(401, "{}"), (ResetOutcome::AuthError, None), "LR-06");
    assert_eq!(claimed(403, "{}"), (ResetOutcome::AuthError, None));
    assert_eq!(claimed(429, "{}"), (ResetOutcome::RateLimited, None));
    assert_eq!(claimed(502, "{}"), (ResetOutcome::Error, None));
    for time in ["1900000005", "1900000005000", "\"2030-03-17T17:46:45Z\""] {
        for name in ["next_available_at", "cooldown_until"] {
            let body = format!(r#"{{"result": "cooldown", "{name}": {time}}}"#);
            assert_eq!(claimed(200, &body).1, Some(T0.plus(5000)), "{body}");
        }
    }
}

#[test]
fn lr_09_only_the_five_hour_limit_is_reset() {
    let at = |headers: &[(&str, &str)]| {
        let mut all = vec![("status", "rejected")];
        all.extend(headers);
        signs(429, &all).may_be_reset()
    };
    assert!(at(&[]) && at(&[("representative-claim", "five_hour")]));
    assert!(!at(&[("representative-claim", "seven_day")]), "LR-09");
    assert!(!signs(429, &[]).may_be_reset());
    assert!(!signs(200, &[("status", "rejected")]).may_be_reset());
}

#[test]
fn organizations_that_may_stand_in_a_path() {
    let of = |body: &str| organization_of(body.as_bytes());
    let uuid = "0b1c2d3e-0000-4000-8000-00000000000a";
    let told = format!(r#"{{"oauth_account": {{"organization_uuid": "{uuid}"}}}}"#);
    assert_eq!(of(&told).as_deref(), Some(uuid));
    let told = format!(r#"{{"organization": {{"uuid": " {uuid} "}}}}"#);
    assert_eq!(of(&told).as_deref(), Some(uuid));
    for body in [
        "",
        "{}",
        r#"{"organization": {"uuid": "../x"}}"#,
        r#"{"organization_uuid": 5}"#,
    ] {
        assert_eq!(of(body), None, "{body}");
    }
}

#[test]
fn other_credentials_have_another_wall() {
    let mut desk = Desk::riding();
    desk.rules = LaneRules {
        credential: Some(2),
    };
    desk.apply(&LaneEvent::Forget, T0);
    assert!(desk.lane.riding(T0).is_none());
    let nothing = UsageLane::default().step(&LaneEvent::Forget, T0, &desk.rules);
    assert!(!nothing.changed);
}

proptest! {
    #[test]
    fn no_text_panics(status: u16, body: Vec<u8>, text: String) {
        read_status(status, &body);
        read_claim(status, &body);
        organization_of(&body);
        super::Signs::read(status, |_| Some(&text));
    }
}
