//! What the store is asked, and how nodes follow its log.

use super::{Cluster, Event, Link, News};
use crate::clock::Millis;
use crate::lease::LeaseTable;
use crate::lease::tests::audit::{Underway, changed_hands, handed_over, sent};
use crate::lease::tests::driver::{Question, Reply};
use crate::mirror::hold::Taken;

impl Cluster {
    pub(super) fn at_store(&mut self, from: Link, call: u64, question: Question, asked_at: Millis) {
        let node = &self.nodes[from.node];
        // What was sent to a store that is gone is not sent again.
        if node.cut_off || self.down || from.store != self.life {
            return;
        }
        let took = match (&question, node.ops.get(&call)) {
            (Question::Take(_, binding), Some(op)) => Some(Underway {
                name: op.name,
                owner: op.owner.clone(),
                generation: binding.lease.generation,
                connection: binding.lease.connection.clone(),
                is_lost: false,
            }),
            (Question::Load(_) | Question::Commit(_) | Question::Take(..), _) => None,
        };
        let before = self.store.clone();
        let keys: Vec<_> = match &question {
            Question::Commit(planned) => {
                let commits = planned.transaction.commits.iter();
                commits.map(|commit| commit.key.clone()).collect()
            }
            Question::Load(_) | Question::Take(..) => Vec::new(),
        };
        let reply = question.execute(&mut self.store);
        match (&reply, &took) {
            (Reply::Made(_), _) => {
                handed_over(&before, &self.store, &self.underway, &self.rules).unwrap();
                self.audit.granted(&before, &self.store).unwrap();
                self.log
                    .extend(keys.iter().filter_map(|key| self.store.load(key)));
                self.met.handed_over += u64::from(changed_hands(&before, &self.store));
            }
            (Reply::Taken(Taken::Held { .. }), Some(took)) => sent(&self.store, took).unwrap(),
            (Reply::Taken(Taken::Fenced { .. }), _) => self.met.fenced += 1,
            (Reply::Taken(_) | Reply::Loaded(..) | Reply::Unmade(_), _) => {}
        }
        self.send(Event::FromStore {
            from,
            call,
            reply,
            asked_at,
        });
    }

    pub(super) fn poll(&mut self, node: usize) {
        let ms = self.dice.within(5, 60);
        self.plan(ms, Event::Poll(node));
        let asked_at = self.now(node);
        if !self.reaches(node) {
            return;
        }
        let (life, read) = self.nodes[node].read;
        let end = self.log.len();
        let news = if life == self.life {
            News::Entries(self.log[read..].to_vec(), end)
        } else {
            News::Snapshot(self.store.records().collect(), end)
        };
        let from = self.link(node);
        self.send(Event::Polled {
            from,
            asked_at,
            news,
        });
    }

    pub(super) fn polled(&mut self, from: Link, asked_at: Millis, news: News) {
        let known = &mut self.nodes[from.node];
        match news {
            // An answer that was overtaken by a later one tells nothing.
            _ if asked_at < known.confirmed_at => return,
            News::Entries(..) if known.read.0 != from.store => return,
            News::Entries(records, end) => {
                for record in &records {
                    known.table.put(record);
                }
                known.read.1 = end;
            }
            News::Snapshot(records, end) => {
                known.table = LeaseTable::new();
                for record in &records {
                    known.table.put(record);
                }
                known.read = (from.store, end);
            }
        }
        known.confirmed_at = asked_at;
        self.watch(from.node);
    }
}
