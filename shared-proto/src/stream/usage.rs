//! Token counts as the three protocols write them.

use serde::Deserialize;

use super::lenient::{Int, Maybe};

/// Tokens of one answer. `None` is "not said", which is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens, those read from and written to a cache included.
    pub input: Option<u64>,
    /// Generated tokens, reasoning included.
    pub output: Option<u64>,
    /// The part of `input` that was read from a cache.
    pub cached: Option<u64>,
}

impl Usage {
    /// Takes over what `later` says; what it leaves out stays.
    pub(crate) fn update(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cached = later.cached.or(self.cached);
    }

    /// `None` if nothing is known.
    pub(crate) fn known(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Details {
    #[serde(default)]
    cached_tokens: Int,
}

/// `usage` of chat completions and embeddings.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ChatUsage {
    #[serde(default)]
    prompt_tokens: Int,
    #[serde(default)]
    completion_tokens: Int,
    #[serde(default)]
    prompt_tokens_details: Maybe<Details>,
    #[serde(default)]
    prompt_cache_hit_tokens: Int,
    #[serde(default)]
    cached_tokens: Int,
}

impl From<&ChatUsage> for Usage {
    fn from(wire: &ChatUsage) -> Self {
        let details = wire.prompt_tokens_details.0.as_ref();
        Self {
            input: wire.prompt_tokens.0,
            output: wire.completion_tokens.0,
            cached: details
                .and_then(|details| details.cached_tokens.0)
                .or(wire.prompt_cache_hit_tokens.0)
                .or(wire.cached_tokens.0),
        }
    }
}

/// `usage` of the Responses API.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ResponsesUsage {
    #[serde(default)]
    input_tokens: Int,
    #[serde(default)]
    output_tokens: Int,
    #[serde(default)]
    input_tokens_details: Maybe<Details>,
}

impl From<&ResponsesUsage> for Usage {
    fn from(wire: &ResponsesUsage) -> Self {
        let details = wire.input_tokens_details.0.as_ref();
        Self {
            input: wire.input_tokens.0,
            output: wire.output_tokens.0,
            cached: details.and_then(|details| details.cached_tokens.0),
        }
    }
}

/// `usage` of messages: cached tokens are counted outside `input_tokens`, and a
/// later one may repeat only some of the members.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names of the wire")]
pub(crate) struct MessagesUsage {
    #[serde(default)]
    input_tokens: Int,
    #[serde(default)]
    output_tokens: Int,
    #[serde(default)]
    cache_read_input_tokens: Int,
    #[serde(default)]
    cache_creation_input_tokens: Int,
}

impl MessagesUsage {
    /// Takes over what `later` says; the counts are cumulative, not additive.
    pub(crate) fn update(&mut self, later: &Self) {
        let pick = |new: Int, old: Int| Int(new.0.or(old.0));
        self.input_tokens = pick(later.input_tokens, self.input_tokens);
        self.output_tokens = pick(later.output_tokens, self.output_tokens);
        self.cache_read_input_tokens =
            pick(later.cache_read_input_tokens, self.cache_read_input_tokens);
        self.cache_creation_input_tokens = pick(
            later.cache_creation_input_tokens,
            self.cache_creation_input_tokens,
        );
    }
}

impl From<&MessagesUsage> for Usage {
    fn from(wire: &MessagesUsage) -> Self {
        let parts = [
            wire.input_tokens.0,
            wire.cache_read_input_tokens.0,
            wire.cache_creation_input_tokens.0,
        ];
        let known = parts.into_iter().flatten();
        Self {
            input: known.reduce(u64::saturating_add),
            output: wire.output_tokens.0,
            cached: wire.cache_read_input_tokens.0,
        }
    }
}
