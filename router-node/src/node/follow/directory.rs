//! The owners by what they own: whom a change concerns.

use std::cell::RefCell;
use std::rc::Rc;

use actix::{Actor, Addr, Context, Handler, Recipient};
use shared_proto::mirror::key::Key;

use crate::actor::owner::{Heard, StoreIsBack};
use crate::routing::Cells;

/// The owners by the keys of their records.
#[derive(Clone)]
pub(in crate::node) struct Directory(pub(in crate::node) Rc<RefCell<Cells>>);

impl Directory {
    /// Tells the owner of `key`, if it is here, and waits until its view shows it.
    pub(in crate::node) async fn tell(&self, key: &Key, heard: Heard) {
        let mailbox = Mailbox::of(&self.0.borrow(), key);
        if let Some(mailbox) = mailbox {
            // An owner ends with the node.
            mailbox.heard.send(heard).await.ok();
        }
    }

    pub(super) fn store_is_back(&self) {
        let cells = self.0.borrow();
        for mailbox in cells
            .keys()
            .iter()
            .filter_map(|key| Mailbox::of(&cells, key))
        {
            mailbox.back.do_send(StoreIsBack);
        }
    }
}

/// What an owner of whatever kind is told.
struct Mailbox {
    heard: Recipient<Heard>,
    back: Recipient<StoreIsBack>,
}

impl Mailbox {
    /// The owner of `key`, if it is here.
    fn of(cells: &Cells, key: &Key) -> Option<Self> {
        match key {
            Key::Health(id) => cells.connection_owner(id).map(Self::from),
            Key::Lockout(id) => cells.lockout_owner(id).map(Self::from),
            Key::Lane(id) => cells.lane_owner(id).map(Self::from),
            Key::Breaker(id) => cells.breaker_owner(id).map(Self::from),
            Key::Gate(id) => cells.gate_owner(id).map(Self::from),
            Key::Tools(id) => cells.tools_owner(id).map(Self::from),
            Key::Token(id) => cells.refresher(id).map(Self::from),
            Key::Lease(_)
            | Key::Bound(_)
            | Key::Pin(_)
            | Key::Refresh(_)
            | Key::Egress(_)
            | Key::Leader
            | Key::Settings
            | Key::Other(_) => None,
        }
    }
}

impl<A> From<Addr<A>> for Mailbox
where
    A: Actor<Context = Context<A>> + Handler<Heard> + Handler<StoreIsBack>,
{
    fn from(owner: Addr<A>) -> Self {
        Self {
            heard: owner.clone().recipient(),
            back: owner.recipient(),
        }
    }
}
