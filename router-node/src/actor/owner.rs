//! The actor that owns one machine.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use shared_proto::clock::Millis;
use shared_proto::mirror::commit::{Commit, CommitError, Committed, Expected};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::record::Record;
use shared_proto::mirror::{Mirror, Unreachable};
use tokio::sync::oneshot;

use super::machine::Machine;
use super::replica::Replica;

/// Reports waiting in an owner's mailbox; a reporter past it waits its turn.
const MAILBOX: usize = 256;
/// A store call that takes longer counts as failed.
const STORE_DEADLINE: Duration = Duration::from_millis(250);
/// Reporters waiting for a commit; past it the oldest is told that it can't be promised.
const MAX_WAITING: usize = 1024;
/// How long after a failed commit the next one is tried.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
    /// Reporters of events that the commit under way carries.
    carried: VecDeque<oneshot::Sender<()>>,
    /// Reporters of events that wait for the next one.
    waiting: VecDeque<oneshot::Sender<()>>,
    timer: Option<SpawnHandle>,
}

impl<M: Machine, P: Publish<M>> Owner<M, P> {
    /// Starts the owner of `key` from what the mirror holds.
    pub(crate) fn start(
        key: Key,
        held: (M, Expected),
        rules: M::Rules,
        publish: P,
        shared: Shared,
    ) -> Addr<Self> {
        Self::create(|ctx| {
            ctx.set_mailbox_capacity(MAILBOX);
            Self {
                key,
                rules,
                replica: Replica::new(held.0, held.1),
                publish,
                shared,
                carried: VecDeque::new(),
                waiting: VecDeque::new(),
                timer: None,
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
        let Some((expected, state)) = self.replica.begin_commit() else {
            return;
        };
        let change = match Commit::put(self.key.clone(), expected, state) {
            Ok(change) => change,
            Err(error) => {
                tracing::error!(key = ?self.key, %error, "state can't be encoded");
                self.replica.failed();
                return;
            }
        };
        self.carried.append(&mut self.waiting);
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
        match result {
            Ok(committed) => {
                owner.shared.commits.accepted.inc();
                owner.replica.committed(committed.revision);
                for reporter in owner.carried.drain(..) {
                    // A reporter that went away needs no answer.
                    reporter.send(()).ok();
                }
                owner.commit(ctx);
            }
            Err(CommitError::Conflict { newest }) => {
                owner.shared.commits.conflicts.inc();
                owner.rebase(newest.as_ref(), ctx);
                owner.requeue();
                owner.commit(ctx);
            }
            Err(error) => {
                owner.shared.commits.failed.inc();
                tracing::debug!(key = ?owner.key, %error, "commit failed; it is tried again");
                owner.replica.failed();
                owner.requeue();
                ctx.run_later(RETRY_AFTER, Self::commit);
            }
        }
    }

    fn rebase(&mut self, newest: Option<&Record>, ctx: &mut Context<Self>) {
        let (state, stored) = match newest {
            None => (M::default(), Expected::Absent),
            Some(record) => {
                let stored = Expected::Revision(record.revision);
                match record.decode::<M>() {
                    Ok(state) => (state, stored),
                    Err(error) => {
                        tracing::warn!(key = ?self.key, %error, "the newer record can't be read; the state starts anew");
                        (M::default(), stored)
                    }
                }
            }
        };
        self.replica.rebase(state, stored, &self.rules);
        self.published(ctx);
    }

    fn requeue(&mut self) {
        self.carried.append(&mut self.waiting);
        std::mem::swap(&mut self.carried, &mut self.waiting);
        while self.waiting.len() > MAX_WAITING {
            // Dropping the sender tells the reporter that nothing was promised.
            self.waiting.pop_front();
        }
    }
}

impl<M: Machine, P: Publish<M>> Actor for Owner<M, P> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.published(ctx);
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
    /// Resolves when the change is in the mirror; absent when nothing changed.
    pub(crate) durable: Option<oneshot::Receiver<()>>,
}

impl<M: Machine, P: Publish<M>> Handler<Report<M>> for Owner<M, P> {
    type Result = Reported<M>;

    fn handle(&mut self, Report(event): Report<M>, ctx: &mut Context<Self>) -> Reported<M> {
        let now = self.shared.mirror.now();
        let (changed, outcome) = self.replica.apply(&event, now, &self.rules);
        let durable = changed.then(|| {
            self.published(ctx);
            let (sender, receiver) = oneshot::channel();
            self.waiting.push_back(sender);
            self.commit(ctx);
            receiver
        });
        Reported { outcome, durable }
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
