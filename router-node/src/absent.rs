//! For tests: a store that can be away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{BoxFuture, ready};
use shared_proto::clock::{ManualClock, Millis};
use shared_proto::mirror::commit::{Committed, TransactError, Transaction};
use shared_proto::mirror::embedded::Embedded;
use shared_proto::mirror::hold::{Held, HoldError, Place, Pool, Take, Taken};
use shared_proto::mirror::key::Key;
use shared_proto::mirror::log::{Position, Tail, TailError};
use shared_proto::mirror::record::Record;
use shared_proto::mirror::{Health, LoadError, Mirror, Snapshot, Unreachable};

/// A store in memory with a clock set by hand.
pub(crate) struct Absent {
    inner: Embedded,
    away: AtomicBool,
    pub(crate) clock: ManualClock,
}

impl Absent {
    /// An empty one, which answers.
    pub(crate) fn new() -> Arc<Self> {
        let clock = ManualClock::at(Millis::from_epoch_ms(1_000_000));
        Arc::new(Self {
            inner: Embedded::memory("t", Arc::new(clock.clone())).unwrap(),
            away: AtomicBool::new(false),
            clock,
        })
    }

    /// Whether it is away from now on.
    pub(crate) fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::SeqCst);
    }

    fn asked(&self) -> Result<(), Unreachable> {
        if self.away.load(Ordering::SeqCst) {
            return Err(Unreachable("it is away".into()));
        }
        Ok(())
    }
}

impl Mirror for Absent {
    fn transact(
        &self,
        transaction: Transaction,
    ) -> BoxFuture<'_, Result<Vec<Committed>, TransactError>> {
        match self.asked() {
            Ok(()) => self.inner.transact(transaction),
            Err(why) => Box::pin(ready(Err(why.into()))),
        }
    }
    fn load<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, LoadError>> {
        match self.asked() {
            Ok(()) => self.inner.load(key),
            Err(why) => Box::pin(ready(Err(why.into()))),
        }
    }
    fn snapshot(&self) -> BoxFuture<'_, Result<Snapshot, Unreachable>> {
        self.inner.snapshot()
    }
    fn tail(&self, from: Position) -> BoxFuture<'_, Result<Tail, TailError>> {
        self.inner.tail(from)
    }
    fn take(&self, take: Take) -> BoxFuture<'_, Result<Taken, HoldError>> {
        match self.asked() {
            Ok(()) => self.inner.take(take),
            Err(why) => Box::pin(ready(Err(why.into()))),
        }
    }
    fn keep(&self, places: Vec<Place>, ttl_ms: u64) -> BoxFuture<'_, Result<Vec<bool>, HoldError>> {
        match self.asked() {
            Ok(()) => self.inner.keep(places, ttl_ms),
            Err(why) => Box::pin(ready(Err(why.into()))),
        }
    }
    fn give_back(&self, places: Vec<Place>) -> BoxFuture<'_, Result<(), HoldError>> {
        match self.asked() {
            Ok(()) => self.inner.give_back(places),
            Err(why) => Box::pin(ready(Err(why.into()))),
        }
    }
    fn holders<'a>(&'a self, pool: &'a Pool) -> BoxFuture<'a, Result<Vec<Held>, HoldError>> {
        match self.asked() {
            Ok(()) => self.inner.holders(pool),
            Err(why) => Box::pin(ready(Err(why.into()))),
        }
    }
    fn now(&self) -> Millis {
        self.inner.now()
    }
    fn health(&self) -> Health {
        match self.asked() {
            Ok(()) => self.inner.health(),
            Err(Unreachable(why)) => Health::Degraded {
                since: self.now(),
                why,
            },
        }
    }
    fn close(&self) -> BoxFuture<'_, Result<(), Unreachable>> {
        self.inner.close()
    }
}

/// Tries until it is so, for a while.
pub(crate) async fn eventually(mut what: impl AsyncFnMut() -> bool) {
    for _ in 0..2_000 {
        if what().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("it never came to be");
}
