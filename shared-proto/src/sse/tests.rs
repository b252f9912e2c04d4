//! The grammar, at every split.

#![expect(clippy::arithmetic_side_effects, reason = "lengths of small test data")]

use proptest::prelude::*;

use super::*;

type Row = (String, Option<String>, Option<String>, EventKind);

/// Feeds the pieces; gives the events, the bytes they came in, and the verdict.
fn decode(pieces: &[&[u8]], limit: usize) -> (Vec<Row>, Vec<u8>, Option<TooLarge>) {
    let mut decoder = Decoder::new(limit);
    let mut rows = Vec::new();
    let mut raw = Vec::new();
    let mut take = |event: Event| {
        raw.extend_from_slice(event.raw());
        if event.kind() != EventKind::LineFeed {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            rows.push((
                text(event.name()),
                event.data().map(text),
                event.error().map(text),
                event.kind(),
            ));
        }
    };
    for piece in pieces {
        decoder.push(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next() {
                Ok(Some(event)) => take(event),
                Ok(None) => break,
                Err(error) => return (rows, raw, Some(error)),
            }
        }
    }
    if let Some(event) = decoder.finish() {
        take(event);
    }
    (rows, raw, None)
}

fn row(name: &str, data: Option<&str>) -> Row {
    (
        name.to_owned(),
        data.map(str::to_owned),
        None,
        EventKind::Fields,
    )
}

#[track_caller]
fn check(input: &[u8], expected: &[Row]) {
    let whole = decode(&[input], 1000);
    assert_eq!(whole.0, expected);
    for at in 0..=input.len() {
        let (head, tail) = input.split_at(at);
        assert_eq!(decode(&[head, tail], 1000), whole, "split at {at}");
    }
    let bytes: Vec<&[u8]> = input.chunks(1).collect();
    assert_eq!(decode(&bytes, 1000), whole);
}

#[test]
fn line_ends_of_every_kind() {
    let expected = [row("a", Some("1")), row("", Some("2\n3"))];
    for end in ["\n", "\r", "\r\n"] {
        let text = "event: a\ndata: 1\n\ndata: 2\ndata: 3\n\n".replace('\n', end);
        check(text.as_bytes(), &expected);
    }
    check(
        b"event: a\rdata: 1\r\n\rdata: 2\n\n\r\n\ndata: 3\r\n\n",
        &[row("a", Some("1")), row("", Some("2")), row("", Some("3"))],
    );
}

