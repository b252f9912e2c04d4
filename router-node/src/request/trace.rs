//! What happened to one request: each attempt, each excluded candidate, and
//! how it ended. The trace is what the log line, the metrics, the response
//! headers and `GET /api/requests/{id}` show.

mod excluded;
mod judged;
mod told;

use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::HeaderMap;
use serde::Serialize;
use shared_proto::clock::Millis;
use shared_proto::failure::Reason;
use shared_proto::id::{ApiKeyId, ConnectionId, ProviderId};
use shared_proto::protocol::Protocol;
use shared_proto::rotation::Gated;
use tokio::time::Instant;

use super::siblings::Shared;
use crate::http::reply::ClientError;
use crate::observe::{Observer, RequestSpan};
pub(crate) use excluded::Excluded;
pub(crate) use judged::Judged;
pub(crate) use told::{Tokens, Told};

/// Exclusions kept with one request.
const MAX_EXCLUSIONS: usize = 64;

/// One call to an upstream.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attempt {
    pub(crate) provider: ProviderId,
    pub(crate) connection: ConnectionId,
    pub(crate) model: Arc<str>,
    #[serde(serialize_with = "rfc3339_of")]
    pub(crate) started_at: Millis,
    pub(crate) duration_ms: u64,
    /// `success`, `failed`, `client_gone` or `cancelled`.
    pub(crate) outcome: &'static str,
    /// The upstream's own status, when it answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<Judged>,
    /// Whether it was sent on the upstream's low-priority lane.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) low_priority: bool,
    /// What the rotation gate made of it, where it had a word in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rotation: Option<Gated>,
    /// Until when the connection rests because of it, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cooled_until: Option<String>,
    /// Who else rests, where it was a limit of the address that it left by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shared: Option<Shared>,
}

/// What a request did at an account's usage wall, without the attempt being over.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WallStep {
    pub(crate) connection: ConnectionId,
    /// Why the call was made again, or `ended` for the end of the lane.
    pub(crate) step: &'static str,
    /// Why the lane ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'static str>,
    /// How often.
    pub(crate) times: u32,
    /// Waits before the calls together, ms.
    pub(crate) waited_ms: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes the field by reference"
)]
pub(super) fn rfc3339_of<S: serde::Serializer>(
    at: &Millis,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    at.to_rfc3339().serialize(serializer)
}

/// How the request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// The client has a complete answer.
    Success,
    /// The client was refused or told of a failure.
    Error,
    /// A stream broke after its first content.
    StreamFailed,
    /// The client went away.
    ClientGone,
}

impl Outcome {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::StreamFailed => "stream_failed",
            Self::ClientGone => "client_gone",
        }
    }
}

/// The record of one request.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    pub(crate) id: Arc<str>,
    /// The id under which a collector has its spans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<String>,
    #[serde(serialize_with = "rfc3339_of")]
    pub(crate) at: Millis,
    /// None for a call of nothing that is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protocol: Option<Protocol>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    pub(crate) stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_key: Option<ApiKeyId>,
    pub(crate) outcome: Outcome,
    pub(crate) duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first_byte_ms: Option<u64>,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) excluded: Vec<Excluded>,
    /// Exclusions beyond those listed.
    pub(crate) more_excluded: u64,
    /// Waits for a cooling connection, ms.
    pub(crate) waits_ms: Vec<u64>,
    /// What it did at usage walls: a line for each connection and step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) usage_wall: Vec<WallStep>,
    /// Time in queues for a slot, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queued_ms: Option<u64>,
    /// The status that the client saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Told>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Tokens>,
    /// What the answer is marked with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<&'static str>,
    /// Harmless oddities of the upstream's stream.
    pub(crate) quirks: Vec<&'static str>,
    /// Who wanted to know, for a live test of a connection: `operator` or `expired_retry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) test: Option<&'static str>,
    /// Which attempt's failure the client is told of.
    #[serde(skip)]
    pub(crate) told: Option<usize>,
    /// Whether it is refused because nobody is left.
    #[serde(skip)]
    pub(crate) nobody_left: bool,
}

impl Record {
    /// The protocol's word; `none` where nothing says it.
    pub(crate) fn protocol(&self) -> &'static str {
        self.protocol.map_or("none", Protocol::as_str)
    }
}

/// The trace while the request runs. Dropping it unfinished means that the
/// client went away.
pub(crate) struct Trace {
    record: Option<Record>,
    /// The call under way, as it began: whatever ends the request ends it.
    under_way: Option<(Attempt, Instant)>,
    started: Instant,
    /// Only where a collector is named.
    span: Option<RequestSpan>,
    observer: Arc<Observer>,
}

impl Trace {
    /// Begins the trace of a request that came with `headers`.
    pub(crate) fn begin(
        id: Arc<str>,
        protocol: Option<Protocol>,
        now: Millis,
        headers: &HeaderMap,
        observer: Arc<Observer>,
    ) -> Self {
        observer.request_began();
        // What is nobody's request is counted and remembered, but no span.
        let spans = observer.spans.zip(protocol);
        let span = spans.map(|(spans, protocol)| spans.begin(protocol, headers));
        Self {
            record: Some(Record {
                id,
                trace_id: span.as_ref().and_then(RequestSpan::trace_id),
                at: now,
                protocol,
                model: None,
                stream: false,
                api_key: None,
                outcome: Outcome::ClientGone,
                duration_ms: 0,
                first_byte_ms: None,
                attempts: Vec::new(),
                excluded: Vec::new(),
                more_excluded: 0,
                waits_ms: Vec::new(),
                usage_wall: Vec::new(),
                queued_ms: None,
                status: None,
                error: None,
                usage: None,
                warnings: Vec::new(),
                quirks: Vec::new(),
                test: None,
                told: None,
                nobody_left: false,
            }),
            under_way: None,
            started: Instant::now(),
            span,
            observer,
        }
    }

