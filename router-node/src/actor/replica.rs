//! A mirrored state and the events not yet in the mirror.
//!
//! The mirror accepts a change only on top of the revision it was made from.
//! When it holds something newer (a conflict, or an entry of the change log),
//! the newer record wins and the events that were not in it are applied again,
//! so an event counts once however many nodes saw the failure.
//!
//! A store may also go *back*: a failover loses the last writes, a restart all
//! of them. Then what this node knows is put again, and where another node came
//! first, the events acknowledged lately are applied again on its record.

use std::collections::VecDeque;

use shared_proto::clock::Millis;
use shared_proto::mirror::commit::Expected;
use shared_proto::mirror::record::Revision;

use super::machine::Machine;

/// Events kept for re-application; past it the oldest are taken as settled.
const MAX_PENDING: usize = 64;
/// Acknowledged events kept for a store that goes back.
const MAX_ACKNOWLEDGED: usize = 64;
/// How long they are kept, ms: longer than a failover takes.
const ACKNOWLEDGED_MS: u64 = 60_000;
/// Commits without an answer that are remembered. The first are the ones that
/// a store that comes back has in its queue.
const MAX_UNSURE: usize = 8;

mod news;
#[cfg(test)]
mod tests;

pub(crate) use news::{Holds, News, Source};

/// A machine's state with its place in the mirror. Pure.
pub(crate) struct Replica<M: Machine> {
    state: M,
    stored: Expected,
    /// The newest revision of the record that is known, deletions included.
    seen: Option<Revision>,
    /// Events since `stored`, oldest first.
    pending: VecDeque<Pending<M>>,
    in_flight: Option<Tried<M>>,
    /// Commits that may have taken effect, oldest first.
    unsure: Vec<Tried<M>>,
    /// Events that the mirror took, oldest first.
    acknowledged: VecDeque<Acknowledged<M>>,
    /// The mirror went back behind `state`: it is put again, event or not.
    lost: bool,
    /// What was heard while a commit was under way.
    deferred: Option<News<M>>,
    last_ticket: u64,
}

struct Pending<M: Machine> {
    ticket: u64,
    event: M::Event,
    at: Millis,
}

struct Acknowledged<M: Machine> {
    event: M::Event,
    at: Millis,
    known_since: Millis,
}

/// A commit as it was sent.
struct Tried<M> {
    state: M,
    /// How many of `pending` it carries.
    events: usize,
    /// The newest of them.
    up_to: u64,
}

/// What became of events when a newer record was taken.
pub(crate) struct Rebased<M: Machine> {
    /// Events up to this ticket are in the mirror after all.
    pub(crate) stored_up_to: u64,
    /// Those applied again: whether they still change something, and what the
    /// machine says now. Events that are in neither are forgotten.
    pub(crate) again: Vec<Again<M>>,
}

/// One event applied again.
pub(crate) struct Again<M: Machine> {
    pub(crate) ticket: u64,
    pub(crate) outcome: M::Outcome,
    pub(crate) pending: bool,
}

impl<M: Machine> Replica<M> {
    /// What the mirror holds.
    pub(crate) fn new(state: M, stored: Expected) -> Self {
        Self {
            state,
            seen: revision_of(stored),
            stored,
            pending: VecDeque::new(),
            in_flight: None,
            unsure: Vec::new(),
            acknowledged: VecDeque::new(),
            lost: false,
            deferred: None,
            last_ticket: 0,
        }
    }

    /// The newest state, committed or not.
    pub(crate) fn state(&self) -> &M {
        &self.state
    }

    /// Applies an event. Returns its ticket when the state changed, and what
    /// to tell the reporter. Tickets rise from 1.
    pub(crate) fn apply(
        &mut self,
        event: &M::Event,
        now: Millis,
        rules: &M::Rules,
    ) -> (Option<u64>, M::Outcome) {
        let applied = self.state.apply(event, now, rules);
        if !applied.changed {
            return (None, applied.outcome);
        }
        self.state = applied.state;
        self.make_room();
        self.last_ticket = self.last_ticket.saturating_add(1);
        self.pending.push_back(Pending {
            ticket: self.last_ticket,
            event: event.clone(),
            at: now,
        });
        (Some(self.last_ticket), applied.outcome)
    }

