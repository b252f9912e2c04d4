//! The actor that owns one machine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::*;
use shared_proto::clock::Millis;
use shared_proto::mirror::commit::{Commit, CommitError, Committed, Expected};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::{Mirror, Unreachable};
use tokio::sync::oneshot;

use super::machine::Machine;
use super::replica::{Holds, Rebased, Replica};
use crate::timer::{Backoff, jittered};

mod news;
#[cfg(test)]
mod tests;

pub(crate) use news::{Heard, Reading, StoreIsBack, Stored};

/// Reports waiting in an owner's mailbox; a reporter past it waits its turn.
const MAILBOX: usize = 256;
/// A store call that takes longer counts as failed.
const STORE_DEADLINE: Duration = Duration::from_millis(250);
/// Reporters waiting for a commit; past it the oldest is told that it can't be promised.
const MAX_WAITING: usize = 1024;
/// How long after a failed commit the next one is tried: longer each time, up
/// to the second value. The follower tells owners when the store is back.
const RETRY: Backoff = Backoff::between(Duration::from_secs(1), Duration::from_secs(8));
/// Where an owner's published state goes.
pub(crate) trait Publish<M>: Unpin + 'static {
    /// Called after every change, before anybody is told of it.
    fn publish(&mut self, state: &M, now: Millis);
}

/// What all owners of a node share.
#[derive(Clone)]
pub(crate) struct Shared {
    /// The shared state.
    pub(crate) mirror: Arc<dyn Mirror>,
    /// Counts commits by result.
    pub(crate) commits: CommitCounters,
    /// Rises with each reading of a snapshot.
    pub(crate) readings: Arc<AtomicU64>,
}

/// Counters of commits.
#[derive(Clone, Default)]
pub(crate) struct CommitCounters {
    pub(crate) accepted: prometheus_client::metrics::counter::Counter,
    pub(crate) conflicts: prometheus_client::metrics::counter::Counter,
    pub(crate) failed: prometheus_client::metrics::counter::Counter,
}

/// The sole writer of one machine's state on this node.
pub(crate) struct Owner<M: Machine, P: Publish<M>> {
    key: Key,
    rules: M::Rules,
    replica: Replica<M>,
    publish: P,
    shared: Shared,
    /// Who waits for their event to be in the mirror, oldest first.
    waiting: VecDeque<Waiting<M>>,
    timer: Option<SpawnHandle>,
    /// Commits that failed in a row, and the next try.
    failures: u32,
    retry: Option<SpawnHandle>,
    /// The reading of a snapshot that was the last to begin when the store
    /// last told this owner how its record is.
    heard_in: u64,
    /// Nobody has looked yet what the store holds.
    unread: bool,
}

struct Waiting<M: Machine> {
    ticket: u64,
    outcome: M::Outcome,
    reporter: oneshot::Sender<M::Outcome>,
}

