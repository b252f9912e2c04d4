//! What owners are told of the mirror.

use std::time::Duration;

use actix::prelude::*;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::record::{Record, Revision};

use super::{Owner, Publish};
use crate::actor::machine::Machine;
use crate::actor::replica::{News, Source};
use crate::timer::jittered;

/// How long after the store's return, so that owners do not come all at once.
const BACK: Duration = Duration::from_millis(250);

/// What the mirror holds of a thing, as it is told to the thing's owner.
#[derive(Clone, Debug)]
pub(crate) enum Stored {
    /// This record.
    Record(Record),
    /// Something of no use, and how a commit on top of it has to expect it.
    Unreadable(Expected),
    /// Nothing; the revision of its deletion where that is known.
    Nothing(Option<Revision>),
}

/// Tells an owner what the mirror holds. Answered when its view shows it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Heard {
    pub(crate) stored: Stored,
    /// Set when it is from a snapshot instead of the log.
    pub(crate) reading: Option<Reading>,
}

/// One reading of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Its number among [`Shared::readings`].
    pub(crate) number: u64,
    /// The store is known to have gone back.
    pub(crate) rewound: bool,
}

impl<M: Machine, P: Publish<M>> Handler<Heard> for Owner<M, P> {
    type Result = ();

    fn handle(&mut self, Heard { stored, reading }: Heard, ctx: &mut Context<Self>) {
        let source = reading.map_or(Source::Log, |reading| Source::Snapshot {
            rewound: reading.rewound,
            fresh: self.heard_in >= reading.number,
        });
        let holds = self.read(stored);
        let now = self.shared.mirror.now();
        let rebased = self.replica.hear(News { holds, source }, now, &self.rules);
        self.rebased(rebased, ctx);
        // Where the store holds nothing, there is nothing to find either.
        self.unread &= reading.is_none();
        self.commit(ctx);
    }
}

/// Tells an owner that the store is back: what waits is tried soon.
#[derive(Clone, Copy, Message)]
#[rtype(result = "()")]
pub(crate) struct StoreIsBack;

impl<M: Machine, P: Publish<M>> Handler<StoreIsBack> for Owner<M, P> {
    type Result = ();

    fn handle(&mut self, _: StoreIsBack, ctx: &mut Context<Self>) {
        if let Some(retry) = self.retry.take() {
            ctx.cancel_future(retry);
            self.failures = 0;
            self.retry_after(jittered(BACK), ctx);
        }
    }
}
