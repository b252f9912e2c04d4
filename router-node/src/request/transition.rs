//! Tells the owners what an attempt showed.

use std::time::Duration;

use shared_proto::breaker::{BreakerEvent, BreakerOutcome, FailureKind, counts};
use shared_proto::clock::Millis;
use shared_proto::failure::Failure;
use shared_proto::health::HealthEvent;
use tokio::sync::oneshot;

use super::pick::Candidate;
use crate::actor::owner::Report;

/// An owner that takes longer than this to answer is not waited for.
const OWNER_DEADLINE: Duration = Duration::from_millis(250);

/// Changes that are on their way to the mirror.
#[derive(Default)]
pub(crate) struct Durable(Vec<oneshot::Receiver<()>>);

impl Durable {
    pub(crate) fn push(&mut self, receiver: Option<oneshot::Receiver<()>>) {
        self.0.extend(receiver);
    }

    /// Waits until the mirror has them, at most [`OWNER_DEADLINE`]: the client
    /// hears of a failure only once a restart would remember it too.
    pub(crate) async fn settle(&mut self) {
        if self.0.is_empty() {
            return;
        }
        let all = futures_util::future::join_all(std::mem::take(&mut self.0));
        tokio::time::timeout(OWNER_DEADLINE, all).await.ok();
    }
}

/// Reports a failed attempt. Returns until when the connection rests.
pub(crate) async fn failed(
    candidate: &Candidate,
    started_at: Millis,
    failure: &Failure,
    on_breaker: Option<BreakerEvent>,
    durable: &mut Durable,
) -> Option<Millis> {
    if let Some(owner) = candidate.slot.cell.owner() {
        let event = HealthEvent::Failed {
            started_at,
            failure: failure.clone(),
        };
        if let Ok(Ok(reported)) =
            tokio::time::timeout(OWNER_DEADLINE, owner.send(Report(event))).await
        {
            durable.push(reported.durable);
        }
    }
    if let (Some(owner), Some(event)) = (candidate.provider.breaker.owner(), on_breaker) {
        let told = tokio::time::timeout(OWNER_DEADLINE, owner.send(Report(event))).await;
        durable.push(told.ok().and_then(|told| told.ok()?.durable));
    }
    candidate.slot.cell.health().cooldown_until
}

/// Reports a success where there is something to clear; a healthy connection
/// of a healthy provider writes nothing.
pub(crate) async fn succeeded(candidate: &Candidate, started_at: Millis, probe: Option<u64>) {
    let (health, breaker) = success_events(candidate, started_at, probe);
    if let (Some(owner), Some(event)) = (candidate.slot.cell.owner(), health) {
        let told = owner.send(Report(event));
        tokio::time::timeout(OWNER_DEADLINE, told).await.ok();
    }
    if let (Some(owner), Some(event)) = (candidate.provider.breaker.owner(), breaker) {
        let told = owner.send(Report(event));
        tokio::time::timeout(OWNER_DEADLINE, told).await.ok();
    }
}

/// Whether a success has something to clear.
pub(crate) fn clears(candidate: &Candidate, probe: Option<u64>) -> bool {
    probe.is_some()
        || !candidate.slot.cell.health().is_clean()
        || !candidate.provider.breaker.breaker().is_clean()
}

/// Reports a breaker event, from where nothing can be waited for.
pub(crate) fn tell_breaker(candidate: &Candidate, event: Option<BreakerEvent>) {
    if let (Some(owner), Some(event)) = (candidate.provider.breaker.owner(), event) {
        owner.do_send(Report(event));
    }
}

fn success_events(
    candidate: &Candidate,
    started_at: Millis,
    probe_generation: Option<u64>,
) -> (Option<HealthEvent>, Option<BreakerEvent>) {
    let health = !candidate.slot.cell.health().is_clean();
    let breaker = probe_generation.is_some() || !candidate.provider.breaker.breaker().is_clean();
    (
        health.then_some(HealthEvent::Succeeded { started_at }),
        breaker.then_some(BreakerEvent::Succeeded {
            started_at,
            probe_generation,
        }),
    )
}

/// What the breaker hears of a failure: a counted failure, or that a probe
/// ended without a verdict.
pub(crate) fn breaker_event(
    candidate: &Candidate,
    started_at: Millis,
    failure: &Failure,
    next_is_same_provider: bool,
    probe: Option<u64>,
) -> Option<BreakerEvent> {
    if counts(failure, next_is_same_provider) {
        return Some(BreakerEvent::Failed {
            started_at,
            connection: candidate.slot.connection.id.clone(),
            kind: FailureKind::from(failure.reason),
            probe_generation: probe,
        });
    }
    probe.map(|generation| BreakerEvent::ReleaseProbe { generation })
}

/// Claims the provider's probe. The generation, or `None` when somebody else has it.
pub(crate) async fn claim_probe(candidate: &Candidate) -> Option<u64> {
    let owner = candidate.provider.breaker.owner()?;
    let claiming = owner.send(Report(BreakerEvent::ClaimProbe));
    let reported = tokio::time::timeout(OWNER_DEADLINE, claiming)
        .await
        .ok()?
        .ok()?;
    if let BreakerOutcome::Claimed { generation, .. } = reported.outcome {
        Some(generation)
    } else {
        None
    }
}
