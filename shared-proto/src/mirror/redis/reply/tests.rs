//! Replies: what is read of records and entries, and that any bytes are read
//! without a panic.

use ::redis::Value;
use proptest::prelude::*;

use super::{Answer, Entry};
use crate::clock::Millis;
use crate::mirror::key::{Key, Keyspace};
use crate::mirror::log::{Logged, Position};
use crate::mirror::record::{Record, Revision, Unreadable, Why};

const KEY: &str = "{p}:health:a";

fn bulk(text: impl AsRef<[u8]>) -> Value {
    Value::BulkString(text.as_ref().to_vec())
}

fn fields(fields: [Option<&str>; 6]) -> Value {
    let value = |field: Option<&str>| field.map_or(Value::Nil, bulk);
    Value::Array(fields.map(value).into())
}

fn read(told: Value) -> Option<Result<Record, Unreadable>> {
    let mut answer = Answer::of(Value::Array(vec![told])).unwrap();
    answer.record(&Key::Health("a".into()), KEY).unwrap()
}

fn why(told: Value) -> Why {
    read(told).unwrap().unwrap_err().why
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let told = fields([
        Some("1"),
        Some("3"),
        Some("7"),
        Some("8"),
        Some("9"),
        Some("b"),
    ]);
    let record = read(told).unwrap().unwrap();
    assert_eq!(
        record,
        Record {
            key: Key::Health("a".into()),
            version: 3,
            revision: Revision::new(7),
            written_at: Millis::from_epoch_ms(8),
            expires_at: Some(Millis::from_epoch_ms(9)),
            body: "b".into(),
        }
    );
    assert_eq!(read(Value::Array(vec![])), None);
}

#[test]
fn what_is_no_record_is_told_from_what_is_a_newer_one() {
    for newer in ["2", "65535"] {
        let told = fields([Some(newer), None, None, None, None, None]);
        let found = newer.parse().unwrap();
        assert_eq!(why(told), Why::Newer { found });
    }
    let whole = [Some("1"), Some("1"), Some("1"), Some("1"), None, Some("b")];
    assert!(read(fields(whole)).unwrap().is_ok());
    let bad = [
        "",
        "x",
        "-1",
        "+1",
        " 1",
        "01",
        "1.0",
        "99999999999999999999",
        "é",
    ];
    for at in 0..5 {
        for bad in bad {
            let mut broken = whole;
            broken[at] = Some(bad);
            assert!(matches!(why(fields(broken)), Why::Corrupt(_)), "{at} {bad}");
        }
    }
    for at in [0, 1, 2, 3, 5] {
        let mut broken = whole;
        broken[at] = None;
        assert!(matches!(why(fields(broken)), Why::Corrupt(_)), "{at}");
    }
    let limits = [
        (0, "65536"),
        (1, "65536"),
        (2, "9007199254740992"),
        (3, "9007199254740992"),
    ];
    for (at, over) in limits {
        let mut broken = whole;
        broken[at] = Some(over);
        assert!(matches!(why(fields(broken)), Why::Corrupt(_)), "{at}");
    }
    let other = Value::Array(vec![bulk("WRONGTYPE it is a list")]);
    assert_eq!(why(other), Why::Corrupt("WRONGTYPE it is a list".into()));
}

fn entry(id: &str, pairs: &[(&str, &str)]) -> Entry {
    let pairs = pairs
        .iter()
        .flat_map(|(name, value)| [bulk(name), bulk(value)]);
    let value = Value::Array(vec![bulk(id), Value::Array(pairs.collect())]);
    Entry::of(&Keyspace::new("p"), value).unwrap()
}

#[test]
fn an_entry_of_any_shape_has_its_place() {
    let put = [
        ("p", "4-0"),
        ("k", "health:a"),
        ("r", "5"),
        ("f", "1"),
        ("v", "1"),
        ("w", "2"),
        ("b", ""),
    ];
    let told = entry("5-0", &put);
    assert_eq!(told.position, Position::new(5, 0));
    assert_eq!(told.before, Some(Position::new(4, 0)));
    assert!(matches!(told.change, Logged::Put(record) if record.revision == Revision::new(5)));
    let gone = entry(
        "5-0",
        &[("p", "0-0"), ("k", "health:a"), ("r", "5"), ("d", "2")],
    );
    assert!(matches!(gone.change, Logged::Deleted { .. }));
    let odd: [&[(&str, &str)]; 7] = [
        &[],
        &[("p", "4-0")],
        &[("k", "health:a")],
        &[("p", "4-0"), ("k", "health")],
        &[("p", "4-0"), ("k", "health:a"), ("f", "2")],
        &[("p", "4-0"), ("k", "health:a"), ("d", "x")],
        &[("p", "x"), ("k", "health:a"), ("r", "5"), ("d", "1")],
    ];
    for odd in odd {
        let told = entry("5-1", odd);
        assert_eq!(told.position, Position::new(5, 1));
        assert!(matches!(told.change, Logged::Unreadable(_)), "{odd:?}");
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<i64>().prop_map(Value::Int),
        prop::collection::vec(any::<u8>(), 0..12).prop_map(Value::BulkString),
        "[0-9]{1,3}-[0-9]{1,3}".prop_map(bulk),
        prop_oneof!["[pkrfvwxbdn]", "health:[a-z%{}:]{0,3}", "[0-9]{1,20}"].prop_map(bulk),
    ];
    leaf.prop_recursive(3, 64, 14, |inner| {
        prop::collection::vec(inner, 0..14).prop_map(Value::Array)
    })
}

proptest! {
    #[test]
    fn no_reply_panics(value in any_value()) {
        Entry::of(&Keyspace::new("p"), value.clone()).ok();
        if let Ok(mut answer) = Answer::of(value) {
            let key = Key::Health("a".into());
            while answer.len() > 0 {
                answer.record(&key, KEY).ok();
                answer.number().ok();
                answer.position().ok();
                answer.text().ok();
            }
        }
    }
}
