//! Every split of a body decodes to the same data; broken bodies are seen.

use super::Decoder;

const CODED: &[u8] = b"4\r\nWiki\r\nB;name=value\r\npedia in\r\n\r\r\n0\r\nTrailer: x\r\n\r\n";
const PLAIN: &[u8] = b"Wikipedia in\r\n\r";

fn decode(pieces: &[&[u8]]) -> (Vec<u8>, usize, bool) {
    let (mut decoder, mut out, mut input) = (Decoder::default(), Vec::new(), Vec::new());
    let mut taken = 0_usize;
    for piece in pieces {
        input.extend_from_slice(piece);
        let used = decoder.decode(&input, &mut out).unwrap();
        input.drain(..used);
        taken = taken.saturating_add(used);
    }
    (out, taken, decoder.is_done())
}

#[test]
fn every_split_gives_the_same_body() {
    for first in 0..=CODED.len() {
        for second in first..=CODED.len() {
            let pieces = [&CODED[..first], &CODED[first..second], &CODED[second..]];
            let (out, taken, done) = decode(&pieces);
            assert_eq!(out, PLAIN, "split at {first} and {second}");
            assert_eq!(
                (taken, done),
                (CODED.len(), true),
                "split at {first} and {second}"
            );
        }
    }
}

#[test]
fn a_body_without_its_end_is_not_done() {
    for end in 0..CODED.len() {
        assert!(!decode(&[&CODED[..end]]).2, "cut at {end}");
    }
}

#[test]
fn what_follows_the_body_is_left_alone() {
    let (_, taken, done) = decode(&[CODED, b"HTTP/1.1 200 OK\r\n"]);
    assert_eq!((taken, done), (CODED.len(), true));
}

#[test]
fn broken_bodies_are_refused() {
    let long = [b'1'; 300];
    let broken: [&[u8]; 5] = [b"x\r\n", b"-1\r\n", b"2\r\nabc\r\n", b"2\nab\r\n", &long];
    for body in broken {
        let decoded = Decoder::default().decode(body, &mut Vec::new());
        assert!(decoded.is_err(), "{:?}", String::from_utf8_lossy(body));
    }
}
