//! What answers tell of an account's quota before it is spent.
//!
//! Providers count use in windows: five hours and a week of a subscription, a
//! minute's requests of a key. Their answers, successes too, say how full each
//! is and when it begins anew ([`read`]). What is known of a connection
//! ([`Windows`]) is a node's own memory: the newest word on each window, never
//! stored and never shared, because the next answer tells it again.
//!
//! It serves two ends. A refusal for a spent quota that does not say when it
//! ends takes the reset of the fullest window ([`informed`]). And where an
//! operator wants it, a window that is all but used up rests the connection, or
//! its models, before a call is refused ([`preflight`]); such a rest may end
//! early when the account's usage, asked for live, says so ([`usage`]).

mod headers;
pub mod preflight;
#[cfg(test)]
mod tests;
pub mod usage;

use std::sync::Arc;

use crate::classify::names_scope;
use crate::clock::Millis;
use crate::config::{ModelFamily, Reading};
use crate::failure::{Blame, Cooldown, Failure, HintSource, Reason, ResetHint};

pub use headers::{Source, read, speaks};

/// Windows of one connection that are remembered; past it the one that was
/// told of longest ago goes.
pub const WINDOWS_MAX: usize = 16;
/// Resets that differ by no more are the same one, ms: they are rounded, and
/// some are counted from when the answer arrives.
const SAME_RESET_MS: u64 = 60_000;

/// A part of a whole, in hundredths of a percent; never more than all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u16);

/// Percentages above this are no measure of anything.
const ABSURD_PERCENT: f64 = 1_000.0;

impl Share {
    /// All of it.
    pub const ALL: Self = Self(10_000);
    /// Half of it.
    pub const HALF: Self = Self(5_000);

    /// From a percentage. More than all is all; `None` for what is negative, no
    /// number, or absurd.
    pub fn of_percent(percent: f64) -> Option<Self> {
        if !(0.0..=ABSURD_PERCENT).contains(&percent) {
            return None;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is between 0 and 100,000, and the cast saturates"
        )]
        let hundredths = (percent * 100.0).round() as u16;
        Some(Self(hundredths.min(Self::ALL.0)))
    }

    /// From whole percents; more than all is all.
    pub const fn of_whole(percent: u8) -> Self {
        let hundredths = (percent as u16).saturating_mul(100);
        if hundredths > Self::ALL.0 {
            Self::ALL
        } else {
            Self(hundredths)
        }
    }

    /// What is left beside it.
    #[must_use]
    pub const fn rest(self) -> Self {
        Self(Self::ALL.0.saturating_sub(self.0))
    }

    /// As a percentage, 0 to 100.
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

/// How full a window of a quota is, as one answer told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its name, as the provider's headers have it: `primary`, `5h`, `requests`.
    pub name: Arc<str>,
    /// Which models it counts: those with this key of a lock; `None` is all.
    pub scope: Option<Arc<str>>,
    /// How much of it is used, where that was told.
    pub used: Option<Share>,
    /// When it begins anew, where that was told; later than `observed_at`.
    pub resets_at: Option<Millis>,
    /// Its length, ms, where that is known.
    pub window_ms: Option<u64>,
    /// When it was told.
    pub observed_at: Millis,
    /// Whether it has been said that little is left until this reset.
    pub warned: bool,
}

impl Window {
    /// Whether it counts the models with this key.
    pub fn counts(&self, key: &str) -> bool {
        self.scope.as_deref().is_none_or(|scope| scope == key)
    }

    /// When it begins anew, if that is after `now`.
    pub fn ends_after(&self, now: Millis) -> Option<Millis> {
        self.resets_at.filter(|at| *at > now)
    }

    fn is(&self, other: &Self) -> bool {
        self.name == other.name && self.scope == other.scope
    }

