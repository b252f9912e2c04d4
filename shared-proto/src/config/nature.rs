//! What sets a provider's refusals and quotas apart from the usual; all of it
//! is data of the catalogue.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::clock::Millis;

/// How a provider's refusals are to be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Its built-in rules may say what a refusal is charged to.
    pub honours_rule_scope: bool,
    /// Its built-in rules see the whole text of a refusal, not only its code and type.
    pub full_text_rules: bool,
    /// How it refuses what is too long without saying so.
    pub unsaid_overflow: UnsaidOverflow,
}

/// Signs of a prompt that is too long, where no word tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsaidOverflow {
    /// A 400 with nothing in it.
    pub bare_400: bool,
    /// A well-formed answer with nothing in it.
    pub empty_answer: bool,
}

/// When a day's quota begins anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DailyReset {
    /// Where the day is counted.
    pub zone: TimeZone,
    /// The hour there, 0 to 23.
    pub hour: i8,
}

/// One day, ms.
const DAY_MS: u64 = 86_400_000;
/// The longest day of a clock that is put back, ms.
const LONGEST_DAY_MS: u64 = 90_000_000;

impl Default for DailyReset {
    fn default() -> Self {
        Self {
            zone: TimeZone::UTC,
            hour: 0,
        }
    }
}

impl DailyReset {
    /// The reset at `hour` o'clock of the zone with this name, if there is one.
    pub fn named(zone: &str, hour: u64) -> Option<Self> {
        let hour = i8::try_from(hour).ok().filter(|hour| *hour < 24)?;
        let zone = TimeZone::get(zone).ok()?;
        Some(Self { zone, hour })
    }

    /// From `now` to the next one, ms; a day where the calendar has none.
    pub fn wait_ms(&self, now: Millis) -> u64 {
        self.next(now)
            .map(|at| at.since(now))
            .filter(|ms| (1..=LONGEST_DAY_MS).contains(ms))
            .unwrap_or(DAY_MS)
    }

    fn next(&self, now: Millis) -> Option<Millis> {
        let now = i64::try_from(now.as_epoch_ms()).ok()?;
        let now = Timestamp::from_millisecond(now).ok()?;
        let today = now.to_zoned_datetime(self.zone.clone()).date();
        [
            today,
            today.tomorrow().ok()?,
            today.tomorrow().ok()?.tomorrow().ok()?,
        ]
        .into_iter()
        .filter_map(|day| {
            day.at(self.hour, 0, 0, 0)
                .to_zoned_datetime(self.zone.clone())
                .ok()
        })
        .map(|reset| reset.timestamp())
        .find(|at| *at > now)
        .and_then(|at| u64::try_from(at.as_millisecond()).ok())
        .map(Millis::from_epoch_ms)
    }
}

/// Models that share one quota on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFamily {
    /// Its name in keys of locks.
    pub name: String,
    /// Which models: lower-case names, with `*` for anything at either end.
    pub models: Vec<String>,
}

impl ModelFamily {
    /// Whether `model`, in lower case, is one of them.
    pub fn has(&self, model: &str) -> bool {
        self.models.iter().any(|pattern| fits(pattern, model))
    }
}

/// Whether the name says that it is somebody's server of a usual kind, whose
/// quotas are as unknown as its models.
pub(super) fn is_compatible(id: &str) -> bool {
    ["openai-compatible", "anthropic-compatible"]
        .iter()
        .any(|kind| id.starts_with(kind))
}

fn fits(pattern: &str, model: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(""), _) => true,
        (Some(rest), Some(_)) => model.contains(rest.strip_suffix('*').unwrap_or(rest)),
        (Some(end), None) => model.ends_with(end),
        (None, Some(start)) => model.starts_with(start),
        (None, None) => pattern == model,
    }
}

#[cfg(test)]
mod tests {
    use super::{DailyReset, fits};
    use crate::clock::Millis;

    #[test]
    fn a_day_ends_where_it_is_counted() {
        // 2026-10-01T12:00:00Z.
        let now = Millis::from_epoch_ms(1_790_856_000_000);
        let wait =
            |zone: &str, hour| DailyReset::named(zone, hour).unwrap().wait_ms(now) / 3_600_000;
        assert_eq!(wait("UTC", 0), 12);
        assert_eq!(wait("UTC", 13), 1);
        assert_eq!(wait("UTC", 12), 24);
        assert_eq!(wait("America/Los_Angeles", 0), 19);
        assert_eq!(wait("Asia/Shanghai", 0), 4);
        assert!(DailyReset::named("Mars/Olympus", 0).is_none());
        assert!(DailyReset::named("UTC", 24).is_none());
        // The night of 2026-11-01 has 25 hours in California.
        let autumn = Millis::from_epoch_ms(1_793_516_400_000);
        let pacific = DailyReset::named("America/Los_Angeles", 0).unwrap();
        assert_eq!(pacific.wait_ms(autumn), 25 * 3_600_000);
        assert_eq!(pacific.wait_ms(Millis::from_epoch_ms(u64::MAX)), 86_400_000);
    }

    #[test]
    fn patterns_have_a_star_at_either_end() {
        let table = [
            ("*", "x", true),
            ("*spark*", "gpt-5.3-codex-spark", true),
            ("*spark*", "gpt-5", false),
            ("gemini-*", "gemini-3-pro", true),
            ("gemini-*", "x-gemini-3", false),
            ("*:free", "a/b:free", true),
            ("*:free", "a/b", false),
            ("a", "a", true),
            ("a", "ab", false),
            ("**", "x", true),
        ];
        for (pattern, model, expected) in table {
            assert_eq!(fits(pattern, model), expected, "{pattern} {model}");
        }
    }
}
