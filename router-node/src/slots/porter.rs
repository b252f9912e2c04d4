//! The actor that looks after this node's slots: keeps those in use, gives back
//! those that are not, and lends the node's share while the store is away.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use shared_proto::mirror::hold::board::Board;
use shared_proto::mirror::hold::{MAX_HOLDS_AT_ONCE, Place, Take, Taken};
use shared_proto::mirror::{Health, Mirror};
use tokio::time::{Instant, timeout};

use super::{Asked, SLOT_TTL_MS};
use crate::observe::SlotMetrics;
use crate::routing::ConnectionCell;

/// A call to the store about what is held takes no longer.
const STORE_DEADLINE: Duration = Duration::from_secs(1);
/// A third of a slot's lifetime: there is time for two more tries.
const KEEP_EVERY: Duration = Duration::from_millis(SLOT_TTL_MS / 3);
/// Until what failed is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// What is held here lapses by its own end only, ms.
const FOR_EVER_MS: u64 = 1 << 50;
/// Slots that wait to be given back; past it the oldest are left to lapse.
const MAX_LEAVING: usize = 10_000;

/// Looks after the slots of this node.
pub(super) struct Porter {
    mirror: Arc<dyn Mirror>,
    metrics: SlotMetrics,
    /// What requests hold here, by the store or by the share.
    held: HashSet<Place>,
    /// The same, and who waits while the store is away, by connection.
    here: Board,
    leaving: VecDeque<Leaving>,
    giving_back: bool,
    timer: Option<SpawnHandle>,
}

/// A slot or a place in a queue that nobody needs any more.
struct Leaving {
    place: Place,
    cell: Arc<ConnectionCell>,
    since: Instant,
}

impl Porter {
    pub(super) fn new(mirror: Arc<dyn Mirror>, metrics: SlotMetrics) -> Self {
        Self {
            mirror,
            metrics,
            held: HashSet::new(),
            here: Board::default(),
            leaving: VecDeque::new(),
            giving_back: false,
            timer: None,
        }
    }

    fn holds(&mut self, place: Place, ctx: &mut Context<Self>) {
        let here = Take {
            pool: place.pool.clone(),
            holder: place.holder.clone(),
            limit: None,
            ttl_ms: FOR_EVER_MS,
            patience_ms: None,
            guard: None,
            note: bytes::Bytes::new(),
        };
        // Beyond the board's bound it does not count towards the share.
        self.here.take(here, self.mirror.now()).ok();
        if self.held.insert(place) {
            self.metrics.held.inc();
        }
        if self.timer.is_none() {
            self.keep_in(KEEP_EVERY, ctx);
        }
    }

    fn keep_in(&mut self, wait: Duration, ctx: &mut Context<Self>) {
        self.timer = Some(ctx.run_later(wait, |porter, ctx| {
            porter.timer = None;
            porter.keep(ctx);
        }));
    }

    fn keep_soon(&mut self, wait: Duration, ctx: &mut Context<Self>) {
        if let Some(timer) = self.timer.take() {
            ctx.cancel_future(timer);
        }
        self.keep_in(wait, ctx);
    }

    /// Keeps all that is held. What the store does not know (taken while it was
    /// away, or lost by it) is entered there: it is in use, whatever the cap.
    fn keep(&mut self, ctx: &mut Context<Self>) {
        if self.held.is_empty() {
            return;
        }
        let places: Vec<Place> = self.held.iter().cloned().collect();
        let mirror = Arc::clone(&self.mirror);
        let keeping = async move {
            let mut unknown = Vec::new();
            for places in places.chunks(MAX_HOLDS_AT_ONCE) {
                let keeping = mirror.keep(places.to_vec(), SLOT_TTL_MS);
                let kept = timeout(STORE_DEADLINE, keeping).await.ok()?.ok()?;
                let of_it = places.iter().zip(kept).filter(|(_, kept)| !kept);
                unknown.extend(of_it.map(|(place, _)| place.clone()));
            }
            Some(unknown)
        };
        ctx.spawn(keeping.into_actor(self).map(|unknown, porter, ctx| {
            let wait = match unknown {
                Some(unknown) => {
                    porter.enter(unknown, ctx);
                    KEEP_EVERY
                }
                None => RETRY,
            };
            if porter.timer.is_none() {
                porter.keep_in(wait, ctx);
            }
        }));
    }

    fn enter(&self, places: Vec<Place>, ctx: &mut Context<Self>) {
        for place in places {
            if !self.held.contains(&place) {
                continue;
            }
            let take = Take {
                pool: place.pool.clone(),
                holder: place.holder.clone(),
                limit: None,
                ttl_ms: SLOT_TTL_MS,
                patience_ms: None,
                guard: None,
                note: bytes::Bytes::new(),
            };
            let mirror = Arc::clone(&self.mirror);
            let taking = async move { timeout(STORE_DEADLINE, mirror.take(take)).await };
            // What fails is entered with the next keeping. What was left
            // meanwhile has been given back before this: once more.
            ctx.spawn(taking.into_actor(self).map(move |_, porter, ctx| {
                if !porter.held.contains(&place) {
                    let mirror = Arc::clone(&porter.mirror);
                    let giving =
                        async move { timeout(STORE_DEADLINE, mirror.give_back(vec![place])).await };
                    ctx.spawn(giving.into_actor(porter).map(|_, _, _| ()));
                }
            }));
        }
    }

