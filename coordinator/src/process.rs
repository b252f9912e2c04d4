//! The composition of a coordinator process, and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use shared_proto::clock::{Millis, SystemClock};
use shared_proto::config::{Config, RedisUrl};
use shared_proto::leader::Election;
use shared_proto::mirror::hold::{Holder, Place, Pool, Take};
use shared_proto::mirror::redis::{Options, Redis};
use shared_proto::mirror::{Health, Mirror};
use shared_proto::roster::{BEAT_MS, LIFETIME_MS, NOTE_VERSION, Note, Role};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::duty::Configured;
use crate::http::{self, Desk};
use crate::lead::{self, Work};
use crate::metrics::Metrics;
use crate::pause::jittered;
use crate::pen::STORE_DEADLINE;

/// How long a start waits for contact with the store before it goes on without.
const CONTACT: Duration = Duration::from_secs(2);
/// How long a stop waits for the turn to be given back.
const LAST_TURN: Duration = Duration::from_secs(3);
/// How often the store's state is looked at.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Between two lines about a store that stays away, ms.
const TELL_AGAIN_MS: u64 = 5_000;

/// Runs until it is told to stop.
pub(crate) async fn run(
    config: Config,
    url: RedisUrl,
    address: SocketAddr,
    configured: Configured,
) -> Result<(), Error> {
    let prefix = config.store.prefix.clone();
    let redis = Redis::open(&url, &prefix, Arc::new(SystemClock), Options::default());
    let redis = Arc::new(redis.map_err(|error| Error::Store(error.to_string()))?);
    // A store that is away is waited for while it is told so.
    timeout(CONTACT, redis.contact()).await.ok();
    let mirror: Arc<dyn Mirror> = redis;
    let random = uuid::Uuid::new_v4();
    let id = config.node_id.as_ref().map_or_else(
        || format!("coordinator-{}", random.simple()),
        |id| id.as_str().to_owned(),
    );
    let (_, instance) = random.as_u64_pair();
    let election = Election::new(&id, instance, config.coordinator.lease_ms);
    let metrics = Metrics::default();
    let desk = Arc::new(Desk::new(id, Arc::clone(&mirror), &metrics));
    let listen = |error| Error::Listen { address, error };
    let (server, bound) = http::serve(Arc::clone(&desk), address).map_err(listen)?;
    tracing::info!(address = %bound, lease_ms = config.coordinator.lease_ms, "listening");
    let work = Work {
        mirror,
        prefix,
        configured,
        metrics,
    };
    attend(&desk, &work, election, (server, bound)).await
}

/// Serves, takes part and tells of itself until told to stop; then gives back
/// what it has, unless it is told again.
async fn attend(
    desk: &Arc<Desk>,
    work: &Work,
    election: Election,
    (server, bound): (actix_web::dev::Server, SocketAddr),
) -> Result<(), Error> {
    let signals = signal(SignalKind::terminate())
        .and_then(|term| signal(SignalKind::interrupt()).map(|int| (term, int)));
    let (mut term, mut int) = signals.map_err(Error::Signals)?;
    let (stop, stopped) = watch::channel(false);
    let turns = lead::elected(work, election, &desk.board, stopped);
    let beside = async {
        tokio::join!(keep_place(desk, bound), watch_store(desk));
    };
    tokio::pin!(server, turns, beside);
    tokio::select! {
        ended = &mut server => return ended.map_err(Error::Server),
        () = &mut turns => {}
        () = &mut beside => {}
        () = told(&mut term, &mut int) => {}
    }
    tracing::info!("stopping");
    desk.draining.store(true, Ordering::Relaxed);
    stop.send_replace(true);
    let leaving = async {
        tokio::select! {
            done = timeout(LAST_TURN, &mut turns) => drop(done),
            _ = &mut server => {}
        }
        give_place_back(desk).await;
        timeout(STORE_DEADLINE, desk.mirror.close()).await.ok();
    };
    tokio::select! {
        () = leaving => tracing::info!("stopped"),
        () = told(&mut term, &mut int) => tracing::warn!("told to stop again: ending at once"),
    }
    Ok(())
}

async fn told(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

/// Tells the others that it lives, and whether it leads, for ever. A change of
/// its role is told at once.
async fn keep_place(desk: &Desk, address: SocketAddr) {
    let started_at = desk.mirror.now();
    loop {
        let leads = desk.leads();
        let take = take(desk, address, started_at, leads);
        // What fails is tried again with the next beat.
        if let Ok(Err(error)) = timeout(STORE_DEADLINE, desk.mirror.take(take)).await {
            tracing::debug!(%error, "the coordinator can't tell that it lives");
        }
        let changed = async {
            while desk.leads() == leads {
                sleep(WATCH_EVERY).await;
            }
        };
        timeout(jittered(Duration::from_millis(BEAT_MS)), changed)
            .await
            .ok();
    }
}

fn take(desk: &Desk, address: SocketAddr, started_at: Millis, leads: bool) -> Take {
    let note = Note {
        format: NOTE_VERSION,
        role: Role::Coordinator,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at,
        at: desk.mirror.now(),
        address: Some(address.to_string()),
        leads: Some(leads),
        ..Note::default()
    };
    Take {
        pool: Pool::Nodes,
        holder: Holder(desk.id.as_str().into()),
        limit: None,
        ttl_ms: LIFETIME_MS,
        patience_ms: None,
        guard: None,
        note: note.to_bytes(),
    }
}

async fn give_place_back(desk: &Desk) {
    let place = Place {
        pool: Pool::Nodes,
        holder: Holder(desk.id.as_str().into()),
    };
    // Otherwise it lapses by itself.
    let giving = desk.mirror.give_back(vec![place]);
    timeout(STORE_DEADLINE, giving).await.ok();
}

/// Logs each change of the store's state, for ever.
async fn watch_store(desk: &Desk) {
    let mut was_up = true;
    let mut told: Option<Arc<str>> = None;
    let mut told_at = desk.mirror.now();
    loop {
        match (desk.mirror.health(), was_up) {
            (Health::Up, false) => {
                was_up = true;
                told = None;
                tracing::info!("the store is back");
            }
            (Health::Degraded { why, .. }, true) => {
                was_up = false;
                tracing::warn!(%why, "the store is away: nobody can lead until it is back");
                told = Some(why);
                told_at = desk.mirror.now();
            }
            // The first failure is often a mere consequence: a connection that broke.
            (Health::Degraded { why, .. }, false) if told.as_ref() != Some(&why) => {
                let now = desk.mirror.now();
                if now.since(told_at) >= TELL_AGAIN_MS {
                    tracing::warn!(%why, "the store is still away");
                    told = Some(why);
                    told_at = now;
                }
            }
            (Health::Up, true) | (Health::Degraded { .. }, false) => {}
        }
        sleep(WATCH_EVERY).await;
    }
}
