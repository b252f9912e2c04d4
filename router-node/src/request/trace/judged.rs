//! A failed attempt's failure, and what came of it, as it is shown everywhere.

use std::ops::Deref;

use serde::{Serialize, Serializer};
use shared_proto::failure::{Blame, ErrorType, Failure, HintSource, Reason, Terminal};

use crate::request::transition::Rest;

/// What the classifier said, and what the owners and the client heard of it.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    failure: Failure,
    /// The cooldown or lock that it set; `None` where nothing was written, also
    /// because it rests already.
    rest: Option<Rest>,
    /// What the client was told to wait, where this is the failure it was told of, ms.
    pub(crate) client_retry_after_ms: Option<u64>,
}

impl From<Failure> for Judged {
    /// A failure that nothing came of.
    fn from(failure: Failure) -> Self {
        Self::new(failure, None)
    }
}

impl Judged {
    /// A failure that set `rest`.
    pub(crate) fn new(failure: Failure, rest: Option<Rest>) -> Self {
        let announced = failure.hint.as_ref().map(|hint| hint.wait_ms);
        let rest = rest.map(|rest| Rest {
            // A lock's owner does not say so; its length does.
            hinted: rest.hinted || announced == Some(rest.ms),
            ..rest
        });
        Self {
            failure,
            rest,
            client_retry_after_ms: None,
        }
    }

    /// What the classifier said.
    pub(crate) const fn failure(&self) -> &Failure {
        &self.failure
    }

    /// How long that is, ms.
    pub(crate) fn cooldown_ms(&self) -> Option<u64> {
        self.rest.map(|rest| rest.ms)
    }

    /// Whether the announced time is what was set; `None` where none was announced.
    pub(crate) fn hint_used(&self) -> Option<bool> {
        let used = self.rest.is_some_and(|rest| rest.hinted);
        self.failure.hint.as_ref().map(|_| used)
    }
}

impl Deref for Judged {
    type Target = Failure;

    fn deref(&self) -> &Failure {
        &self.failure
    }
}

impl Serialize for Judged {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Shown::of(self).serialize(serializer)
    }
}

/// The words of `/api/requests/{id}`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    /// The status after restatement.
    status: u16,
    reason: Reason,
    scope: Blame,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_type: Option<ErrorType>,
    fallback: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    terminal: Option<Terminal>,
    rule: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    restated: Option<Restated<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<Hint<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint_used: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cooldown_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_retry_after_ms: Option<u64>,
    counts_for_breaker: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream_code: Option<&'a str>,
    message: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Restated<'a> {
    rule: &'a str,
    from_status: u16,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Hint<'a> {
    wait_ms: u64,
    source: HintSource,
    field: &'a str,
}

impl<'a> Shown<'a> {
    fn of(judged: &'a Judged) -> Self {
        let failure = &judged.failure;
        let restated = failure.restated.as_ref();
        let hint = failure.hint.as_ref();
        Self {
            status: failure.status,
            reason: failure.reason,
            scope: failure.blame,
            error_type: failure.error_type,
            fallback: failure.fallback,
            terminal: failure.terminal,
            rule: &failure.rule,
            restated: restated.map(|(rule, from_status)| Restated {
                rule,
                from_status: *from_status,
            }),
            hint: hint.map(|hint| Hint {
                wait_ms: hint.wait_ms,
                source: hint.source,
                field: &hint.field,
            }),
            hint_used: judged.hint_used(),
            cooldown_ms: judged.cooldown_ms(),
            until: judged.rest.map(|rest| rest.until.to_rfc3339()),
            client_retry_after_ms: judged.client_retry_after_ms,
            counts_for_breaker: failure.counts_for_breaker,
            upstream_code: failure.upstream_code.as_deref(),
            message: &failure.message,
        }
    }
}
