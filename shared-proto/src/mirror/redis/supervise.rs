//! The one task that finds the master, checks it, watches over the connection
//! and finds it again.

use std::sync::Arc;
use std::time::Duration;

use ::redis::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::fault::{Cure, Fault};
use super::link::{Call, Link, Phase, Shared, degrade};
use super::locate::{Found, Locator};
use super::reply::{Answer, lossy};
use crate::mirror::Health;

/// How often an idle connection is tried: also how often the time is heard.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// The first pause before another attempt, and the longest, in ms; each is
/// shortened by up to half, so that nodes don't all come back at once.
const FIRST_PAUSE_MS: u64 = 40;
const LONGEST_PAUSE_MS: u64 = 1_000;
/// The oldest server with what the scripts need.
const NEEDED: (u64, &str) = (7, "7.0");

/// Works until `closing` is set or dropped.
pub(super) async fn supervise(
    shared: Arc<Shared>,
    mut locator: Locator,
    mut closing: watch::Receiver<bool>,
) {
    let mut generation = 0_u64;
    let mut attempts = 0;
    loop {
        generation = generation.saturating_add(1);
        tokio::select! {
            connected = connect(&shared, &mut locator, generation) => match connected {
                Ok(()) => attempts = 0,
                Err(fault) => down(&shared, &fault),
            },
            _ = closing.changed() => return,
        }
        tokio::select! {
            () = watch_over(&shared, &locator, generation) => {}
            _ = closing.changed() => return,
        }
        tokio::select! {
            () = sleep(pause(attempts)) => {}
            _ = closing.changed() => return,
        }
        attempts = attempts.saturating_add(1);
    }
}

fn down(shared: &Shared, fault: &Fault) {
    let now = shared.time.now();
    shared.state.send_modify(|state| {
        if !matches!(state.phase, Phase::Closed) {
            state.phase = Phase::Down;
        }
        degrade(&mut state.health, now, &fault.why);
    });
}

/// Finds a server, checks that it will do and puts it into use.
async fn connect(shared: &Shared, locator: &mut Locator, generation: u64) -> Result<(), Fault> {
    let Found {
        mut connection,
        host,
    } = locator.find().await?;
    let told: Result<Value, _> = ::redis::cmd("HELLO").query_async(&mut connection).await;
    let told = told.map_err(|error| Fault::of(&error).at(&host))?;
    suits(told).map_err(|fault| fault.at(&host))?;
    let loaded = shared.scripts.load(&mut connection).await;
    loaded.map_err(|error| Fault::of(&error).at(&host))?;
    let link = Link {
        connection,
        host,
        generation,
    };
    let probed = probe(shared, &link).await;
    let refused = match probed {
        Ok(()) => None,
        // It can be read from, and waiting may cure it.
        Err(fault) if fault.cure == Cure::Wait => Some(fault),
        Err(fault) => return Err(fault.at(&link.host)),
    };
    let now = shared.time.now();
    shared.state.send_modify(|state| {
        if matches!(state.phase, Phase::Closed) {
            return;
        }
        state.phase = Phase::Up(Arc::new(link));
        match refused {
            None => state.health = Health::Up,
            Some(fault) => degrade(&mut state.health, now, &fault.why),
        }
    });
    Ok(())
}

/// Whether a server is new enough, and a master. Told as `HELLO` tells it.
pub(super) fn suits(told: Value) -> Result<(), Fault> {
    let mut told = Answer::of(told)?;
    let (mut server, mut version, mut role) = (lossy(b""), lossy(b""), lossy(b""));
    while let (Some(name), Some(value)) = (told.next(), told.next()) {
        let (Value::BulkString(name), Value::BulkString(value)) = (name, value) else {
            continue;
        };
        match name.as_slice() {
            b"server" => server = lossy(&value),
            b"version" => version = lossy(&value),
            b"role" => role = lossy(&value),
            _ => {}
        }
    }
    let major = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok());
    // Others that speak the protocol are taken at their word, as their scripts load.
    if &*server == "redis" && major.is_none_or(|major: u64| major < NEEDED.0) {
        let why = format!("it is Redis {version}, and {} or newer is needed", NEEDED.1);
        return Err(Fault::new(Cure::Reconnect, why));
    }
    if &*role == "replica" || &*role == "slave" {
        let why = "it is a replica and takes no writes";
        return Err(Fault::new(Cure::Reconnect, why));
    }
    Ok(())
}

async fn probe(shared: &Shared, link: &Link) -> Result<(), Fault> {
    let call = Call {
        lua: &shared.scripts.probe,
        keys: vec![
            shared.meta.clone(),
            shared.log.clone(),
            shared.index.clone(),
        ],
        args: Vec::new(),
        writes: true,
    };
    let asked = Instant::now();
    let mut connection = link.connection.clone();
    match timeout(shared.options.deadline, call.send(&mut connection)).await {
        Ok(Ok(value)) => shared.answered(value, asked).map(drop),
        Ok(Err(error)) => Err(Fault::of(&error)),
        Err(_) => Err(shared.late()),
    }
}

/// Tries the connection now and then, and whenever someone doubts it; returns
/// once it is not in use any more.
async fn watch_over(shared: &Shared, locator: &Locator, generation: u64) {
    loop {
        let link = match &shared.state.borrow().phase {
            Phase::Up(link) if link.generation == generation => Arc::clone(link),
            Phase::Up(_) | Phase::Starting | Phase::Down | Phase::Closed => return,
        };
        tokio::select! {
            () = shared.replaced(generation) => return,
            () = shared.doubt.notified() => {}
            () = sleep(PROBE_EVERY) => {}
        }
        match probe(shared, &link).await {
            Ok(()) => shared.accepted(generation),
            Err(fault) => drop(shared.failed(generation, fault)),
        }
        let named = tokio::select! {
            () = shared.replaced(generation) => return,
            named = locator.named() => named,
        };
        if let Some(master) = named.filter(|master| *master != link.host) {
            let why = format!("the sentinels name another master, {master}");
            shared.failed(generation, Fault::new(Cure::Reconnect, why));
        }
    }
}

/// Between half and all of a pause that doubles with each failed attempt.
fn pause(attempts: u32) -> Duration {
    let longest = FIRST_PAUSE_MS
        .saturating_mul(1_u64.checked_shl(attempts.min(16)).unwrap_or(u64::MAX))
        .min(LONGEST_PAUSE_MS);
    let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
    let jitter = random.checked_rem(longest / 2).unwrap_or(0);
    Duration::from_millis(longest.saturating_sub(jitter))
}
