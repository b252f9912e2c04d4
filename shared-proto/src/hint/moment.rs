//! Points in time as providers write them.

use jiff::civil::DateTime;
use jiff::fmt::rfc2822;
use jiff::tz::Offset;
use jiff::{Timestamp, Unit};

use super::duration::{self, Decimal, SECOND};
use crate::clock::Millis;

/// A reset as a header or field gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// In so many ms.
    In(u64),
    /// At this time.
    At(Millis),
}

/// A `Date` further than this from our clock says more about the sender than about the time.
const DATE_SKEW_MAX_MS: u64 = 86_400_000;

static HTTP_DATE: rfc2822::DateTimeParser = rfc2822::DateTimeParser::new().relaxed_weekday(true);

/// What absolute times of an answer are measured against: the sender's own
/// clock when it tells it and it is believable, else ours.
pub(super) fn reference(headers: &[(String, String)], now: Millis) -> Millis {
    measured_by(super::headers::get(headers, "date"), now)
}

/// The same by the value of its `Date` header.
pub(crate) fn measured_by(date: Option<&str>, now: Millis) -> Millis {
    date.and_then(http_date)
        .filter(|date| date.since(now).max(now.since(*date)) <= DATE_SKEW_MAX_MS)
        .unwrap_or(now)
}

/// An HTTP date (IMF-fixdate).
pub(super) fn http_date(text: &str) -> Option<Millis> {
    HTTP_DATE.parse_timestamp(text.trim()).ok().and_then(millis)
}

/// A value of a reset header or field: a bare number judged by its size, a
/// duration, or RFC 3339.
pub(crate) fn any(text: &str) -> Option<When> {
    let text = text.trim();
    if let Some(number) = Decimal::exact(text) {
        return Some(by_size(number));
    }
    duration::go(text)
        .map(When::In)
        .or_else(|| rfc3339(text).map(When::At))
}

/// Epoch ms from 10^12 on, epoch s from 10^9 on, else seconds from now.
fn by_size(number: Decimal) -> When {
    match number.whole() {
        1_000_000_000_000.. => {
            When::At(Millis::from_epoch_ms(number.millis(duration::MILLISECOND)))
        }
        1_000_000_000.. => When::At(Millis::from_epoch_ms(number.millis(SECOND))),
        _ => When::In(number.millis(SECOND)),
    }
}

/// RFC 3339; a missing zone is UTC.
pub(super) fn rfc3339(text: &str) -> Option<Millis> {
    let text = text.trim();
    // Only dates: the parser would also take a bare `12:00`-like suffix of other grammars.
    if !text.as_bytes().first()?.is_ascii_digit() {
        return None;
    }
    match text.parse::<Timestamp>() {
        Ok(at) => millis(at),
        Err(_) => civil(text, Offset::UTC),
    }
}

fn civil(text: &str, offset: Offset) -> Option<Millis> {
    let local = text.parse::<DateTime>().ok()?;
    millis(offset.to_timestamp(local).ok()?)
}

fn millis(at: Timestamp) -> Option<Millis> {
    let whole = at
        .round(
            jiff::TimestampRound::new()
                .smallest(Unit::Millisecond)
                .mode(jiff::RoundMode::Ceil),
        )
        .unwrap_or(at);
    u64::try_from(whole.as_millisecond())
        .ok()
        .map(Millis::from_epoch_ms)
}

/// The date and time that lowercase prose starts with, and what follows it:
/// `2026-10-01t12:10:00z`, `2026-08-27 21:31:39`, `10-03 12:00:00 utc`.
/// Without a zone it is taken to be `local`; without a year it is the next one after `now`.
pub(super) fn prose(text: &str, local: Offset, now: Millis) -> Option<(Millis, &str)> {
    if let Some((date, rest)) = shaped(text, b"0000-00-00") {
        let (time, rest) = clock_time(rest)?;
        let (offset, rest) = zone(rest);
        let at = civil(&format!("{date}T{time}"), offset.unwrap_or(local))?;
        return Some((at, rest));
    }
    let (date, rest) = shaped(text, b"00-00")?;
    let (time, rest) = clock_time(rest)?;
    let (offset, rest) = zone(rest);
    let offset = offset.unwrap_or(local);
    let at = next_after(now, &format!("{date}T{time}"), offset)?;
    Some((at, rest))
}

