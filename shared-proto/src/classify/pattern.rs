//! Patterns over lowercase text, as data.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};

use super::echo::Echo;
use super::families;
use crate::hint::document::cut;

/// One pattern. All but [`Pat::Has`] stay within a line.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pat {
    /// The text, anywhere.
    Has(&'static str),
    /// The text, with no letter or digit on either side.
    Word(&'static str),
    /// The first, later the second.
    Seq(&'static str, &'static str),
    /// The texts in this order, each somewhere after the one before.
    Seq3(&'static str, &'static str, &'static str),
    /// Both in either order, at most so many characters apart.
    Near(&'static str, &'static str, usize),
}

/// Places of one text that are looked at per line.
pub(super) const PLACES_MAX: usize = 64;

/// Patterns that mean the same. Only the families' own files make them, so
/// that each is in the list that [`Signs`] is read with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    patterns: &'static [Pat],
    /// The bits of each pattern's first part: without one of them none fits.
    bits: u64,
}

impl Family {
    /// The patterns of one meaning.
    pub(super) const fn new(patterns: &'static [Pat]) -> Self {
        let mut bits = 0;
        let mut rest = patterns;
        while let [pattern, others @ ..] = rest {
            bits |= bit(pattern.parts()[0]);
            rest = others;
        }
        Self { patterns, bits }
    }

    /// Each of its patterns.
    #[cfg(test)]
    pub(super) const fn patterns(self) -> &'static [Pat] {
        self.patterns
    }
}

/// One of 64 bits for a part, so that most parts that are not in a text are
/// told from those that are without comparing them.
const fn bit(part: &str) -> u64 {
    let bytes = part.as_bytes();
    let (first, last) = match bytes {
        [first, .., last] => (*first, *last),
        [one] => (*one, *one),
        [] => (0, 0),
    };
    let sum = (bytes.len() as u64)
        .wrapping_mul(7)
        .wrapping_add((first as u64).wrapping_mul(3))
        .wrapping_add(last as u64);
    1_u64.rotate_left((sum & 63) as u32)
}

impl Pat {
    /// What has to be there.
    pub(super) const fn parts(self) -> [&'static str; 3] {
        match self {
            Self::Has(a) | Self::Word(a) => [a; 3],
            Self::Seq(a, b) | Self::Near(a, b, _) => [a, b, b],
            Self::Seq3(a, b, c) => [a, b, c],
        }
    }
}

/// Which parts of all patterns stand in a text. Hardly any text holds more
/// than a few, so one pass spares a search for each pattern.
#[derive(Debug, Default)]
pub(super) struct Signs<'t> {
    text: &'t str,
    /// In order.
    found: Vec<&'static str>,
    /// The bits of what was found.
    bits: u64,
}

/// Finds the parts of every family, and tells which is which.
struct Finder {
    /// Absent if it could not be built: then every part may be there.
    automaton: Option<AhoCorasick>,
    parts: Vec<&'static str>,
}

static FINDER: LazyLock<Finder> = LazyLock::new(|| Finder::of(families::all()));

impl Finder {
    fn of(families: impl Iterator<Item = Family>) -> Self {
        let parts = families.flat_map(|family| family.patterns.iter().flat_map(|pat| pat.parts()));
        let parts: Vec<&'static str> = parts.collect::<BTreeSet<_>>().into_iter().collect();
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::DFA))
            .build(&parts)
            .ok();
        Self { automaton, parts }
    }

    fn read<'t>(&self, text: &'t str) -> Signs<'t> {
        let Some(automaton) = &self.automaton else {
            let found = self.parts.clone();
            let bits = u64::MAX;
            return Signs { text, found, bits };
        };
        let mut seen = vec![false; self.parts.len()];
        for found in automaton.find_overlapping_iter(text) {
            if let Some(seen) = seen.get_mut(found.pattern().as_usize()) {
                *seen = true;
            }
        }
        let found = self.parts.iter().zip(seen);
        let found = found.filter_map(|(part, seen)| seen.then_some(*part));
        let found: Vec<&'static str> = found.collect();
        let bits = found.iter().fold(0, |bits, part| bits | bit(part));
        Signs { text, found, bits }
    }
}

