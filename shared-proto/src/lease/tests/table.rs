//! A node's view: newer records win, whatever the order they are heard in.

use proptest::prelude::*;

use super::*;
use crate::mirror::Snapshot;
use crate::mirror::commit::{Change, Commit, Expected};
use crate::mirror::key::{Key, Keyspace};
use crate::mirror::log::{LogEntry, Logged, Position};
use crate::mirror::record::{Body, Unreadable, Why};

pub(crate) fn record<B: Body>(
    key: &Key,
    revision: u64,
    body: &B,
    expires_at: Option<Millis>,
) -> Record {
    let commit = Commit::put(key.clone(), Expected::Absent, body).unwrap();
    let Change::Put { body, .. } = commit.change else {
        panic!("not a put")
    };
    Record {
        key: key.clone(),
        version: commit.version,
        revision: Revision::new(revision),
        written_at: T0,
        expires_at,
        body,
    }
}

fn lease(connection: &str, expires_at: Millis) -> Lease {
    Lease {
        generation: Generation::new(1).unwrap(),
        api_key: ApiKeyId::from("K1"),
        provider: ProviderId::from("glm"),
        connection: ConnectionId::from(connection),
        acquired_at: T0,
        renewed_at: T0,
        expires_at,
        end: None,
    }
}

fn bound(who: char, expires_at: Millis) -> Bound {
    Bound {
        owner: owner(who),
        generation: Generation::new(1).unwrap(),
        expires_at,
        end: None,
    }
}

fn entry(change: Logged) -> LogEntry {
    LogEntry {
        position: Position::new(1, 1),
        change,
    }
}

fn keys() -> Keyspace {
    Keyspace::new("omniroute")
}

fn deleted(key: &Key, revision: u64) -> LogEntry {
    entry(Logged::Deleted {
        key: key.clone(),
        revision: Revision::new(revision),
        at: T0,
    })
}

#[test]
fn a_connection_is_leased_until_the_lease_runs_out_or_ends() {
    let c1 = ConnectionId::from("c1");
    let key = Key::Bound(c1.clone());
    let mut table = LeaseTable::new();
    assert!(!table.is_leased(&c1, T0));
    assert!(table.put(&record(&key, 1, &bound('A', T0.plus(5)), None)));
    assert!(table.is_leased(&c1, T0.plus(4)) && !table.is_leased(&c1, T0.plus(5)));
    let end = End {
        reason: EndReason::OwnerExit,
        at: T0,
    };
    assert!(table.put(&record(&key, 2, &bound('A', T0.plus(5)).ended(end), None)));
    assert!(!table.is_leased(&c1, T0));
}

#[test]
fn older_states_are_ignored_after_a_deletion_too() {
    let c1 = ConnectionId::from("c1");
    let key = Key::Bound(c1.clone());
    let mut table = LeaseTable::new();
    let older = record(&key, 3, &bound('A', T0.plus(5)), None);
    assert!(table.apply(&deleted(&key, 4), &keys()));
    assert!(!table.apply(&entry(Logged::Put(older)), &keys()));
    assert!(!table.is_leased(&c1, T0));
    assert!(table.put(&record(&key, 5, &bound('B', T0.plus(5)), None)));
    assert!(!table.apply(&deleted(&key, 4), &keys()));
    assert!(table.is_leased(&c1, T0));
}

#[test]
fn what_cannot_be_read_is_not_free() {
    let c1 = ConnectionId::from("c1");
    let key = Key::Bound(c1.clone());
    let spelled = keys().spell(&key);
    let unreadable = |key: &str| Unreadable {
        key: key.into(),
        why: Why::Newer { found: 9 },
    };
    let mut table = LeaseTable::new();
    assert!(table.apply(&entry(Logged::Unreadable(unreadable(&spelled))), &keys()));
    assert!(table.is_leased(&c1, T0));
    for foreign in [
        "",
        "{other}:bound:c1",
        "{omniroute}:bound:%",
        "{omniroute}:lease:c1",
    ] {
        assert!(!table.apply(&entry(Logged::Unreadable(unreadable(foreign))), &keys()));
    }
    // A body of a newer version can't be read either.
    let mut newer = record(&key, 7, &bound('A', T0), None);
    newer.version = u16::MAX;
    let snapshot = Snapshot {
        records: vec![newer],
        unreadable: vec![unreadable(&keys().spell(&owner('A').key()))],
        position: Position::new(1, 1),
    };
    let table = LeaseTable::from_snapshot(&snapshot, &keys());
    assert!(table.is_leased(&c1, T0));
    assert_eq!(*table.lease(&owner('A')), Stored::Unreadable);
}

