//! The client protocols the router serves.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a client speaks to us. A target has to offer the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// OpenAI `POST /v1/chat/completions`.
    ChatCompletions,
    /// OpenAI `POST /v1/responses`.
    Responses,
    /// Anthropic `POST /v1/messages`.
    Messages,
    /// OpenAI `POST /v1/embeddings`; never a stream.
    Embeddings,
}

impl Protocol {
    /// Every protocol, in the order documents list them.
    pub const ALL: [Self; 4] = [
        Self::ChatCompletions,
        Self::Responses,
        Self::Messages,
        Self::Embeddings,
    ];

    /// Its place in [`Self::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::ChatCompletions => 0,
            Self::Responses => 1,
            Self::Messages => 2,
            Self::Embeddings => 3,
        }
    }

    /// The name used in messages, logs and metric labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat_completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
        }
    }

    /// The path below `/v1` on which clients call it, without the slash.
    pub const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat/completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Embeddings => "embeddings",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
