//! Asks an echo service, again and again, by which address each way out leads.
//!
//! A way out is a proxy's URL, or none: all connections that share it leave by
//! the same address, and it is asked about once. It is asked only for
//! connections of a family, so without one nobody is. An answer counts for
//! `cacheMs`, and so does that there was none; what was known before stays
//! until it is too old.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use secrecy::ExposeSecret as _;
use shared_proto::clock::Millis;
use shared_proto::egress::{MAX_OBSERVED, Observation, Observations, Probed};
use shared_proto::id::ConnectionId;

use super::Egress;
use super::call::ask;
use crate::node::Node;
use crate::routing::Routing;
use crate::timer::jittered;

/// Ways out that are asked about at a time.
const AT_ONCE: usize = 8;
/// How often it is looked what has to be asked, and whether the configuration
/// is another.
const EVERY: Duration = Duration::from_millis(200);

/// A way out: a proxy's URL, or none. Never shown: it may hold a password.
type Way = Option<Arc<str>>;

/// What is known of one way out.
#[derive(Clone, Copy, Default)]
struct Known {
    probed: Option<Probed>,
    /// Longer than the cache for some, so that nodes don't ask together, ms.
    late_ms: u64,
    /// The last answer that there was, and when.
    last: Option<(IpAddr, Millis)>,
}

impl Known {
    fn is_due(&self, now: Millis, cache_ms: u64) -> bool {
        let cache_ms = cache_ms.saturating_add(self.late_ms);
        self.probed
            .is_none_or(|probed| !probed.is_fresh(now, cache_ms))
    }

    fn answered(&mut self, answer: Option<IpAddr>, now: Millis, late_ms: u64) {
        self.probed = Some(Probed { at: now });
        self.late_ms = late_ms;
        self.last = answer.map(|address| (address, now)).or(self.last);
    }
}

/// The ways out that connections of families use, and what is known of each.
#[derive(Default)]
pub(super) struct Ways {
    used: BTreeMap<ConnectionId, (Way, Arc<str>)>,
    known: HashMap<Way, Known>,
}

impl Ways {
    /// Takes over a configuration. What is known of a way that nobody uses any
    /// more is forgotten.
    pub(super) fn follow(&mut self, routing: &Routing) {
        let slots = routing.slots.values();
        let mut used: BTreeMap<_, _> = slots
            .filter_map(|slot| {
                let family = slot.egress_family.clone()?;
                let proxy = slot.connection.proxy_url.as_ref();
                let way = proxy.map(|proxy| Arc::from(proxy.expose_secret()));
                Some((slot.connection.id.clone(), (way, family)))
            })
            .collect();
        while used.len() > MAX_OBSERVED {
            used.pop_last();
        }
        self.used = used;
        let used = &self.used;
        self.known
            .retain(|way, _| used.values().any(|(used, _)| used == way));
    }

    /// The ways that have to be asked about.
    pub(super) fn due(&self, now: Millis, cache_ms: u64) -> Vec<Way> {
        let mut due: Vec<Way> = Vec::new();
        let mut ways: Vec<&Way> = self.used.values().map(|(way, _)| way).collect();
        ways.sort_unstable();
        ways.dedup();
        for way in ways {
            let known = self.known.get(way).copied().unwrap_or_default();
            if known.is_due(now, cache_ms) {
                due.push(way.clone());
            }
        }
        due
    }

    pub(super) fn answered(&mut self, way: Way, answer: Option<IpAddr>, now: Millis, late_ms: u64) {
        self.known
            .entry(way)
            .or_default()
            .answered(answer, now, late_ms);
    }

    /// What this node has to say: of a way that it could not ask about yet,
    /// what it said before it was started anew.
    pub(super) fn observations(
        &self,
        before: &Observations,
        keep_ms: u64,
        now: Millis,
    ) -> Observations {
        let seen = |(id, (way, family)): (&ConnectionId, &(Way, Arc<str>))| {
            let proxied = way.is_some();
            let known = self.known.get(way);
            let observation = if let Some((address, at)) = known.and_then(|known| known.last) {
                Observation {
                    family: Arc::clone(family),
                    address,
                    at,
                    proxied,
                }
            } else {
                let before = before.seen.get(id);
                let same = before.filter(|seen| seen.proxied == proxied)?;
                Observation {
                    family: Arc::clone(family),
                    ..same.clone()
                }
            };
            Some((id.clone(), observation))
        };
        let mut all = Observations {
            keep_ms,
            seen: self.used.iter().filter_map(seen).collect(),
        };
        all.tidy(now);
        all
    }
}

/// Asks and tells for ever.
pub(crate) async fn keep(node: Arc<Node>) {
    let mut ways = Ways::default();
    let mut followed: Option<Arc<Routing>> = None;
    loop {
        let routing = node.routing();
        let is_new = followed
            .as_ref()
            .is_none_or(|before| !Arc::ptr_eq(before, &routing));
        if is_new {
            ways.follow(&routing);
        }
        let rules = &routing.config.settings.egress;
        let due = ways.due(node.now(), rules.cache_ms);
        if is_new || !due.is_empty() {
            tell(&node.egress, &ways, rules.max_age_ms, node.now()).await;
        }
        followed = Some(Arc::clone(&routing));
        let asking = due.into_iter().map(|way| async move {
            let answer = ask(rules, way.as_deref()).await;
            (way, answer)
        });
        let mut answers =
            std::pin::pin!(futures_util::stream::iter(asking).buffer_unordered(AT_ONCE));
        while let Some((way, answer)) = answers.next().await {
            node.egress.metrics.probed(answer.is_some());
            let tenth = Duration::from_millis(rules.cache_ms.div_ceil(20));
            let late_ms = u64::try_from(jittered(tenth).as_millis()).unwrap_or(0);
            ways.answered(way, answer, node.now(), late_ms);
            tell(&node.egress, &ways, rules.max_age_ms, node.now()).await;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// Tells the owner what is known, if that is anything, or was.
async fn tell(egress: &Egress, ways: &Ways, keep_ms: u64, now: Millis) {
    let board = egress.board.load_full();
    let before = board.of(&egress.node);
    let none = Observations::default();
    let before = before.unwrap_or(&none);
    let observations = ways.observations(before, keep_ms, now);
    let is_news = !(observations.seen.is_empty() && before.seen.is_empty());
    if is_news && observations != *before {
        egress.saw(observations).await;
    }
}
