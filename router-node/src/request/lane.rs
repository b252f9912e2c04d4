//! The wall of a subscription account inside one attempt: the slow header, and
//! what the answer's headers say. A refusal that is met here is not known outside.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use shared_proto::clock::Millis;
use shared_proto::lane::{LaneEvent, LaneOutcome, Signs, Via, Waited, delay_ms};
use shared_proto::protocol::Protocol;
use tokio::time::Instant;

use super::Admitted;
use super::pick::Candidate;
use crate::routing::Slot;
use crate::timer::limit;
use crate::wall::{Asking, Wall, reset};

/// What stands before every name of such a header.
const PREFIX: &str = "anthropic-ratelimit-unified-";
/// What is left of the attempt's time when the last wait is over.
const MARGIN: Duration = Duration::from_secs(5);
/// Times that one attempt is sent again without a wait.
const AT_ONCE: u8 = 3;

/// What a request on the lane says.
pub(crate) fn slow_header() -> (HeaderName, HeaderValue) {
    let name = HeaderName::from_static("anthropic-usage-limit");
    (name, HeaderValue::from_static("slow"))
}

/// One call, as far as it concerns the wall.
#[derive(Default)]
pub(crate) struct Ride {
    /// The end of the window whose lane it is sent on.
    pub(crate) on: Option<Millis>,
    signs: Cell<Option<Signs>>,
}

impl Ride {
    /// Notes what an answer's head says.
    pub(crate) fn saw(&self, status: u16, headers: &HeaderMap) {
        let value = |name: &str| headers.get(format!("{PREFIX}{name}"))?.to_str().ok();
        self.signs.set(Some(Signs::read(status, value)));
    }
}

/// The same call once more.
pub(super) struct Again {
    pub(super) via: Via,
    pub(super) wait: Duration,
}

/// What came of an answer.
pub(super) enum Told {
    /// Nothing that concerns the request.
    Nothing,
    /// The lane ended, for this reason.
    Ended(&'static str),
    /// The call is made once more.
    Again(Again),
}

/// One attempt on a connection that may have a wall.
pub(super) struct Rider<'a> {
    request: &'a Admitted,
    slot: Arc<Slot>,
    began: Instant,
    first_busy: Option<Instant>,
    at_once: u8,
    asked: bool,
}

impl<'a> Rider<'a> {
    /// Begins an attempt.
    pub(super) fn new(request: &'a Admitted, candidate: &Candidate) -> Self {
        Self {
            request,
            slot: Arc::clone(&candidate.slot),
            began: Instant::now(),
            first_busy: None,
            at_once: 0,
            asked: false,
        }
    }

    fn wall(&self) -> Option<&Wall> {
        let wall = self.slot.wall.as_deref();
        wall.filter(|_| self.request.protocol == Protocol::Messages)
    }

    /// The next call: on the lane, if one is ridden. `None` without a wall.
    pub(super) fn mount(&self) -> Option<Ride> {
        let lane = self.wall()?.low_priority;
        let now = self.request.worker.now();
        let state = self.slot.cell.lane.state();
        let riding = state.riding(now).filter(|_| lane);
        Some(Ride {
            on: riding.map(|riding| riding.resets_at),
            signs: Cell::default(),
        })
    }

    /// What the answer to `ride` means; `credential` is what it was asked with.
    pub(super) async fn read(
        &mut self,
        ride: &Ride,
        succeeded: bool,
        credential: Option<&(HeaderName, HeaderValue)>,
    ) -> Told {
        let (Some(wall), Some(signs)) = (self.wall(), ride.signs.take()) else {
            return Told::Nothing;
        };
        let concerns = ride.on.is_some() || signs.is_refusal_at_the_wall();
        if !concerns || (!succeeded && (200..300).contains(&signs.status)) {
            return Told::Nothing;
        }
        let (low_priority, auto_reset) = (wall.low_priority, wall.auto_reset);
        let may_ask = auto_reset && ride.on.is_none() && !self.asked && signs.may_be_reset();
        if let Some(credential) = credential.filter(|_| may_ask) {
            self.asked = true;
            let asking = Asking {
                node: Arc::clone(&self.request.worker.node),
                slot: Arc::clone(&self.slot),
                credential: credential.clone(),
            };
            if reset(asking).await {
                return self.again(Via::LimitReset, Duration::ZERO);
            }
        }
        if !low_priority {
            return Told::Nothing;
        }
        let event = LaneEvent::Answered {
            signs,
            rode: ride.on,
            waited: self.waited(),
        };
        let outcome = self.slot.cell.lane.tell(event).await;
        self.told(outcome.unwrap_or(LaneOutcome::Nothing))
    }

    fn told(&mut self, outcome: LaneOutcome) -> Told {
        match outcome {
            LaneOutcome::Nothing | LaneOutcome::Noted | LaneOutcome::Reset(_) => Told::Nothing,
            LaneOutcome::Served => {
                self.count("served", "none");
                Told::Nothing
            }
            LaneOutcome::Ended(reason) => {
                let (connection, reason) = (&self.slot.connection.id, reason.as_str());
                tracing::info!(%connection, reason, "the low-priority lane ended");
                self.count("ended", reason);
                Told::Ended(reason)
            }
            LaneOutcome::Retry {
                base_ms: 0, via, ..
            } => {
                if self.at_once >= AT_ONCE {
                    return Told::Nothing;
                }
                self.at_once = self.at_once.saturating_add(1);
                let connection = &self.slot.connection.id;
                tracing::info!(%connection, "the account is at its wall; it goes on in the low-priority lane");
                self.again(via, Duration::ZERO)
            }
            LaneOutcome::Retry {
                base_ms,
                via,
                left_ms,
            } => {
                self.first_busy.get_or_insert_with(Instant::now);
                let (random, _) = uuid::Uuid::new_v4().as_u64_pair();
                let per_mille = random.checked_rem(1001).unwrap_or(500);
                let wait = delay_ms(base_ms, per_mille, left_ms);
                self.again(via, Duration::from_millis(wait))
            }
        }
    }

    fn again(&self, via: Via, wait: Duration) -> Told {
        self.count("retry", via.as_str());
        Told::Again(Again { via, wait })
    }

    fn count(&self, event: &'static str, reason: &'static str) {
        let metrics = &self.request.worker.node.observer.metrics.wall;
        metrics.count(&self.slot.provider.id, event, reason);
    }

    /// So far, and how much more at most: the attempt's own time less a margin.
    fn waited(&self) -> Waited {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let waited = self
            .first_busy
            .map_or(Duration::ZERO, |since| since.elapsed());
        let whole = limit(self.slot.provider.timeouts.total_ms);
        let left = whole
            .saturating_sub(self.began.elapsed())
            .saturating_sub(MARGIN);
        Waited {
            ms: ms(waited),
            ceiling_ms: ms(waited.saturating_add(left)),
        }
    }
}
