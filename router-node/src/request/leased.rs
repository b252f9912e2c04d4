//! A request under a session lease: the checks at selection, the lease's move
//! to another connection, and the fence before each attempt.

use actix_web::http::header::{HeaderMap, HeaderValue};
use serde_json::Value;
use shared_proto::config::{ApiKey, StrategyName};
use shared_proto::id::ConnectionId;
use shared_proto::lease::route::{self, RouteKind, RouteShape};
use shared_proto::lease::{
    Binding, Decision, EndReason, Generation, LeaseCode, OwnerHash, Presented, Refusal, Seen,
    Transition, lifecycle, select, transition,
};

use super::pick::{Candidate, Pick, Picker};
use super::resolve::Targets;
use super::trace::Trace;
use super::{Admitted, Picked, transition as owners};
use crate::http::reply::ClientError;
use crate::lease::passage::{Barred, Passage};
use crate::lease::{KIND, Leases, Operation};

/// The header that names the owner.
pub(crate) const OWNER: &str = "x-omniroute-lease-owner";
/// The header that names the generation.
pub(crate) const GENERATION: &str = "x-omniroute-lease-generation";
/// The header that forces a connection.
const CONNECTION: &str = "x-omniroute-connection";

/// Moves of a lease within one request at most; past it the request is told
/// what is known.
const MAX_MOVES: u32 = 16;

/// What a managed request said of its lease.
pub(crate) struct Context {
    owner: OwnerHash,
    generation: Generation,
    forced: Option<ConnectionId>,
}

/// Reads the lease headers of a managed key's request; other keys have none.
pub(crate) fn context(
    headers: &HeaderMap,
    key: Option<&ApiKey>,
) -> Result<Option<Context>, ClientError> {
    let Some(key) = key.filter(|key| key.is_managed()) else {
        return Ok(None);
    };
    let allowed = key.allowed_connections.as_ref().map_or(0, Vec::len);
    lifecycle::managed(true, allowed)?;
    let (owner, generation) = (only(headers, OWNER)?, only(headers, GENERATION)?);
    let (owner, generation) = lifecycle::context(owner, generation)?;
    let forced = headers.get(CONNECTION).map(HeaderValue::as_bytes);
    let forced = forced.and_then(|value| std::str::from_utf8(value).ok());
    let forced = forced.map(str::trim).filter(|id| !id.is_empty());
    Ok(Some(Context {
        owner,
        generation,
        forced: forced.map(ConnectionId::from),
    }))
}

/// The value of a header that may be there once: of two, nobody can tell which
/// was meant.
pub(crate) fn only<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h [u8]>, LeaseCode> {
    let mut values = headers.get_all(name).map(HeaderValue::as_bytes);
    let first = values.next();
    if values.next().is_some() {
        return Err(LeaseCode::ContextInvalid);
    }
    Ok(first)
}

impl From<LeaseCode> for ClientError {
    fn from(code: LeaseCode) -> Self {
        Refusal::from(code).into()
    }
}

impl From<Refusal> for ClientError {
    fn from(refusal: Refusal) -> Self {
        // Whoever may be answered with the ordinary error looks for it before.
        let code = refusal.code().unwrap_or(LeaseCode::ServiceUnavailable);
        let mut error = Self {
            kind: Some(KIND),
            retry_after_ms: refusal.retry_after_s().map(|s| s.saturating_mul(1000)),
            ..Self::new(code.status(), code.as_str(), code.message())
        };
        if let Some(Ok(Value::Object(mut body))) = refusal.body().map(serde_json::to_value) {
            body.remove("error");
            error.extra = body;
        }
        error
    }
}

/// A request's hold on its lease.
pub(crate) struct Leased {
    presented: Presented,
    binding: Binding,
    /// Whether the store said so, not only this node's table.
    confirmed: bool,
    moves: u32,
}

impl Leased {
    /// The checks at selection; `None` for a request that needs no lease.
    pub(crate) async fn select(request: &Admitted) -> Result<Option<Self>, ClientError> {
        let (Some(context), Some(key)) = (&request.lease, &request.key) else {
            return Ok(None);
        };
        let presented = Presented {
            owner: context.owner.clone(),
            generation: context.generation,
            api_key: key.id.clone(),
        };
        let leases = &request.worker.node.leases;
        let forced = context.forced.as_ref();
        let (binding, confirmed) = look(leases, request, &presented, forced).await?;
        Ok(Some(Self {
            presented,
            binding,
            confirmed,
            moves: 0,
        }))
    }

    /// The checks of the way that the request would go.
    pub(crate) async fn route(
        &mut self,
        request: &Admitted,
        targets: &Targets,
    ) -> Result<(), ClientError> {
        route::supported(&shape(targets))?;
        let forced = forced_by(targets);
        if forced.is_some_and(|id| *id != self.binding.lease.connection) {
            let leases = &request.worker.node.leases;
            let looked = look(leases, request, &self.presented, forced).await?;
            (self.binding, self.confirmed) = looked;
        }
        Ok(())
    }

