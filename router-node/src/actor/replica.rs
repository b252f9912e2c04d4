//! A mirrored state and the events not yet in the mirror.
//!
//! The mirror accepts a change only on top of the revision it was made from.
//! On a conflict the newer record wins and the events that were not in it are
//! applied again, so an event counts once however many nodes saw the failure.

use std::collections::VecDeque;

use shared_proto::clock::Millis;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::record::Revision;

use super::machine::Machine;

/// Events kept for re-application; past it the oldest are taken as settled.
const MAX_PENDING: usize = 64;

#[cfg(test)]
mod tests;

/// A machine's state with its place in the mirror. Pure.
pub(crate) struct Replica<M: Machine> {
    state: M,
    stored: Expected,
    /// Events since `stored`, oldest first.
    pending: VecDeque<(M::Event, Millis)>,
    /// How many of `pending` the commit under way carries.
    in_flight: Option<usize>,
}

impl<M: Machine> Replica<M> {
    /// What the mirror holds.
    pub(crate) fn new(state: M, stored: Expected) -> Self {
        Self {
            state,
            stored,
            pending: VecDeque::new(),
            in_flight: None,
        }
    }

    /// The newest state, committed or not.
    pub(crate) fn state(&self) -> &M {
        &self.state
    }

    /// Applies an event. Returns whether the state changed, and what to tell the reporter.
    pub(crate) fn apply(
        &mut self,
        event: &M::Event,
        now: Millis,
        rules: &M::Rules,
    ) -> (bool, M::Outcome) {
        let applied = self.state.apply(event, now, rules);
        if applied.changed {
            self.state = applied.state;
            self.make_room();
            self.pending.push_back((event.clone(), now));
        }
        (applied.changed, applied.outcome)
    }

    /// Keeps `pending` within its bound: the oldest event that no commit
    /// carries is taken as settled, or else the oldest of those it carries.
    fn make_room(&mut self) {
        if self.pending.len() < MAX_PENDING {
            return;
        }
        let carried = self.in_flight.unwrap_or(0);
        if self.pending.remove(carried).is_none() {
            self.pending.pop_front();
            self.in_flight = Some(carried.saturating_sub(1));
        }
    }

    /// The next commit, if one is due and none is under way: what it
    /// stands on and the state it carries.
    pub(crate) fn begin_commit(&mut self) -> Option<(Expected, &M)> {
        if self.in_flight.is_some() || self.pending.is_empty() {
            return None;
        }
        self.in_flight = Some(self.pending.len());
        Some((self.stored, &self.state))
    }

    /// The commit under way was accepted as `revision`.
    pub(crate) fn committed(&mut self, revision: Revision) {
        self.stored = Expected::Revision(revision);
        let carried = self.in_flight.take().unwrap_or(0).min(self.pending.len());
        self.pending.drain(..carried);
    }

    /// The commit under way failed and may be tried again.
    pub(crate) fn failed(&mut self) {
        self.in_flight = None;
    }

    /// The mirror holds a newer record: takes it and applies what it lacks.
    pub(crate) fn rebase(&mut self, newest: M, stored: Expected, rules: &M::Rules) {
        self.in_flight = None;
        self.state = newest;
        self.stored = stored;
        for (event, at) in std::mem::take(&mut self.pending) {
            let applied = self.state.apply(&event, at, rules);
            if applied.changed {
                self.state = applied.state;
                self.pending.push_back((event, at));
            }
        }
    }
}
