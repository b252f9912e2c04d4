//! Opens the store that the configuration names, and says once whenever it
//! goes away or comes back.

use std::sync::Arc;
use std::time::Duration;

use shared_proto::clock::SystemClock;
use shared_proto::config::{Store, StoreUrl};
use shared_proto::mirror::embedded::Embedded;
use shared_proto::mirror::redis::{Options, Redis};
use shared_proto::mirror::{Health, Mirror, Snapshot};
use tokio::time::timeout;

use super::{Node, StartError};
use crate::observe::Seldom;

/// How long a start waits for contact with a shared store, and then for the
/// snapshot, before it goes on without.
const START_DEADLINE: Duration = Duration::from_secs(2);
/// How often its state is looked at.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// Opens the store. One inside this process has to be read; of a shared one
/// there is no snapshot when it does not answer.
pub(super) async fn open(store: &Store) -> Result<(Arc<dyn Mirror>, Option<Snapshot>), StartError> {
    let clock = Arc::new(SystemClock);
    let prefix = &store.prefix;
    let mirror: Arc<dyn Mirror> = match &store.url {
        StoreUrl::Memory => Arc::new(Embedded::memory(prefix, clock)?),
        StoreUrl::Disk(path) => Arc::new(Embedded::disk(path, prefix, clock)?),
        StoreUrl::Redis(url) => {
            let redis = Redis::open(url, prefix, clock, Options::default())?;
            // Without contact the snapshot says what is wrong.
            timeout(START_DEADLINE, redis.contact()).await.ok();
            Arc::new(redis)
        }
    };
    if !matches!(store.url, StoreUrl::Redis(_)) {
        let snapshot = mirror.snapshot().await;
        let snapshot = snapshot.map_err(|error| StartError::Snapshot(error.to_string()))?;
        return Ok((mirror, Some(snapshot)));
    }
    // Without one the node begins with what it does not know, and catches up.
    let snapshot = timeout(START_DEADLINE, mirror.snapshot()).await;
    Ok((mirror, snapshot.ok().and_then(Result::ok)))
}

/// Logs each change of the store's state, for ever.
pub(super) async fn watch(node: Arc<Node>) {
    let mut was_up = true;
    let mut told: Option<Arc<str>> = None;
    let again = Seldom::default();
    let mut ticks = tokio::time::interval(WATCH_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let is_up = node.store_is_up();
        if is_up {
            if !was_up {
                was_up = true;
                told = None;
                node.observer.metrics.store_up.set(1);
                tracing::info!("the store is back");
            }
            continue;
        }
        node.observer.metrics.store_up.set(0);
        let why = match node.mirror.health() {
            Health::Degraded { why, .. } => why,
            Health::Up => "the change log can't be read".into(),
        };
        if was_up {
            was_up = false;
            tracing::warn!(
                %why,
                "the store is away: requests go on with what is known here, and changes are kept until it is back"
            );
        } else if told.as_ref() != Some(&why) && again.due(node.now()) {
            // The first failure is often a mere consequence: a connection that broke.
            tracing::warn!(%why, "the store is still away");
        } else {
            continue;
        }
        told = Some(why);
    }
}
