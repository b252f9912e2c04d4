//! Records: what goes in comes out, and hostile bytes only make errors.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Body, BodyError, MAX_RECORD_BYTES, Record, Revision, Why, encode_body};
use crate::clock::Millis;
use crate::mirror::key::{HEALTH, Key};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    level: u32,
    until: Option<Millis>,
    reason: Option<String>,
    #[serde(default)]
    added_later: Vec<u64>,
}

impl Body for State {
    const KIND: &'static str = HEALTH;
    const VERSION: u16 = 3;
}

fn state() -> State {
    State {
        level: 2,
        until: Some(Millis::from_epoch_ms(1_700_000_000_000)),
        reason: Some("rate_limit_exceeded".into()),
        added_later: vec![1, u64::MAX],
    }
}

fn record() -> Record {
    Record {
        key: Key::Health("acme-1".into()),
        version: 3,
        revision: Revision::new(u64::MAX),
        written_at: Millis::from_epoch_ms(1_700_000_000_123),
        expires_at: None,
        body: encode_body(&state()).unwrap(),
    }
}

fn corrupt(stored: &[u8]) -> bool {
    matches!(
        Record::from_stored(&record().key, stored),
        Err(Why::Corrupt(_))
    )
}

#[test]
fn comes_back_as_it_was() {
    for expires_at in [None, Some(Millis::MAX)] {
        let record = Record {
            expires_at,
            ..record()
        };
        let stored = record.to_stored().unwrap();
        assert_eq!(
            Record::from_stored(&record.key, &stored),
            Ok(record.clone())
        );
        assert_eq!(record.decode(), Ok(state()));
    }
}

/// The bytes of format 1: a store of today has to open in ten years.
#[test]
fn the_stored_form_is_fixed() {
    let record = Record {
        version: 1,
        revision: Revision::new(300),
        written_at: Millis::from_epoch_ms(1),
        expires_at: Some(Millis::from_epoch_ms(2)),
        body: Bytes::from_static(b"\x81\xa5level\x02"),
        ..record()
    };
    let stored = b"\x87\xa6format\x01\xa4kind\xa6health\xa7version\x01\xa8revision\xcd\x01\x2c\
        \xa9writtenAt\x01\xa9expiresAt\x02\xa4body\xc4\x08\x81\xa5level\x02";
    assert_eq!(record.to_stored().unwrap(), stored);
    assert_eq!(Record::from_stored(&record.key, stored), Ok(record));
}

#[test]
fn reads_bodies_of_older_versions_and_reports_newer_ones() {
    #[derive(Serialize)]
    struct Before {
        level: u32,
        dropped_since: bool,
    }
    let old = Record {
        version: 1,
        body: rmp_serde::to_vec_named(&Before {
            level: 4,
            dropped_since: true,
        })
        .unwrap()
        .into(),
        ..record()
    };
    let read: State = old.decode().unwrap();
    assert_eq!(
        (read.level, read.until, read.added_later),
        (4, None, vec![])
    );
    let new = Record {
        version: 4,
        ..record()
    };
    assert_eq!(
        new.decode::<State>(),
        Err(BodyError::Newer { found: 4, known: 3 })
    );
    let stored = new.to_stored().unwrap();
    assert_eq!(
        Record::from_stored(&new.key, &stored),
        Ok(new),
        "carried all the same"
    );
}

#[test]
fn a_newer_envelope_is_told_from_a_corrupt_one() {
    let key = record().key;
    let newer = b"\x83\xa6format\xcd\x01\x00\xa4what\x91\x91\xc0\xa4body\x05";
    assert_eq!(
        Record::from_stored(&key, newer),
        Err(Why::Newer { found: 256 })
    );
    for bad in [
        b"".as_slice(),
        b"\xc0",
        b"\x80",
        b"\x81\xa6format\x01",
        b"\x81\xa6format\xff",
        b"\x81\xa6format\xa12",
        b"\x82\xa6format\x02\xa6format\x02",
        b"\x81\xa6format\x02\xc0",
        b"{\"format\":1}",
    ] {
        assert!(corrupt(bad), "{bad:?}");
    }
}

