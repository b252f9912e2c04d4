//! Who has gone without a word.
//!
//! A node that ends well gives its place back; one that is killed or cut off
//! lets it lapse. What it held (slots, requests under leases, places in queues)
//! lapses by itself within its own time, and no sooner: a node that is only cut
//! off from the store may still use it.

use std::collections::BTreeMap;

use shared_proto::mirror::Unreachable;
use shared_proto::mirror::hold::{Held, HoldError, Holder, Pool};
use shared_proto::roster::{Member, Role};
use tokio::time::timeout;

use crate::pen::{Pen, STORE_DEADLINE, Stop, late};

/// Who was there when last read.
#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: BTreeMap<Holder, Held>,
}

impl Watch {
    /// Reads who lives, and tells of those whose time ran out.
    pub(super) async fn look(&mut self, pen: &mut Pen<'_>) -> Result<(), Stop> {
        let held = timeout(STORE_DEADLINE, pen.mirror.holders(&Pool::Nodes)).await;
        let held = held.unwrap_or_else(|_| Err(late().into())).map_err(away)?;
        let now = pen.now()?;
        let held: BTreeMap<Holder, Held> = held
            .into_iter()
            .map(|held| (held.holder.clone(), held))
            .collect();
        let gone = self
            .seen
            .values()
            .filter(|was| !held.contains_key(&was.holder));
        for was in gone.filter(|was| was.until <= now) {
            let member = Member::from(was.clone());
            let is_router = member.note.role == Role::Router;
            tracing::warn!(
                node = member.id,
                router = is_router,
                "a node has gone without a word"
            );
            pen.metrics.lapsed.inc();
        }
        self.seen = held;
        Ok(())
    }
}

fn away(error: HoldError) -> Unreachable {
    match error {
        HoldError::Unreachable(why) => why,
        HoldError::Refused(why) => Unreachable(why.into()),
    }
}
