//! What in a refusal's text is the upstream's own, and what it repeats of the request.
//!
//! A pattern is evidence only where a place of it was not written by the client.
//! The codes and types of the refusal's JSON are the upstream's own wherever
//! they stand; so what a conversation merely mentions hides no code.

use std::cell::OnceCell;
use std::ops::Range;

use super::facts::Facts;
use super::pattern::Pat;
use super::spans;
use crate::asked::{self, Asked};

/// Letters and digits on either side that are taken for a part of a phrase's word.
const WORD_MAX: usize = 32;
/// Quotes of one text that are looked at; in the rest nothing is believed.
const QUOTES_MAX: usize = 64;
/// What quotes begin and end with.
const QUOTES: [char; 15] = [
    '\'', '"', '`', '\u{2018}', '\u{2019}', '\u{201a}', '\u{201b}', '\u{201c}', '\u{201d}',
    '\u{201e}', '\u{201f}', '\u{ab}', '\u{bb}', '\u{300c}', '\u{300d}',
];
/// What refusals of any request are made of: beside one of these a part of a
/// pattern has to be the upstream's own by itself.
const USUAL: [&str; 3] = ["invalid", "incorrect", "missing"];

/// Tells quotes from the upstream's own words in one text.
#[derive(Debug)]
pub(super) struct Echo<'t> {
    text: &'t str,
    asked: Option<&'t Asked<'t>>,
    /// What the upstream was asked for, in the client's stead.
    model: Option<&'t str>,
    facts: &'t Facts,
    /// The text without what it quotes.
    unquoted: OnceCell<String>,
}

impl<'t> Echo<'t> {
    /// Of lowercase `text`, whose codes and types are in `facts`.
    pub(super) const fn new(
        text: &'t str,
        (asked, model): (Option<&'t Asked<'t>>, Option<&'t str>),
        facts: &'t Facts,
    ) -> Self {
        Self {
            text,
            asked,
            model,
            facts,
            unquoted: OnceCell::new(),
        }
    }

    /// Whether the client wrote `phrase`, or it is in the name of its model.
    pub(super) fn asked(&self, phrase: &str) -> bool {
        self.model
            .is_some_and(|name| asked::name_says(name, phrase))
            || self.asked.is_some_and(|asked| asked.says(phrase))
    }

    /// Whether `phrase` stands somewhere in the upstream's own words.
    pub(super) fn hears(&self, phrase: &str) -> bool {
        !phrase.is_empty()
            && spans::of_part(self.text, phrase, false, &mut |span| self.is_own(span))
    }

    /// Whether a place of `pattern`, which fits, is the upstream's own.
    pub(super) fn is_evidence(&self, pattern: Pat) -> bool {
        if self.asked.is_none() && self.model.is_none() {
            return true;
        }
        match pattern {
            Pat::Has(part) => spans::of_part(self.text, part, false, &mut |span| self.is_own(span)),
            Pat::Word(part) => spans::of_part(self.text, part, true, &mut |span| self.is_own(span)),
            Pat::Seq(..) | Pat::Seq3(..) | Pat::Near(..) => self.parts_are_own(pattern),
        }
    }

    fn parts_are_own(&self, pattern: Pat) -> bool {
        let parts = pattern.parts();
        let usual = parts.iter().any(|part| USUAL.contains(part));
        if usual
            && parts
                .iter()
                .any(|part| !USUAL.contains(part) && self.asked(part))
        {
            return false;
        }
        let text = self.unquoted.get_or_init(|| self.without_quotes());
        spans::of(text, pattern, &mut |span| self.is_own_in(text, span))
    }

    fn is_own(&self, span: Range<usize>) -> bool {
        self.is_own_in(self.text, span)
    }

    fn is_own_in(&self, text: &str, span: Range<usize>) -> bool {
        let line = spans::line_around(text, &span);
        if self.facts.words().any(|word| word == line.trim()) {
            return true;
        }
        let whole = whole_words(text, span);
        !self.asked(text.get(whole).unwrap_or_default())
    }

    /// The text with spaces in place of each quote that the client wrote.
    fn without_quotes(&self) -> String {
        let mut out = String::with_capacity(self.text.len());
        let mut quotes = 0_usize;
        for line in self.text.split_inclusive('\n') {
            for (at, part) in line.split_inclusive(QUOTES).enumerate() {
                // What stands before the first is in none.
                let quoted = at > 0 && part.contains(char::is_alphanumeric);
                quotes = quotes.saturating_add(usize::from(quoted));
                if quoted && (quotes > QUOTES_MAX || self.asked(part)) {
                    let blank = |c: char| {
                        if QUOTES.contains(&c) || c == '\n' {
                            c
                        } else {
                            ' '
                        }
                    };
                    out.extend(part.chars().map(blank));
                } else {
                    out.push_str(part);
                }
            }
        }
        out
    }
}

/// The span with the letters and digits that belong to its first and last words,
/// and the backslash of an escape that it begins in.
fn whole_words(text: &str, span: Range<usize>) -> Range<usize> {
    let bytes = text.as_bytes();
    let before = bytes.get(..span.start).unwrap_or_default();
    let after = bytes.get(span.end..).unwrap_or_default();
    let of_word = |b: &&u8| b.is_ascii_alphanumeric();
    let letters = before
        .iter()
        .rev()
        .take(WORD_MAX)
        .take_while(of_word)
        .count();
    let start = span.start.saturating_sub(letters);
    let before = bytes.get(..start).unwrap_or_default();
    let strokes = before
        .iter()
        .rev()
        .take(WORD_MAX)
        .take_while(|b| **b == b'\\');
    let start = start.saturating_sub(strokes.count());
    let letters = after.iter().take(WORD_MAX).take_while(of_word).count();
    start..span.end.saturating_add(letters)
}

#[cfg(test)]
mod tests;