/// The first `MM-DDThh:mm:ss` at or after `now`.
fn next_after(now: Millis, day_and_time: &str, offset: Offset) -> Option<Millis> {
    let today = Timestamp::from_millisecond(i64::try_from(now.as_epoch_ms()).ok()?).ok()?;
    let this_year = offset.to_datetime(today).year();
    let candidates = [this_year, this_year.saturating_add(1)];
    candidates
        .into_iter()
        .filter_map(|year| civil(&format!("{year:04}-{day_and_time}"), offset))
        .find(|at| *at >= now)
}

/// Splits off a head in which each `0` of `shape` stands for a digit.
fn shaped<'t>(text: &'t str, shape: &[u8]) -> Option<(&'t str, &'t str)> {
    let head = text.as_bytes().get(..shape.len())?;
    let fits = |(byte, mark): (&u8, &u8)| {
        if *mark == b'0' {
            byte.is_ascii_digit()
        } else {
            byte == mark
        }
    };
    head.iter()
        .zip(shape)
        .all(fits)
        .then(|| text.split_at(shape.len()))
}

/// `t`, spaces or `at`, then `hh:mm`, optionally seconds and a fraction.
fn clock_time(text: &str) -> Option<(&str, &str)> {
    let rest = text
        .strip_prefix('t')
        .or_else(|| text.strip_prefix(" at "))
        .or_else(|| text.strip_prefix(' ').map(|t| t.trim_start_matches(' ')))?;
    let (_, mut after) = shaped(rest, b"00:00")?;
    if let Some((_, seconds)) = shaped(after, b":00") {
        after = seconds;
        if let Some(fraction) = after.strip_prefix('.') {
            let tail = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if tail.len() < fraction.len() {
                after = tail;
            }
        }
    }
    let end = rest.len().saturating_sub(after.len());
    rest.split_at_checked(end)
}

/// `z`, `utc`, `gmt`, `+08:00`, `utc+8`, if there is one.
fn zone(text: &str) -> (Option<Offset>, &str) {
    let trimmed = text.trim_start_matches([' ', '(']);
    let named = trimmed
        .strip_prefix("utc")
        .or_else(|| trimmed.strip_prefix("gmt"));
    if let Some(rest) = named {
        return numeric_zone(rest).map_or((Some(Offset::UTC), rest), |(o, r)| (Some(o), r));
    }
    if let Some((offset, rest)) = numeric_zone(text) {
        return (Some(offset), rest);
    }
    match text.strip_prefix('z') {
        Some(rest) if !rest.starts_with(|c: char| c.is_ascii_alphanumeric()) => {
            (Some(Offset::UTC), rest)
        }
        Some(_) | None => (None, text),
    }
}

fn numeric_zone(text: &str) -> Option<(Offset, &str)> {
    let (sign, rest) = match text.as_bytes().first()? {
        b'+' => (1, text.get(1..)?),
        b'-' => (-1, text.get(1..)?),
        _ => return None,
    };
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (digits, mut after) = rest.split_at(end);
    let (hours, mut minutes) = match digits.len() {
        1 | 2 => (digits.parse::<i32>().ok()?, 0),
        4 => {
            let (hours, minutes) = digits.split_at(2);
            (hours.parse().ok()?, minutes.parse::<i32>().ok()?)
        }
        _ => return None,
    };
    if let Some((colon, tail)) = shaped(after, b":00") {
        minutes = colon.get(1..)?.parse().ok()?;
        after = tail;
    }
    let seconds = hours
        .saturating_mul(3600)
        .saturating_add(minutes.saturating_mul(60))
        .saturating_mul(sign);
    Some((Offset::from_seconds(seconds).ok()?, after))
}
