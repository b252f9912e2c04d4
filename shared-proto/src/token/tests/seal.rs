//! What is sealed opens at its place, under its key, and nowhere else.

#![expect(clippy::arithmetic_side_effects, reason = "a test fails by panicking")]

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::{acme, keyring, line, sealed, tokens};
use crate::id::ConnectionId;
use crate::mirror::record::encode_body;
use crate::token::{Keyring, MAX_LINES, Place, SealError, Sealed, StoredTokens};

fn place(connection: &ConnectionId, mark: u64, generation: u64) -> Place<'_> {
    Place {
        connection,
        mark,
        generation,
    }
}

#[test]
fn it_opens_where_it_was_sealed_for_and_nowhere_else() {
    let (acme, other) = (acme(), ConnectionId::from("acme-2"));
    let keys = keyring(&[1, 2]);
    let text = sealed(&keys, place(&acme, 7, 3), &tokens("access", "refresh"), 9);
    let opened = keys.open(place(&acme, 7, 3), &text).unwrap();
    assert_eq!(opened.access.expose_secret(), "access");
    assert_eq!(opened.refresh.expose_secret(), "refresh");
    for elsewhere in [place(&other, 7, 3), place(&acme, 8, 3), place(&acme, 7, 4)] {
        assert_eq!(keys.open(elsewhere, &text).unwrap_err(), SealError::Damaged);
    }
    assert_eq!(
        keyring(&[2]).open(place(&acme, 7, 3), &text).unwrap_err(),
        SealError::UnknownKey
    );
    assert!(keyring(&[2, 1]).open(place(&acme, 7, 3), &text).is_ok());
}

#[test]
fn nothing_of_it_is_seen() {
    let acme = acme();
    let keys = keyring(&[1]);
    let tokens = tokens("access-secret", "refresh-secret");
    let text = sealed(&keys, place(&acme, 7, 0), &tokens, 9);
    let mut line = line(7, 0, 0);
    line.sealed = text;
    let stored = StoredTokens { lines: vec![line] };
    let shown = format!("{keys:?} {tokens:?} {stored:?}");
    let body = encode_body(&stored).unwrap();
    let all = format!("{shown} {}", String::from_utf8_lossy(&body));
    for secret in ["access-secret", "refresh-secret", "\u{1}\u{1}\u{1}\u{1}"] {
        assert!(!all.contains(secret), "{all}");
    }
}

#[test]
fn what_an_older_key_sealed_is_sealed_anew_and_the_rest_is_left() {
    let acme = acme();
    let pair = tokens("access", "refresh");
    let under = |keys: &Keyring, mark: u64| {
        let mut line = line(mark, 2, 0);
        line.sealed = sealed(keys, place(&acme, mark, 2), &pair, 9);
        line
    };
    let (old, new, lost) = (keyring(&[1]), keyring(&[2, 1]), keyring(&[3]));
    let stored = StoredTokens {
        lines: vec![under(&old, 1), under(&new, 2), under(&lost, 3)],
    };
    let mut nonces = 0;
    let renewed = new.renewed(&acme, &stored, &mut || {
        nonces += 1;
        Some([nonces; 12])
    });
    assert_eq!(nonces, 1);
    assert_eq!(renewed.lines[1..], stored.lines[1..]);
    let only_new = keyring(&[2]);
    let opened = only_new.open(place(&acme, 1, 2), &renewed.lines[0].sealed);
    assert_eq!(opened.unwrap().refresh.expose_secret(), "refresh");
    // Without randomness all stays as it is.
    assert_eq!(new.renewed(&acme, &stored, &mut || None), stored);
}

#[test]
fn there_are_so_many_lines_and_the_oldest_goes() {
    let mut stored = StoredTokens::default();
    for mark in 0..10 {
        stored = stored.with(line(mark, 0, 100 - mark));
        stored = stored.with(line(mark, 1, 100 + mark));
    }
    let marks: Vec<u64> = stored.lines.iter().map(|line| line.mark).collect();
    assert_eq!(marks, [6, 7, 8, 9]);
    assert_eq!(marks.len(), MAX_LINES);
    assert!(stored.lines.iter().all(|line| line.status.generation == 1));
}

proptest! {
    #[test]
    fn any_tokens_come_back(access in "\\PC{0,40}", refresh in "\\PC{0,40}", mark: u64, generation: u64) {
        let acme = acme();
        let keys = keyring(&[5]);
        let place = place(&acme, mark, generation);
        let text = sealed(&keys, place, &tokens(&access, &refresh), 1);
        let opened = keys.open(place, &text).unwrap();
        prop_assert_eq!(opened.access.expose_secret(), access);
        prop_assert_eq!(opened.refresh.expose_secret(), refresh);
    }

    #[test]
    fn no_text_but_a_sealed_one_opens(text in "\\PC{0,80}", flip in 0_usize..400) {
        let acme = acme();
        let keys = keyring(&[5]);
        let place = place(&acme, 1, 1);
        let good = sealed(&keys, place, &tokens("an access token", "a refresh token"), 1);
        let made_up = Sealed { key: good.key.clone(), text };
        prop_assert_eq!(keys.open(place, &made_up).unwrap_err(), SealError::Damaged);
        let mut bytes = good.text.into_bytes();
        let at = flip % bytes.len();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = Sealed { key: good.key, text: String::from_utf8(bytes).unwrap() };
        prop_assert_eq!(keys.open(place, &changed).unwrap_err(), SealError::Damaged);
    }
}
