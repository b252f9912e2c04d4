//! Where in a text a pattern fits: each place on its own, the innermost of those
//! that lie in each other.

use std::ops::Range;

use memchr::memmem;

use super::pattern::{PLACES_MAX, Pat, window};
use crate::hint::document::cut;

/// Whether one of the places is `wanted`; at most [`PLACES_MAX`] are looked at.
pub(super) fn of(text: &str, pattern: Pat, wanted: &mut dyn FnMut(Range<usize>) -> bool) -> bool {
    let mut left = PLACES_MAX;
    let mut wanted = |span: Range<usize>| {
        left = left.saturating_sub(1);
        wanted(span)
    };
    match pattern {
        Pat::Has(part) => of_part(text, part, false, &mut wanted),
        Pat::Word(part) => of_part(text, part, true, &mut wanted),
        Pat::Seq(a, b) => in_order(text, &[a, b], &mut wanted),
        Pat::Seq3(a, b, c) => in_order(text, &[a, b, c], &mut wanted),
        Pat::Near(a, b, gap) => {
            near(text, (a, b), gap, &mut wanted) || near(text, (b, a), gap, &mut wanted)
        }
    }
}

/// The same of one part, as a `whole` word or anywhere.
pub(super) fn of_part(
    text: &str,
    part: &str,
    whole: bool,
    wanted: &mut dyn FnMut(Range<usize>) -> bool,
) -> bool {
    let places = memmem::find_iter(text.as_bytes(), part.as_bytes());
    let spans = places.map(|at| at..at.saturating_add(part.len()));
    spans
        .filter(|span| !whole || is_word(text, span))
        .take(PLACES_MAX)
        .any(wanted)
}

fn is_word(text: &str, span: &Range<usize>) -> bool {
    let before = text.get(..span.start).unwrap_or_default();
    let after = text.get(span.end..).unwrap_or_default();
    !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
}

/// Each line's places of `parts` in this order, which do not overlap.
fn in_order(text: &str, parts: &[&str], wanted: &mut dyn FnMut(Range<usize>) -> bool) -> bool {
    let mut left = PLACES_MAX;
    for line in lines(text) {
        let mut from = line.start;
        while let Some(span) = text
            .get(from..line.end)
            .and_then(|rest| innermost(rest, parts))
        {
            from = from.saturating_add(span.end);
            let start = from.saturating_sub(span.len());
            if left == 0 {
                return false;
            }
            left = left.saturating_sub(1);
            if wanted(start..from) {
                return true;
            }
        }
    }
    false
}

/// The first place where the parts follow each other, from the last place of
/// each but the last that still comes before the next.
fn innermost(text: &str, parts: &[&str]) -> Option<Range<usize>> {
    let mut end = 0_usize;
    for part in parts {
        let at = text.get(end..)?.find(part)?;
        end = end.saturating_add(at).saturating_add(part.len());
    }
    let mut start = end;
    for part in parts.iter().rev() {
        start = text.get(..start)?.rfind(part)?;
    }
    Some(start..end)
}

/// Places of `second` after `first`, at most `gap` characters behind it.
fn near(
    text: &str,
    (first, second): (&str, &str),
    gap: usize,
    wanted: &mut dyn FnMut(Range<usize>) -> bool,
) -> bool {
    let places = memmem::find_iter(text.as_bytes(), first.as_bytes()).take(PLACES_MAX);
    let mut spans = places.filter_map(|start| {
        let after = text.get(start.saturating_add(first.len())..)?;
        let close = cut(after, window(second, gap)).split('\n').next()?;
        let (between, _) = close.split_once(second)?;
        let length = first.len().saturating_add(between.len());
        let end = start.saturating_add(length).saturating_add(second.len());
        // With another first part in between, that one is the closer.
        (between.chars().count() <= gap && !between.contains(first)).then_some(start..end)
    });
    spans.any(wanted)
}

/// Where each line stands.
fn lines(text: &str) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0_usize;
    text.split_inclusive('\n').map(move |line| {
        let line_start = start;
        start = start.saturating_add(line.len());
        line_start..start
    })
}

/// The line in which `span` stands.
pub(super) fn line_around<'t>(text: &'t str, span: &Range<usize>) -> &'t str {
    let before = text.get(..span.start).unwrap_or_default();
    let start = before.rfind('\n').map_or(0, |at| at.saturating_add(1));
    let after = text.get(span.end..).unwrap_or_default();
    let length = after.find('\n').unwrap_or(after.len());
    text.get(start..span.end.saturating_add(length))
        .unwrap_or_default()
}
