//! One upstream call: send, wait for the head, and judge what comes until the
//! answer is whole or its stream is committed.

mod outgoing;
mod streams;

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, HeaderName};
use secrecy::ExposeSecret;
use serde::de::IgnoredAny;
use shared_proto::answer;
use shared_proto::classify::{self, BadAnswer, ClassifyRules, TransportFailure, UpstreamError};
use shared_proto::clock::Millis;
use shared_proto::config::Config;
use shared_proto::egress;
use shared_proto::failure::Failure;
use shared_proto::hint;
use shared_proto::lockout;
use shared_proto::protocol::Protocol;
use shared_proto::stream::{BodyShape, ContentType, RelayOptions, Usage};
use tokio::time::{Instant, timeout, timeout_at};

use super::Admitted;
use super::facts::Facts;
use super::lane::{Ride, slow_header};
use super::live::Live;
use super::pick::Candidate;
use super::unsent::{transport, unsent};
use crate::http::headers;
use crate::node::Node;
use crate::quota;
use crate::simulated;
use crate::timer::{after, limit};
use crate::upstream::answer::{Answer, AnswerBody, Broken};
use crate::upstream::{Clients, ProxyFault, SendError};

/// Bytes of an error's body that are read for the classifier.
const ERROR_BODY: usize = 64 * 1024;
/// How long the rest of an error's body is waited for.
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The header that an attempt proves itself with.
type Shown<'a> = Option<&'a (HeaderName, HeaderValue)>;

/// What every attempt of one request shares.
pub(crate) struct Call<'a> {
    protocol: Protocol,
    facts: &'a Facts,
    headers: &'a HeaderMap,
    config: &'a Config,
    clients: &'a Clients,
    /// The longest that a whole answer is waited for, whatever the provider's timers say.
    most: Duration,
    is_test: bool,
    node: &'a Node,
}

/// An upstream's success.
pub(crate) enum Success {
    /// A whole answer.
    Whole(Whole),
    /// A committed stream.
    Live(Box<Live>),
}

/// A whole answer, judged.
pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) content_type: HeaderValue,
    pub(crate) body: Bytes,
    pub(crate) usage: Option<Usage>,
}

/// A failed attempt.
pub(crate) struct Failed {
    /// The upstream's own status, when it answered.
    pub(crate) status: Option<u16>,
    pub(crate) failure: Failure,
    /// Nothing was sent: the pooled connection had been closed by its server
    /// meanwhile. The same may be tried once more, on a fresh one.
    pub(crate) stale: bool,
}

impl<'a> Call<'a> {
    /// The calls of `request`.
    pub(crate) fn new(request: &'a Admitted) -> Self {
        Self::with(request, &request.facts)
    }

    /// The same with another body.
    pub(crate) fn with(request: &'a Admitted, facts: &'a Facts) -> Self {
        Self {
            protocol: request.protocol,
            facts,
            headers: &request.headers,
            config: &request.routing.config,
            clients: &request.worker.clients,
            most: Duration::MAX,
            is_test: false,
            node: &request.worker.node,
        }
    }

    /// That of a live test, which takes no longer than `most`.
    pub(crate) fn test(request: &'a Admitted, most: Duration) -> Self {
        Self {
            most,
            is_test: true,
            ..Self::new(request)
        }
    }

    /// Whether it is a live test's.
    pub(crate) const fn is_test(&self) -> bool {
        self.is_test
    }

