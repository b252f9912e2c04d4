//! What the agenda makes of records.
use shared_proto::clock::ManualClock;
use shared_proto::failure::Terminal;
use shared_proto::health::TerminalState;
use shared_proto::lease::{End, EndReason, Generation};
use shared_proto::mirror::Mirror as _;
use shared_proto::mirror::commit::{Change, Commit, Expected};
use shared_proto::mirror::embedded::Embedded;
use std::sync::Arc;

use super::*;

const T0: Millis = Millis::from_epoch_ms(1_790_856_000_000);
const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

fn at(ms: u64) -> Millis {
    T0.plus(ms)
}

fn record<B: Body>(key: Key, revision: u64, body: &B, expires_at: Option<Millis>) -> Record {
    let put = Commit::put(key.clone(), Expected::Absent, body).unwrap();
    let Change::Put { body, .. } = put.change else {
        panic!("no put");
    };
    raw(key, revision, B::VERSION, body.to_vec(), expires_at)
}

fn raw(key: Key, revision: u64, version: u16, body: Vec<u8>, at: Option<Millis>) -> Record {
    Record {
        key,
        version,
        revision: Revision::new(revision),
        written_at: T0,
        expires_at: at,
        body: body.into(),
    }
}

fn lease(end: Option<End>) -> Lease {
    Lease {
        generation: Generation::new(7).unwrap(),
        api_key: "team".into(),
        provider: "glm".into(),
        connection: "a".into(),
        acquired_at: T0,
        renewed_at: T0,
        expires_at: at(1_000),
        end,
    }
}

fn owner() -> OwnerHash {
    OwnerHash::parse(HASH).unwrap()
}

fn health(key: &str, health: &ConnectionHealth) -> Record {
    record(Key::Health(key.into()), 1, health, None)
}

#[test]
fn a_lease_is_expired_when_it_ran_out_and_deleted_when_its_record_did() {
    let mut agenda = Agenda::default();
    let key = Key::Lease(HASH.into());
    agenda.stored(&record(key.clone(), 1, &lease(None), Some(at(1_000))));
    assert_eq!(agenda.next_expiry(), Some(at(1_000)));
    assert!(agenda.expired(at(999), 9).is_empty());
    let due = agenda.expired(at(1_000), 9);
    assert_eq!(due[0].what, What::Expire(owner()));
    assert!(
        agenda.over(Millis::MAX, 9).is_empty(),
        "not before it is written down"
    );
    let end = End {
        reason: EndReason::TtlExpired,
        at: at(1_000),
    };
    agenda.stored(&record(key.clone(), 2, &lease(Some(end)), Some(at(9_000))));
    assert_eq!(agenda.next_expiry(), None);
    assert!(agenda.over(at(8_999), 9).is_empty());
    let due = agenda.over(at(9_000), 9);
    assert_eq!(
        (&due[0].what, due[0].revision),
        (&What::Delete, Revision::new(2))
    );
    agenda.remove(&key);
    assert!(agenda.over(Millis::MAX, 9).is_empty());
}

#[test]
fn what_is_put_off_rests_unless_it_changed() {
    let mut agenda = Agenda::default();
    let refresh = |name: &str, revision| {
        raw(
            Key::Refresh(name.into()),
            revision,
            1,
            vec![0x80],
            Some(at(5)),
        )
    };
    agenda.stored(&refresh("a", 1));
    let item = agenda.over(at(5), 9).remove(0);
    agenda.put_off(&item, at(50));
    assert!(agenda.over(at(49), 9).is_empty());
    assert_eq!(agenda.over(at(50), 9).len(), 1);
    agenda.stored(&refresh("a", 2));
    agenda.put_off(&item, at(90));
    assert_eq!(agenda.over(at(5), 9)[0].revision, Revision::new(2));
}

#[test]
fn no_more_than_asked_for_and_the_longest_due_first() {
    let mut agenda = Agenda::default();
    for n in 0..10_u64 {
        let key = Key::Refresh(format!("c{n}").as_str().into());
        agenda.stored(&raw(key, n + 1, 1, vec![0x80], Some(at(100 - n))));
    }
    let due = agenda.over(at(1_000), 3);
    let revisions: Vec<u64> = due.iter().map(|item| item.revision.number()).collect();
    assert_eq!(revisions, [10, 9, 8]);
}

#[test]
fn health_is_retired_a_day_after_it_says_nothing_any_more() {
    let mut agenda = Agenda::default();
    let cooling = ConnectionHealth {
        cooldown_until: Some(at(60_000)),
        backoff_level: 2,
        last_cooldown_ms: 60_000,
        ..ConnectionHealth::default()
    };
    agenda.stored(&health("cooling", &cooling));
    agenda.stored(&health("well", &ConnectionHealth::default()));
    let well = agenda.over(at(KEEP_WELL_MS), 9);
    assert_eq!(well.len(), 1);
    assert_eq!(well[0].what, What::Retire("well".into()));
    assert_eq!(agenda.over(at(KEEP_WELL_MS + 180_000 - 1), 9).len(), 1);
    assert_eq!(agenda.over(at(KEEP_WELL_MS + 180_000), 9).len(), 2);
    assert_eq!(cooling.level(at(180_000)), 0, "the decay is over then");
}

#[test]
fn what_waits_for_somebody_or_cannot_be_judged_is_left_alone() {
    let mut agenda = Agenda::default();
    let banned = ConnectionHealth {
        terminal: Some(TerminalState {
            kind: Terminal::Banned,
            sub_reason: None,
            at: T0,
        }),
        ..ConnectionHealth::default()
    };
    agenda.stored(&health("banned", &banned));
    let off = ConnectionHealth {
        auto_disabled: true,
        ..ConnectionHealth::default()
    };
    agenda.stored(&health("off", &off));
    let newer = |key| raw(key, 1, 9, vec![0x80], Some(T0));
    agenda.stored(&newer(Key::Bound("a".into())));
    agenda.stored(&newer(Key::Refresh("a".into())));
    agenda.stored(&newer(Key::Lease(HASH.into())));
    agenda.stored(&newer(Key::Leader));
    agenda.stored(&newer(Key::Token("a".into())));
    agenda.stored(&newer(Key::other("novel", "a").unwrap()));
    agenda.stored(&raw(Key::Bound("b".into()), 1, 1, vec![0xff, 0], Some(T0)));
    assert!(agenda.over(Millis::MAX, 99).is_empty());
    assert!(agenda.expired(Millis::MAX, 99).is_empty());
}

#[tokio::test]
async fn a_snapshot_begins_anew() {
    let mut agenda = Agenda::default();
    agenda.stored(&health("gone", &ConnectionHealth::default()));
    let store = Embedded::memory("p", Arc::new(ManualClock::at(T0))).unwrap();
    let key = Key::Lease(HASH.into());
    let put = Commit::put(key, Expected::Absent, &lease(None)).unwrap();
    store.commit(put.expiring(at(1_000))).await.unwrap();
    agenda.replace(&store.snapshot().await.unwrap());
    assert!(agenda.over(Millis::MAX, 9).is_empty());
    assert_eq!(agenda.next_expiry(), Some(at(1_000)));
}
