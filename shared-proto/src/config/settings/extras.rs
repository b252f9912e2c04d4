//! The usage wall's address, the limit on tools, the emergency fallback, and what is
//! left alone before its quota is spent.

use std::collections::BTreeMap;

/// Where subscription accounts ask for their usage and for a reset of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageWall {
    /// Base URL, without a slash at its end.
    pub api_base_url: String,
}

impl Default for UsageWall {
    fn default() -> Self {
        Self {
            api_base_url: "https://api.anthropic.com".to_owned(),
        }
    }
}

/// A last resort when money is the reason that nobody can serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmergencyFallback {
    /// Whether there is one.
    pub enabled: bool,
    /// Where to, as `provider/model`.
    pub target: String,
    /// Longest answer, in tokens.
    pub max_output_tokens: u64,
}

impl Default for EmergencyFallback {
    fn default() -> Self {
        Self {
            enabled: false,
            target: "nvidia/openai/gpt-oss-120b".to_owned(),
            max_output_tokens: 4096,
        }
    }
}

/// Tools that one request may bring where nothing else is known.
pub const MAX_TOOLS: u32 = 128;

/// Leaving connections alone before their quota is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaPreflight {
    /// Whether any are.
    pub enabled: bool,
    /// Percentage of a window that is left when it counts as used up, at most 99.
    pub default_threshold_percent: u8,
    /// Percentage that is left when the log says so; above the one before.
    pub warn_threshold_percent: u8,
    /// Percentage that is left when a window counts as used up, by provider and window.
    pub provider_window_defaults: BTreeMap<String, BTreeMap<String, u8>>,
}

impl Default for QuotaPreflight {
    fn default() -> Self {
        Self {
            enabled: false,
            default_threshold_percent: 2,
            warn_threshold_percent: 20,
            provider_window_defaults: BTreeMap::new(),
        }
    }
}
