//! The request's way. READ FIRST.
//!
//! client -> [`crate::http`] (authenticate, read) -> [`resolve`] (model to
//! targets) -> [`pick`] -> [`admit`] (pin, slot) -> [`dispatch`] -> classify (in the core) ->
//! [`transition`] (tell the owners) -> next candidate, wait, or answer.
//!
//! [`plan`] owns attempts: it alone decides whether there is another.

mod admit;
pub(crate) mod after;
pub(crate) mod background;
pub(crate) mod credential;
pub(crate) mod dispatch;
mod doubt;
mod emergency;
pub(crate) mod facts;
mod keys;
mod lane;
pub(crate) mod leased;
pub(crate) mod live;
pub(crate) mod pick;
mod pinned;
mod preflight;
pub(crate) mod refuse;
mod repeat;
pub(crate) mod resolve;
mod siblings;
mod tools;
pub(crate) mod trace;
pub(crate) mod transition;
pub(crate) mod trial;
mod unsent;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use shared_proto::clock::Millis;
use shared_proto::config::ApiKey;
use shared_proto::lease::LeaseCode;
use shared_proto::protocol::Protocol;

use crate::http::body::Held;
use crate::http::reply::ClientError;
use crate::node::Worker;
use crate::routing::Routing;
use admit::Admission;
use after::After;
use dispatch::{Call, Failed, Success, Whole};
use doubt::Doubts;
use facts::Facts;
use leased::{Cleared, Leased};
use live::Live;
use pick::{Candidate, Pick, Picker};
use refuse::{Refused, refused};
use repeat::Repeats;
use resolve::Targets;
use trace::Trace;
use transition::Durable;

/// A request that was let in and read.
pub(crate) struct Admitted {
    pub(crate) protocol: Protocol,
    pub(crate) facts: Facts,
    /// What its session is called, where sessions are pinned.
    pub(crate) session: Option<String>,
    /// The memory of the body in `facts`.
    pub(crate) _held: Held,
    /// The client's headers that may go upstream.
    pub(crate) headers: http::HeaderMap,
    pub(crate) key: Option<Arc<ApiKey>>,
    /// What it said of its lease, if its key needs one.
    pub(crate) lease: Option<leased::Context>,
    pub(crate) routing: Arc<Routing>,
    pub(crate) worker: Rc<Worker>,
}

/// How the plan ended.
pub(crate) enum Served {
    /// A whole answer; the trace is finished.
    Whole(Whole, After),
    /// A committed stream; the trace goes with it.
    Live(Box<Live>, After),
    /// Nobody could serve; the trace is finished.
    Refused(ClientError),
}

/// Runs one request to its answer or the commit point of its stream. When the
/// node can't wait any longer, the call under way is dropped, charged to nobody.
pub(crate) async fn plan(request: Rc<Admitted>, mut trace: Trace) -> Served {
    let cut = request.worker.node.stop.cut();
    let found = tokio::select! {
        biased;
        found = search(&request, &mut trace) => found,
        () = cut => Err(refuse::shutting_down()),
    };
    match found {
        Ok((success, after)) => serve(success, after, trace).await,
        Err(error) => {
            trace.refused(&error);
            Served::Refused(error)
        }
    }
}

/// Finds somebody who answers; as a last resort, where it was for money only, the
/// operator's emergency target. Where that fails too, the first refusal is told.
async fn search(
    request: &Rc<Admitted>,
    trace: &mut Trace,
) -> Result<(Success, After), ClientError> {
    let (leased, targets) = destined(request, trace).await?;
    let call = Call::new(request);
    let walked = walk(request, &call, (leased, &targets), trace).await;
    let refused = match walked {
        Ok(found) => return Ok(found),
        Err(refused) => refused,
    };
    trace.edit(|record| record.told = refused.told);
    let Some(rescue) = emergency::rescue(request, call.asked(), &refused, trace) else {
        return Err(refused.error);
    };
    let warning = emergency::WARNING;
    tracing::warn!(
        warning,
        "refused for money everywhere; the emergency target is asked"
    );
    trace.edit(|record| record.warnings.push(warning));
    let call = Call::with(request, &rescue.facts);
    let walked = walk(request, &call, (None, &rescue.targets), trace).await;
    walked.map_err(|_| {
        trace.edit(|record| record.warnings.retain(|known| *known != warning));
        refused.error
    })
}

