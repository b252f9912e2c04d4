//! The quick reading finds what the thorough one finds, and refuses the rest.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::super::{Typed, quickly, thoroughly};

/// The text and the address of every field.
fn seen<'a>(typed: &Typed<'a>) -> [Option<(&'a str, *const u8)>; 7] {
    [
        typed.model,
        typed.stream,
        typed.max_tokens,
        typed.max_completion_tokens,
        typed.max_output_tokens,
        typed.background,
        typed.tools,
    ]
    .map(|raw| raw.map(RawValue::get).map(|text| (text, text.as_ptr())))
}

/// A name with an escape can't be borrowed.
fn plain_names(body: &[u8]) -> bool {
    serde_json::from_slice::<HashMap<&str, &RawValue>>(body).is_ok()
}

/// Checks one body; gives whether it is valid.
fn agree(body: &[u8]) -> bool {
    let quick = quickly(body);
    let thorough = thoroughly(body).ok();
    let shown = String::from_utf8_lossy(body);
    match (&quick, &thorough) {
        (Some(quick), Some(thorough)) => assert_eq!(seen(quick), seen(thorough), "{shown}"),
        (Some(_), None) => panic!("only the quick reading accepts {shown}"),
        (None, Some(_)) => assert!(!plain_names(body), "the quick reading refuses {shown}"),
        (None, None) => {}
    }
    thorough.is_some()
}

const CORPUS: [&str; 11] = [
    r#"{"model":"p/m","stream":true,"max_tokens":12,"messages":[{"role":"user","content":"say \"no\"\n"}]}"#,
    " {\n\t\"messages\" : [ { } , [ ] , [ [ -0.5e+10 , 1E9 ] ] ] ,\r\n \"model\" : \"m\" } \n",
    r#"{"max_completion_tokens":18446744073709551615,"max_output_tokens":-0,"max_tokens":1.5,"model":null}"#,
    r#"{"model":"\u00e9\ud83d\ude00\/\b\f\r\t\\","stream":null,"x":"a long text, longer than a block or two of it \\\\\\\" end"}"#,
    r#"{"a":"\ud800","b":{"\udc00":"\ud800\u0041"},"c":[true,false,null],"model":"m"}"#,
    r#"{"m\u006fdel":"hidden","model":"m"}"#,
    r#"{"\ud800":1,"model":"m"}"#,
    r#"{"":{"model":"inner","stream":"no"},"model":["not","a","name"],"Model":1,"model ":2}"#,
    "{\"model\":\"é\u{2019}漢😀\u{7f}\u{80}\",\"é\":\"0123456789abcdeé0123456789abcdef\"}",
    r#"{"x":123456789012345678901234567890e99999,"y":[0,0.0,-1,1e-400],"model":"m"}"#,
    "{}",
];

const BYTES: &[u8] =
    b"\"\\{}[]:,0123456789-+.eEutrfalsn/ \n\t\r\x00\x0b\x1f\x7f\x80\xbf\xc3\xe2\xed\xff";

#[test]
fn on_every_prefix_and_every_changed_byte_of_a_corpus() {
    for body in CORPUS.map(str::as_bytes) {
        agree(body);
        for at in 0..body.len() {
            agree(&body[..at]);
            let mut without = body.to_vec();
            let was = without.remove(at);
            agree(&without);
            for &byte in BYTES {
                let mut changed = body.to_vec();
                changed[at] = byte;
                agree(&changed);
                changed.insert(at, was);
                agree(&changed);
            }
        }
    }
}

/// Every text of up to `length` of `letters` between `before` and `after`;
/// gives how many are valid and how many are not.
fn every(letters: &[&str], length: usize, before: &str, after: &str) -> (usize, usize) {
    let mut verdicts = Vec::new();
    let mut texts = vec![String::new()];
    for _ in 0..=length {
        for text in &texts {
            let whole = format!("{before}{text}{after}");
            verdicts.push(agree(whole.as_bytes()));
        }
        texts = texts
            .iter()
            .flat_map(|text| letters.iter().map(move |letter| format!("{text}{letter}")))
            .collect();
    }
    let count = |valid| verdicts.iter().filter(|verdict| **verdict == valid).count();
    (count(true), count(false))
}

#[test]
fn on_every_short_number_string_and_structure() {
    let (valid, invalid) = every(
        &["0", "1", "-", "+", ".", "e", "E", " "],
        5,
        "{\"stream\":",
        "}",
    );
    assert!(valid > 500 && invalid > 5_000, "{valid} {invalid}");
    let letters = [
        "\"", "\\", "u", "d8", "00", "dC", "n", "x", "\u{1f}", " ", "é",
    ];
    let (valid, invalid) = every(&letters, 4, "{\"model\":\"", "\"}");
    assert!(valid > 500 && invalid > 5_000, "{valid} {invalid}");
    let letters = ["{", "}", "[", "]", ",", ":", "\"a\"", "1", "null", " "];
    let (valid, invalid) = every(&letters, 5, "{\"a\":", "}");
    assert!(valid > 50 && invalid > 5_000, "{valid} {invalid}");
    let letters = [
        "{",
        "}",
        ",",
        "\"model\":1",
        "\"stream\":0",
        " ",
        "\u{feff}",
        "\u{a0}",
    ];
    let (valid, invalid) = every(&letters, 5, "", "");
    assert!(valid > 20 && invalid > 5_000, "{valid} {invalid}");
}

#[test]
fn wherever_the_blocks_of_a_string_begin() {
    let marks = [
        "",
        "\\n",
        "\\\\",
        "\\\"",
        "\\u2019",
        "\\ud83d\\ude00",
        "\\ud800",
        "\\\\\\\"",
        "é",
        "😀",
        "\n",
        "\u{0}",
        "\u{1f}",
        "\\",
        "\\x",
        "\\u12",
        "\\u12g4",
        "\\U0041",
        "\"",
    ];
    let mut valid = 0;
    for mark in marks {
        for second in marks {
            for before in 0..20 {
                for after in [0, 1, 5, 14, 15, 16, 17, 40] {
                    let (before, after) = ("a".repeat(before), "b".repeat(after));
                    let body =
                        format!("{{\"x\":\"{before}{mark}{second}{after}\",\"model\":\"m\"}}");
                    valid += usize::from(agree(body.as_bytes()));
                    let body = format!("{{\"model\":\"{before}{mark}{after}{second}\"}}");
                    valid += usize::from(agree(body.as_bytes()));
                }
            }
        }
    }
    assert!(valid > 20_000, "{valid}");
}

#[test]
fn however_deep() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[1,{\"b\":[", "]}]")] {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        assert!(agree(
            format!("{{\"model\":\"m\",\"x\":{open}0{close}}}").as_bytes()
        ));
        assert!(!agree(
            format!("{{\"model\":\"m\",\"x\":{open}0{close}]}}").as_bytes()
        ));
        assert!(!agree(
            format!("{{\"model\":\"m\",\"x\":{open}0").as_bytes()
        ));
    }
}

