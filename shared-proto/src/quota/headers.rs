//! Windows in the headers of an answer, whatever its status.
//!
//! | headers | windows |
//! |---|---|
//! | `x-codex-W-{used-percent,reset-after-seconds,reset-at,window-minutes}` | `primary`, `secondary`; `LIMIT-primary` and so on of a limit of its own |
//! | `x-codex-W-{usage,limit,reset-at}` | `5h`, `7d` |
//! | `anthropic-ratelimit-unified-W-{utilization,reset,status}` | `5h`, `7d`; `7d_x` of some models |
//! | `anthropic-ratelimit-W-{limit,remaining,reset}` | `requests`, `tokens`, `input-tokens`, `output-tokens` |
//! | `x-ratelimit-{limit,remaining,reset}-W` | `requests`, `tokens` and their like |

use std::sync::Arc;

use super::{Share, WINDOWS_MAX, Window, family};
use crate::clock::Millis;
use crate::config::ModelFamily;
use crate::hint::duration::{self, Decimal, SECOND};
use crate::hint::moment::{self, When};

const CODEX: &str = "x-codex-";
const ANTHROPIC: &str = "anthropic-ratelimit-";
const UNIFIED: &str = "anthropic-ratelimit-unified-";
const PLAIN: &str = "x-ratelimit-";

/// Longer names belong to nobody's window.
const NAME_MAX: usize = 48;
/// A longer window is none, ms.
const LENGTH_MAX_MS: u64 = 366 * 86_400_000;

/// Whether a header of this name, in lower case, may tell of a window.
pub fn speaks(name: &str) -> bool {
    name.starts_with(CODEX) || name.starts_with(PLAIN) || name.starts_with(ANTHROPIC)
}

/// Whose answer it is.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The key of the locks of the quota of the model that was asked for.
    pub key: &'a str,
    /// Models that share a quota there.
    pub families: &'a [ModelFamily],
    /// Whether its quotas count by model.
    pub per_model_quota: bool,
    /// The longest time to a reset that is believed, ms.
    pub bound_ms: u64,
}

/// Who tells of a window, which decides what it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Teller {
    Codex,
    Plan,
    Bucket,
}

/// What one header says of its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Percent,
    Utilization,
    Status,
    Usage,
    Limit,
    Remaining,
    Minutes,
    After,
    Reset,
}

const FIELDS: usize = 9;

/// The headers of one window.
struct Draft<'h> {
    teller: Teller,
    name: &'h str,
    values: [Option<&'h str>; FIELDS],
}

/// The windows that `headers` tell of at `now`: names in lower case, `date` among
/// them where there is one. At most [`WINDOWS_MAX`]; those with absurd numbers are
/// left out, and resets are bounded.
pub fn read(headers: &[(&str, &str)], source: &Source<'_>, now: Millis) -> Vec<Window> {
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for (name, value) in headers {
        let Some((teller, window, field)) = parse(name) else {
            continue;
        };
        let same = |draft: &Draft<'_>| draft.teller == teller && draft.name == window;
        let place = drafts.iter().position(same).unwrap_or(drafts.len());
        if place == WINDOWS_MAX {
            continue;
        }
        if place == drafts.len() {
            drafts.push(Draft {
                teller,
                name: window,
                values: [None; FIELDS],
            });
        }
        let slot = drafts.get_mut(place);
        if let Some(slot) = slot.and_then(|draft| draft.values.get_mut(field as usize)) {
            slot.get_or_insert(value.trim());
        }
    }
    let date = headers.iter().find(|(name, _)| *name == "date");
    let reference = moment::measured_by(date.map(|(_, value)| *value), now);
    let windows = drafts.iter();
    windows
        .filter_map(|draft| draft.window(source, (reference, now)))
        .collect()
}

/// Whose header it is, of which window, and what it says of it.
fn parse(name: &str) -> Option<(Teller, &str, Field)> {
    let (teller, window, field) = if let Some(rest) = name.strip_prefix(CODEX) {
        let (window, field) = ended(rest, CODEX_FIELDS)?;
        (Teller::Codex, window, field)
    } else if let Some(rest) = name.strip_prefix(UNIFIED) {
        let (window, field) = ended(rest, PLAN_FIELDS)?;
        // The lane of extra usage is no window.
        (window != "overage").then_some((Teller::Plan, window, field))?
    } else if let Some(rest) = name.strip_prefix(ANTHROPIC) {
        let (window, field) = ended(rest, BUCKET_FIELDS)?;
        is_bucket(window).then_some((Teller::Bucket, window, field))?
    } else {
        let rest = name.strip_prefix(PLAIN)?;
        let begun = |(word, field): &(&str, Field)| {
            let window = rest.strip_prefix(word.strip_prefix('-')?)?;
            Some((window.strip_prefix('-')?, *field))
        };
        let (window, field) = BUCKET_FIELDS.iter().find_map(begun)?;
        is_bucket(window).then_some((Teller::Bucket, window, field))?
    };
    let fits = !window.is_empty() && window.len() <= NAME_MAX;
    fits.then_some((teller, window, field))
}

const CODEX_FIELDS: &[(&str, Field)] = &[
    ("-used-percent", Field::Percent),
    ("-reset-after-seconds", Field::After),
    ("-reset-at", Field::Reset),
    ("-window-minutes", Field::Minutes),
    ("-usage", Field::Usage),
    ("-limit", Field::Limit),
];
const PLAN_FIELDS: &[(&str, Field)] = &[
    ("-utilization", Field::Utilization),
    ("-reset", Field::Reset),
    ("-status", Field::Status),
];
const BUCKET_FIELDS: &[(&str, Field)] = &[
    ("-limit", Field::Limit),
    ("-remaining", Field::Remaining),
    ("-reset", Field::Reset),
];

