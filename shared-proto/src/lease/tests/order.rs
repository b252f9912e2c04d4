//! Each check in its order: what fails more than one is refused by the first.

use super::driver::{Around, Ask, Ended, Op, run};
use super::*;
use crate::simulation::store::Store;

fn lease(generation: u64, key: &str, connection: &str) -> Lease {
    Lease {
        generation: Generation::new(generation).unwrap(),
        api_key: ApiKeyId::from(key),
        provider: ProviderId::from("glm"),
        connection: ConnectionId::from(connection),
        acquired_at: T0,
        renewed_at: T0,
        expires_at: T0.plus(1_000),
        end: None,
    }
}

fn found(lease: Lease) -> Stored<Lease> {
    Stored::Found(Found {
        revision: Revision::new(5),
        written_at: T0,
        body: lease,
    })
}

fn presented(generation: u64, key: &str) -> Presented {
    Presented {
        owner: owner('A'),
        generation: Generation::new(generation).unwrap(),
        api_key: ApiKeyId::from(key),
    }
}

fn ended(lease: &Lease) -> Lease {
    let end = End {
        reason: EndReason::OwnerExit,
        at: T0,
    };
    lease.ended(end)
}

#[test]
fn the_dispatch_fence() {
    let (c1, c2) = (ConnectionId::from("c1"), ConnectionId::from("c2"));
    let standing = found(lease(1, "K1", "c1"));
    let judge = |stored: &Stored<Lease>, presented: &Presented, connection, at| {
        fenced(stored, presented, connection, at)
    };
    let over = T0.plus(1_000);
    let mine = presented(1, "K1");
    assert_eq!(judge(&standing, &mine, &c1, T0), Ok(Revision::new(5)));
    assert_eq!(
        judge(&Stored::Unreadable, &mine, &c1, T0),
        Err(LeaseCode::ServiceUnavailable)
    );
    assert_eq!(
        judge(&Stored::Absent, &mine, &c1, T0),
        Err(LeaseCode::Required)
    );
    let wrong = presented(2, "K2");
    let released = found(ended(&lease(1, "K1", "c1")));
    assert_eq!(judge(&released, &wrong, &c2, T0), Err(LeaseCode::Required));
    assert_eq!(
        judge(&standing, &wrong, &c2, over),
        Err(LeaseCode::Required)
    );
    assert_eq!(
        judge(&standing, &wrong, &c2, T0),
        Err(LeaseCode::FenceStale)
    );
    let other_key = presented(1, "K2");
    assert_eq!(
        judge(&standing, &other_key, &c2, T0),
        Err(LeaseCode::AuthorizationMismatch)
    );
    assert_eq!(
        judge(&standing, &mine, &c2, T0),
        Err(LeaseCode::ConnectionMismatch)
    );
}

/// The table agrees with the store, or knows nothing, or is behind.
fn selected(
    store: Option<&Lease>,
    presented: &Presented,
    forced: Option<&str>,
    now: Millis,
) -> Result<ConnectionId, LeaseCode> {
    let table = LeaseTable::new();
    let mut seen = Seen::new(&table);
    let forced = forced.map(ConnectionId::from);
    let key = presented.owner.key();
    let wanted = select(&seen, presented, forced.as_ref(), now);
    assert_eq!(wanted, Decision::load(Some(&presented.owner), &[]));
    let record = store.map(|lease| record(&key, 5, lease, Some(lease.expires_at)));
    seen.record(&key, record.as_ref());
    let Decision::Done(outcome) = select(&seen, presented, forced.as_ref(), now) else {
        panic!("more is wanted than the owner's record")
    };
    outcome
        .map(|binding| binding.lease.connection)
        .map_err(|refusal| refusal.code().unwrap())
}

#[test]
fn selection() {
    let standing = lease(1, "K1", "c1");
    let over = T0.plus(1_000);
    let mine = presented(1, "K1");
    let c1 = Ok(ConnectionId::from("c1"));
    assert_eq!(selected(Some(&standing), &mine, None, T0), c1);
    assert_eq!(selected(Some(&standing), &mine, Some("c1"), T0), c1);
    let wrong = presented(2, "K2");
    assert_eq!(
        selected(None, &wrong, Some("c2"), T0),
        Err(LeaseCode::Required)
    );
    assert_eq!(
        selected(Some(&standing), &wrong, Some("c2"), over),
        Err(LeaseCode::Required)
    );
    let released = ended(&standing);
    assert_eq!(
        selected(Some(&released), &wrong, Some("c2"), T0),
        Err(LeaseCode::Required)
    );
    assert_eq!(
        selected(Some(&standing), &wrong, Some("c2"), T0),
        Err(LeaseCode::FenceStale)
    );
    let other_key = presented(1, "K2");
    assert_eq!(
        selected(Some(&standing), &other_key, Some("c2"), T0),
        Err(LeaseCode::FenceStale)
    );
    let mismatch = Err(LeaseCode::ConnectionMismatch);
    assert_eq!(selected(Some(&standing), &mine, Some("c2"), T0), mismatch);
}

#[test]
fn the_table_spares_the_question_but_never_refuses() {
    let key = owner('A').key();
    let standing = lease(1, "K1", "c1");
    let mut table = LeaseTable::new();
    table.put(&record(&key, 5, &standing, Some(standing.expires_at)));
    let seen = Seen::new(&table);
    let decision = select(&seen, &presented(1, "K1"), None, T0);
    let Decision::Done(Ok(binding)) = decision else {
        panic!("{decision:?}")
    };
    assert_eq!(binding.revision, Revision::new(5));
    for (claim, now) in [
        (presented(2, "K1"), T0),
        (presented(1, "K1"), T0.plus(1_000)),
    ] {
        let decision = select(&seen, &claim, None, now);
        assert!(matches!(decision, Decision::Load(_)), "{decision:?}");
    }
}

/// A store in which A has `c1` with key K1, and its generation.
fn leased(around: Around<'_>) -> (Store, Generation) {
    let mut store = Store::at(T0);
    let ask = Ask::Acquire(candidates(&["c1"]));
    let Ended::With(granted) = run(&mut store, Op::new(&owner('A'), ask, T0), around) else {
        panic!("an acquire sends nothing")
    };
    (store, granted.unwrap().lease.generation)
}

#[test]
fn whatever_is_not_exactly_the_lease_is_stale() {
    let table = LeaseTable::new();
    let around = Around {
        table: &table,
        rules: LeaseRules::new(1_000, 0, 0),
    };
    let (store, generation) = leased(around);
    let next = Generation::new(generation.number() + 1).unwrap();
    let asks: [fn(Generation) -> Ask; 3] = [Ask::Renew, Ask::Release, Ask::Status];
    for ask in asks {
        let refused = |op: Op, after_ms: u64| {
            let mut store = store.clone();
            store.now = T0.plus(after_ms);
            let mut op = op;
            op.asks_at(store.now);
            let before = store.clone();
            let ended = run(&mut store, op, around);
            let stale = Ended::With(Err(LeaseCode::FenceStale.into()));
            assert_eq!(ended, stale);
            assert_eq!(store, before, "something was changed");
        };
        let op = |who, generation| Op::new(&owner(who), ask(generation), T0);
        refused(op('A', next), 0);
        refused(op('A', generation).with_key("K2"), 0);
        refused(op('B', generation), 0);
        refused(op('A', generation), 1_000);
    }
}

fn record<B: crate::mirror::record::Body>(
    key: &crate::mirror::key::Key,
    revision: u64,
    body: &B,
    expires_at: Option<Millis>,
) -> Record {
    table::record(key, revision, body, expires_at)
}