#[test]
fn what_is_quick_is_so_for_usual_bodies() {
    for body in [CORPUS[0], CORPUS[1], CORPUS[4], CORPUS[8]] {
        assert!(quickly(body.as_bytes()).is_some(), "{body}");
    }
}

fn gap() -> impl Strategy<Value = String> {
    prop_oneof![6 => Just(String::new()), 1 => "[ \n\r\t]{1,3}"]
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => "[ -!#-\\[\\]-~]{0,30}",
        2 => "[^\"\\\\\u{0}-\u{1f}]{0,6}",
        4 => r#"\\["\\/bfnrt]"#,
        2 => r"\\u[0-9a-fA-F]{4}",
        1 => r"\\u[dD][89a-fA-F][0-9a-f]{2}",
    ];
    proptest::collection::vec(piece, 0..5).prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        text(),
        Just("true".to_owned()),
        Just("false".to_owned()),
        Just("null".to_owned()),
        r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,4})?([eE][-+]?[0-9]{1,6})?",
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let item = (gap(), inner, gap())
            .prop_map(|(a, b, c)| a + &b + &c)
            .boxed();
        let member =
            (gap(), text(), gap(), item.clone()).prop_map(|(a, b, c, d)| a + &b + &c + ":" + &d);
        prop_oneof![
            proptest::collection::vec(item, 0..5).prop_map(|all| format!("[{}]", all.join(","))),
            proptest::collection::vec(member, 0..5)
                .prop_map(|all| format!("{{{}}}", all.join(","))),
            gap().prop_map(|gap| format!("[{gap}]")),
        ]
    })
}

fn body() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        3 => proptest::sample::select(vec![
            "\"model\"",
            "\"stream\"",
            "\"max_tokens\"",
            "\"max_completion_tokens\"",
            "\"max_output_tokens\"",
            "\"messages\"",
            "\"mod\\u0065l\"",
        ])
        .prop_map(str::to_owned),
        2 => text(),
    ];
    let member = (gap(), name, gap(), gap(), value(), gap())
        .prop_map(|(a, name, b, c, value, d)| format!("{a}{name}{b}:{c}{value}{d}"));
    let members = proptest::collection::vec(member, 0..6);
    (gap(), members, gap()).prop_map(|(a, all, b)| format!("{a}{{{}}}{b}", all.join(",")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn on_any_body(body in body()) {
        agree(body.as_bytes());
    }

    #[test]
    fn on_any_damaged_body(
        body in body(),
        damage in proptest::collection::vec(
            (any::<prop::sample::Index>(), proptest::sample::select(BYTES), 0..4_u8),
            1..4,
        ),
    ) {
        let mut body = body.into_bytes();
        for (at, byte, how) in damage {
            if body.is_empty() {
                break;
            }
            let at = at.index(body.len());
            match how {
                0 => body[at] = byte,
                1 => body.insert(at, byte),
                2 => drop(body.remove(at)),
                _ => body.truncate(at),
            }
            agree(&body);
        }
    }
}
