//! The one probe of a provider whose breaker is half-open.

use shared_proto::breaker::{BreakerEvent, BreakerOutcome};
use tokio::time::{Instant, timeout_at};

use super::{OWNER_DEADLINE, tell_breaker};
use crate::actor::owner::Report;
use crate::request::pick::Candidate;

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
