//! What is made of an attempt's failure before anybody hears of it: the word of the
//! rotation gate, and what the owners are told.

use shared_proto::clock::Millis;
use shared_proto::failure::{Blame, Failure};
use shared_proto::rotation::Met;

use super::After;
use crate::request::dispatch::Failed;
use crate::request::keys;
use crate::request::transition::Events;

impl After {
    /// When its call began, by the store's clock.
    pub(crate) const fn began(&self) -> Millis {
        self.began
    }

    /// Its next call presents this key, where the connection has several.
    pub(crate) fn presents(&mut self, key: Option<u64>) {
        self.key = key;
    }

    /// The failure as the rotation gate lets it through.
    pub(crate) fn gated(&mut self, mut failed: Failed) -> Failed {
        let unanswered = failed.status.is_none();
        self.gate(&mut failed.failure, unanswered);
        failed
    }

    /// The same for a failure with an answer or without one.
    pub(super) fn gate(&mut self, failure: &mut Failure, unanswered: bool) {
        let slot = &self.candidate.slot;
        let met = Met {
            began: self.began,
            now: self.request.worker.now(),
            unanswered,
        };
        let seen = slot.cell.health();
        self.rotation = slot.rotation.judge(failure, &seen.rotation, met);
    }

    /// What a failure shows, where the connection is known to leave. One that no
    /// client met is not counted by the gate.
    pub(super) fn events(&self, failure: &Failure, next_is_same_provider: bool) -> Events {
        let node = &self.request.worker.node;
        let exit = node.egress.exit(&self.candidate.slot, node.now());
        let charged = failure.blame == Blame::EgressIp;
        let events = Events::failed(
            &self.candidate,
            self.began,
            (failure, exit.filter(|_| charged)),
            next_is_same_provider,
            self.probe,
        );
        let counted = self.rotation.filter(|gated| gated.is_counted());
        match counted {
            Some(gated) if !self.is_test => events.counting(self.began, gated.class),
            Some(_) | None => events,
        }
    }

    /// The same after output has gone to the client: nobody tries another key then,
    /// but the next request may.
    pub(super) fn events_after_output(&self, failure: &Failure) -> Events {
        let slot = &self.candidate.slot;
        match self.key {
            Some(key) if keys::leaves_another(slot, key, failure) => {
                Events::key_refused(self.began, key, failure, self.probe)
            }
            Some(_) | None => self.events(failure, false).after_output(),
        }
    }
}
