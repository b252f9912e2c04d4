//! What the client was told, and what the answer cost.

use serde::Serialize;
use shared_proto::stream::Usage;

use crate::http::reply::ClientError;

/// The error that the client was told.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Told {
    pub(crate) code: String,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<u64>,
}

impl From<&ClientError> for Told {
    fn from(error: &ClientError) -> Self {
        Self {
            code: error.code.clone(),
            message: error.message.clone(),
            retry_after_ms: error.retry_after_ms,
        }
    }
}

/// Tokens as the upstream counted them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Tokens {
    pub(crate) input: Option<u64>,
    pub(crate) output: Option<u64>,
    pub(crate) cached: Option<u64>,
}

impl From<Usage> for Tokens {
    fn from(usage: Usage) -> Self {
        Self {
            input: usage.input,
            output: usage.output,
            cached: usage.cached,
        }
    }
}
