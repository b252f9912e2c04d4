//! What is in flight under one owner's lease, and whether it may go on.

use std::collections::HashMap;
use std::time::Duration;

use shared_proto::clock::Millis;
use shared_proto::lease::{Flight, Lease, LeaseRules, Stored, Verdict, watch};
use shared_proto::mirror::hold::{Holder, Place, Pool};
use shared_proto::mirror::record::Revision;
use tokio::sync::watch::Sender;

/// A lease goes unconfirmed for at least this long before what is in flight is
/// cut, ms: a grace below it would cut on every hiccup of the store.
const LEAST_UNCONFIRMED_MS: u64 = 1_000;

/// One owner's lease as this node knows it, and what is in flight under it.
pub(super) struct Flights {
    lease: Stored<Lease>,
    /// How often the lease was heard of.
    heard: u64,
    /// When the last question was sent that left `lease` up to date.
    confirmed_at: Millis,
    rules: LeaseRules,
    under_way: HashMap<Holder, UnderWay>,
}

struct UnderWay {
    flight: Flight,
    lost: Sender<bool>,
}

impl UnderWay {
    fn goes_on(&self) -> bool {
        !*self.lost.borrow()
    }
}

/// What a judgement came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    /// How many were cut.
    pub(super) cut: u64,
    /// The first time at which something else would be if nothing is heard.
    pub(super) next: Option<Millis>,
}

impl Flights {
    pub(super) fn new(lease: Stored<Lease>, rules: LeaseRules) -> Self {
        Self {
            lease,
            heard: 0,
            confirmed_at: Millis::from_epoch_ms(0),
            rules: watched(rules),
            under_way: HashMap::new(),
        }
    }

    /// One more in flight; `lost` tells it that it is cut.
    pub(super) fn enter(&mut self, holder: Holder, flight: Flight, lost: Sender<bool>) {
        self.under_way.insert(holder, UnderWay { flight, lost });
    }

    /// It is over. Its place, to be given back.
    pub(super) fn leave(&mut self, holder: &Holder) -> Option<Place> {
        let over = self.under_way.remove(holder)?;
        Some(place(holder, &over.flight))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The places of those that go on.
    pub(super) fn places(&self) -> Vec<Place> {
        let going = self.under_way.iter().filter(|(_, one)| one.goes_on());
        going
            .map(|(holder, one)| place(holder, &one.flight))
            .collect()
    }

    /// One that goes on, and the state of the lease to ask the fence with.
    pub(super) fn standing(&self, holder: &Holder) -> Option<(&Flight, Revision)> {
        let one = self.under_way.get(holder).filter(|one| one.goes_on())?;
        Some((&one.flight, self.lease.found()?.revision))
    }

    /// How often the lease was heard of so far.
    pub(super) const fn heard(&self) -> u64 {
        self.heard
    }

    pub(super) fn rules(&mut self, rules: LeaseRules) {
        self.rules = watched(rules);
    }

    /// What the node's table says.
    pub(super) fn learn(&mut self, lease: Stored<Lease>, asked_at: Option<Millis>) {
        self.heard = self.heard.saturating_add(1);
        self.lease = lease;
        if let Some(asked_at) = asked_at {
            self.confirmed_at = self.confirmed_at.max(asked_at);
        }
    }

    /// What the store answered to a question that was sent at `asked_at`, after
    /// `heard` hearings. One that came meanwhile may be the newer.
    pub(super) fn answered(&mut self, lease: Stored<Lease>, asked_at: Millis, heard: u64) {
        let revision = |stored: &Stored<Lease>| stored.found().map(|found| found.revision);
        if heard == self.heard || revision(&lease) > revision(&self.lease) {
            self.lease = lease;
        }
        self.confirmed_at = self.confirmed_at.max(asked_at);
    }

    /// Tells each that may not go on.
    pub(super) fn judge(&self, now: Millis) -> Judged {
        let mut judged = Judged::default();
        for one in self.under_way.values().filter(|one| one.goes_on()) {
            match watch(
                &self.lease,
                &one.flight,
                self.confirmed_at,
                &self.rules,
                now,
            ) {
                Verdict::GoesOn { until } => {
                    judged.next = Some(judged.next.map_or(until, |next| next.min(until)));
                }
                Verdict::Cut => {
                    one.lost.send_replace(true);
                    judged.cut = judged.cut.saturating_add(1);
                }
            }
        }
        judged
    }

    /// When the lease ends by itself, unless it is over at `now`.
    pub(super) fn active_until(&self, now: Millis) -> Option<Millis> {
        let lease = &self.lease.found()?.body;
        lease.is_active(now).then_some(lease.expires_at)
    }

    /// How often the store is asked about the lease while something is in
    /// flight: several times within the time that it may go unconfirmed.
    pub(super) fn ask_every(&self) -> Duration {
        let quarter = self.rules.handover_grace_ms().checked_div(4);
        Duration::from_millis(quarter.unwrap_or(0).clamp(100, 1_000))
    }
}

fn watched(rules: LeaseRules) -> LeaseRules {
    LeaseRules::new(
        rules.ttl_ms(),
        rules.handover_grace_ms().max(LEAST_UNCONFIRMED_MS),
        rules.min_replicas(),
    )
}

fn place(holder: &Holder, flight: &Flight) -> Place {
    Place {
        pool: Pool::Leased(flight.connection.clone()),
        holder: holder.clone(),
    }
}

#[cfg(test)]
mod tests;
