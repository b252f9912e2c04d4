//! Cooldown ends as other systems store them: as text, in one of two forms.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::clock::Millis;

/// Latest epoch millisecond that common date types can hold; also well within
/// the integers an `f64` holds exactly.
const MAX_EPOCH_MS: f64 = 8.64e15;

/// Reads a `rateLimitedUntil`: epoch milliseconds, perhaps with a fraction
/// (`1781696905131.0`), or an ISO 8601 time, in UTC when it names no zone.
/// Fractions round up. Anything else is `None`, that is, not cooling.
pub fn parse_until(text: &str) -> Option<Millis> {
    let text = text.trim();
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        number(text).or_else(|| iso(text))
    } else {
        None
    }
}

fn number(text: &str) -> Option<Millis> {
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let ms = text.parse::<f64>().ok().filter(|_| is_decimal)?.ceil();
    if ms > MAX_EPOCH_MS {
        return None;
    }
    // Printing an integral f64 below 2^53 gives exactly its digits.
    format!("{ms:.0}").parse().ok().map(Millis::from_epoch_ms)
}

fn iso(text: &str) -> Option<Millis> {
    let zoned = text.parse::<Timestamp>().ok();
    let time = zoned.or_else(|| {
        let civil = text.parse::<DateTime>().ok()?;
        TimeZone::UTC.to_timestamp(civil).ok()
    })?;
    u64::try_from(time.as_millisecond())
        .ok()
        .map(Millis::from_epoch_ms)
}
