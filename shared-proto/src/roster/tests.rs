//! Notes of this version, of others, and of nobody.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::mirror::hold::Holder;

fn note() -> Note {
    Note {
        format: NOTE_VERSION,
        role: Role::Router,
        version: "0.1.0".into(),
        started_at: Millis::from_epoch_ms(1),
        at: Millis::from_epoch_ms(2),
        in_flight: 3,
        lag_ms: 4,
        address: Some("127.0.0.1:8080".into()),
    }
}

fn member(id: &str, role: Role, until: u64) -> Member {
    let note = Note { role, ..note() };
    Member::from(Held {
        holder: Holder(Arc::from(id)),
        until: Millis::from_epoch_ms(until),
        note: note.to_bytes(),
    })
}

#[test]
fn a_note_comes_back_as_it_was_written() {
    assert_eq!(Note::from_bytes(&note().to_bytes()), note());
}

#[test]
fn a_newer_note_is_read_as_far_as_it_is_known() {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Newer<'a> {
        format: u16,
        role: &'a str,
        version: &'a str,
        in_flight: u64,
        mood: &'a str,
    }
    let newer = Newer {
        format: 9,
        role: "oracle",
        version: "7.0.0",
        in_flight: 5,
        mood: "good",
    };
    let read = Note::from_bytes(&rmp_serde::to_vec_named(&newer).unwrap());
    assert_eq!(
        (read.format, read.role, read.in_flight),
        (9, Role::Other, 5)
    );
    assert_eq!(read.version, "7.0.0");
}

#[test]
fn long_texts_are_cut_where_a_character_ends() {
    let long = Note {
        version: "é".repeat(4_000),
        address: Some("x".repeat(10_000)),
        ..note()
    };
    let bytes = long.to_bytes();
    assert!(bytes.len() <= MAX_NOTE_BYTES);
    assert_eq!(Note::from_bytes(&bytes).version, "é".repeat(MAX_TEXT));
}

#[test]
fn routers_count_while_they_live_and_whoever_asks_lives() {
    let members = [
        member("a", Role::Router, 100),
        member("b", Role::Router, 50),
        member("c", Role::Coordinator, 100),
        // A router of a version that calls itself something else still takes its share.
        member("d", Role::Other, 100),
    ];
    let live = |at| live_routers(&members, Millis::from_epoch_ms(at));
    assert_eq!((live(10), live(50), live(100)), (3, 2, 1));
    assert_eq!(live_routers(&[], Millis::default()), 1);
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..5_000)) {
        let read = Note::from_bytes(&bytes);
        prop_assert!(read.version.chars().count() <= MAX_TEXT);
    }
}
