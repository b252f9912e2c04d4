//! Nodes that freeze, die or are cut off; a store that is replaced.

use super::{Cluster, Event, Fault, LAG_MS, NODES, holder};
use crate::clock::Millis;
use crate::lease::LeaseTable;

impl Cluster {
    pub(super) fn fault(&mut self) {
        let ms = self.dice.within(200, 4_000);
        self.plan(ms, Event::Fault);
        let node = self.dice.index(NODES);
        let ms = self.dice.within(100, 9_000);
        match self.dice.within(0, 3) {
            0 if !self.nodes[node].frozen => {
                self.nodes[node].frozen = true;
                self.plan(ms, Event::Heal(node, Fault::Frozen));
            }
            1 if !self.nodes[node].cut_off => {
                self.nodes[node].cut_off = true;
                self.plan(ms, Event::Heal(node, Fault::Cut));
            }
            2 => self.crash(node),
            3 => self.failover(),
            _ => {}
        }
    }

    pub(super) fn crash(&mut self, node: usize) {
        let lag_ms = self.dice.within(0, LAG_MS);
        let node = &mut self.nodes[node];
        let flights = std::mem::take(&mut node.flights);
        self.underway
            .retain(|underway| !flights.contains_key(&underway.name));
        node.lag_ms = lag_ms;
        node.life += 1;
        node.ops.clear();
        node.waiting.clear();
        node.table = LeaseTable::new();
        node.read = (u64::MAX, 0);
        node.confirmed_at = Millis::default();
    }

    pub(super) fn failover(&mut self) {
        if self.down {
            return;
        }
        self.down = true;
        let ms = self.dice.within(LAG_MS + 1, 3_000);
        self.plan(ms, Event::Promote);
    }

    pub(super) fn promote(&mut self) {
        self.met.failovers += 1;
        self.down = false;
        self.life += 1;
        let now = self.store.now;
        self.store = self.replica.0.clone();
        self.store.now = now;
        self.log.truncate(self.replica.1);
        for underway in &mut self.underway {
            let is_held = self
                .store
                .is_held(&underway.connection, &holder(underway.name));
            underway.is_lost |= !is_held;
        }
    }

    pub(super) fn heal(&mut self, node: usize, fault: Fault) {
        match fault {
            Fault::Cut => self.nodes[node].cut_off = false,
            Fault::Frozen => {
                self.nodes[node].frozen = false;
                // The first thing it does is to look at its clock.
                self.watch(node);
                for event in std::mem::take(&mut self.nodes[node].waiting) {
                    self.plan(0, event);
                }
            }
        }
    }
}