    /// Keeps `pending` within its bound: the oldest event that no commit
    /// carries is taken as settled, or else the oldest of those it carries.
    fn make_room(&mut self) {
        if self.pending.len() < MAX_PENDING {
            return;
        }
        // Their counts no longer fit; at worst such an event is applied again.
        self.unsure.clear();
        let carried = self.in_flight.as_ref().map_or(0, |tried| tried.events);
        if self.pending.remove(carried).is_none() {
            self.pending.pop_front();
            if let Some(tried) = &mut self.in_flight {
                tried.events = tried.events.saturating_sub(1);
            }
        }
    }

    /// The next commit, if one is due and none is under way: what it
    /// stands on and the state it carries.
    pub(crate) fn begin_commit(&mut self) -> Option<(Expected, &M)> {
        if self.in_flight.is_some() || (self.pending.is_empty() && !self.lost) {
            return None;
        }
        self.in_flight = Some(Tried {
            state: self.state.clone(),
            events: self.pending.len(),
            up_to: self.last_ticket,
        });
        Some((self.stored, &self.state))
    }

    /// The commit under way was accepted as `revision`. The last ticket it carried.
    pub(crate) fn committed(&mut self, revision: Revision, now: Millis) -> u64 {
        self.stored = Expected::Revision(revision);
        self.seen = Some(revision);
        self.lost = false;
        self.unsure.clear();
        let tried = self.in_flight.take();
        tried.map_or(0, |tried| self.acknowledge(&tried, now))
    }

    fn acknowledge(&mut self, tried: &Tried<M>, now: Millis) -> u64 {
        let events = tried.events.min(self.pending.len());
        for Pending { event, at, .. } in self.pending.drain(..events) {
            if M::may_repeat(&event) {
                self.acknowledged.push_back(Acknowledged {
                    event,
                    at,
                    known_since: now,
                });
            }
        }
        self.forget_acknowledged(now);
        tried.up_to
    }

    fn forget_acknowledged(&mut self, now: Millis) {
        let surplus = self.acknowledged.len().saturating_sub(MAX_ACKNOWLEDGED);
        self.acknowledged.drain(..surplus);
        let kept = |known: &Acknowledged<M>| now.since(known.known_since) <= ACKNOWLEDGED_MS;
        while self.acknowledged.front().is_some_and(|known| !kept(known)) {
            self.acknowledged.pop_front();
        }
    }

    /// The commit under way failed and may be tried again. `unsure`: it may
    /// have taken effect.
    pub(crate) fn failed(&mut self, unsure: bool) {
        let tried = self.in_flight.take();
        if let Some(tried) = tried.filter(|_| unsure && self.unsure.len() < MAX_UNSURE) {
            self.unsure.push(tried);
        }
    }

    /// The commit under way met something else than it expected.
    pub(crate) fn conflict(
        &mut self,
        newest: Holds<M>,
        now: Millis,
        rules: &M::Rules,
    ) -> Option<Rebased<M>> {
        self.in_flight = None;
        if self.is_older(&newest) {
            self.put_again(&newest);
            return None;
        }
        self.rebase(newest, now, rules)
    }

    /// Takes what was heard of the mirror, as far as it is news. Nothing is
    /// returned when no state changed.
    pub(crate) fn hear(
        &mut self,
        news: News<M>,
        now: Millis,
        rules: &M::Rules,
    ) -> Option<Rebased<M>> {
        if self.in_flight.is_some() {
            self.defer(news);
            return None;
        }
        let News { holds, source } = news;
        let revision = holds.revision();
        let known = |revision: Revision| self.seen.is_some_and(|seen| revision <= seen);
        match source {
            Source::Log if revision.is_some_and(known) => None,
            // A look-up that found nothing; a deletion would say when.
            Source::Log if matches!(holds, Holds::Nothing(None)) => None,
            Source::Log => self.rebase(holds, now, rules),
            Source::Snapshot { fresh: true, .. } if revision.is_none_or(known) => None,
            Source::Snapshot { rewound, .. } => self.read_again(holds, rewound, now, rules),
        }
    }