    /// Calls `candidate` once, which proves itself with `credential`, on `ride` if it
    /// may have a wall. Whatever the upstream may have worked on is a failure and
    /// not sent again.
    pub(crate) async fn dispatch(
        &self,
        candidate: &Candidate,
        (credential, ride): (Shown<'_>, Option<&Ride>),
        now: Millis,
    ) -> Result<Success, Failed> {
        let total = limit(candidate.slot.provider.timeouts.total_ms).min(self.most);
        let deadline = after(Instant::now(), total);
        let slow = ride.and_then(|ride| ride.on).map(|_| slow_header());
        let sending = self.send(candidate, [credential, slow.as_ref()]);
        let sent = if self.facts.stream {
            sending.await
        } else {
            let late = || Err(SendError::HeadersTimeout);
            timeout_at(deadline, sending)
                .await
                .unwrap_or_else(|_| late())
        };
        let answer = sent.map_err(unsent)?;
        quota::saw(
            &candidate.slot,
            self.model(candidate).unwrap_or_default(),
            &answer.headers,
            self.node.now(),
        );
        if let Some(ride) = ride {
            ride.saw(answer.status, &answer.headers);
        }
        if !(200..300).contains(&answer.status) {
            return Err(self.refused(candidate, answer, now).await);
        }
        if self.facts.stream {
            return self.stream(candidate, answer, now).await;
        }
        match timeout_at(deadline, self.whole(candidate, answer, now)).await {
            Ok(result) => result.map(Success::Whole),
            Err(_) => Err(transport(TransportFailure::TotalTimeout)),
        }
    }

    async fn send(
        &self,
        candidate: &Candidate,
        shown: [Shown<'_>; 2],
    ) -> Result<Answer, SendError> {
        let slot = &candidate.slot;
        if slot.simulated() {
            return Ok(simulated::answer(
                self.protocol,
                self.facts,
                &candidate.model,
                &slot.connection,
                slot.cell.last_used(),
            )
            .await);
        }
        let response = self.call(candidate, shown).await?;
        let (head, body) = response.into_parts();
        let body = AnswerBody::new(body, &head.headers);
        Ok(Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }

    /// One request on the wire.
    async fn call(
        &self,
        candidate: &Candidate,
        shown: [Shown<'_>; 2],
    ) -> Result<http::Response<hyper::body::Incoming>, SendError> {
        let slot = &candidate.slot;
        let timeouts = &slot.provider.timeouts;
        let request = self
            .request(candidate, shown)
            .ok_or(SendError::ConnectFailed)?;
        let proxy = slot.connection.proxy_url.as_ref();
        let proxy = proxy.map(ExposeSecret::expose_secret);
        // A whole answer's head comes when it is done, within the total.
        let head = self
            .facts
            .stream
            .then(|| limit(timeouts.response_headers_ms));
        let sending = self
            .clients
            .send(request, proxy, (timeouts.connect_ms, head))
            .map_err(|_| SendError::Proxy(ProxyFault::Unreachable))?;
        sending.head().await
    }

    /// Reads and classifies an answer that is not a success.
    async fn refused(&self, candidate: &Candidate, mut answer: Answer, now: Millis) -> Failed {
        let reading = answer.body.head(ERROR_BODY);
        let body = timeout(ERROR_BODY_TIMEOUT, reading)
            .await
            .unwrap_or_default();
        Failed {
            status: Some(answer.status),
            failure: self.classify(candidate, &answer, &body, now),
            stale: false,
        }
    }

    fn classify(
        &self,
        candidate: &Candidate,
        answer: &Answer,
        body: &[u8],
        now: Millis,
    ) -> Failure {
        let provider = &candidate.slot.provider;
        let settings = &self.config.settings;
        let headers = headers::for_classifier(&answer.headers);
        let error = UpstreamError {
            answer: hint::Answer {
                provider: provider.canonical.as_str(),
                status: answer.status,
                headers: &headers,
                body,
            },
            profile: provider.profile,
            per_model_quota: candidate.slot.per_model_quota,
            reading: provider.reading,
            daily_reset: Some(settings.daily_reset(provider)),
            model: self.model(candidate),
            in_stream: (200..300).contains(&answer.status),
        };
        let rules = self.rules(candidate);
        let slot = &candidate.slot;
        let failure = classify::classify(&error, &rules, now);
        let of_address = if slot.egress_family.is_some() {
            let known = self.node.egress.exit(slot, now).is_some();
            egress::charged(failure, &error, &rules, (known, now))
        } else {
            Err(failure)
        };
        let failure = of_address.unwrap_or_else(|failure| {
            let never_cools = slot.connection.disable_cooling && slot.per_model_quota;
            lockout::charged(failure, &settings.model_lockout, never_cools)
        });
        slot.redact(quota::refused(
            slot,
            &candidate.model,
            failure,
            self.node.now(),
        ))
    }

    /// What is asked for; `None` for the list of models.
    fn model<'c>(&self, candidate: &'c Candidate) -> Option<&'c str> {
        (!self.facts.listing).then_some(&*candidate.model)
    }

    fn rules<'r>(&'r self, candidate: &'r Candidate) -> ClassifyRules<'r> {
        let settings = &self.config.settings;
        ClassifyRules {
            hint_bounds: &settings.hint_bounds,
            custom_banned_signals: &settings.custom_banned_signals,
            provider_rules: &candidate.slot.error_rules,
            restate: &settings.restate_rules,
        }
    }

    async fn whole(
        &self,
        candidate: &Candidate,
        mut answer: Answer,
        now: Millis,
    ) -> Result<Whole, Failed> {
        let max = self.config.server.max_response_bytes;
        let idle = limit(candidate.slot.provider.timeouts.byte_idle_ms);
        let status = Some(answer.status);
        let read = match answer.body.whole(max, idle).await {
            // JSON is UTF-8: what is not can't be read by the client either.
            Ok(Some(body)) if std::str::from_utf8(&body).is_err() => {
                Err(unusable(candidate, BadAnswer::Garbage))
            }
            Ok(Some(body)) => Ok(body),
            Ok(None) => Err(unusable(candidate, BadAnswer::TooLarge)),
            Err(None) => Err(classify::transport_failure(TransportFailure::ByteIdle)),
            Err(Some(Broken)) => Err(classify::transport_failure(TransportFailure::Reset)),
        };
        let body = read.map_err(|failure| Failed {
            status,
            failure,
            stale: false,
        })?;
        if self.facts.listing && serde_json::from_slice::<IgnoredAny>(&body).is_ok() {
            return Ok(Whole {
                status: answer.status,
                content_type: HeaderValue::from_static("application/json"),
                headers: answer.headers,
                body,
                usage: None,
            });
        }
        let content_type = answer.content_type();
        let max_tokens = self.facts.max_tokens;
        let judge =
            |kind: ContentType, body: &Bytes| answer::judge(self.protocol, kind, body, max_tokens);
        let judged = if answer::shape(content_type, &body) == BodyShape::Events {
            let options = RelayOptions {
                content_type,
                lenient_end: candidate.slot.provider.lenient_stream_end,
                asked_max_tokens: max_tokens,
                ..RelayOptions::default()
            };
            answer::aggregate(self.protocol, options, &body).and_then(|whole| {
                judge(ContentType::Json, &whole).map(|facts| (facts, whole, true))
            })
        } else {
            judge(content_type, &body).map(|facts| (facts, body, false))
        };
        match judged {
            Ok((facts, body, converted)) => Ok(Whole {
                status: answer.status,
                content_type: match answer.headers.get(CONTENT_TYPE) {
                    Some(value) if !converted => value.clone(),
                    _ => HeaderValue::from_static("application/json"),
                },
                headers: answer.headers,
                body,
                usage: facts.usage,
            }),
            Err(failure) => Err(Failed {
                status,
                failure: self.stream_failure(candidate, &answer, &failure, now),
                stale: false,
            }),
        }
    }

    async fn stream(
        &self,
        candidate: &Candidate,
        answer: Answer,
        now: Millis,
    ) -> Result<Success, Failed> {
        let provider = &candidate.slot.provider;
        let status = answer.status;
        let mut live = Live::new(self.protocol, answer, self.facts.max_tokens, provider);
        match live.until_committed().await {
            Ok(()) => Ok(Success::Live(Box::new(live))),
            Err(end) => Err(Failed {
                status: Some(status),
                failure: self.live_failure(candidate, &live, &end, now),
                stale: false,
            }),
        }
    }
}

fn unusable(candidate: &Candidate, kind: BadAnswer) -> Failure {
    classify::stream_failure(kind, candidate.slot.provider.reading)
}
