//! The owners by what they own: whom a change concerns.

use std::cell::RefCell;
use std::rc::Rc;

use shared_proto::mirror::key::Key;

use crate::actor::owner::{Heard, StoreIsBack};
use crate::routing::Cells;

/// The owners by the keys of their records.
#[derive(Clone)]
pub(in crate::node) struct Directory(pub(in crate::node) Rc<RefCell<Cells>>);

impl Directory {
    /// Tells the owner of `key`, if it is here, and waits until its view shows it.
    pub(in crate::node) async fn tell(&self, key: &Key, heard: Heard) {
        match key {
            Key::Health(id) => {
                let owner = self.0.borrow().connection_owner(id);
                if let Some(owner) = owner {
                    // An owner ends with the node.
                    owner.send(heard).await.ok();
                }
            }
            Key::Lockout(id) => {
                let owner = self.0.borrow().lockout_owner(id);
                if let Some(owner) = owner {
                    owner.send(heard).await.ok();
                }
            }
            Key::Tools(id) => {
                let owner = self.0.borrow().tools_owner(id);
                if let Some(owner) = owner {
                    owner.send(heard).await.ok();
                }
            }
            Key::Lane(id) => {
                let owner = self.0.borrow().lane_owner(id);
                if let Some(owner) = owner {
                    owner.send(heard).await.ok();
                }
            }
            Key::Breaker(id) => {
                let owner = self.0.borrow().breaker_owner(id);
                if let Some(owner) = owner {
                    owner.send(heard).await.ok();
                }
            }
            Key::Gate(id) => {
                let owner = self.0.borrow().gate_owner(id);
                if let Some(owner) = owner {
                    owner.send(heard).await.ok();
                }
            }
            Key::Token(id) => {
                let refresher = self.0.borrow().refresher(id);
                if let Some(refresher) = refresher {
                    refresher.send(heard).await.ok();
                }
            }
            Key::Lease(_)
            | Key::Bound(_)
            | Key::Pin(_)
            | Key::Refresh(_)
            | Key::Egress(_)
            | Key::Leader
            | Key::Settings
            | Key::Other(_) => {}
        }
    }

    pub(super) fn store_is_back(&self) {
        let cells = self.0.borrow();
        for key in cells.keys() {
            match key {
                Key::Health(id) => {
                    if let Some(owner) = cells.connection_owner(&id) {
                        owner.do_send(StoreIsBack);
                    }
                }
                Key::Lockout(id) => {
                    if let Some(owner) = cells.lockout_owner(&id) {
                        owner.do_send(StoreIsBack);
                    }
                }
                Key::Tools(id) => {
                    if let Some(owner) = cells.tools_owner(&id) {
                        owner.do_send(StoreIsBack);
                    }
                }
                Key::Lane(id) => {
                    if let Some(owner) = cells.lane_owner(&id) {
                        owner.do_send(StoreIsBack);
                    }
                }
                Key::Breaker(id) => {
                    if let Some(owner) = cells.breaker_owner(&id) {
                        owner.do_send(StoreIsBack);
                    }
                }
                Key::Gate(id) => {
                    if let Some(owner) = cells.gate_owner(&id) {
                        owner.do_send(StoreIsBack);
                    }
                }
                Key::Token(id) => {
                    if let Some(refresher) = cells.refresher(&id) {
                        refresher.do_send(StoreIsBack);
                    }
                }
                Key::Lease(_)
                | Key::Bound(_)
                | Key::Pin(_)
                | Key::Refresh(_)
                | Key::Egress(_)
                | Key::Leader
                | Key::Settings
                | Key::Other(_) => {}
            }
        }
    }
}
