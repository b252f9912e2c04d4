//! The refusals of `testdata/upstream-errors.yaml` and `testdata/harvest.yaml`, for the tests.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Answer;
use crate::clock::Millis;
use crate::failure::Reason;

#[derive(Debug, Deserialize)]
struct File {
    entries: Vec<Entry>,
}

/// One refusal and what to make of it.
#[derive(Debug, Deserialize)]
pub(crate) struct Entry {
    pub id: String,
    pub provider: String,
    pub status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    now: Option<String>,
    pub expected: Expected,
}

/// What to make of it.
#[derive(Debug, Deserialize)]
pub(crate) struct Expected {
    pub reason: String,
    pub scope: String,
    pub retry_after_ms: Option<u64>,
    pub fallback_allowed: bool,
    pub terminal: bool,
}

/// Every recorded entry.
pub(crate) fn entries() -> Vec<Entry> {
    read(include_str!("../../testdata/upstream-errors.yaml"))
}

/// Every gathered entry.
pub(crate) fn harvest() -> Vec<Entry> {
    read(include_str!("../../testdata/harvest.yaml"))
}

fn read(text: &str) -> Vec<Entry> {
    let file: File = serde_yaml_ng::from_str(text).unwrap();
    file.entries
}

impl Entry {
    /// The headers, names lowercased.
    pub(crate) fn headers(&self) -> Vec<(String, String)> {
        let lower = |(name, value): (&String, &String)| (name.to_lowercase(), value.clone());
        self.headers.iter().map(lower).collect()
    }

    /// The entry as an answer with `headers`.
    pub(crate) fn answer<'a>(&'a self, headers: &'a [(String, String)]) -> Answer<'a> {
        Answer {
            provider: &self.provider,
            status: self.status,
            headers,
            body: self.body.as_bytes(),
        }
    }

    /// The entry's clock; where it has none, any will do.
    pub(crate) fn now(&self) -> Millis {
        self.now
            .as_deref()
            .map_or(super::tests::T0, super::tests::at)
    }

    /// The expected reason in our words.
    pub(crate) fn reason(&self) -> Reason {
        match self.expected.reason.as_str() {
            "rate_limit" => Reason::RateLimitExceeded,
            "quota_exhausted" | "credits_exhausted" => Reason::QuotaExhausted,
            "overloaded" | "model_access_denied" | "context_overflow" => Reason::ModelCapacity,
            "model_not_found" => Reason::NotFound,
            "server_error" | "timeout" => Reason::ServerError,
            "auth" | "banned" => Reason::AuthError,
            "bad_request" | "content_policy" | "request_rejected" => Reason::Unknown,
            other => panic!("{}: no such reason: {other}", self.id),
        }
    }
}
