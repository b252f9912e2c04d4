//! What a client is told when nobody could serve: from failures, exclusions
//! and waits to one [`ClientError`].

use serde_json::Value;
use shared_proto::clock::Millis;
use shared_proto::failure::{Blame, ErrorType, Failure, Reason};
use shared_proto::health::Blocked;
use shared_proto::pick::refusal::{Explanation, ListedTarget, Pool, TerminalReason};
use shared_proto::pick::{self, Exclusion, ExclusionReason};
use shared_proto::protocol::Protocol;
use shared_proto::rotation::Ruling;

use super::Admitted;
use super::dispatch::Failed;
use super::pick::Candidate;
use super::resolve::Targets;
use super::trace::{Excluded, Trace};
use crate::http::reply::ClientError;

/// Everything a refusal is made of.
pub(crate) struct Refusal<'a> {
    pub(crate) request: &'a Admitted,
    pub(crate) targets: &'a Targets,
    /// The last failed attempt.
    pub(crate) last: Option<&'a Failed>,
    pub(crate) now: Millis,
}

impl Refusal<'_> {
    /// The answer.
    pub(crate) fn answer(&self, trace: &Trace) -> ClientError {
        let Some(record) = trace.record() else {
            return ClientError::new(500, "internal_error", "the request's trace is gone");
        };
        let attempts: Vec<ListedTarget> = record
            .attempts
            .iter()
            .map(|attempt| ListedTarget::new(&attempt.provider, &attempt.model))
            .collect();
        let exclusions: Vec<Exclusion> =
            record.excluded.iter().map(|e| self.exclusion(e)).collect();
        let known = attempts.len().saturating_add(exclusions.len());
        let pool = Pool {
            size: known.max(self.targets.list.len()),
            attempts: &attempts,
            exclusions: &exclusions,
        };
        match self.last {
            Some(failed) => self.after_attempts(failed, pool, trace),
            None => self.without_attempt(pool, &record.excluded),
        }
    }

    fn exclusion(&self, excluded: &Excluded) -> Exclusion {
        Exclusion {
            provider: excluded.provider.clone(),
            model: excluded.model.to_string(),
            reason: excluded.reason,
            remaining_ms: excluded.until.map(|until| until.since(self.now)),
        }
    }

    /// Nothing was called: the rule of timers, in more telling words where a
    /// plain model has only one connection or provider.
    fn without_attempt(&self, pool: Pool<'_>, excluded: &[Excluded]) -> ClientError {
        let rule = pick::Refusal::none_left(pool);
        let mut error = ClientError {
            kind: Some(rule.error_type),
            // The true time left; the rule's own is rounded to seconds.
            retry_after_ms: rule.retry_after_seconds.map(|seconds| {
                let rounded = seconds.saturating_mul(1000);
                self.first_usable().unwrap_or(rounded)
            }),
            ..ClientError::new(rule.status, rule.code, self.words(excluded))
        };
        explain(&mut error, &rule.explanation);
        match excluded {
            [only] if !self.targets.combo || only.reason == ExclusionReason::CircuitOpen => {
                self.one(error, only)
            }
            _ => error,
        }
    }

    /// A plain model with one candidate, which is excluded.
    fn one(&self, mut error: ClientError, only: &Excluded) -> ClientError {
        error.provider = Some(only.provider.as_str().to_owned());
        match (only.reason, &only.connection) {
            (ExclusionReason::CircuitOpen, _) => {
                "provider_circuit_open".clone_into(&mut error.code);
                error.kind = Some("server_error");
                error
                    .headers
                    .push(("x-omniroute-provider-breaker", "open".to_owned()));
            }
            (ExclusionReason::ConnectionCooldown, Some(id)) => {
                let slot = self.request.routing.slots.get(id);
                let health = slot.map(|slot| slot.cell.health().clone());
                let last = health
                    .as_ref()
                    .and_then(|health| health.last_error.as_ref());
                let reason = last.map_or(Reason::Unknown, |last| last.reason);
                if matches!(reason, Reason::RateLimitExceeded | Reason::QuotaExhausted) {
                    error.status = 429;
                    error.kind = None;
                    reason.as_str().clone_into(&mut error.code);
                    self.quota_headers(&mut error, reason);
                }
            }
            (ExclusionReason::ModelLockout, Some(id)) => {
                let slot = self.request.routing.slots.get(id);
                let reason = slot.and_then(|slot| {
                    let lockouts = slot.cell.lockouts();
                    let model = &only.model;
                    let lockout = lockouts.locked(model, &slot.lockout_rules, self.now)?;
                    Some(lockout.reason)
                });
                if let Some(reason @ (Reason::RateLimitExceeded | Reason::QuotaExhausted)) = reason
                {
                    error.status = 429;
                    error.kind = None;
                    reason.as_str().clone_into(&mut error.code);
                    self.quota_headers(&mut error, reason);
                }
            }
            (ExclusionReason::Unavailable, Some(id)) => {
                let slot = self.request.routing.slots.get(id);
                let terminal = slot.and_then(|slot| slot.cell.health().terminal);
                if let Some(terminal) = terminal {
                    error.status = 503;
                    error.kind = None;
                    format!("connection_{}", terminal.kind.as_str()).clone_into(&mut error.code);
                }
            }
            _ => {}
        }
        error
    }

    /// The wait after which the first candidate may be used again: its own rest,
    /// its provider's breaker and the gate in front of combos have to be over. Those that may be used
    /// now, or never, have none.
    fn first_usable(&self) -> Option<u64> {
        let key = self.request.key.as_deref();
        let waits = self.targets.list.iter().flat_map(|target| {
            let provider = &target.provider;
            let breaker = provider.breaker.breaker().retry_after_ms(self.now);
            let gated = self.targets.combo && self.request.lease.is_none();
            let candidates = target.candidates(key);
            candidates.filter_map(move |slot| {
                let id = &slot.connection.id;
                let shut = provider.gate.shut(id, &provider.gate_rules, self.now);
                let shut = shut.filter(|_| gated).map_or(0, |at| at.since(self.now));
                let least = breaker.max(shut);
                match slot.eligible_for(&target.model, self.now) {
                    Ok(()) => Some(least),
                    Err(Blocked::Cooling { until }) => Some(until.since(self.now).max(least)),
                    Err(Blocked::Terminal(_)) => None,
                }
            })
        });
        waits.filter(|wait| *wait > 0).min()
    }

    fn words(&self, excluded: &[Excluded]) -> String {
        let model = super::resolve::shown(&self.request.facts.model);
        let mut reasons: Vec<&str> = excluded.iter().map(|e| e.reason.as_str()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let providers = {
            let mut names: Vec<&str> = excluded.iter().map(|e| e.provider.as_str()).collect();
            names.sort_unstable();
            names.dedup();
            names.truncate(8);
            names.join(", ")
        };
        if excluded.is_empty() {
            return format!("no connection can serve `{model}` now");
        }
        format!(
            "no connection can serve `{model}` now: {} candidate(s) of {providers} are out ({})",
            excluded.len(),
            reasons.join(", ")
        )
    }

    /// At least one call was made: the last failure says what the client hears.
    fn after_attempts(&self, failed: &Failed, pool: Pool<'_>, trace: &Trace) -> ClientError {
        let failure = &failed.failure;
        let mut error = tell(failure, self.request.protocol);
        error
            .headers
            .push(("x-omniroute-attempts", trace.attempts().to_string()));
        let record = trace.record();
        let attempts = record.map_or(&[][..], |record| &record.attempts);
        error.provider = attempts.last().map(|a| a.provider.as_str().to_owned());
        let rotation = attempts.last().and_then(|attempt| attempt.rotation);
        let ruling = rotation.map(|gated| gated.ruling);
        if let (Some(Ruling::Turned), Some(own)) = (ruling, &failure.upstream_code) {
            // That others were asked makes no other refusal of it.
            error.code.clone_from(own);
        }
        let all_limited = attempts.len() > 1
            && attempts.iter().all(|attempt| {
                attempt
                    .failure
                    .as_ref()
                    .is_some_and(|failure| failure.status == 429)
            });
        if all_limited {
            error.status = 429;
        }
        error.retry_after_ms = if ruling == Some(Ruling::Held) {
            // Nothing rests: the upstream's own word is all there is.
            failure.client_retry_after_ms
        } else {
            self.retry_after(failure, &error)
        };
        self.quota_headers(&mut error, failure.reason);
        if !self.targets.combo && pool.size < 2 {
            return error;
        }
        let reason =
            if trace.attempts() >= self.request.routing.config.settings.max_attempts as usize {
                TerminalReason::MaxAttemptsExceeded
            } else if failure.reason == Reason::QuotaExhausted {
                TerminalReason::QuotaExhausted
            } else {
                TerminalReason::AllModelsFailed
            };
        let seconds = error.retry_after_seconds();
        explain(&mut error, &Explanation::new(pool, reason, seconds));
        error
    }

    /// The smallest wait after which somebody may serve.
    fn retry_after(&self, failure: &Failure, error: &ClientError) -> Option<u64> {
        if !failure.fallback || error.status < 408 {
            return None;
        }
        let announced = failure.client_retry_after_ms;
        match (failure.restated.is_some(), announced) {
            // A restated status comes with the wait its rule tells the client.
            (true, Some(_)) => announced,
            _ => self.first_usable().or(announced),
        }
    }

    /// Subscription clients of the Messages protocol retry for ever on a limit
    /// without these; they speak of the router's pool, not of one account.
    fn quota_headers(&self, error: &mut ClientError, reason: Reason) {
        let wait = error.retry_after_ms;
        if let (Protocol::Messages, 429, Reason::QuotaExhausted, Some(wait)) =
            (self.request.protocol, error.status, reason, wait)
        {
            let reset = self.now.plus(wait).as_epoch_ms().div_ceil(1000);
            error
                .headers
                .push(("anthropic-ratelimit-unified-status", "rejected".to_owned()));
            error
                .headers
                .push(("anthropic-ratelimit-unified-reset", reset.to_string()));
        }
    }
}

