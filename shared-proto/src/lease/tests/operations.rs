//! What each operation does, alone with the store.

use bytes::Bytes;

use super::audit::exclusive;
use super::driver::{Around, Ask, Ended, Op, run};
use super::*;
use crate::mirror::hold::Holder;
use crate::mirror::key::Key;
use crate::simulation::store::Store;

/// A store and one node.
pub(crate) struct Desk {
    pub(crate) store: Store,
    pub(crate) table: LeaseTable,
    pub(crate) rules: LeaseRules,
}

impl Desk {
    pub(crate) fn new(rules: LeaseRules) -> Self {
        Self {
            store: Store::at(T0),
            table: LeaseTable::new(),
            rules,
        }
    }

    pub(crate) fn run(&mut self, op: Op) -> Ended {
        let mut op = op;
        op.asks_at(self.store.now);
        let around = Around {
            table: &self.table,
            rules: self.rules,
        };
        let ended = run(&mut self.store, op, around);
        exclusive(&self.store).unwrap();
        ended
    }

    pub(crate) fn ask(&mut self, who: char, ask: Ask) -> Outcome {
        self.outcome(Op::new(&owner(who), ask, T0))
    }

    pub(crate) fn outcome(&mut self, op: Op) -> Outcome {
        match self.run(op) {
            Ended::With(outcome) => outcome,
            Ended::Sent(binding) => Ok(binding),
        }
    }

    pub(crate) fn acquire(&mut self, who: char, names: &[&str]) -> Outcome {
        self.ask(who, Ask::Acquire(candidates(names)))
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.store.now = self.store.now.plus(ms);
    }

    pub(crate) fn lease(&self, who: char) -> Lease {
        self.store.decoded(&owner(who).key()).unwrap()
    }

    pub(crate) fn bound(&self, connection: &str) -> Bound {
        let key = Key::Bound(ConnectionId::from(connection));
        self.store.decoded(&key).unwrap()
    }
}

fn code(outcome: Outcome) -> LeaseCode {
    outcome.unwrap_err().code().unwrap()
}

fn held(outcome: Outcome) -> (String, u64) {
    let lease = outcome.unwrap().lease;
    (lease.connection.to_string(), lease.generation.number())
}

const TTL_MS: u64 = 10_000;
const GRACE_MS: u64 = 2_000;

fn desk() -> Desk {
    Desk::new(LeaseRules::new(TTL_MS, GRACE_MS, 0))
}

#[test]
fn a_lease_from_its_grant_to_its_release() {
    let mut desk = desk();
    let granted = desk.acquire('A', &["c1", "c2"]).unwrap();
    let lease = &granted.lease;
    assert_eq!(lease.generation.number(), T0.as_epoch_ms());
    assert_eq!((lease.acquired_at, lease.expires_at), (T0, T0.plus(TTL_MS)));
    assert_eq!(lease.connection.as_str(), "c1");
    let record = desk.store.load(&owner('A').key()).unwrap();
    assert_eq!(record.revision, granted.revision);
    assert_eq!(record.expires_at, Some(lease.expires_at));
    desk.pass(4_000);
    let generation = lease.generation;
    let renewed = desk.ask('A', Ask::Renew(generation)).unwrap().lease;
    assert_eq!(
        (renewed.acquired_at, renewed.renewed_at),
        (T0, T0.plus(4_000))
    );
    assert_eq!(renewed.expires_at, T0.plus(4_000 + TTL_MS));
    assert_eq!(
        desk.ask('A', Ask::Status(generation)).unwrap().lease,
        renewed
    );
    let released = desk.ask('A', Ask::Release(generation)).unwrap().lease;
    assert_eq!(released.state(desk.store.now), LeaseState::Released);
    assert_eq!(released.expires_at, renewed.expires_at);
    let kept = desk.store.load(&owner('A').key()).unwrap().expires_at;
    assert_eq!(kept, Some(desk.store.now.plus(24 * 3_600_000)));
    // Again, after a while: the same answer.
    desk.pass(3_600_000);
    assert_eq!(
        desk.ask('A', Ask::Release(generation)).unwrap().lease,
        released
    );
    let again = desk.acquire('A', &["c1"]).unwrap().lease;
    assert!(again.generation > generation);
    assert_eq!(
        code(desk.ask('A', Ask::Release(generation))),
        LeaseCode::FenceStale
    );
}