    /// The record so far. Always there until the trace is finished.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Record)) {
        if let Some(record) = &mut self.record {
            change(record);
        }
    }

    /// The record so far.
    pub(crate) fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// The request's span, where it is traced.
    pub(crate) fn span(&self) -> Option<&RequestSpan> {
        self.span.as_ref()
    }

    /// Whether it is a live test's.
    pub(crate) fn is_test(&self) -> bool {
        self.record().is_some_and(|record| record.test.is_some())
    }

    /// How many upstream calls were made.
    pub(crate) fn attempts(&self) -> usize {
        self.record
            .as_ref()
            .map_or(0, |record| record.attempts.len())
    }

    /// An upstream is called now.
    pub(crate) fn calls(&mut self, attempt: Attempt) {
        self.under_way = Some((attempt, Instant::now()));
    }

    /// Notes how the call under way ended.
    pub(crate) fn attempted(&mut self, attempt: Attempt) {
        self.under_way = None;
        self.edit(|record| record.attempts.push(attempt));
    }

    /// Notes a wait for a cooling connection. What was excluded before it is
    /// judged anew after it.
    pub(crate) fn wait(&mut self, wait: Duration) {
        self.edit(|record| {
            record.waits_ms.push(millis(wait));
            record.excluded.clear();
            record.more_excluded = 0;
        });
    }

    /// Notes a step at a usage wall.
    pub(crate) fn at_wall(&mut self, step: WallStep) {
        self.edit(|record| {
            let same = |known: &&mut WallStep| {
                (&known.connection, known.step, known.reason)
                    == (&step.connection, step.step, step.reason)
            };
            if let Some(known) = record.usage_wall.iter_mut().find(same) {
                known.times = known.times.saturating_add(step.times);
                known.waited_ms = known.waited_ms.saturating_add(step.waited_ms);
            } else {
                record.usage_wall.push(step);
            }
        });
    }

    /// Notes time spent in a queue for a slot.
    pub(crate) fn queued(&mut self, wait: Duration) {
        self.edit(|record| {
            let before = record.queued_ms.unwrap_or(0);
            record.queued_ms = Some(before.saturating_add(millis(wait)));
        });
    }

    /// Takes back that a connection was passed over: it is called after all.
    pub(crate) fn include(&mut self, connection: &ConnectionId, model: &str) {
        let same = |e: &Excluded| e.connection.as_ref() == Some(connection) && &*e.model == model;
        self.edit(|record| record.excluded.retain(|e| !same(e)));
    }

    /// Notes a candidate that was not tried, and why. One that was already
    /// noted is noted anew.
    pub(crate) fn exclude(&mut self, exclusion: Excluded) {
        let Some(record) = &mut self.record else {
            return;
        };
        let same = |e: &&mut Excluded| {
            e.provider == exclusion.provider
                && e.connection == exclusion.connection
                && e.model == exclusion.model
        };
        if let Some(known) = record.excluded.iter_mut().find(same) {
            *known = exclusion;
        } else if record.excluded.len() < MAX_EXCLUSIONS {
            record.excluded.push(exclusion);
        } else {
            record.more_excluded = record.more_excluded.saturating_add(1);
        }
    }

    /// Notes that the first byte of the answer left.
    pub(crate) fn first_byte(&mut self) {
        let elapsed = millis(self.started.elapsed());
        self.edit(|record| {
            record.first_byte_ms.get_or_insert(elapsed);
        });
    }

    /// Notes that the client was refused, and ends the trace.
    pub(crate) fn refused(&mut self, error: &ClientError) {
        self.edit(|record| {
            record.status = Some(error.status);
            record.error = Some(error.into());
            let told = record.told.and_then(|place| record.attempts.get_mut(place));
            if let Some(failure) = told.and_then(|attempt| attempt.failure.as_mut()) {
                failure.client_retry_after_ms = error.retry_after_ms;
            }
        });
        self.finish(Outcome::Error);
    }

    /// Ends the trace: its span, one log line, the metrics, the journal.
    pub(crate) fn finish(&mut self, outcome: Outcome) {
        if let Some((attempt, since)) = self.under_way.take() {
            let ended = if outcome == Outcome::ClientGone {
                outcome.as_str()
            } else {
                "cancelled"
            };
            self.attempted(Attempt {
                outcome: ended,
                duration_ms: millis(since.elapsed()),
                ..attempt
            });
        }
        if let Some(mut record) = self.record.take() {
            record.outcome = outcome;
            record.duration_ms = millis(self.started.elapsed());
            if let Some(span) = self.span.take() {
                span.end(&record);
            }
            self.observer.request_ended(record, self.started.elapsed());
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.finish(Outcome::ClientGone);
    }
}

/// Whole milliseconds, saturating.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
