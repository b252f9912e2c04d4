//! An expired connection is tried again by itself, a few times: a login that
//! was renewed elsewhere, or a key that was put back, needs no operator then.
//!
//! Each retry is counted in the connection's record before it is made, so that
//! it is made once in the cluster, and waits twice as long as the one before.
//! After the last one only an operator or another credential brings the
//! connection back.

use serde::{Deserialize, Serialize};

use super::{ConnectionHealth, Outcome, Step, TerminalState};
use crate::clock::Millis;
use crate::failure::Terminal;

/// Longest wait between two retries, ms.
const LONGEST_WAIT_MS: u64 = 240 * 60 * 1000;

/// When expired connections are tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryRules {
    /// Whether they are at all.
    pub enabled: bool,
    /// How often a node looks which are due, ms.
    pub sweep_ms: u64,
    /// Wait before the first retry, ms; it doubles with each.
    pub base_ms: u64,
    /// Retries of one connection; after them it stays expired.
    pub max_retries: u32,
}

impl Default for RetryRules {
    fn default() -> Self {
        Self {
            enabled: true,
            sweep_ms: 60_000,
            base_ms: 300_000,
            max_retries: 3,
        }
    }
}

impl RetryRules {
    /// The wait after `done` retries, ms.
    fn wait_ms(&self, done: u32) -> u64 {
        let factor = 1_u64.checked_shl(done).unwrap_or(u64::MAX);
        self.base_ms.saturating_mul(factor).min(LONGEST_WAIT_MS)
    }
}

/// Retries that were begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredRetry {
    /// How many.
    pub count: u32,
    /// When the last one began.
    pub at: Millis,
}

/// Whether an expired connection is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// It is not expired, or nothing is tried again.
    Never,
    /// From this time on.
    At {
        /// Its number, from 1.
        number: u32,
        /// The first moment.
        due: Millis,
    },
    /// It was tried often enough.
    Over,
}

impl ConnectionHealth {
    /// Whether and when the connection is tried again by itself.
    pub fn retry(&self, rules: &RetryRules) -> Retry {
        let Some(expired) = self
            .expired()
            .filter(|_| rules.enabled && rules.max_retries > 0)
        else {
            return Retry::Never;
        };
        let (done, last) = match self.expired_retry {
            Some(retry) => (retry.count, retry.at),
            None => (0, expired.at),
        };
        if done >= rules.max_retries {
            return Retry::Over;
        }
        Retry::At {
            number: done.saturating_add(1),
            due: last.plus(rules.wait_ms(done)),
        }
    }

    /// When it was last forgiven that its tokens can't be renewed: by a reset,
    /// by other credentials, or for the sake of a retry.
    pub fn forgiven_at(&self) -> Option<Millis> {
        self.renewed_at
            .max(self.expired_retry.map(|retry| retry.at))
    }

    fn expired(&self) -> Option<TerminalState> {
        self.terminal
            .filter(|state| state.kind == Terminal::Expired)
    }

    /// Retry `number` of the state that began at `expired_at` begins, unless
    /// somebody else has begun it.
    pub(super) fn retried(&self, number: u32, expired_at: Millis, now: Millis) -> Step {
        let done = self.expired_retry.map_or(0, |retry| retry.count);
        let same = self.expired().is_some_and(|state| state.at == expired_at);
        if !same || number != done.saturating_add(1) {
            return self.kept(now, Outcome::Nothing);
        }
        let state = Self {
            expired_retry: Some(ExpiredRetry {
                count: number,
                at: now,
            }),
            ..self.clone()
        };
        state.into_step(now, Outcome::Retrying)
    }
}
