//! The actor that tells the store of uses: of each pin in use once in a third
//! of its time to live, with the newest use, so that it lasts as long as it is
//! used and no request waits for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actix::prelude::*;
use futures_util::StreamExt as _;
use quick_cache::sync::Cache;
use shared_proto::clock::Millis;
use shared_proto::mirror::{Health, Mirror};
use shared_proto::pin::Pin;
use tokio::time::timeout;

use super::{Known, MAX_KNOWN, Proposed, propose};

/// A commit that takes longer counts as failed.
const STORE_DEADLINE: Duration = Duration::from_secs(1);
/// Pins told at once; each turn tells [`MAX_A_TURN`].
const AT_ONCE: usize = 32;
const MAX_A_TURN: usize = 1024;
/// Until what failed is told again, ms.
const RETRY_MS: u64 = 1_000;
/// Timers are no more exact than this.
const SHORTEST: Duration = Duration::from_millis(10);

type Memory = Arc<Cache<Arc<str>, Arc<Known>>>;

/// Tells the store which pins are in use.
pub(super) struct Teller {
    mirror: Arc<dyn Mirror>,
    known: Memory,
    /// When each pin is to be told of; at most as many as are known.
    due: BTreeSet<(Millis, Arc<str>)>,
    telling: bool,
    /// The timer, and for when it is set.
    timer: Option<(Millis, SpawnHandle)>,
}

impl Teller {
    pub(super) fn new(mirror: Arc<dyn Mirror>, known: Memory) -> Self {
        Self {
            mirror,
            known,
            due: BTreeSet::new(),
            telling: false,
            timer: None,
        }
    }

    /// Sees to the next turn.
    fn wind(&mut self, ctx: &mut Context<Self>) {
        let Some((first, _)) = self.due.first() else {
            return;
        };
        let first = *first;
        match self.timer.take() {
            Some((at, handle)) if at <= first => {
                self.timer = Some((at, handle));
                return;
            }
            Some((_, handle)) => {
                ctx.cancel_future(handle);
            }
            None => {}
        }
        let wait = Duration::from_millis(first.since(self.mirror.now())).max(SHORTEST);
        let handle = ctx.run_later(wait, |teller, ctx| {
            teller.timer = None;
            teller.turn(ctx);
        });
        self.timer = Some((first, handle));
    }

    fn turn(&mut self, ctx: &mut Context<Self>) {
        if self.telling {
            return;
        }
        let now = self.mirror.now();
        if self.mirror.health() != Health::Up {
            self.later(ctx);
            return;
        }
        let mut names = Vec::new();
        while let Some((at, _)) = self.due.first()
            && *at <= now
            && names.len() < MAX_A_TURN
        {
            names.extend(self.due.pop_first().map(|(_, name)| name));
        }
        let of_it = names.into_iter().filter_map(|name| {
            let known = self.known.get(&name)?;
            Some((name, known))
        });
        let telling: Vec<_> = of_it
            .map(|(name, known)| {
                tell(
                    Arc::clone(&self.mirror),
                    Arc::clone(&self.known),
                    name,
                    known,
                )
            })
            .collect();
        self.telling = true;
        let telling = futures_util::stream::iter(telling).buffer_unordered(AT_ONCE);
        let failed = telling.filter_map(|failed| async move { failed }).collect();
        ctx.spawn(
            failed
                .into_actor(self)
                .map(|failed: Vec<Arc<str>>, teller, ctx| {
                    teller.telling = false;
                    let at = teller.mirror.now().plus(RETRY_MS);
                    teller.due.extend(failed.into_iter().map(|name| (at, name)));
                    teller.wind(ctx);
                }),
        );
    }

    /// The store is away: another look in a while.
    fn later(&mut self, ctx: &mut Context<Self>) {
        let at = self.mirror.now().plus(RETRY_MS);
        let wait = Duration::from_millis(RETRY_MS);
        let handle = ctx.run_later(wait, |teller, ctx| {
            teller.timer = None;
            teller.turn(ctx);
        });
        self.timer = Some((at, handle));
    }
}

/// Tells of one pin; gives its name back where that failed.
async fn tell(
    mirror: Arc<dyn Mirror>,
    cache: Memory,
    name: Arc<str>,
    known: Arc<Known>,
) -> Option<Arc<str>> {
    // From here on a use makes it due again.
    known.due.store(false, Ordering::Relaxed);
    let used_at = known.used_at.load(Ordering::Relaxed);
    if used_at <= known.told_at.load(Ordering::Relaxed) {
        return None;
    }
    let pin = Pin {
        connection: known.connection.clone(),
        created_at: known.created_at,
        used_at: Millis::from_epoch_ms(used_at),
    };
    let mut expected = known.expected();
    for _ in 0..3 {
        let proposing = propose(&*mirror, &name, &pin, expected, known.ttl_ms);
        let proposed = timeout(STORE_DEADLINE, proposing).await;
        match proposed.unwrap_or(Proposed::Away) {
            Proposed::Made(revision) => {
                known.revision.store(revision.number(), Ordering::Relaxed);
                known.told_at.fetch_max(used_at, Ordering::Relaxed);
                return None;
            }
            Proposed::Other(other, revision) if other.connection == pin.connection => {
                // Another node told of its own use.
                known.revision.store(revision.number(), Ordering::Relaxed);
                let theirs = other.used_at.as_epoch_ms();
                known.told_at.fetch_max(theirs, Ordering::Relaxed);
                if theirs >= used_at {
                    return None;
                }
                expected = known.expected();
            }
            Proposed::Other(other, revision) => {
                // It was moved. How often the new one's connection rested is not
                // known here, so the next request asks.
                let moved = Known::stored(&other, revision, known.ttl_ms, u64::MAX);
                cache.insert(name, Arc::new(moved));
                return None;
            }
            Proposed::Away => break,
        }
    }
    known.due.store(true, Ordering::Relaxed);
    Some(name)
}

impl Actor for Teller {
    type Context = Context<Self>;
}

/// A pin is to be told of then.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Due {
    pub(super) name: Arc<str>,
    pub(super) at: Millis,
}

impl Handler<Due> for Teller {
    type Result = ();

    fn handle(&mut self, due: Due, ctx: &mut Context<Self>) {
        if self.due.len() < MAX_KNOWN {
            self.due.insert((due.at, due.name));
            self.wind(ctx);
        } else if let Some(known) = self.known.get(&due.name) {
            // The next use tries again.
            known.due.store(false, Ordering::Relaxed);
        }
    }
}