/// Tries candidates until one answers or nobody is left.
async fn walk(
    request: &Rc<Admitted>,
    call: &Call<'_>,
    (mut leased, targets): (Option<Leased>, &Targets),
    trace: &mut Trace,
) -> Result<(Success, After), Refused> {
    let set_aside = leased.is_none().then_some(&request.worker.node.leases);
    let mut picker = Picker::new(targets, request.key.as_deref(), set_aside);
    picker.note_foreign(trace);
    let mut waits = Waits::default();
    let mut admission = Admission::new(request, targets.queue);
    let mut durable = Durable::default();
    let mut doubts = Doubts::default();
    let mut last: Option<Failed> = None;
    loop {
        let picked = match &mut leased {
            Some(leased) => leased.next_step(request, &mut picker, trace).await?,
            None => next_step(request, targets, &mut picker, &mut waits, trace).await,
        };
        let (candidate, probe) = match picked {
            Picked::Go(candidate, probe) => (candidate, probe),
            Picked::Wait(wait) => {
                trace.wait(wait);
                tokio::time::sleep(wait).await;
                picker.restart();
                continue;
            }
            Picked::Queue => {
                admission.wait(&mut picker, trace).await;
                continue;
            }
            Picked::Nobody => break,
        };
        let entered = admission.enter((candidate, probe), &mut picker, trace);
        let Some((candidate, ticket)) = entered.await else {
            continue;
        };
        if preflight::withholds(request, &candidate, probe, &mut durable).await {
            continue;
        }
        let passage = match leased::clear(&mut leased, request, &candidate, probe).await? {
            Cleared::Go(passage) => passage,
            Cleared::Again => continue,
        };
        picker.tried(&candidate);
        let mut after = After::new(request, candidate, request.worker.now(), probe, trace);
        after.under(passage);
        after.holding(ticket);
        match attempt(call, request, &mut leased, &mut after, trace).await? {
            Ok(success) => {
                durable.settle().await;
                picker.note_before(after.candidate(), request.worker.now(), trace);
                return Ok((success, after));
            }
            Err(failed) => {
                let failed = doubts.weigh(after.candidate(), failed);
                let shared = failed.failure.fallback
                    && picker.next_target_shares_provider(after.candidate());
                after.failed(&failed, shared, trace, &mut durable).await;
                tools::learn(request, call.asked(), after.candidate(), &failed);
                picker.failed(after.candidate(), &failed.failure);
                let fallback = failed.failure.fallback;
                last = Some(failed);
                if !fallback {
                    break;
                }
            }
        }
    }
    durable.settle().await;
    Err(refused(request, targets, last, trace))
}

/// Where the request may go: by its lease, if it needs one, and its model.
async fn destined(
    request: &Admitted,
    trace: &mut Trace,
) -> Result<(Option<Leased>, Targets), ClientError> {
    let mut leased = Leased::select(request).await?;
    let mut targets = resolve::resolve(
        &request.routing,
        request.protocol,
        &request.facts.model,
        request.key.as_deref(),
    )?;
    tools::fit(request, &mut targets, trace)?;
    if let Some(leased) = &mut leased {
        leased.route(request, &targets).await?;
    }
    Ok((leased, targets))
}

