//! The last resort when money is the reason that nobody could serve: one other
//! target, with a short answer.

use shared_proto::asked::Asked;
use shared_proto::emergency::is_about_money;
use shared_proto::failure::{Blame, Terminal};

use super::Admitted;
use super::dispatch::Failed;
use super::facts::Facts;
use super::refuse::Refused;
use super::resolve::{self, Targets};
use super::trace::Trace;

/// The word that marks an answer from there.
pub(super) const WARNING: &str = "emergency_fallback";

/// Where a request goes after all, and with what.
pub(super) struct Rescue {
    pub(super) facts: Facts,
    pub(super) targets: Targets,
}

/// The way out of a refusal, if there is one: not for requests with tools nor for
/// those of a leased key, and only where the client's key may go.
pub(super) fn rescue(
    request: &Admitted,
    asked: &Asked<'_>,
    refused: &Refused,
    trace: &Trace,
) -> Option<Rescue> {
    let settings = &request.routing.config.settings.emergency_fallback;
    let allowed = settings.enabled && request.lease.is_none() && request.facts.tools() == 0;
    if !allowed || !about_money(asked, refused, trace) {
        return None;
    }
    let key = request.key.as_deref();
    let found = resolve::resolve(&request.routing, request.protocol, &settings.target, key);
    let targets = found.ok()?;
    let facts = request
        .facts
        .capped(request.protocol, settings.max_output_tokens)?;
    Some(Rescue { facts, targets })
}

fn about_money(asked: &Asked<'_>, refused: &Refused, trace: &Trace) -> bool {
    let by = |failed: &Failed| {
        let failure = &failed.failure;
        if failure.blame == Blame::Request {
            return false;
        }
        let broke = failure.terminal == Some(Terminal::CreditsExhausted);
        let status = failed.status.unwrap_or(failure.status);
        let told = || is_about_money(status, &failure.message, asked);
        broke || failure.status == 402 || told()
    };
    if let Some(failed) = &refused.last {
        return by(failed);
    }
    // Nobody was called: every account that could be is known to be empty.
    let empty = Terminal::CreditsExhausted.as_str();
    let excluded = trace.record().map_or(&[][..], |record| &record.excluded);
    let all = excluded.iter().all(|out| out.detail == Some(empty));
    all && !excluded.is_empty()
}
