//! The small parts.

use proptest::prelude::*;

use crate::stream::arguments::{Balance, Print};
use crate::stream::dialect::{frame, may_be_empty, may_cut};
use crate::stream::failure::{body_of_text, real_error};
use crate::stream::lenient::{Filled, Int, Many, Maybe, Text, normalise, object};

#[test]
fn balance_of_arguments() {
    for (text, closed, whole) in [
        ("", true, false),
        ("  ", true, false),
        ("{}", true, true),
        ("{\"a\":[1,{\"b\":\"}\"}]}", true, true),
        ("{\"a\":\"\\\"}", false, false),
        ("{\"a\":\"\\\\\"}", true, true),
        ("{\"a\"", false, false),
        ("[", false, false),
        ("null", true, true),
        ("\"half", false, false),
    ] {
        let mut balance = Balance::default();
        for piece in text.split_inclusive(|_| true) {
            balance.feed(piece);
        }
        assert_eq!(
            (balance.closed(), balance.whole()),
            (closed, whole),
            "{text}"
        );
    }
}

#[test]
fn what_a_closing_event_adds() {
    let mut print = Print::default();
    assert_eq!(print.missing("whole"), Some("whole"));
    print.feed("wh");
    print.feed("");
    print.feed("\u{fc}");
    assert_eq!(print.missing("wh\u{fc}ole"), Some("ole"));
    assert_eq!(print.missing("wh\u{fc}"), None);
    assert_eq!(print.missing("who\u{fc}le"), None);
    assert_eq!(print.missing("w"), None);
    assert_eq!(print.missing("whoxole"), None);
}

#[test]
fn errors_that_are_none() {
    for (text, real) in [
        ("null", false),
        ("false", false),
        ("0", false),
        ("\"\"", false),
        ("{}", false),
        ("[ ]", false),
        ("\" \"", false),
        ("\"x\"", true),
        ("{\"a\":null}", true),
        ("true", true),
        ("500", true),
    ] {
        let raw = serde_json::from_str(text).unwrap();
        assert_eq!(real_error(Some(raw)).is_some(), real, "{text}");
    }
    assert!(real_error(None).is_none());
}

#[test]
fn bodies_of_error_text() {
    for (text, wrap, body) in [
        ("{\"code\":1}", true, Some("{\"error\":{\"code\":1}}")),
        (" {\"code\":1}\n", false, Some("{\"code\":1}")),
        ("\"no\"", false, Some("{\"error\":\"no\"}")),
        (
            "no \"way\"",
            true,
            Some("{\"error\":{\"message\":\"no \\\"way\\\"\"}}"),
        ),
        ("500", true, Some("{\"error\":{\"message\":\"500\"}}")),
        ("  ", false, None),
    ] {
        let expected = body.map(|body| bytes::Bytes::from(body.to_owned()));
        assert_eq!(body_of_text(text.as_bytes(), wrap), expected, "{text}");
    }
}

#[test]
fn finish_words() {
    assert!(may_cut("length") && may_cut("MAX_TOKENS") && may_cut("content_filter"));
    assert!(!may_cut("stop") && !may_cut("tool_calls"));
    assert!(may_be_empty("tool_use") && may_be_empty("length") && !may_be_empty("end_turn"));
}

#[test]
fn framing_of_several_lines() {
    assert_eq!(frame(b"", b"a"), b"data: a\n\n");
    assert_eq!(frame(b"n", b"a\nb"), b"event: n\ndata: a\ndata: b\n\n");
}

#[derive(serde::Deserialize)]
struct Odd<'a> {
    #[serde(borrow, default)]
    text: Text<'a>,
    #[serde(default)]
    filled: Filled,
    #[serde(default)]
    int: Int,
    #[serde(default)]
    maybe: Maybe<Inner>,
    #[serde(default)]
    many: Many<Inner>,
}

#[derive(serde::Deserialize)]
struct Inner {
    #[serde(default)]
    n: Int,
}

#[test]
fn lenient_values() {
    let values = [
        "null",
        "true",
        "-1",
        "1.5",
        "7",
        "\"\"",
        "\"a\\n\"",
        "[]",
        "[{}]",
        "{}",
        "{\"n\":3}",
    ];
    for value in values {
        let json = format!(
            "{{\"text\":{value},\"filled\":{value},\"int\":{value},\"maybe\":{value},\"many\":{value}}}"
        );
        let odd: Odd<'_> = object(json.as_bytes()).unwrap();
        let solid = ["-1", "1.5", "7", "\"a\\n\"", "[{}]", "{\"n\":3}"].contains(&value);
        assert_eq!(odd.filled.0, solid, "{value}");
        assert_eq!(odd.text.filled(), solid, "{value}");
        assert_eq!(odd.text.as_str(), (value == "\"a\\n\"").then_some("a\n"));
        assert_eq!(odd.int.0, (value == "7").then_some(7), "{value}");
        let n = odd.maybe.0.map(|inner| inner.n.0);
        assert_eq!(n.is_some(), value.starts_with('{'), "{value}");
        assert_eq!(odd.many.len(), usize::from(value == "[{}]"), "{value}");
        assert!(odd.many.present());
    }
    let numbers: Odd<'_> = object(b"{\"int\":\" 12 \",\"many\":[1,{\"n\":4.0},[],{}]}").unwrap();
    assert_eq!(numbers.int.0, Some(12));
    let many: Vec<_> = numbers
        .many
        .iter()
        .map(|(position, inner)| (position, inner.n.0))
        .collect();
    assert_eq!(many, [(1, Some(4)), (3, None)]);
    assert!(!object::<Odd<'_>>(b"{}").unwrap().many.present());
    assert!(object::<Odd<'_>>(b"[]").is_err());
}

#[test]
fn normalised_objects() {
    for (input, output) in [
        (&b"{\"a\":1,\"a\":2}"[..], Some("{\"a\":2}")),
        (b"{\"a\":\"\xff\"}", Some("{\"a\":\"\u{fffd}\"}")),
        (b"[{\"a\":1},2]", Some("{\"a\":1}")),
        (b"[]", Some("{}")),
        (b"7", Some("{}")),
        (b"{", None),
        (b"", None),
    ] {
        let text = normalise(input).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(text.as_deref(), output);
    }
}

proptest! {
    #[test]
    fn balance_agrees_with_a_parser(json in "[{}\\[\\]\"\\\\a:,1 ]{0,12}") {
        let parsed: Result<serde_json::Value, _> = serde_json::from_str(&json);
        let mut balance = Balance::default();
        balance.feed(&json);
        if parsed.is_ok() {
            prop_assert!(balance.whole());
        }
    }

    #[test]
    fn prints_do_not_depend_on_the_cuts(text in ".{0,20}", tail in ".{1,5}", cut in 0..20_usize) {
        let cut = text.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(text.len());
        let mut print = Print::default();
        print.feed(&text[..cut]);
        print.feed(&text[cut..]);
        let whole = format!("{text}{tail}");
        prop_assert_eq!(print.missing(&whole), Some(tail.as_str()));
    }
}