    fn give_back(&mut self, ctx: &mut Context<Self>) {
        let lapsed = Duration::from_millis(SLOT_TTL_MS);
        while let Some(oldest) = self.leaving.front() {
            if oldest.since.elapsed() < lapsed && self.leaving.len() <= MAX_LEAVING {
                break;
            }
            self.leaving.pop_front();
        }
        if self.giving_back || self.leaving.is_empty() {
            return;
        }
        self.giving_back = true;
        let count = self.leaving.len().min(MAX_HOLDS_AT_ONCE);
        let batch: Vec<Leaving> = self.leaving.drain(..count).collect();
        let places = batch.iter().map(|left| left.place.clone()).collect();
        let mirror = Arc::clone(&self.mirror);
        let giving = async move {
            let given = timeout(STORE_DEADLINE, mirror.give_back(places)).await;
            let done = matches!(given, Ok(Ok(())));
            if !done {
                tokio::time::sleep(RETRY).await;
            }
            (batch, done)
        };
        ctx.spawn(giving.into_actor(self).map(|(batch, done), porter, ctx| {
            porter.giving_back = false;
            for left in batch.into_iter().rev() {
                left.cell.slot_freed();
                if !done {
                    porter.leaving.push_front(left);
                }
            }
            porter.give_back(ctx);
        }));
    }
}

impl Actor for Porter {
    type Context = Context<Self>;
}

/// The store gave a request a slot. It is to wait all the same while as many
/// are in use here: some by the share, of which the store has not heard yet.
#[derive(Message)]
#[rtype(result = "Asked")]
pub(super) struct Holds(pub(super) Take);

impl Handler<Holds> for Porter {
    type Result = MessageResult<Holds>;

    fn handle(&mut self, Holds(take): Holds, ctx: &mut Context<Self>) -> Self::Result {
        let place = Place {
            pool: take.pool.clone(),
            holder: take.holder.clone(),
        };
        MessageResult(match self.here.take(take, self.mirror.now()) {
            Ok(Taken::Full { ahead }) => Asked::Full { ahead },
            Ok(Taken::Held { .. } | Taken::Fenced { .. }) | Err(_) => {
                self.holds(place, ctx);
                Asked::Held
            }
        })
    }
}

/// A request asks while the store is away; the limit is this node's share.
#[derive(Message)]
#[rtype(result = "Asked")]
pub(super) struct AskHere(pub(super) Take);

impl Handler<AskHere> for Porter {
    type Result = MessageResult<AskHere>;

    fn handle(&mut self, AskHere(take): AskHere, ctx: &mut Context<Self>) -> Self::Result {
        let place = Place {
            pool: take.pool.clone(),
            holder: take.holder.clone(),
        };
        MessageResult(match self.here.take(take, self.mirror.now()) {
            Ok(Taken::Held { .. }) => {
                self.holds(place, ctx);
                // The store hears of it as soon as it is back.
                self.keep_soon(RETRY, ctx);
                Asked::Lent
            }
            Ok(Taken::Full { ahead }) => Asked::Full { ahead },
            Ok(Taken::Fenced { .. }) | Err(_) => Asked::Uncounted,
        })
    }
}

/// A request needs its slot, or its place in the queue, no more.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Left {
    pub(super) place: Place,
    pub(super) cell: Arc<ConnectionCell>,
}

impl Handler<Left> for Porter {
    type Result = ();

    fn handle(&mut self, Left { place, cell }: Left, ctx: &mut Context<Self>) {
        if self.held.remove(&place) {
            self.metrics.held.dec();
        }
        let one = std::slice::from_ref(&place);
        self.here.give_back(one, self.mirror.now()).ok();
        if self.mirror.health() != Health::Up {
            cell.slot_freed();
        }
        self.leaving.push_back(Leaving {
            place,
            cell,
            since: Instant::now(),
        });
        self.give_back(ctx);
    }
}

/// The store has lost what it knew.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct TellAgain;

impl Handler<TellAgain> for Porter {
    type Result = ();

    fn handle(&mut self, _: TellAgain, ctx: &mut Context<Self>) {
        self.keep_soon(Duration::ZERO, ctx);
    }
}

/// The node ends.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct GiveAllBack;

impl Handler<GiveAllBack> for Porter {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, _: GiveAllBack, _: &mut Context<Self>) -> Self::Result {
        let left = self.leaving.drain(..).map(|left| left.place);
        let places: Vec<Place> = self.held.drain().chain(left).collect();
        let mirror = Arc::clone(&self.mirror);
        Box::pin(async move {
            for places in places.chunks(MAX_HOLDS_AT_ONCE) {
                // Otherwise they lapse by themselves.
                mirror.give_back(places.to_vec()).await.ok();
            }
        })
    }
}
