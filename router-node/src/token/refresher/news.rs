//! What a refresher is told: by requests, by the store, by the configuration.

use std::sync::Arc;

use actix::prelude::*;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::record::Revision;
use shared_proto::token::{Cause, Line, Read, StoredTokens};
use tokio::sync::oneshot;

use super::{MAX_WAITING, Refresher, Verdict, Waiting};
use crate::actor::owner::{Heard, StoreIsBack, Stored};
use crate::token::Setup;

impl Refresher {
    /// Takes in what the store holds. Whether it holds less than is known here.
    pub(super) fn take_in(&mut self, stored: Stored, from_snapshot: bool) -> bool {
        let record = match stored {
            Stored::Record(record) => record,
            // Corrupt: a refresh replaces it.
            Stored::Unreadable(Expected::Corrupt) | Stored::Nothing(_) => {
                self.locked = None;
                self.stored = None;
                return self.line.as_ref().is_some_and(|l| l.status.generation > 0);
            }
            Stored::Unreadable(Expected::Absent | Expected::Revision(_)) => {
                self.lock("a newer version of this program wrote them");
                return false;
            }
        };
        let Ok(read) = Read::<StoredTokens>::of(&record) else {
            self.lock("a newer version of this program wrote them");
            return false;
        };
        let tokens = read.state.unwrap_or_default();
        self.seen(record.revision, tokens, from_snapshot)
    }

    /// The same for a record that was read.
    pub(super) fn seen(
        &mut self,
        revision: Revision,
        tokens: StoredTokens,
        from_snapshot: bool,
    ) -> bool {
        let older = self.stored.as_ref().is_some_and(|(r, _)| *r >= revision);
        if older && !from_snapshot {
            return false;
        }
        let line = self.setup.as_ref().and_then(|s| tokens.line(s.mark));
        let generation = |line: Option<&Line>| line.map_or(0, |line| line.status.generation);
        let less = generation(line) < generation(self.line.as_ref());
        if !less {
            self.line = line.cloned();
        }
        self.locked = None;
        self.stored = Some((revision, tokens));
        less
    }
}

/// A request needs other tokens than those in hand.
#[derive(Message)]
#[rtype(result = "oneshot::Receiver<Verdict>")]
pub(crate) struct Ask {
    pub(crate) cause: Cause,
    /// The generation in hand.
    pub(crate) generation: u64,
}

impl Handler<Ask> for Refresher {
    type Result = MessageResult<Ask>;

    fn handle(&mut self, ask: Ask, ctx: &mut Context<Self>) -> Self::Result {
        let (reply, verdict) = oneshot::channel();
        let hopeless = self.setup.is_none() || self.locked.is_some() || self.away > 0;
        if hopeless || self.waiting.len() >= MAX_WAITING {
            drop(reply.send(Verdict::None));
        } else {
            self.waiting.push(Waiting {
                cause: ask.cause,
                generation: ask.generation,
                reply,
            });
            self.tick(ctx);
        }
        MessageResult(verdict)
    }
}

impl Handler<Heard> for Refresher {
    type Result = ();

    fn handle(&mut self, Heard { stored, reading }: Heard, ctx: &mut Context<Self>) {
        let lost = self.take_in(stored, reading.is_some());
        self.publish();
        self.busy_until = None;
        if lost {
            // Perhaps only this news is old; the refresh looks itself.
            let generation = self.status().generation;
            self.work(Cause::Ahead, generation, ctx);
        }
        self.tick(ctx);
    }
}

impl Handler<StoreIsBack> for Refresher {
    type Result = ();

    fn handle(&mut self, _: StoreIsBack, ctx: &mut Context<Self>) {
        self.away = 0;
        self.tick(ctx);
    }
}

/// How the account is configured now; `None` when it has no tokens to refresh.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct NewSetup(pub(crate) Option<Arc<Setup>>);

impl Handler<NewSetup> for Refresher {
    type Result = ();

    fn handle(&mut self, NewSetup(setup): NewSetup, ctx: &mut Context<Self>) {
        let mark = |setup: &Option<Arc<Setup>>| setup.as_ref().map(|setup| setup.mark);
        if mark(&setup) != mark(&self.setup) {
            self.line = setup.as_ref().and_then(|setup| {
                let (_, tokens) = self.stored.as_ref()?;
                tokens.line(setup.mark).cloned()
            });
            self.refused_here = false;
            self.busy_until = None;
            self.locked = None;
        }
        self.setup = setup;
        self.publish();
        self.tick(ctx);
    }
}
