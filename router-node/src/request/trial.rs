//! A live test of one connection: the least that its upstream can be asked,
//! made by the same pieces as a client's request and judged by the same rules.
//!
//! What is different: nobody picks, so a connection that rests, is terminal,
//! switched off or leased is called all the same; a success ends whatever is
//! held against the connection; and a failure is no traffic, so it teaches the
//! breaker nothing and climbs no ladder. A test takes a slot like anybody, as
//! the cap is the account's, but does not wait long for one; it needs no lease,
//! since it is the operator's and over in a moment.

mod question;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::http::header::HeaderMap;
use shared_proto::classify::{TransportFailure, transport_failure};
use shared_proto::config::QueueRules;
use shared_proto::failure::{Cooldown, Failure};
use shared_proto::token::{may_be_stale, soften};
use tokio::time::{Instant, timeout};

use super::admit::Admission;
use super::after::After;
use super::dispatch::{Call, Success};
use super::pick::{Candidate, Picker};
use super::resolve::{Target, Targets};
use super::trace::{Outcome, Trace, millis};
use super::transition::Durable;
use super::{Admitted, attempt, refuse};
use crate::http::body::Held;
use crate::http::reply::ClientError;
use crate::node::Worker;
use crate::routing::{ProviderSlot, Routing, Slot};
use question::Question;

/// A test takes no longer, whatever it waits for.
const LIMIT: Duration = Duration::from_secs(30);
/// Its call takes no longer, so that there is time left for tokens and a slot.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// It waits for a slot no longer, ms.
const SLOT_MS: u64 = 5_000;

/// Who wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Somebody who manages the router.
    Operator,
    /// It is time to try an expired connection again.
    ExpiredRetry,
}

impl Why {
    /// The word of traces and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::ExpiredRetry => "expired_retry",
        }
    }
}

/// One test.
pub(crate) struct Trial {
    pub(crate) worker: Rc<Worker>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) provider: Arc<ProviderSlot>,
    pub(crate) slot: Arc<Slot>,
    /// The model that the operator names.
    pub(crate) model: Option<String>,
    /// Its id among the recent requests.
    pub(crate) id: Arc<str>,
    pub(crate) why: Why,
}

/// What came of a test.
pub(crate) struct Verdict {
    /// The upstream's status, when it answered.
    pub(crate) status: Option<u16>,
    /// Why it failed, if it did.
    pub(crate) failure: Option<Failure>,
    /// The model it was made with; `None` when only the list was asked for.
    pub(crate) model: Option<String>,
    pub(crate) latency_ms: u64,
}

impl Verdict {
    /// Whether the connection can be used.
    pub(crate) const fn passed(&self) -> bool {
        self.failure.is_none()
    }
}

impl Trial {
    /// Makes the test; the error is that it can't be made.
    pub(crate) async fn run(self) -> Result<Verdict, ClientError> {
        let question = Question::of(&self.slot, self.model.as_deref())?;
        let started = Instant::now();
        let node = &self.worker.node;
        let now = self.worker.now();
        let observer = Arc::clone(&node.observer);
        let id = Arc::clone(&self.id);
        let protocol = Some(question.protocol);
        let mut trace = Trace::begin(id, protocol, now, &HeaderMap::new(), observer);
        let model = (!question.facts.listing).then(|| question.facts.model.clone());
        trace.edit(|record| {
            record.test = Some(self.why.as_str());
            record.model.clone_from(&model);
        });
        let request = Rc::new(Admitted {
            protocol: question.protocol,
            facts: question.facts,
            session: None,
            _held: Held::nothing(&node.observer.metrics.request_body_bytes),
            headers: http::HeaderMap::new(),
            key: None,
            lease: None,
            routing: Arc::clone(&self.routing),
            worker: Rc::clone(&self.worker),
        });
        let tried = tokio::select! {
            biased;
            tried = timeout(LIMIT, self.call(&request, &mut trace)) => tried,
            () = node.stop.cut() => Ok(Err(refuse::shutting_down())),
        };
        let (status, failure) = match tried {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => {
                trace.refused(&error);
                return Err(error);
            }
            Err(_) => (
                None,
                Some(transport_failure(TransportFailure::TotalTimeout)),
            ),
        };
        trace.finish(match failure {
            None => Outcome::Success,
            Some(_) => Outcome::Error,
        });
        Ok(Verdict {
            status,
            failure,
            model,
            latency_ms: millis(started.elapsed()),
        })
    }

