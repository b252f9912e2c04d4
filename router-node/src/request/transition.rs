//! Tells the owners what an attempt showed.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use shared_proto::breaker::{BreakerEvent, BreakerOutcome, FailureKind, counts};
use shared_proto::clock::Millis;
use shared_proto::egress::Exit;
use shared_proto::failure::{Blame, Cooldown, Failure};
use shared_proto::gate::{self, GateEvent};
use shared_proto::health::{HealthEvent, Outcome};
use shared_proto::lockout::LockoutEvent;
use shared_proto::rotation::RotationClass;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::pick::Candidate;
use crate::actor::owner::{Report, report};

/// An owner that takes longer than this to answer is not waited for.
pub(super) const OWNER_DEADLINE: Duration = Duration::from_millis(250);

/// Changes that are on their way to the mirror.
#[derive(Default)]
pub(crate) struct Durable(Vec<LocalBoxFuture<'static, ()>>);

impl Durable {
    /// Adds one, if there is something to wait for. What the machine says on
    /// top of the mirror's state is of no interest here.
    pub(crate) fn push<T: 'static>(&mut self, receiver: Option<oneshot::Receiver<T>>) {
        let settled = |receiver: oneshot::Receiver<T>| receiver.map(drop).boxed_local();
        self.0.extend(receiver.map(settled));
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

/// What an attempt showed to the owners of its connection and provider.
#[derive(Default)]
pub(crate) struct Events {
    /// In the order in which they happened.
    health: Vec<HealthEvent>,
    lockout: Option<LockoutEvent>,
    breaker: Option<BreakerEvent>,
    gate: Option<GateEvent>,
}

impl Events {
    /// A failure, and where the connection leaves if it is a limit there. In a
    /// combo whose next target is at the same provider, that one tells the
    /// breaker.
    pub(crate) fn failed(
        candidate: &Candidate,
        began: Millis,
        (failure, exit): (&Failure, Option<Exit>),
        next_is_same_provider: bool,
        probe: Option<u64>,
    ) -> Self {
        Self {
            lockout: (failure.blame == Blame::Model).then(|| LockoutEvent::Failed {
                started_at: began,
                model: candidate.model.to_string(),
                failure: failure.clone(),
                after_output: false,
            }),
            health: vec![match exit {
                None => HealthEvent::Failed {
                    started_at: began,
                    failure: resting(failure),
                },
                Some(exit) => HealthEvent::LimitedAt {
                    started_at: began,
                    failure: resting(failure),
                    exit,
                    met_by: candidate.slot.connection.id.clone(),
                },
            }],
            gate: gate_failed(candidate, began, failure),
            breaker: if counts(failure, next_is_same_provider) {
                Some(BreakerEvent::Failed {
                    started_at: began,
                    connection: candidate.slot.connection.id.clone(),
                    kind: FailureKind::from(failure.reason),
                    probe_generation: probe,
                })
            } else {
                // A probe that ended without a verdict on the provider.
                probe.map(|generation| BreakerEvent::ReleaseProbe { generation })
            },
        }
    }

    /// The rotation gate counts it, too.
    pub(crate) fn counting(mut self, began: Millis, class: RotationClass) -> Self {
        let started_at = began;
        self.health
            .insert(0, HealthEvent::Counted { started_at, class });
        self
    }

    /// One of the connection's keys was refused, and another is left.
    pub(crate) fn key_refused(
        began: Millis,
        key: u64,
        failure: &Failure,
        probe: Option<u64>,
    ) -> Self {
        Self {
            health: vec![HealthEvent::KeyRefused {
                started_at: began,
                key,
                failure: failure.clone(),
            }],
            breaker: probe.map(|generation| BreakerEvent::ReleaseProbe { generation }),
            ..Self::default()
        }
    }

    /// The failure came after output had gone to the client.
    pub(crate) fn after_output(mut self) -> Self {
        if let Some(LockoutEvent::Failed { after_output, .. }) = &mut self.lockout {
            *after_output = true;
        }
        self
    }

    /// A success, as far as it has something to clear: a healthy connection of
    /// a healthy provider writes nothing. `key` is the one that it presented, if it
    /// has several.
    pub(crate) fn succeeded(
        candidate: &Candidate,
        began: Millis,
        key: Option<u64>,
        probe: Option<u64>,
    ) -> Self {
        let health = candidate.slot.cell.health();
        let aside = key.filter(|key| health.aside(*key).is_some());
        let event = match aside {
            Some(key) => Some(HealthEvent::KeyAccepted {
                started_at: began,
                key,
            }),
            None if health.is_well() => None,
            None => Some(HealthEvent::Succeeded { started_at: began }),
        };
        let breaker = probe.is_some() || !candidate.provider.breaker.breaker().is_clean();
        let lockouts = candidate.slot.cell.lockouts();
        let remembers = lockouts.remembers(&candidate.model, &candidate.slot.lockout_rules);
        Self {
            health: event.into_iter().collect(),
            lockout: remembers.then(|| LockoutEvent::Succeeded {
                started_at: began,
                model: candidate.model.to_string(),
                halve: candidate.combo,
            }),
            gate: gate_succeeded(candidate, began),
            breaker: breaker.then_some(BreakerEvent::Succeeded {
                started_at: began,
                probe_generation: probe,
            }),
        }
    }

    /// A live test that was answered, which says nothing to the breaker.
    pub(crate) fn passed(candidate: &Candidate, began: Millis, key: Option<u64>) -> Self {
        Self {
            breaker: None,
            ..Self::succeeded(candidate, began, key, None)
        }
    }

    /// Whether there is nothing to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.health.is_empty()
            && self.lockout.is_none()
            && self.breaker.is_none()
            && self.gate.is_none()
    }

    /// Tells the owners at once and waits until their views show it. Once
    /// polled, the events are on their way whatever becomes of the caller.
    pub(crate) async fn tell(self, candidate: &Candidate, durable: &mut Durable) {
        if self.is_empty() {
            return;
        }
        let (connection, health) = (candidate.slot.cell.owner(), self.health);
        let lockout = candidate.slot.cell.lockout_owner().zip(self.lockout);
        let breaker = candidate.provider.breaker.owner().zip(self.breaker);
        let gate = candidate.provider.gate.owner().zip(self.gate);
        let told = futures_util::future::join4(
            async {
                let mut receivers = Vec::new();
                for event in health {
                    receivers.push(report(connection?, event).await?.durable);
                }
                Some(receivers)
            },
            async {
                let (owner, event) = lockout?;
                report(owner, event).await?.durable
            },
            async {
                let (owner, event) = breaker?;
                report(owner, event).await?.durable
            },
            async {
                let (owner, event) = gate?;
                report(owner, event).await?.durable
            },
        );
        if let Ok((health, lockout, breaker, gate)) =
            tokio::time::timeout(OWNER_DEADLINE, told).await
        {
            for receiver in health.into_iter().flatten() {
                durable.push(receiver);
            }
            durable.push(lockout);
            durable.push(breaker);
            durable.push(gate);
        }
    }
}

/// Tells the owner of a connection's health at once, and waits until its view shows
/// it and the mirror has it; what the owner said, if it answered in time.
pub(super) async fn tell_health(candidate: &Candidate, event: HealthEvent) -> Option<Outcome> {
    let owner = candidate.slot.cell.owner()?;
    let told = tokio::time::timeout(OWNER_DEADLINE, report(owner, event)).await;
    let reported = told.ok()??;
    let mut durable = Durable::default();
    durable.push(reported.durable);
    durable.settle().await;
    Some(reported.outcome)
}

/// An operator's rule may charge the provider and say how long: the request
/// leaves all of it alone, and the connection that met it rests.
fn resting(failure: &Failure) -> Failure {
    let mut failure = failure.clone();
    let of_provider = failure.blame == Blame::Provider && failure.cooldown != Cooldown::None;
    // Whoever meets the limit of an address rests for it as for its own.
    if of_provider || failure.blame == Blame::EgressIp {
        failure.blame = Blame::Connection;
    }
    failure
}

/// A combo's failed target, where there is a gate.
fn gate_failed(candidate: &Candidate, began: Millis, failure: &Failure) -> Option<GateEvent> {
    let is_gated = candidate.combo && candidate.provider.gate_rules.enabled;
    let counted = is_gated && gate::counts(failure, candidate.slot.per_model_quota);
    counted.then(|| GateEvent::Failed {
        started_at: began,
        connection: candidate.slot.connection.id.clone(),
    })
}

/// A success, where the gate has something to forget.
fn gate_succeeded(candidate: &Candidate, began: Millis) -> Option<GateEvent> {
    let id = &candidate.slot.connection.id;
    let is_gated = candidate.provider.gate_rules.enabled;
    let remembers = is_gated && candidate.provider.gate.gate().remembers(id);
    remembers.then(|| GateEvent::Succeeded {
        started_at: began,
        connection: id.clone(),
    })
}

/// Reports a breaker event, from where nothing can be waited for.
pub(crate) fn tell_breaker(candidate: &Candidate, event: Option<BreakerEvent>) {
    if let (Some(owner), Some(event)) = (candidate.provider.breaker.owner(), event) {
        owner.do_send(Report(event));
    }
}

/// Claims the provider's probe. The generation, or `None` when somebody else
/// has it. The claim counts once the store has it, so that one request in the
/// whole cluster probes; where the store does not answer within
/// [`OWNER_DEADLINE`], the claim on this node does.
pub(crate) async fn claim_probe(candidate: &Candidate) -> Option<u64> {
    let owner = candidate.provider.breaker.owner()?;
    let deadline = crate::timer::after(Instant::now(), OWNER_DEADLINE);
    let claiming = owner.send(Report(BreakerEvent::ClaimProbe));
    let reported = timeout_at(deadline, claiming).await.ok()?.ok()?;
    let generation = claimed(reported.outcome)?;
    let claim = Claim::of(candidate, Some(generation));
    let granted = match reported.durable {
        // The store is known to be away.
        None => Some(generation),
        Some(durable) => match timeout_at(deadline, durable).await {
            Ok(Ok(outcome)) => claimed(outcome),
            // It does not answer, or nothing can be promised.
            Ok(Err(_)) | Err(_) => Some(generation),
        },
    };
    claim.used();
    granted
}

fn claimed(outcome: BreakerOutcome) -> Option<u64> {
    if let BreakerOutcome::Claimed { generation, .. } = outcome {
        Some(generation)
    } else {
        None
    }
}

/// A claim that no attempt has yet. Dropped meanwhile, because the client went
/// away, it is given back.
pub(crate) struct Claim<'a> {
    candidate: &'a Candidate,
    unused: Option<u64>,
}

impl<'a> Claim<'a> {
    /// The claim of `probe`, if there is one.
    pub(crate) const fn of(candidate: &'a Candidate, probe: Option<u64>) -> Self {
        Self {
            candidate,
            unused: probe,
        }
    }

    /// An attempt has it.
    pub(crate) fn used(mut self) {
        self.unused = None;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let release = self
            .unused
            .map(|generation| BreakerEvent::ReleaseProbe { generation });
        tell_breaker(self.candidate, release);
    }
}