    /// Whether it runs to the same end as `before` did.
    fn goes_on(&self, before: &Self) -> bool {
        match (self.resets_at, before.resets_at) {
            (Some(a), Some(b)) => a.since(b).max(b.since(a)) <= SAME_RESET_MS,
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

/// What is known of a connection's windows, by name; at most [`WINDOWS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(Vec<Window>);

impl Windows {
    /// All of them, by name.
    pub fn all(&self) -> &[Window] {
        &self.0
    }

    /// The same with what an answer told: on each window the newest word holds.
    /// A window of which no more than `warn` is left counts as warned of.
    #[must_use]
    pub fn with(&self, told: &[Window], warn: Option<Share>) -> Self {
        let mut all = self.0.clone();
        for new in told {
            let place = all.iter().position(|known| known.is(new));
            let before = place.and_then(|place| all.get(place));
            if before.is_some_and(|before| before.observed_at > new.observed_at) {
                continue;
            }
            let low = new.used.zip(warn).is_some_and(|(u, warn)| u.rest() <= warn);
            let known = before.is_some_and(|before| before.warned && new.goes_on(before));
            let new = Window {
                warned: low || known,
                ..new.clone()
            };
            match place.and_then(|place| all.get_mut(place)) {
                Some(known) => *known = new,
                None => all.push(new),
            }
        }
        while all.len() > WINDOWS_MAX {
            let oldest = all.iter().enumerate().min_by_key(|(_, w)| w.observed_at);
            let oldest = oldest.map_or(0, |(place, _)| place);
            all.swap_remove(oldest);
        }
        all.sort_by(|a, b| (&a.name, &a.scope).cmp(&(&b.name, &b.scope)));
        Self(all)
    }

    /// Those that are warned of here and were not before.
    pub fn newly_warned<'w>(&'w self, before: &'w Self) -> impl Iterator<Item = &'w Window> {
        let was = |new: &Window| {
            let known = before.0.iter().find(|known| known.is(new));
            known.is_some_and(|known| known.warned && new.goes_on(known))
        };
        self.0.iter().filter(move |new| new.warned && !was(new))
    }

    /// Of those that count the models with `key` and run at `now`, the fullest; of
    /// equals the one that ends last. One of unknown use counts as full.
    pub fn fullest(&self, key: &str, now: Millis) -> Option<(&Window, Millis)> {
        let running = self.0.iter().filter(|window| window.counts(key));
        running
            .filter_map(|window| Some((window, window.ends_after(now)?)))
            .max_by_key(|(window, end)| (window.used.unwrap_or(Share::ALL), *end))
    }
}

/// A refusal for a spent quota that does not say when it ends, with the reset of
/// the fullest window that counts the models with `key`, if it was at least half
/// used; at most `bound_ms` away. What an operator's rule fixes stays, and so does every other failure.
#[must_use]
pub fn informed(
    mut failure: Failure,
    windows: &Windows,
    key: &str,
    bound_ms: u64,
    now: Millis,
) -> Failure {
    if !takes_a_reset(&failure) {
        return failure;
    }
    let Some((window, end)) = windows.fullest(key, now) else {
        return failure;
    };
    let wait_ms = end.since(now).min(bound_ms);
    if window.used.is_some_and(|used| used < Share::HALF) || wait_ms == 0 {
        return failure;
    }
    failure.hint = Some(ResetHint {
        wait_ms,
        source: HintSource::QuotaWindow,
        field: window.name.to_string(),
    });
    failure.cooldown = Cooldown::Ladder;
    failure.client_retry_after_ms = failure.client_retry_after_ms.or(Some(wait_ms));
    failure
}

/// Whether the failure is one that time heals, and nobody says when.
fn takes_a_reset(failure: &Failure) -> bool {
    // Nothing but an operator's rule names its scope wherever it stands.
    let by_operator = names_scope(&failure.rule, Reading::default());
    let open = match failure.cooldown {
        Cooldown::Ladder => true,
        Cooldown::Fixed(_) => !by_operator,
        Cooldown::None | Cooldown::Streak => false,
    };
    open && failure.reason == Reason::QuotaExhausted
        && failure.terminal.is_none()
        && failure.hint.is_none()
        && matches!(failure.blame, Blame::Connection | Blame::Model)
}

/// The family of models that has `name`, a model's or a limit's.
fn family<'f>(name: &str, families: &'f [ModelFamily]) -> Option<&'f str> {
    let found = families.iter().find(|family| family.has(name));
    found.map(|family| family.name.as_str())
}
