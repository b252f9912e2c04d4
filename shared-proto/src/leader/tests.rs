//! The election: single steps, random histories, and every history of a small
//! world.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "small numbers chosen by the tests"
)]

mod explore;
mod properties;
mod store;

use super::*;
use crate::mirror::Unreachable;
use store::Store;

/// 2026-10-01T12:00:00Z.
const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);
const LEASE: u64 = MIN_LEASE_MS;

fn candidate(name: &str) -> Election {
    Election::new(name, u64::from(name.as_bytes()[0]), LEASE)
}

/// Lets one go on until it waits.
fn settle(one: &mut Election, store: &mut Store) -> Millis {
    for _ in 0..8 {
        match one.next(store.now) {
            Step::Look => one.found(store.load().as_ref(), store.now),
            Step::Write(transaction) => {
                let outcome = store.apply(&transaction);
                one.answered(outcome, store.now, store.now);
            }
            Step::Wait(at) => return at,
        }
    }
    panic!("it does not come to rest: {one:?}");
}

fn written(step: Step) -> Transaction {
    match step {
        Step::Write(transaction) => transaction,
        Step::Look | Step::Wait(_) => panic!("{step:?}"),
    }
}

#[test]
fn the_first_to_come_leads_and_renews_at_a_third() {
    let (mut a, mut store) = (candidate("a"), Store::new(T0));
    assert_eq!((a.next(T0), a.epoch()), (Step::Look, 0));
    assert_eq!(settle(&mut a, &mut store), T0.plus(LEASE / 3));
    assert!(a.leads(T0));
    let epoch = store.load().unwrap().revision.number();
    assert_eq!(a.epoch(), epoch);
    let before = a.fence(T0).unwrap();
    assert!(store.holds(&before));
    store.now = T0.plus(LEASE / 3);
    settle(&mut a, &mut store);
    let leader = store.leader().unwrap();
    assert_eq!(leader.expires, store.now.plus(LEASE));
    assert_eq!(leader.epoch, epoch, "renewed, not claimed again");
    assert!(!store.holds(&before) && store.holds(&a.fence(store.now).unwrap()));
}

#[test]
fn the_other_stands_by_and_takes_over_when_the_lease_is_over() {
    let (mut a, mut b, mut store) = (candidate("a"), candidate("b"), Store::new(T0));
    settle(&mut a, &mut store);
    assert_eq!(settle(&mut b, &mut store), T0.plus(LEASE / 3));
    assert!(!b.leads(T0) && b.fence(T0).is_none());
    assert_eq!(b.leader().unwrap().holder, "a");
    assert_eq!(b.epoch(), a.epoch());
    store.now = T0.plus(LEASE - 1);
    assert_eq!(settle(&mut b, &mut store), T0.plus(LEASE), "to the moment");
    store.now = T0.plus(LEASE);
    settle(&mut b, &mut store);
    assert!(b.leads(store.now) && b.epoch() > a.epoch());
    // The former one still has its guard, and it is worth nothing.
    assert!(!store.holds(&guard(Revision::new(1))));
    settle(&mut a, &mut store);
    assert!(!a.leads(store.now));
    assert_eq!(a.epoch(), b.epoch());
}

#[test]
fn a_leader_stops_believing_before_its_lease_is_over() {
    let (mut a, mut store) = (candidate("a"), Store::new(T0));
    settle(&mut a, &mut store);
    let last = T0.plus(LEASE - SLACK_MS - 1);
    assert!(a.leads(last) && a.fence(last).is_some());
    assert!(!a.leads(last.plus(1)) && a.fence(last.plus(1)).is_none());
}

#[test]
fn a_thawed_leader_whose_lease_nobody_took_begins_a_new_epoch() {
    let (mut a, mut store) = (candidate("a"), Store::new(T0));
    settle(&mut a, &mut store);
    let fence = a.fence(T0).unwrap();
    store.now = T0.plus(LEASE);
    assert!(!store.holds(&fence), "expired by the store's clock");
    let renewal = written(a.next(store.now));
    assert!(
        store.apply(&renewal).is_err(),
        "what was over is not renewed"
    );
    settle(&mut a, &mut store);
    assert!(a.epoch() > fence.revision.number());
    assert!(a.leads(store.now));
}

