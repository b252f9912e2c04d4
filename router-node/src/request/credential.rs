//! What an attempt presents upstream. Accounts with refreshed tokens present
//! those; a token that has ended, or that the upstream refuses, is renewed
//! first, once.

use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use shared_proto::clock::Millis;
use shared_proto::failure::Failure;
use shared_proto::token::{Cause, cannot_renew, may_be_stale, refused, soften};
use tokio::time::timeout;

use super::dispatch::Failed;
use super::pick::Candidate;
use super::transition::Claim;
use crate::routing::{Key, Slot};
use crate::token::refresher::{Ask, Verdict};

/// How long a request waits for new tokens.
const WAIT: Duration = Duration::from_secs(10);
/// How long an account rests whose tokens took longer, ms.
const REST_MS: u64 = 2_000;

/// What an attempt presents.
pub(super) struct Credential {
    /// The header, marked sensitive.
    pub(super) header: Option<(HeaderName, HeaderValue)>,
    /// Of which refresh, for an account that has tokens.
    generation: Option<u64>,
    /// Which key, for a connection that has several.
    pub(super) key: Option<u64>,
}

/// Waits until the candidate's access token can be sent, or it is known that it
/// can't. Who has one that is valid, or needs none, does not wait.
pub(super) async fn prepare(candidate: &Candidate, probe: Option<u64>, now: Millis) {
    let Some(bearer) = candidate.slot.bearer() else {
        return;
    };
    if bearer.is_valid(now) {
        return;
    }
    let claim = Claim::of(candidate, probe);
    ask(&candidate.slot, Cause::Expired, bearer.status.generation).await;
    claim.used();
}

/// What the candidate presents at `now`, `key` if it has several; the error is that
/// it has nothing.
pub(super) fn present(
    candidate: &Candidate,
    key: Option<&Key>,
    now: Millis,
) -> Result<Credential, Failed> {
    let slot = &candidate.slot;
    let Some(bearer) = slot.bearer() else {
        let header = key.map(|key| key.header.clone());
        return Ok(Credential {
            header: header.or_else(|| slot.auth.clone()),
            generation: None,
            key: key.map(|key| key.mark),
        });
    };
    if bearer.is_valid(now) {
        return Ok(Credential {
            header: Some((AUTHORIZATION, bearer.header())),
            generation: Some(bearer.status.generation),
            key: None,
        });
    }
    let forgiven_at = slot.cell.health().forgiven_at();
    let trouble = bearer.status.trouble.as_ref();
    let failure = if bearer.status.is_refused(forgiven_at) {
        refused(trouble.map_or("", |trouble| trouble.code.as_str()))
    } else {
        let rest = trouble.and_then(|trouble| trouble.until);
        cannot_renew(rest.map_or(REST_MS, |until| until.since(now).max(1)))
    };
    Err(Failed {
        status: None,
        failure,
        stale: false,
    })
}

/// What an account shows where nothing is renewed for it: its token, if that is good
/// at `now`, or its key.
pub(crate) fn shown(slot: &Slot, now: Millis) -> Option<(HeaderName, HeaderValue)> {
    match slot.bearer() {
        Some(bearer) => bearer
            .is_valid(now)
            .then(|| (AUTHORIZATION, bearer.header())),
        None => slot.auth.clone(),
    }
}

impl Credential {
    /// Whether new tokens may mend this failure.
    pub(super) fn may_mend(&self, failed: &Failed) -> bool {
        self.generation.is_some() && may_be_stale(&failed.failure)
    }

    /// After a refusal: waits for newer tokens than those that were sent.
    /// Whether there are any; otherwise the failure says what is known.
    pub(super) async fn mend(&self, candidate: &Candidate, failed: &mut Failed) -> bool {
        let Some(generation) = self.generation else {
            return false;
        };
        match ask(&candidate.slot, Cause::Refused, generation).await {
            Verdict::Current => return true,
            Verdict::Fresh => {}
            Verdict::Refused(code) => failed.failure = refused(&code),
            Verdict::None => soften(&mut failed.failure),
        }
        false
    }
}

/// What a refusal after the commit point means: nobody tries new tokens then.
pub(super) fn unsettled(slot: &Slot, failure: &mut Failure) {
    if slot.bearer().is_some() && may_be_stale(failure) {
        soften(failure);
    }
}

async fn ask(slot: &Slot, cause: Cause, generation: u64) -> Verdict {
    let Some(refresher) = slot.cell.token.refresher() else {
        return Verdict::None;
    };
    let asking = async {
        let verdict = refresher.send(Ask { cause, generation }).await.ok()?;
        verdict.await.ok()
    };
    let answered = timeout(WAIT, asking).await;
    answered.ok().flatten().unwrap_or(Verdict::None)
}
