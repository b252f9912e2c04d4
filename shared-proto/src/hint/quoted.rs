//! Announcements that a refusal repeats from its request: they announce nothing.

use std::ops::Range;

use memchr::memmem;

use super::document::{Says, cut};
use super::text;

/// Occurrences of one anchor that are looked at, as many as are read.
const MATCHES_MAX: usize = 32;
/// Between an anchor and its time, in bytes.
const REACH_BYTES: usize = 64;
/// Longest time, in bytes.
const TIME_BYTES: usize = 48;

/// `text` with spaces in place of each anchor that the client wrote with its time;
/// `None` where it wrote none.
pub(super) fn blanked(text: &str, says: Says<'_>) -> Option<String> {
    let mut blanks: Vec<Range<usize>> = Vec::new();
    for anchor in text::anchors() {
        let places = memmem::find_iter(text.as_bytes(), anchor.as_bytes());
        for at in places.take(MATCHES_MAX) {
            let anchor = at..at.saturating_add(anchor.len());
            let is_written = |span: Range<usize>| text.get(span).is_some_and(says);
            if following(text, &anchor).is_some_and(is_written)
                || preceding(text, &anchor).is_some_and(is_written)
            {
                blanks.push(anchor);
            }
        }
    }
    if blanks.is_empty() {
        return None;
    }
    blanks.sort_by_key(|anchor| anchor.start);
    let mut out = String::with_capacity(text.len());
    let mut from = 0_usize;
    for anchor in blanks {
        out.push_str(text.get(from..anchor.start).unwrap_or_default());
        let hidden = anchor.end.saturating_sub(anchor.start.max(from));
        out.extend(std::iter::repeat_n(' ', hidden));
        from = anchor.end.max(from);
    }
    out.push_str(text.get(from..).unwrap_or_default());
    Some(out)
}

fn in_time(c: char) -> bool {
    c.is_ascii_digit() || ":.,-+/ tz".contains(c)
}

/// The anchor and the time that follows it.
fn following(text: &str, anchor: &Range<usize>) -> Option<Range<usize>> {
    let after = text.get(anchor.end..)?.split('\n').next()?;
    let near = cut(after, REACH_BYTES);
    let begins = near.find(|c: char| c.is_ascii_digit())?;
    let time = cut(after.get(begins..)?, TIME_BYTES);
    let ends = time.find(|c| !in_time(c)).unwrap_or(time.len());
    let time = time
        .get(..ends)?
        .trim_end_matches(|c: char| !c.is_ascii_digit());
    let ends = begins.saturating_add(time.len());
    let unit = after
        .get(ends..)?
        .find(|c: char| !c.is_ascii_alphanumeric());
    let unit = unit.unwrap_or_else(|| after.len().saturating_sub(ends));
    let length = ends.saturating_add(unit);
    Some(anchor.start..anchor.end.saturating_add(length))
}

/// The anchor and the time before it, as in Chinese: `5 seconds, try again in 20s`
/// announces what follows.
fn preceding(text: &str, anchor: &Range<usize>) -> Option<Range<usize>> {
    if text.get(anchor.clone())?.is_ascii() {
        return None;
    }
    let before = text.get(..anchor.start)?;
    let line = before.rfind('\n').map_or(0, |at| at.saturating_add(1));
    let start = before.len().saturating_sub(TIME_BYTES).max(line);
    let near = before.get(before.ceil_char_boundary(start)..)?;
    let number = near.rfind(|c: char| c.is_ascii_digit())?;
    let time = near.get(..=number)?;
    let time = time
        .get(time.trim_end_matches(in_time).len()..)?
        .trim_start();
    let behind = near.len().saturating_sub(number).saturating_sub(1);
    let length = time.len().saturating_add(behind);
    Some(anchor.start.saturating_sub(length)..anchor.end)
}
