//! Whether tokens are to be refreshed now, and by whom.

use crate::clock::Millis;

use super::{FRESH_MS, LEAD_MS, RefreshLock, Status};

/// Rest after the first failed refresh, in ms; it doubles with each one.
const FIRST_REST_MS: u64 = 2_000;
/// Longest rest between refreshes by our own count, in ms.
const LONGEST_REST_MS: u64 = 300_000;
/// Longest rest that a token endpoint can ask for, in ms.
const LONGEST_ASKED_MS: u64 = 900_000;

/// Why somebody wants new tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// They end soon.
    Ahead,
    /// A request needs one, and the access token has ended.
    Expired,
    /// The upstream refused the access token.
    Refused,
}

/// Who asks, and with what in hand.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Why.
    pub cause: Cause,
    /// The generation in hand.
    pub generation: u64,
    /// The holder's name, as in the lock.
    pub holder: &'a str,
    /// When an operator last asked to forget what is held against the connection.
    pub forgiven_at: Option<Millis>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing: newer tokens are stored, or these are good for a while.
    Current,
    /// Nothing: they are so young that the refusal means something else.
    Fresh,
    /// Nothing before this time.
    Resting {
        /// When the rest after a failure is over.
        until: Millis,
    },
    /// Nothing any more: the refresh token was refused.
    Refused,
    /// Another node is at it, at the latest until then.
    Busy {
        /// When its lock lapses.
        until: Millis,
    },
    /// Take the lock and spend the refresh token.
    Spend,
}

/// What is to be done about tokens that stand like `stored`, under a lock that
/// is held until the given time, at `now`. `now` must not be ahead of the
/// store's clock, or a lock would be broken too early.
pub fn judge(
    stored: &Status,
    lock: Option<(&RefreshLock, Millis)>,
    ask: &Ask<'_>,
    now: Millis,
) -> Judgement {
    if stored.generation > ask.generation {
        return Judgement::Current;
    }
    if let Some(trouble) = &stored.trouble
        && trouble.stands(ask.forgiven_at)
    {
        match trouble.until {
            None => return Judgement::Refused,
            Some(until) if until > now => return Judgement::Resting { until },
            Some(_) => {}
        }
    }
    match ask.cause {
        Cause::Ahead if due_at(stored).is_none_or(|at| at > now) => return Judgement::Current,
        Cause::Refused if is_fresh(stored, now) => return Judgement::Fresh,
        Cause::Ahead | Cause::Expired | Cause::Refused => {}
    }
    match lock {
        Some((lock, until)) if until > now && lock.holder != ask.holder => {
            Judgement::Busy { until }
        }
        Some(_) | None => Judgement::Spend,
    }
}

/// When the tokens are due for a refresh; `None` when nobody knows their end.
pub fn due_at(status: &Status) -> Option<Millis> {
    let ends = status.expires_at?;
    let life = status.obtained_at.map(|began| ends.since(began));
    let fifth = life.map_or(LEAD_MS, |life| life.checked_div(5).unwrap_or(0));
    Some(ends.minus(fifth.min(LEAD_MS)))
}

fn is_fresh(status: &Status, now: Millis) -> bool {
    status
        .obtained_at
        .is_some_and(|at| now.since(at) < FRESH_MS)
}

/// How long to rest after `count` failures in a row, the last included, in ms;
/// at least as long as the endpoint asked for, within a bound.
pub fn rest_ms(count: u32, asked_ms: Option<u64>) -> u64 {
    let doublings = count.saturating_sub(1).min(16);
    let factor = 1_u64.checked_shl(doublings).unwrap_or(1);
    let own = FIRST_REST_MS.saturating_mul(factor).min(LONGEST_REST_MS);
    own.max(asked_ms.unwrap_or(0).min(LONGEST_ASKED_MS))
}