#[test]
fn lookups() {
    let mut table = LeaseTable::new();
    let put = |table: &mut LeaseTable, who, lease: &Lease| {
        table.put(&record(&owner(who).key(), 1, lease, None))
    };
    assert!(put(&mut table, 'A', &lease("c1", T0.plus(10))));
    assert!(put(&mut table, 'B', &lease("c2", T0.plus(5))));
    let other_key = Lease {
        api_key: ApiKeyId::from("K2"),
        ..lease("c3", T0.plus(20))
    };
    assert!(put(&mut table, 'C', &other_key));
    let k1 = ApiKeyId::from("K1");
    assert_eq!(table.active(T0).count(), 3);
    assert_eq!(table.active(T0.plus(5)).count(), 2);
    assert_eq!(
        table
            .of_key(&k1, T0.plus(5))
            .map(|(owner, _)| owner)
            .collect::<Vec<_>>(),
        [&owner('A')]
    );
    assert_eq!(table.next_expiry(T0), Some(T0.plus(5)));
    assert_eq!(table.next_expiry(T0.plus(20)), None);
    assert_eq!(table.lapsed(T0.plus(5)).collect::<Vec<_>>(), [&owner('B')]);
    let (who, lease) = table.of_key(&k1, T0.plus(5)).next().unwrap();
    assert_eq!(
        LeaseId::parse(&lease.id(who).to_string()),
        Some(lease.id(who))
    );
}

#[test]
fn a_copy_is_not_changed_with_its_original() {
    let key = Key::Bound(ConnectionId::from("c1"));
    let mut table = LeaseTable::new();
    table.put(&record(&key, 1, &bound('A', T0.plus(5)), None));
    let copy = table.clone();
    table.apply(&deleted(&key, 2), &keys());
    assert!(copy.is_leased(&ConnectionId::from("c1"), T0));
}

#[test]
fn deletions_are_not_remembered_without_bound() {
    let mut table = LeaseTable::new();
    for number in 0..3 * crate::lease::table::MAX_DELETED {
        let key = Key::Bound(ConnectionId::new(format!("c{number}")));
        table.apply(&deleted(&key, 1), &keys());
    }
    let kept = Key::Bound(ConnectionId::from("kept"));
    assert!(table.put(&record(&kept, 1, &bound('A', T0.plus(5)), None)));
    assert!(table.is_leased(&ConnectionId::from("kept"), T0));
}

#[derive(Clone, Debug)]
enum Heard {
    Put(u8, u64, char),
    Deleted(u8, u64),
}

fn heard() -> impl Strategy<Value = Heard> {
    let who = prop_oneof![Just('A'), Just('B')];
    prop_oneof![
        (0..3_u8, who).prop_map(|(connection, who)| Heard::Put(connection, 0, who)),
        (0..3_u8).prop_map(|connection| Heard::Deleted(connection, 0)),
    ]
}

proptest! {
    /// Whatever is heard twice or late, the table ends with the newest of all.
    #[test]
    fn the_newest_wins_in_any_order(
        history in proptest::collection::vec(heard(), 1..20),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let numbered: Vec<_> = history.into_iter().zip(1_u64..).map(|(heard, revision)| {
            match heard {
                Heard::Put(connection, _, who) => Heard::Put(connection, revision, who),
                Heard::Deleted(connection, _) => Heard::Deleted(connection, revision),
            }
        }).collect();
        let key = |connection: u8| Key::Bound(ConnectionId::new(format!("c{connection}")));
        let hear = |table: &mut LeaseTable, heard: &Heard| match heard {
            Heard::Put(connection, revision, who) => {
                table.put(&record(&key(*connection), *revision, &bound(*who, T0.plus(5)), None))
            }
            Heard::Deleted(connection, revision) => {
                table.apply(&deleted(&key(*connection), *revision), &keys())
            }
        };
        let mut shuffled = LeaseTable::new();
        for index in &order {
            hear(&mut shuffled, index.get(&numbered));
        }
        for heard in numbered.iter().rev() {
            hear(&mut shuffled, heard);
        }
        let mut straight = LeaseTable::new();
        for heard in &numbered {
            prop_assert!(hear(&mut straight, heard));
        }
        for connection in 0..3 {
            let id = ConnectionId::new(format!("c{connection}"));
            prop_assert_eq!(shuffled.bound(&id), straight.bound(&id));
        }
    }
}