#[test]
fn an_owner_has_one_connection_and_a_connection_one_owner() {
    let mut desk = desk();
    let first = desk.acquire('A', &["c1", "c2"]).unwrap();
    assert_eq!(desk.acquire('A', &["c2", "c1"]).unwrap(), first);
    assert_eq!(held(desk.acquire('B', &["c1", "c2"])).0, "c2");
    assert_eq!(
        code(desk.acquire('C', &["c1", "c2"])),
        LeaseCode::CapacityUnavailable
    );
}

#[test]
fn another_key_of_the_owner_is_refused_whatever_it_could_have() {
    let mut desk = desk();
    let first = desk.acquire('A', &["c1"]).unwrap();
    for names in [["c1"].as_slice(), &["c2"], &[]] {
        let ask = Ask::Acquire(candidates(names));
        let op = Op::new(&owner('A'), ask, T0).with_key("K2");
        assert_eq!(code(desk.outcome(op)), LeaseCode::FenceStale);
    }
    assert_eq!(desk.lease('A'), first.lease);
    desk.pass(TTL_MS);
    let op = Op::new(&owner('A'), Ask::Acquire(candidates(&["c2"])), T0).with_key("K2");
    let later = desk.outcome(op).unwrap().lease;
    assert!(later.generation > first.lease.generation);
}

#[test]
fn nothing_to_choose_from() {
    let mut desk = desk();
    assert_eq!(
        code(desk.acquire('A', &[])),
        LeaseCode::NoEligibleConnection
    );
    let first = desk.acquire('A', &["c1"]).unwrap();
    assert_eq!(
        code(desk.acquire('A', &[])),
        LeaseCode::NoEligibleConnection
    );
    assert_eq!(desk.lease('A'), first.lease, "an acquire ends nothing");
}

#[test]
fn an_acquire_moves_a_lease_whose_connection_is_no_longer_eligible() {
    let mut desk = desk();
    let first = desk.acquire('A', &["c1"]).unwrap().lease;
    desk.pass(1_000);
    let moved = desk.acquire('A', &["c2"]).unwrap().lease;
    assert_eq!(
        (moved.connection.as_str(), moved.generation),
        ("c2", first.generation)
    );
    assert_eq!(
        (moved.acquired_at, moved.expires_at),
        (T0.plus(1_000), T0.plus(1_000 + TTL_MS))
    );
    let end = desk.bound("c1").end.unwrap();
    assert_eq!(end.reason, EndReason::ConnectionIneligible);
    assert_eq!(end.reason.state(), LeaseState::Invalidated);
    desk.acquire('B', &["c3"]).unwrap();
    assert_eq!(
        code(desk.acquire('A', &["c3"])),
        LeaseCode::CapacityUnavailable
    );
    assert_eq!(desk.lease('A'), moved, "nothing free: it stays");
}

#[test]
fn the_wait_for_capacity() {
    let mut desk = Desk::new(LeaseRules::new(45_200, GRACE_MS, 0));
    desk.acquire('A', &["c1"]).unwrap();
    desk.pass(1_000);
    desk.acquire('B', &["c2"]).unwrap();
    let waits = |desk: &mut Desk| match desk.acquire('C', &["c2", "c1"]) {
        Err(Refusal::Capacity(capacity)) => (capacity.eligible, capacity.retry_after_s),
        other => panic!("{other:?}"),
    };
    assert_eq!(waits(&mut desk), (2, 45));
    desk.pass(44_199);
    assert_eq!(waits(&mut desk), (2, 1));
    let mut long = Desk::new(LeaseRules::new(u64::MAX, GRACE_MS, 0));
    long.acquire('A', &["c1", "c2"]).unwrap();
    long.acquire('B', &["c2"]).unwrap();
    assert_eq!(waits(&mut long), (2, 1_800));
}

