//! What is stored of tokens, and of who refreshes them.

use serde::{Deserialize, Serialize};

use crate::clock::Millis;
use crate::mirror::key;
use crate::mirror::record::Body;

use super::MAX_LINES;

/// The tokens of one connection, a line for each credential that was
/// configured for it lately.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredTokens {
    /// At most [`MAX_LINES`].
    #[serde(default)]
    pub lines: Vec<Line>,
}

/// What has become of one configured credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    /// Which credential it descends from; see [`mark`](super::mark).
    pub mark: u64,
    /// How it stands.
    pub status: Status,
    /// The tokens.
    pub sealed: Sealed,
    /// When the line was last written.
    pub written_at: Millis,
}

/// How the tokens of a line stand: all that is decided by, and nothing secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    /// How often they were refreshed; 0 is as configured.
    pub generation: u64,
    /// When the access token ends, if that is known.
    pub expires_at: Option<Millis>,
    /// When it was asked for; unknown for a configured one.
    pub obtained_at: Option<Millis>,
    /// What came of the last refresh, if it was none.
    pub trouble: Option<Trouble>,
}

/// A refresh that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// Failures in a row.
    pub count: u32,
    /// When it was noted.
    pub at: Millis,
    /// No other refresh before this time; `None` means that the refresh token
    /// was refused, and no other refresh at all.
    pub until: Option<Millis>,
    /// Why, in one word.
    pub code: String,
}

/// Sealed tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// Which key opens it; see [`Keyring`](super::Keyring).
    pub key: String,
    /// Nonce, ciphertext and tag, in base64.
    pub text: String,
}

/// Who refreshes the tokens of a connection, until its record expires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RefreshLock {
    /// A node, and which run of it.
    pub holder: String,
    /// Whose refresh token it spends.
    pub mark: u64,
    /// Of this generation.
    pub generation: u64,
    /// Since when.
    pub since: Millis,
}

impl Status {
    /// Whether the access token can be sent at `now`.
    pub fn is_valid(&self, now: Millis) -> bool {
        self.expires_at.is_none_or(|at| at > now)
    }

    /// Whether the refresh token was refused since `forgiven_at`, when an
    /// operator last asked to forget.
    pub fn is_refused(&self, forgiven_at: Option<Millis>) -> bool {
        self.trouble
            .as_ref()
            .is_some_and(|trouble| trouble.until.is_none() && trouble.stands(forgiven_at))
    }
}

impl Trouble {
    /// Whether it was noted after `forgiven_at`.
    pub(super) fn stands(&self, forgiven_at: Option<Millis>) -> bool {
        forgiven_at.is_none_or(|at| at < self.at)
    }
}

impl StoredTokens {
    /// The line of a credential.
    pub fn line(&self, mark: u64) -> Option<&Line> {
        self.lines.iter().find(|line| line.mark == mark)
    }

    /// The same with `line` in the place of the one of its credential.
    #[must_use]
    pub fn with(&self, line: Line) -> Self {
        let mut lines = self.lines.clone();
        lines.retain(|other| other.mark != line.mark);
        while lines.len() >= MAX_LINES {
            let oldest = lines.iter().enumerate().min_by_key(|(_, l)| l.written_at);
            let Some((at, _)) = oldest else { break };
            lines.remove(at);
        }
        lines.push(line);
        Self { lines }
    }
}

impl Body for StoredTokens {
    const KIND: &'static str = key::TOKEN;
    const VERSION: u16 = 1;
}

impl Body for RefreshLock {
    const KIND: &'static str = key::REFRESH;
    const VERSION: u16 = 1;
}
