//! The weekly reset of the five-hour limit: what the upstream's answers mean,
//! who may ask, and when again.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ResetTurn;
use crate::clock::Millis;

/// A reset that was granted is good for refusals that were under way, ms.
const RECENT_MS: u64 = 60_000;
/// Rest where nothing is announced after something went wrong, ms.
const SHORT_MS: u64 = 900_000;
/// Rest where nothing is announced after it was used, ms.
const WEEK_MS: u64 = 604_800_000;
/// Announcements are believed for this long at most, ms.
const LONGEST_MS: u64 = 30 * 86_400_000;
/// A claim lapses by itself after this time: all calls of an attempt, and a bit, ms.
const CLAIM_MS: u64 = 40_000;
/// What the program is called by the upstream.
const PROGRAM: &str = "juniper_tide";

/// What is known of the reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResetMemo {
    granted_at: Option<Millis>,
    /// First moment at which it may be asked for again.
    pub not_before: Option<Millis>,
    /// How the last attempt ended.
    pub outcome: Option<ResetOutcome>,
    /// When that was.
    pub ended_at: Option<Millis>,
    claim: Option<Claim>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    holder: String,
    until: Millis,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetOutcome {
    /// The limit was reset.
    Reset,
    /// There was no limit any more.
    NotLimited,
    /// This week's was used before.
    AlreadyUsed,
    /// The upstream wants a rest.
    Cooldown,
    /// The account may not.
    Ineligible,
    /// Nobody may.
    Unavailable,
    /// An answer in words that are not known.
    Unknown,
    /// The call met a limit itself.
    RateLimited,
    /// The call's token was refused.
    AuthError,
    /// The call failed.
    Error,
    /// The account is not offered one.
    NotOffered,
    /// What is offered could not be read.
    StatusUnreadable,
    /// Nothing says which organization the account is of.
    NoOrganization,
}

impl ResetOutcome {
    /// Whether requests go on at full speed.
    pub const fn is_reset(self) -> bool {
        matches!(self, Self::Reset | Self::NotLimited)
    }

    /// Its word in the log, metrics and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::NotLimited => "not_limited",
            Self::AlreadyUsed => "already_used",
            Self::Cooldown => "cooldown",
            Self::Ineligible => "ineligible",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::RateLimited => "rate_limited",
            Self::AuthError => "auth_error",
            Self::Error => "error",
            Self::NotOffered => "not_offered",
            Self::StatusUnreadable => "status_unreadable",
            Self::NoOrganization => "no_organization",
        }
    }

    /// Whether what the answer announced counts.
    const fn announces(self) -> bool {
        match self {
            Self::Reset
            | Self::NotLimited
            | Self::AlreadyUsed
            | Self::Cooldown
            | Self::Ineligible
            | Self::Unavailable
            | Self::Unknown
            | Self::NotOffered => true,
            Self::RateLimited
            | Self::AuthError
            | Self::Error
            | Self::StatusUnreadable
            | Self::NoOrganization => false,
        }
    }

    /// When it may be asked for again; times in the past announce nothing.
    pub fn not_before(self, announced: Option<Millis>, now: Millis) -> Millis {
        let rest = match self {
            Self::Reset | Self::NotLimited | Self::AlreadyUsed => WEEK_MS,
            Self::Cooldown
            | Self::Ineligible
            | Self::Unavailable
            | Self::Unknown
            | Self::RateLimited
            | Self::AuthError
            | Self::Error
            | Self::NotOffered
            | Self::StatusUnreadable
            | Self::NoOrganization => SHORT_MS,
        };
        let announced = announced.filter(|at| self.announces() && *at > now);
        announced.map_or_else(|| now.plus(rest), |at| at.min(now.plus(LONGEST_MS)))
    }
}

impl ResetMemo {
    /// `holder` wants to ask.
    pub(super) fn claim(&mut self, holder: &str, now: Millis) -> ResetTurn {
        if self.granted_at.is_some_and(|at| now.since(at) < RECENT_MS) {
            return ResetTurn::Recent;
        }
        if let Some(at) = self.not_before.filter(|at| *at > now) {
            return ResetTurn::NotBefore { at };
        }
        match &self.claim {
            Some(claim) if claim.until > now && claim.holder == holder => ResetTurn::Claimed,
            Some(claim) if claim.until > now => ResetTurn::Busy { until: claim.until },
            Some(_) | None => {
                self.claim = Some(Claim {
                    holder: holder.to_owned(),
                    until: now.plus(CLAIM_MS),
                });
                ResetTurn::Claimed
            }
        }
    }