#[test]
fn a_byte_order_mark_is_dropped_at_the_start_only() {
    check(b"\xef\xbb\xbfdata: 1\n\n", &[row("", Some("1"))]);
    let late = decode(&[b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n"], 1000);
    assert_eq!(late.0[1].3, EventKind::Unknown);
    let part = decode(&[b"\xef\xbbdata: 1\n\n"], 1000);
    assert_eq!(part.1, b"\xef\xbbdata: 1\n\n");
    check(b"\xef\xbb", &[]);
}

#[test]
fn values_lose_one_space() {
    check(
        b"data:x\n\ndata:  x\n\ndata\n\ndata:\n\n",
        &[
            row("", Some("x")),
            row("", Some(" x")),
            row("", Some("")),
            row("", Some("")),
        ],
    );
}

#[test]
fn fields_known_and_unknown() {
    check(
        b": hi\n\n:\nfoo: 1\n\nfoo: 1\nbar\n\nid: 1\nretry: 5\n\nevent: a\nevent: b\nfoo:\ndata: x\n:c\n\n",
        &[
            (String::new(), None, None, EventKind::Comment),
            (String::new(), None, None, EventKind::Comment),
            (String::new(), None, None, EventKind::Unknown),
            row("", None),
            row("b", Some("x")),
        ],
    );
    check(
        b"error: {\"code\":1}\n\n",
        &[(
            String::new(),
            None,
            Some("{\"code\":1}".to_owned()),
            EventKind::Fields,
        )],
    );
}

#[test]
fn a_last_event_needs_no_blank_line() {
    check(
        b"data: 1\n\ndata: 2\n",
        &[row("", Some("1")), row("", Some("2"))],
    );
    check(
        b"data: 1\r\n\r\ndata: 2",
        &[row("", Some("1")), row("", Some("2"))],
    );
    for (end, completed) in [
        ("", "data: 2\n\n"),
        ("\n", "data: 2\n\n"),
        ("\r", "data: 2\r\n\n"),
    ] {
        let mut decoder = Decoder::new(100);
        decoder.push(Bytes::from(format!("data: 2{end}")));
        assert!(decoder.next().unwrap().is_none());
        let event = decoder.finish().unwrap().completed();
        assert_eq!(event.raw(), completed);
        assert_eq!(event.data(), Some(&b"2"[..]));
        assert!(decoder.finish().is_none());
    }
}

#[test]
fn a_cr_ends_an_event_at_once() {
    let mut decoder = Decoder::new(100);
    decoder.push(Bytes::from_static(b"data: 1\r\n\r"));
    let event = decoder.next().unwrap().unwrap();
    assert_eq!(event.raw(), &b"data: 1\r\n\r"[..]);
    assert!(decoder.next().unwrap().is_none());
    decoder.push(Bytes::from_static(b"\ndata: 2\r\n\r\n"));
    let rest = decoder.next().unwrap().unwrap();
    assert_eq!(
        (rest.kind(), &rest.raw()[..]),
        (EventKind::LineFeed, &b"\n"[..])
    );
    assert_eq!(decoder.next().unwrap().unwrap().data(), Some(&b"2"[..]));
}

#[test]
fn events_inside_one_chunk_are_slices_of_it() {
    let chunk = Bytes::from_static(b"data: 1\n\nevent: x\ndata: 2\n\n");
    let mut decoder = Decoder::new(100);
    decoder.push(chunk.clone());
    let first = decoder.next().unwrap().unwrap();
    let second = decoder.next().unwrap().unwrap();
    assert_eq!(first.raw().as_ptr(), chunk.as_ptr());
    assert_eq!(second.raw().as_ptr(), chunk[9..].as_ptr());
}

#[test]
fn chunks_pushed_before_the_last_was_read_are_kept() {
    let mut decoder = Decoder::new(100);
    decoder.push(Bytes::from_static(b"data: 1\n\nda"));
    decoder.push(Bytes::from_static(b"ta: 2\n\n"));
    assert_eq!(decoder.next().unwrap().unwrap().data(), Some(&b"1"[..]));
    assert_eq!(decoder.next().unwrap().unwrap().data(), Some(&b"2"[..]));
}

#[test]
fn the_bound_holds_at_every_split() {
    for end in ["\n", "\r", "\r\n"] {
        // The LF of a closing CRLF is not counted: it may come late.
        let extra = 2 * end.len() - usize::from(end == "\r\n");
        let fits = format!("data: {}{end}{end}", "x".repeat(40 - 6 - extra));
        let long = format!("data: {}{end}{end}", "x".repeat(41 - 6 - extra));
        for (text, good) in [(&fits, true), (&long, false)] {
            for at in 0..=text.len() {
                let (head, tail) = text.as_bytes().split_at(at);
                let error = decode(&[head, tail], 40).2;
                assert_eq!(
                    error,
                    (!good).then_some(TooLarge { limit: 40 }),
                    "{end:?} {at}"
                );
            }
        }
    }
    let endless: Vec<&[u8]> = std::iter::repeat_n(&b"xxxxxxxxxx"[..], 5).collect();
    assert_eq!(decode(&endless, 40).2, Some(TooLarge { limit: 40 }));
}

proptest! {
    #[test]
    fn no_split_changes_anything(
        tokens in prop::collection::vec(
            prop::sample::select(vec!["\r", "\n", "\r\n", "data", "event", ":", " ", "x", "\u{feff}", "error"]),
            0..40,
        ),
        cuts in prop::collection::vec(any::<usize>(), 0..10),
    ) {
        let input = tokens.concat().into_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (input.len() + 1)).collect();
        cuts.sort_unstable();
        let mut start = 0;
        let mut pieces: Vec<&[u8]> = Vec::new();
        for cut in cuts.into_iter().chain([input.len()]) {
            pieces.push(&input[start..cut]);
            start = cut;
        }
        prop_assert_eq!(decode(&pieces, 60), decode(&[&input], 60));
    }
}
