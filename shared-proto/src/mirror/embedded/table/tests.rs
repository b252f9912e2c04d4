//! The table: what a batch does is seen only once it is absorbed.

use super::{Batch, Table};
use crate::clock::Millis;
use crate::mirror::commit::{Change, Commit, Expected, Guard, Refusal, TransactError, Transaction};
use crate::mirror::key::{Key, Keyspace};
use crate::mirror::log::Logged;
use crate::mirror::record::{MAX_RECORD_BYTES, Revision};

fn table(rows: Vec<(String, Vec<u8>)>) -> Table {
    Table::new(Keyspace::new("p"), 10_000, 41, rows)
}

fn put(id: &str, expected: Expected) -> Commit {
    Commit {
        key: Key::Health(id.into()),
        expected,
        version: 1,
        change: Change::Put {
            body: vec![0x80].into(),
            expires_at: None,
        },
    }
}

#[test]
fn a_batch_is_invisible_until_absorbed_and_lost_when_dropped() {
    let mut table = table(vec![]);
    let now = Millis::from_epoch_ms(5);
    let mut lost = table.batch();
    let revision = table
        .stage(&mut lost, put("a", Expected::Absent).into(), now)
        .unwrap()[0];
    assert_eq!(revision.number(), 42, "goes on from what was stored");
    assert!(table.get("{p}:health:a").is_none());
    drop(lost);

    let mut batch = table.batch();
    let made = table
        .stage(&mut batch, put("a", Expected::Absent).into(), now)
        .unwrap()[0];
    let again = table
        .stage(&mut batch, put("a", Expected::Revision(made)).into(), now)
        .unwrap()[0];
    let stale = table.stage(&mut batch, put("a", Expected::Revision(made)).into(), now);
    let Err(TransactError::Conflict { newest, at }) = stale else {
        panic!("{stale:?}");
    };
    let newest: Vec<_> = newest
        .iter()
        .map(|(_, r)| r.as_ref().map(|r| r.revision))
        .collect();
    assert_eq!((newest, at), (vec![Some(again)], now));
    let gone = Commit::delete(Key::Health("a".into()), again, 1);
    table.stage(&mut batch, gone.into(), now).unwrap();
    table
        .stage(&mut batch, put("b", Expected::Absent).into(), now)
        .unwrap();
    assert_eq!(batch.revision(), 45);
    let rows: Vec<_> = batch
        .rows()
        .map(|(key, row)| (key.to_owned(), row.is_some()))
        .collect();
    let expected = [
        ("{p}:health:a".to_owned(), false),
        ("{p}:health:b".to_owned(), true),
    ];
    assert_eq!(rows, expected, "what counts in the end, once a key");
    assert_eq!(table.all().count(), 0);
    let log = table.absorb(batch);
    assert_eq!(log.len(), 4, "but the log tells every step");
    assert!(matches!(log[2], Some(Logged::Deleted { at, .. }) if at == now));
    assert_eq!(table.all().count(), 1);
}

#[test]
fn revisions_never_go_below_those_of_the_records() {
    let seed = table(vec![]);
    let mut batch = seed.batch();
    for id in ["a", "b"] {
        seed.stage(
            &mut batch,
            put(id, Expected::Absent).into(),
            Millis::default(),
        )
        .unwrap();
    }
    let rows: Vec<_> = batch
        .rows()
        .map(|(key, row)| (key.to_owned(), row.unwrap().to_owned()))
        .collect();
    let table = Table::new(Keyspace::new("p"), 10_000, 0, rows);
    assert_eq!(table.batch().revision(), 43);
}

/// A quiet record that expires at `ends`.
fn pin(id: &str, expected: Expected, ends: u64) -> Commit {
    Commit {
        key: Key::Pin(id.into()),
        ..put("", expected)
    }
    .expiring(Millis::from_epoch_ms(ends))
}

/// Stages and absorbs one transaction.
fn done(table: &mut Table, transaction: impl Into<Transaction>) -> Vec<Revision> {
    let mut batch = table.batch();
    let revisions = table.stage(&mut batch, transaction.into(), Millis::default());
    table.absorb(batch);
    revisions.unwrap()
}

fn all(commits: Vec<Commit>) -> Transaction {
    Transaction {
        guards: vec![],
        commits,
        replicas: 0,
    }
}

#[test]
fn a_refused_transaction_leaves_the_batch_as_it_was() {
    let table = table(vec![]);
    let now = Millis::from_epoch_ms(5);
    let mut batch = table.batch();
    let made = table.stage(&mut batch, put("a", Expected::Absent).into(), now);
    let made = made.unwrap()[0];
    let before = format!("{batch:?}");
    let large = Commit {
        change: Change::Put {
            body: vec![0x80; MAX_RECORD_BYTES].into(),
            expires_at: None,
        },
        ..put("large", Expected::Absent)
    };
    let much = Commit {
        change: Change::Put {
            body: vec![0x80; 20_000].into(),
            expires_at: None,
        },
        ..put("much", Expected::Absent)
    };
    let guard = Guard {
        key: Key::Health("a".into()),
        revision: Revision::new(41),
    };
    let replaces = put("a", Expected::Revision(made));
    let fenced = Transaction {
        guards: vec![guard],
        ..all(vec![replaces.clone()])
    };
    let replicated = Transaction {
        replicas: 1,
        ..all(vec![replaces.clone()])
    };
    let refused = [
        all(vec![replaces.clone(), put("b", Expected::Revision(made))]),
        all(vec![replaces.clone(), large]),
        all(vec![replaces.clone(), much]),
        all(vec![replaces.clone(), replaces.clone()]),
        fenced,
        replicated,
    ];
    for transaction in refused {
        assert!(table.stage(&mut batch, transaction, now).is_err());
        assert_eq!(format!("{batch:?}"), before);
    }
    table.stage(&mut batch, replaces.into(), now).unwrap();
}

