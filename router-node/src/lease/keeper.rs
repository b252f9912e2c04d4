//! One actor for each lease that this node serves: the sole owner here of what
//! is known of the lease and of the requests in flight under it.
//!
//! It hears of the lease's changes through the [`desk`](super::desk), asks the
//! store itself while something is in flight, and keeps the time. Whatever may
//! not go on is told so at once. It keeps the places of what is in flight, and
//! ends with its lease.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use shared_proto::clock::Millis;
use shared_proto::lease::{Flight, Lease, LeaseRules, OwnerHash, Stored, take as take_under};
use shared_proto::mirror::hold::{Holder, MAX_HOLDS_AT_ONCE, Place};
use shared_proto::mirror::{LoadError, Mirror};
use tokio::sync::watch::Sender;
use tokio::time::{Instant, timeout};

use super::DEADLINE;
use super::desk::{Desk, Idle};
use super::flights::Flights;
use crate::observe::LeaseMetrics;
use crate::timer::after;

/// A place lapses this long after it was last kept, ms.
pub(super) const PLACE_TTL_MS: u64 = 15_000;
/// Places are kept this often.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// What is in flight is judged at least this often: the store's clock may turn
/// out to be ahead of what was known of it.
const JUDGE_EVERY_MS: u64 = 100;

/// The keeper of one owner's lease.
pub(crate) struct Keeper {
    owner: OwnerHash,
    mirror: Arc<dyn Mirror>,
    desk: Addr<Desk>,
    flights: Flights,
    metrics: LeaseMetrics,
    /// Requests that came so far.
    entered: u64,
    timer: Option<SpawnHandle>,
    /// A question about the lease is on its way.
    asking: bool,
    ask_next: Instant,
    keep_next: Instant,
    /// Places that are not given back yet.
    leaving: Vec<Place>,
    /// Some are being given back.
    giving_back: bool,
}

impl Keeper {
    pub(super) fn new(
        owner: OwnerHash,
        mirror: Arc<dyn Mirror>,
        desk: Addr<Desk>,
        (lease, rules): (Stored<Lease>, LeaseRules),
        metrics: LeaseMetrics,
    ) -> Self {
        let now = Instant::now();
        Self {
            owner,
            mirror,
            desk,
            flights: Flights::new(lease, rules),
            metrics,
            entered: 0,
            timer: None,
            asking: false,
            ask_next: now,
            keep_next: now,
            leaving: Vec::new(),
            giving_back: false,
        }
    }

    /// Judges what is in flight, does what is due, and sees to the next time.
    fn turn(&mut self, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        let now = self.mirror.now();
        let judged = self.flights.judge(now);
        self.metrics.cut.inc_by(judged.cut);
        let wait_ms = if let Some(next) = judged.next {
            self.ask(ctx);
            self.keep(ctx);
            next.since(now).saturating_add(1).min(JUDGE_EVERY_MS)
        } else if !self.flights.is_empty() || !self.leaving.is_empty() || self.giving_back {
            // They have been told; their leaving comes by itself.
            return;
        } else if let Some(end) = self.flights.active_until(now) {
            end.since(now).saturating_add(1)
        } else {
            self.desk.do_send(Idle {
                owner: self.owner.clone(),
                entered: self.entered,
            });
            return;
        };
        let wait = Duration::from_millis(wait_ms);
        self.timer = Some(ctx.run_later(wait, |keeper, ctx| {
            keeper.timer = None;
            keeper.turn(ctx);
        }));
    }

    /// Asks the store how the lease is, if it is time.
    fn ask(&mut self, ctx: &mut Context<Self>) {
        let now = Instant::now();
        if self.asking || now < self.ask_next {
            return;
        }
        self.asking = true;
        self.ask_next = after(now, self.flights.ask_every());
        let (asked_at, heard) = (self.mirror.now(), self.flights.heard());
        let mirror = Arc::clone(&self.mirror);
        let key = self.owner.key();
        let asking = async move { timeout(DEADLINE, mirror.load(&key)).await };
        ctx.spawn(asking.into_actor(self).map(move |answer, keeper, ctx| {
            keeper.asking = false;
            let lease = match answer {
                Ok(Ok(record)) => Stored::of(record.as_ref()),
                Ok(Err(LoadError::Unreadable(_))) => Stored::Unreadable,
                Ok(Err(LoadError::Unreachable(_))) | Err(_) => return,
            };
            keeper.flights.answered(lease, asked_at, heard);
            keeper.turn(ctx);
        }));
    }

