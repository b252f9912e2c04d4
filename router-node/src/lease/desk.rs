//! The actor that owns this node's table of all leases, and knows the keepers.
//!
//! It hears every change from the follower and of this node's own commits at
//! once, publishes the table, and passes on to a keeper what its lease became.

use std::collections::HashMap;
use std::sync::Arc;

use actix::prelude::*;
use arc_swap::ArcSwap;
use shared_proto::clock::Millis;
use shared_proto::lease::{Flight, LeaseRules, LeaseTable, OwnerHash};
use shared_proto::mirror::Mirror;
use shared_proto::mirror::hold::Holder;
use shared_proto::mirror::key::{Key, Keyspace, Spelled};
use shared_proto::mirror::log::{LogEntry, Logged};
use shared_proto::mirror::record::Record;
use tokio::sync::watch;

use super::keeper::{Enter, Keeper, Learn, Stop};
use crate::observe::LeaseMetrics;

/// Leases served at once. One more is told that leases can't be confirmed.
const MAX_KEEPERS: usize = 10_000;

/// The sole writer of the table on this node.
pub(crate) struct Desk {
    mirror: Arc<dyn Mirror>,
    keys: Keyspace,
    table: LeaseTable,
    published: Arc<ArcSwap<LeaseTable>>,
    rules: LeaseRules,
    keepers: HashMap<OwnerHash, Kept>,
    metrics: LeaseMetrics,
}

struct Kept {
    keeper: Addr<Keeper>,
    /// Requests sent its way so far.
    entered: u64,
}

impl Desk {
    pub(super) fn new(
        mirror: Arc<dyn Mirror>,
        keys: Keyspace,
        published: Arc<ArcSwap<LeaseTable>>,
        rules: LeaseRules,
        metrics: LeaseMetrics,
    ) -> Self {
        Self {
            mirror,
            keys,
            table: LeaseTable::clone(&published.load()),
            published,
            rules,
            keepers: HashMap::new(),
            metrics,
        }
    }

    fn publish(&self) {
        self.published.store(Arc::new(self.table.clone()));
    }

    fn tell(&self, key: &Key) {
        let Key::Lease(hash) = key else { return };
        let owner = OwnerHash::parse(hash);
        let kept = owner.and_then(|owner| self.keepers.get_key_value(&owner));
        if let Some((owner, kept)) = kept {
            self.teach(owner, kept, None);
        }
    }

    fn teach(&self, owner: &OwnerHash, kept: &Kept, asked_at: Option<Millis>) {
        kept.keeper.do_send(Learn {
            lease: self.table.lease(owner).clone(),
            asked_at,
            rules: self.rules,
        });
    }
}

impl Actor for Desk {
    type Context = Context<Self>;
}

/// Changes that this node made itself.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Own(pub(crate) Vec<Record>);

impl Handler<Own> for Desk {
    type Result = ();

    fn handle(&mut self, Own(records): Own, _: &mut Context<Self>) {
        for record in &records {
            self.table.put(record);
        }
        self.publish();
        for record in &records {
            self.tell(&record.key);
        }
    }
}

/// An entry of the log.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Heard(pub(crate) LogEntry);

impl Handler<Heard> for Desk {
    type Result = ();

    fn handle(&mut self, Heard(entry): Heard, _: &mut Context<Self>) {
        if !self.table.apply(&entry, &self.keys) {
            return;
        }
        self.publish();
        match &entry.change {
            Logged::Put(record) => self.tell(&record.key),
            Logged::Deleted { key, .. } => self.tell(key),
            Logged::Unreadable(unreadable) => {
                if let Spelled::Key(key) = self.keys.parse(&unreadable.key) {
                    self.tell(&key);
                }
            }
        }
    }
}

/// All that the store holds, by a snapshot that was asked for then.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct HeardAll {
    pub(crate) table: LeaseTable,
    pub(crate) asked_at: Millis,
}

impl Handler<HeardAll> for Desk {
    type Result = ();

    fn handle(&mut self, heard: HeardAll, _: &mut Context<Self>) {
        self.table = heard.table;
        self.publish();
        for (owner, kept) in &self.keepers {
            self.teach(owner, kept, Some(heard.asked_at));
        }
    }
}

/// The settings of a changed configuration.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct NewRules(pub(crate) LeaseRules);

impl Handler<NewRules> for Desk {
    type Result = ();

    fn handle(&mut self, NewRules(rules): NewRules, _: &mut Context<Self>) {
        self.rules = rules;
        for (owner, kept) in &self.keepers {
            self.teach(owner, kept, None);
        }
    }
}

/// A request asks the fence and comes into flight.
#[derive(Message)]
#[rtype(result = "Option<Entered>")]
pub(crate) struct TakeOff {
    pub(crate) flight: Flight,
    pub(crate) holder: Holder,
}

/// Who keeps it, and how it hears that its lease is lost.
#[derive(MessageResponse)]
pub(crate) struct Entered {
    pub(super) keeper: Addr<Keeper>,
    pub(super) lost: watch::Receiver<bool>,
}

impl Handler<TakeOff> for Desk {
    type Result = Option<Entered>;

    fn handle(&mut self, take_off: TakeOff, ctx: &mut Context<Self>) -> Self::Result {
        let TakeOff { flight, holder } = take_off;
        let owner = flight.presented.owner.clone();
        let room = self.keepers.len() < MAX_KEEPERS;
        if !room && !self.keepers.contains_key(&owner) {
            return None;
        }
        let kept = self.keepers.entry(owner).or_insert_with_key(|owner| {
            let keeper = Keeper::new(
                owner.clone(),
                Arc::clone(&self.mirror),
                ctx.address(),
                (self.table.lease(owner).clone(), self.rules),
                self.metrics.clone(),
            );
            self.metrics.keepers.inc();
            Kept {
                keeper: keeper.start(),
                entered: 0,
            }
        });
        kept.entered = kept.entered.saturating_add(1);
        let (sender, lost) = watch::channel(false);
        kept.keeper.do_send(Enter {
            flight,
            holder,
            lost: sender,
        });
        Some(Entered {
            keeper: kept.keeper.clone(),
            lost,
        })
    }
}

/// A keeper whose lease is over and that has nothing in flight, after so many
/// requests.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Idle {
    pub(super) owner: OwnerHash,
    pub(super) entered: u64,
}

impl Handler<Idle> for Desk {
    type Result = ();

    fn handle(&mut self, idle: Idle, _: &mut Context<Self>) {
        // Another request may be on its way to it.
        let over = |kept: &Kept| kept.entered == idle.entered;
        if self.keepers.get(&idle.owner).is_some_and(over)
            && let Some(kept) = self.keepers.remove(&idle.owner)
        {
            self.metrics.keepers.dec();
            kept.keeper.do_send(Stop);
        }
    }
}
