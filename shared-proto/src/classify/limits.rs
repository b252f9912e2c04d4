//! Rate limits, quotas and overload.

use super::account::believed;
use super::decide::{Case, Verdict};
use super::facts::Zero;
use super::families;
use crate::config::DailyReset;
use crate::failure::{Blame, ErrorType, Reason};
use crate::hint::headers;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 86_400_000;
/// Length of a subscription's session, ms.
const SESSION_MS: u64 = 18_000_000;

fn quota(rule: &'static str, blame: Blame) -> Verdict {
    Verdict::new(rule, Reason::QuotaExhausted, blame).typed(ErrorType::QuotaExhausted)
}

fn rate(rule: &'static str, blame: Blame) -> Verdict {
    Verdict::new(rule, Reason::RateLimitExceeded, blame).typed(ErrorType::RateLimited)
}

const fn overloaded(rule: &'static str) -> Verdict {
    Verdict::new(rule, Reason::ModelCapacity, Blame::Model).off_breaker()
}

/// Google says "you exceeded your current quota" for everything; the metric tells what it was.
pub(super) fn google(case: &Case<'_>) -> Option<Verdict> {
    let speaks = case.signs.any(families::GOOGLE) || case.facts.is_any(&["resource_exhausted"]);
    let money = case.says(families::MONEY) || case.says(families::SPENDING_CAP);
    if case.status != 429 || !speaks || money {
        return None;
    }
    let blame = case.limit_blame();
    if case.facts.is_any(families::OVERLOAD_WORDS) {
        return Some(overloaded("overloaded"));
    }
    if case.signs.any(families::ZERO_LIMIT) && zero_limit(case.text()) {
        // A quota of none never comes back, whatever delay is named beside it.
        return Some(no_access());
    }
    match case.facts.zero_quota {
        // No minute makes it larger, but another region or account has one.
        Some(Zero::Region) => {
            return Some(
                Verdict::new("google-region-quota", Reason::Unknown, Blame::Connection)
                    .typed(ErrorType::RequestRejected)
                    .without_hint(),
            );
        }
        Some(Zero::Everywhere) => return Some(no_access()),
        None => {}
    }
    if case.signs.any(families::GOOGLE_DAY) {
        return Some(quota("google-per-day", blame).for_ms(to_midnight(case)));
    }
    if case
        .facts
        .is_any(&["rate_limit_exceeded", "ratelimitexceeded"])
    {
        return Some(rate("google-rate-limit", blame));
    }
    if case.says(families::QUOTA) && !case.signs.any(families::GOOGLE_MINUTE)
        || case.facts.is_any(families::LONG_QUOTA_WORDS)
    {
        return Some(quota("quota-text", blame));
    }
    Some(rate("google-rate-limit", blame))
}

const fn no_access() -> Verdict {
    Verdict::new("model-access", Reason::ModelCapacity, Blame::Model)
        .typed(ErrorType::ModelNotFound)
        .resting(crate::failure::Cooldown::None)
}

fn zero_limit(text: &str) -> bool {
    text.match_indices("limit: 0").any(|(at, found)| {
        let after = text.get(at.saturating_add(found.len())..).unwrap_or("");
        !after.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    })
}