    /// Keeps the places of what is in flight, if it is time.
    fn keep(&mut self, ctx: &mut Context<Self>) {
        let now = Instant::now();
        if now < self.keep_next {
            return;
        }
        self.keep_next = after(now, KEEP_EVERY);
        for places in self.flights.places().chunks(MAX_HOLDS_AT_ONCE) {
            let places = places.to_vec();
            let mirror = Arc::clone(&self.mirror);
            let keeping = async move {
                let keeping = mirror.keep(places.clone(), PLACE_TTL_MS);
                let kept = timeout(DEADLINE, keeping).await;
                (places, kept)
            };
            ctx.spawn(keeping.into_actor(self).map(|(places, kept), keeper, ctx| {
                let Ok(Ok(kept)) = kept else {
                    // Tried again soon; there is time for two more tries.
                    keeper.keep_next = after(Instant::now(), DEADLINE);
                    return;
                };
                let gone = places.into_iter().zip(kept).filter(|(_, kept)| !kept);
                for (place, _) in gone {
                    keeper.take_again(place.holder, ctx);
                }
            }));
        }
    }

    /// The store has forgotten a place: it is taken again, if the lease stands.
    fn take_again(&mut self, holder: Holder, ctx: &mut Context<Self>) {
        let Some((flight, revision)) = self.flights.standing(&holder) else {
            return;
        };
        let (presented, connection) = (&flight.presented, &flight.connection);
        let take = take_under(presented, connection, revision, holder, PLACE_TTL_MS);
        let mirror = Arc::clone(&self.mirror);
        let taking = async move { timeout(DEADLINE, mirror.take(take)).await };
        // Whether the lease stands is asked all the time; what this says beside
        // it is tried again with the next keeping.
        ctx.spawn(taking.into_actor(self).map(|_, keeper, _| {
            keeper.ask_next = Instant::now();
        }));
    }

    fn give_back(&mut self, ctx: &mut Context<Self>) {
        if self.giving_back || self.leaving.is_empty() {
            return;
        }
        self.giving_back = true;
        let count = self.leaving.len().min(MAX_HOLDS_AT_ONCE);
        let places: Vec<Place> = self.leaving.drain(..count).collect();
        let mirror = Arc::clone(&self.mirror);
        let giving = async move { timeout(DEADLINE, mirror.give_back(places)).await };
        ctx.spawn(giving.into_actor(self).map(|given, keeper, ctx| {
            keeper.giving_back = false;
            if !matches!(given, Ok(Ok(()))) {
                // They lapse by themselves, and the grace is shorter still.
                keeper.leaving.clear();
            }
            keeper.give_back(ctx);
            keeper.turn(ctx);
        }));
    }
}

impl Actor for Keeper {
    type Context = Context<Self>;
}

/// A request comes into flight; `lost` tells it that it is cut.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Enter {
    pub(super) flight: Flight,
    pub(super) holder: Holder,
    pub(super) lost: Sender<bool>,
}

impl Handler<Enter> for Keeper {
    type Result = ();

    fn handle(&mut self, enter: Enter, ctx: &mut Context<Self>) {
        self.entered = self.entered.saturating_add(1);
        if self.flights.is_empty() {
            // Its own question to the fence confirms the lease for a while.
            let now = Instant::now();
            self.ask_next = after(now, self.flights.ask_every());
            self.keep_next = after(now, KEEP_EVERY);
        }
        self.flights.enter(enter.holder, enter.flight, enter.lost);
        self.turn(ctx);
    }
}

/// A request is over, however it ended.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Left(pub(super) Holder);

impl Handler<Left> for Keeper {
    type Result = ();

    fn handle(&mut self, Left(holder): Left, ctx: &mut Context<Self>) {
        self.leaving.extend(self.flights.leave(&holder));
        self.give_back(ctx);
    }
}

/// What became of the lease.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Learn {
    pub(super) lease: Stored<Lease>,
    /// When the store was asked, if it was for all there is.
    pub(super) asked_at: Option<Millis>,
    pub(super) rules: LeaseRules,
}

impl Handler<Learn> for Keeper {
    type Result = ();

    fn handle(&mut self, learn: Learn, ctx: &mut Context<Self>) {
        self.flights.rules(learn.rules);
        self.flights.learn(learn.lease, learn.asked_at);
        self.turn(ctx);
    }
}

/// Nothing comes any more.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Stop;

impl Handler<Stop> for Keeper {
    type Result = ();

    fn handle(&mut self, _: Stop, ctx: &mut Context<Self>) {
        ctx.stop();
    }
}
