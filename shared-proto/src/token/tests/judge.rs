//! When tokens are refreshed, and by whom.

use proptest::prelude::*;

use super::at;
use crate::clock::Millis;
use crate::token::{
    Ask, Cause, FRESH_MS, Judgement, LEAD_MS, RefreshLock, Status, Trouble, due_at, judge, rest_ms,
};

const HOUR: u64 = 3_600_000;

fn ask(cause: Cause) -> Ask<'static> {
    Ask {
        cause,
        generation: 3,
        holder: "node-0",
        forgiven_at: None,
    }
}

/// Of generation 3, for an hour from 1,000,000 on.
fn good() -> Status {
    Status {
        generation: 3,
        expires_at: Some(at(1_000_000 + HOUR)),
        obtained_at: Some(at(1_000_000)),
        trouble: None,
    }
}

fn troubled(until: Option<u64>) -> Status {
    Status {
        trouble: Some(Trouble {
            count: 1,
            at: at(1_500_000),
            until: until.map(at),
            code: "status_503".into(),
        }),
        ..good()
    }
}

fn lock(holder: &str) -> RefreshLock {
    RefreshLock {
        holder: holder.into(),
        mark: 1,
        generation: 3,
        since: at(0),
    }
}

const EVERY: [Cause; 3] = [Cause::Ahead, Cause::Expired, Cause::Refused];

#[test]
fn tokens_are_due_a_lead_before_their_end_or_a_fifth_of_a_short_life() {
    let due = |obtained: Option<u64>, ends: Option<u64>| {
        due_at(&Status {
            expires_at: ends.map(at),
            obtained_at: obtained.map(at),
            ..Status::default()
        })
    };
    assert_eq!(due(Some(0), Some(HOUR)), Some(at(HOUR - LEAD_MS)));
    assert_eq!(due(Some(0), Some(10_000)), Some(at(8_000)));
    assert_eq!(due(Some(HOUR), Some(HOUR)), Some(at(HOUR)));
    assert_eq!(due(None, Some(HOUR)), Some(at(HOUR - LEAD_MS)));
    assert_eq!(due(None, Some(5)), Some(at(0)));
    assert_eq!(due(Some(0), None), None);
}

#[test]
fn a_refresh_has_its_time() {
    let due = 1_000_000 + HOUR - LEAD_MS;
    let of = |cause, now| judge(&good(), None, &ask(cause), at(now));
    assert_eq!(of(Cause::Ahead, due - 1), Judgement::Current);
    assert_eq!(of(Cause::Ahead, due), Judgement::Spend);
    assert_eq!(of(Cause::Expired, due), Judgement::Spend);
    assert_eq!(of(Cause::Refused, 1_000_000 + FRESH_MS), Judgement::Spend);
    assert_eq!(
        of(Cause::Refused, 1_000_000 + FRESH_MS - 1),
        Judgement::Fresh
    );
    let unknown = Status::default();
    let first = Ask {
        generation: 0,
        ..ask(Cause::Ahead)
    };
    assert_eq!(judge(&unknown, None, &first, at(9)), Judgement::Current);
}

#[test]
fn newer_tokens_than_those_in_hand_end_every_question() {
    let newer = Status {
        generation: 4,
        ..troubled(None)
    };
    for cause in EVERY {
        let found = judge(&newer, None, &ask(cause), at(u64::MAX));
        assert_eq!(found, Judgement::Current);
    }
}

#[test]
fn a_failure_is_rested_after_and_a_refusal_is_final_until_forgiven() {
    for cause in EVERY {
        let of = |status: &Status, forgiven: Option<u64>| {
            let ask = Ask {
                forgiven_at: forgiven.map(at),
                ..ask(cause)
            };
            judge(status, None, &ask, at(5_000_000))
        };
        let until = at(5_000_001);
        assert_eq!(
            of(&troubled(Some(5_000_001)), None),
            Judgement::Resting { until }
        );
        assert_eq!(of(&troubled(Some(5_000_000)), None), Judgement::Spend);
        assert_eq!(of(&troubled(None), None), Judgement::Refused);
        assert_eq!(of(&troubled(None), Some(1_499_999)), Judgement::Refused);
        assert_eq!(of(&troubled(None), Some(1_500_000)), Judgement::Spend);
    }
}

#[test]
fn one_at_a_time() {
    let now = at(5_000_000);
    let held = lock("node-1");
    let of = |lock: &RefreshLock, until: u64| {
        judge(&good(), Some((lock, at(until))), &ask(Cause::Expired), now)
    };
    let until = at(5_000_001);
    assert_eq!(of(&held, 5_000_001), Judgement::Busy { until });
    assert_eq!(of(&held, 5_000_000), Judgement::Spend);
    // Its own, from a commit that was never answered.
    assert_eq!(of(&lock("node-0"), 5_000_001), Judgement::Spend);
}

#[test]
fn rests_double_up_to_a_bound_and_obey_the_endpoint_up_to_another() {
    let own: Vec<u64> = [1, 2, 3, 4, 8, 9, 1000, u32::MAX]
        .into_iter()
        .map(|count| rest_ms(count, None))
        .collect();
    assert_eq!(
        own,
        [
            2_000, 4_000, 8_000, 16_000, 256_000, 300_000, 300_000, 300_000
        ]
    );
    assert_eq!(rest_ms(0, None), 2_000);
    assert_eq!(rest_ms(1, Some(30_000)), 30_000);
    assert_eq!(rest_ms(9, Some(30_000)), 300_000);
    assert_eq!(rest_ms(1, Some(u64::MAX)), 900_000);
}

proptest! {
    /// Whatever stands in the records: there is an answer, and nobody spends
    /// under another's lock or again after a refusal.
    #[test]
    fn it_is_total(
        generation: u64, expires: Option<u64>, obtained: Option<u64>, trouble in proptest::option::of(any::<(u32, u64, Option<u64>)>()),
        held in proptest::option::of(any::<(bool, u64)>()), asked: u64, cause in 0_usize..3, now: u64,
    ) {
        let status = Status {
            generation,
            expires_at: expires.map(at),
            obtained_at: obtained.map(at),
            trouble: trouble.map(|(count, noted, until)| Trouble {
                count, at: at(noted), until: until.map(at), code: String::new(),
            }),
        };
        let (ours, theirs) = (lock("node-0"), lock("node-1"));
        let lock = held.map(|(own, until)| (if own { &ours } else { &theirs }, at(until)));
        let ask = Ask { cause: EVERY[cause], generation: asked, holder: "node-0", forgiven_at: None };
        let now: Millis = at(now);
        let found = judge(&status, lock, &ask, now);
        if found == Judgement::Spend {
            prop_assert!(generation <= asked);
            prop_assert!(!status.is_refused(None));
            let blocked = held.is_some_and(|(own, until)| !own && at(until) > now);
            prop_assert!(!blocked);
        }
    }
}