    /// One attempt, and what has to happen after it.
    async fn call(
        &self,
        request: &Rc<Admitted>,
        trace: &mut Trace,
    ) -> Result<(Option<u16>, Option<Failure>), ClientError> {
        let queue = self.routing.config.settings.queue;
        let targets = Targets {
            list: vec![Target {
                provider: Arc::clone(&self.provider),
                model: request.facts.model.as_str().into(),
                connection: Some(Arc::clone(&self.slot)),
            }],
            foreign: Vec::new(),
            combo: false,
            strategy: None,
            queue: QueueRules {
                timeout_ms: queue.timeout_ms.min(SLOT_MS),
                ..queue
            },
        };
        let mut picker = Picker::new(&targets, None, None);
        let mut admission = Admission::new(request, targets.queue);
        let (candidate, ticket) = loop {
            let entering = admission.enter((self.candidate(request), None), &mut picker, trace);
            if let Some(entered) = entering.await {
                break entered;
            }
            admission.wait(&mut picker, trace).await;
        };
        let mut after = After::new(request, candidate, request.worker.now(), None, trace);
        after.holding(ticket);
        let call = Call::test(request, CALL_LIMIT);
        let mut durable = Durable::default();
        let answered = match attempt(&call, request, &mut None, &mut after, trace).await? {
            Ok(success) => {
                let status = match success {
                    Success::Whole(whole) => whole.status,
                    Success::Live(live) => live.answer().status,
                };
                after.passed(status, trace, &mut durable).await;
                (Some(status), None)
            }
            Err(mut failed) => {
                self.no_traffic(&mut failed.failure);
                after.failed(&failed, false, trace, &mut durable).await;
                (failed.status, Some(failed.failure))
            }
        };
        durable.settle().await;
        Ok(answered)
    }

    fn candidate(&self, request: &Admitted) -> Candidate {
        Candidate {
            target: 0,
            slot: Arc::clone(&self.slot),
            provider: Arc::clone(&self.provider),
            model: request.facts.model.as_str().into(),
            combo: false,
        }
    }

    /// What is left of a failure that no client met. An operator hears what is
    /// final, what was announced and what a rule fixes; a retry that nobody asked
    /// for leaves a note only. Where `probeCanDisable` is set, both rest what they
    /// met by the ladder, too. No streak, breaker or gate ever counts it.
    fn no_traffic(&self, failure: &mut Failure) {
        // The refreshed tokens of an account that is switched off are not known here.
        let unknown_tokens = self.slot.tokens.is_some() && self.slot.bearer().is_none();
        if unknown_tokens && may_be_stale(failure) {
            soften(failure);
        }
        failure.counts_for_breaker = false;
        let settings = &self.routing.config.settings;
        let as_traffic = settings.probe_can_disable;
        if self.why == Why::ExpiredRetry && !as_traffic {
            failure.terminal = None;
            failure.cooldown = Cooldown::None;
            return;
        }
        let profile = self.slot.provider.profile;
        let uses_hints = settings
            .connection_cooldown
            .get(profile)
            .use_upstream_retry_hints;
        let announced = failure.hint.as_ref().is_some_and(|hint| hint.wait_ms > 0);
        failure.cooldown = match failure.cooldown {
            Cooldown::Ladder if as_traffic || announced && uses_hints => Cooldown::Ladder,
            Cooldown::Fixed(ms) => Cooldown::Fixed(ms),
            Cooldown::Ladder | Cooldown::Streak | Cooldown::None => Cooldown::None,
        };
    }
}