#[test]
fn the_next_owner_waits_for_what_is_in_flight_but_not_for_long() {
    let mut desk = desk();
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    desk.ask('A', Ask::Dispatch(generation, candidates(&["c1"])))
        .unwrap();
    desk.ask('A', Ask::Release(generation)).unwrap();
    match desk.acquire('B', &["c1"]) {
        Err(Refusal::Capacity(capacity)) => assert_eq!(capacity.retry_after_s, 2),
        other => panic!("{other:?}"),
    }
    // The owner itself need not wait.
    let back = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    desk.ask('A', Ask::Release(back)).unwrap();
    desk.pass(GRACE_MS - 1);
    assert_eq!(
        code(desk.acquire('B', &["c1"])),
        LeaseCode::CapacityUnavailable
    );
    desk.pass(1);
    assert_eq!(held(desk.acquire('B', &["c1"])).0, "c1");
}

#[test]
fn the_next_owner_has_it_at_once_when_nothing_is_in_flight() {
    let mut desk = desk();
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    desk.ask('A', Ask::Dispatch(generation, candidates(&["c1"])))
        .unwrap();
    let c1 = ConnectionId::from("c1");
    desk.ask('A', Ask::Release(generation)).unwrap();
    desk.store.give_back(&c1, &Holder("0".into()));
    assert_eq!(held(desk.acquire('B', &["c1"])).0, "c1");
    desk.pass(TTL_MS);
    assert_eq!(held(desk.acquire('C', &["c1"])).0, "c1");
}

#[test]
fn a_lease_that_ran_out_holds_up_the_next_like_one_that_ended() {
    let mut desk = desk();
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    desk.ask('A', Ask::Dispatch(generation, candidates(&["c1"])))
        .unwrap();
    desk.pass(TTL_MS + 500);
    assert_eq!(
        code(desk.acquire('B', &["c1"])),
        LeaseCode::CapacityUnavailable
    );
    // Written down or not, the grace counts from when it ran out.
    let ended = desk.ask('A', Ask::Expire).unwrap().lease.end.unwrap();
    assert_eq!(
        (ended.reason, ended.at),
        (EndReason::TtlExpired, T0.plus(TTL_MS))
    );
    assert_eq!(desk.bound("c1").end, Some(ended));
    assert_eq!(code(desk.ask('A', Ask::Expire)), LeaseCode::Required);
    desk.pass(GRACE_MS - 500);
    assert_eq!(held(desk.acquire('B', &["c1"])).0, "c1");
}

#[test]
fn nothing_is_expired_before_its_time() {
    let mut desk = desk();
    assert_eq!(code(desk.ask('A', Ask::Expire)), LeaseCode::Required);
    desk.acquire('A', &["c1"]).unwrap();
    desk.pass(TTL_MS - 1);
    assert_eq!(code(desk.ask('A', Ask::Expire)), LeaseCode::Required);
}

#[test]
fn what_cannot_serve_a_request_moves_its_lease_or_ends_it() {
    let mut desk = desk();
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    let sent = desk.run(Op::new(
        &owner('A'),
        Ask::Dispatch(generation, candidates(&["c2"])),
        T0,
    ));
    let Ended::Sent(binding) = sent else {
        panic!("{sent:?}")
    };
    assert_eq!(binding.lease.connection.as_str(), "c2");
    assert_eq!(binding.lease.generation, generation);
    desk.acquire('B', &["c1", "c3"]).unwrap();
    let blocked = desk.ask('A', Ask::Dispatch(generation, candidates(&["c1"])));
    assert_eq!(code(blocked), LeaseCode::CapacityUnavailable);
    assert!(
        desk.lease('A').is_active(desk.store.now),
        "it waits, and keeps what it has"
    );
    let nothing = desk.ask('A', Ask::Dispatch(generation, Vec::new()));
    assert_eq!(nothing, Err(Refusal::Ordinary));
    let end = desk.lease('A').end.unwrap();
    assert_eq!(end.reason, EndReason::HealthOrCooldown);
    assert_eq!(desk.bound("c2").end, Some(end));
    let next = desk.ask('A', Ask::Dispatch(generation, candidates(&["c2"])));
    assert_eq!(code(next), LeaseCode::Required);
}

