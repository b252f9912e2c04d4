//! Tests of what is cut, and when.

use shared_proto::clock::Millis;
use shared_proto::lease::{
    End, EndReason, Flight, Found, Generation, Lease, LeaseRules, OwnerHash, Presented, Stored,
};
use shared_proto::mirror::hold::{Holder, Pool};
use shared_proto::mirror::record::Revision;
use tokio::sync::watch::{self, Receiver};

use super::{Flights, Judged};

const GRACE_MS: u64 = 2_000;
const ENDS_AT: u64 = 100_000;

fn at(ms: u64) -> Millis {
    Millis::from_epoch_ms(ms)
}

fn rules(grace_ms: u64) -> LeaseRules {
    LeaseRules::new(120_000, grace_ms, 0)
}

fn generation() -> Generation {
    Generation::new(7).unwrap()
}

fn found(revision: u64, change: impl FnOnce(&mut Lease)) -> Stored<Lease> {
    let mut body = Lease {
        generation: generation(),
        api_key: "team".into(),
        provider: "acme".into(),
        connection: "a".into(),
        acquired_at: at(1_000),
        renewed_at: at(1_000),
        expires_at: at(ENDS_AT),
        end: None,
    };
    change(&mut body);
    Stored::Found(Found {
        revision: Revision::new(revision),
        written_at: at(1_000),
        body,
    })
}

fn holder(name: &str) -> Holder {
    Holder(name.into())
}

/// One request, which passed the fence at 10 000 with revision 5.
fn one(lease: Stored<Lease>, grace_ms: u64) -> (Flights, Receiver<bool>) {
    let mut flights = Flights::new(lease, rules(grace_ms));
    let lost = enter(&mut flights, "one");
    (flights, lost)
}

fn enter(flights: &mut Flights, name: &str) -> Receiver<bool> {
    let (sender, lost) = watch::channel(false);
    let flight = Flight {
        presented: Presented {
            owner: OwnerHash::parse(&"0".repeat(64)).unwrap(),
            generation: generation(),
            api_key: "team".into(),
        },
        connection: "a".into(),
        revision: Revision::new(5),
        granted_until: at(ENDS_AT),
        passed_at: at(10_000),
    };
    flights.enter(holder(name), flight, sender);
    lost
}

#[test]
fn it_goes_on_while_the_store_confirms_it_and_no_longer() {
    let (mut flights, lost) = one(found(5, |_| ()), GRACE_MS);
    assert_eq!(flights.judge(at(11_999)).next, Some(at(12_000)));
    flights.answered(found(5, |_| ()), at(11_500), flights.heard());
    assert_eq!(flights.judge(at(13_499)).next, Some(at(13_500)));
    assert!(!*lost.borrow());
    assert_eq!(flights.judge(at(13_500)), Judged { cut: 1, next: None });
    assert!(*lost.borrow());
    // Told once; its place is kept no longer, and given back when it leaves.
    assert_eq!(flights.judge(at(13_501)).cut, 0);
    assert!(flights.places().is_empty());
    let place = flights.leave(&holder("one")).unwrap();
    assert_eq!(place.pool, Pool::Leased("a".into()));
    assert!(flights.is_empty());
}

#[test]
fn every_end_of_the_lease_cuts_it() {
    type Change = fn(&mut Lease);
    let end = |lease: &mut Lease| {
        lease.end = Some(End {
            reason: EndReason::OwnerExit,
            at: at(10_500),
        });
    };
    let changes: [Change; 4] = [
        end,
        |lease| lease.connection = "b".into(),
        |lease| lease.generation = Generation::new(8).unwrap(),
        |lease| lease.expires_at = at(10_600),
    ];
    for change in changes {
        let (mut flights, lost) = one(found(5, |_| ()), GRACE_MS);
        flights.learn(found(6, change), None);
        flights.judge(at(10_600));
        assert!(*lost.borrow());
    }
    let (mut flights, lost) = one(found(5, |_| ()), GRACE_MS);
    flights.learn(Stored::Unreadable, None);
    flights.judge(at(10_600));
    assert!(*lost.borrow());
}

#[test]
fn a_renewal_lets_it_go_on() {
    let (mut flights, lost) = one(found(5, |_| ()), GRACE_MS);
    flights.learn(found(6, |lease| lease.expires_at = at(200_000)), None);
    flights.answered(
        found(6, |lease| lease.expires_at = at(200_000)),
        at(ENDS_AT),
        flights.heard(),
    );
    assert_eq!(flights.judge(at(ENDS_AT + 1)).cut, 0);
    assert!(!*lost.borrow());
}

#[test]
fn what_was_known_before_the_fence_cuts_nothing() {
    // The lease was acquired elsewhere, and the table has not heard of it.
    for known in [
        Stored::Absent,
        found(3, |lease| lease.connection = "b".into()),
    ] {
        let (mut flights, lost) = one(known, GRACE_MS);
        assert_eq!(flights.judge(at(10_500)).cut, 0);
        // A snapshot from before says nothing either, one from after does.
        flights.learn(Stored::Absent, Some(at(9_000)));
        assert_eq!(flights.judge(at(10_501)).cut, 0);
        assert!(!*lost.borrow());
        flights.learn(Stored::Absent, Some(at(10_400)));
        assert_eq!(flights.judge(at(10_502)).cut, 1);
    }
}

#[test]
fn an_answer_that_was_overtaken_changes_nothing() {
    let (mut flights, lost) = one(found(5, |_| ()), GRACE_MS);
    let heard = flights.heard();
    flights.learn(found(7, |lease| lease.connection = "b".into()), None);
    flights.answered(found(5, |_| ()), at(10_100), heard);
    flights.judge(at(10_200));
    assert!(*lost.borrow(), "the older answer brought the lease back");
}

#[test]
fn a_store_that_went_back_is_believed() {
    let (mut flights, lost) = one(found(9, |_| ()), GRACE_MS);
    flights.answered(Stored::Absent, at(10_100), flights.heard());
    flights.judge(at(10_200));
    assert!(*lost.borrow());
}

#[test]
fn the_grace_has_a_floor_and_the_questions_fit_into_it() {
    let (flights, _lost) = one(found(5, |_| ()), 0);
    assert_eq!(flights.judge(at(10_999)).next, Some(at(11_000)));
    for grace_ms in [0, 1_000, 2_000, 60_000] {
        let (flights, _lost) = one(found(5, |_| ()), grace_ms);
        let every = u64::try_from(flights.ask_every().as_millis()).unwrap();
        assert!((100..=1_000).contains(&every) && every * 4 <= grace_ms.max(1_000));
    }
}

#[test]
fn it_knows_when_its_lease_is_over_by_itself() {
    let (flights, _lost) = one(found(5, |_| ()), GRACE_MS);
    assert_eq!(flights.active_until(at(10_000)), Some(at(ENDS_AT)));
    assert_eq!(flights.active_until(at(ENDS_AT)), None);
    let (flights, _lost) = one(Stored::Absent, GRACE_MS);
    assert_eq!(flights.active_until(at(10_000)), None);
}
