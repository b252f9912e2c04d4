//! Announcements in prose. A time counts only when it hangs on a word about
//! trying again or resetting: bodies are full of other numbers and dates.

use jiff::tz::Offset;

use super::{Place, Rank, Search, duration, moment};

/// What a time may hang on, and whether that may be a length of time too.
const ANCHORS: &[(&str, bool)] = &[
    ("try again", true),
    ("retry", true),
    ("reset", true),
    ("resets", true),
    ("available", false),
    ("regain access", false),
    ("wait", false),
];
/// What may stand between the anchor and the connector.
const FILLERS: &[&str] = &[
    "your request",
    "the request",
    "this request",
    "request",
    "again",
    "time",
];
const CONNECTORS: &[&str] = &["in", "after", "at", "on", "until", "is", ":"];
/// What may stand before the number.
const HEDGES: &[&str] = &["about", "approximately", "around", "another"];

/// Of China, Taiwan and Japan.
const CHINESE_ANCHORS: &[&str] = &["重置", "重试", "重試", "再試行"];
const CHINESE_UNITS: &[(&str, &str)] = &[
    ("秒", "s"),
    ("分钟", "m"),
    ("分鐘", "m"),
    ("分", "m"),
    ("小时", "h"),
    ("小時", "h"),
    ("時間", "h"),
    ("天", "d"),
];

/// Providers whose zone-less times are China's.
const CHINA: &[&str] = &["zai", "z.ai", "glm", "zhipu", "bigmodel"];
/// Occurrences of one anchor that are looked at.
const MATCHES_MAX: usize = 32;
/// Longest date and time before a Chinese anchor, in bytes.
const BEHIND_MAX_BYTES: usize = 48;

/// How far ahead trying again may be mentioned, in bytes.
const WAIT_BEFORE_MAX_BYTES: usize = 80;

const FIELD: &str = "text";

/// Notes what lowercase `text` of `provider` announces.
pub(super) fn search(text: &str, provider: &str, place: Place<'_>, search: &mut Search) {
    let provider = provider.to_ascii_lowercase();
    let from_china = CHINA.iter().any(|name| provider.contains(name));
    let holds = |anchor: &str| memchr::memmem::find(text.as_bytes(), anchor.as_bytes()).is_some();
    for (anchor, lengths) in ANCHORS.iter().filter(|(anchor, _)| holds(anchor)) {
        for (at, _) in text.match_indices(anchor).take(MATCHES_MAX) {
            let (before, rest) = text.split_at(at);
            if before.ends_with(char::is_alphanumeric) {
                continue;
            }
            let rest = rest.strip_prefix(anchor).unwrap_or(rest);
            // Z.ai's own sentence, also when it comes through a relay.
            let china = from_china || before.ends_with("your limit will ");
            anchored(rest, (*lengths, china), place, search);
        }
    }
    let waits = holds("wait ").then(|| text.match_indices("wait ").take(MATCHES_MAX));
    for (at, anchor) in waits.into_iter().flatten() {
        let (before, rest) = text.split_at(at);
        let told = ["please ", "must ", "need to "]
            .iter()
            .any(|word| before.ends_with(word));
        let rest = rest.strip_prefix(anchor).unwrap_or(rest);
        if let Some(ms) = wait_before(rest, told) {
            search.wait(place, Rank::Prose, ms, FIELD);
        }
    }
    // No ASCII text has any.
    let foreign = if text.is_ascii() {
        &[]
    } else {
        CHINESE_ANCHORS
    };
    for anchor in foreign.iter().filter(|anchor| holds(anchor)) {
        for (at, _) in text.match_indices(anchor).take(MATCHES_MAX) {
            let (before, rest) = text.split_at(at);
            chinese(
                before,
                rest.strip_prefix(anchor).unwrap_or(rest),
                place,
                search,
            );
        }
    }
}

/// What is left in words: `resets in 13 days`, as ms; nothing for 0.
pub(crate) fn countdown(text: &str) -> Option<u64> {
    ["resets in ", "reset in "].iter().find_map(|anchor| {
        let mut places = text.match_indices(anchor).take(MATCHES_MAX);
        places.find_map(|(at, _)| {
            let rest = text.get(at.saturating_add(anchor.len())..)?;
            duration::prose(rest).filter(|ms| *ms > 0)
        })
    })
}

