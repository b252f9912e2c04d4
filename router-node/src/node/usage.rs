//! Models that rest because a window of their quota was all but used up may come
//! back before its time: the account's usage is asked for now and then, and where
//! it shows that the window has begun anew, the rest ends.
//!
//! As with retries of expired connections, a question is counted in the record of
//! the locks before it is asked, so that one node asks it. The answer ends the lock
//! only if it still is the one that the question was about, by the owner's own word.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue};
use http::{Request, Uri};
use secrecy::ExposeSecret;
use shared_proto::clock::Millis;
use shared_proto::lockout::{Due, Freed, LockoutEvent, ModelLockouts, Outcome};
use shared_proto::quota::usage::Usage;
use tokio::time::timeout;

use super::Node;
use crate::actor::owner::Report;
use crate::quota;
use crate::request::credential;
use crate::routing::{Routing, Slot};
use crate::upstream::Single;

/// How often it is looked what is due.
const LOOK: Duration = Duration::from_secs(1);
/// Accounts asked about in one sweep; those left come in the next.
const BATCH: usize = 64;
/// Of these at a time.
const AT_ONCE: usize = 4;
/// The store has a claim within this time, or the question is not asked.
const CLAIM_DEADLINE: Duration = Duration::from_secs(2);
/// How long a question may take.
const ASK: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 256 * 1024;

/// Sweeps for ever.
pub(super) async fn keep(node: Arc<Node>) {
    loop {
        tokio::time::sleep(LOOK).await;
        if node.store_is_up() && !node.stop.begun() {
            sweep(&node).await;
        }
    }
}

async fn sweep(node: &Arc<Node>) {
    let routing = node.routing();
    let now = node.now();
    let slots = routing.slots.values();
    let due: Vec<(&Arc<Slot>, Due)> = slots
        .filter(|slot| usage_url(slot).is_some())
        .filter_map(|slot| Some((slot, slot.cell.lockouts().due(now)?)))
        .take(BATCH)
        .collect();
    let questions = due.into_iter().map(|(slot, due)| look(node, slot, due));
    let all = futures_util::stream::iter(questions).buffer_unordered(AT_ONCE);
    all.for_each(|()| std::future::ready(())).await;
}

/// Where its usage is asked for. An account that is called at an address of its own
/// is not shown elsewhere.
fn usage_url(slot: &Slot) -> Option<&str> {
    let url = slot.provider.usage_url.as_deref();
    url.filter(|_| slot.connection.base_url.is_none())
}

/// Asks about one lock, if it is this node that does.
async fn look(node: &Node, slot: &Slot, due: Due) {
    if claim(slot, &due).await.is_none() {
        return;
    }
    let policy = slot.lockout_rules.preflight.clone();
    let connection = &slot.connection.id;
    let asked_at = node.now();
    let answer = timeout(ASK, ask(slot, asked_at)).await.ok().flatten();
    let Some(usage) = answer.and_then(|body| Usage::read(&body, asked_at)) else {
        tracing::info!(%connection, "the account's usage is not known; its models rest on");
        return;
    };
    let routing = node.routing();
    if !is_the_same(&routing, slot) {
        return;
    }
    let told = usage.windows(&due.key, slot.lockout_rules.quota_bound_ms);
    quota::heard(slot, &told);
    if !usage.ends(&due.origin, &policy, node.now()) {
        tracing::debug!(%connection, "the account's usage does not end the rest of its models");
        return;
    }
    let (key, window) = (due.key.clone(), due.origin.window.clone());
    let freed = Freed {
        key: due.key,
        origin: due.origin,
        until: due.until,
        policy,
        usage,
    };
    if tell(slot, LockoutEvent::Freed(Box::new(freed))).await == Some(Outcome::Recovered) {
        tracing::info!(%connection, models = key, window, "the window has begun anew; its models may be used again");
    }
}

/// Whether the connection is configured as it was when the question was asked.
fn is_the_same(routing: &Routing, slot: &Slot) -> bool {
    let now = routing.slots.get(&slot.connection.id);
    now.is_some_and(|now| Arc::ptr_eq(&now.connection, &slot.connection))
}

/// Counts the question: this node asks it once the store says so.
async fn claim(slot: &Slot, due: &Due) -> Option<()> {
    let event = LockoutEvent::Looking {
        key: due.key.clone(),
        origin: due.origin.clone(),
        number: due.number,
    };
    let claiming = async {
        let owner = slot.cell.lockout_owner()?;
        let reported = owner.send(Report::<ModelLockouts>(event)).await.ok()?;
        if reported.outcome != Outcome::Looking {
            return None;
        }
        reported.durable?.await.ok()
    };
    let outcome = timeout(CLAIM_DEADLINE, claiming).await.ok()??;
    (outcome == Outcome::Looking).then_some(())
}

async fn tell(slot: &Slot, event: LockoutEvent) -> Option<Outcome> {
    let owner = slot.cell.lockout_owner()?;
    let telling = owner.send(Report::<ModelLockouts>(event));
    let reported = timeout(CLAIM_DEADLINE, telling).await.ok()?.ok()?;
    Some(reported.outcome)
}

/// The answer's body, if there is one that counts. Nothing of it is logged.
async fn ask(slot: &Slot, now: Millis) -> Option<Bytes> {
    let proxy = slot.connection.proxy_url.as_ref();
    let proxy = proxy.map(ExposeSecret::expose_secret);
    let client = Single::through(proxy, slot.provider.timeouts.connect_ms).ok()?;
    let mut request = Request::new(Bytes::new());
    *request.uri_mut() = Uri::try_from(usage_url(slot)?).ok()?;
    let headers = request.headers_mut();
    for (name, value) in &slot.default_headers {
        headers.insert(name, value.clone());
    }
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    // Without a token that is good now, the next question will have one.
    let (name, value) = credential::shown(slot, now)?;
    headers.insert(name, value);
    let answer = client.call(request, MAX_ANSWER).await.ok()?;
    (answer.status() == http::StatusCode::OK).then(|| answer.into_body())
}
