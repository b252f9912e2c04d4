//! Tells listeners of this node what the follower reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use shared_proto::mirror::log::LogEntry;
use tokio::sync::broadcast;

/// Changes that a listener may be behind; past it the listener is dropped.
const BEHIND: usize = 1024;
/// Listeners at once.
const MAX_LISTENERS: usize = 64;

/// The sending end.
pub(crate) struct Changes {
    sender: broadcast::Sender<Told>,
    listeners: Arc<AtomicUsize>,
}

/// What a listener hears.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// A change of shared state.
    Change(Arc<LogEntry>),
    /// The node stops.
    End,
}

impl Default for Changes {
    fn default() -> Self {
        Self {
            sender: broadcast::Sender::new(BEHIND),
            listeners: Arc::default(),
        }
    }
}

impl Changes {
    /// Tells every listener; nobody is waited for.
    pub(super) fn tell(&self, entry: LogEntry) {
        if self.sender.receiver_count() > 0 {
            // An error means that the last one has just left.
            self.sender.send(Told::Change(Arc::new(entry))).ok();
        }
    }

    /// Ends every listener.
    pub(super) fn end(&self) {
        self.sender.send(Told::End).ok();
    }

    /// Listens from now on; `None` when as many as may do so already.
    pub(crate) fn listen(&self) -> Option<Listener> {
        let before = self.listeners.fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(&self.listeners));
        (before < MAX_LISTENERS).then(|| Listener {
            receiver: self.sender.subscribe(),
            _place: place,
        })
    }
}

/// One listener's end.
pub(crate) struct Listener {
    receiver: broadcast::Receiver<Told>,
    _place: Place,
}

/// Why a listener hears no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The node stops.
    Stopping,
    /// It was slower than the changes came; so many were missed.
    TooSlow(u64),
}

impl Listener {
    /// Waits for the next change.
    pub(crate) async fn next(&mut self) -> Result<Arc<LogEntry>, Over> {
        match self.receiver.recv().await {
            Ok(Told::Change(entry)) => Ok(entry),
            Ok(Told::End) | Err(broadcast::error::RecvError::Closed) => Err(Over::Stopping),
            Err(broadcast::error::RecvError::Lagged(missed)) => Err(Over::TooSlow(missed)),
        }
    }
}

/// Given back when dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
