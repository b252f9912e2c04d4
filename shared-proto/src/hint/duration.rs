//! Lengths of time as providers write them, always rounded up to whole ms.

/// Nanoseconds in one of each unit, by the words seen on the wire.
const UNITS: &[(&[&str], u128)] = &[
    (&["ns"], 1),
    (&["us", "\u{b5}s", "\u{3bc}s"], 1_000),
    (
        &["ms", "msec", "msecs", "millisecond", "milliseconds"],
        1_000_000,
    ),
    (&["s", "sec", "secs", "second", "seconds"], SECOND),
    (&["m", "min", "mins", "minute", "minutes"], 60_000_000_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000_000_000),
    (&["d", "day", "days"], 86_400_000_000_000),
    (&["week", "weeks"], 604_800_000_000_000),
];

/// Nanoseconds in a second.
pub(crate) const SECOND: u128 = 1_000_000_000;
/// Nanoseconds in a millisecond.
pub(crate) const MILLISECOND: u128 = 1_000_000;

/// A plain decimal number without sign or exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    whole: u64,
    /// Billionths, rounded up.
    billionths: u64,
}

impl Decimal {
    /// The number that `text` starts with, and what follows it.
    pub(super) fn lead(text: &str) -> Option<(Self, &str)> {
        let (digits, rest) = split_digits(text);
        if digits.is_empty() {
            return None;
        }
        let whole = digits.parse().unwrap_or(u64::MAX);
        let Some((fraction, after)) = rest
            .strip_prefix('.')
            .map(split_digits)
            .filter(|(fraction, _)| !fraction.is_empty())
        else {
            let plain = Self {
                whole,
                billionths: 0,
            };
            return Some((plain, rest));
        };
        let decimal = Self {
            whole,
            billionths: billionths(fraction),
        };
        Some((decimal, after))
    }

    /// The number that all of `text` is.
    pub(crate) fn exact(text: &str) -> Option<Self> {
        let (decimal, rest) = Self::lead(text.trim())?;
        rest.is_empty().then_some(decimal)
    }

    /// The whole part.
    pub(super) fn whole(self) -> u64 {
        self.whole
    }

    /// Whether it is 0.
    pub(super) fn is_zero(self) -> bool {
        self.whole == 0 && self.billionths == 0
    }

    /// As a count of units of `unit_ns`, in nanoseconds.
    fn nanos(self, unit_ns: u128) -> u128 {
        let whole = u128::from(self.whole).saturating_mul(unit_ns);
        let part = u128::from(self.billionths)
            .saturating_mul(unit_ns)
            .div_ceil(1_000_000_000);
        whole.saturating_add(part)
    }

    /// As a count of units of `unit_ns`, in milliseconds.
    pub(crate) fn millis(self, unit_ns: u128) -> u64 {
        to_millis(self.nanos(unit_ns))
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

/// The first nine digits after the point; a remainder rounds up.
fn billionths(fraction: &str) -> u64 {
    let (head, tail) = fraction.split_at(fraction.len().min(9));
    let padded: u64 = format!("{head:0<9}").parse().unwrap_or(0);
    padded.saturating_add(u64::from(tail.bytes().any(|b| b != b'0')))
}

fn to_millis(nanos: u128) -> u64 {
    u64::try_from(nanos.div_ceil(MILLISECOND)).unwrap_or(u64::MAX)
}

/// A Go duration that is all of `text`, such as `1h2m3.5s` or `479.4ms`; also with days.
pub(crate) fn go(text: &str) -> Option<u64> {
    let (ms, rest) = lead(text.trim(), false)?;
    rest.is_empty().then_some(ms)
}

/// The length of time that lowercase prose starts with: `1m30.002s`,
/// `15 hours 23 minutes`, `2 minutes and 5 seconds`.
pub(super) fn prose(text: &str) -> Option<u64> {
    lead(text, true).map(|(ms, _)| ms)
}

/// Sums number-and-unit pairs; with `loose`, spaces, commas and "and" may stand between.
fn lead(text: &str, loose: bool) -> Option<(u64, &str)> {
    let mut rest = text;
    let mut nanos = None;
    while let Some((pair, after)) = pair(rest, loose) {
        nanos = Some(pair.saturating_add(nanos.unwrap_or(0)));
        rest = after;
        if loose {
            let joined = after.trim_start_matches([' ', ',']);
            rest = joined.strip_prefix("and ").unwrap_or(joined);
        }
    }
    Some((to_millis(nanos?), rest))
}

fn pair(text: &str, loose: bool) -> Option<(u128, &str)> {
    let (number, rest) = Decimal::lead(text)?;
    let rest = if loose {
        rest.trim_start_matches(' ')
    } else {
        rest
    };
    // Taking all the letters tells `m` from `ms` and refuses unknown words.
    let end = rest
        .find(|c: char| !(c.is_ascii_alphabetic() || matches!(c, '\u{b5}' | '\u{3bc}')))
        .unwrap_or(rest.len());
    let (unit, after) = rest.split_at(end);
    let (_, unit_ns) = UNITS.iter().find(|(words, _)| words.contains(&unit))?;
    Some((number.nanos(*unit_ns), after))
}
