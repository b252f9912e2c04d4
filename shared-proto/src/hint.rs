//! When an upstream says it will serve again.
//!
//! Providers announce resets in headers, in fields of the body and in prose,
//! relative or absolute, in half a dozen notations. [`reset_hint`] reads them
//! all and settles on one by rank: what names the failing bucket and needs no
//! clock comes first, prose comes last.
//!
//! A hint is never 0 and never in the past: a provider that has just refused
//! isn't ready now, whatever it says, so such values count as no announcement
//! and the default of the reason applies.

use crate::clock::Millis;
use crate::config::HintBounds;
use crate::failure::{HintSource, Reason, ResetHint};

mod body;
#[cfg(test)]
pub(crate) mod corpus;
pub(crate) mod document;
pub(crate) mod duration;
pub(crate) mod headers;
pub(crate) mod moment;
pub(crate) mod text;

use document::Document;
use duration::{Decimal, SECOND};

/// An upstream's refusal as it came in.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The provider's id.
    pub provider: &'a str,
    /// The HTTP status; 200 for an error told inside a stream.
    pub status: u16,
    /// Response headers, names lowercased.
    pub headers: &'a [(String, String)],
    /// The body after inflation, or the data of the error event.
    pub body: &'a [u8],
}

/// The reset that `answer` announces for a failure of `reason`, if any.
///
/// `None` for reasons that time doesn't heal, whatever the text says. The wait
/// is above 0 and at most the bound of its reason.
pub fn reset_hint(
    answer: &Answer<'_>,
    reason: Reason,
    bounds: &HintBounds,
    now: Millis,
) -> Option<ResetHint> {
    let document = Document::read(answer);
    bounded(announcement(answer, &document, now)?, reason, bounds)
}

/// What a `Retry-After` of any endpoint asks to wait at `now`, ms: seconds, or
/// an HTTP date that is still to come. `None` when it says neither.
pub fn retry_after_ms(value: &str, now: Millis) -> Option<u64> {
    if let Some(seconds) = Decimal::exact(value.trim()) {
        return Some(seconds.millis(SECOND));
    }
    let wait = moment::http_date(value)?.since(now);
    (wait > 0).then_some(wait)
}

/// Fits an announcement to the reason it is used for.
pub(crate) fn bounded(hint: ResetHint, reason: Reason, bounds: &HintBounds) -> Option<ResetHint> {
    let bound = match reason {
        Reason::QuotaExhausted => bounds.quota_ms,
        Reason::RateLimitExceeded
        | Reason::ModelCapacity
        | Reason::ServerError
        | Reason::ServiceNotRunning
        | Reason::Unknown => bounds.rate_limit_ms,
        Reason::AuthError | Reason::NotFound => 0,
    };
    let wait_ms = hint.wait_ms.min(bound);
    (wait_ms > 0).then_some(ResetHint { wait_ms, ..hint })
}

/// What `answer` announces, whatever the reason, without a bound.
pub(crate) fn announcement(
    answer: &Answer<'_>,
    document: &Document,
    now: Millis,
) -> Option<ResetHint> {
    let mut search = Search {
        now,
        reference: moment::reference(answer.headers, now),
        found: Vec::new(),
    };
    let place = Place {
        rank: None,
        source: HintSource::Header,
        prefix: "",
    };
    headers::search(answer.headers, answer.status, place, &mut search);
    body::search(answer, document, &mut search);
    choose(search.found)
}

/// How much an announcement is worth; lower ranks win.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Structured, relative and about the failing bucket.
    Specific,
    /// The plain `retry-after`.
    RetryAfter,
    /// Structured and absolute.
    Absolute,
    /// When an empty bucket is full again.
    Bucket,
    /// Prose.
    Prose,
    /// Told by the upstream of a relay, about a pool of the relay.
    Pool,
}

/// Where a group of announcements stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// Outranks the usual rank, for places of less worth.
    pub rank: Option<Rank>,
    /// What to note as the source.
    pub source: HintSource,
    /// Goes before the name of each field.
    pub prefix: &'a str,
}

#[derive(Debug)]
struct Found {
    rank: Rank,
    relative: bool,
    wait_ms: u64,
    source: HintSource,
    field: String,
}

/// Everything announced so far. Waits of 0 and times in the past never enter.
pub(super) struct Search {
    /// Our clock, for what comes round again.
    pub now: Millis,
    /// What absolute times are measured against.
    reference: Millis,
    found: Vec<Found>,
}

/// More announcements than this in one answer are noise.
const FOUND_MAX: usize = 256;

impl Search {
    /// Notes a wait of `wait_ms` from now.
    pub(super) fn wait(&mut self, place: Place<'_>, rank: Rank, wait_ms: u64, field: &str) {
        self.add(place, rank, (true, wait_ms), field);
    }

    /// Notes a reset at `at`.
    pub(super) fn until(&mut self, place: Place<'_>, rank: Rank, at: Millis, field: &str) {
        let wait_ms = at.since(self.reference);
        self.add(place, rank, (false, wait_ms), field);
    }

    fn add(&mut self, place: Place<'_>, rank: Rank, (relative, wait_ms): (bool, u64), field: &str) {
        if wait_ms == 0 || self.found.len() >= FOUND_MAX {
            return;
        }
        self.found.push(Found {
            rank: place.rank.unwrap_or(rank),
            relative,
            wait_ms,
            source: place.source,
            field: format!("{}{field}", place.prefix),
        });
    }
}

/// The best rank wins; in it relative beats absolute, then the longest.
fn choose(mut found: Vec<Found>) -> Option<ResetHint> {
    let best = (0..found.len()).min_by_key(|&i| {
        found
            .get(i)
            .map(|f| (f.rank, !f.relative, u64::MAX.saturating_sub(f.wait_ms)))
    })?;
    let best = found.swap_remove(rounded_down(best, &found));
    Some(ResetHint {
        wait_ms: finer(best.wait_ms, &found),
        source: best.source,
        field: best.field,
    })
}

/// Of equals, waits up to a second apart are one moment, rounded up by one and
/// down by the other, so the shorter is as true; finer times are added to it.
fn rounded_down(best: usize, found: &[Found]) -> usize {
    let Some(longest) = found.get(best) else {
        return best;
    };
    let twin = |(_, f): &(usize, &Found)| {
        f.rank == longest.rank
            && f.relative == longest.relative
            && f.wait_ms <= longest.wait_ms
            && longest.wait_ms.saturating_sub(f.wait_ms) <= 1000
    };
    let twins = found.iter().enumerate().filter(twin);
    let shortest = twins.min_by_key(|(_, f)| f.wait_ms);
    shortest.map_or(best, |(at, _)| at)
}

/// Whole seconds are often a truncated copy of a time that the prose gives in full.
fn finer(wait_ms: u64, others: &[Found]) -> u64 {
    if !wait_ms.is_multiple_of(1000) {
        return wait_ms;
    }
    let twin = |f: &&Found| f.rank == Rank::Prose && f.wait_ms.saturating_sub(wait_ms) < 1000;
    others
        .iter()
        .filter(twin)
        .map(|f| f.wait_ms)
        .fold(wait_ms, u64::max)
}

#[cfg(test)]
pub(crate) mod tests;
