//! Tells the owners what an attempt showed.

mod probe;

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use shared_proto::breaker::{BreakerEvent, FailureKind, counts};
use shared_proto::clock::Millis;
use shared_proto::egress::Exit;
use shared_proto::failure::{Blame, Cooldown, Failure, Terminal};
use shared_proto::gate::{self, GateEvent};
use shared_proto::health::{HealthEvent, Outcome};
use shared_proto::lockout::{self, LockoutEvent};
use shared_proto::rotation::RotationClass;
use tokio::sync::oneshot;

pub(crate) use probe::{Claim, claim_probe};

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

/// What the owners made of what an attempt showed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Written {
    /// The cooldown or lock that it set.
    pub(crate) rest: Option<Rest>,
    /// The state that it ended the connection with.
    pub(crate) terminal: Option<Terminal>,
}

/// A cooldown or lock as it was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// How long, ms.
    pub(crate) ms: u64,
    pub(crate) until: Millis,
    /// Whether an announced time decided.
    pub(crate) hinted: bool,
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
    pub(crate) async fn tell(self, candidate: &Candidate, durable: &mut Durable) -> Written {
        if self.is_empty() {
            return Written::default();
        }
        let (connection, health) = (candidate.slot.cell.owner(), self.health);
        let lockout = candidate.slot.cell.lockout_owner().zip(self.lockout);
        let breaker = candidate.provider.breaker.owner().zip(self.breaker);
        let gate = candidate.provider.gate.owner().zip(self.gate);
        let told = futures_util::future::join4(
            async {
                let mut all = Vec::new();
                for event in health {
                    all.push(report(connection?, event).await?);
                }
                Some(all)
            },
            async {
                let (owner, event) = lockout?;
                report(owner, event).await
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
        let Ok((health, lockout, breaker, gate)) = tokio::time::timeout(OWNER_DEADLINE, told).await
        else {
            return Written::default();
        };
        let health = health.unwrap_or_default();
        let mut outcomes = health.iter().map(|reported| reported.outcome);
        let ends =
            |outcome: &Outcome| matches!(outcome, Outcome::Cooled { .. } | Outcome::Terminal(_));
        let written = written(
            candidate,
            outcomes.rfind(ends),
            lockout.as_ref().map(|reported| reported.outcome),
        );
        for reported in health {
            durable.push(reported.durable);
        }
        durable.push(lockout.and_then(|reported| reported.durable));
        durable.push(breaker);
        durable.push(gate);
        written
    }
}

/// What was written, by the owners' words and the views that they published.
fn written(
    candidate: &Candidate,
    health: Option<Outcome>,
    lockout: Option<lockout::Outcome>,
) -> Written {
    let slot = &candidate.slot;
    if let Some(Outcome::Terminal(terminal)) = health {
        return Written {
            rest: None,
            terminal: Some(terminal),
        };
    }
    let cooled = || {
        let Outcome::Cooled {
            cooldown_ms,
            hinted,
        } = health?
        else {
            return None;
        };
        Some(Rest {
            ms: cooldown_ms,
            until: slot.cell.health().cooldown_until?,
            hinted,
        })
    };
    let locked = || {
        let lockout::Outcome::Locked(locked) = lockout? else {
            return None;
        };
        let lockouts = slot.cell.lockouts();
        // The view may have moved on; what it had when this lock was set is asked for.
        let then = locked.until.minus(1);
        let entry = lockouts.locked(&candidate.model, &slot.lockout_rules, then)?;
        Some(Rest {
            ms: entry.last_cooldown_ms,
            until: locked.until,
            hinted: false,
        })
    };
    Written {
        rest: cooled().or_else(locked),
        terminal: None,
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

/// What a connection that met a failure of more than itself rests for: its
/// provider's, or a limit of its address, is as good as its own.
fn resting(failure: &Failure) -> Failure {
    let mut failure = failure.clone();
    let of_provider = failure.blame == Blame::Provider && failure.cooldown != Cooldown::None;
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