/// The window of a plan, or the day's allowance, is used up.
pub(super) fn quota_window(case: &Case<'_>) -> Option<Verdict> {
    let says = |family| case.says(family);
    let believed = believed(case);
    let answer = &case.error.answer;
    let plan = case.status == 429 && headers::plan_rejects(answer.headers);
    if plan {
        // Windows other than the general two belong to a family of models.
        let mut rejected = headers::rejected_windows(answer.headers).peekable();
        let only_models =
            rejected.peek().is_some() && !rejected.any(|window| matches!(window, "5h" | "7d"));
        let blame = if only_models {
            Blame::Model
        } else {
            Blame::Connection
        };
        return Some(quota("plan-window", blame).for_ms(HOUR_MS));
    }
    if case.status == 429 && says(families::OVERFLOW) && says(families::LONG_CONTEXT) {
        return None;
    }
    if believed && says(families::DAILY) {
        return Some(quota("daily-quota", case.limit_blame()).for_ms(to_midnight(case)));
    }
    if case.status == 429 && says(families::PER_DAY) {
        return Some(quota("daily-quota", case.limit_blame()).for_ms(to_midnight(case)));
    }
    if says(families::WEEKLY) {
        return Some(quota("weekly-quota", Blame::Connection).for_ms(DAY_MS));
    }
    if says(families::ROLLING_DAY) {
        return Some(quota("rolling-day-quota", Blame::Connection).for_ms(DAY_MS));
    }
    if says(families::SESSION) {
        return Some(quota("session-quota", Blame::Connection).for_ms(SESSION_MS));
    }
    if says(families::HOURLY) {
        return Some(quota("hourly-quota", Blame::Connection).for_ms(HOUR_MS));
    }
    if matches!(case.status, 402 | 403 | 429) && says(families::MONTHLY) {
        return Some(quota("monthly-quota", Blame::Connection).for_ms(DAY_MS));
    }
    let claude = ["claude", "anthropic"]
        .iter()
        .any(|name| answer.provider.to_ascii_lowercase().starts_with(name));
    let subscribed = says(families::SUBSCRIPTION)
        || claude && case.is_oauth() && says(families::SUBSCRIPTION_CLAUDE);
    let coded = case.facts.is_any(families::SUBSCRIPTION_WORDS);
    (subscribed && (believed || case.announced) || coded)
        .then(|| quota("subscription-quota", Blame::Connection).for_ms(HOUR_MS))
}

/// Until a day's quota begins anew, ms.
fn to_midnight(case: &Case<'_>) -> u64 {
    match case.error.daily_reset {
        Some(reset) => reset.wait_ms(case.now),
        None => DailyReset::default().wait_ms(case.now),
    }
}

/// What the text of any other status says.
pub(super) fn told(case: &Case<'_>) -> Option<Verdict> {
    if case.status == 529 {
        return Some(overloaded("status-529"));
    }
    if case.status >= 500 && case.says(families::LIMIT_IS_ACCESS) {
        return Some(no_access());
    }
    if case.says(families::NO_CREDENTIALS) {
        let verdict = Verdict::new("no-credentials", Reason::AuthError, Blame::Connection);
        return Some(verdict.for_ms(120_000));
    }
    // A 429 that speaks of a quota is one only where that may be believed.
    if case.says(families::QUOTA) && (believed(case) || case.announced) {
        return Some(quota("quota-text", case.limit_blame()));
    }
    let busy = case.says(families::OVERLOAD) || case.facts.is_any(families::OVERLOAD_WORDS);
    let per_account = case.says(families::PER_ACCOUNT);
    if busy && !(case.status == 429 && per_account) {
        return Some(overloaded("overloaded"));
    }
    (case.status != 429 && case.says(families::RATE_LIMIT))
        .then(|| rate("rate-limit-text", case.limit_blame()))
}

/// A plain 429.
pub(super) fn too_many(case: &Case<'_>) -> Option<Verdict> {
    if case.status != 429 {
        return None;
    }
    if shapeless(case) {
        return Some(
            Verdict::request("request-shape", Reason::Unknown, true)
                .typed(ErrorType::FingerprintRejection),
        );
    }
    let access = case.says(families::LIMIT_IS_ACCESS);
    if access {
        return Some(no_access());
    }
    if case.document.raw.is_some() {
        // A relay's own account upstream is at its limit; ours is fine.
        return Some(overloaded("relay-pool"));
    }
    let own = case.says(families::MODEL_LIMIT) || case.facts.is_any(families::MODEL_LIMIT_WORDS);
    let blame = if own {
        Blame::Model
    } else if case.document.html {
        // The door throttles, and knows no models.
        Blame::Connection
    } else {
        case.limit_blame()
    };
    Some(rate("status-429", blame))
}

/// A subscription's limit always names itself in headers. A 429 that says
/// nothing at all refuses the shape of the request; the account is fine.
fn shapeless(case: &Case<'_>) -> bool {
    let told = case.facts.message.as_deref().unwrap_or_default();
    let names_limit = |(name, _): &(String, String)| {
        name.starts_with("anthropic-ratelimit-") || name == "retry-after"
    };
    case.is_oauth()
        && case.facts.is_any(&["rate_limit_error"])
        && told.trim().eq_ignore_ascii_case("error")
        && !case.error.answer.headers.iter().any(names_limit)
}