#[test]
fn a_record_under_anothers_key_is_corrupt() {
    let stored = record().to_stored().unwrap();
    let other = Key::Breaker("acme-1".into());
    assert!(matches!(
        Record::from_stored(&other, &stored),
        Err(Why::Corrupt(_))
    ));
}

#[test]
fn lengths_that_lie_allocate_nothing() {
    // A map, an array, a string and bytes that claim four gigabytes.
    for claim in [b"\xdf", b"\xdd", b"\xdb", b"\xc6"] {
        let mut body = claim.to_vec();
        body.extend_from_slice(&[0xff; 4]);
        assert!(corrupt(&body));
        let mut inside = b"\x81\xa5level".to_vec();
        inside.extend_from_slice(&body);
        for body in [body, inside] {
            let hostile = Record {
                body: body.into(),
                ..record()
            };
            assert!(matches!(
                hostile.decode::<State>(),
                Err(BodyError::Corrupt(_))
            ));
        }
    }
}

#[test]
fn nesting_has_an_end() {
    let mut deep = b"\x81\xa6format".to_vec();
    deep.extend(std::iter::repeat_n(0x91, 200_000));
    assert!(corrupt(&deep));
    let mut unknown_field = b"\x82\xa5level\x01\xa4deep".to_vec();
    unknown_field.extend(std::iter::repeat_n(0x91, 200_000));
    unknown_field.push(0xc0);
    let hostile = Record {
        body: unknown_field.into(),
        ..record()
    };
    assert!(matches!(
        hostile.decode::<State>(),
        Err(BodyError::Corrupt(_))
    ));
}

#[test]
fn a_record_over_the_limit_is_not_even_parsed() {
    let big = Record {
        body: vec![0; MAX_RECORD_BYTES].into(),
        ..record()
    };
    assert!(corrupt(&big.to_stored().unwrap()));
}

#[test]
fn a_body_is_a_map_of_named_fields() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Positional(u32, u32);
    impl Body for Positional {
        const KIND: &'static str = HEALTH;
        const VERSION: u16 = 1;
    }
    assert!(matches!(
        encode_body(&Positional(1, 2)),
        Err(BodyError::Unwritable(_))
    ));
    let positional = Record {
        body: rmp_serde::to_vec(&state()).unwrap().into(),
        ..record()
    };
    assert!(matches!(
        positional.decode::<State>(),
        Err(BodyError::Corrupt(_))
    ));
}

#[test]
fn every_truncation_and_every_flipped_byte_is_an_answer() {
    let whole = record();
    let stored = whole.to_stored().unwrap();
    for end in 0..stored.len() {
        assert!(corrupt(&stored[..end]), "cut at {end}");
    }
    for end in 0..whole.body.len() {
        let cut = Record {
            body: whole.body.slice(..end),
            ..whole.clone()
        };
        assert!(
            matches!(cut.decode::<State>(), Err(BodyError::Corrupt(_))),
            "cut at {end}"
        );
    }
    for at in 0..stored.len() {
        for flip in 0..=u8::MAX {
            let mut stored = stored.clone();
            stored[at] ^= flip;
            // Whatever comes of it, it is an answer; and what is read is sound.
            if let Ok(read) = Record::from_stored(&whole.key, &stored) {
                assert_eq!(read.key, whole.key);
                drop(read.decode::<State>());
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let key = record().key;
        drop(Record::from_stored(&key, &bytes));
        let hostile = Record { body: bytes.into(), ..record() };
        drop(hostile.decode::<State>());
    }

    #[test]
    fn any_state_comes_back(level: u32, until: Option<u64>, reason: Option<String>, added_later: Vec<u64>) {
        let state = State { level, until: until.map(Millis::from_epoch_ms), reason, added_later };
        let record = Record { body: encode_body(&state).unwrap(), ..record() };
        let stored = record.to_stored().unwrap();
        let read = Record::from_stored(&record.key, &stored).unwrap();
        prop_assert_eq!(read.decode::<State>().unwrap(), state);
        // Any MessagePack reader can look into it.
        let plain: BTreeMap<String, serde::de::IgnoredAny> = rmp_serde::from_slice(&record.body).unwrap();
        prop_assert_eq!(plain.len(), 4);
    }
}