#[test]
fn what_another_request_has_moved_is_not_ended() {
    let mut desk = desk();
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    let presented = Presented {
        owner: owner('A'),
        generation,
        api_key: ApiKeyId::from("K1"),
    };
    desk.ask('A', Ask::Dispatch(generation, candidates(&["c2"])))
        .unwrap();
    let mut seen = Seen::new(&desk.table);
    let key = owner('A').key();
    seen.record(&key, desk.store.load(&key).as_ref());
    let c1 = ConnectionId::from("c1");
    let judge = |names: &[&str]| {
        let candidates = candidates(names);
        let ask = Transition {
            presented: &presented,
            from: &c1,
            reason: EndReason::ConnectionIneligible,
            candidates: &candidates,
            none: EndReason::QuotaUnavailable,
        };
        transition(&seen, &ask, &desk.rules, desk.store.now)
    };
    assert_eq!(judge(&[]), Decision::refuse(Refusal::Ordinary));
    let Decision::Done(Ok(binding)) = judge(&["c3", "c2"]) else {
        panic!("it stands where it is")
    };
    assert_eq!(binding.lease.connection.as_str(), "c2");
}

#[test]
fn an_operator_ends_the_lease_that_was_meant() {
    let mut desk = desk();
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    let next = Generation::new(generation.number() + 1).unwrap();
    assert_eq!(code(desk.ask('A', Ask::Revoke(next))), LeaseCode::Required);
    assert_eq!(
        code(desk.ask('B', Ask::Revoke(generation))),
        LeaseCode::Required
    );
    let revoked = desk.ask('A', Ask::Revoke(generation)).unwrap().lease;
    assert_eq!(revoked.end.unwrap().reason, EndReason::ManagedKeyRevoked);
    assert_eq!(
        code(desk.ask('A', Ask::Revoke(generation))),
        LeaseCode::Required
    );
    assert_eq!(
        code(desk.ask('A', Ask::Release(generation))),
        LeaseCode::FenceStale
    );
    assert_eq!(held(desk.acquire('B', &["c1"])).0, "c1");
}

