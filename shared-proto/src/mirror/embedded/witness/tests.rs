//! The note: read as written, and ignored when it makes no sense.

use tempfile::TempDir;

use super::{Note, Witness, parse};

#[test]
fn keeps_the_last_note() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("note");
    let mut witness = Witness::open(&path).unwrap();
    assert_eq!(witness.read().unwrap(), None);
    let notes = [(1, u64::MAX), (2, 0), (u64::MAX, 7)];
    for (opened, revision) in notes {
        let note = Note { opened, revision };
        witness.write(note).unwrap();
        assert_eq!(witness.read().unwrap(), Some(note));
        assert_eq!(Witness::open(&path).unwrap().read().unwrap(), Some(note));
    }
}

#[test]
fn what_is_no_note_says_nothing() {
    let good = b"00000000000000000001 00000000000000000002\n".as_slice();
    let note = Note {
        opened: 1,
        revision: 2,
    };
    assert_eq!(parse(good), Some(note));
    for end in 0..good.len() {
        assert_eq!(parse(&good[..end]), None);
    }
    for bad in [
        b"1 2\n".as_slice(),
        b"00000000000000000001 00000000000000000002\n\n",
        b"99999999999999999999 00000000000000000002\n",
        b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\n",
        b"-0000000000000000001 00000000000000000002\n",
        b"\xff\xff",
    ] {
        assert_eq!(parse(bad), None);
    }
}