/// Makes one attempt; the error is that its lease is lost meanwhile. Where
/// [`Repeats`] says so the call is made once more, and passes the fence once more.
async fn attempt(
    call: &Call<'_>,
    request: &Admitted,
    leased: &mut Option<Leased>,
    after: &mut After,
    trace: &mut Trace,
) -> Result<Result<Success, Failed>, ClientError> {
    let mut repeats = Repeats::new(request, after.candidate(), after.is_test());
    loop {
        let credential = match repeats.present(after.candidate()) {
            Ok(credential) => credential,
            Err(failed) => return Ok(Err(failed)),
        };
        after.presents(credential.key);
        let ride = repeats.ride();
        after.on_the_lane(ride.as_ref().is_some_and(|ride| ride.on.is_some()));
        after.calls(trace);
        let shown = (credential.header.as_ref(), ride.as_ref());
        let lost = after.lost();
        let calling = async {
            let now = request.worker.now();
            let mut sent = call.dispatch(after.candidate(), shown, now).await;
            let presented = (&credential, ride.as_ref());
            let again = repeats.judge(&mut sent, presented, after, trace).await;
            (sent, again)
        };
        let called = tokio::select! {
            biased;
            () = lost => None,
            called = calling => Some(called),
        };
        match called {
            None => {
                after.cut_short(trace);
                return Err(LeaseCode::Lost.into());
            }
            Some((sent, false)) => return Ok(sent.map_err(|failed| after.gated(failed))),
            Some((_, true)) => {}
        }
        match leased::clear(leased, request, after.candidate(), None).await? {
            Cleared::Go(passage) => after.under(passage),
            Cleared::Again => return Err(LeaseCode::ConnectionMismatch.into()),
        }
    }
}

/// Decides what the plan does next.
async fn next_step(
    request: &Admitted,
    targets: &Targets,
    picker: &mut Picker<'_>,
    waits: &mut Waits,
    trace: &mut Trace,
) -> Picked {
    let settings = &request.routing.config.settings;
    if trace.attempts() >= settings.max_attempts as usize {
        return Picked::Nobody;
    }
    loop {
        let now = request.worker.now();
        match picker.next(now, trace) {
            Pick::Try(candidate) => return Picked::Go(candidate, None),
            Pick::Probe(candidate) => {
                let claim = transition::claim_probe(&candidate).await;
                if claim.is_some() {
                    return Picked::Go(candidate, claim);
                }
                picker.not_claimed(&candidate, now, trace);
            }
            Pick::Nobody if !picker.busy().is_empty() => return Picked::Queue,
            Pick::Nobody if targets.combo => return Picked::Nobody,
            Pick::Nobody => {
                let wait = waits.next(&settings.wait_for_cooldown, picker, now);
                return wait.map_or(Picked::Nobody, Picked::Wait);
            }
        }
    }
}

/// What the plan does next.
enum Picked {
    /// Call this candidate, under this claim of its provider's probe.
    Go(Candidate, Option<u64>),
    /// Wait for a cooling connection.
    Wait(Duration),
    /// Wait for a slot of a full one.
    Queue,
    /// Answer with what is known.
    Nobody,
}

async fn serve(success: Success, mut after: After, trace: Trace) -> Served {
    after.attach(trace);
    match success {
        Success::Whole(whole) => {
            after.succeeded_whole(&whole).await;
            Served::Whole(whole, after)
        }
        Success::Live(live) => {
            after.first_byte(live.answer().status);
            Served::Live(live, after)
        }
    }
}

/// The waits of one request for a cooling connection.
#[derive(Default)]
struct Waits {
    count: u32,
    waited_ms: u64,
}

impl Waits {
    /// How long to wait before trying again, if waiting is allowed and helps.
    fn next(
        &mut self,
        rules: &shared_proto::config::WaitForCooldown,
        picker: &Picker<'_>,
        now: Millis,
    ) -> Option<Duration> {
        let wait = picker.earliest()?.since(now);
        let total = self.waited_ms.saturating_add(wait);
        let allowed = rules.enabled
            && self.count < rules.max_retries
            && wait <= rules.max_wait_ms
            && total <= rules.budget_ms;
        if !allowed {
            return None;
        }
        self.count = self.count.saturating_add(1);
        self.waited_ms = total;
        // Timers round; a moment late is not too early.
        Some(Duration::from_millis(wait.saturating_add(1)))
    }
}