impl<M: Machine, P: Publish<M>> Owner<M, P> {
    /// Starts the owner of `key` from what the mirror holds, which is
    /// published at once, or with a default state until that is known.
    pub(crate) fn start(
        key: Key,
        held: Option<(M, Expected)>,
        rules: M::Rules,
        mut publish: P,
        shared: Shared,
    ) -> Addr<Self> {
        let unread = held.is_none();
        let (state, stored) = held.unwrap_or_else(|| (M::default(), Expected::Absent));
        // The actor has its first turn only after requests may be served.
        publish.publish(&state, shared.mirror.now());
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            Self {
                key,
                rules,
                replica: Replica::new(state, stored),
                publish,
                shared,
                waiting: VecDeque::new(),
                timer: None,
                failures: 0,
                retry: None,
                heard_in: 0,
                unread,
            }
        })
    }

    fn published(&mut self, ctx: &mut Context<Self>) {
        let now = self.shared.mirror.now();
        self.publish.publish(self.replica.state(), now);
        if let Some(handle) = self.timer.take() {
            ctx.cancel_future(handle);
        }
        if let Some(at) = self.replica.state().wakes_at(now) {
            // Views judge time themselves; the timer only makes them prompt.
            let wait = Duration::from_millis(at.since(now).saturating_add(1));
            self.timer = Some(ctx.run_later(wait, |owner, ctx| {
                owner.timer = None;
                owner.published(ctx);
            }));
        }
    }

    fn commit(&mut self, ctx: &mut Context<Self>) {
        if self.retry.is_some() {
            // The store is away: events gather until the next try.
            return;
        }
        let Some((expected, state)) = self.replica.begin_commit() else {
            return;
        };
        let change = match Commit::put(self.key.clone(), expected, state) {
            Ok(change) => change,
            Err(error) => {
                tracing::error!(key = ?self.key, %error, "state can't be encoded");
                self.replica.failed(false);
                return;
            }
        };
        let mirror = Arc::clone(&self.shared.mirror);
        let committing = async move {
            match tokio::time::timeout(STORE_DEADLINE, mirror.commit(change)).await {
                Ok(result) => result,
                Err(_) => Err(CommitError::from(Unreachable("no answer in time".into()))),
            }
        };
        ctx.spawn(committing.into_actor(self).map(Self::commit_done));
    }

    fn commit_done(
        result: Result<Committed, CommitError>,
        owner: &mut Self,
        ctx: &mut Context<Self>,
    ) {
        let now = owner.shared.mirror.now();
        match result {
            Ok(committed) => {
                owner.shared.commits.accepted.inc();
                owner.heard();
                let up_to = owner.replica.committed(committed.revision, now);
                owner.settle(up_to);
            }
            Err(CommitError::Conflict { newest }) => {
                owner.shared.commits.conflicts.inc();
                owner.heard();
                let newest = owner.read(newest.map_or(Stored::Nothing(None), Stored::Record));
                let rebased = owner.replica.conflict(newest, now, &owner.rules);
                owner.rebased(rebased, ctx);
            }
            Err(error) => {
                owner.shared.commits.failed.inc();
                let away = matches!(error, CommitError::Unreachable(_));
                if away || owner.failures > 0 {
                    tracing::debug!(key = ?owner.key, %error, "commit failed; it is tried again");
                } else {
                    tracing::error!(key = ?owner.key, %error, "other nodes do not learn of a change");
                }
                owner.replica.failed(away);
                owner.retry_later(ctx);
            }
        }
        if let Some(news) = owner.replica.deferred() {
            let rebased = owner.replica.hear(news, now, &owner.rules);
            owner.rebased(rebased, ctx);
        }
        owner.commit(ctx);
    }

    fn retry_later(&mut self, ctx: &mut Context<Self>) {
        let wait = jittered(RETRY.after(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.retry_after(wait, ctx);
    }

    fn retry_after(&mut self, wait: Duration, ctx: &mut Context<Self>) {
        self.retry = Some(ctx.run_later(wait, |owner, ctx| {
            owner.retry = None;
            owner.commit(ctx);
        }));
    }

    /// The store itself told how the record is.
    fn heard(&mut self) {
        self.failures = 0;
        self.heard_in = self.shared.readings.load(Ordering::SeqCst);
    }

    /// Tells everybody whose event is in the mirror.
    fn settle(&mut self, up_to: u64) {
        while self.waiting.front().is_some_and(|w| w.ticket <= up_to) {
            if let Some(Waiting {
                outcome, reporter, ..
            }) = self.waiting.pop_front()
            {
                // A reporter that went away needs no answer.
                reporter.send(outcome).ok();
            }
        }
    }

    /// After the replica took a newer record.
    fn rebased(&mut self, rebased: Option<Rebased<M>>, ctx: &mut Context<Self>) {
        let Some(Rebased {
            stored_up_to,
            again,
        }) = rebased
        else {
            return;
        };
        self.settle(stored_up_to);
        let mut again = again.into_iter().peekable();
        for mut waiting in std::mem::take(&mut self.waiting) {
            while again
                .next_if(|event| event.ticket < waiting.ticket)
                .is_some()
            {}
            // One that is no longer known is dropped: nothing is promised.
            let Some(event) = again.next_if(|event| event.ticket == waiting.ticket) else {
                continue;
            };
            if event.pending {
                waiting.outcome = event.outcome;
                self.waiting.push_back(waiting);
            } else {
                // The mirror has all there is to know of it.
                waiting.reporter.send(event.outcome).ok();
            }
        }
        if std::mem::take(&mut self.unread) {
            self.found();
        }
        self.published(ctx);
    }

    /// The state that the store held before this owner began.
    fn found(&mut self) {
        if let Some(event) = self.replica.state().on_found(&self.rules) {
            let now = self.shared.mirror.now();
            self.replica.apply(&event, now, &self.rules);
        }
    }

    fn read(&self, stored: Stored) -> Holds<M> {
        let record = match stored {
            Stored::Record(record) => record,
            Stored::Unreadable(expected) => return Holds::Unreadable(expected),
            Stored::Nothing(deleted) => return Holds::Nothing(deleted),
        };
        match record.decode::<M>() {
            Ok(state) => Holds::State(state, record.revision),
            Err(error) => {
                tracing::warn!(key = ?self.key, %error, "a newer record can't be read; the state stays as it is known here");
                Holds::Unreadable(Expected::Revision(record.revision))
            }
        }
    }
}

impl<M: Machine, P: Publish<M>> Actor for Owner<M, P> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        if !self.unread {
            self.found();
        }
        self.published(ctx);
        self.commit(ctx);
    }
}