fn ended<'n>(rest: &'n str, fields: &[(&str, Field)]) -> Option<(&'n str, Field)> {
    fields
        .iter()
        .find_map(|(word, field)| Some((rest.strip_suffix(word)?, *field)))
}

/// `x-ratelimit-reset-after` and others of that form tell of no bucket.
fn is_bucket(name: &str) -> bool {
    name.contains("requests") || name.contains("tokens")
}

/// What is known of a number: nothing was said, or what was said.
enum Said<T> {
    Nothing,
    Absurd,
    Value(T),
}

/// `some` as a percentage of `whole`; `None` where there is no whole.
fn part(some: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| some / whole * 100.0)
}

impl<'h> Draft<'h> {
    fn get(&self, field: Field) -> Option<&'h str> {
        *self.values.get(field as usize)?
    }

    fn number(&self, field: Field) -> Said<f64> {
        match self.get(field) {
            None => Said::Nothing,
            Some(text) => match text.parse::<f64>() {
                Ok(number) if number.is_finite() => Said::Value(number),
                Ok(_) | Err(_) => Said::Absurd,
            },
        }
    }

    fn window(&self, source: &Source<'_>, (reference, now): (Millis, Millis)) -> Option<Window> {
        let used = match self.used() {
            Said::Nothing => None,
            Said::Value(used) => Some(used),
            Said::Absurd => return None,
        };
        let wait_ms = self.wait_ms(reference).map(|ms| ms.min(source.bound_ms));
        let resets_at = wait_ms.filter(|ms| *ms > 0).map(|ms| now.plus(ms));
        let window_ms = self.length_ms();
        let nothing = match self.teller {
            // A plan without that window has zeros for it.
            Teller::Codex => used == Share::of_percent(0.0) && window_ms.is_none(),
            Teller::Plan | Teller::Bucket => used.is_none(),
        };
        if resets_at.is_none() && (nothing || used.is_none()) {
            return None;
        }
        Some(Window {
            name: Arc::from(self.name),
            scope: self.scope(source).map(Arc::from),
            used,
            resets_at,
            window_ms,
            observed_at: now,
            warned: false,
        })
    }

    fn used(&self) -> Said<Share> {
        let percent = match self.teller {
            Teller::Codex => match self.number(Field::Percent) {
                Said::Nothing => match (self.number(Field::Usage), self.number(Field::Limit)) {
                    (Said::Nothing, _) | (_, Said::Nothing) => return Said::Nothing,
                    (Said::Value(usage), Said::Value(limit)) => part(usage, limit),
                    (Said::Value(_) | Said::Absurd, Said::Value(_) | Said::Absurd) => None,
                },
                Said::Absurd => None,
                Said::Value(percent) => Some(percent),
            },
            Teller::Plan => {
                let status = self.get(Field::Status);
                if status.is_some_and(|word| word.eq_ignore_ascii_case("rejected")) {
                    return Said::Value(Share::ALL);
                }
                match self.number(Field::Utilization) {
                    Said::Nothing => return Said::Nothing,
                    Said::Absurd => None,
                    Said::Value(part) => Some(part * 100.0),
                }
            }
            Teller::Bucket => match (self.number(Field::Limit), self.number(Field::Remaining)) {
                (_, Said::Nothing) => return Said::Nothing,
                (_, Said::Value(left)) if left <= 0.0 => Some(100.0),
                (Said::Value(limit), Said::Value(left)) => {
                    part(left, limit).map(|left| 100.0 - left.min(100.0))
                }
                // So many of nobody knows how many.
                (Said::Nothing | Said::Absurd, Said::Value(_)) | (_, Said::Absurd) => None,
            },
        };
        percent
            .and_then(Share::of_percent)
            .map_or(Said::Absurd, Said::Value)
    }

    /// The time to its reset, ms, as it was told; 0 where that has passed.
    fn wait_ms(&self, reference: Millis) -> Option<u64> {
        let after = self.get(Field::After).and_then(Decimal::exact);
        if let Some(ms) = after.map(|s| s.millis(SECOND)).filter(|ms| *ms > 0) {
            return Some(ms);
        }
        match moment::any(self.get(Field::Reset)?)? {
            When::In(ms) => Some(ms),
            When::At(at) => Some(at.since(reference)),
        }
    }

    fn length_ms(&self) -> Option<u64> {
        const MINUTE: u128 = 60 * SECOND;
        let ms = match self.teller {
            Teller::Codex => match self.get(Field::Minutes) {
                Some(minutes) => Decimal::exact(minutes)?.millis(MINUTE),
                None => duration::go(self.name)?,
            },
            Teller::Plan => duration::go(self.name.split('_').next()?)?,
            Teller::Bucket => match self.name.rsplit_once('-')?.1 {
                "minute" => 60_000,
                "hour" => 3_600_000,
                "day" => 86_400_000,
                _ => return None,
            },
        };
        (1..=LENGTH_MAX_MS).contains(&ms).then_some(ms)
    }

    /// Which models it counts.
    fn scope<'s>(&'s self, source: &Source<'s>) -> Option<&'s str> {
        match self.teller {
            Teller::Codex => {
                let general = family("", source.families);
                let Some((limit, _)) = self.name.rsplit_once('-') else {
                    return general;
                };
                // A limit of its own that no family has counts nobody knows which models.
                let own = family(limit, source.families).filter(|own| Some(*own) != general);
                Some(own.unwrap_or(limit))
            }
            // `7d_x` is a week of some models only.
            Teller::Plan => self.name.split_once('_').map(|(_, models)| models),
            Teller::Bucket => source.per_model_quota.then_some(source.key),
        }
    }
}