#[test]
fn what_cannot_be_read_is_left_as_it_is() {
    let mut desk = desk();
    let c1 = Key::Bound(ConnectionId::from("c1"));
    desk.store.force(&c1, u16::MAX, Bytes::from_static(&[0x80]));
    assert_eq!(held(desk.acquire('A', &["c1", "c2"])).0, "c2");
    // Of several one that can be read says that waiting helps.
    match desk.acquire('B', &["c1", "c2"]) {
        Err(Refusal::Capacity(capacity)) => assert_eq!(capacity.eligible, 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        code(desk.acquire('B', &["c1"])),
        LeaseCode::ServiceUnavailable
    );
    let generation = desk.lease('A').generation;
    let c2 = Key::Bound(ConnectionId::from("c2"));
    desk.store.force(&c2, 1, Bytes::from_static(b"\xc1"));
    let around = Around {
        table: &desk.table,
        rules: desk.rules,
    };
    let op = |ask| Op::new(&owner('A'), ask, T0);
    let renewed = run(&mut desk.store, op(Ask::Renew(generation)), around);
    assert_eq!(
        renewed,
        Ended::With(Err(LeaseCode::ServiceUnavailable.into()))
    );
    let released = run(&mut desk.store, op(Ask::Release(generation)), around);
    assert!(matches!(released, Ended::With(Ok(_))), "{released:?}");
    desk.store
        .force(&owner('A').key(), u16::MAX, Bytes::from_static(&[0x80]));
    for ask in [
        Ask::Acquire(candidates(&["c3"])),
        Ask::Release(generation),
        Ask::Expire,
    ] {
        assert_eq!(code(desk.ask('A', ask)), LeaseCode::ServiceUnavailable);
    }
    let dispatched = desk.ask('A', Ask::Dispatch(generation, candidates(&["c3"])));
    assert_eq!(code(dispatched), LeaseCode::ServiceUnavailable);
}

#[test]
fn a_lease_whose_connection_says_otherwise_is_over() {
    let mut desk = desk();
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    desk.acquire('B', &["c2"]).unwrap();
    let c2 = desk
        .store
        .load(&Key::Bound(ConnectionId::from("c2")))
        .unwrap();
    let c1 = Key::Bound(ConnectionId::from("c1"));
    desk.store.force(&c1, c2.version, c2.body);
    let around = Around {
        table: &desk.table,
        rules: desk.rules,
    };
    let renew = Op::new(&owner('A'), Ask::Renew(generation), T0);
    let ended = run(&mut desk.store, renew, around);
    assert_eq!(ended, Ended::With(Err(LeaseCode::FenceStale.into())));
    assert!(!desk.lease('A').is_active(T0));
    assert_eq!(desk.bound("c1").owner, owner('B'), "left as it is");
}

#[test]
fn replicas_are_asked_for_grants_and_renewals_only() {
    let rules = LeaseRules::new(TTL_MS, GRACE_MS, 2);
    let mut desk = Desk::new(rules);
    let lease = desk.acquire('A', &["c1"]).unwrap().lease;
    let mut seen = Seen::new(&desk.table);
    for key in [owner('A').key(), Key::Bound(ConnectionId::from("c1"))] {
        seen.record(&key, desk.store.load(&key).as_ref());
    }
    let presented = Presented {
        owner: owner('A'),
        generation: lease.generation,
        api_key: ApiKeyId::from("K1"),
    };
    let replicas = |decision: Decision| {
        let Decision::Commit(planned) = decision else {
            panic!("{decision:?}");
        };
        planned.transaction.replicas
    };
    let candidates = candidates(&["c1"]);
    let again = Acquire {
        owner: &owner('A'),
        api_key: &presented.api_key,
        candidates: &candidates,
        none: LeaseCode::NoEligibleConnection,
    };
    let now = desk.store.now;
    assert_eq!(replicas(acquire(&seen, &again, &rules, now)), 2);
    assert_eq!(replicas(renew(&seen, &presented, &rules, now)), 2);
    assert_eq!(
        replicas(release(&seen, &presented, EndReason::OwnerExit, now)),
        0
    );
    // Written again, it is the same lease.
    assert_eq!(desk.acquire('A', &["c1"]).unwrap().lease, lease);
}

#[test]
fn an_acquire_asks_for_so_many_connections_and_no_more() {
    let mut desk = desk();
    let names: Vec<_> = (0..100).map(|number| format!("c{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let who = |number: u8| {
        let token = format!("vlo_{number:043}");
        OwnerToken::parse(token.as_bytes()).unwrap().hash()
    };
    for number in 0..100_u8 {
        let name = names[usize::from(number)];
        let op = Op::new(&who(number), Ask::Acquire(candidates(&[name])), T0);
        desk.outcome(op).unwrap();
    }
    // To a node that has heard of nothing, all of them may be free.
    assert_eq!(
        code(desk.acquire('A', &names)),
        LeaseCode::CapacityUnavailable
    );
    // One that has heard of them finds the one that it hasn't heard of.
    for record in desk.store.records() {
        desk.table.put(&record);
    }
    let mut more = names.clone();
    more.push("c100");
    assert_eq!(held(desk.acquire('A', &more)).0, "c100");
    // And the store's word counts for those that are asked.
    let op = Op::new(&who(5), Ask::Expire, T0);
    assert_eq!(code(desk.outcome(op)), LeaseCode::Required);
    let generation = Generation::new(T0.as_epoch_ms()).unwrap();
    desk.outcome(Op::new(&who(5), Ask::Release(generation), T0))
        .unwrap();
    assert_eq!(held(desk.acquire('B', &names)).0, "c5");
}

#[test]
fn a_request_in_flight_is_cut_when_its_lease_is_lost() {
    let mut desk = desk();
    let binding = desk.acquire('A', &["c1"]).unwrap();
    let (rules, key) = (desk.rules, owner('A').key());
    let flight = Flight {
        presented: Presented {
            owner: owner('A'),
            generation: binding.lease.generation,
            api_key: ApiKeyId::from("K1"),
        },
        connection: ConnectionId::from("c1"),
        revision: binding.revision,
        granted_until: binding.lease.expires_at,
        passed_at: T0,
    };
    let judge = |stored: &Stored<Lease>, confirmed_ms, now_ms| {
        watch(
            stored,
            &flight,
            T0.plus(confirmed_ms),
            &rules,
            T0.plus(now_ms),
        )
    };
    let goes_on = |until_ms| Verdict::GoesOn {
        until: T0.plus(until_ms),
    };
    let stands = Stored::of(desk.store.load(&key).as_ref());
    assert_eq!(judge(&stands, 5_000, 5_000), goes_on(5_000 + GRACE_MS));
    assert_eq!(judge(&stands, 9_500, 9_999), goes_on(TTL_MS));
    assert_eq!(judge(&stands, 9_500, TTL_MS), Verdict::Cut, "it ran out");
    assert_eq!(
        judge(&stands, 3_000, 3_000 + GRACE_MS),
        Verdict::Cut,
        "unconfirmed"
    );
    // The table has not heard of it yet.
    assert_eq!(judge(&Stored::Absent, 0, 1_000), goes_on(GRACE_MS));
    assert_eq!(
        judge(&Stored::Absent, 1, 1_000),
        Verdict::Cut,
        "the store went back"
    );
    assert_eq!(judge(&Stored::Unreadable, 0, 1_000), Verdict::Cut);
    // Or of another state of it.
    desk.pass(1_000);
    desk.ask('A', Ask::Renew(binding.lease.generation)).unwrap();
    let renewed = Stored::of(desk.store.load(&key).as_ref());
    assert_eq!(judge(&renewed, 10_500, 10_600), goes_on(11_000));
    let later = Flight {
        revision: renewed.revision().unwrap(),
        ..flight.clone()
    };
    let verdict = watch(&stands, &later, T0, &rules, T0.plus(1));
    assert_eq!(
        verdict,
        goes_on(GRACE_MS),
        "the fence knew better than the table"
    );
    desk.acquire('A', &["c2"]).unwrap();
    let moved = Stored::of(desk.store.load(&key).as_ref());
    assert_eq!(judge(&moved, 0, 1), Verdict::Cut);
    desk.ask('A', Ask::Release(binding.lease.generation))
        .unwrap();
    let released = Stored::of(desk.store.load(&key).as_ref());
    assert_eq!(judge(&released, 0, 1), Verdict::Cut);
}

#[test]
fn a_fence_asks_again_when_the_lease_was_renewed_meanwhile() {
    let mut desk = desk();
    let generation = desk.acquire('A', &["c1"]).unwrap().lease.generation;
    for record in desk.store.records() {
        desk.table.put(&record);
    }
    desk.pass(1_000);
    let renewed = desk.ask('A', Ask::Renew(generation)).unwrap();
    let dispatch = Ask::Dispatch(generation, candidates(&["c1"]));
    let sent = desk.run(Op::new(&owner('A'), dispatch.clone(), T0));
    assert!(matches!(sent, Ended::Sent(binding) if binding.revision == renewed.revision));
    desk.ask('A', Ask::Release(generation)).unwrap();
    let refused = desk.ask('A', dispatch);
    assert_eq!(
        code(refused),
        LeaseCode::Required,
        "by the fence, whatever the table says"
    );
}
