//! How streams end: whole, or broken after their first output.

use std::rc::Rc;

use shared_proto::stream::Quirk;

use super::{After, Telling, rests_until};
use crate::http::reply::ClientError;
use crate::observe::AttemptSpan;
use crate::request::dispatch::Call;
use crate::request::live::{Live, LiveEnd};
use crate::request::pick::Candidate;
use crate::request::siblings;
use crate::request::trace::{Attempt, Outcome, Trace};
use crate::request::transition::{Durable, Events};
use crate::request::{Admitted, credential, refuse};

impl After {
    /// The stream is complete. What is returned has to be awaited before the client sees the end.
    pub(crate) fn stream_ended(&mut self, live: &mut Live) -> Option<Telling> {
        self.settled = true;
        self.note_success(live.answer().status);
        if let Some(trace) = &mut self.trace {
            let relay = live.relay();
            trace.edit(|record| {
                record.usage = relay.usage().map(Into::into);
                record.quirks = relay.quirks().iter().map(Quirk::as_str).collect();
            });
            trace.finish(Outcome::Success);
        }
        let events = Events::succeeded(&self.candidate, self.began, self.key, self.probe);
        if events.is_empty() {
            return None;
        }
        let candidate = self.candidate.clone();
        Some(Box::pin(async move {
            let mut durable = Durable::default();
            events.tell(&candidate, &mut durable).await;
            durable.settle().await;
        }))
    }

    /// The stream broke after its commit point: what the client is told of it,
    /// once what is returned beside was awaited. That ends the trace.
    pub(crate) fn stream_failed(
        &mut self,
        live: &mut Live,
        end: &LiveEnd,
    ) -> (ClientError, Telling) {
        self.settled = true;
        let now = self.request.worker.now();
        let call = Call::new(&self.request);
        let mut failure = call.live_failure(&self.candidate, live, end, now);
        credential::unsettled(&self.candidate.slot, &mut failure);
        self.gate(&mut failure, false);
        // Output has gone out: nobody else may take over.
        failure.fallback = false;
        let error = refuse::in_stream(&failure, &self.candidate, self.request.protocol);
        let events = self.events_after_output(&failure);
        let attempt = Attempt {
            outcome: "failed",
            status: Some(live.answer().status),
            reason: Some(failure.reason),
            failure: Some(failure),
            ..self.attempt()
        };
        let usage = live.relay().usage();
        if let Some(trace) = &mut self.trace {
            trace.edit(|record| {
                record.usage = usage.map(Into::into);
                record.error = Some((&error).into());
            });
        }
        let broken = Broken {
            request: Rc::clone(&self.request),
            candidate: self.candidate.clone(),
            events,
            attempt,
            span: self.span.take(),
            trace: self.trace.take(),
        };
        (error, Box::pin(broken.tell()))
    }
}

/// A stream that broke, of which owners and trace are still to be told.
struct Broken {
    request: Rc<Admitted>,
    candidate: Candidate,
    events: Events,
    attempt: Attempt,
    span: Option<AttemptSpan>,
    trace: Option<Trace>,
}

impl Broken {
    async fn tell(mut self) {
        let mut durable = Durable::default();
        self.events.tell(&self.candidate, &mut durable).await;
        if let Some(failure) = &self.attempt.failure {
            let node = &self.request.worker.node;
            let of = (&*self.candidate.slot, failure);
            self.attempt.shared =
                siblings::rest(node, &self.request.routing, of, &mut durable).await;
            let now = self.request.worker.now();
            self.attempt.cooled_until = rests_until(&self.candidate, failure, now);
        }
        durable.settle().await;
        if let Some(span) = self.span.take() {
            span.end(&self.attempt);
        }
        if let Some(mut trace) = self.trace.take() {
            trace.edit(|record| record.attempts.push(self.attempt));
            trace.finish(Outcome::StreamFailed);
        }
    }
}