#[test]
fn a_turn_given_back_is_free_at_once() {
    let (mut a, mut b, mut store) = (candidate("a"), candidate("b"), Store::new(T0));
    assert_eq!(b.resign(T0), None);
    settle(&mut a, &mut store);
    store.apply(&a.resign(T0).unwrap()).unwrap();
    settle(&mut b, &mut store);
    assert!(b.leads(T0));
    assert!(b.epoch() > a.epoch(), "of the same moment, yet above");
}

#[test]
fn without_an_answer_it_looks_again_and_knows_its_own() {
    let unanswered = || Err(TransactError::Unreachable(Unreachable("away".into())));
    let (mut a, mut store) = (candidate("a"), Store::new(T0));
    a.found(None, T0);
    let claim = written(a.next(T0));
    store.apply(&claim).unwrap();
    a.answered(unanswered(), T0, T0);
    assert_eq!((a.next(T0), a.leads(T0)), (Step::Look, false));
    settle(&mut a, &mut store);
    assert!(a.leads(T0), "the claim was made after all");
    store.now = T0.plus(LEASE / 3);
    a.answered(unanswered(), T0, store.now);
    assert!(a.leads(store.now) && a.fence(store.now).is_none());
    assert_eq!(a.resign(store.now), None);
    settle(&mut a, &mut store);
    assert!(a.fence(store.now).is_some());
}

#[test]
fn a_process_of_the_same_name_is_somebody_else() {
    let (mut a, mut store) = (candidate("a"), Store::new(T0));
    settle(&mut a, &mut store);
    let mut restarted = Election::new("a", 7, LEASE);
    settle(&mut restarted, &mut store);
    assert!(!restarted.leads(T0) && restarted.fence(T0).is_none());
}

#[test]
fn what_is_no_lease_holds_nobody_up() {
    let mut store = Store::new(T0);
    for expires_at in [None, Some(T0.plus(MAX_LEASE_MS + 1))] {
        store.put_raw(b"\x80", 1, expires_at);
        let mut a = candidate("a");
        settle(&mut a, &mut store);
        assert!(a.leads(T0), "{expires_at:?}");
    }
    let mut a = candidate("a");
    a.unreadable(&Why::Corrupt("torn".into()), T0);
    let claim = written(a.next(T0));
    assert_eq!(claim.commits[0].expected, Expected::Corrupt);
}

#[test]
fn what_a_newer_version_wrote_is_left_alone() {
    let mut store = Store::new(T0);
    store.put_raw(b"\x80", Leader::VERSION + 1, None);
    let mut a = candidate("a");
    assert_eq!(settle(&mut a, &mut store), T0.plus(LEASE / 3));
    a.unreadable(&Why::Newer { found: 9 }, T0);
    assert_eq!(a.next(T0), Step::Wait(T0.plus(LEASE / 3)));
}

#[test]
fn a_lost_claim_does_not_bring_its_epoch_back() {
    let (mut a, mut b, mut store) = (candidate("a"), candidate("b"), Store::new(T0));
    settle(&mut a, &mut store);
    store.now = T0.plus(LEASE);
    settle(&mut b, &mut store);
    let lost = b.epoch();
    store.rewind();
    store.now = store.now.plus(1);
    let mut c = candidate("c");
    settle(&mut c, &mut store);
    assert!(c.epoch() > lost, "{} after {lost}", c.epoch());
}

#[test]
fn a_claim_that_comes_late_has_the_epoch_of_its_arrival() {
    let (mut a, mut b, mut store) = (candidate("a"), candidate("b"), Store::new(T0));
    a.found(None, T0);
    let late = written(a.next(T0));
    settle(&mut b, &mut store);
    store.rewind();
    store.apply(&late).unwrap();
    let arrived = store.leader().unwrap();
    assert!(arrived.holder == "a" && arrived.epoch > b.epoch());
    a.found(store.load().as_ref(), T0);
    assert_eq!(a.epoch(), arrived.epoch);
}

#[test]
fn leases_have_bounds() {
    assert_eq!(Election::new("a", 1, 0).beat_ms(), MIN_LEASE_MS / 3);
    assert_eq!(Election::new("a", 1, u64::MAX).beat_ms(), MAX_LEASE_MS / 3);
    // Room for two tries.
    const { assert!(SLACK_MS < MIN_LEASE_MS - 2 * (MIN_LEASE_MS / 3)) };
}