#[test]
fn a_guard_sees_what_the_batch_did_so_far() {
    let table = table(vec![]);
    let now = Millis::from_epoch_ms(5);
    let guarded = |revision| Transaction {
        guards: vec![Guard {
            key: Key::Health("a".into()),
            revision,
        }],
        ..all(vec![put("b", Expected::Absent)])
    };
    let mut batch = table.batch();
    let made = table.stage(&mut batch, put("a", Expected::Absent).into(), now);
    let made = made.unwrap()[0];
    let gone = Commit::delete(Key::Health("a".into()), made, 1);
    table.stage(&mut batch, guarded(made), now).unwrap();
    table.stage(&mut batch, gone.into(), now).unwrap();
    let late = table.stage(&mut batch, guarded(made), now);
    assert!(matches!(late, Err(TransactError::Conflict { .. })));
}

#[test]
fn room_is_counted_over_a_whole_transaction() {
    let mut table = table(vec![]);
    let sized = |id: &str, expected, bytes| Commit {
        change: Change::Put {
            body: vec![0x80; bytes].into(),
            expires_at: None,
        },
        ..put(id, expected)
    };
    let old = done(&mut table, sized("old", Expected::Absent, 8_000));
    let new = sized("new", Expected::Absent, 8_000);
    let gone = Commit::delete(Key::Health("old".into()), old[0], 1);
    // In either order: what one frees the other may take.
    done(&mut table, all(vec![new, gone]));
    let mut batch = table.batch();
    let both = vec![
        sized("x", Expected::Absent, 1_000),
        sized("y", Expected::Absent, 1_000),
    ];
    let outcome = table.stage(&mut batch, all(both), Millis::default());
    assert_eq!(outcome, Err(Refusal::Full { limit: 10_000 }.into()));
}

#[test]
fn quiet_records_are_swept_a_good_while_after_they_expired() {
    let mut table = table(vec![]);
    let pins = ["a", "b", "c", "d"].map(|id| pin(id, Expected::Absent, 1_000));
    let made = done(&mut table, all(pins.to_vec()));
    done(
        &mut table,
        put("logged", Expected::Absent).expiring(Millis::default()),
    );
    // Kept on, and left for good.
    done(&mut table, pin("b", Expected::Revision(made[1]), 5_000));
    done(&mut table, Commit::delete(Key::Pin("c".into()), made[2], 1));
    let sweep = |table: &Table, now, most| {
        let mut batch = table.batch();
        table.sweep(&mut batch, Millis::from_epoch_ms(now), most);
        batch
    };
    let swept = |batch: &Batch| -> Vec<String> {
        batch
            .rows()
            .map(|(key, row)| {
                assert_eq!(row, None);
                key.to_owned()
            })
            .collect()
    };
    assert!(sweep(&table, 60_999, 9).is_empty());
    assert_eq!(swept(&sweep(&table, 61_000, 1)), ["{p}:pin:a"]);
    let batch = sweep(&table, 61_000, 9);
    assert_eq!(swept(&batch), ["{p}:pin:a", "{p}:pin:d"]);
    let full = table.bytes;
    assert_eq!(table.absorb(batch).len(), 0, "the log is not told");
    assert!(table.bytes < full);
    assert!(sweep(&table, 61_000, 9).is_empty());

    // One that the batch replaces is not swept with it.
    let mut batch = table.batch();
    let b = table.get("{p}:pin:b").unwrap().unwrap().revision;
    let again = pin("b", Expected::Revision(b), 90_000);
    table
        .stage(&mut batch, again.into(), Millis::default())
        .unwrap();
    table.sweep(&mut batch, Millis::from_epoch_ms(70_000), 9);
    table.absorb(batch);
    assert!(sweep(&table, 149_999, 9).is_empty());
    let batch = sweep(&table, 150_000, 9);
    assert_eq!(swept(&batch), ["{p}:pin:b"]);
    table.absorb(batch);
    assert_eq!(table.slots.len(), 1, "logged records stay");
    assert_eq!(
        table.bytes,
        table.slots.values().map(|slot| slot.bytes).sum::<usize>()
    );
}

#[test]
fn unreadable_quiet_records_are_in_no_snapshot() {
    let rows = [
        ("{p}:pin:a", b"\xc1"),
        ("{p}:pin:%41", b"\xc1"),
        ("{p}:health:a", b"\xc1"),
    ];
    let table = table(
        rows.map(|(key, row)| (key.to_owned(), row.to_vec()))
            .to_vec(),
    );
    assert!(matches!(table.get("{p}:pin:a"), Some(Err(_))));
    let told: Vec<_> = table
        .all()
        .map(|found| found.unwrap_err().key.to_string())
        .collect();
    assert_eq!(
        told,
        ["{p}:health:a", "{p}:pin:%41"],
        "and what is no key at all"
    );
}
