//! The table: what a batch does is seen only once it is absorbed.

use super::Table;
use crate::clock::Millis;
use crate::mirror::commit::{Change, Commit, Expected, TransactError};
use crate::mirror::key::{Key, Keyspace};
use crate::mirror::log::Logged;

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
