//! A node's owner of the connection's health.

use super::{Lineage, Met, RULES, TELL_AGAIN_MS};
use crate::clock::Millis;
use crate::health::ConnectionHealth;
use crate::mirror::record::{Record, Revision};

#[derive(Default)]
pub(super) struct Owner {
    pub(super) state: ConnectionHealth,
    pub(super) stored: Option<Revision>,
    pub(super) pending: Vec<Met>,
    /// The commit under way, and how many of `pending` it carries.
    pub(super) in_flight: Option<(u64, usize)>,
    pub(super) acknowledged: Vec<Met>,
    /// The store went back behind `state`: it is put again.
    pub(super) lost: bool,
    /// What `stored` is made of.
    pub(super) lineage: Lineage,
    pub(super) life: u64,
}

impl Owner {
    /// Applies what it met; whether that changed anything.
    pub(super) fn apply(&mut self, mut met: Met) -> bool {
        let step = self.state.step(&met.event, met.at, &RULES);
        met.outcome = Some(step.outcome);
        if step.changed {
            self.state = step.state;
            self.pending.push(met);
        }
        step.changed
    }

    pub(super) fn rebase(&mut self, newest: Option<&Record>, lineage: Lineage) {
        self.in_flight = None;
        self.stored = newest.map(|record| record.revision);
        self.state = newest
            .map(|record| record.decode().unwrap())
            .unwrap_or_default();
        self.lineage = lineage;
        if std::mem::take(&mut self.lost) {
            let mut again = std::mem::take(&mut self.acknowledged);
            again.append(&mut self.pending);
            self.pending = again;
        }
        for met in std::mem::take(&mut self.pending) {
            self.apply(met);
        }
    }

    pub(super) fn committed(&mut self, revision: Revision, lineage: Lineage, now: Millis) {
        let carried = self.in_flight.take().map_or(0, |(_, carried)| carried);
        self.stored = Some(revision);
        self.lineage = lineage;
        self.lost = false;
        self.acknowledged.extend(self.pending.drain(..carried));
        self.acknowledged
            .retain(|met| met.at.plus(TELL_AGAIN_MS) > now);
    }

    /// The store went back: what is known here is put again on what it holds,
    /// or, where another came first, told again.
    pub(super) fn rewound(&mut self, newest: Option<&Record>, lineage: Lineage) {
        let revision = newest.map(|record| record.revision);
        self.in_flight = None;
        self.lost = revision != self.stored;
        if revision < self.stored {
            self.stored = revision;
        } else if self.lost {
            self.rebase(newest, lineage);
        }
    }
}
