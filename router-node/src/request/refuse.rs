//! What a client is told when nobody could serve: from failures, exclusions
//! and waits to one [`ClientError`].

mod tally;
mod told;

use serde_json::Value;
use shared_proto::clock::Millis;
use shared_proto::failure::{ErrorType, Failure, Reason};
use shared_proto::health::Blocked;
use shared_proto::pick::refusal::{Explanation, ListedTarget, Pool, TerminalReason};
use shared_proto::pick::told::{Class, told as told_of};
use shared_proto::pick::{self, Exclusion, ExclusionReason};
use shared_proto::protocol::Protocol;
use shared_proto::rotation::Ruling;

use super::Admitted;
use super::dispatch::Failed;
use super::resolve::Targets;
use super::trace::{Excluded, Record, Trace};
use crate::http::reply::ClientError;
use tally::Tally;
pub(crate) use told::in_stream;
use told::tell;

/// What a request is refused with.
pub(super) struct Refused {
    pub(super) error: ClientError,
    /// The last failed attempt.
    pub(super) last: Option<Failed>,
    /// Which attempt's failure it tells of.
    pub(super) told: Option<usize>,
}

impl From<ClientError> for Refused {
    fn from(error: ClientError) -> Self {
        Self {
            error,
            last: None,
            told: None,
        }
    }
}

/// What the client is told when nobody is left, or nobody else may try.
pub(super) fn refused(
    request: &Admitted,
    targets: &Targets,
    last: Option<Failed>,
    trace: &mut Trace,
) -> Refused {
    let refusal = Refusal {
        request,
        targets,
        last: last.as_ref(),
        now: request.worker.now(),
    };
    let (error, told) = refusal.answer(trace);
    let nobody_left = last.as_ref().is_none_or(|failed| failed.failure.fallback);
    trace.edit(|record| record.nobody_left |= nobody_left);
    Refused { error, last, told }
}

/// Everything a refusal is made of.
pub(crate) struct Refusal<'a> {
    pub(crate) request: &'a Admitted,
    pub(crate) targets: &'a Targets,
    /// The last failed attempt.
    pub(crate) last: Option<&'a Failed>,
    pub(crate) now: Millis,
}

impl Refusal<'_> {
    /// The answer, and which attempt it tells of.
    pub(crate) fn answer(&self, trace: &Trace) -> (ClientError, Option<usize>) {
        let Some(record) = trace.record() else {
            let gone = ClientError::new(500, "internal_error", "the request's trace is gone");
            return (gone, None);
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
        let Some(last) = self.last else {
            return (self.without_attempt(pool, &record.excluded), None);
        };
        let failures = record.attempts.iter().enumerate();
        let failures =
            failures.filter_map(|(n, attempt)| Some((n, attempt.failure.as_ref()?.failure())));
        let place = told_of(failures);
        let attempt = place.and_then(|place| record.attempts.get(place));
        let failure = attempt.and_then(|attempt| attempt.failure.as_ref());
        let failure = failure.map_or(&last.failure, |failure| failure.failure());
        let tally = Tally::of(self);
        if self.is_over(failure, &tally) {
            return (self.all_over(pool, record), place);
        }
        let mut error = self.after_attempts(failure, pool, trace);
        error.provider = attempt.map(|attempt| attempt.provider.as_str().to_owned());
        if tally.is_over() {
            // Client libraries would ask again for what only an operator ends.
            error.headers.push(("x-should-retry", "false".to_owned()));
        }
        (error, place)
    }

    /// Whether a plain model has no connection left that time brings back, as the
    /// next request would find it. What the only one of a model said is passed on.
    fn is_over(&self, failure: &Failure, tally: &Tally) -> bool {
        let plain = !self.targets.combo && self.request.lease.is_none();
        plain && tally.is_over() && tally.several() && Class::of(failure) == Class::Account
    }

    /// The last connection ended with this very request, which is told as every
    /// one after it.
    fn all_over(&self, pool: Pool<'_>, record: &Record) -> ClientError {
        let lasting: Vec<Exclusion> = pool.exclusions.to_vec();
        let exclusions: Vec<Exclusion> = lasting
            .into_iter()
            .filter(|exclusion| !exclusion.reason.is_timer())
            .collect();
        let pool = Pool {
            exclusions: &exclusions,
            ..pool
        };
        let mut error = self.without_attempt(pool, &[]);
        let attempts = record.attempts.len().to_string();
        error.headers.push(("x-omniroute-attempts", attempts));
        error
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
        let mut providers: Vec<&str> = self
            .targets
            .list
            .iter()
            .map(|target| target.provider.provider.id.as_str())
            .collect();
        providers.sort_unstable();
        providers.dedup();
        providers.truncate(8);
        let counted = Tally::of(self).words(&providers.join(", "));
        match counted {
            Some(counted) => format!("no connection can serve `{model}` now: {counted}"),
            None if excluded.is_empty() => format!("no connection can serve `{model}` now"),
            None => format!("no connection can serve `{model}` now: none of them may be used"),
        }
    }

    /// At least one call was made: this failure says what the client hears.
    fn after_attempts(&self, failure: &Failure, pool: Pool<'_>, trace: &Trace) -> ClientError {
        let mut error = tell(failure, self.request.protocol);
        error
            .headers
            .push(("x-omniroute-attempts", trace.attempts().to_string()));
        let record = trace.record();
        let attempts = record.map_or(&[][..], |record| &record.attempts);
        let rotation = attempts.last().and_then(|attempt| attempt.rotation);
        let ruling = rotation.map(|gated| gated.ruling);
        let own = failure.upstream_code.as_ref();
        if let (Some(Ruling::Turned), Some(own)) = (ruling, own.filter(|own| told::is_fit(own))) {
            // That others were asked makes no other refusal of it.
            error.code.clone_from(own);
        }
        let all_limited = attempts.len() > 1
            && is_limit(failure)
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

/// Whether a failure says that there is too much of what others may do again.
fn is_limit(failure: &Failure) -> bool {
    let of_model = failure.error_type == Some(ErrorType::ModelNotFound);
    let limit = match failure.reason {
        Reason::RateLimitExceeded | Reason::QuotaExhausted | Reason::ModelCapacity => true,
        Reason::ServerError
        | Reason::AuthError
        | Reason::NotFound
        | Reason::ServiceNotRunning
        | Reason::Unknown => false,
    };
    limit && !of_model && !matches!(Class::of(failure), Class::Request | Class::Final)
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
