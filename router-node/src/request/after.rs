//! What has to happen after an attempt, however it ends: the owners are told,
//! the trace is finished, a claimed probe is given back. Dropping it in the
//! middle means that the client went away, which is nobody's fault.

mod judged;
mod stream;

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use shared_proto::clock::Millis;
use shared_proto::failure::{Blame, Failure};
use shared_proto::lease::LeaseCode;
use shared_proto::rotation::Gated;
use tokio::time::Instant;

use super::Admitted;
use super::dispatch::{Failed, Whole};
use super::pick::Candidate;
use super::refuse;
use super::siblings;
use super::trace::{Attempt, Outcome, Trace, millis};
use super::transition::{self, Durable, Events};
use crate::http::reply::ClientError;
use crate::lease::passage::Passage;
use crate::observe::AttemptSpan;
use crate::routing::InFlight;
use crate::slots::Ticket;

/// Tells the owners how an attempt ended, and waits for the mirror.
pub(crate) type Telling = Pin<Box<dyn Future<Output = ()>>>;

/// The obligations of one attempt.
pub(crate) struct After {
    request: Rc<Admitted>,
    candidate: Candidate,
    /// When it began, by the store's clock.
    began: Millis,
    /// The same by ours, for its duration.
    started: Instant,
    probe: Option<u64>,
    trace: Option<Trace>,
    /// Only where a collector is named.
    span: Option<AttemptSpan>,
    settled: bool,
    attempts: usize,
    /// Whether its call goes out on the low-priority lane.
    low_priority: bool,
    /// Whether no client waits for it.
    is_test: bool,
    /// Which key its call presents, where the connection has several.
    key: Option<u64>,
    /// What the rotation gate made of its failure.
    rotation: Option<Gated>,
    /// What the answer is marked with.
    warnings: Vec<&'static str>,
    /// Its place in flight, under a lease.
    passage: Option<Passage>,
    /// Its slot, where the connection has a cap.
    ticket: Option<Ticket>,
    /// Freed when the attempt is over.
    _in_flight: InFlight,
}

impl After {
    /// Takes the candidate's connection for one attempt of the traced request.
    pub(crate) fn new(
        request: &Rc<Admitted>,
        candidate: Candidate,
        now: Millis,
        probe: Option<u64>,
        trace: &Trace,
    ) -> Self {
        let span = trace.span().map(|span| {
            let url = candidate.slot.url(request.protocol);
            let number = trace.attempts().saturating_add(1);
            span.attempt(request.protocol, &candidate.model, url, number)
        });
        Self {
            request: Rc::clone(request),
            _in_flight: candidate.slot.cell.take(now),
            candidate,
            began: now,
            started: Instant::now(),
            probe,
            trace: None,
            span,
            settled: false,
            attempts: 1,
            low_priority: false,
            is_test: trace.is_test(),
            key: None,
            rotation: None,
            warnings: Vec::new(),
            passage: None,
            ticket: None,
        }
    }

    /// The attempt goes out under a lease, if it needs one.
    pub(crate) fn under(&mut self, passage: Option<Passage>) {
        self.passage = passage;
    }

    /// The attempt has a slot until it is over, if the connection has a cap.
    pub(crate) fn holding(&mut self, ticket: Option<Ticket>) {
        self.ticket = ticket;
    }