/// Reports an event.
#[derive(Message)]
#[rtype(result = "Reported<M>")]
pub(crate) struct Report<M: Machine>(pub(crate) M::Event);

/// What a reporter gets back, after the view is published.
#[derive(MessageResponse)]
pub(crate) struct Reported<M: Machine> {
    /// What the machine said.
    pub(crate) outcome: M::Outcome,
    /// Resolves when the change is in the mirror, with what the machine says
    /// on top of what the mirror held. Absent when nothing changed or the
    /// store is known to be away.
    pub(crate) durable: Option<oneshot::Receiver<M::Outcome>>,
}

impl<M: Machine, P: Publish<M>> Handler<Report<M>> for Owner<M, P> {
    type Result = Reported<M>;

    fn handle(&mut self, Report(event): Report<M>, ctx: &mut Context<Self>) -> Reported<M> {
        let now = self.shared.mirror.now();
        let (ticket, outcome) = self.replica.apply(&event, now, &self.rules);
        let Some(ticket) = ticket else {
            return Reported {
                outcome,
                durable: None,
            };
        };
        self.published(ctx);
        let durable = self.retry.is_none().then(|| {
            let (reporter, receiver) = oneshot::channel();
            if self.waiting.len() >= MAX_WAITING {
                // Dropping the sender tells the reporter that nothing was promised.
                self.waiting.pop_front();
            }
            self.waiting.push_back(Waiting {
                ticket,
                outcome: outcome.clone(),
                reporter,
            });
            receiver
        });
        self.commit(ctx);
        Reported { outcome, durable }
    }
}

/// Tells `owner` and waits until its view shows it. Once this was polled, the
/// event is on its way whatever becomes of the caller.
pub(crate) async fn report<M: Machine, P: Publish<M>>(
    owner: &Addr<Owner<M, P>>,
    event: M::Event,
) -> Option<Reported<M>> {
    let (reply, answer) = oneshot::channel();
    match owner.try_send(Tell { event, reply }) {
        Ok(()) => answer.await.ok(),
        // It waits its turn, and is lost if the caller does not wait.
        Err(SendError::Full(Tell { event, .. })) => owner.send(Report(event)).await.ok(),
        Err(SendError::Closed(_)) => None,
    }
}

/// A report that is handled although nobody waits for the answer any more,
/// which [`Report`] is not.
#[derive(Message)]
#[rtype(result = "()")]
struct Tell<M: Machine> {
    event: M::Event,
    reply: oneshot::Sender<Reported<M>>,
}

impl<M: Machine, P: Publish<M>> Handler<Tell<M>> for Owner<M, P> {
    type Result = ();

    fn handle(&mut self, Tell { event, reply }: Tell<M>, ctx: &mut Context<Self>) {
        let reported = self.handle(Report(event), ctx);
        reply.send(reported).ok();
    }
}

/// New numbers after a reload.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct NewRules<M: Machine>(pub(crate) M::Rules);

impl<M: Machine, P: Publish<M>> Handler<NewRules<M>> for Owner<M, P> {
    type Result = ();

    fn handle(&mut self, NewRules(rules): NewRules<M>, _: &mut Context<Self>) {
        self.rules = rules;
    }
}