    /// Takes what a snapshot says, which holds whether it is older or not.
    fn read_again(
        &mut self,
        holds: Holds<M>,
        rewound: bool,
        now: Millis,
        rules: &M::Rules,
    ) -> Option<Rebased<M>> {
        let gone = matches!(holds, Holds::Nothing(_));
        let stored = revision_of(self.stored);
        if gone && stored.is_none() {
            self.stored = Expected::Absent;
            return None;
        }
        if stored.is_some() && stored == holds.revision() {
            return None;
        }
        if self.is_older(&holds) && (rewound || !gone) {
            self.put_again(&holds);
            return None;
        }
        self.lost |= rewound && !matches!(holds, Holds::Unreadable(_));
        self.rebase(holds, now, rules)
    }

    /// What was heard while the commit that just ended was under way.
    pub(crate) fn deferred(&mut self) -> Option<News<M>> {
        self.deferred.take()
    }

    /// The last word counts, and a snapshot's claim stays with it.
    fn defer(&mut self, news: News<M>) {
        let before = self.deferred.take().map(|news| news.source);
        let source = match (before, news.source) {
            (Some(Source::Snapshot { rewound: a, fresh }), Source::Snapshot { rewound: b, .. }) => {
                Source::Snapshot {
                    rewound: a || b,
                    fresh,
                }
            }
            (Some(snapshot @ Source::Snapshot { .. }), Source::Log) => snapshot,
            (_, source) => source,
        };
        self.deferred = Some(News {
            holds: news.holds,
            source,
        });
    }

    /// Whether the mirror holds less than it once acknowledged to this owner.
    fn is_older(&self, holds: &Holds<M>) -> bool {
        let Expected::Revision(stored) = self.stored else {
            return false;
        };
        match holds {
            Holds::State(_, revision) => *revision < stored,
            Holds::Nothing(deleted) => deleted.is_none_or(|revision| revision < stored),
            Holds::Unreadable(_) => false,
        }
    }

    /// What is known here stands on top of what the mirror went back to.
    fn put_again(&mut self, holds: &Holds<M>) {
        self.stored = holds.expected();
        self.seen = holds.revision();
        self.lost = true;
    }

    /// Takes what the mirror holds and applies what it lacks.
    fn rebase(&mut self, holds: Holds<M>, now: Millis, rules: &M::Rules) -> Option<Rebased<M>> {
        self.stored = holds.expected();
        self.seen = holds.revision();
        let newest = match holds {
            Holds::State(state, _) => state,
            Holds::Nothing(_) => M::default(),
            Holds::Unreadable(_) => return None,
        };
        let mut rebased = Rebased {
            stored_up_to: 0,
            again: Vec::new(),
        };
        let mut unsure = std::mem::take(&mut self.unsure).into_iter();
        if let Some(tried) = unsure.rfind(|tried| tried.state == newest) {
            rebased.stored_up_to = self.acknowledge(&tried, now);
        }
        self.state = newest;
        if std::mem::take(&mut self.lost) {
            self.repeat_acknowledged(now);
        }
        for pending in std::mem::take(&mut self.pending) {
            let applied = self.state.apply(&pending.event, pending.at, rules);
            rebased.again.push(Again {
                ticket: pending.ticket,
                outcome: applied.outcome,
                pending: applied.changed,
            });
            if applied.changed {
                self.state = applied.state;
                self.pending.push_back(pending);
            }
        }
        Some(rebased)
    }

    /// Events of the last while wait again, before those that wait already.
    fn repeat_acknowledged(&mut self, now: Millis) {
        self.forget_acknowledged(now);
        for known in std::mem::take(&mut self.acknowledged).into_iter().rev() {
            if self.pending.len() < MAX_PENDING {
                self.pending.push_front(Pending {
                    // Nobody waits for it any more.
                    ticket: 0,
                    event: known.event,
                    at: known.at,
                });
            }
        }
    }
}

fn revision_of(expected: Expected) -> Option<Revision> {
    match expected {
        Expected::Revision(revision) => Some(revision),
        Expected::Absent | Expected::Corrupt => None,
    }
}
