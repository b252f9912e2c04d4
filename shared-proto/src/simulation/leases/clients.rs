//! What clients ask of nodes, and what comes of it.

use super::{CONNECTIONS, Cluster, DEADLINE_MS, Event, NODES, Node, OWNERS};
use crate::clock::Millis;
use crate::lease::tests::driver::{Around, Ask, Ended, Op, Reply};
use crate::lease::tests::{candidates, owner};
use crate::lease::{Candidate, Flight, Presented};

impl Cluster {
    pub(super) fn some_candidates(&mut self) -> Vec<Candidate> {
        let names: Vec<_> = CONNECTIONS
            .into_iter()
            .filter(|_| self.dice.percent(60))
            .collect();
        candidates(&names)
    }

    pub(super) fn client(&mut self) {
        let ms = self.dice.within(1, 120);
        self.plan(ms, Event::Client);
        let (node, who) = (self.dice.index(NODES), self.dice.index(OWNERS.len()));
        if self.nodes[node].frozen {
            return;
        }
        let told = self.told.get(&who).copied();
        let ask = match (self.dice.within(0, 12), told) {
            (0..=2, _) | (_, None) => Ask::Acquire(self.some_candidates()),
            (3..=5, Some(generation)) => Ask::Renew(generation),
            (6, Some(generation)) => Ask::Release(generation),
            (7, Some(generation)) => Ask::Status(generation),
            (8, Some(generation)) if self.dice.percent(10) => Ask::Revoke(generation),
            (9, Some(_)) => Ask::Expire,
            (_, Some(generation)) => Ask::Dispatch(generation, self.some_candidates()),
        };
        self.calls += 1;
        let call = self.calls;
        let name = usize::try_from(call).unwrap();
        let mut op = Op::new(&owner(OWNERS[who]), ask, self.now(node)).named(name);
        if self.dice.percent(2) {
            op = op.with_key("K2");
        }
        self.nodes[node].ops.insert(call, op);
        self.plan(DEADLINE_MS, Event::Deadline { node, call });
        self.ask(node, call);
    }

    /// Sends what an operation wants of the store, or ends it.
    pub(super) fn ask(&mut self, node: usize, call: u64) {
        let asked_at = self.now(node);
        let rules = self.rules;
        let Node { table, ops, .. } = &mut self.nodes[node];
        let Some(op) = ops.get_mut(&call) else {
            return;
        };
        match op.question(Around { table, rules }) {
            Ok(question) => {
                let from = self.link(node);
                self.send(Event::ToStore {
                    from,
                    call,
                    question,
                    asked_at,
                });
            }
            Err(ended) => self.ended(node, call, ended, asked_at),
        }
    }

    pub(super) fn answered(&mut self, node: usize, call: u64, reply: Reply, asked_at: Millis) {
        let now = self.now(node);
        let Some(op) = self.nodes[node].ops.get_mut(&call) else {
            // Nobody waits for it any more; a place that was taken lapses.
            return;
        };
        match op.answered(reply, now) {
            Some(ended) => self.ended(node, call, ended, asked_at),
            None => self.ask(node, call),
        }
    }

    pub(super) fn ended(&mut self, node: usize, call: u64, ended: Ended, asked_at: Millis) {
        let Some(op) = self.nodes[node].ops.remove(&call) else {
            return;
        };
        let who = OWNERS.iter().position(|letter| owner(*letter) == op.owner);
        match (ended, who) {
            (Ended::With(Ok(binding)), Some(who)) if op.api_key.as_str() == "K1" => {
                self.told.insert(who, binding.lease.generation);
            }
            (Ended::With(_), _) => {}
            (Ended::Sent(binding), _) => {
                let flight = Flight {
                    presented: Presented {
                        owner: op.owner.clone(),
                        generation: binding.lease.generation,
                        api_key: op.api_key.clone(),
                    },
                    connection: binding.lease.connection.clone(),
                    revision: binding.revision,
                    granted_until: binding.lease.expires_at,
                    passed_at: asked_at,
                };
                self.goes_out(node, op.name, flight);
            }
        }
    }
}
