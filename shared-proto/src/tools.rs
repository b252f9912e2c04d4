//! How many tools one request may bring to a provider, learned from its refusals.

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::asked::Asked;
use crate::clock::Millis;
use crate::mirror::key;
use crate::mirror::record::Body;

/// What was learned is believed for this long, ms.
pub const KEEP_MS: u64 = 86_400_000;
/// Limits outside of these are not believed.
const BOUNDS: std::ops::RangeInclusive<u32> = 1..=10_000;
/// Occurrences of the word that are looked at.
const PLACES_MAX: usize = 64;
/// What else has a maximum beside tools.
const OTHER_THINGS: [&str; 6] = ["token", "context", "string", "character", "byte", "depth"];
/// Characters between the word and its number.
const REACH: usize = 80;

/// What one provider said. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolLimit {
    learned: Option<Learned>,
    /// What was told until then is forgotten.
    forgotten_at: Option<Millis>,
}

/// A limit and when it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learned {
    /// Most tools of one request.
    pub limit: u32,
    /// When the provider said so.
    pub at: Millis,
}

/// What happens to what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolEvent {
    /// The provider stated a limit.
    Told(Learned),
    /// An operator has what was told until then forgotten.
    Forget {
        /// When.
        at: Millis,
    },
}

impl ToolLimit {
    /// What is still believed at `now`.
    pub fn known(&self, now: Millis) -> Option<Learned> {
        self.learned.filter(|known| now.since(known.at) < KEEP_MS)
    }

    /// The newest word counts. Whether anything changed.
    #[must_use]
    pub fn step(&self, event: ToolEvent) -> (Self, bool) {
        let state = match event {
            ToolEvent::Told(told) => {
                let newer = |known: Option<Millis>| known.is_none_or(|at| told.at > at);
                let news = newer(self.learned.map(|known| known.at)) && newer(self.forgotten_at);
                if !news || !BOUNDS.contains(&told.limit) {
                    return (*self, false);
                }
                Self {
                    learned: Some(told),
                    ..*self
                }
            }
            ToolEvent::Forget { at } => {
                let Some(known) = self.learned.filter(|known| known.at <= at) else {
                    return (*self, false);
                };
                Self {
                    learned: None,
                    forgotten_at: Some(at.max(known.at)),
                }
            }
        };
        (state, true)
    }
}

/// The limit that the refusal of a request with so many `tools` teaches: one that the
/// request was over, in words that the client did not write.
pub fn learned(status: u16, text: &str, tools: usize, asked: &Asked<'_>) -> Option<u32> {
    let text = text.to_lowercase();
    let is_news = |limit: u32| u32::try_from(tools).is_ok_and(|tools| tools > limit);
    statements(status, &text)
        .find(|(limit, words)| is_news(*limit) && !asked.says(words))
        .map(|(limit, _)| limit)
}

/// The limit that a refusal states: a 400 that speaks of tools and says what their
/// maximum is. A maximum of tokens, or of a text's length, is none of tools.
pub fn stated(status: u16, text: &str) -> Option<u32> {
    let first = statements(status, &text.to_lowercase()).next()?.0;
    Some(first)
}

/// Each limit that lowercase `text` states, with its words.
fn statements(status: u16, text: &str) -> impl Iterator<Item = (u32, &str)> {
    let about_tools = status == 400 && text.contains("tool");
    let places = text.match_indices("maximum").take(PLACES_MAX);
    places
        .filter(move |_| about_tools)
        .filter_map(|(at, word)| statement(text, at, word))
}

fn statement<'t>(text: &'t str, at: usize, word: &str) -> Option<(u32, &'t str)> {
    let after = text.get(at.saturating_add(word.len())..)?;
    let digits = |c: char| c.is_ascii_digit();
    let begins = after.find(digits)?;
    let (between, number) = after.split_at_checked(begins)?;
    let ends = number.find(|c: char| !digits(c)).unwrap_or(number.len());
    let (number, rest) = number.split_at_checked(ends)?;
    let next = rest.split_whitespace().next().unwrap_or_default();
    let before = text.get(..at)?.rsplit(['\n', ';', ':']).next()?;
    let before = before.rsplit(". ").next()?;
    let of_others = [before, between, next].into_iter().any(|part| {
        let mut others = OTHER_THINGS.iter();
        others.any(|thing| part.contains(thing))
    });
    let apart =
        between.chars().count() > REACH || between.contains(['\n', ';']) || between.contains(". ");
    if apart || of_others {
        return None;
    }
    let limit = number.parse().ok().filter(|limit| BOUNDS.contains(limit))?;
    let length = word.len().saturating_add(begins).saturating_add(ends);
    Some((limit, text.get(at..at.saturating_add(length))?))
}

impl Body for ToolLimit {
    const KIND: &'static str = key::TOOLS;
    const VERSION: u16 = 1;
}
