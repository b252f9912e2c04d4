//! What is in flight: it goes out, is kept, is cut, comes down.

use std::collections::BTreeMap;

use super::{Cluster, Event, KEEP_EVERY_MS, LAG_MS, Node, holder};
use crate::clock::Millis;
use crate::id::ConnectionId;
use crate::lease::tests::HOLD_MS;
use crate::lease::tests::audit::{Underway, sent};
use crate::lease::{Flight, Verdict, watch};

impl Cluster {
    pub(super) fn goes_out(&mut self, node: usize, name: usize, flight: Flight) {
        // The answer may have been long on its way.
        if self.judge(node, &flight) == Verdict::Cut {
            self.give_back(node, name, &flight.connection);
            return;
        }
        let underway = Underway {
            name,
            owner: flight.presented.owner.clone(),
            generation: flight.presented.generation,
            connection: flight.connection.clone(),
            is_lost: !self.store.is_held(&flight.connection, &holder(name)),
        };
        self.alone(&underway);
        self.underway.push(underway);
        self.met.sent += 1;
        self.nodes[node].flights.insert(name, flight);
        self.watch(node);
        self.plan(KEEP_EVERY_MS, Event::Keep { node, name });
        let long = self.dice.percent(20);
        let ms = self.dice.within(10, if long { 20_000 } else { 1_500 });
        self.plan(ms, Event::Done { node, name });
    }

    /// 5: nothing goes out on a connection on which another owner's request
    /// is, except beside a frozen node's, which does not count for ever.
    pub(super) fn alone(&self, underway: &Underway) {
        for other in &self.underway {
            let beside = other.connection == underway.connection
                && other.owner != underway.owner
                && !other.is_lost
                && !underway.is_lost;
            if beside {
                let node = self
                    .nodes
                    .iter()
                    .find(|n| n.flights.contains_key(&other.name));
                let frozen = node.is_none_or(|node| node.frozen);
                assert!(frozen, "5: {underway:?} goes out beside {other:?}");
            }
        }
    }

    pub(super) fn judge(&self, node: usize, flight: &Flight) -> Verdict {
        let Node {
            table,
            confirmed_at,
            ..
        } = &self.nodes[node];
        let known = table.lease(&flight.presented.owner);
        watch(known, flight, *confirmed_at, &self.rules, self.now(node))
    }

    /// Cuts what is to be cut, and plans the next look at the rest. A frozen
    /// node looks when it goes on.
    pub(super) fn watch(&mut self, node: usize) {
        if self.nodes[node].frozen {
            return;
        }
        let mut next: Option<Millis> = None;
        for (name, flight) in self.nodes[node].flights.clone() {
            match self.judge(node, &flight) {
                Verdict::GoesOn { until } => {
                    next = Some(next.map_or(until, |next| next.min(until)));
                }
                Verdict::Cut => {
                    self.met.cut += 1;
                    self.land(node, name, &flight.connection);
                }
            }
        }
        self.nodes[node].watches += 1;
        if let Some(next) = next {
            let number = self.nodes[node].watches;
            let ms = next.since(self.now(node));
            self.plan(ms, Event::Watch(node, number));
        }
    }

    pub(super) fn done(&mut self, node: usize, name: usize) {
        if self.nodes[node].frozen {
            self.nodes[node].waiting.push(Event::Done { node, name });
        } else if let Some(flight) = self.nodes[node].flights.get(&name).cloned() {
            self.land(node, name, &flight.connection);
        }
    }

    pub(super) fn land(&mut self, node: usize, name: usize, connection: &ConnectionId) {
        self.nodes[node].flights.remove(&name);
        self.underway.retain(|underway| underway.name != name);
        self.give_back(node, name, connection);
    }

    pub(super) fn give_back(&mut self, node: usize, name: usize, connection: &ConnectionId) {
        // One message, which may be lost like any other.
        if self.reaches(node) && !self.dice.percent(3) {
            self.store.give_back(connection, &holder(name));
        }
    }

    pub(super) fn keep(&mut self, node: usize, name: usize) {
        let Some(flight) = self.nodes[node].flights.get(&name).cloned() else {
            return;
        };
        if self.reaches(node) && !self.store.keep(&flight.connection, &holder(name), HOLD_MS) {
            self.met.cut += 1;
            self.land(node, name, &flight.connection);
        }
        self.plan(KEEP_EVERY_MS, Event::Keep { node, name });
    }

    /// 6: what is in flight on a node that runs is cut at the latest a grace
    /// after its lease is over.
    pub(super) fn nothing_outlives_its_lease(&mut self) {
        let store = &self.store;
        let mut over = BTreeMap::new();
        for underway in &self.underway {
            if sent(store, underway).is_err() {
                let since = self.over_since.get(&underway.name).copied();
                over.insert(underway.name, since.unwrap_or(store.now));
            }
        }
        self.over_since = over;
        for node in self.nodes.iter().filter(|node| !node.frozen) {
            for name in node.flights.keys() {
                let Some(since) = self.over_since.get(name) else {
                    continue;
                };
                let late_ms = self.store.now.since(*since);
                let bound_ms = self.rules.handover_grace_ms() + LAG_MS;
                assert!(late_ms <= bound_ms, "6: {name} is over for {late_ms} ms");
            }
        }
    }
}