    /// What the plan does next: the bound connection, or the one that the lease
    /// moves to.
    pub(super) async fn next_step(
        &mut self,
        request: &Admitted,
        picker: &mut Picker<'_>,
        trace: &mut Trace,
    ) -> Result<Picked, ClientError> {
        let most = request.routing.config.settings.max_attempts as usize;
        while trace.attempts() < most && self.moves < MAX_MOVES {
            let now = request.worker.now();
            if picker.is_busy(&self.binding.lease.connection) {
                return Ok(Picked::Queue);
            }
            match picker.bound(&self.binding.lease.connection, now) {
                Pick::Try(candidate) => return Ok(Picked::Go(candidate, None)),
                Pick::Probe(candidate) => {
                    let claim = owners::claim_probe(&candidate).await;
                    if claim.is_some() {
                        return Ok(Picked::Go(candidate, claim));
                    }
                    picker.not_claimed(&candidate, now, trace);
                }
                Pick::Nobody => {
                    picker.explain_all(now, trace);
                    if !self.moves_on(request, picker).await? {
                        break;
                    }
                }
            }
        }
        Ok(Picked::Nobody)
    }

    /// Moves the lease to a connection that is of use. False when there is
    /// none: then the lease is over, unless its connection is sound.
    async fn moves_on(
        &mut self,
        request: &Admitted,
        picker: &Picker<'_>,
    ) -> Result<bool, ClientError> {
        let now = request.worker.now();
        let from = self.binding.lease.connection.clone();
        let candidates = picker.open(now);
        if candidates.is_empty() && picker.failed_on(&from, now) {
            return Ok(false);
        }
        let ask = Transition {
            presented: &self.presented,
            from: &from,
            reason: EndReason::ConnectionIneligible,
            candidates: &candidates,
            none: picker.end_reason(now),
        };
        let rules = request.routing.config.settings.leases;
        let leases = &request.worker.node.leases;
        let moving = leases.drive(Operation::Transition, |seen, now| {
            transition(seen, &ask, &rules, now)
        });
        self.moves = self.moves.saturating_add(1);
        match moving.await {
            Ok(binding) => {
                self.binding = binding;
                self.confirmed = true;
                Ok(true)
            }
            Err(Refusal::Ordinary) => Ok(false),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Asks the fence for one attempt. `None` when the lease had moved before
    /// this node heard of it.
    async fn fence(
        &mut self,
        request: &Admitted,
        candidate: &Candidate,
    ) -> Result<Option<Passage>, ClientError> {
        let leases = &request.worker.node.leases;
        let connection = &candidate.slot.connection.id;
        let passing = leases.pass(&self.presented, connection, &mut self.binding);
        match passing.await {
            Ok(passage) => Ok(Some(passage)),
            Err(Barred::Moved(binding)) if !self.confirmed => {
                self.binding = binding;
                self.confirmed = true;
                Ok(None)
            }
            Err(Barred::Moved(_)) => Err(LeaseCode::ConnectionMismatch.into()),
            Err(Barred::Refused(code)) => Err(code.into()),
        }
    }
}

/// What the fence says to one attempt.
pub(super) enum Cleared {
    /// It may go out; with its place in flight, if it needs one.
    Go(Option<Passage>),
    /// The lease had moved before this node heard of it: the request picks anew.
    Again,
}

/// Asks the fence, immediately before an attempt that may be its provider's
/// probe. A request that needs no lease passes.
pub(super) async fn clear(
    leased: &mut Option<Leased>,
    request: &Admitted,
    candidate: &Candidate,
    probe: Option<u64>,
) -> Result<Cleared, ClientError> {
    let Some(leased) = leased else {
        return Ok(Cleared::Go(None));
    };
    let claim = owners::Claim::of(candidate, probe);
    let passage = leased.fence(request, candidate).await?;
    Ok(passage.map_or(Cleared::Again, |passage| {
        claim.used();
        Cleared::Go(Some(passage))
    }))
}

/// The check at selection, by this node's table if that is enough. Also whether
/// the store was asked.
async fn look(
    leases: &Leases,
    request: &Admitted,
    presented: &Presented,
    forced: Option<&ConnectionId>,
) -> Result<(Binding, bool), ClientError> {
    let table = leases.table();
    let known = select(&Seen::new(&table), presented, forced, request.worker.now());
    if let Decision::Done(Ok(binding)) = known {
        return Ok((binding, false));
    }
    let looking = leases.drive(Operation::Select, |seen, now| {
        select(seen, presented, forced, now)
    });
    Ok((looking.await?, true))
}

/// The connection that a combo's only target names.
fn forced_by(targets: &Targets) -> Option<&ConnectionId> {
    match targets.list.as_slice() {
        [only] => only.connection.as_ref().map(|slot| &slot.connection.id),
        _ => None,
    }
}

fn shape(targets: &Targets) -> RouteShape {
    let all = || targets.list.iter().chain(&targets.foreign);
    RouteShape {
        kind: match targets.strategy {
            None | Some(StrategyName::Priority) => RouteKind::Sequence,
        },
        targets: all().count(),
        pins_connection: all().any(|target| target.connection.is_some()),
        duplicates: false,
        nested: Vec::new(),
    }
}