fn explain(error: &mut ClientError, explanation: &Explanation) {
    if let Ok(value) = serde_json::to_value(&explanation.diagnostics) {
        error.extra.insert("diagnostics".to_owned(), value);
    }
    if let Ok(value) = serde_json::to_value(&explanation.recovery_hint) {
        error.extra.insert("recovery_hint".to_owned(), value);
    }
    error.headers.extend(explanation.headers());
    debug_assert!(error.extra.values().all(Value::is_object));
}

/// The node stops; another one, or its successor, can serve.
pub(crate) fn shutting_down() -> ClientError {
    ClientError {
        retry_after_ms: Some(1000),
        ..ClientError::new(
            503,
            "server_shutting_down",
            "this node is stopping; try again",
        )
    }
}

/// A failure in the client's protocol: which status and code stand for it.
pub(crate) fn tell(failure: &Failure, protocol: Protocol) -> ClientError {
    let messages = protocol == Protocol::Messages;
    let (status, code): (u16, &str) = match (failure.error_type, failure.reason) {
        (Some(ErrorType::ContextOverflow), _) => (400, "context_length_exceeded"),
        (Some(ErrorType::ModelNotFound), _) | (_, Reason::NotFound) => (404, "model_not_found"),
        (Some(ErrorType::EmptyContent), _) => (502, "empty_answer"),
        (_, Reason::RateLimitExceeded) => (429, "rate_limit_exceeded"),
        (_, Reason::QuotaExhausted) if failure.terminal.is_some() && messages => {
            (402, "insufficient_quota")
        }
        (_, Reason::QuotaExhausted) if failure.terminal.is_some() => (429, "insufficient_quota"),
        (_, Reason::QuotaExhausted) => (429, "quota_exhausted"),
        // The client's own key is fine: the accounts behind the router are not.
        (_, Reason::AuthError) if failure.blame == Blame::Model => (403, "model_access_denied"),
        (_, Reason::AuthError) => (503, "upstream_auth_failed"),
        (_, Reason::ServiceNotRunning) => (503, "service_not_running"),
        _ if failure.blame == Blame::Request => request_scoped(failure),
        // Some say with a 429 that they are busy: it is not the client's pace.
        (_, Reason::ModelCapacity) if matches!(failure.status, 400..=428 | 430..=499) => {
            (failure.status, "model_unavailable")
        }
        (_, Reason::ModelCapacity) => (if messages { 529 } else { 503 }, "server_is_overloaded"),
        (_, Reason::ServerError | Reason::Unknown) => server_side(failure, messages),
    };
    let mut error = ClientError::new(status, code, &failure.message);
    if failure.blame == Blame::Request
        && let Some(own) = &failure.upstream_code
    {
        error.code.clone_from(own);
    }
    error
}

fn request_scoped(failure: &Failure) -> (u16, &'static str) {
    let status = match failure.status {
        status @ 400..500 => status,
        _ => 400,
    };
    (status, "upstream_rejected_request")
}

fn server_side(failure: &Failure, messages: bool) -> (u16, &'static str) {
    match failure.status {
        504 | 408 | 524 => (504, "upstream_timeout"),
        503 => (503, "upstream_unavailable"),
        status @ 400..500 => (status, "upstream_error"),
        _ => (if messages { 500 } else { 502 }, "server_error"),
    }
}

/// A failure after the commit point, told inside the stream.
pub(crate) fn in_stream(
    failure: &Failure,
    candidate: &Candidate,
    protocol: Protocol,
) -> ClientError {
    let provider = candidate.slot.provider.id.as_str();
    let mut error = tell(failure, protocol);
    error.message = format!("the stream of {provider} broke off: {}", failure.message);
    error.provider = Some(provider.to_owned());
    error
}
