//! Announcements in headers, those of the response and those that some
//! providers repeat inside a body.

use super::duration::{self, Decimal, MILLISECOND, SECOND};
use super::moment::{self, When};
use super::{Place, Rank, Search};

/// Relative waits that are about the failing bucket, with their unit.
const SPECIFIC: &[(&str, u128)] = &[
    ("retry-after-ms", MILLISECOND),
    ("x-ms-retry-after-ms", MILLISECOND),
    ("x-ratelimit-user-retry-after", SECOND),
    ("x-ratelimit-quota-exceeded-retry-after", SECOND),
];

const RESET: &str = "x-ratelimit-reset";
const UNIFIED: &str = "anthropic-ratelimit-unified-";

/// The first value of header `name`, trimmed.
pub(crate) fn get<'h>(headers: &'h [(String, String)], name: &str) -> Option<&'h str> {
    headers
        .iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.trim())
}

/// Notes what `headers` announce. The state of buckets and windows counts only
/// on a 429: on any other status it is a gauge, not a refusal.
pub(super) fn search(
    headers: &[(String, String)],
    status: u16,
    place: Place<'_>,
    search: &mut Search,
) {
    for (name, unit) in SPECIFIC {
        if let Some(number) = get(headers, name).and_then(Decimal::exact) {
            search.wait(place, Rank::Specific, number.millis(*unit), name);
        }
    }
    if let Some(value) = get(headers, "x-ratelimit-reset-after")
        && let Some(When::In(ms)) = moment::any(value)
    {
        search.wait(place, Rank::Specific, ms, "x-ratelimit-reset-after");
    }
    retry_after(headers, place, search);
    if status != 429 {
        return;
    }
    for (name, value) in headers {
        let value = value.trim();
        if name == RESET {
            plain_reset(headers, value, place, search);
        } else if let Some(bucket) = name.strip_prefix("x-ratelimit-reset-") {
            bucket_reset(headers, (name, bucket, value), place, search);
        } else if let Some(window) = name.strip_prefix("x-codex-") {
            codex_reset(headers, (name, window, value), place, search);
        }
    }
    anthropic(headers, place, search);
}

/// Seconds, an HTTP date, or a time since 1970 where the number is too large for
/// a wait. Anything else, `120s` and the empty string included, says nothing.
fn retry_after(headers: &[(String, String)], place: Place<'_>, search: &mut Search) {
    const NAME: &str = "retry-after";
    let Some(value) = get(headers, NAME) else {
        return;
    };
    match moment::retry_after(value) {
        Some(When::In(ms)) => search.wait(place, Rank::RetryAfter, ms, NAME),
        Some(When::At(at)) => search.until(place, Rank::RetryAfter, at, NAME),
        None => {}
    }
}

fn note(place: Place<'_>, when: When, name: &str, search: &mut Search) {
    match when {
        When::In(ms) => search.wait(place, Rank::Bucket, ms, name),
        When::At(at) => search.until(place, Rank::Absolute, at, name),
    }
}

/// Whether a `remaining` value says that nothing is left.
fn is_empty(value: &str) -> bool {
    value.starts_with('-') || Decimal::exact(value).is_some_and(Decimal::is_zero)
}

fn plain_reset(headers: &[(String, String)], value: &str, place: Place<'_>, search: &mut Search) {
    let open = get(headers, "x-ratelimit-remaining").is_some_and(|left| !is_empty(left));
    if !open && let Some(when) = moment::any(value) {
        note(place, when, RESET, search);
    }
}

/// The reset says when the bucket is full again, so it matters only for an
/// empty one. Buckets named after their window count without a `remaining` too.
fn bucket_reset(
    headers: &[(String, String)],
    (name, bucket, value): (&str, &str, &str),
    place: Place<'_>,
    search: &mut Search,
) {
    let windowed = ["-day", "-hour", "-minute"]
        .iter()
        .any(|window| bucket.ends_with(window));
    let empty = get(headers, &format!("x-ratelimit-remaining-{bucket}")).map(is_empty);
    if empty.unwrap_or(windowed)
        && let Some(when) = moment::any(value)
    {
        note(place, when, name, search);
    }
}

/// A subscription's windows: only a full one counts.
fn codex_reset(
    headers: &[(String, String)],
    (name, rest, value): (&str, &str, &str),
    place: Place<'_>,
    search: &mut Search,
) {
    let number = |window: &str, what: &str| {
        get(headers, &format!("x-codex-{window}-{what}")).and_then(Decimal::exact)
    };
    let full = |window: &str| {
        let spent = number(window, "used-percent").is_some_and(|used| used.whole() >= 100);
        let used_up = number(window, "usage")
            .zip(number(window, "limit"))
            .is_some_and(|(usage, limit)| !limit.is_zero() && usage.whole() >= limit.whole());
        spent || used_up
    };
    if let Some(window) = rest.strip_suffix("-reset-after-seconds") {
        if let Some(seconds) = Decimal::exact(value).filter(|_| full(window)) {
            search.wait(place, Rank::Specific, seconds.millis(SECOND), name);
        }
    } else if let Some(window) = rest.strip_suffix("-reset-at")
        && full(window)
        && let Some(When::At(at)) = moment::any(value)
    {
        search.until(place, Rank::Absolute, at, name);
    }
}

fn anthropic(headers: &[(String, String)], place: Place<'_>, search: &mut Search) {
    for bucket in ["requests", "tokens", "input-tokens", "output-tokens"] {
        let remaining = format!("anthropic-ratelimit-{bucket}-remaining");
        let name = format!("anthropic-ratelimit-{bucket}-reset");
        let empty = get(headers, &remaining).is_some_and(is_empty);
        if empty && let Some(at) = get(headers, &name).and_then(moment::rfc3339) {
            search.until(place, Rank::Absolute, at, &name);
        }
    }
    // A plan's limits all have to be open, so the latest reset of the rejected windows counts;
    // the longest wait of a rank wins anyway. The summary only stands in for missing ones.
    let mut known = false;
    for window in rejected_windows(headers) {
        let name = format!("{UNIFIED}{window}-reset");
        if let Some(When::At(at)) = get(headers, &name).and_then(moment::any) {
            known = true;
            search.until(place, Rank::Absolute, at, &name);
        }
    }
    let name = "anthropic-ratelimit-unified-reset";
    if !known
        && plan_rejects(headers)
        && let Some(When::At(at)) = get(headers, name).and_then(moment::any)
    {
        search.until(place, Rank::Absolute, at, name);
    }
}

/// The windows of a plan that are used up, such as `5h`; the lane of extra usage isn't one.
pub(crate) fn rejected_windows(headers: &[(String, String)]) -> impl Iterator<Item = &str> {
    headers.iter().filter_map(|(name, value)| {
        let window = name.strip_prefix(UNIFIED)?.strip_suffix("-status")?;
        let rejected = value.trim().eq_ignore_ascii_case("rejected");
        (rejected && window != "overage").then_some(window)
    })
}

/// Whether the answer says that the plan's limit refused it.
pub(crate) fn plan_rejects(headers: &[(String, String)]) -> bool {
    get(headers, "anthropic-ratelimit-unified-status")
        .is_some_and(|status| status.eq_ignore_ascii_case("rejected"))
        || rejected_windows(headers).next().is_some()
}

/// A duration string of a body, bare numbers being seconds.
pub(super) fn seconds_or_duration(text: &str) -> Option<u64> {
    Decimal::exact(text)
        .map(|seconds| seconds.millis(SECOND))
        .or_else(|| duration::go(text))
}
