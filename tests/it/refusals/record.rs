//! The recorded refusals, and how each goes over the wire.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use cluster_tests::dialect::Dialect;
use cluster_tests::reply::Reply;
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    entries: Vec<Entry>,
}

/// One refusal and what to make of it.
#[derive(Deserialize)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) provider: String,
    status: u16,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    body_encoding: Option<String>,
    #[serde(default)]
    pub(crate) stream: bool,
    pub(crate) now: Option<String>,
    pub(crate) expected: Expected,
}

/// What to make of it.
#[derive(Deserialize)]
pub(crate) struct Expected {
    reason: String,
    pub(crate) scope: String,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) fallback_allowed: bool,
    pub(crate) terminal: bool,
}

/// Every refusal of the file.
pub(crate) fn entries() -> Vec<Entry> {
    let text = include_str!("../../../shared-proto/testdata/upstream-errors.yaml");
    let file: File = serde_yaml_ng::from_str(text).unwrap();
    file.entries
}

impl Entry {
    /// What the provider speaks.
    pub(crate) fn dialect(&self) -> Dialect {
        if self.provider == "codex" {
            Dialect::Responses
        } else if self.provider.starts_with("anthropic") {
            Dialect::Messages
        } else {
            Dialect::Chat
        }
    }

    /// Whether its connections hold tokens; the catalogue knows the others.
    pub(crate) fn is_oauth(&self) -> bool {
        matches!(
            self.provider.as_str(),
            "codex"
                | "anthropic-oauth"
                | "github-copilot"
                | "vertex"
                | "xai-oauth"
                | "gemini-code-assist"
                | "kimi-coding"
        )
    }

    /// Gateways of others, as an operator configures them.
    pub(crate) fn is_relay(&self) -> bool {
        matches!(
            self.provider.as_str(),
            "new-api" | "one-api" | "gemini-code-assist"
        )
    }

    /// Servers of the operator's own.
    pub(crate) fn is_local(&self) -> bool {
        matches!(
            self.provider.as_str(),
            "ollama" | "vllm" | "lmstudio" | "llama.cpp"
        )
    }

    /// The refusal on the wire.
    pub(crate) fn reply(&self) -> Reply {
        let body = match self.body_encoding.as_deref() {
            None => self.body.clone().into_bytes(),
            Some("gzip") => {
                let mut encoder =
                    flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(self.body.as_bytes()).unwrap();
                encoder.finish().unwrap()
            }
            Some(other) => panic!("{}: no such encoding: {other}", self.id),
        };
        let kind = self.headers.get("content-type");
        let mut reply = Reply::bytes(
            self.status,
            kind.map_or("text/plain", String::as_str),
            &body,
        );
        let own = ["content-type", "transfer-encoding", "content-length"];
        for (name, value) in &self.headers {
            if !own.contains(&name.as_str()) {
                reply = reply.header(name, value);
            }
        }
        reply
    }

    /// Whether content went out before it broke.
    pub(crate) fn broke_after_content(&self) -> bool {
        self.stream && self.status == 200 && !self.expected.fallback_allowed
    }

    /// The statuses that tell a client of this reason.
    pub(crate) fn fitting_statuses(&self) -> &'static [u16] {
        match self.expected.reason.as_str() {
            "rate_limit" | "quota_exhausted" => &[429],
            "credits_exhausted" => &[402, 429],
            "overloaded" => &[503, 529],
            "server_error" => &[500, 502, 503],
            "timeout" => &[504],
            "auth" | "banned" => &[503],
            "context_overflow" => &[400, 413],
            "bad_request" | "content_policy" => &[400, 403, 422],
            "model_not_found" | "model_access_denied" => &[400, 403, 404],
            "request_rejected" => &[400, 403, 405, 429, 502, 503],
            other => panic!("{}: no such reason: {other}", self.id),
        }
    }
}

/// Where Debian puts the library that changes a process's clock.
pub(crate) fn faketime() -> String {
    let arch = std::env::consts::ARCH;
    let path = format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketime.so.1");
    let there = Path::new(&path).exists();
    assert!(there, "no {path}: install faketime (scripts/test does)");
    path
}

/// From the real clock to `now`, as the library wants it.
pub(crate) fn offset(now: &str) -> String {
    let now: jiff::Timestamp = now.parse().unwrap();
    let real = jiff::Timestamp::now();
    let seconds = now.as_second() - real.as_second();
    format!("{seconds:+}s")
}

/// A time of a trace.
pub(crate) fn epoch_ms(text: &str) -> u64 {
    let at: jiff::Timestamp = text.parse().unwrap();
    u64::try_from(at.as_millisecond()).unwrap()
}
