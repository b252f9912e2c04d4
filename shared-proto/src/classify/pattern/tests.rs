//! Each kind of pattern, and its borders.

use super::Pat::{Has, Near, Seq, Seq3, Word};
use super::{Family, Finder, Signs, matches, word_near};

#[test]
fn kinds() {
    let table = [
        (Has("rate"), "operate", true),
        (Word("rate"), "operate", false),
        (Word("rate"), "the rate, now", true),
        (Word("tpm"), "operate tpm2 tpm", true),
        (Seq("a", "b"), "a then b", true),
        (Seq("a", "b"), "b then a", false),
        (Seq("a", "b"), "a\nb", false),
        (Seq("max", "token"), "max_tokens", true),
        (Seq3("a", "b", "c"), "xaxbxc", true),
        (Seq3("a", "b", "c"), "acb", false),
        (Near("x", "y", 3), "x123y", true),
        (Near("x", "y", 3), "y123x", true),
        (Near("x", "y", 3), "x1234y", false),
        (Near("x", "y", 3), "x1234x y", true),
        (Near("x", "y", 3), "x模模模y", true),
        (Near("x", "y", 3), "x模模模模y", false),
    ];
    for (pattern, text, expected) in table {
        assert_eq!(matches(text, pattern), expected, "{pattern:?} in {text}");
    }
}

#[test]
fn words_near_others() {
    assert!(word_near(
        "no such file: not found",
        "file",
        "not found",
        10
    ));
    assert!(word_near("not found: file x", "file", "not found", 10));
    assert!(!word_near("profile not found", "file", "not found", 10));
    assert!(word_near("file-abc not found", "file-", "not found", 10));
    assert!(!word_near(
        "file 0123456789 not found",
        "file",
        "not found",
        10
    ));
}

#[test]
fn one_pass_finds_what_a_search_for_each_would() {
    const OVERLAPPING: Family = Family::new(&[Has("abcd"), Has("bc"), Seq("bc", "cd")]);
    const ABSENT: Family = Family::new(&[Has("x"), Near("ab", "x", 9)]);
    let finder = Finder::of([OVERLAPPING, ABSENT].into_iter());
    assert!(finder.read("-bc-").any(OVERLAPPING));
    assert!(finder.read("abcd").any(OVERLAPPING));
    assert!(!finder.read("bcd").any(ABSENT));
    assert!(!finder.read("").any(OVERLAPPING));
    let blind = Finder {
        automaton: None,
        parts: finder.parts.clone(),
    };
    assert!(blind.read("-bc-").any(OVERLAPPING));
    assert!(!blind.read("-b-").any(OVERLAPPING));
    for family in super::families::all() {
        assert!(!Signs::of("").any(family));
        for pattern in family.patterns {
            let text = pattern.parts().join(" ");
            assert!(Signs::of(&text).any(family), "{pattern:?}");
        }
    }
}