    /// Whether somebody is asking.
    pub fn is_claimed(&self, now: Millis) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.until > now)
    }

    /// Whether the claim was `holder`'s. A late word of a claim that lapsed counts
    /// as long as nobody else has claimed it.
    pub(super) fn end(
        &mut self,
        holder: &str,
        outcome: ResetOutcome,
        next_at: Option<Millis>,
        now: Millis,
    ) -> bool {
        if self
            .claim
            .as_ref()
            .is_none_or(|claim| claim.holder != holder)
        {
            return false;
        }
        self.claim = None;
        self.not_before = Some(outcome.not_before(next_at, now));
        self.outcome = Some(outcome);
        self.ended_at = Some(now);
        if outcome.is_reset() {
            self.granted_at = Some(now);
        }
        true
    }
}

/// What the upstream says that it offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// A reset may be asked for.
    Yes,
    /// It may not, at the earliest at this time if that is known.
    No(Option<Millis>),
    /// The answer makes no sense.
    Unreadable,
}

/// Reads the answer to the question what is offered.
pub fn read_status(status: u16, body: &[u8]) -> Offered {
    let Ok(Value::Object(body)) = serde_json::from_slice(body) else {
        return Offered::Unreadable;
    };
    if !(200..300).contains(&status) {
        return Offered::Unreadable;
    }
    let Some(program) = body.get(PROGRAM) else {
        return Offered::No(None);
    };
    let is_true = |name: &str| program.get(name) == Some(&Value::Bool(true));
    let arm = program.get("arm").and_then(Value::as_str);
    if is_true("eligible") && is_true("available") && arm == Some("reset") {
        Offered::Yes
    } else {
        Offered::No(time(program.get("next_available_at")))
    }
}

/// Reads the answer to a claim: how it ended, and when again, as announced.
pub fn read_claim(status: u16, body: &[u8]) -> (ResetOutcome, Option<Millis>) {
    let failed = match status {
        200..300 => None,
        429 => Some(ResetOutcome::RateLimited),
        401 | 403 => Some(ResetOutcome::AuthError),
        _ => Some(ResetOutcome::Error),
    };
    if let Some(failed) = failed {
        return (failed, None);
    }
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let outcome = match body.get("result").and_then(Value::as_str) {
        Some("reset") => ResetOutcome::Reset,
        Some("not_limited") => ResetOutcome::NotLimited,
        Some("already_used") => ResetOutcome::AlreadyUsed,
        Some("cooldown") => ResetOutcome::Cooldown,
        Some("ineligible") => ResetOutcome::Ineligible,
        Some("unavailable") => ResetOutcome::Unavailable,
        _ => ResetOutcome::Unknown,
    };
    let next = time(body.get("next_available_at"));
    (outcome, next.or_else(|| time(body.get("cooldown_until"))))
}

/// The account's organization, from the answer that tells of the account.
pub fn organization_of(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let places = [
        "/oauth_account/organization_uuid",
        "/oauth_account/organizationUuid",
        "/account/organization_uuid",
        "/organization/uuid",
        "/organization_uuid",
    ];
    let found = places
        .iter()
        .find_map(|place| body.pointer(place)?.as_str());
    found.and_then(usable_organization).map(str::to_owned)
}

/// `text` if it may stand in a path: letters, digits and `-`, at most 64.
pub fn usable_organization(text: &str) -> Option<&str> {
    let text = text.trim();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    let fits = (1..=64).contains(&text.len()) && text.bytes().all(plain);
    fits.then_some(text)
}

/// RFC 3339, or a number of seconds or ms since 1970.
fn time(value: Option<&Value>) -> Option<Millis> {
    /// From here on a number is of ms: in seconds it would be the year 5138.
    const IN_MS: u64 = 100_000_000_000;
    match value? {
        Value::Number(number) => {
            let number = number.as_u64()?;
            let ms = if number >= IN_MS {
                number
            } else {
                number.saturating_mul(1000)
            };
            Some(Millis::from_epoch_ms(ms))
        }
        Value::String(text) => {
            let time: jiff::Timestamp = text.trim().parse().ok()?;
            u64::try_from(time.as_millisecond())
                .ok()
                .map(Millis::from_epoch_ms)
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}
