//! Tells the others that this node lives, and knows who else does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use shared_proto::clock::Millis;
use shared_proto::mirror::Health;
use shared_proto::mirror::hold::{Holder, Place, Pool, Take};
use shared_proto::roster::{BEAT_MS, LIFETIME_MS, Member, NOTE_VERSION, Note, Role, live_routers};
use tokio::time::timeout;

use super::Node;
use crate::timer::jittered;

/// A store call that takes longer counts as failed.
const STORE_DEADLINE: Duration = Duration::from_secs(1);

/// What is asked while somebody waits takes no longer.
const FIRST_DEADLINE: Duration = Duration::from_millis(250);
/// A node is new for this long, ms: by then every beat has come round.
const NEW_MS: u64 = 10_000;

/// Who lives, as last read.
#[derive(Default)]
pub(crate) struct Roster {
    seen: ArcSwapOption<Seen>,
    started_at: OnceLock<Millis>,
    address: OnceLock<SocketAddr>,
}

/// One reading.
struct Seen {
    members: Vec<Member>,
    live: u32,
    at: Millis,
}

impl Roster {
    /// Notes where clients reach this node.
    pub(super) fn listens(&self, address: SocketAddr) {
        self.address.set(address).ok();
    }
}

impl Node {
    /// Router nodes that live, this one included; the last number known while
    /// the store is away.
    pub(crate) fn live_nodes(&self) -> u32 {
        self.roster.seen.load().as_ref().map_or(1, |seen| seen.live)
    }

    /// Everybody who was there when last read, this node with what it knows of
    /// itself now; and whether that reading is too old to go by.
    pub(crate) fn members(&self) -> (Vec<Member>, bool) {
        let now = self.now();
        let seen = self.roster.seen.load_full();
        let stale = seen
            .as_ref()
            .is_none_or(|seen| now.since(seen.at) > LIFETIME_MS);
        let mut members = seen.map_or_else(Vec::new, |seen| seen.members.clone());
        members.retain(|member| member.id != self.id);
        members.push(Member {
            id: self.id.clone(),
            note: self.note(now),
            until: now.plus(LIFETIME_MS),
        });
        members.sort_by(|a, b| a.id.cmp(&b.id));
        (members, stale)
    }

    /// Looks who lives, where this node is so new that others may have started
    /// since it last looked: its share depends on it.
    pub(crate) async fn look_around(&self) {
        let now = self.now();
        let started_at = *self.roster.started_at.get_or_init(|| now);
        let is_new = now.since(started_at) < NEW_MS;
        if self.shared_store && is_new && self.mirror.health() == Health::Up {
            timeout(FIRST_DEADLINE, look(self)).await.ok();
        }
    }

    fn note(&self, now: Millis) -> Note {
        let in_flight = self.observer.metrics.requests_in_flight.get();
        Note {
            format: NOTE_VERSION,
            role: Role::Router,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: *self.roster.started_at.get_or_init(|| now),
            at: now,
            in_flight: u64::try_from(in_flight).unwrap_or(0),
            lag_ms: self.following.lag_ms(),
            address: self.roster.address.get().map(ToString::to_string),
            leads: None,
        }
    }

    fn holder(&self) -> Holder {
        Holder(self.id.as_str().into())
    }
}

/// Tells for the first time, before anybody is served: whoever starts at the
/// same time has to know.
pub(super) async fn begin(node: &Node) {
    timeout(FIRST_DEADLINE, beat(node)).await.ok();
}

/// Tells and looks for ever.
pub(super) async fn keep(node: Arc<Node>) {
    loop {
        // What fails is tried again with the next beat.
        timeout(STORE_DEADLINE, beat(&node)).await.ok();
        tokio::time::sleep(jittered(Duration::from_millis(BEAT_MS))).await;
    }
}

async fn beat(node: &Node) {
    let take = Take {
        pool: Pool::Nodes,
        holder: node.holder(),
        limit: None,
        ttl_ms: LIFETIME_MS,
        patience_ms: None,
        guard: None,
        note: node.note(node.now()).to_bytes(),
    };
    if let Err(error) = node.mirror.take(take).await {
        tracing::debug!(%error, "the node can't tell that it lives");
        return;
    }
    look(node).await;
}

async fn look(node: &Node) {
    match node.mirror.holders(&Pool::Nodes).await {
        Ok(held) => {
            let at = node.now();
            let members: Vec<Member> = held.into_iter().map(Member::from).collect();
            let live = live_routers(&members, at);
            let metrics = &node.observer.metrics.cluster;
            metrics.nodes.set(i64::from(live));
            let seen = Seen { members, live, at };
            node.roster.seen.store(Some(Arc::new(seen)));
        }
        Err(error) => tracing::debug!(%error, "the living nodes can't be read"),
    }
}

/// Tells that this node is no more.
pub(super) async fn leave(node: &Node) {
    let place = Place {
        pool: Pool::Nodes,
        holder: node.holder(),
    };
    // Otherwise it lapses by itself.
    let leaving = node.mirror.give_back(vec![place]);
    timeout(STORE_DEADLINE, leaving).await.ok();
}
