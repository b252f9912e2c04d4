//! How many tools one request may bring to a provider, learned from its refusals.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::mirror::key;
use crate::mirror::record::Body;

/// What was learned is believed for this long, ms.
pub const KEEP_MS: u64 = 86_400_000;
/// Limits outside of these are not believed.
const BOUNDS: std::ops::RangeInclusive<u32> = 1..=10_000;
/// Characters between the word and its number.
const REACH: usize = 80;

/// What one provider said. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolLimit {
    learned: Option<Learned>,
}

/// A limit and when it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// Most tools of one request.
    pub limit: u32,
    /// When the provider said so.
    pub at: Millis,
}

impl ToolLimit {
    /// What is still believed at `now`.
    pub fn known(&self, now: Millis) -> Option<Learned> {
        self.learned.filter(|known| now.since(known.at) < KEEP_MS)
    }

    /// The newest word counts. Whether anything changed.
    #[must_use]
    pub fn step(&self, told: Learned) -> (Self, bool) {
        let older = self.learned.is_some_and(|known| told.at <= known.at);
        if older || !BOUNDS.contains(&told.limit) {
            return (*self, false);
        }
        let state = Self {
            learned: Some(told),
        };
        (state, true)
    }
}

/// The limit that a refusal states: a 400 that speaks of tools and says what their
/// maximum is. A maximum of tokens is none of tools.
pub fn stated(status: u16, text: &str) -> Option<u32> {
    let text = text.to_lowercase();
    if status != 400 || !text.contains("tool") {
        return None;
    }
    text.match_indices("maximum").find_map(|(at, word)| {
        let after = text.get(at.saturating_add(word.len())..)?;
        let digits = |c: char| c.is_ascii_digit();
        let begins = after.find(digits)?;
        let (between, number) = after.split_at_checked(begins)?;
        let ends = number.find(|c: char| !digits(c)).unwrap_or(number.len());
        let (number, rest) = number.split_at_checked(ends)?;
        let of_tokens = |part: &str| part.contains("token") || part.contains("context");
        let next = rest.split_whitespace().next().unwrap_or_default();
        let apart = between.chars().count() > REACH
            || between.contains(['\n', ';'])
            || between.contains(". ");
        if apart || of_tokens(between) || of_tokens(next) {
            return None;
        }
        number.parse().ok().filter(|limit| BOUNDS.contains(limit))
    })
}

impl Body for ToolLimit {
    const KIND: &'static str = key::TOOLS;
    const VERSION: u16 = 1;
}
