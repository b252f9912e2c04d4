//! What refusals mean: the general vectors, tables of blame and terminal
//! states, errors inside streams, and what may be shown.

use super::{ClassifyRules, UpstreamError, classify};
use crate::catalogue;
use crate::clock::Millis;
use crate::config::ErrorRule;
use crate::failure::{Failure, Profile};
use crate::hint::Answer;
use crate::hint::tests::{BOUNDS, T0};
use crate::restate;

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
struct Refusal {
    provider: &'static str,
    profile: Profile,
    per_model_quota: bool,
    in_stream: bool,
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
    now: Millis,
    banned: Vec<String>,
    rules: Vec<ErrorRule>,
}

/// A refusal of an API key's request at a provider with one quota per account.
fn refused(status: u16, body: &str) -> Refusal {
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
    fn from(mut self, provider: &'static str) -> Self {
        self.provider = provider;
        self
    }

    fn of(mut self, profile: Profile) -> Self {
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

    fn error(&self) -> UpstreamError<'_> {
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
        }
    }

    fn failure(&self) -> Failure {
        let restate = restate::built_in();
        let rules = ClassifyRules {
            hint_bounds: &BOUNDS,
            custom_banned_signals: &self.banned,
            provider_rules: &self.rules,
            restate: &restate,
        };
        classify(&self.error(), &rules, self.now)
    }
}

/// The usual body around a message.
fn message(text: &str) -> String {
    serde_json::json!({"error": {"message": text}}).to_string()
}
