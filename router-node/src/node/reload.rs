//! Takes over a changed configuration file, or a changed secret file that it
//! names, without a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coordinator::config::ProcessEnv;
use shared_proto::config::Config;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::settings::{self, Inbox};
use super::{Node, Registry};
use crate::config::{Origin, Seen};
use crate::lease::desk::NewRules;
use crate::lease::revoke;
use crate::observe::ReloadLabels;
use crate::routing::build;

/// How often the files are looked at. Looking at their content works with
/// mounts that swap a link, which notifications miss.
const EVERY: Duration = Duration::from_millis(250);
/// With so many secret files that a look takes long, looks are rarer: they take
/// this part of the time at most.
const SHARE: u32 = 50;

/// Whether the last change was refused.
#[derive(Default)]
pub(crate) struct Reloads {
    refused: AtomicBool,
}

impl Reloads {
    /// Whether the running configuration is older than its files.
    pub(crate) fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }
}

/// Watches the configuration file and the secret files that it names for ever,
/// and takes over changed settings; SIGHUP looks at once.
pub(super) async fn watch(
    node: Arc<Node>,
    (mut registry, mut inbox): (Registry, Inbox),
    origin: Origin,
    seen: Seen,
) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else {
        return std::future::pending().await;
    };
    let mut seen = Arc::new(seen);
    let mut last = Arc::clone(&seen);
    let mut pause = EVERY;
    let mut looked_at = Instant::now();
    loop {
        let next_look = crate::timer::after(looked_at, pause);
        let asked = tokio::select! {
            () = tokio::time::sleep_until(next_look) => false,
            _ = hangup.recv() => true,
            news = inbox.next() => {
                settings::take_in(&node, &mut registry, news).await;
                continue;
            }
        };
        looked_at = Instant::now();
        if origin.file.is_none() {
            continue;
        }
        let began = Instant::now();
        let now = look(&origin, &seen).await;
        pause = EVERY.max(began.elapsed().saturating_mul(SHARE));
        looked_at = Instant::now();
        // A file that is gone for a moment (an editor that renames) is no change.
        let Some(mut now) = now else { continue };
        // Twice the same: it is not being written just now.
        let settled = now == *last;
        if asked || (settled && now != *seen) {
            apply(&node, &mut registry, &origin, &mut now).await;
            seen = Arc::new(now);
            last = Arc::clone(&seen);
        } else if !settled {
            last = Arc::new(now);
        }
    }
}

/// Reads the files beside the owners' thread.
async fn look(origin: &Origin, seen: &Arc<Seen>) -> Option<Seen> {
    let (origin, seen) = (origin.clone(), Arc::clone(seen));
    let reading = tokio::task::spawn_blocking(move || origin.read(&seen));
    reading.await.ok()?.ok()
}

async fn apply(node: &Arc<Node>, registry: &mut Registry, origin: &Origin, seen: &mut Seen) {
    let loaded = match origin.load(seen) {
        Ok(loaded) => loaded,
        Err(problems) => {
            for problem in &problems {
                tracing::error!("{problem}");
            }
            tracing::error!(
                problems = problems.len(),
                "the changed configuration is refused; the running one stays"
            );
            return done(node, true);
        }
    };
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let before = node.routing();
    let config = Arc::new(with_saved(node, loaded.config));
    if let Some(lost) = lost_protection(&before.config, &config, seen.file.as_deref()) {
        tracing::error!("{lost}; the changed configuration is refused, the running one stays");
        return done(node, true);
    }
    if config.server.listen != before.config.server.listen
        || config.server.admin_listen != before.config.server.admin_listen
        || config.server.workers != before.config.server.workers
        || config.store.url != before.config.store.url
    {
        tracing::warn!(
            "server.listen, server.adminListen, server.workers and store.url take effect at the next start"
        );
    }
    let connections = take_over(node, registry, config).await;
    tracing::info!(connections, "the changed configuration is in force");
    done(node, false);
}

/// What was saved through the API goes before what the file says.
fn with_saved(node: &Node, config: Config) -> Config {
    match config.with_saved(&node.settings.known().in_force, &ProcessEnv) {
        Ok((config, _)) => config,
        Err(problems) => {
            settings::warn_of(&problems);
            config
        }
    }
}

/// Puts a configuration in force; the number of its connections.
pub(super) async fn take_over(
    node: &Arc<Node>,
    registry: &mut Registry,
    config: Arc<Config>,
) -> usize {
    let before = node.routing();
    let routing = build(config, &mut registry.cells.borrow_mut(), node.now());
    registry.reload(&routing, &node.following).await;
    let connections = routing.slots.len();
    node.leases
        .desk
        .do_send(NewRules(routing.config.settings.leases));
    let gone = revoke::gone(&before.config, &routing.config);
    node.routing.store(Arc::new(routing));
    if !gone.is_empty() {
        // Beside the reload, since it may have to wait for the store.
        drop(tokio::task::spawn_local(revoke::revoke_keys(
            Arc::clone(node),
            gone,
        )));
    }
    connections
}

/// What a reload must not take away: it may meet a file that is being written,
/// and nobody watches it. A restart may.
fn lost_protection(before: &Config, now: &Config, bytes: Option<&[u8]>) -> Option<&'static str> {
    let said = |line: &[u8]| !matches!(line.trim_ascii().first(), None | Some(b'#'));
    let blank = bytes.is_some_and(|bytes| !bytes.split(|byte| *byte == b'\n').any(said));
    if blank {
        return Some("the file is empty");
    }
    if !before.api_keys.is_empty() && now.api_keys.is_empty() {
        return Some("every one of apiKeys is gone, which would let anybody in without a restart");
    }
    if before.server.admin_token.is_some() && now.server.admin_token.is_none() {
        return Some("server.adminToken is gone, which would open management without a restart");
    }
    None
}

fn done(node: &Node, refused: bool) {
    node.reloads.refused.store(refused, Ordering::Relaxed);
    let result = if refused { "refused" } else { "applied" };
    let reloads = &node.observer.metrics.reloads;
    reloads.get_or_create(&ReloadLabels { result }).inc();
}