impl<'t> Signs<'t> {
    /// Reads lowercase `text`.
    pub(super) fn of(text: &'t str) -> Self {
        FINDER.read(text)
    }

    /// Whether a pattern of `family` fits where the upstream itself speaks.
    pub(super) fn own(&self, family: Family, echo: &Echo<'_>) -> bool {
        self.may(family)
            && family
                .patterns
                .iter()
                .any(|pattern| self.fits(*pattern) && echo.is_evidence(*pattern))
    }

    /// Whether a pattern of `family` fits, whoever wrote it.
    pub(super) fn any(&self, family: Family) -> bool {
        self.may(family) && family.patterns.iter().any(|pattern| self.fits(*pattern))
    }

    /// Whether a first part of a pattern of `family` may be there.
    const fn may(&self, family: Family) -> bool {
        self.bits & family.bits != 0
    }

    fn fits(&self, pattern: Pat) -> bool {
        let found =
            |part: &&str| self.bits & bit(part) != 0 && self.found.binary_search(part).is_ok();
        pattern.parts().iter().all(found) && matches(self.text, pattern)
    }
}

/// Whether `pattern`, whose parts are all there, fits.
fn matches(text: &str, pattern: Pat) -> bool {
    match pattern {
        Pat::Has(part) => text.contains(part),
        Pat::Word(word) => text.lines().any(|line| has_word(line, word)),
        Pat::Seq(a, b) => text.lines().any(|line| in_order(line, &[a, b])),
        Pat::Seq3(a, b, c) => text.lines().any(|line| in_order(line, &[a, b, c])),
        Pat::Near(a, b, gap) => text
            .lines()
            .any(|line| followed(line, a, b, gap) || followed(line, b, a, gap)),
    }
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).take(PLACES_MAX).any(|(at, _)| {
        let (before, rest) = line.split_at(at);
        let after = rest.strip_prefix(word).unwrap_or(rest);
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

/// The earliest place of each is the best one, so no search back is needed.
fn in_order(line: &str, parts: &[&str]) -> bool {
    let mut rest = Some(line);
    for part in parts {
        rest = rest
            .and_then(|rest| rest.split_once(part))
            .map(|(_, rest)| rest);
    }
    rest.is_some()
}

fn followed(line: &str, first: &str, second: &str, gap: usize) -> bool {
    line.match_indices(first).take(PLACES_MAX).any(|(at, _)| {
        let after = line.get(at.saturating_add(first.len())..).unwrap_or("");
        close_ahead(after, second, gap)
    })
}

/// Bytes within which `word` has to begin and end to be at most `gap` characters away.
pub(super) fn window(word: &str, gap: usize) -> usize {
    gap.saturating_mul(4).saturating_add(word.len())
}

fn close_ahead(after: &str, word: &str, gap: usize) -> bool {
    cut(after, window(word, gap))
        .split_once(word)
        .is_some_and(|(between, _)| between.chars().count() <= gap)
}

fn close_behind(before: &str, word: &str, gap: usize) -> bool {
    let start = before.len().saturating_sub(window(word, gap));
    before
        .get(before.ceil_char_boundary(start)..)
        .and_then(|near| near.rsplit_once(word))
        .is_some_and(|(_, between)| between.chars().count() <= gap)
}

/// Whether `word` (not as a part of a longer word; `file-` starts one) and
/// `other` stand at most `gap` characters apart in `line`, in either order.
pub(super) fn word_near(line: &str, word: &str, other: &str, gap: usize) -> bool {
    line.match_indices(word).take(PLACES_MAX).any(|(at, _)| {
        let (before, rest) = line.split_at(at);
        let after = rest.strip_prefix(word).unwrap_or(rest);
        let open = word.ends_with('-') || !after.starts_with(char::is_alphanumeric);
        let whole = !before.ends_with(char::is_alphanumeric) && open;
        whole && (close_ahead(after, other, gap) || close_behind(before, other, gap))
    })
}

#[cfg(test)]
mod tests;
