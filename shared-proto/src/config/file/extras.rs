//! `settings.usageWall`, `settings.maxTools` and `settings.emergencyFallback`.

use schemars::JsonSchema;
use serde::Deserialize;

/// What subscription accounts do at the wall of their five-hour limit; each account opts in for itself.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UsageWall {
    /// Where usage is asked for and the limit is reset. Default `https://api.anthropic.com`.
    pub(crate) api_base_url: Option<String>,
}

/// A last resort when money is the reason that nobody can serve.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct EmergencyFallback {
    /// Default false: prompts would go to another vendor.
    pub(crate) enabled: Option<bool>,
    /// Where to, as `provider/model`. Default `nvidia/openai/gpt-oss-120b`.
    #[schemars(length(min = 3, max = 256))]
    pub(crate) target: Option<String>,
    /// Longest answer, in tokens. Default 4096.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub(crate) max_output_tokens: Option<u64>,
}
