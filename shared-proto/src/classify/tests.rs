//! What refusals mean: the general vectors, tables of blame and terminal
//! states, errors inside streams, and what may be shown.

use super::{ClassifyRules, UpstreamError, classify};
use crate::asked::Asked;
use crate::catalogue;
use crate::clock::Millis;
use crate::config::ErrorRule;
use crate::failure::{Failure, Profile};
use crate::hint::Answer;
use crate::hint::tests::{BOUNDS, T0};
use crate::restate;

mod charged;
mod corpus;
mod decisions;
mod harvest;
mod kinds;
mod properties;
mod quirks;
mod shown;
mod streams;
mod vectors;

/// A refusal under construction.
#[derive(Clone)]
pub(super) struct Refusal {
    pub(super) provider: &'static str,
    pub(super) profile: Profile,
    pub(super) per_model_quota: bool,
    pub(super) in_stream: bool,
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
    pub(super) now: Millis,
    pub(super) banned: Vec<String>,
    pub(super) rules: Vec<ErrorRule>,
}

/// A refusal of an API key's request at a provider with one quota per account.
pub(super) fn refused(status: u16, body: &str) -> Refusal {
    Refusal {
        provider: "acme",
        profile: Profile::ApiKey,
        per_model_quota: false,
        in_stream: false,
        status,
        headers: Vec::new(),
        body: body.to_owned(),
        now: T0,
        banned: Vec::new(),
        rules: Vec::new(),
    }
}

impl Refusal {
    pub(super) fn from(mut self, provider: &'static str) -> Self {
        self.provider = provider;
        self
    }

    pub(super) fn of(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    fn per_model(mut self) -> Self {
        self.per_model_quota = true;
        self
    }

    fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn error<'a>(&'a self, asked: Option<&'a Asked<'a>>) -> UpstreamError<'a> {
        UpstreamError {
            answer: Answer {
                provider: self.provider,
                status: self.status,
                headers: &self.headers,
                body: self.body.as_bytes(),
            },
            profile: self.profile,
            per_model_quota: self.per_model_quota,
            reading: catalogue::entry(self.provider)
                .map(|entry| entry.provider.reading)
                .unwrap_or_default(),
            daily_reset: None,
            model: Some("some-model"),
            in_stream: self.in_stream,
            asked,
        }
    }

    pub(super) fn failure(&self) -> Failure {
        self.failure_of(None)
    }

    /// What it means for a request that was `asked`.
    pub(super) fn failure_of(&self, asked: Option<&Asked<'_>>) -> Failure {
        let restate = restate::built_in();
        let rules = ClassifyRules {
            hint_bounds: &BOUNDS,
            custom_banned_signals: &self.banned,
            provider_rules: &self.rules,
            restate: &restate,
        };
        classify(&self.error(asked), &rules, self.now)
    }
}

/// The usual body around a message.
pub(super) fn message(text: &str) -> String {
    serde_json::json!({"error": {"message": text}}).to_string()
}
