//! The ring: what is kept, and what is a gap.

use crate::clock::Millis;
use crate::mirror::key::Key;
use crate::mirror::log::{Logged, Position, TailError};
use crate::mirror::record::{Record, Revision};

use super::Ring;

fn put(revision: u64, body: usize) -> Logged {
    Logged::Put(Record {
        key: Key::Health("a".into()),
        version: 1,
        revision: Revision::new(revision),
        written_at: Millis::default(),
        expires_at: None,
        body: vec![0; body].into(),
    })
}

fn minors(ring: &Ring, from: Position, limit: usize) -> Result<Vec<u64>, TailError> {
    let entries = ring.after(from, limit)?;
    Ok(entries.iter().map(|entry| entry.position.minor()).collect())
}

#[test]
fn reads_on_from_every_kept_position() {
    let mut ring = Ring::new(7, 3, usize::MAX);
    assert_eq!(minors(&ring, Position::new(7, 0), 9), Ok(vec![]));
    for n in 1..=5 {
        assert_eq!(ring.push(put(n, 1)), Position::new(7, n));
    }
    assert_eq!(minors(&ring, Position::new(7, 5), 9), Ok(vec![]));
    assert_eq!(minors(&ring, Position::new(7, 4), 9), Ok(vec![5]));
    assert_eq!(minors(&ring, Position::new(7, 2), 9), Ok(vec![3, 4, 5]));
    assert_eq!(minors(&ring, Position::new(7, 2), 2), Ok(vec![3, 4]));
    assert_eq!(
        minors(&ring, Position::new(7, 1), 9),
        Err(TailError::Gap),
        "trimmed"
    );
    assert_eq!(
        minors(&ring, Position::new(7, 6), 9),
        Err(TailError::Gap),
        "never was"
    );
    assert_eq!(
        minors(&ring, Position::new(6, 4), 9),
        Err(TailError::Gap),
        "another log"
    );
}

#[test]
fn a_log_begun_anew_knows_no_old_position() {
    let mut ring = Ring::new(1, 8, usize::MAX);
    ring.push(put(1, 1));
    let old = ring.head();
    ring.begin_anew(2);
    ring.push(put(2, 1));
    assert_eq!(minors(&ring, old, 9), Err(TailError::Gap));
    assert_eq!(minors(&ring, Position::new(2, 0), 9), Ok(vec![1]));
}

#[test]
fn large_entries_push_out_more_than_small_ones() {
    let mut ring = Ring::new(1, 100, 10_000);
    for n in 1..=50 {
        ring.push(put(n, 0));
    }
    assert_eq!(
        minors(&ring, Position::new(1, 11), 99).unwrap().len(),
        39,
        "39 * 256 <= 10,000"
    );
    assert_eq!(minors(&ring, Position::new(1, 10), 99), Err(TailError::Gap));
    ring.push(put(51, 20_000));
    assert_eq!(
        minors(&ring, Position::new(1, 50), 99),
        Ok(vec![51]),
        "the newest stays"
    );
    ring.push(put(52, 0));
    assert_eq!(minors(&ring, Position::new(1, 51), 99), Ok(vec![52]));
    assert_eq!(minors(&ring, Position::new(1, 50), 99), Err(TailError::Gap));
}
