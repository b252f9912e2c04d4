//! The way down: nothing new is taken, what is under way may finish within the
//! drain time, and what is left then is told so instead of being cut off.

use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::ServerHandle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::Node;

/// How long what was cut short may take to tell its client.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How far the node is on its way down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// What is under way may finish.
    Draining,
    /// What is under way ends now.
    Cutting,
}

/// Tells requests that the node stops.
pub(crate) struct Stop(watch::Sender<Phase>);

impl Default for Stop {
    fn default() -> Self {
        Self(watch::Sender::new(Phase::Serving))
    }
}

impl Stop {
    /// Whether the node takes nothing new any more.
    pub(crate) fn begun(&self) -> bool {
        *self.0.borrow() != Phase::Serving
    }

    /// Whether what is under way has to end now.
    pub(crate) fn is_cutting(&self) -> bool {
        *self.0.borrow() == Phase::Cutting
    }

    /// Resolves when what is under way has to end.
    pub(crate) fn cut(&self) -> impl Future<Output = ()> + use<> {
        let mut phase = self.0.subscribe();
        async move {
            let cutting = |phase: &Phase| *phase == Phase::Cutting;
            // An error means that the node itself is gone, which is later still.
            phase.wait_for(cutting).await.ok();
        }
    }
}

/// Waits for SIGTERM or SIGINT and stops `servers`: within the drain time as
/// what is under way finishes, soon after it in any case, and at once when the
/// signal is repeated.
pub(super) async fn on_signal(node: Arc<Node>, servers: Vec<ServerHandle>) {
    let (Ok(mut term), Ok(mut int)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("signals can't be received; stop the process with SIGKILL");
        return std::future::pending().await;
    };
    told(&mut term, &mut int).await;
    node.stop.0.send_replace(Phase::Draining);
    node.changes.end();
    let drain = Duration::from_millis(node.routing().config.server.drain_timeout_ms);
    let in_flight = || node.observer.metrics.requests_in_flight.get();
    tracing::info!(
        in_flight = in_flight(),
        "draining: no new requests are taken"
    );
    let finishing = servers.iter().map(|server| server.stop(true));
    let finished = futures_util::future::join_all(finishing);
    let cutting = async {
        tokio::time::sleep(drain).await;
        tracing::warn!(
            in_flight = in_flight(),
            "server.drainTimeoutMs is over: what is under way is cut short"
        );
        node.stop.0.send_replace(Phase::Cutting);
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        _ = finished => {}
        () = cutting => {}
        () = told(&mut term, &mut int) => {
            tracing::warn!(in_flight = in_flight(), "told to stop again: ending at once");
        }
    }
}

async fn told(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}