fn local(china: bool) -> Offset {
    if china {
        Offset::constant(8)
    } else {
        Offset::UTC
    }
}

fn anchored(rest: &str, (lengths, china): (bool, bool), place: Place<'_>, search: &mut Search) {
    let Some(value) = after_connector(rest) else {
        // A date needs no connector: `resets 2026-10-07 00:00 UTC`.
        if let Some((at, _)) = moment::prose(rest.trim_start_matches(' '), local(china), search.now)
        {
            search.until(place, Rank::Prose, at, FIELD);
        }
        return;
    };
    if let Some((at, _)) = moment::prose(value, local(china), search.now) {
        search.until(place, Rank::Prose, at, FIELD);
    } else if lengths && let Some(ms) = duration::prose(value) {
        search.wait(place, Rank::Prose, ms, FIELD);
    }
}

/// `39023 seconds before retrying`, or, where one is `told` to wait, `12
/// hours`: a wait that hangs on trying again, or on nothing else.
fn wait_before(rest: &str, told: bool) -> Option<u64> {
    let rest = rest.strip_prefix("for ").unwrap_or(rest);
    let near = super::document::cut(rest, WAIT_BEFORE_MAX_BYTES);
    let again = ["retry", "trying again", "you retry", "you try again"];
    let length = match near.split_once(" before ") {
        Some((length, then)) if again.iter().any(|word| then.starts_with(word)) => length,
        None if told => near,
        Some(_) | None => return None,
    };
    duration::prose(length)
}

/// What follows the connector: ` your request in about 20s` gives `20s`.
fn after_connector(rest: &str) -> Option<&str> {
    let rest = skip_words(rest, FILLERS);
    let rest = CONNECTORS.iter().find_map(|word| strip_word(rest, word))?;
    Some(skip_words(rest, HEDGES).trim_start_matches([' ', ':']))
}

fn skip_words<'t>(mut text: &'t str, words: &[&str]) -> &'t str {
    while let Some(rest) = words.iter().find_map(|word| strip_word(text, word)) {
        text = rest;
    }
    text
}

/// Strips spaces and `word`, if it ends there.
fn strip_word<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let trimmed = text.trim_start_matches(' ');
    let rest = trimmed.strip_prefix(word)?;
    let spaced = trimmed.len() < text.len() || word == ":";
    (spaced && !rest.starts_with(char::is_alphanumeric) || word == ":").then_some(rest)
}

/// In Chinese the time stands before the word (`将在 2026-08-25 07:41:44 重置`,
/// `30 秒后重试`) or after `时间`.
fn chinese(before: &str, after: &str, place: Place<'_>, search: &mut Search) {
    let before = before.trim_end_matches([' ', 'に']);
    let start = before.len().saturating_sub(BEHIND_MAX_BYTES);
    let tail = before
        .get(before.ceil_char_boundary(start)..)
        .unwrap_or(before);
    if let Some(ms) = chinese_length(tail) {
        search.wait(place, Rank::Prose, ms, FIELD);
        return;
    }
    let after = after.trim_start_matches(['时', '间', ':', '：', ' ', '为', '于']);
    let behind = tail.char_indices().find_map(|(at, _)| {
        let (moment, rest) = moment::prose(tail.get(at..)?, local(true), search.now)?;
        rest.is_empty().then_some(moment)
    });
    let moment = behind.or_else(|| moment::prose(after, local(true), search.now).map(|(at, _)| at));
    if let Some(at) = moment {
        search.until(place, Rank::Prose, at, FIELD);
    }
}

fn chinese_length(tail: &str) -> Option<u64> {
    let tail = tail
        .strip_suffix(['后', '後'])?
        .trim_end_matches(['之', '以', ' ']);
    let (number, unit) = CHINESE_UNITS
        .iter()
        .find_map(|(word, unit)| Some((tail.strip_suffix(word)?, unit)))?;
    let number = number.trim_end_matches(' ');
    let digits = number
        .rfind(|c: char| !c.is_ascii_digit() && c != '.')
        .map_or(0, |at| number.ceil_char_boundary(at.saturating_add(1)));
    duration::go(&format!("{}{unit}", number.get(digits..)?))
}
