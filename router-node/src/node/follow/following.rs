//! How a node's following of the log goes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shared_proto::clock::Millis;
use shared_proto::leader::Leader;
use shared_proto::mirror::record::Record;
use tokio::sync::Notify;

/// How the following goes.
#[derive(Default)]
pub(crate) struct Following {
    pub(super) follows: AtomicBool,
    pub(super) lag_ms: AtomicU64,
    /// Until when somebody leads the coordinators, in ms.
    led_until: AtomicU64,
    /// Of whoever led last.
    epoch: AtomicU64,
    pub(super) asked: Notify,
}

impl Following {
    /// `known`: the owners began with what the store holds.
    pub(crate) fn begun(known: bool) -> Self {
        Self {
            follows: AtomicBool::new(known),
            ..Self::default()
        }
    }

    /// Whether changes made elsewhere arrive here.
    pub(crate) fn follows(&self) -> bool {
        self.follows.load(Ordering::Relaxed)
    }

    /// From the commit of the last change that was applied to its application, ms.
    pub(crate) fn lag_ms(&self) -> u64 {
        self.lag_ms.load(Ordering::Relaxed)
    }

    /// Whether a coordinator leads at `now`, as far as is known here.
    pub(crate) fn is_led(&self, now: Millis) -> bool {
        now.as_epoch_ms() < self.led_until.load(Ordering::Relaxed)
    }

    /// Takes in what is stored of the coordinators' leader. Whether that is
    /// another than before: a renewal is nobody's news.
    pub(super) fn led(&self, stored: Option<&Record>) -> bool {
        let leader = stored.and_then(|record| Leader::of(record).ok());
        let (epoch, until) = leader.map_or((0, 0), |leader| {
            (leader.epoch, leader.expires.as_epoch_ms())
        });
        self.led_until.store(until, Ordering::Relaxed);
        self.epoch.swap(epoch, Ordering::Relaxed) != epoch
    }

    /// Asks for a snapshot as soon as the store answers.
    pub(crate) fn read_again(&self) {
        self.asked.notify_one();
    }
}
