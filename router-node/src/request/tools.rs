//! Requests that bring more tools than a provider takes.

use shared_proto::asked::Asked;
use shared_proto::clock::Millis;
use shared_proto::tools::{Learned, ToolEvent, learned};

use super::Admitted;
use super::dispatch::Failed;
use super::pick::Candidate;
use super::resolve::{Target, Targets};
use super::trace::{Excluded, Trace};
use crate::actor::owner::Report;
use crate::http::reply::ClientError;
use crate::routing::ProviderSlot;

/// Targets named in one refusal.
const MAX_NAMED: usize = 8;

/// Who says how many tools a provider takes.
enum Word {
    /// The operator, of this provider.
    Operator,
    /// The provider itself, then.
    Provider(Millis),
    /// The operator, of all.
    Settings,
}

/// What a provider takes, and by whose word.
fn limit(request: &Admitted, provider: &ProviderSlot, now: Millis) -> (usize, Word) {
    let (limit, word) = match (
        provider.provider.max_tools,
        provider.tools.state().known(now),
    ) {
        (Some(limit), _) => (limit, Word::Operator),
        (None, Some(known)) => (known.limit, Word::Provider(known.at)),
        (None, None) => (request.routing.config.settings.max_tools, Word::Settings),
    };
    (limit as usize, word)
}

/// Takes out the targets whose provider takes fewer tools than the request
/// brings; the error is that none is left.
pub(super) fn fit(
    request: &Admitted,
    targets: &mut Targets,
    trace: &mut Trace,
) -> Result<(), ClientError> {
    let tools = request.facts.tools();
    if tools == 0 {
        return Ok(());
    }
    let now = request.worker.now();
    let list = std::mem::take(&mut targets.list);
    let fits = |target: &Target| limit(request, &target.provider, now).0 >= tools;
    let (fitting, others): (Vec<_>, Vec<_>) = list.into_iter().partition(fits);
    targets.list = fitting;
    for target in &others {
        trace.exclude(Excluded::unavailable(target, "too_many_tools"));
    }
    if !targets.list.is_empty() {
        return Ok(());
    }
    let mut limits: Vec<String> = others
        .iter()
        .map(|target| {
            let provider = &target.provider.provider.id;
            match limit(request, &target.provider, now) {
                (limit, Word::Provider(at)) => {
                    let at = at.to_rfc3339();
                    format!("`{provider}` takes at most {limit}, as it said itself at {at}")
                }
                (limit, Word::Settings) => {
                    format!("`{provider}` is given at most {limit} (settings.maxTools)")
                }
                (limit, Word::Operator) => {
                    format!("`{provider}` is given at most {limit} (its maxTools)")
                }
            }
        })
        .collect();
    limits.dedup();
    limits.truncate(MAX_NAMED);
    let message = format!("the request brings {tools} tools: {}", limits.join("; "));
    Err(ClientError::bad_request(
        "too_many_tools",
        Some("tools"),
        message,
    ))
}

/// Remembers the limit that the refusal of a request teaches.
pub(super) fn learn(request: &Admitted, asked: &Asked<'_>, candidate: &Candidate, failed: &Failed) {
    let status = failed.status.unwrap_or(0);
    if status != 400 {
        return;
    }
    let tools = request.facts.tools();
    let Some(limit) = learned(status, &failed.failure.message, tools, asked) else {
        return;
    };
    let provider = &candidate.provider;
    tracing::info!(provider = %provider.provider.id, limit, "the provider said how many tools it takes");
    if let Some(owner) = provider.tools.owner() {
        let at = request.worker.now();
        owner.do_send(Report(ToolEvent::Told(Learned { limit, at })));
    }
}