    /// Resolves when the lease is lost that it goes out under.
    pub(crate) fn lost(&self) -> impl Future<Output = ()> + use<> {
        let lost = self.passage.as_ref().map(Passage::lost);
        async move {
            match lost {
                Some(lost) => lost.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Upstream calls made for the answer.
    pub(crate) fn attempts(&self) -> usize {
        self.attempts
    }

    /// What its answer is marked with.
    pub(crate) fn warnings(&self) -> &[&'static str] {
        &self.warnings
    }

    /// Whom the attempt called.
    pub(crate) fn candidate(&self) -> &Candidate {
        &self.candidate
    }

    /// Resolves when the answer has to end: the node can't wait any longer, or
    /// the lease is lost. What the client is told.
    pub(crate) fn cut(&self) -> impl Future<Output = ClientError> + use<> {
        let stop = self.request.worker.node.stop.cut();
        let lost = self.lost();
        async move {
            tokio::select! {
                biased;
                () = lost => LeaseCode::Lost.into(),
                () = stop => refuse::shutting_down(),
            }
        }
    }

    /// The upstream refused the access token, and is called again with a new one.
    pub(crate) fn calls_again(&mut self, refused: &Failed, now: Millis, trace: &mut Trace) {
        let attempt = Attempt {
            outcome: "failed",
            status: refused.status,
            reason: Some(refused.failure.reason),
            failure: Some(refused.failure.clone()),
            ..self.attempt()
        };
        trace.edit(|record| record.attempts.push(attempt));
        self.began = now;
        self.started = Instant::now();
    }

    /// Its next call goes out on the low-priority lane, or not.
    pub(crate) fn on_the_lane(&mut self, rides: bool) {
        self.low_priority = rides;
    }

    /// The same call is made once more: what it shows is what it began with now.
    pub(crate) fn begins_anew(&mut self, now: Millis) {
        self.began = now;
    }

    /// The attempt is given up before its answer was committed.
    pub(crate) fn cut_short(&mut self, trace: &mut Trace) {
        let attempt = Attempt {
            outcome: "cancelled",
            ..self.attempt()
        };
        trace.edit(|record| record.attempts.push(attempt));
    }

    /// The trace goes with the answer from here on.
    pub(crate) fn attach(&mut self, trace: Trace) {
        self.attempts = trace.attempts().saturating_add(1);
        let record = trace.record();
        self.warnings = record.map_or_else(Vec::new, |record| record.warnings.clone());
        self.trace = Some(trace);
    }

    /// The attempt's line in the trace, as of now.
    fn attempt(&self) -> Attempt {
        let slot = &self.candidate.slot;
        Attempt {
            provider: slot.provider.id.clone(),
            connection: slot.connection.id.clone(),
            model: Arc::clone(&self.candidate.model),
            started_at: self.began,
            duration_ms: millis(self.started.elapsed()),
            outcome: "success",
            status: None,
            reason: None,
            failure: None,
            low_priority: self.low_priority,
            rotation: self.rotation,
            cooled_until: None,
            shared: None,
        }
    }

    /// The attempt failed before its answer was committed.
    pub(crate) async fn failed(
        &mut self,
        failed: &Failed,
        next_is_same_provider: bool,
        trace: &mut Trace,
        durable: &mut Durable,
    ) {
        self.settled = true;
        let failure = &failed.failure;
        let events = self.events(failure, next_is_same_provider);
        events.tell(&self.candidate, durable).await;
        let slot = &self.candidate.slot;
        let Admitted {
            routing, worker, ..
        } = &*self.request;
        let shared = siblings::rest(&worker.node, routing, (&**slot, failure), durable).await;
        let until = rests_until(&self.candidate, failure, worker.now());
        let attempt = Attempt {
            outcome: "failed",
            status: failed.status,
            reason: Some(failure.reason),
            failure: Some(failure.clone()),
            cooled_until: until,
            shared,
            ..self.attempt()
        };
        self.end_span(&attempt);
        trace.edit(|record| record.attempts.push(attempt));
    }

    /// A live test was answered: the connection is well, and so is the model.
    /// Whether the provider is, other requests say.
    pub(crate) async fn passed(&mut self, status: u16, trace: &mut Trace, durable: &mut Durable) {
        self.settled = true;
        let attempt = Attempt {
            status: Some(status),
            ..self.attempt()
        };
        self.end_span(&attempt);
        trace.edit(|record| {
            record.attempts.push(attempt);
            record.status = Some(status);
        });
        let events = Events::passed(&self.candidate, self.began, self.key);
        events.tell(&self.candidate, durable).await;
    }

    /// The whole answer is here.
    pub(crate) async fn succeeded_whole(&mut self, whole: &Whole) {
        self.settled = true;
        let status = whole.status;
        self.note_success(status);
        if let Some(trace) = &mut self.trace {
            trace.edit(|record| record.usage = whole.usage.map(Into::into));
            trace.finish(Outcome::Success);
        }
        let events = Events::succeeded(&self.candidate, self.began, self.key, self.probe);
        // A success promises nothing that has to be durable.
        events.tell(&self.candidate, &mut Durable::default()).await;
    }

    /// A stream is committed: its first byte leaves now.
    pub(crate) fn first_byte(&mut self, status: u16) {
        if let Some(trace) = &mut self.trace {
            trace.first_byte();
            trace.edit(|record| record.status = Some(status));
        }
    }

    /// The stream is cut short, which is not the upstream's fault.
    pub(crate) fn stream_cut(&mut self, error: &ClientError) {
        self.cancelled();
        if let Some(trace) = &mut self.trace {
            trace.edit(|record| record.error = Some(error.into()));
            trace.finish(Outcome::StreamFailed);
        }
    }

    /// The attempt ends without a verdict: a claimed probe is given back.
    fn cancelled(&mut self) {
        self.settled = true;
        let release = self
            .probe
            .map(|generation| shared_proto::breaker::BreakerEvent::ReleaseProbe { generation });
        transition::tell_breaker(&self.candidate, release);
        let attempt = Attempt {
            outcome: "cancelled",
            ..self.attempt()
        };
        self.end_span(&attempt);
        if let Some(trace) = &mut self.trace {
            trace.edit(|record| record.attempts.push(attempt));
        }
    }

    fn end_span(&mut self, attempt: &Attempt) {
        if let Some(span) = self.span.take() {
            span.end(attempt);
        }
    }

    fn note_success(&mut self, status: u16) {
        let attempt = Attempt {
            status: Some(status),
            ..self.attempt()
        };
        self.end_span(&attempt);
        if let Some(trace) = &mut self.trace {
            trace.edit(|record| {
                record.attempts.push(attempt);
                record.status = Some(status);
            });
        }
    }
}

/// Until when rests what a failure was charged to, if it does.
fn rests_until(candidate: &Candidate, failure: &Failure, now: Millis) -> Option<String> {
    let until = if failure.blame == Blame::Model {
        candidate.slot.locked(&candidate.model, now)
    } else {
        candidate.slot.cell.health().cooldown_until
    };
    until.map(Millis::to_rfc3339)
}

impl Drop for After {
    fn drop(&mut self) {
        if !self.settled {
            // The client went away, or the node stops: the upstream call is
            // dropped with us.
            self.cancelled();
        }
    }
}
