//! One attempt to reset a limit at a time, over all nodes; the others wait for
//! what comes of it.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use shared_proto::clock::Millis;
use shared_proto::lane::{LaneEvent, LaneOutcome, ResetTurn};
use tokio::time::timeout;

use super::{OWNER_DEADLINE, call};
use crate::node::Node;
use crate::routing::Slot;

/// Times that others may come first before a request gives it up.
const ROUNDS: usize = 4;

/// Who asks for a reset.
pub(crate) struct Asking {
    pub(crate) node: Arc<Node>,
    pub(crate) slot: Arc<Slot>,
    /// What the account proves itself with.
    pub(crate) credential: (HeaderName, HeaderValue),
}

/// Whether the connection's limit is reset now, by this attempt or by one a moment
/// ago. Once begun, an attempt goes on to its end whatever becomes of the caller:
/// what it found is for all.
pub(crate) async fn reset(asking: Asking) -> bool {
    let attempt = tokio::task::spawn_local(run(asking));
    // A node that stops drops it.
    attempt.await.unwrap_or(false)
}

async fn run(asking: Asking) -> bool {
    let unique = uuid::Uuid::new_v4().simple();
    let holder: Arc<str> = format!("{}/{unique}", asking.node.id).into();
    for _ in 0..ROUNDS {
        match claim(&asking, &holder).await {
            Some(ResetTurn::Recent) => return true,
            Some(ResetTurn::NotBefore { .. }) | None => return false,
            Some(ResetTurn::Claimed) => return spend(&asking, holder).await,
            Some(ResetTurn::Busy { until }) => settled(&asking, until).await,
        }
    }
    false
}

/// Waits until somebody else's attempt has ended, or is over by the clock.
async fn settled(asking: &Asking, until: Millis) {
    let lane = &asking.slot.cell.lane;
    loop {
        // Before the look, so that no change is missed.
        let changed = lane.changed.notified();
        let now = asking.node.now();
        if now >= until || !lane.state().reset.is_claimed(now) {
            return;
        }
        let left = until.since(now).saturating_add(1);
        timeout(Duration::from_millis(left), changed).await.ok();
    }
}

/// A claim counts once the store has it; where the store does not answer, that on
/// this node does.
async fn claim(asking: &Asking, holder: &Arc<str>) -> Option<ResetTurn> {
    let holder = Arc::clone(holder);
    let event = LaneEvent::ClaimReset { holder };
    let reported = asking.slot.cell.lane.report(event).await?;
    let outcome = match (reported.outcome, reported.durable) {
        (LaneOutcome::Reset(ResetTurn::Claimed), Some(durable)) => {
            let stored = timeout(OWNER_DEADLINE, durable).await;
            stored.ok().and_then(Result::ok).unwrap_or(reported.outcome)
        }
        (outcome, _) => outcome,
    };
    match outcome {
        LaneOutcome::Reset(turn) => Some(turn),
        LaneOutcome::Nothing
        | LaneOutcome::Retry { .. }
        | LaneOutcome::Served
        | LaneOutcome::Ended(_)
        | LaneOutcome::Noted => None,
    }
}

async fn spend(asking: &Asking, holder: Arc<str>) -> bool {
    let slot = &asking.slot;
    let Some(wall) = &slot.wall else {
        return false;
    };
    let (outcome, next_at) = call::ask(wall, &asking.credential).await;
    let event = LaneEvent::ResetEnded {
        holder,
        outcome,
        next_at,
    };
    slot.cell.lane.tell(event).await;
    let not_before = slot.cell.lane.state().reset.not_before;
    tracing::info!(
        connection = %slot.connection.id,
        outcome = outcome.as_str(),
        not_before = not_before.map(Millis::to_rfc3339),
        "asked for a reset of the usage limit"
    );
    let metrics = &asking.node.observer.metrics.wall;
    metrics.count(&slot.provider.id, "reset", outcome.as_str());
    outcome.is_reset()
}
